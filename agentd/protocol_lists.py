"""Messages of agentd.sock that are lists of many rows: what `model/list` asks and answers, and the rows of `trace/status`.

Part of protocol.py, which has the rest; apart from it for its length alone.
"""

from __future__ import annotations

from msgspec import Struct


class TraceSession(Struct, frozen=True):
    """A session's recording, in events. queued_bytes: encoded, not acknowledged. dropped_by: dropped, by reason."""

    session: str
    state: str
    reason: str
    emitted: int
    recorded: int
    dropped: int
    dropped_by: dict[str, int]
    queued_bytes: int


class ModelList(Struct, frozen=True, omit_defaults=True):
    """Which models there are, of one provider or of all. `refresh`: ask even what was asked within the hour. `env` holds keys:
    its repr is never logged."""

    provider: str | None = None
    env: dict[str, str] = {}
    refresh: bool = False

    def __repr__(self) -> str:
        return f"ModelList({self.provider!r})"


class ModelRow(Struct, frozen=True):
    """A model by the name that requests take, and its context window in tokens where the provider says so."""

    model: str
    context_tokens: int | None


class ProviderModels(Struct, frozen=True):
    """One provider. state: ok, no_key or failed; `reason` and `hint` say why there is no list, and what to do.

    `age_s`: seconds since the provider was asked. `default`: its model when none is named, "" for none.
    """

    provider: str
    state: str
    local: bool
    models: tuple[ModelRow, ...]
    age_s: float
    default: str
    reason: str
    hint: str


class Models(Struct, frozen=True):
    """All that were asked for, in the catalog's order."""

    providers: tuple[ProviderModels, ...]
