"""Bodies as they come in: parts put together within a bound that all sessions share, then redacted whole. No I/O.

What holds: EVENTS that begin with a record whose body is not whole are not taken (`waits_at`), however parts were lost: no
memory, a failing disk, a producer that leaves one out. The id is kept besides the seq: of a record with several bodies the
first that failed must come again before the record may, also when a later one was already on its way and came through.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from tracewriter.errors import ProtocolError
from tracewriter.payload import ID, ID_BYTES, MAX_PAYLOAD
from tracewriter.protocol import FLAG_JSON, FLAG_LAST, Frame
from tracewriter.redact import CannotRedact, Redactor
from tracewriter.segment import count_lines

UNDECODABLE: Final = b"[redacted:undecodable]"
BUSY_MS: Final = 250
_ID_CHARS: Final = 2 * ID_BYTES


class Part(Struct, frozen=True):
    """One PAYLOAD frame's content. The piece is a view that lives until the next receive."""

    first: int
    payload: str
    number: int
    last: bool
    json: bool
    piece: bytes | memoryview


class Whole(Struct, frozen=True):
    """A body that has come in whole, as it was sent."""

    first: int
    payload: str
    json: bool
    body: bytearray


def parse_part(frame: Frame) -> Part:
    """The part in a PAYLOAD frame. Raises ProtocolError for one without an id or a number."""
    payload = bytes(frame.body[:_ID_CHARS]).decode("latin-1")
    if not ID.match(payload) or frame.count < 1:
        raise ProtocolError("a PAYLOAD frame without an id or a part number")
    last, json = bool(frame.flags & FLAG_LAST), bool(frame.flags & FLAG_JSON)
    return Part(frame.first, payload, frame.count, last, json, frame.body[_ID_CHARS:])


class Memory:
    """What unfinished bodies may take, in bytes over all sessions. One that got no part for `idle_s` makes room for others."""

    def __init__(self, limit: int, idle_s: float) -> None:
        self._limit, self._idle_s = limit, idle_s
        self.used = 0
        self._holders: set[Parts] = set()

    def take(self, holder: Parts, size: int, now: float) -> bool:
        """Ask for more; False when there is no room."""
        if self.used + size > self._limit:
            idle = [other for other in self._holders if now - other.active_at > self._idle_s]
            for other in idle:
                if other is not holder:  # else what it adds would go on from nothing
                    other.forget()
        if self.used + size > self._limit:
            return False
        self.used += size
        self._holders.add(holder)
        return True

    def give(self, size: int) -> None:
        """Give back."""
        self.used -= size

    def left(self, holder: Parts) -> None:
        """It holds nothing any more."""
        self._holders.discard(holder)


class Parts:
    """The body that a session's parts are making up now: one at a time, since they come in order."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._body = bytearray()
        self._first, self._payload, self._json = 0, "", False
        self._next = 0  # the part that goes on; 0: none
        self.waits_at = 0  # EVENTS that begin with this seq are not to be taken yet; 0: none
        self._waits_for = ""
        self.active_at = 0.0
        self.came = False  # a part has come that is not answered yet
        self.wholes: list[tuple[int, Whole]] = []  # to be stored, each with how many frames come before it

    def __repr__(self) -> str:
        return f"<Parts {self._payload or '-'} {len(self._body)} bytes, waits at {self.waits_at}>"

    @property
    def size(self) -> int:
        """Bytes so far."""
        return len(self._body)

    def goes_on(self, part: Part) -> bool:
        """Whether this part may be added: a first one begins anew, any other continues what is there."""
        if part.number == 1:
            self.forget()
            self._first, self._payload, self._json, self._next = part.first, part.payload, part.json, 1
            if self.waits_at != part.first:
                self.wait(part.first, part.payload)
            return True
        begun = (self._first, self._payload, self._json, self._next)
        return begun == (part.first, part.payload, part.json, part.number)

    def add(self, part: Part, now: float) -> str:
        """Keep a part that goes on; "" or why all of the body was given up: `busy` (no memory now), `malformed` (too long)."""
        size = len(part.piece)
        code = "malformed" if len(self._body) + size > MAX_PAYLOAD else ""
        if not code and not self._memory.take(self, size, now):
            code = "busy"
        if code:
            self.forget()
            return code
        self._body += part.piece
        self._next += 1
        self.active_at = now
        return ""

    def take_whole(self) -> Whole:
        """What the last part has completed. Its memory is counted until it is given back."""
        whole = Whole(self._first, self._payload, self._json, self._body)
        self._body, self._next = bytearray(), 0
        self._memory.left(self)
        if whole.payload == self._waits_for:
            self.waits_at, self._waits_for = 0, ""
        return whole

    def give_back(self, wholes: list[Whole]) -> None:
        """These are stored, or will come again."""
        self._memory.give(sum(len(whole.body) for whole in wholes))

    def wait(self, first: int, payload: str) -> None:
        """The record `first` is not to be taken before this body has come whole (again)."""
        self.waits_at, self._waits_for = first, payload

    def forget(self) -> None:
        """Give up the body that is being put together."""
        self._memory.give(len(self._body))
        self._body, self._next = bytearray(), 0
        self._memory.left(self)


def redacted_whole(whole: Whole, redactor: Redactor) -> bytes:
    """A body as it may be stored. One that is not what it says, or cannot be redacted, is the marker alone: never plain."""
    try:
        text = whole.body.decode()
        line = msgspec.json.format(text, indent=-1).encode() if whole.json else msgspec.json.encode(text)
        redacted = redactor.redact(line + b"\n")
        if count_lines(redacted) == 1 and redacted[-1:] == b"\n":
            data = redacted[:-1] if whole.json else _text(redacted, line, whole.body)
            if len(data) <= MAX_PAYLOAD:
                return data
    except (CannotRedact, UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        pass
    return b'"' + UNDECODABLE + b'"' if whole.json else UNDECODABLE


def _text(redacted: bytes, line: bytes, body: bytearray) -> bytes:
    if len(redacted) == len(line) + 1 and redacted.startswith(line):
        return bytes(body)
    return msgspec.json.decode(redacted, type=str).encode()
