"""One JSON object per line, whatever is put in: the boundary where odd values are made safe, marked and counted.

Lines end in LF and nothing else does: U+2028, U+0085 and form feeds are content. The fast path is msgspec; what it cannot
encode (lone surrogates, foreign objects, deep nesting, NaN, huge integers) takes the slow path here, which never raises.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from tracewriter.config import MAX_LINE

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH: Final = 64  # deeper nesting breaks decoders (msgspec near 1,000, others earlier)
_CUTS: Final = (64 * 1024, 16 * 1024, 4 * 1024, 1024, 200)  # characters kept of a field, tried in this order
MAX_ITEMS: Final = 100_000  # values walked of one body, so that a hostile object cannot hold up the run
_NAME_CHARS: Final = 200  # of a foreign type's name
_type_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
_LOOK_BACK: Final = 200  # a cut backs off to white space at most so far

encoder: Final = msgspec.json.Encoder()
decoder: Final = msgspec.json.Decoder()
_syntax: Final = msgspec.json.Decoder(Raw)
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


class Repairs:
    """Counts what had to be changed to make a value encodable."""

    __slots__ = ("count", "items")

    def __init__(self) -> None:
        self.count = 0
        self.items = 0

    def mark(self, text: str) -> str:
        """Count one repair and give its visible mark."""
        self.count += 1
        return text


def raw(value: object) -> Raw:
    """Any value, or JSON text in bytes, as one compact line of valid JSON. Never raises; text that is no JSON becomes a string."""
    if issubclass(type(value), (bytes, bytearray, memoryview)):  # isinstance() asks a foreign object for its __class__
        value = loads(bytes(value))  # type: ignore[call-overload]
    try:
        encoded = encoder.encode(value)
        # NaN is written as null, and Raw inside is passed through as it is: only then look closer
        if b"null" not in encoded and not too_deep(encoded) and is_json(encoded):
            return Raw(encoded)
    except Exception:  # noqa: BLE001 - encoding runs foreign code (properties, time zones), which may raise anything
        pass
    return Raw(encoder.encode(to_json(value, Repairs())))


def is_json(data: bytes | Raw) -> bool:
    """Valid JSON in one line; takes a third of the time of encoding it."""
    try:
        _syntax.decode(data)
        bytes(data).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return b"\n" not in bytes(data)


def too_deep(data: bytes) -> bool:
    """Whether JSON text is nested deeper than MAX_DEPTH: strings are taken out, then the innermost brackets, level by level."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRINGS.sub(b"", data).translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def loads(data: bytes) -> JsonValue:
    """JSON text to plain values, accepting what strict decoders refuse (a BOM, lone surrogate escapes, huge integers).

    What is no JSON at all comes back as the text itself, repaired to valid Unicode.
    """
    if data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    try:
        value: JsonValue = decoder.decode(data)
        return value
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    text = data.decode("utf-8", "replace")
    try:
        return to_json(json.loads(text), Repairs())
    except (ValueError, RecursionError):
        return text


def to_json(value: object, repairs: Repairs, depth: int = 0) -> JsonValue:
    """A copy of any value made of plain JSON types, every repair counted. Never raises, bounded in depth and size."""
    repairs.items += 1
    try:
        return _plain(value, repairs, depth)
    except Exception:  # noqa: BLE001 - looking at a foreign value runs its code, which may raise anything
        return _unrecordable(value, repairs)


def _unrecordable(value: object, repairs: Repairs) -> str:
    # repr() is foreign code: it may raise or run for long, so only the type is named, past what a metaclass makes of that
    return repairs.mark(f"[cannot be recorded: {cut_text(_type_name(type(value)), _NAME_CHARS)}]")


def _plain(value: object, repairs: Repairs, depth: int) -> JsonValue:
    # a subclass may override its own conversions: always those of the built-in type
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return safe_str(str.__str__(value), repairs)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -(2**63) <= number < 2**64 else repairs.mark(_digits(number))
    if isinstance(value, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else repairs.mark(str(real))
    if depth >= MAX_DEPTH or repairs.items > MAX_ITEMS:
        return repairs.mark("[left out: nested too deep]" if depth >= MAX_DEPTH else "[left out: too many values]")
    return _container(value, repairs, depth)


def _container(value: object, repairs: Repairs, depth: int) -> JsonValue:
    match value:
        case Raw():
            return to_json(loads(bytes(value)), repairs, depth)
        case Struct():
            fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return {name: to_json(item, repairs, depth + 1) for name, item in fields if item is not UNSET}
        case dict():
            return _object(dict.items(value), repairs, depth)
        case Mapping():
            return _object(value.items(), repairs, depth)
        case list() | tuple() | set() | frozenset():
            return _array(value, repairs, depth)
        case bytes() | bytearray() | memoryview():
            return repairs.mark(f"[{len(value)} bytes]")
        case datetime() | date() | time():
            return value.isoformat()
        case Enum():
            return to_json(value.value, repairs, depth + 1)
        case _:
            return _unrecordable(value, repairs)


def _array(items: Iterable[object], repairs: Repairs, depth: int) -> list[JsonValue]:
    out: list[JsonValue] = []
    for item in items:
        if repairs.items > MAX_ITEMS:
            out.append(repairs.mark("[left out: too many values]"))
            break
        out.append(to_json(item, repairs, depth + 1))
    return out


def _object(items: Iterable[tuple[object, object]], repairs: Repairs, depth: int) -> dict[str, JsonValue]:
    out: dict[str, JsonValue] = {}
    for key, item in items:
        if repairs.items > MAX_ITEMS:
            out["[left out]"] = repairs.mark("too many values")
            break
        out[_key(key, repairs)] = to_json(item, repairs, depth + 1)
    return out


def _key(key: object, repairs: Repairs) -> str:
    if isinstance(key, str):
        return safe_str(str.__str__(key), repairs)
    if isinstance(key, int):
        return _digits(int.__int__(key))
    if isinstance(key, float):
        return str(float.__float__(key))
    return "None" if key is None else f"[{cut_text(_type_name(type(key)), _NAME_CHARS)}]"


def _digits(number: int) -> str:
    """str(int) raises beyond 4,300 digits; hexadecimal does not."""
    return str(number) if number.bit_length() < 10_000 else hex(number)


def safe_str(text: str, repairs: Repairs) -> str:
    """The text with every lone surrogate replaced by U+FFFD, so that it is valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        repairs.count += 1
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


_CUT_MARK: Final = re.compile(r"…\[cut: ([0-9]{1,15}) characters\]\Z")


def cut_text(text: str, limit: int) -> str:
    """At most about `limit` code points, backed off to white space where one is near, with the original length told: the
    first one, when the text had been cut before."""
    if len(text) <= limit:
        return text
    before = _CUT_MARK.search(text, len(text) - 64)
    length = before[1] if before else len(text)
    end = limit
    for at in range(limit, max(limit - _LOOK_BACK, 1), -1):
        if text[at - 1].isspace():
            end = at
            break
    return f"{text[:end]}…[cut: {length} characters]"


_MARK_BYTES: Final = 64  # a mark has less


def cut_text_to_bytes(text: str, limit: int) -> str:
    """The same with at most `limit` bytes of UTF-8, mark and all. The text is valid Unicode; a limit has room for the mark."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return cut_text(text, len(data[: limit - _MARK_BYTES].decode(errors="ignore")))


def _shrink(value: JsonValue, limit: int) -> JsonValue:
    if isinstance(value, str):
        return cut_text(value, limit)
    if isinstance(value, list):
        return [_shrink(item, limit) for item in value]
    if isinstance(value, dict):
        return {cut_text(name, limit): _shrink(item, limit) for name, item in value.items()}
    return value


def plain(data: object) -> dict[str, JsonValue]:
    """A record's data made of plain JSON types, the number of repairs in it. Never raises."""
    repairs = Repairs()
    value = to_json(data, repairs)
    body: dict[str, JsonValue] = value if isinstance(value, dict) else {"value": value}
    if repairs.count:
        body["repaired"] = repairs.count
    return body


def encode_safely(data: object, limit_bytes: int = MAX_LINE) -> bytes:
    """A record's data as JSON of at most `limit_bytes`, repaired and cut as needed, the number of repairs in it. Never raises."""
    body = plain(data)
    encoded = encoder.encode(body)
    whole = len(encoded)
    for limit in _CUTS:
        if len(encoded) <= limit_bytes:
            return encoded
        body["cut_from_bytes"] = whole
        encoded = encoder.encode(_shrink(body, limit))
    if len(encoded) <= limit_bytes:
        return encoded
    return encoder.encode({"cut_from_bytes": whole, "left_out": "too many values for one line"})
