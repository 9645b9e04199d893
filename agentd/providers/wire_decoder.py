"""What the decoders of all wires have alike: frames out of bytes, whatever came outside of them, and how a stream fails.

Frames are taken in the shortest way that gives what the long one (sse.SSEDecoder, then one reading per frame) gives. Most
bytes are whole frames of one form, an event line and a line of JSON, or the latter alone; they are split at once, and each
wire takes the lines as far as they are of its usual kinds. From the first that is not, the rest of the piece goes the long
way, up to where a frame has ended and none has begun. So framing of any kind works, and only the usual one is fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from agentd.providers import errors
from agentd.providers.chat_chunk import parse_json
from agentd.providers.halves import Halves
from agentd.providers.sse import MAX_LINE_BYTES, SSEDecoder, Stray
from agentd.providers.sse import Item as SSEItem
from agentd.providers.stream import Reasoning, Refusal, StreamEvent, Text
from agentd.providers.tool_calls import CutCall
from tracewriter.events import Failure, ToolCall

# The beginning of a frame is copied with every piece that comes: longer ones go the long way, where they are not.
_MAX_REST_BYTES: Final = 16 * 1024
_MAX_STRAY_BYTES: Final = 1024 * 1024  # lines outside the format: an error, or a whole answer that was not streamed
_ANOTHER: Final = "ask for less at once, or ask another model"
_TRY_AGAIN: Final = "try again; if it stays, the server is not what it says"

_LF: Final = 0x0A  # looking for a number in bytes is several times faster than looking for bytes of length one
_CR: Final = 0x0D

_E = TypeVar("_E")


class WireDecoder(ABC, Generic[_E]):
    """One answer. A wire adds what its events (`_E`) mean, and `_end`, which gives the last ones.

    What a stream sets once, or never, stands in the class until then: most streams are short.
    """

    _heads: ClassVar[frozenset[bytes]] = frozenset()  # the wire's event lines, whole; none where it has none

    complete = False  # a terminal mark was seen
    finish: str | None = None

    _failure: tuple[Failure, bool] | None = None
    _halves: Halves[type[Text | Reasoning | Refusal]] | None = None
    _stray: list[bytes] | None = None
    _stray_bytes = 0

    def __init__(self) -> None:
        self.calls: list[ToolCall | CutCall] = []  # all calls in order, once the stream has ended
        self.ended = False  # the last event was given
        self.frames = (
            0  # of the answer: what a stall is measured by, because a stalled model's server may still send others
        )
        self._odd = False  # a frame needed the lenient reading: texts may hold halves of surrogate pairs
        self._held = b""  # the beginning of a frame that the framing has not been given
        self._sse: SSEDecoder | None = None  # where a frame that was given to the framing has not ended
        self._started = False  # a frame was taken: a BOM is none from now on

    @property
    def settled(self) -> bool:
        """Nothing that matters but usage can still come: the reason to finish, or an error, was seen."""
        return self.ended or self.finish is not None or self._failure is not None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that became complete with these bytes."""
        out: list[StreamEvent] = []
        if self.ended:
            return out
        if self._held:
            data, self._held = self._held + data, b""
        if self._sse is not None:
            end = _first_end(data)
            self._framed(data[:end], out)
            data = data[end:]
        if self._sse is None and not self.ended:
            data = self._whole_frames(data, out)
        if data and not self.ended:
            if self._sse is None and _is_beginning(data):
                self._held = data
            else:
                self._framed(data, out)
        return out

    def end(self) -> list[StreamEvent]:
        """The body is over: what was still open, then usage and the end."""
        out: list[StreamEvent] = []
        if not self.ended and self._held:
            self._framed(self._held, out)
        if not self.ended and self._sse is not None:
            self._items(self._sse.end(), out)
        if not self.ended:
            self._end(out)
        return out

    def _whole_frames(self, data: bytes, out: list[StreamEvent]) -> bytes:
        """Takes the frames that are whole, the short way if all of them are of the usual form; gives what is left."""
        if len(data) > MAX_LINE_BYTES:
            return data
        if _CR in data:
            at = data.find(_LF) - 1
            if data[at:] == b"\r\n\r\n" and data.find(_CR) == at and data.startswith(b"data: "):  # one line of data
                self._started = True
                return b"" if self._take([data[6:at]], out) else data
            bare = data.replace(b"\r", b"")
            if bare.replace(b"\n", b"\r\n") != data:  # not only line ends of CRLF
                return data
            data = bare
        lines = data.split(b"\n")
        count = len(lines)
        if count <= 4 and count > 2 and not lines[-1] and not lines[-2]:  # frames mostly come one by one
            field = lines[-3]
            if field.startswith(b"data: ") and (count == 3 or lines[0] in self._heads):
                self._started = True
                return b"" if self._take([field[6:]], out) else data
        if lines[0].startswith(b"event: "):
            name_at, data_at, step = 0, 1, 3
        elif len(lines) > 1 and lines[1].startswith(b"event: "):
            name_at, data_at, step = 1, 0, 3
        else:
            name_at, data_at, step = 0, 0, 2
        count = (len(lines) - 1) // step
        end = count * step
        if not count or any(lines[step - 1 : end : step]):
            return data
        if step == 3 and not self._are_heads(lines[name_at:end:3]):
            return data
        fields = lines[data_at:end:step]
        frames = [line.removeprefix(b"data: ") for line in fields]
        if sum(map(len, frames)) + 6 * count != sum(map(len, fields)):
            return data
        taken = self._take(frames, out)
        if taken:
            self._started = True
        return b"\n".join(lines[taken * step :])

    def _are_heads(self, lines: list[bytes]) -> bool:
        """Whether all are event lines. That the wire's own are is told faster."""
        return self._heads.issuperset(lines) or all(line.startswith(b"event: ") for line in lines)

    def _framed(self, data: bytes, out: list[StreamEvent]) -> None:
        """The long way."""
        sse = self._sse
        if sse is None:
            sse = self._sse = SSEDecoder()
            if self._started:
                sse.feed(b"\n")  # these bytes are not the beginning of the body
        self._items(sse.feed(data), out)
        if sse.overflowed and not self.ended:
            self._fail(f"a line of the stream is longer than {MAX_LINE_BYTES} bytes", retry=False)
            self._end(out)
        elif sse.idle:
            self._started, self._sse = True, None

    def _items(self, items: list[SSEItem], out: list[StreamEvent]) -> None:
        for item in items:
            if self.ended:
                return
            if isinstance(item, Stray):
                self._stray_line(item.line, out)
            else:
                self._frame(item.data, item.event, out)

    @abstractmethod
    def _take(self, frames: list[bytes], out: list[StreamEvent]) -> int:
        """Take the data of frames whose names do not matter, up to the first that is not of a usual kind; says how many."""

    def _frame(self, data: bytes, name: str, out: list[StreamEvent]) -> None:
        """Take a frame of any kind."""
        try:
            event = self._strict(data)
        except (msgspec.DecodeError, RecursionError):
            self._second_reading(data, name, out)
        else:
            self._event(event, data, name, out)

    @abstractmethod
    def _strict(self, data: bytes) -> _E:
        """The event in a frame's data. Raises msgspec.DecodeError or RecursionError where only `_lenient` can tell."""

    @abstractmethod
    def _lenient(self, data: bytes) -> list[_E]:
        """The events in a frame's data, whatever is wrong with them; none where it is no JSON of the wire's."""

    @abstractmethod
    def _event(self, event: _E, data: bytes, name: str, out: list[StreamEvent]) -> None:
        """Take an event; `data` is its JSON, `name` that of its event line."""

    @abstractmethod
    def _error(self, reason: errors.Reason, out: list[StreamEvent]) -> None:
        """Take an error of the provider's."""

    @abstractmethod
    def _end(self, out: list[StreamEvent]) -> None:
        """Give what comes last."""

    def _second_reading(self, data: bytes, name: str, out: list[StreamEvent]) -> None:
        """A frame that the first reading refused. What is no JSON is skipped unless it began like some: text may be lost."""
        if data.strip() == b"[DONE]" or self._reread(data, name, out):
            return
        if name == "error":
            self._error(errors.reason_of(data), out)
        elif data.lstrip()[:1] in (b"{", b"[") and not self.settled:
            shown = errors.one_line(data.decode("utf-8", "replace"), limit=80)
            self._fail(f"a frame of the stream could not be read: {shown}", retry=True)

    def _reread(self, data: bytes, name: str, out: list[StreamEvent]) -> bool:
        """Take all of the events in the data, if there are any; also those that were sent without a blank line between."""
        found = [(data, name, self._lenient(data))]
        if not found[0][2] and b"\n" in data:
            found = [(line, "", self._lenient(line)) for line in data.split(b"\n")]
        if not all(events for _, _, events in found):
            return False
        self._odd = True
        for piece, named, events in found:
            for event in events:
                if not self.ended:
                    self._event(event, piece, named, out)
        return True

    def _provider_error(self, reason: errors.Reason | None) -> None:
        """An error after which the stream is read on. The first one counts."""
        if reason is not None and (self._failure is None or self._failure[0].kind == "protocol"):
            text = reason.text or "an error without a reason"
            self._failure = errors.stream_failure(errors.Reason(text, reason.status, reason.code))

    def _fail(self, message: str, *, retry: bool, kind: str = "protocol") -> None:
        if self._failure is None:
            self._failure = Failure(kind, message, _TRY_AGAIN if retry else _ANOTHER), retry

    def _fail_unless_whole(self, unit: str, *, seen: bool) -> None:
        """An answer of which nothing came, or not all."""
        if not seen:
            self._fail(f"the answer was empty: not one {unit} came", retry=True, kind="truncated")
        elif not self.complete:
            self._fail("the stream ended before the answer was complete", retry=True, kind="truncated")

    def _joined(self, kind: type[Text | Reasoning | Refusal], text: str) -> str:
        """The text of an odd stream as it may be given: no half of a pair in it."""
        if self._halves is None:
            self._halves = Halves()
        return self._halves.whole(kind, text)

    def _halves_left(self, out: list[StreamEvent]) -> list[type[Text | Reasoning | Refusal]]:
        """Give what stands for the halves whose others never came; returns of what they were."""
        kinds = [] if self._halves is None else self._halves.left()
        out += [kind("\ufffd") for kind in kinds]
        return kinds

    def _stray_line(self, line: bytes, out: list[StreamEvent]) -> None:
        if line.startswith(b"error:"):
            self._error(errors.reason_of(line[6:].strip()), out)
        elif self._stray or line.lstrip()[:1] in (b"{", b"["):  # what comes before the first brace is no JSON
            self._stray = self._stray or []
            self._stray_bytes += len(line) + 1
            if self._stray_bytes <= _MAX_STRAY_BYTES:
                self._stray.append(line)

    def _bare_json(self) -> bytes:
        """What came without any framing: an error, or the whole answer of a server that does not stream."""
        body = b"\n".join(self._stray or ())
        self._stray = None
        if self._stray_bytes > _MAX_STRAY_BYTES:
            self._fail("the answer is no event stream, and too long to be read as one piece", retry=False)
            return b""
        return body.strip()


def json_in(data: bytes) -> Any:
    """Decoded JSON; None when it is none."""
    try:
        return parse_json(data)
    except ValueError:
        return None


def is_bare_error(value: object) -> bool:
    """Whether JSON that is no event has one of the shapes that errors come in without saying so in the wire's way."""
    return isinstance(value, dict) and (
        "error" in (value.get("object"), value.get("type"))
        or "detail" in value
        or ("message" in value and ("code" in value or "status" in value))
    )


def split_calls(calls: list[ToolCall | CutCall]) -> tuple[list[ToolCall], tuple[str, ...]]:
    """The calls to run, and the names of those that were cut."""
    whole = [call for call in calls if isinstance(call, ToolCall)]
    if len(whole) == len(calls):
        return whole, ()
    return whole, tuple(call.name or call.id for call in calls if isinstance(call, CutCall))


def _first_end(data: bytes) -> int:
    """Where the first blank line ends, or the bytes do."""
    if _LF not in data:
        return len(data)
    for blank in (b"\n\n", b"\r\n\r\n"):
        if (at := data.find(blank)) >= 0:
            return at + len(blank)
    return len(data)


def _is_beginning(data: bytes) -> bool:
    """Whether these bytes, which begin a frame, end in its first line or in the data line after its event line."""
    if len(data) > _MAX_REST_BYTES or _CR in data:
        return False
    return _LF not in data or (data.startswith(b"event: ") and data.count(b"\n") == 1)
