"""What can be said of an event before it is encoded: how long its bodies are, and whether its numbers are numbers.

For the hot path: one function per kind, made once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tracewriter.config import MAX_LINE
from tracewriter.events import Event

# The fields that hold bodies: what is longer than a line is known before it is encoded (64 MiB would hold up the run).
_TOO_LONG: Final = MAX_LINE + 1
_BODIES: Final = frozenset({"text", "reasoning", "refusal", "output", "input", "diff"})


def sizer(cls: type) -> Callable[[Event], int]:
    """Adds up the lengths of an event's bodies; TypeError for one that is no text, whatever its type hint says, and for a
    number that JSON cannot say (it would become null without a mark)."""
    length = _length_of(cls)
    floats = [field.name for field in msgspec.structs.fields(cls) if field.type in (float, float | None)]
    if not floats:
        return length
    if len(floats) == 1:
        one = attrgetter(floats[0])
        return lambda event: length(event) if isfinite(one(event) or 0.0) else _TOO_LONG
    several = attrgetter(*floats)
    return lambda event: length(event) if all(isfinite(value or 0.0) for value in several(event)) else _TOO_LONG


def _length_of(cls: type) -> Callable[[Event], int]:
    names = [name for name in cls.__struct_fields__ if name in _BODIES]  # type: ignore[attr-defined]
    if not names:
        return lambda event: 0
    if len(names) == 1:
        one = attrgetter(names[0])
        length = Raw.__len__ if names[0] == "input" else str.__len__
        return lambda event: length(one(event))
    several = attrgetter(*names)
    return lambda event: sum(map(_length, several(event)))


def _length(value: str | UnsetType) -> int:
    return 0 if value is UNSET else str.__len__(value)
