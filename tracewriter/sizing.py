"""What can be said of an event before it is encoded: about how long its line is, and that its values are what they seem.

For the hot path, so it is one expression per kind, put together once from the kind's fields (as dataclasses make their
methods): nested calls would cost as much as encoding the event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Raw, Struct, UnsetType

from tracewriter.config import KIB, MAX_LINE
from tracewriter.events import Event
from tracewriter.payload import PAYLOAD_BYTES

TOO_LONG: Final = MAX_LINE + 1
SURELY_SHORT: Final = PAYLOAD_BYTES // 4  # characters of a text: UTF-8 has 4 bytes for one at most
SHORT_LINE: Final = (
    SURELY_SHORT + 100
)  # estimated: no text in it is longer, since the rest of any line takes more than that
MAY_WAIT: Final = (
    MAX_LINE - 4 * KIB
) // 6  # one of so many makes no line that is too long, whatever has to be escaped in it
_hints: Final = cache(get_type_hints)  # the annotations are text: evaluating them costs more than all the rest
_NUMBER: Final = 8  # characters of a number or a constant, about
# The fields that hold bodies: what is longer than a line is known before it is encoded (64 MiB would hold up the run).
_BODIES: Final = frozenset({"text", "reasoning", "refusal", "output", "input", "diff"})
# One term per type: the length of what JSON makes of it, about; TypeError (or TOO_LONG) for a value of another type.
_TERMS: Final[dict[Any, str]] = {
    str: 'len("" + {v})',  # TypeError for what is no text, and half the time of str.__len__
    int: "({v} & 0)",
    bool: "({v} & 0)",
    float: "(0 if isfinite({v}) else TOO_LONG)",
    Raw: "raw_length({v})",
}
_LONG: Final = "(len({v}) > SHORT and (len({v}) > LONG or not ({v}.isascii() or len({v}.encode()) <= LONG)))"
_NAMES: Final = {
    "isfinite": isfinite,
    "raw_length": Raw.__len__,
    "TOO_LONG": TOO_LONG,
    "UNSET": UNSET,
    "SHORT": SURELY_SHORT,
    "LONG": PAYLOAD_BYTES,
}


def is_flat(cls: type) -> bool:
    """Whether the kind holds nothing but text, numbers and constants: what nobody can change after it was handed over."""
    return all(
        get_origin(hint) in (None, Union, UnionType)  # a dict's arguments would be its names' and values' types
        and all(part in (str, int, bool, float, type(None), UnsetType) for part in (get_args(hint) or (hint,)))
        for hint in _hints(cls).values()
    )


def holds_json(hint: Any) -> bool:
    """Whether values of the type may have JSON in them that the caller made."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return any(map(holds_json, _hints(hint).values()))
    return hint is Raw or any(map(holds_json, get_args(hint)))


def sizer(cls: type) -> Callable[[Event], int]:
    """About how many bytes of JSON an event takes, from below: escapes and what is not ASCII make it longer.

    TypeError when a value is not of its field's type, TOO_LONG for a number that JSON cannot say (it would become null
    without a mark). Of a kind that is not flat only the bodies and the fractions are looked at.
    """
    hints, flat = _hints(cls), is_flat(cls)
    terms = [str(sum(len(name) + 4 + _NUMBER for name in hints))]
    for name, hint in hints.items():
        parts = get_args(hint) or (hint,)
        kinds = [part for part in parts if part in _TERMS]
        if len(kinds) != 1 or not (flat or name in _BODIES or kinds[0] is float):
            continue
        value = f"e.{name}"
        term = _TERMS[kinds[0]].format(v=value)
        for part, constant in ((type(None), "None"), (UnsetType, "UNSET")):
            if part in parts:
                term = f"(0 if {value} is {constant} else {term})"
        terms.append(term)
    made: Callable[[Event], int] = eval(f"lambda e: {' + '.join(terms)}", dict(_NAMES))  # noqa: S307 - of the field names of our own classes
    return made


def long_text(cls: type) -> Callable[[Event], bool]:
    """Whether an event of a flat kind, proven by its sizer, has a text over PAYLOAD_BYTES of UTF-8. UnicodeEncodeError for one that
    is no Unicode.
    """
    terms = ["False"]
    for name, hint in _hints(cls).items():
        parts = get_args(hint) or (hint,)
        if str in parts:
            term = _LONG.format(v=f"e.{name}")
            for part, constant in ((type(None), "None"), (UnsetType, "UNSET")):
                if part in parts:
                    term = f"(e.{name} is not {constant} and {term})"
            terms.append(term)
    made: Callable[[Event], bool] = eval(f"lambda e: {' or '.join(terms)}", dict(_NAMES))  # noqa: S307 - as above
    return made
