"""What Gemini models differ in, by their names: data for the request, which the wire refuses when it does not fit the model.

Sources: Google's pages on thinking, thought signatures and function calling. A name that is not known gets the request that
every model takes.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from msgspec import Struct


class GeminiModel(Struct, frozen=True):
    """`thinks`: takes includeThoughts (others: 400 "Thinking is not enabled"). `signed`: refuses the first call of a turn
    without a signature (400 "missing a thought_signature")."""

    thinks: bool = False
    signed: bool = False


# First match counts. Sizes and dates follow the beginning: gemini-2.5-flash-lite-preview-09-2025.
_MODELS: Final[tuple[tuple[re.Pattern[str], GeminiModel], ...]] = (
    (re.compile(r"gemini-[\w.-]*(?:-tts|-live|-audio|-embedding)\b"), GeminiModel()),
    (re.compile(r"gemini-(?:1|2\.0)\b"), GeminiModel()),
    (re.compile(r"gemini-2\.5-flash-image\b"), GeminiModel()),
    (re.compile(r"gemini-2\.5\b"), GeminiModel(thinks=True)),
    (re.compile(r"gemini-(?:robotics-er|2\.5-computer-use)"), GeminiModel(thinks=True)),
    (re.compile(r"gemini-(?:[3-9]|[1-9]\d)\b"), GeminiModel(thinks=True, signed=True)),
    (re.compile(r"gemini-(?:pro|flash|flash-lite)-latest\b"), GeminiModel(thinks=True, signed=True)),
)


def gemini_model(name: str) -> GeminiModel:
    """What is known of a model, whatever collection its name is written with (models/…, publishers/google/models/…)."""
    bare = name.rpartition("/")[2]
    return next((model for pattern, model in _MODELS if pattern.match(bare)), GeminiModel())


_COLLECTIONS: Final = ("models", "tunedModels", "publishers", "projects")


def model_path(name: str) -> str:
    """The end of the URL of a streamed request to a model: `models/` is where a name without a collection is."""
    name = name.strip("/")
    collection = "" if name.partition("/")[0] in _COLLECTIONS else "models/"
    return f"/{collection}{quote(name, safe='/')}:streamGenerateContent?alt=sse"
