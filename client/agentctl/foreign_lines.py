"""Lines of JSON that other tools say, as events to record: what each is called, or why it is none. Pure.

The shapes that are known by name, the first that fits:

    {"event": NAME, "data": {…}, "ts"?, "run"?, "op"?, "parent"?}    ours; `seq` and `session` are the recording's own
    {"hook_event_name": NAME, …}                                     hooks
    {"type": NAME, …}, {"type": NAME, "payload": {"type": NAME}}     event streams; {"msg": {"type": NAME}} too
    {"event_name" | "eventName" | "event.name" | "method" | "name": NAME, …}    OpenTelemetry, JSON-RPC and others

All but ours are kept whole, as they are; of OpenTelemetry's ids those of the trace and the spans are the record's as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from tracewriter import jsonl
from tracewriter.config import MAX_BODY
from tracewriter.events import DELTAS, KINDS, Event, UnknownEvent, event_of
from tracewriter.jsonl import JsonValue
from tracewriter.thread_trace import RECORDERS

MAX_BYTES: Final = MAX_BODY  # of a line
_OURS: Final = frozenset({"seq", "ts", "event", "session", "run", "op", "parent", "data"})
_NAMES: Final = ("event", "hook_event_name", "type", "event_name", "eventName", "event.name", "method", "name")
_INSIDE: Final = ("msg", "event", "payload", "attributes")
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")
_TRACE: Final = re.compile(r"(?:0x)?([0-9a-f]{32})\Z")
_SPAN: Final = re.compile(r"(?:0x)?([0-9a-f]{16})\Z")
Json: TypeAlias = dict[str, JsonValue]


class Said(Struct, frozen=True):
    """An event to record. `typed` when it is one of ours and may be; else `name` and `data` are a tool's own.

    name_in_data: the data tells the name too, so that it is not lost when it has to change.
    """

    name: str
    data: Json
    typed: Event | None = None
    ts: datetime | None = None
    run: str = ""
    op: str = ""
    parent: str = ""
    name_in_data: bool = False


class Bad(Struct, frozen=True):
    """A line that says none. The reason tells nothing of its content."""

    reason: str


class Splitter:
    """Cuts a stream into lines, in bounded memory: of a line that is too long nothing is kept."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max, self._start, self._too_long = max_bytes, bytearray(), False

    def feed(self, data: bytes) -> Iterator[bytes | Bad]:
        """The lines that are complete now, without their ends."""
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            yield self._line(data[at:end])
            at = end + 1
        self._keep(data[at:])

    def end(self) -> bytes | Bad | None:
        """The last line, when it has no end of its own; None when there is none."""
        return self._line(b"") if self._start or self._too_long else None

    def _keep(self, data: bytes) -> None:
        self._too_long = self._too_long or len(self._start) + len(data) > self._max
        if self._too_long:
            self._start.clear()
        else:
            self._start += data

    def _line(self, rest: bytes) -> bytes | Bad:
        self._keep(rest)
        line = bytes(self._start)
        too_long, self._too_long = self._too_long, False
        self._start.clear()
        return Bad(f"longer than {self._max:,} bytes") if too_long else line


def parse(line: bytes, *, typed: bool) -> Said | Bad | None:
    """What a line says; None for an empty one. typed: well-formed events of ours are taken as such."""
    if not line.strip():
        return None
    if b"\0" in line:
        return Bad("a NUL byte")
    try:
        line.decode()
    except UnicodeDecodeError as problem:
        return Bad(f"no UTF-8 at byte {problem.start}")
    value = _value(line)
    if isinstance(value, Bad):
        return value
    if _is_ours(value):
        return _ours(value, typed=typed)
    name = _name(value)
    if not name:
        return Bad("no name of an event (event, hook_event_name, type, name, …)")
    run = _hex(value, _TRACE, "traceId", "trace_id")
    op, parent = (
        _hex(value, _SPAN, "spanId", "span_id"),
        _hex(value, _SPAN, "parentSpanId", "parent_span_id", "parent_id"),
    )
    return Said(name, value, run=run, op=op, parent=parent, name_in_data=True)


def _value(line: bytes) -> Json | Bad:
    try:
        value: JsonValue = jsonl.decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # what strict decoders refuse (lone surrogates, huge numbers, NaN) is left as it is: recording it repairs and marks it
        try:
            value = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return Bad("no JSON")
    return value if isinstance(value, dict) else Bad("no JSON object")


def _is_ours(value: Json) -> bool:
    ids = (value.get(name, "0") for name in ("run", "op", "parent"))
    return (
        _text(value, "event") != ""
        and value.keys() <= _OURS
        and isinstance(value.get("data", {}), dict)
        and all(isinstance(one, str) and _ID.match(one) for one in ids)
        and ("ts" not in value or _time(value) is not None)
    )


def _ours(value: Json, *, typed: bool) -> Said:
    name, data = _text(value, "event"), value.get("data", {})
    assert isinstance(data, dict)
    event = _event(name, data) if typed else None
    run, op, parent = (_text(value, key) for key in ("run", "op", "parent"))
    return Said(name, data, event, _time(value), run, op, parent)


def _event(name: str, data: Json) -> Event | None:
    """The event of ours that this is to the last field; what the recorder says itself is nobody else's to say.

    Deltas neither: a secret may be split over two of them.
    """
    kind = KINDS.get(name)
    if kind is None or kind in RECORDERS or kind in DELTAS or not data.keys() <= set(kind.__struct_fields__):  # type: ignore[attr-defined]
        return None
    event = event_of(name, jsonl.raw(data))
    return None if isinstance(event, UnknownEvent) else event


def _time(value: Json) -> datetime | None:
    try:
        ts = msgspec.convert(value.get("ts"), datetime)
    except msgspec.ValidationError:
        return None
    return ts if ts.tzinfo is not None else None


def _name(value: Json) -> str:
    for key in _NAMES:
        name = _text(value, key)
        if name:
            inside = value.get("payload")
            kind = _text(inside, "type") if key == "type" and isinstance(inside, dict) else ""
            return f"{name}.{kind}" if kind else name
    for key in _INSIDE:
        inside = value.get(key)
        if isinstance(inside, dict):
            name = _text(inside, "type") or _text(inside, "event.name") or _text(inside, "name")
            if name:
                return name
    return ""


def _hex(value: Json, form: re.Pattern[str], *names: str) -> str:
    inside = value.get("context")
    for one in (value, inside if isinstance(inside, dict) else {}):
        for name in names:
            found = form.match(_text(one, name))
            if found:
                return found[1]
    return ""


def _text(value: Json, key: str) -> str:
    text = value.get(key)
    return text.strip() if isinstance(text, str) else ""
