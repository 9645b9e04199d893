"""Lines out of bytes, sans I/O: LF only, bounded; a line that is too long is passed over to its end and reported."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A prompt with a pasted file fits; a line that never ends does not fill the memory.
MAX_LINE_BYTES: Final = 8 * 1024 * 1024


class TooLong(Struct, frozen=True):
    """A line over the bound was skipped; `length_bytes` is how long it was, at least."""

    length_bytes: int


class LineSplitter:
    """Bytes in, lines out, cut at LF only. Holds at most `limit_bytes`; a longer line is skipped to its LF and reported once."""

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit = limit_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._skipped = 0

    def __repr__(self) -> str:
        return f"<LineSplitter held={self._held} skipping={self._skipped > 0}>"

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
            line: bytes | TooLong = TooLong(self._skipped)
            self._skipped = 0
        else:
            line = b"".join(self._parts)
            self._parts.clear()
            self._held = 0
        return line if isinstance(line, TooLong) or line.strip() else None

    def _hold(self, part: bytes) -> None:
        if self._skipped:
            self._skipped += len(part)
        elif self._held + len(part) > self._limit:
            self._skipped = self._held + len(part)
            self._parts.clear()
            self._held = 0
        elif part:
            self._parts.append(part)
            self._held += len(part)
