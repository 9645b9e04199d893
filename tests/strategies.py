"""Hypothesis strategies shared by the tests: text with every nasty code point, any Python value, events, stored lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET, Raw, Struct, UnsetType

from tracewriter import jsonl
from tracewriter.events import KINDS, Event

SESSION: Final = "0193750000007000800000000000cafe"

NASTY: Final = (
    "\x00\x01\x07\x08\x1b\x1c\x1f\x7f\x80\x85\x9b\x9f\u00ad\u061c\u200b\u200e\u202a\u202e\u2028\u2029\u2066\u2069"
    '\ufeff\ufffd\ufffe\uffff\U0001f600\U0010ffff\ud800\udbff\udc00\udfff"\\/\n\r\t\v\f<>&'
)
any_char: Final = st.characters(exclude_categories=()) | st.sampled_from(NASTY)
nasty_text: Final = st.text(any_char, max_size=40)
clean_text: Final = st.text(st.characters(codec="utf-8") | st.sampled_from('\x00\x1b\u2028\x85"\\\n'), max_size=40)
times: Final = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))


class RaisingText(str):
    """A str that cannot be shown."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class RaisingInt(int):
    """An int that cannot be converted."""

    def __int__(self) -> int:
        raise RuntimeError("no number")

    def __index__(self) -> int:
        raise RuntimeError("no number")

    def __str__(self) -> str:
        raise RuntimeError("no number")


class RaisingFloat(float):
    """A float that cannot be converted."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __str__(self) -> str:
        raise RuntimeError("no number")

    __repr__ = __str__


class Hostile:
    """Everything that can be asked of it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class LyingClass:
    """isinstance() asks for __class__, which raises."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class BrokenMapping(Mapping[str, object]):
    """A mapping whose content raises."""

    def __getitem__(self, key: str) -> object:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no iteration")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class EndlessMapping(Mapping[str, object]):
    """A mapping that never ends."""

    def __getitem__(self, key: str) -> object:
        return key

    def __iter__(self) -> Iterator[str]:
        at = 0
        while True:
            at += 1
            yield str(at)

    def __len__(self) -> int:
        return 1


class EndlessList(list[object]):
    """A list whose iteration never ends."""

    def __iter__(self) -> Iterator[object]:
        while True:
            yield 1


class RaisingZone(tzinfo):
    """A time zone that cannot say its offset."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        raise RuntimeError("no offset")

    dst = utcoffset

    def tzname(self, when: datetime | None) -> str | None:
        raise RuntimeError("no name")


class Colour(Enum):
    """An enum of odd values."""

    RED = ("a", 1)
    BLUE = math.nan


class Odd(Struct):
    """A struct that holds anything."""

    value: object


@dataclass
class RaisingField:
    """A dataclass whose field raises when it is read."""

    value: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "value":
            raise KeyError(name)
        return super().__getattribute__(name)


def cyclic_list() -> list[object]:
    """A list that contains itself twice."""
    items: list[object] = [1]
    items += [items, items]
    return items


def cyclic_dict() -> dict[str, object]:
    """A dict that contains itself."""
    value: dict[str, object] = {"a": 1}
    value["self"] = value
    return value


def nested(depth: int) -> object:
    """Lists in lists."""
    value: object = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def deeply_nested(depth: int) -> object:
    """Objects in objects."""
    value: object = "bottom"
    for _ in range(depth):
        value = {"a": value}
    return value


class Make:
    """Stands for a value that hypothesis itself could not show; `realise` makes it."""

    def __init__(self, kind: str, argument: Any = None) -> None:
        self.kind, self.argument = kind, argument

    def __repr__(self) -> str:
        return f"Make({self.kind!r}, {self.argument!r})"


MAKERS: Final[dict[str, Callable[[Any], object]]] = {
    "text": RaisingText,
    "int": RaisingInt,
    "float": RaisingFloat,
    "bits": lambda bits: 1 << bits,
    "hostile": lambda _: Hostile(),
    "class": lambda _: LyingClass(),
    "broken mapping": lambda _: BrokenMapping(),
    "endless mapping": lambda _: EndlessMapping(),
    "endless list": lambda _: EndlessList(),
    "field": lambda _: RaisingField(),
    "cyclic list": lambda _: cyclic_list(),
    "cyclic dict": lambda _: cyclic_dict(),
    "lists": nested,
    "objects": deeply_nested,
    "zone": lambda _: datetime(2026, 1, 1, tzinfo=RaisingZone()),
    "view": memoryview,
    "raw": Raw,
}


def realise(value: Any) -> object:
    """The value that a drawn one stands for."""
    if isinstance(value, Make):
        return MAKERS[value.kind](value.argument)
    if isinstance(value, list):
        return [realise(item) for item in value]
    if isinstance(value, tuple):
        return tuple(realise(item) for item in value)
    if isinstance(value, dict):
        return {key: realise(item) for key, item in value.items()}
    return Odd(realise(value.value)) if isinstance(value, Odd) else value


oddities: Final[st.SearchStrategy[object]] = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 2**64, -(2**63) - 1, -(10**20), UNSET]),
    st.builds(Make, st.just("text"), nasty_text),
    st.builds(Make, st.just("int"), st.integers()),
    st.builds(Make, st.just("float"), st.floats()),
    st.builds(Make, st.just("bits"), st.sampled_from([5_000, 40_000])),
    st.builds(Make, st.just("lists"), st.sampled_from([70, 900, 5000])),
    st.builds(Make, st.just("objects"), st.sampled_from([70, 900])),
    st.builds(Make, st.sampled_from(["view", "raw"]), st.binary(max_size=20)),
    st.builds(
        Make, st.sampled_from(sorted(set(MAKERS) - {"text", "int", "float", "bits", "lists", "objects", "view", "raw"}))
    ),
    st.sampled_from([object, len, Colour.RED, Colour.BLUE, Decimal("1.5"), 1j, range(3), ...]),
    st.sampled_from([date(2026, 1, 1), time(1, 2), timedelta(1), datetime(2026, 1, 1)]),
    st.binary(max_size=20),
    st.frozensets(st.integers(), max_size=3),
)
plain_json: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | clean_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(clean_text, inner, max_size=4),
    max_leaves=12,
)
any_value: Final[st.SearchStrategy[object]] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | nasty_text | oddities,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(nasty_text | st.integers() | st.floats() | st.none() | st.booleans(), inner, max_size=4)
        | st.builds(Odd, inner)
    ),
    max_leaves=8,
)


def _of_type(kind: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return st.one_of(*(_of_type(part, text) for part in get_args(kind)))
    if origin is tuple:
        parts = get_args(kind)
        if len(parts) == 2 and parts[1] is ...:
            return st.lists(_of_type(parts[0], text), max_size=3).map(tuple)
        return st.tuples(*(_of_type(part, text) for part in parts))
    if origin is dict:
        key, value = get_args(kind)
        return st.dictionaries(_of_type(key, text), _of_type(value, text), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return structs(kind, text)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: text,
        int: st.integers(0, 2**40),
        float: st.floats(0, 1e9),
        bool: st.booleans(),
        type(None): st.none(),
        UnsetType: st.just(UNSET),
        Raw: plain_json.map(jsonl.raw),
        datetime: times,
    }
    return simple[kind]


def structs(kind: type, text: st.SearchStrategy[str] = clean_text) -> st.SearchStrategy[Any]:
    """Values of a Struct, by the types of its fields."""
    hints = get_type_hints(kind)
    return st.builds(kind, *(_of_type(hints[name], text) for name in kind.__struct_fields__))  # type: ignore[attr-defined]


events: Final[st.SearchStrategy[Event]] = st.one_of(*(structs(kind) for kind in KINDS.values()))
nasty_events: Final[st.SearchStrategy[Event]] = st.one_of(*(structs(kind, nasty_text) for kind in KINDS.values()))


def line_of(seq: int, text: str = "", session: str = SESSION) -> bytes:
    """A stored line, with LF."""
    data = {"offset": seq, "text": text or f"text of {seq}"}
    ts = "2026-11-29T20:45:01.123456Z"
    return (
        msgspec.json.encode({"seq": seq, "ts": ts, "event": "tool.output.delta", "session": session, "data": data})
        + b"\n"
    )


def lines_of(first: int, count: int, text: str = "", session: str = SESSION) -> bytes:
    """Consecutive stored lines."""
    return b"".join(line_of(seq, text, session) for seq in range(first, first + count))


def drop_line_of(first: int, last: int, session: str = SESSION, reason: str = "buffer_full") -> bytes:
    """The line of a drop record, with LF."""
    data = {"first": first, "last": last, "count": last - first + 1, "reason": reason}
    ts = "2026-11-29T20:45:01.123456Z"
    event = "trace.drop.observed"
    return msgspec.json.encode({"seq": first, "ts": ts, "event": event, "session": session, "data": data}) + b"\n"
