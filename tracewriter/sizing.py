"""What can be said of an event before it is encoded: how long its bodies are, and whether its numbers are numbers.

For the hot path, so it is one expression per kind, put together once from the kind's fields (as dataclasses make their
methods): nested calls would cost as much as encoding the event.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from tracewriter.config import MAX_LINE
from tracewriter.events import Event

# The fields that hold bodies: what is longer than a line is known before it is encoded (64 MiB would hold up the run).
_BODIES: Final = frozenset({"text", "reasoning", "refusal", "output", "input", "diff"})
_NAMES: Final = {
    "isfinite": isfinite,
    "raw_length": Raw.__len__,
    "text_length": str.__len__,
    "TOO_LONG": MAX_LINE + 1,
    "UNSET": UNSET,
}


def sizer(cls: type) -> Callable[[Event], int]:
    """Adds up the lengths of an event's bodies; TypeError for one that is no text, whatever its type hint says. A number that
    JSON cannot say (it would become null without a mark) counts as too long for the fast path."""
    lengths: list[str] = []
    finite: list[str] = []
    for field in msgspec.structs.fields(cls):
        value = f"e.{field.name}"
        if field.name in _BODIES:
            length = f"{'raw' if field.type is Raw else 'text'}_length({value})"
            lengths.append(f"(0 if {value} is UNSET else {length})" if field.default is UNSET else length)
        elif field.type is float:
            finite.append(f"isfinite({value})")
        elif field.type == float | None:
            finite.append(f"isfinite({value} or 0.0)")
    source = f"lambda e: {' + '.join(lengths) or '0'}"
    if finite:
        source += f" if {' and '.join(finite)} else TOO_LONG"
    made: Callable[[Event], int] = eval(source, dict(_NAMES))  # noqa: S307 - of the field names of our own classes
    return made
