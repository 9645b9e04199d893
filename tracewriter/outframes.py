"""Frames that wait for the writer's word, and what is left of them when it refuses some. Pure.

What holds of any list of them: a line names only bodies whose frames come before it, or that were acknowledged with their record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

from tracewriter.config import KIB
from tracewriter.events import NAMES, Record, TraceDropObserved
from tracewriter.jsonl import encoder
from tracewriter.moving import Body, cut_out
from tracewriter.payload import ID_BYTES, REFERENCE
from tracewriter.protocol import FLAG_JSON, FLAG_LAST, Kind

_ID_CHARS: Final = 2 * ID_BYTES
_PIECE: Final = (
    256 * KIB - _ID_CHARS
)  # of a body in a frame: a quarter of a round, so that other sessions have their turn
_IDS: Final = 10_000  # bodies that are known to have been sent; the least recently named are sent again
# The writer closes what was idle for 300 s; from then on retention may take it out, with the bodies in it.
_TRUSTED_S: Final = 150.0


class OutFrame:
    """A frame that is kept byte for byte until it is acknowledged. `first` of a PAYLOAD is the record that it belongs to, `count`
    the number of the part.
    """

    __slots__ = ("body", "count", "first", "flags", "kind")

    def __init__(self, kind: Kind, first: int, count: int, body: bytes, flags: int = 0) -> None:
        self.kind, self.first, self.count, self.body, self.flags = kind, first, count, body, flags

    @property
    def end(self) -> int:
        """The last seq it stands for; when that is acknowledged, it is done."""
        return self.first if self.kind is Kind.PAYLOAD else self.first + self.count - 1

    @property
    def payload(self) -> bytes:
        """The id of the body that a PAYLOAD carries a part of."""
        return self.body[:_ID_CHARS]

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.first}..{self.end} {len(self.body)} bytes>"


class Sent:
    """Ids of the bodies of one session that need not be sent again: they wait in frames, or are on disk."""

    __slots__ = ("_ids", "_named_at")

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._named_at = 0.0  # on the monotonic clock

    def unsent(self, bodies: Iterable[Body], frames: Iterable[OutFrame], now: float) -> list[Body]:
        """Those that must be sent. After a pause, what was acknowledged before may be gone."""
        if self._ids and now - self._named_at > _TRUSTED_S:
            self.forget_all_but(frames)
        return [body for body in bodies if body.payload not in self._ids]

    def name(self, bodies: Iterable[Body], now: float) -> None:
        """A record that names these is numbered."""
        for body in bodies:
            self._ids[body.payload] = None
            self._ids.move_to_end(body.payload)
            self._named_at = now
        while len(self._ids) > _IDS:
            self._ids.popitem(last=False)

    def forget(self, payloads: Iterable[bytes]) -> None:
        """Their frames are no more."""
        for payload in payloads:
            self._ids.pop(payload.decode(), None)

    def forget_all_but(self, frames: Iterable[OutFrame]) -> None:
        """Only what waits in frames is sure to be there."""
        waiting = [payload.decode() for payload in payloads_of(frames)]
        self._ids = OrderedDict((payload, None) for payload in waiting if payload in self._ids)


def drop_frame(session: str, first: int, last: int, reason: str, ts: datetime) -> OutFrame:
    """The record that stands for a range of them."""
    count = last - first + 1
    data = TraceDropObserved(first, last, count, reason)
    record = Record(seq=first, ts=ts, event=NAMES[TraceDropObserved], session=session, data=data)
    return OutFrame(Kind.DROP, first, count, encoder.encode(record) + b"\n")


def payload_frames(seq: int, body: Body) -> list[OutFrame]:
    """The parts of a body that the record `seq` is the first to name."""
    name, data = body.payload.encode(), memoryview(body.data)
    flags = FLAG_JSON if body.json else 0
    pieces = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
    return [
        OutFrame(
            Kind.PAYLOAD, seq, number, b"".join((name, piece)), flags | (FLAG_LAST if number == len(pieces) else 0)
        )
        for number, piece in enumerate(pieces, 1)
    ]


def payloads_of(frames: Iterable[OutFrame]) -> set[bytes]:
    """The ids of the bodies that wait in them."""
    return {frame.payload for frame in frames if frame.kind is Kind.PAYLOAD}


def bytes_of(frames: Iterable[OutFrame]) -> int:
    """What they take in the buffer."""
    return sum(len(frame.body) for frame in frames)


def lines_of(frame: OutFrame) -> Iterator[tuple[int, bytes]]:
    """(seq, line with LF) of an EVENTS frame."""
    for number, line in enumerate(frame.body.split(b"\n")[:-1]):
        yield frame.first + number, line + b"\n"


def without(frames: Iterable[OutFrame], first: int, last: int, drop: OutFrame) -> list[OutFrame]:
    """`drop` in the place of [first, last]. The bodies of what is dropped go with it, unless a later line names them too: then they
    come right before that.
    """
    before: list[OutFrame] = []
    after: list[OutFrame] = []
    homeless: dict[bytes, list[OutFrame]] = {}
    for frame in frames:
        if frame.end < first:
            before.append(frame)
        elif frame.first > last:
            after.append(frame)
        elif frame.kind is Kind.PAYLOAD:
            homeless.setdefault(frame.payload, []).append(frame)
        elif frame.kind is Kind.EVENTS and frame.end > last:
            after.append(_joined([item for item in lines_of(frame) if item[0] > last]))
    return [*before, drop, *_housed(after, homeless)]


def _joined(lines: list[tuple[int, bytes]]) -> OutFrame:
    return OutFrame(Kind.EVENTS, lines[0][0], len(lines), b"".join(line for _, line in lines))


def _housed(frames: list[OutFrame], homeless: dict[bytes, list[OutFrame]]) -> Iterator[OutFrame]:
    """The frames, each body that is named in them before the first line that does."""
    for frame in frames:
        if frame.kind is not Kind.EVENTS or not homeless or REFERENCE.search(frame.body) is None:
            yield frame
            continue
        lines: list[tuple[int, bytes]] = []
        for seq, line in lines_of(frame):
            named = [match[1] for match in REFERENCE.finditer(line) if match[1] in homeless]
            if named and lines:
                yield _joined(lines)
                lines = []
            for payload in dict.fromkeys(named):
                for part in homeless.pop(payload):
                    yield OutFrame(Kind.PAYLOAD, seq, part.count, part.body, part.flags)
            lines.append((seq, line))
        yield _joined(lines)


def only(
    frames: Iterable[OutFrame], first: int, wanted: Callable[[bytes], bool], drop: Callable[[int, int], OutFrame]
) -> list[OutFrame]:
    """From `first` on only the wanted lines, drops between them. No body is kept: what the lines had of them is cut. The line
    `first` is not kept when it had bodies of its own: the writer takes it with them only.
    """
    frames = list(frames)
    gone = payloads_of(frames)
    waited_for = any(frame.first == first and frame.kind is Kind.PAYLOAD for frame in frames)
    out: list[OutFrame] = []
    start = first
    for frame in frames:
        if frame.end < first or frame.kind is not Kind.EVENTS:
            continue
        for seq, line in lines_of(frame):
            if seq >= first + waited_for and wanted(line):
                if seq > start:
                    out.append(drop(start, seq - 1))
                out.append(OutFrame(Kind.EVENTS, seq, 1, cut_out(line, gone)))
                start = seq + 1
    end = max((frame.end for frame in frames), default=first - 1)
    if end >= start:
        out.append(drop(start, end))
    return out
