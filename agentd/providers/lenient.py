"""A second reading of JSON for typed structs: what fits is taken, a field of the wrong shape counts as absent.

msgspec's reading is all or nothing; servers get a field wrong here and there, and that must never cost its neighbours.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from msgspec import Raw, Struct

_T = TypeVar("_T", bound=Struct)


def lenient(kind: type[_T], value: object) -> _T | None:
    """A struct from decoded JSON; None when that is no object. Texts may hold lone surrogates. Never raises.

    For structs whose fields are Raw or optional str, int, bool, Struct or list of Struct, all with defaults.
    """
    if not isinstance(value, dict):
        return None
    found: dict[str, Any] = {}
    for name, wire_name, wanted in _fields(kind):
        given = value.get(wire_name)
        if given is not None and (taken := _taken(wanted, given)) is not None:
            found[name] = taken
    return kind(**found)


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Each field's name, its name on the wire, and the type that it has when it is not None."""
    hints = get_type_hints(kind)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return tuple((name, wire_name, next(iter(get_args(hints[name])), hints[name])) for name, wire_name in names)


def _taken(wanted: Any, value: Any) -> Any:
    if wanted is Raw:
        return _raw(value)
    if wanted is int:
        return whole_number(value)
    if wanted is str or wanted is bool:
        return value if isinstance(value, wanted) else None
    if isinstance(wanted, type) and issubclass(wanted, Struct):
        return lenient(wanted, value)
    (item,) = get_args(wanted)
    return [one for entry in value if (one := lenient(item, entry)) is not None] if isinstance(value, list) else None


def _raw(value: object) -> Raw | None:
    try:
        return Raw(json.dumps(value, separators=(",", ":")).encode())
    except RecursionError:
        return None


def whole_number(value: object) -> int | None:
    """A count, also as a float without a fraction or in digits; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
