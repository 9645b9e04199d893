"""The models that a provider says it has, out of its list in whatever shape it comes. Pure.

Shapes: {"data": [{"id"}]} of OpenAI, Anthropic and most servers, a bare list of the same (together), {"models": [{"name"}]}
of Gemini (`models/…`, only those that generate) and of Ollama's /api/tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from msgspec import Struct

from agentd.providers.errors import one_line
from tracewriter.events import MAX_TOKENS

MAX_MODELS: Final = 2_000
_MAX_ID_CHARS: Final = 128
_LISTED: Final = 8
_NEAR: Final = 3
# What different servers call the context window, in tokens.
_CONTEXT_KEYS: Final = (
    "context_length", "context_window", "max_model_len", "max_context_length", "inputTokenLimit", "max_input_tokens",
)  # fmt: skip


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """One model: `id` is what requests name, `context_tokens` its window where the list says so."""

    id: str
    context_tokens: int | None = None


def parse_models(body: bytes) -> tuple[ModelInfo, ...] | None:
    """The models in a list, each once, in the provider's order; None when it is no list of models."""
    try:
        value = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = next((value[key] for key in ("data", "models") if isinstance(value.get(key), list)), None)
    if not isinstance(value, list):
        return None
    found: dict[str, ModelInfo] = {}
    for entry in value:
        model = _model(entry)
        if model is not None and len(found) < MAX_MODELS:
            found.setdefault(model.id, model)
    return tuple(found.values())


def _model(entry: object) -> ModelInfo | None:
    if isinstance(entry, str):
        entry = {"id": entry}
    if not isinstance(entry, dict):
        return None
    methods = entry.get("supportedGenerationMethods")
    if isinstance(methods, list) and "generateContent" not in methods:
        return None  # embeddings and the like
    named = next((name for key in ("id", "model", "name") if isinstance(name := entry.get(key), str) and name), "")
    name = named.removeprefix("models/").strip()
    if not name or len(name) > _MAX_ID_CHARS or not name.isprintable():
        return None
    sizes = (entry.get(key) for key in _CONTEXT_KEYS)
    size = next((n for n in sizes if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MAX_TOKENS), None)
    return ModelInfo(name, size)


def near_names(model: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that the user may have meant, the likeliest first, at most three."""
    known = tuple(names)
    wanted = model.lower()
    by_lower = {name.lower(): name for name in known}
    close = [by_lower[name] for name in get_close_matches(wanted, by_lower, _NEAR, 0.6)]
    # A name without its vendor or its date: sonnet-4-5 in claude-sonnet-4-5-20250929.
    inside = [name for name in known if len(wanted) >= 4 and (wanted in name.lower() or _bare(name) == _bare(wanted))]
    return tuple(dict.fromkeys((*close, *sorted(inside, key=len))))[:_NEAR]


def _bare(name: str) -> str:
    return name.lower().rpartition("/")[2].partition(":")[0]


def advice(model: str, provider: str, models: tuple[ModelInfo, ...]) -> str:
    """What to do next about a model that a provider does not have; "" when its list is empty."""
    if not models:
        return ""
    names = [one.id for one in models]
    more = f"`agentctl models {provider}` lists all {len(names)}" if len(names) > _LISTED else ""
    if near := near_names(model, names):
        return one_line("; ".join(filter(None, (f"did you mean {' or '.join(near)}?", more or _all(names)))))
    shown = _all(names[:_LISTED]) + (", …" if more else "")
    return one_line("; ".join(filter(None, (shown, more))))


def _all(names: list[str]) -> str:
    return f"it has {', '.join(names)}"
