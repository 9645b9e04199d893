"""The JSON of a tool call's arguments, from whatever text a model or its server wrote."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from msgspec import Raw


def mend(text: str) -> str:
    """The text with surrogate halves joined where they meet and replaced by U+FFFD where they do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def tool_input(text: str) -> Raw | None:
    """One compact line of valid JSON for the arguments of a call; None when they are no JSON, which is what a cut leaves.

    Empty and null mean no arguments: {}. An object written as JSON inside a JSON string is unwrapped, once.
    """
    if not text.strip() or text.strip() == "null":
        return Raw(b"{}")
    value = _parse(text)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        inner = _parse(value)
        if isinstance(inner, dict):
            value = inner
    return None if value is _NOT_JSON else _encode(value)


class _NotJson:
    pass


_NOT_JSON = _NotJson()


def _parse(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    # What msgspec refuses and JSON allows: lone surrogate escapes, raw control characters in strings, huge numbers.
    try:
        return json.loads(mend(text), strict=False, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _refuse(name: str) -> Any:
    raise ValueError(name)  # NaN and the infinities are no JSON


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(number)  # too large for any program to take: encoding it again would give null
    return value


def _encode(value: Any) -> Raw | None:
    try:
        return Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass
    try:
        return Raw(mend(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode())
    except (ValueError, RecursionError):
        return None
