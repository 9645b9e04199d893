"""Time as a parameter: what needs a clock takes one, so that tests own the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for durations and deadlines. The two are never mixed."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class SystemClock:
    """The machine's clocks. Attributes and not methods: a call less for each recorded event."""

    def __init__(self) -> None:
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        self.monotonic: Callable[[], float] = time.monotonic


SYSTEM_CLOCK: Final = SystemClock()
