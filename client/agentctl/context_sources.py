"""Follows what a recorded request refers to: the records that hold its messages, system prompt and tools. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from agentctl.context import (
    MAX_BYTES,
    PAYLOAD_MISSING,
    STARTED,
    TOO_LONG,
    Chosen,
    Items,
    Missing,
    Place,
    Request,
    Slot,
    notes_of,
    paired,
    slot_of,
)
from agentd.messages import AssistantMessage, Message, encode_message, message_of
from tracewriter.bodies import Find, with_bodies
from tracewriter.events import (
    Context,
    Event,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    RawRecord,
    RunExecuteStarted,
    SameAs,
    ToolCallFinished,
    UnknownEvent,
    event_of,
    name_of_class,
)
from tracewriter.findings import Note

_ROUNDS: Final = 2  # a place in an earlier request, then the record to which that refers
_RUN: Final = name_of_class(RunExecuteStarted)
_SAYING: Final = frozenset(map(name_of_class, (ModelRequestFinished, ModelRequestFailed, ToolCallFinished)))


def rebuild(
    chosen: Chosen, read: Callable[[], Items], find: Find, *, limit_bytes: int = MAX_BYTES
) -> tuple[Request, int]:
    """The request, whole but for what is named missing, and how many damaged payloads were met. `read` begins the session anew."""
    sources = _Sources(chosen, limit_bytes)
    for _ in range(_ROUNDS):
        if not sources.begin():
            break
        for found, problems in paired(with_bodies(read(), find, sources.wants)):
            sources.note(problems)
            if found is not None and found.record.seq > chosen.line.seq:
                break  # references point back, or to the request's own record, when it carries the same message twice
            if found is not None and sources.wants(found.record):
                sources.take(found.record, problems)
    return sources.request(), sources.damage


class _Asked(Struct, frozen=True):
    """What the record of an earlier request gives itself. entries: by position in that request."""

    system: str | UnsetType
    tools: tuple[Raw, ...] | UnsetType
    entries: dict[int, Raw]
    problems: list[Note]


class _Sources:
    """The records that a request refers to, as they are found. A key is an id and whether the request itself is meant."""

    def __init__(self, chosen: Chosen, limit_bytes: int) -> None:
        self._chosen = chosen
        self._said: dict[str, Message | Missing] = {}
        self._asked: dict[str, _Asked] = {}
        self._tried: set[tuple[str, bool]] = set()
        self._now: frozenset[tuple[str, bool]] = frozenset()
        self._room = limit_bytes
        self._loss = ""
        self._notes: dict[str, None] = dict.fromkeys(chosen.notes)
        self._damaged: set[str] = set()

    @property
    def damage(self) -> int:
        """Payloads that are not what they were."""
        return len(self._damaged)

    def begin(self) -> bool:
        """Look for what was not looked for yet in the next reading; whether there is anything."""
        wanting = {(place.op, True) for place in (self._chosen.system, self._chosen.tools) if isinstance(place, Place)}
        for slot in map(self._step, self._chosen.slots):
            if isinstance(slot, SameAs):
                wanting.add((slot.same_as, slot.at is not UNSET))
        self._now = frozenset(wanting - self._tried)
        self._tried |= self._now
        return bool(self._now)

    def wants(self, record: RawRecord) -> bool:
        """Whether the request refers to this record."""
        if record.event == _RUN:
            return (record.run or "", False) in self._now
        return (record.event == STARTED or record.event in _SAYING) and (
            record.op or "",
            record.event == STARTED,
        ) in self._now

    def note(self, notes: list[Note]) -> None:
        """What the reader has to say: it may be why something is missing."""
        for note in notes:
            if note.payload is not None and note.damage:
                self._damaged.add(note.payload)
            elif note.damage:
                self._loss = "the trace is damaged"
            elif note.kind == "dropped" and not self._loss:
                self._loss = "records were dropped"

    def take(self, record: RawRecord, problems: list[Note]) -> None:
        """A record that is wanted."""
        name = (record.run if record.event == _RUN else record.op) or ""
        event = event_of(record.event, record.data)
        if len(record.data) > self._room:
            self._said[name] = Missing(TOO_LONG)
            return
        self._room -= len(record.data)
        self._notes |= dict.fromkeys(notes_of(record, f"the record of {name}"))
        if isinstance(event, ModelRequestStarted):
            self._asked[name] = _asked(event.context, problems)
        else:
            self._said[name] = _said(event, problems)

    def request(self) -> Request:
        """What was found, put together."""
        chosen = self._chosen
        return Request(
            chosen.line,
            self._system(chosen.system),
            self._tools(chosen.tools),
            tuple(map(self._message, chosen.slots)),
            tuple(self._notes),
        )

    def _system(self, system: str | Place | Missing) -> str | Missing:
        if not isinstance(system, Place):
            return system
        asked = self._asked.get(system.op)
        if asked is None or asked.system is UNSET:
            return self._not_there(system.op)
        cut = PAYLOAD_MISSING in asked.system and any(note.payload for note in asked.problems)
        return Missing("its payload is missing or damaged") if cut else asked.system

    def _tools(self, tools: tuple[Raw, ...] | Place | Missing) -> tuple[Raw, ...] | Missing:
        if not isinstance(tools, Place):
            return tools
        asked = self._asked.get(tools.op)
        return self._not_there(tools.op) if asked is None or asked.tools is UNSET else asked.tools

    def _message(self, slot: Slot) -> Message | Missing:
        last = self._step(slot)
        if not isinstance(last, SameAs):
            return last
        said = self._said.get(last.same_as) if last.at is UNSET else None
        if said is None:
            return self._not_there(last.same_as)
        if isinstance(said, AssistantMessage) and last.opaque is not UNSET:
            return structs.replace(said, opaque=last.opaque)
        return said

    def _step(self, slot: Slot) -> Slot:
        """What a place in an earlier request holds, once that is read; anything else is left as it is."""
        if not isinstance(slot, SameAs) or slot.at is UNSET or slot.same_as not in self._asked:
            return slot
        asked = self._asked[slot.same_as]
        raw = asked.entries.get(slot.at)
        if raw is None:
            return self._not_there(slot.same_as)
        held = slot_of(raw, asked.problems, MAX_BYTES)
        if isinstance(held, SameAs) and held.at is not UNSET:
            return Missing("its reference leads to another one")  # no writer of ours makes such
        return held

    def _not_there(self, name: str) -> Missing:
        why = f": {self._loss}" if self._loss else ""
        return Missing(f"the record that holds it ({name}) is not in the trace{why}")


def _asked(context: Context, problems: list[Note]) -> _Asked:
    entries = dict(enumerate(context.messages, context.keep))
    entries |= dict(() if context.replaced is UNSET else context.replaced)
    return _Asked(context.system, context.tools, entries, problems)


def _said(event: Event | UnknownEvent, problems: list[Note]) -> Message | Missing:
    message = message_of(event)
    if message is None:
        return Missing("the record that it refers to holds no message")
    bodies = [note for note in problems if note.payload]
    if bodies and PAYLOAD_MISSING.encode() in encode_message(message):
        return Missing(bodies[0].message)
    return message
