"""Answers model/list: asks the providers, all at the same time, and keeps what they said for an hour, in memory.

A provider is asked with the key that the client brought (or a key file or command that the configuration names), as its
sessions are. What is kept is kept per place and key: two clients with different keys may see different models. A failure is
not kept: whoever asks again has perhaps mended it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from agentd.config import Config
from agentd.errors import Refusal
from agentd.protocol_lists import ModelList, ModelRow, Models, ProviderModels
from agentd.providers import catalog
from agentd.providers.catalog import Choice, KeyReaders, ProviderSpec
from agentd.providers.models import ModelInfo
from tracewriter.clock import Clock
from tracewriter.events import Failure

KEPT_S: Final = 3600.0
MAX_KEPT: Final = 64
# All providers together in one answer, which must stay under the 8 MiB of a message.
MAX_ROWS: Final = 20_000
# More than there are in the catalog: a configuration with hundreds must not open a connection to each at once.
MAX_AT_ONCE: Final = 32
_NOT_KEPT: Final = frozenset(("local",))  # files: looking costs nothing, and one may just have been pulled
_NO_SERVER: Final = frozenset(("demo",))  # the scripted model has no list


class Lister(Protocol):
    """A provider that can be asked for its models, and closed."""

    async def models(self) -> tuple[ModelInfo, ...] | Failure:
        """As in http.HttpProvider."""

    async def aclose(self) -> None:
        """Close its connections."""


MakeLister = Callable[[Choice, Mapping[str, str]], Lister]


class _Kept(Struct, frozen=True):
    at_s: float
    models: tuple[ModelInfo, ...]


class ModelLists:
    """The lists of all providers."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        make_lister: MakeLister,
        keys: KeyReaders,
        pepper: bytes | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._make_lister = make_lister
        self._keys = keys
        self._pepper = os.urandom(16) if pepper is None else pepper
        self._kept: dict[tuple[str, str, bytes], _Kept] = {}
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)

    def __repr__(self) -> str:
        return f"<ModelLists kept={len(self._kept)}>"

    async def list(self, params: ModelList) -> Models:
        """What each provider has, or why it was not asked. Raises Refusal for a provider that is not known."""
        env = {name: params.env[name] for name in catalog.env_names(self._config.providers) if name in params.env}
        known = catalog.specs(self._config.providers)
        wanted = [spec for spec in known.values() if spec.name not in _NO_SERVER and spec.base_url]
        if params.provider:
            spec = known.get(params.provider) or catalog.named(params.provider, known)
            if spec is None or spec.name in _NO_SERVER:
                shown = "".join(char if char.isprintable() else "?" for char in params.provider[:80])
                names = ", ".join(spec.name for spec in wanted)
                raise Refusal("unknown_provider", f"no provider is called '{shown}'", f"known providers: {names}")
            wanted = [spec]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._gated(self._one(spec, env, refresh=params.refresh))) for spec in wanted]
        each = MAX_ROWS // max(1, len(tasks))
        rows = (task.result() for task in tasks)
        return Models(tuple(msgspec.structs.replace(row, models=row.models[:each]) for row in rows))

    async def _gated(self, asking: Awaitable[ProviderModels]) -> ProviderModels:
        async with self._gate:
            return await asking

    async def _one(self, spec: ProviderSpec, env: Mapping[str, str], *, refresh: bool) -> ProviderModels:
        choice = await asyncio.to_thread(self._resolve, spec.name, env)  # it may read a key file, or wait for a command
        if isinstance(choice, Failure):
            return _row(spec, "no_key" if choice.kind == "no_key" else "failed", failure=choice)
        kept = None if refresh else self._kept.get(self._key(choice))
        now_s = self._clock.monotonic()
        if kept is not None and now_s - kept.at_s < KEPT_S:
            return _row(spec, "ok", kept.models, now_s - kept.at_s)
        lister = self._make_lister(choice, env)
        try:
            found = await lister.models()
        finally:
            await lister.aclose()
        if isinstance(found, Failure):
            return _row(spec, "failed", failure=found)
        if spec.name not in _NOT_KEPT:
            self._keep(self._key(choice), _Kept(self._clock.monotonic(), found))
        return _row(spec, "ok", found)

    def _resolve(self, name: str, env: Mapping[str, str]) -> Choice | Failure:
        return catalog.resolve(f"{name}/models", env=env, overrides=self._config.providers, keys=self._keys)

    def _key(self, choice: Choice) -> tuple[str, str, bytes]:
        key = choice.key.reveal() if choice.key else ""
        return choice.spec.name, choice.uds or choice.base_url, blake2b(key.encode(), key=self._pepper).digest()

    def _keep(self, key: tuple[str, str, bytes], kept: _Kept) -> None:
        self._kept.pop(key, None)
        self._kept[key] = kept
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]


def _row(
    spec: ProviderSpec,
    state: str,
    models: tuple[ModelInfo, ...] = (),
    age_s: float = 0.0,
    failure: Failure | None = None,
) -> ProviderModels:
    rows = tuple(ModelRow(model.id, model.context_tokens) for model in models)
    reason, hint = (failure.message, failure.hint) if failure else ("", "")
    return ProviderModels(spec.name, state, spec.local, rows, round(age_s, 3), spec.default_model, reason, hint)
