"""Lines out of bytes, sans I/O: LF only, bounded; a line that is too long is passed over to its end and reported.

What many splitters hold together is bounded by a `Budget`: over it, the one that holds the most lets go of its line.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A prompt with a pasted file fits; a line that never ends does not fill the memory.
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
# Half-received lines of all connections together: 256 of 8 MiB would be 2 GiB.
MAX_HALF_LINES_BYTES: Final = 64 * 1024 * 1024
# What is kept of a line that is skipped: its beginning, where a request's id is.
HEAD_BYTES: Final = 256


class TooLong(Struct, frozen=True):
    """A line over the bound was skipped; `length_bytes` is how long it was, at least. crowded: others' lines left no room."""

    length_bytes: int
    head: bytes = b""
    crowded: bool = False


class Budget:
    """The bytes that all its splitters may hold together."""

    def __init__(self, limit_bytes: int = MAX_HALF_LINES_BYTES) -> None:
        self._limit = limit_bytes
        self._holding: set[LineSplitter] = set()
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<Budget held={self.held_bytes} of {self._limit} by {len(self._holding)}>"

    def change(self, splitter: LineSplitter, by_bytes: int) -> None:
        """It holds so much more, or less."""
        self.held_bytes += by_bytes
        if splitter.held_bytes:
            self._holding.add(splitter)
        else:
            self._holding.discard(splitter)
        while self.held_bytes > self._limit:
            max(self._holding, key=lambda one: one.held_bytes).give_up()


class LineSplitter:
    """Bytes in, lines out, cut at LF only. Holds at most `limit_bytes`; a longer line is skipped to its LF and reported once.

    With a common `budget`, call `close` at the end.
    """

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES, budget: Budget | None = None) -> None:
        self._limit = limit_bytes
        self._budget = budget
        self._parts: list[bytes] = []
        self._skipped = 0
        self._head = b""
        self._crowded = False
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<LineSplitter held={self.held_bytes} skipping={self._skipped > 0}>"

    def close(self) -> None:
        """Let go of what is held."""
        self._release()

    def give_up(self) -> None:
        """Skip the line that is being received, to make room for others."""
        self._crowded = True
        self._skip(self.held_bytes)

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that became complete, without their LF; empty ones are passed over."""
        out: list[bytes | TooLong] = []
        *ends, rest = data.split(b"\n")
        for part in ends:
            line = self._end(part)
            if line is not None:
                out.append(line)
        self._hold(rest)
        return out

    def _end(self, part: bytes) -> bytes | TooLong | None:
        self._hold(part)
        if self._skipped:
            long = TooLong(self._skipped, self._head, self._crowded)
            self._skipped, self._head, self._crowded = 0, b"", False
            return long
        line = b"".join(self._parts)
        self._release()
        return line if line.strip() else None

    def _hold(self, part: bytes) -> None:
        if self._skipped:
            self._skipped += len(part)
            self._head += part[: HEAD_BYTES - len(self._head)]
        elif self.held_bytes + len(part) > self._limit:
            self._parts.append(part)
            self._skip(self.held_bytes + len(part))
        elif part:
            self._parts.append(part)
            self._change(len(part))

    def _skip(self, length_bytes: int) -> None:
        self._skipped = length_bytes
        self._head = b"".join(part[:HEAD_BYTES] for part in self._parts[:HEAD_BYTES])[:HEAD_BYTES]
        self._release()

    def _release(self) -> None:
        self._parts.clear()
        self._change(-self.held_bytes)

    def _change(self, by_bytes: int) -> None:
        self.held_bytes += by_bytes
        if self._budget is not None and by_bytes:
            self._budget.change(self, by_bytes)
