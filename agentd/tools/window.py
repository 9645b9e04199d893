"""A window of lines out of a stream of bytes, in bounded memory, whatever the lines are like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

_BOM = b"\xef\xbb\xbf"


class Window(Struct, frozen=True):
    """Lines first … last as text with LF ends. `more`: lines follow. `notes`: what the text does not show of the bytes."""

    text: str
    first: int
    last: int
    more: bool
    notes: tuple[str, ...]
    lines_seen: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class _Line(Struct, frozen=True):
    head: bytes
    size: int
    ended: bool


def _lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[_Line]:
    """The lines at LF (never at U+2028 and the like: they are content), each with at most its first `max_bytes`."""
    head, size = bytearray(), 0
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            head += chunk[start : min(end, start + max_bytes - len(head))]
            yield _Line(bytes(head), size + end - start, True)
            head, size, start = bytearray(), 0, end + 1
        head += chunk[start : start + max_bytes - len(head)]
        size += len(chunk) - start
    if size:
        yield _Line(bytes(head), size, False)


class _Builder:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.crlf = False
        self.bom = False
        self.replaced = False
        self.cut: list[str] = []

    def add(self, number: int, line: _Line, room: int) -> int:
        """Take a line, cut when it alone is over the room; how many characters it took, 0 when it must wait."""
        head = line.head
        if number == 1 and head.startswith(_BOM):
            self.bom, head = True, head[len(_BOM) :]
        text = head.decode("utf-8", "replace")
        whole = line.size == len(line.head)
        if whole and line.ended and text.endswith("\r"):
            self.crlf, text = True, text[:-1]
        if not whole or len(text) + 1 > room:
            if self.parts:
                return 0
            text = text[: room - 1]
            self.cut.append(f"line {number} is cut, it has {line.size:,} bytes")
        self.replaced = self.replaced or ("\ufffd" in text and not _valid(head, whole=whole))
        self.parts.append(text + ("\n" if line.ended else ""))
        return len(text) + 1

    def notes(self) -> tuple[str, ...]:
        said = ["CRLF line ends"] if self.crlf else []
        said += ["starts with a UTF-8 BOM"] if self.bom else []
        said += ["bytes that are not UTF-8 are shown as \ufffd"] if self.replaced else []
        return (*said, *self.cut)


def _valid(head: bytes, *, whole: bool) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return not whole and error.reason == "unexpected end of data"
    return True


def take_window(chunks: Iterable[bytes], offset: int, limit: int | None, budget: int) -> Window:
    """Lines from `offset` (counted from 1) on, at most `limit` of them and `budget` characters; at least one if there is one."""
    builder = _Builder()
    number, used, more = 0, 0, False
    for line in _lines(chunks, 4 * budget):
        number += 1
        if number < offset:
            continue
        taken = builder.add(number, line, budget - used) if limit is None or len(builder.parts) < limit else 0
        if not taken:
            more = True
            break
        used += taken
    last = offset + len(builder.parts) - 1
    return Window("".join(builder.parts), offset, last, more, builder.notes(), number)
