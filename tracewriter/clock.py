"""Time as a parameter: what needs a clock takes one, so that tests own the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final, Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for durations and deadlines. The two are never mixed."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds."""
        return time.monotonic()


SYSTEM_CLOCK: Final = SystemClock()
