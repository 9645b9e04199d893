"""Identifiers: sessions and runs are UUIDv7 in hex (runs are valid OpenTelemetry trace ids), operations are span ids."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final

from tracewriter.clock import SYSTEM_CLOCK, Clock

Random = Callable[[int], bytes]

SESSION_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")


class Ids:
    """Makes ids from a clock and a source of random bytes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, random: Random = os.urandom) -> None:
        self._clock = clock
        self._random = random

    def uuid7(self) -> str:
        """32 hex digits that sort by the millisecond they were made in (RFC 9562, version 7)."""
        millis = int(self._clock.now().timestamp() * 1000) & 0xFFFF_FFFF_FFFF
        rest = int.from_bytes(self._random(10), "big")
        value = millis << 80 | 0x7 << 76 | (rest >> 64 & 0xFFF) << 64 | 0b10 << 62 | rest & 0x3FFF_FFFF_FFFF_FFFF
        return f"{value:032x}"

    def op(self) -> str:
        """16 hex digits, never all zero (OpenTelemetry forbids that span id)."""
        return f"{int.from_bytes(self._random(8), 'big') or 1:016x}"


def is_session_id(text: str) -> bool:
    """Whether a session may be called so: ours, or a foreign id that is safe as a directory name."""
    return SESSION_ID.match(text) is not None
