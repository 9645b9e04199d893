"""What capture mode metadata lets through: a canary in every text of every kind, and a reason for each that stays."""

from __future__ import annotations

import itertools
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Raw, Struct, UnsetType

from agentd.capture import metadata_of
from tracewriter.events import KINDS, Event, ToolCallFinished

IDS = "an id that agentd or a provider made"
NAMES = "a name of ours: a setting, an outcome, a kind of something"
MODEL = "which model, of which provider"
TOOL = "a tool's name"
HEAD = "a digest of records, which have no content either"
WHERE = "the place where the work is done: without it nobody finds the session; the manifest has it too"

# Every text that is recorded in mode metadata. A field that is not here must not be.
STAYS: Final = {
    "session.record.started": {"format": NAMES, "agentd": NAMES, "workspace": WHERE, "mode": NAMES, "capture": NAMES},
    "session.record.finished": {"counts{}": NAMES},
    "session.lifecycle.observed": {"change": NAMES, "origin": IDS},
    "session.save.started": {"prompt": IDS},
    "session.save.finished": {"prompt": IDS},
    "session.save.failed": {"error.kind": NAMES},
    "policy.preset.observed": {"preset": NAMES, "tools[]": TOOL, "writes[]": TOOL, "scope": NAMES, "approvals": NAMES},
    "prompt.queue.observed": {"change": NAMES, "prompt": IDS},
    "input.prepare.started": {"prompt": IDS},
    "input.prepare.finished": {"prompt": IDS, "attachments[].kind": NAMES, "attachments[].media_type": NAMES},
    "skill.select.observed": {"by": NAMES},
    "run.execute.started": {"prompt": IDS, "mode": NAMES, "model": MODEL, "provider": MODEL, "continues": IDS},
    "run.execute.finished": {"outcome": NAMES, "tools[]": TOOL},
    "model.request.started": {"purpose": NAMES, "provider": MODEL, "model": MODEL, "context.since": IDS},
    "model.request.finished": {
        "tool_calls[].id": IDS,
        "tool_calls[].name": TOOL,
        "stop_reason": NAMES,
        "finish": NAMES,
    },
    "model.request.failed": {"error.kind": NAMES, "cut_tool_calls[]": TOOL},
    "model.retry.observed": {"error.kind": NAMES, "provider": NAMES, "model": NAMES},
    "tool.call.started": {"id": IDS, "name": TOOL},
    "tool.call.finished": {"id": IDS, "name": TOOL},
    "approval.request.requested": {"approval": IDS, "call": IDS, "tool": TOOL, "category": NAMES},
    "approval.request.decided": {"approval": IDS, "outcome": NAMES, "by": NAMES, "scope": NAMES},
    "file.check.failed": {"check": NAMES, "error.kind": NAMES},
    "workspace.change.observed": {"change": NAMES, "noticed": NAMES},
    "context.compact.started": {"trigger": NAMES},
    "context.compact.failed": {"error.kind": NAMES},
    "config.change.requested": {"setting": NAMES, "value": NAMES},
    "config.change.applied": {"setting": NAMES, "value": NAMES},
    "config.change.failed": {"setting": NAMES, "value": NAMES, "error.kind": NAMES},
    "trace.drop.observed": {"reason": NAMES},
    "trace.limit.observed": {"limit": NAMES},
    "trace.degraded.observed": {"reason": NAMES},
    "trace.recovered.observed": {"reason": NAMES},
    "trace.scrub.applied": {"at": NAMES, "rules": NAMES, "hits{}": NAMES, "old_head": HEAD, "new_head": HEAD},
}
# Nothing but content: not recorded at all.
NO_TEXT: Final = {"context.trim.applied", "trace.clock.observed"}
GONE: Final = {"file.change.applied", "model.stream.delta", "tool.output.delta"}


class Planter:
    """Fills a Struct by the types of its fields, with a canary of its own in every text and every piece of JSON."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}  # canary to field
        self._numbers = itertools.count()

    def struct(self, cls: type, path: str = "") -> Any:
        hints = get_type_hints(cls)
        names: tuple[str, ...] = cls.__struct_fields__  # type: ignore[attr-defined]
        return cls(*(self.value(hints[name], f"{path}{name}") for name in names))

    def value(self, kind: Any, path: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            # What can be there is there.
            return self.value(next(part for part in arguments if part not in (type(None), UnsetType)), path)
        if origin is tuple:
            if arguments[-1] is ...:
                return (self.value(arguments[0], f"{path}[]"),)
            return tuple(self.value(part, path) for part in arguments)
        if origin is dict:
            return {self._canary(f"{path}{{}}"): self.value(arguments[1], path)}
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self.struct(kind, f"{path}.")
        if kind is Raw:
            return Raw(b'{"k":"%s"}' % self._canary(path).encode())
        simple: dict[Any, Any] = {str: self._canary(path) if kind is str else "", int: 3, float: 1.5, bool: True}
        return simple[kind]

    def _canary(self, path: str) -> str:
        canary = f"canary{next(self._numbers):04}x"
        self.places[canary] = path
        return canary


@pytest.mark.parametrize("name", KINDS)
def test_metadata_keeps_of_every_kind_what_the_table_says_and_no_other_text(name: str) -> None:
    planter = Planter()
    event: Event = planter.struct(KINDS[name])
    kept = metadata_of(event)
    if name in GONE:
        assert kept is None
        return
    assert kept is not None
    assert type(kept) is KINDS[name]
    encoded = msgspec.json.encode(kept).decode()
    left = {path for canary, path in planter.places.items() if canary in encoded}
    assert left == set(STAYS.get(name, {}))


@pytest.mark.parametrize("name", sorted(set(KINDS) - GONE - {"policy.preset.observed"}))
def test_a_tool_name_that_was_never_offered_is_content(name: str) -> None:
    planter = Planter()
    kept = metadata_of(planter.struct(KINDS[name]), frozenset())
    encoded = msgspec.json.encode(kept).decode()
    left = {path for canary, path in planter.places.items() if canary in encoded}
    assert left == {path for path, why in STAYS.get(name, {}).items() if why is not TOOL}


def test_a_tool_name_that_was_offered_stays() -> None:
    event = ToolCallFinished("call_1", "read_file", "text", False, 1.0)
    kept = metadata_of(event, frozenset({"read_file"}))
    assert isinstance(kept, ToolCallFinished)
    assert kept.name == "read_file"


def test_the_table_speaks_of_kinds_that_there_are() -> None:
    assert set(STAYS) <= set(KINDS)
    assert set(STAYS) | GONE | NO_TEXT | {"context.compact.finished"} == set(KINDS)  # that one has a summary only


def test_a_planter_reaches_every_text() -> None:
    """The canaries are only worth what they reach: the encoded event has as many as were planted."""
    for name, cls in KINDS.items():
        planter = Planter()
        encoded = msgspec.json.encode(planter.struct(cls)).decode()
        assert all(canary in encoded for canary in planter.places), cls
        assert bool(planter.places) == (name not in NO_TEXT)
