"""Rebuilds what a model was sent, from the records of its session. Pure: findings in, a request out.

Each request is recorded as the difference to an earlier one of its run, and names the records that hold its messages
(FORMAT.md, `context`). So this reads the session twice, or three times: first the differences of the run, then what the wanted
request refers to. Memory: one request and what it refers to. What cannot be had is said in its place, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from agentd.messages import Message, decode_message, encode_message
from tracewriter.bodies import Find, with_bodies
from tracewriter.events import (
    Context,
    Event,
    ModelRequestStarted,
    RawRecord,
    SameAs,
    UnknownEvent,
    event_of,
    name_of_class,
)
from tracewriter.findings import Found, Note

MAX_MESSAGES: Final = 100_000  # of one request; the daemon loads 4,000
MAX_REQUESTS: Final = 10_000  # of one run that are told
MAX_BYTES: Final = 64 * 1024 * 1024  # of whole messages kept at a time: a request of the daemon has 200,000 characters
_STATES: Final = 8  # requests before this one that it may be a difference to

STARTED: Final = name_of_class(ModelRequestStarted)
TOO_LONG: Final = "the messages are too long to be rebuilt"
PAYLOAD_MISSING: Final = "…[payload missing]"
_decode_reference: Final = msgspec.json.Decoder(SameAs).decode


class Line(Struct, frozen=True):
    """One request of a run, as a list shows it. count is None when it cannot be read or was not said."""

    number: int
    seq: int
    ts: datetime
    op: str
    purpose: str
    provider: str
    model: str
    count: int | None
    new: int
    chars: int


class Missing(Struct, frozen=True):
    """Stands for what cannot be rebuilt. why: one line."""

    why: str = msgspec.field(name="missing")


class Request(Struct, frozen=True):
    """A request as the model saw it, redaction markers apart. notes: what is whole here, but was recorded changed."""

    line: Line
    system: str | Missing
    tools: tuple[Raw, ...] | Missing
    messages: tuple[Message | Missing, ...]
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """What of it could not be rebuilt, a line each."""
        named: list[tuple[str, object]] = [("system prompt", self.system), ("tools", self.tools)]
        named += [(f"message {at}", message) for at, message in enumerate(self.messages)]
        return [f"{name}: {part.why}" for name, part in named if isinstance(part, Missing)]


class Outline(Struct, frozen=True):
    """The requests of a run, in order, and the wanted one as far as the first reading tells. more: requests not listed."""

    lines: tuple[Line, ...]
    more: int
    chosen: Chosen | None
    damage: int


Slot: TypeAlias = Message | SameAs | Missing
Items: TypeAlias = Iterable[Found | Note]


class Place(Struct, frozen=True):
    """Where something was given: the operation of a request."""

    op: str


class Chosen(Struct, frozen=True):
    """A request whose references are not followed yet."""

    line: Line
    system: str | Place | Missing
    tools: tuple[Raw, ...] | Place | Missing
    slots: tuple[Slot, ...]
    notes: tuple[str, ...]


class _Marks(Struct):
    cut_from_bytes: int | None = None
    repaired: int | None = None


_decode_marks: Final = msgspec.json.Decoder(_Marks).decode


def outline(items: Items, find: Find, run: str, number: int | None = None, *, limit_bytes: int = MAX_BYTES) -> Outline:
    """The requests of a run, and its request `number` (from 1; None: the last), to be given to `rebuild`."""
    chain, damage = _Chain(number, limit_bytes), 0
    for found, problems in paired(with_bodies(items, find, lambda record: _is_request(record, run))):
        damage += sum(note.damage for note in problems)
        if found is not None and _is_request(found.record, run):
            chain.take(found.record, problems)
    return Outline(tuple(chain.lines), chain.more, chain.chosen, damage)


def _is_request(record: RawRecord, run: str) -> bool:
    return record.event == STARTED and record.run == run


def paired(items: Items) -> Iterator[tuple[Found | None, list[Note]]]:
    """Each record with the notes right after it, among them those of its payloads."""
    held: Found | None = None
    notes: list[Note] = []
    for item in items:
        if isinstance(item, Note):
            notes.append(item)
            continue
        yield held, notes
        held, notes = item, []
    yield held, notes


class _Chain:
    """Adds difference to difference."""

    def __init__(self, number: int | None, limit_bytes: int) -> None:
        self.lines: list[Line] = []
        self.more = 0
        self.chosen: Chosen | None = None
        self._number, self._limit_bytes = number, limit_bytes
        self._count = 0
        self._states: dict[str, Chosen] = {}

    def take(self, record: RawRecord, problems: list[Note]) -> None:
        """The next request of the run."""
        self._count += 1
        event = event_of(record.event, record.data)
        state = self._read(record, event, problems)
        if len(self.lines) < MAX_REQUESTS:
            self.lines.append(state.line)
        else:
            self.more += 1
        op = state.line.op
        self._states.pop(op, None)
        self._states[op] = state
        if len(self._states) > _STATES:
            del self._states[next(iter(self._states))]
        if self._number is None or self._number == self._count:
            self.chosen = state

    def _read(self, record: RawRecord, event: Event | UnknownEvent, problems: list[Note]) -> Chosen:
        op = record.op or ""
        if not isinstance(event, ModelRequestStarted):
            line = Line(self._count, record.seq, record.ts, op, "?", "?", "?", None, 0, 0)
            unknown = Missing("this version cannot read the record of the request")
            return Chosen(line, unknown, unknown, (unknown,), ())
        context = event.context
        count = None if context.count is UNSET else context.count
        line = Line(
            self._count,
            record.seq,
            record.ts,
            op,
            event.purpose,
            event.provider,
            event.model,
            count,
            len(context.messages),
            context.chars,
        )
        before = None if context.since is UNSET else self._states.get(context.since)
        return Chosen(
            line,
            _system(context, before),
            _tools(context, before),
            _slots(context, before, problems, self._limit_bytes),
            notes_of(record, "the request's own record"),
        )


def _unknown_before(context: Context) -> Missing:
    if context.since is UNSET:
        return Missing("it was not recorded (capture mode metadata)")
    return Missing(f"it is in the record of an earlier request ({context.since}), which is not in the trace")


def _system(context: Context, before: Chosen | None) -> str | Place | Missing:
    if context.system is not UNSET:
        cut = PAYLOAD_MISSING in context.system
        return Missing("its payload is missing or damaged") if cut else context.system
    if context.system_as is not UNSET:
        return Place(context.system_as)
    return _unknown_before(context) if before is None else before.system


def _tools(context: Context, before: Chosen | None) -> tuple[Raw, ...] | Place | Missing:
    if context.tools is not UNSET:
        return context.tools
    if context.tools_as is not UNSET:
        return Place(context.tools_as)
    return _unknown_before(context) if before is None else before.tools


def _slots(context: Context, before: Chosen | None, problems: list[Note], limit_bytes: int) -> tuple[Slot, ...]:
    if max(context.keep, 0 if context.count is UNSET else context.count) > MAX_MESSAGES or context.keep < 0:
        return (Missing(f"a request of {context.keep:,} messages and more is not rebuilt"),)
    slots: list[Slot] = list(() if before is None else before.slots[: context.keep])
    slots += [_unknown_before(context)] * (context.keep - len(slots))
    room = limit_bytes - sum(len(encode_message(slot)) for slot in slots if not isinstance(slot, (SameAs, Missing)))
    slots += [Missing("its entry cannot be read")] * min(len(context.messages), MAX_MESSAGES)
    entries = [*(() if context.replaced is UNSET else context.replaced), *enumerate(context.messages, context.keep)]
    for at, raw in entries:
        if 0 <= at < len(slots):
            slots[at] = slot_of(raw, problems, room)
            room -= len(raw) if len(raw) <= room else 0
    if context.count is not UNSET and len(slots) < context.count:
        slots += [Missing("it was not recorded (capture mode metadata)")] * (context.count - len(slots))
    return tuple(slots)


def slot_of(raw: Raw, problems: list[Note], room: int) -> Slot:
    """What one entry of a context says. A body that could not be had makes its message missing, not shorter."""
    if len(raw) > room:
        return Missing(TOO_LONG)
    bodies = [note for note in problems if note.payload]
    if bodies and PAYLOAD_MISSING.encode() in bytes(raw):
        return Missing(bodies[0].message)
    try:
        return _decode_reference(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return decode_message(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Missing("its entry cannot be read")


def notes_of(record: RawRecord, what: str) -> tuple[str, ...]:
    """What a record says of itself: that it was cut or made safe when it was recorded."""
    data = bytes(record.data)
    if b'"cut_from_bytes"' not in data and b'"repaired"' not in data:
        return ()
    try:
        marks = _decode_marks(record.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    notes = []
    if marks.cut_from_bytes is not None:
        notes.append(f"{what} (seq {record.seq}) was cut from {marks.cut_from_bytes:,} bytes when it was recorded")
    if marks.repaired is not None:
        notes.append(f"{what} (seq {record.seq}) was made safe in {marks.repaired:,} places when it was recorded")
    return tuple(notes)
