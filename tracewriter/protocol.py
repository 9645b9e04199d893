"""The writer's socket protocol as pure bytes: frames in, frames out, no I/O (FORMAT.md, "On the socket").

A frame is a 24-byte little-endian header and a body:

    0 u32 length of the body · 4 u8 kind · 5 u8 flags · 6 u16 zero · 8 u32 channel · 12 u32 count · 16 u64 first

Channel 0 is the connection itself; every other channel is one session. The body of EVENTS is whole JSONL lines that the
writer never decodes; control bodies are small JSON documents (the Structs below).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Layout
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from tracewriter.config import MAX_FRAME
from tracewriter.errors import ProtocolError

VERSION: Final = 1
OLDEST_VERSION: Final = 1
HEADER: Final = Layout("<IBBHIIQ")
HEADER_BYTES: Final = HEADER.size
FLAG_LAST: Final = 1  # the last part of a PAYLOAD
FLAG_JSON: Final = 2  # its bytes are JSON, in every part; otherwise they are text


class Kind(IntEnum):
    """What a frame is; the numbers are the wire's."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    OPENED = 4
    REFUSED = 5
    EVENTS = 6
    DROP = 7
    PAYLOAD = 8
    ACK = 9
    NACK = 10
    FLUSH = 11
    FLUSHED = 12
    CLOSE = 13
    CLOSED = 14
    STATUS = 15
    DELETE = 16
    PIN = 17


_KINDS: Final = {int(kind): kind for kind in Kind}


class Frame(Struct, frozen=True, gc=False):
    """One frame. A body that is a view lives only until the next receive."""

    kind: Kind
    channel: int = 0
    count: int = 0
    first: int = 0
    body: bytes | memoryview = b""
    flags: int = 0


class Hello(Struct, frozen=True):
    """First frame of a connection. producer: one id per process life; conn: 1, 2, … of that life (R20)."""

    producer: str
    conn: int
    version: int = VERSION


class Welcome(Struct, frozen=True):
    """The answer to Hello: the version that both speak."""

    version: int
    max_frame: int = MAX_FRAME


class Open(Struct, frozen=True, omit_defaults=True):
    """Record this session. acked and last: the highest seq acknowledged to, and given out by, this producer life.

    capture is the mode the session is recorded in; secrets are exact values to redact, kept in the writer's memory only.
    """

    session: str
    workspace: str
    acked: int = 0
    last: int = 0
    capture: str = "content"
    secrets: tuple[str, ...] = ()
    meta: dict[str, str] = {}


class Refused(Struct, frozen=True):
    """The session cannot be recorded now (busy, locked, an errno name) or ever (taken, bad_id): retry_ms -1."""

    code: str
    message: str
    retry_ms: int = -1


class Nack(Struct, frozen=True):
    """Why records from a seq on were not taken, and after how many ms to try again (0: at once)."""

    code: str
    retry_ms: int = 0


class Flushed(Struct, frozen=True):
    """All that was taken before the FLUSH is on disk (ok), or why it is not (code)."""

    ok: bool
    code: str = ""


class SessionStatus(Struct, frozen=True):
    """One open recording, as the writer sees it."""

    session: str
    recorded: int
    bytes: int
    segments: int
    state: str
    reason: str


class Status(Struct, frozen=True):
    """The writer as a whole. state: ok or degraded; reason: the errno name or limit that holds a session up."""

    version: str
    pid: int
    root: str
    state: str
    reason: str
    uptime_s: float
    connections: int
    durability: str
    sessions: tuple[SessionStatus, ...]
    retention: str = ""


_T = TypeVar("_T")
_encoder: Final = msgspec.json.Encoder()


def encode(
    kind: Kind, *, channel: int = 0, count: int = 0, first: int = 0, body: bytes | Struct = b"", flags: int = 0
) -> bytes:
    """The bytes of one frame."""
    data = body if isinstance(body, bytes) else _encoder.encode(body)
    return HEADER.pack(len(data), kind, flags, 0, channel, count, first) + data


def decode_body(body: bytes | memoryview, as_type: type[_T]) -> _T:
    """A control frame's body. Raises ProtocolError when it is not what the kind says."""
    try:
        return msgspec.json.decode(body, type=as_type)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as exc:
        raise ProtocolError(f"a {as_type.__name__} that cannot be read: {exc}") from exc


class FrameDecoder:
    """Sans-IO: bytes in, cut anywhere; complete frames out. Raises ProtocolError at the first wrong header.

    Keeps at most one incomplete frame, so its memory is bounded by MAX_FRAME and what one call brings.
    """

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now; their bodies are copies."""
        return self.parse(self.rest + data if self.rest else data)

    def parse(self, buffer: bytes | memoryview) -> list[Frame]:
        """The frames in `buffer`, which must begin with what `rest` held; the bodies are slices of it (of a memoryview: views,
        valid as long as the buffer is). A wrong header raises only in the call that finds it first: frames before it come out.
        """
        frames: list[Frame] = []
        at, end = 0, len(buffer)
        while end - at >= HEADER_BYTES:
            length, kind, flags, zero, channel, count, first = HEADER.unpack_from(buffer, at)
            known = _KINDS.get(kind)
            problem = _problem(length, known, flags, zero, count)
            if problem or known is None:
                if frames:
                    break
                raise ProtocolError(problem)
            start = at + HEADER_BYTES
            if end - start < length:
                break
            at = start + length
            frames.append(Frame(known, channel, count, first, buffer[start:at], flags))
        self.rest = bytes(buffer[at:])
        return frames


def _problem(length: int, kind: Kind | None, flags: int, zero: int, count: int) -> str:
    if kind is None:
        return "a frame of an unknown kind"
    if length > MAX_FRAME:
        return f"a frame of {length} bytes; the bound is {MAX_FRAME}"
    if zero or (flags and kind is not Kind.PAYLOAD) or flags > FLAG_LAST | FLAG_JSON:
        return "a frame header whose reserved bytes are not zero"
    if kind is Kind.EVENTS and (length == 0 or count == 0):
        return "an empty EVENTS frame"
    return ""
