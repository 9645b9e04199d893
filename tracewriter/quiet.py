"""A log that says at most so much in a while: what repeats for days must not fill the disk that the traces are on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tracewriter.clock import Clock

LINES: Final = 20  # in each …
PERIOD_S: Final = 10.0


class QuietLog:
    """Passes on at most `lines` lines in each `period_s`; what was left out is counted, and said in one line before the next
    line that comes after it, or by `close`. Called from one thread or several, it may only miscount, never fail."""

    def __init__(
        self, say: Callable[[str], None], clock: Clock, *, lines: int = LINES, period_s: float = PERIOD_S
    ) -> None:
        self._say, self._clock = say, clock
        self._lines, self._period_s = lines, period_s
        self._until = clock.monotonic() + period_s
        self._said = 0
        self._left_out = 0

    def __call__(self, line: str) -> None:
        """Say the line, or count it."""
        now = self._clock.monotonic()
        if now >= self._until:
            self.close()
            self._until, self._said = now + self._period_s, 0
        if self._said < self._lines:
            self._said += 1
            self._say(line)
        else:
            self._left_out += 1

    def close(self) -> None:
        """Say how many lines were left out, if any were."""
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self._say(f"{left_out} more lines left out")
