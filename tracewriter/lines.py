"""From an event to its line: what is encoded later, what is encoded at once, and what takes the careful way.

A flat event of proven values can wait: nobody can change it any more, so a whole batch of them is encoded in one call.
Everything else is JSON before `record` returns, and what is too long for a line has moved out of it (`moving`). A value that
cannot be encoded costs its own line's shape, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tracewriter import jsonl
from tracewriter.config import BATCH_BYTES, KIB, MAX_BODY
from tracewriter.events import (
    KINDS,
    NAMES,
    Event,
    Foreign,
    RunExecuteFinished,
    TraceDropObserved,
)
from tracewriter.moving import DATA_BYTES, Data, Keys, OddValue, looks_like_reference, move_out
from tracewriter.payload import PAYLOAD_BYTES
from tracewriter.sizing import TOO_LONG, holds_json, is_flat, long_text, sizer

FOREIGN: Final = "foreign.value.observed"  # what is no event of ours
_ID_CHARS: Final = 64  # of run, op and parent: ids have 16 or 32
_ENVELOPE: Final = 56  # {"seq":…,"ts":"…","event":…,"data":…} and LF, about
_LIKE_REFERENCE: Final = b'{"left_out":"what looks like a reference to a payload"}'
_SPLIT_BYTES: Final = 2 * BATCH_BYTES  # a batch that was estimated at half of it is cut into several
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()

# Kinds with JSON bodies, which a caller may hand over in several lines; the others' encoding has none.
WITH_JSON: Final = frozenset(filter(holds_json, KINDS.values()))
# Drop records stand for numbers and are made by the outbox only: a caller's would be no record, or hide others.
_SIZERS: Final = {cls: sizer(cls) for cls in KINDS.values() if cls is not TraceDropObserved}
# A run's end is flat in no version, and it is added up: it never waits.
_LATER: Final = frozenset(cls for cls in _SIZERS if is_flat(cls) and cls is not RunExecuteFinished)
_LONG_TEXTS: Final = {cls: long_text(cls) for cls in _LATER}


class Line(Struct, frozen=True, gc=False):
    """A record as it is encoded. Positional, since keywords cost a third of the call; `event` is all from the name to the
    ids (`"tool.call.started","session":"…","run":"…"`), encoded once for all records that have the same.
    """

    seq: int
    ts: datetime
    event: Raw
    data: Event | Raw


class _Head(Struct, frozen=True, gc=False):
    event: str
    session: str
    run: str | UnsetType
    op: str | UnsetType
    parent: str | UnsetType


_HEAD_START: Final = len(b'{"event":')


class Entry:
    """What the records of a kind share as long as the ids stay the same; when it is not fast, nothing fits. Raises whatever odd
    ids do.
    """

    __slots__ = ("count", "head", "is_long", "kind", "length_of", "name", "rest")

    def __init__(self, kind: type, session: str, run: str, op: str, parent: str, *, fast: bool) -> None:
        self.kind = kind
        self.name = NAMES.get(kind, FOREIGN)
        self.head = head_of(self.name, session, run, op, parent)
        if len(self.head) > KIB:
            raise ValueError("ids that are too long")
        self.length_of: Callable[[Event], int] = _SIZERS[kind] if fast and kind in _LATER else _never
        self.is_long = _LONG_TEXTS.get(kind, _always)
        self.rest = len(self.head) + _ENVELOPE  # of the line, in bytes
        self.count = 0  # events recorded through it


def name_of(event: object) -> str:
    """The name it is counted under: there is no end of foreign ones, which are counted together."""
    return FOREIGN if type(event) is TraceDropObserved else NAMES.get(type(event), FOREIGN)


def head_of(name: str, session: str, run: str, op: str, parent: str) -> Raw:
    """All from the name to the ids. Raises whatever odd ids do."""
    encoded = _encoder.encode(_Head(name, session, run or UNSET, op or UNSET, parent or UNSET))
    return Raw(encoded[_HEAD_START:-1])


def size_of(line: Line) -> int:
    """About how long the line of an event that is JSON already will be."""
    return len(line.event) + len(line.data) + _ENVELOPE if type(line.data) is Raw else TOO_LONG


def _never(_: Event) -> int:
    return TOO_LONG


def _always(_: Event) -> bool:
    return True


def careful_head(session: str, event: object, ids: tuple[str, str, str]) -> Raw:
    """All from the name to the ids, whatever these are: repaired and cut where they must be."""
    name = event.name if type(event) is Foreign and event.name not in KINDS else name_of(event)
    try:
        head = head_of(name, session, *ids)
        if len(head) <= KIB:
            return head
    except Exception:  # noqa: BLE001 - ids of any type, which may raise anything when they are looked at
        pass
    repairs = jsonl.Repairs()
    shown = (jsonl.cut_text(jsonl.safe_str(value, repairs), _ID_CHARS) if value else "" for value in ids)
    return head_of(jsonl.cut_text(jsonl.safe_str(name, repairs), _ID_CHARS), session, *shown)


def zoned(ts: datetime) -> datetime:
    """The same time, at an offset that is a constant: a time zone of the caller's is asked once, and now."""
    if ts.tzinfo is None:  # it means the machine's own zone, which nobody else knows
        return ts.astimezone(UTC)
    if type(ts.tzinfo) is timezone:
        return ts
    return ts.replace(tzinfo=timezone(ts.utcoffset() or timedelta()))


def data_of(event: object, keys: Keys) -> Data:
    """An event as one line of JSON, whatever its values are, and the bodies that are too long for it."""
    kind = type(event)
    if kind is Foreign:
        event = event.data  # type: ignore[attr-defined]
    try:
        about = _SIZERS.get(kind)
        if kind is Foreign and len(event) <= PAYLOAD_BYTES and _is_clean(event):  # type: ignore[arg-type]
            return Data(event)  # type: ignore[arg-type]
        if about is not None:
            if about(event) <= PAYLOAD_BYTES:  # type: ignore[arg-type]
                line = _encoder.encode(event)
                # one bad body would cost its whole frame: the writer refuses it, or the reader finds damage
                if len(line) <= PAYLOAD_BYTES and (kind not in WITH_JSON or _is_clean(line)):
                    return Data(Raw(line))
            return move_out(event, keys)
    except Exception:  # noqa: BLE001 - looking at a value runs its code, which may raise anything
        pass
    plain = jsonl.plain(_cut_body(event))
    for limit in (0, MAX_BODY, DATA_BYTES):
        try:
            return move_out(_decoder.decode(jsonl.encode_safely(plain, limit)) if limit else plain, keys)
        except (OddValue, msgspec.MsgspecError, RecursionError, OverflowError, TypeError):
            continue
    return cut_data_of(event)


def cut_data_of(event: object) -> Data:
    """The same without bodies: cut where it is too long."""
    if type(event) is Foreign:
        event = event.data
    try:
        about = _SIZERS.get(type(event))
        if about is not None and about(event) <= DATA_BYTES:  # type: ignore[arg-type]
            line = _encoder.encode(event)
            if len(line) <= DATA_BYTES and _is_clean(line):
                return Data(Raw(line))
    except Exception:  # noqa: BLE001 - as above
        pass
    line = jsonl.encode_safely(_cut_body(event), DATA_BYTES)
    return Data(Raw(_LIKE_REFERENCE if looks_like_reference(line) else line))


def _is_clean(line: bytes | Raw) -> bool:
    return jsonl.is_json(line) and not looks_like_reference(line)


def encode_batch(lines: list[Line]) -> list[tuple[int, bytes]]:
    """(how many lines, the lines with LF), one or several: a batch is cut where it is much longer than it was thought to be."""
    try:
        body = _encoder.encode_lines(lines)
    except Exception:  # noqa: BLE001 - one value that cannot be encoded costs its own record's shape, not its neighbours'
        body = b"".join(map(_one, lines))
    return [(len(lines), body)] if len(body) <= _SPLIT_BYTES else _split(body)


def _one(line: Line) -> bytes:
    try:
        return _encoder.encode(line) + b"\n"
    except Exception:  # noqa: BLE001 - as above: lone surrogates, numbers beyond 64 bits
        return _encoder.encode(Line(line.seq, line.ts, line.event, cut_data_of(line.data).line)) + b"\n"


def _split(body: bytes) -> list[tuple[int, bytes]]:
    out: list[tuple[int, bytes]] = []
    pieces: list[bytes] = []
    size = 0
    for line in body.split(b"\n")[:-1]:
        pieces.append(line + b"\n")
        size += len(pieces[-1])
        if size >= BATCH_BYTES:
            out.append((len(pieces), b"".join(pieces)))
            pieces, size = [], 0
    return [*out, (len(pieces), b"".join(pieces))] if pieces else out


def _cut_body(event: object) -> object:
    """Cut strings beyond MAX_BODY before anything is made of them: encoding 64 MiB to keep 256 KiB would hold up the run."""
    if not issubclass(type(event), Struct):  # isinstance() asks a foreign object for its __class__
        return event
    fields: dict[str, object] = {}
    for name in type(event).__struct_fields__:  # type: ignore[attr-defined]
        value = getattr(event, name)
        if value is UNSET:
            continue
        if issubclass(type(value), str) and len(value) > MAX_BODY:
            value = jsonl.cut_text(value, MAX_BODY)
        elif type(value) is Raw and len(value) > MAX_BODY:
            value = f"[{len(value)} bytes of JSON, left out]"
        fields[name] = value
    return fields
