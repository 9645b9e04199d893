"""Server-sent events out of bytes: sans-IO, the same frames wherever the bytes are cut.

A stream is lines; a line ends in LF, CRLF or CR, and only these (U+2028 and its kin are content, so `splitlines` would cut
JSON apart). Lines are collected as bytes and never decoded here: a cut inside a code point cannot matter. A blank line, or
the end of the body, completes a frame. Lines that are no field of the format are handed on as `Stray`: some servers put
their errors there (`error: {...}`, or bare JSON without any framing).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

# Tool arguments of more than 1 MiB in one line occur; 8 MiB is what one message may be anywhere in this program.
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_CR: Final = 0x0D  # sought as a number: that is six times faster than as bytes


class Frame(Struct, frozen=True, gc=False):
    """One event: its name ("" when none was given) and its data, lines joined by LF. Frames without data are not given."""

    event: str
    data: bytes


class Stray(Struct, frozen=True, gc=False):
    """A line that is neither a field, a comment nor blank, without its end."""

    line: bytes


Item: TypeAlias = Frame | Stray


class SSEDecoder:
    """Takes a body's bytes, gives frames. Over `max_line_bytes` in a line or a frame it stops for good: `overflowed`."""

    __slots__ = (
        "_data", "_data_bytes", "_event", "_first", "_max", "_skip_lf", "_tail", "between", "overflowed",
    )  # fmt: skip

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.overflowed = False
        self._max = max_line_bytes
        self._tail = bytearray()  # the line that is not complete yet
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._first = True
        self._skip_lf = False  # the last byte was CR: it ended a line, and an LF right after it belongs to it
        self.between = False  # a frame has ended, and nothing of the next has come

    def feed(self, data: bytes) -> list[Item]:
        """The frames that became complete with these bytes."""
        items = self._feed(data)
        self.between = self.idle
        return items

    def single(self, data: bytes) -> bytes | None:
        """The short way for bytes that are one whole frame of one line, with an object in it, as a model at work sends them.

        Gives its data, and these bytes are done; None when they are anything else, or a frame had begun: then they are to be fed.
        """
        if not self.between:
            return None
        line, _, rest = data.partition(b"\n")
        if rest == b"\n":
            if line.startswith(b"data: {") and _CR not in line and len(line) <= self._max:
                return line[6:]
        elif rest == b"\r\n" and line.startswith(b"data: {") and line.find(b"\r") == len(line) - 1 <= self._max:
            return line[6:-1]
        return None

    def several(self, data: bytes) -> list[bytes]:
        """The short way for many bytes that begin with whole frames of one line each, and nothing between them.

        Gives their lines, when no frame had begun and all are of this form; else none. The caller takes as many as it likes, from
        the first on; what comes after those (a line and its two ends each) is to be fed.
        """
        end = data.rfind(b"\n\n") + 1
        if not self.between or not 0 < end <= self._max or _CR in data:
            return []
        lines = data[:end].split(b"\n")
        return [] if any(lines[1::2]) else lines[::2]

    def _feed(self, data: bytes) -> list[Item]:
        items: list[Item] = []
        if self.overflowed or not data:
            return items
        if self._skip_lf:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            self._keep(data)
            return items
        if self._tail:
            # Joined only with a newline at hand: a long line that comes in small pieces is copied once.
            self._tail += data
            data = bytes(self._tail)
            self._tail.clear()
        lines = data.split(b"\n")
        tail = lines.pop()
        self._lines(lines, items)
        self._keep(tail)
        return items

    @property
    def idle(self) -> bool:
        """A frame has ended and none has begun: what follows may be taken past this decoder, whole frames at a time."""
        begun = self._tail or self._data or self._event or self._skip_lf
        return not (begun or self._first or self.overflowed)

    def _lines(self, lines: list[bytes], items: list[Item]) -> None:
        """All of them. The kinds that nearly all lines are of (one data line, a blank one) are taken here."""
        held, longest = self._data, self._max
        for line in lines:
            if not line:
                if len(held) == 1 and held[0]:
                    items.append(Frame(self._event, held.pop()))
                    self._event = ""
                    self._data_bytes = 0
                    continue
            elif not held and not self._first and line.startswith(b"data: {") and len(line) <= longest:
                held.append(line[6:])
                self._data_bytes = len(line) - 5
                continue
            self._line(line, items)
            if self.overflowed:
                return

    def end(self) -> list[Item]:
        """The body is over: the last line and the last frame count even without their line ends."""
        items: list[Item] = []
        if not self.overflowed:
            if self._tail:
                self._line(bytes(self._tail), items)
            self._line(b"", items)
        self._tail.clear()
        return items

    def _keep(self, data: bytes) -> None:
        if len(self._tail) + len(data) > self._max:
            self._overflow()
        elif not self.overflowed:
            self._tail += data

    def _overflow(self) -> None:
        self.overflowed = True
        self._tail.clear()
        self._data.clear()

    def _line(self, line: bytes, items: list[Item]) -> None:
        if self.overflowed:
            return
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if len(line) > self._max:
            self._overflow()
        elif line.startswith(b"data:"):
            value = line[6:] if line.startswith(b" ", 5) else line[5:]
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max:
                self._overflow()
        elif not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                if data:
                    items.append(Frame(self._event, data))
                self._data.clear()
                self._data_bytes = 0
            self._event = ""
        else:
            self._field(line, items)

    def _field(self, line: bytes, items: list[Item]) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace")
        elif name not in (b"", b"data", b"id", b"retry"):
            items.append(Stray(line))
