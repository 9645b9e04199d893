"""The openai-chat wire's chunks as typed structs, and a lenient second reading for those that do not fit.

The first reading is msgspec's: one pass, only the fields named here, unknown ones skipped. What it refuses (another type in
a field, invalid UTF-8, a lone surrogate, a number too large) is read again by the standard library and taken field by
field: a field of the wrong shape counts as absent, and never costs its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

ABSENT: Final = Raw(b"")


class Part(Struct, gc=False):
    """An entry of a content list. `thinking` is text, or entries again."""

    type: str | None = None
    text: str | None = None
    thinking: str | list[Part] | None = None
    refusal: str | None = None


class Function(Struct, gc=False):
    """A piece of a call: arguments are text to append, or an object, which is complete."""

    name: str | None = None
    arguments: str | dict[str, Raw] | None = None


class ToolDelta(Struct, gc=False):
    """A piece of one of the calls. `extra_content` carries what must be sent back with the call (Gemini's signatures)."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: Function | None = None
    extra_content: Raw = ABSENT


class Detail(Struct, gc=False, omit_defaults=True):
    """An entry of reasoning_details: text or summary to show, data or a signature to send back."""

    type: str | None = None
    text: str | None = None
    summary: str | None = None
    data: str | None = None
    signature: str | None = None
    id: str | None = None
    format: str | None = None
    index: int | None = None


class Delta(Struct, gc=False):
    """What a chunk adds to a choice. Reasoning goes by four names; a chunk with several repeats the same text in them."""

    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_details: list[Detail] | None = None
    reasoning_opaque: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolDelta] | None = None
    function_call: Function | None = None


class Tokens(Struct, gc=False):
    """The details of a usage object, of input or of output."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class UsageDelta(Struct, gc=False):
    """A usage object under all the names its counters go by."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: Tokens | None = None
    completion_tokens_details: Tokens | None = None
    cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class Choice(Struct, gc=False):
    """One choice of a chunk. `message` is the whole of it, from servers that do not stream."""

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    usage: UsageDelta | None = None
    error: Raw = ABSENT


class Groq(Struct, gc=False):
    """Groq's own envelope."""

    usage: UsageDelta | None = None
    error: Raw = ABSENT


class Chunk(Struct, gc=False):
    """One frame's data."""

    choices: list[Choice] | None = None
    usage: UsageDelta | None = None
    x_groq: Groq | None = None
    error: Raw = ABSENT


# Raises msgspec.DecodeError or RecursionError for what only `lenient_chunk` can read.
strict_chunk: Final = msgspec.json.Decoder(Chunk).decode


def parse_json(data: bytes) -> Any:
    """Any JSON, read as tolerantly as possible: bad UTF-8 becomes U+FFFD, NaN null. Raises ValueError when it is none."""
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def lenient_chunk(data: bytes) -> Chunk | None:
    """The chunk in a frame's data; None when it is no JSON object. Never raises. Texts may hold lone surrogates."""
    try:
        value = parse_json(data)
    except ValueError:
        return None
    return _chunk(value) if isinstance(value, dict) else None


_T = TypeVar("_T")
_Object = dict[str, Any]


def _chunk(value: _Object) -> Chunk:
    return Chunk(
        choices=_list(value.get("choices"), _choice),
        usage=_maybe(value.get("usage"), _usage),
        x_groq=_maybe(value.get("x_groq"), _groq),
        error=_raw(value.get("error")),
    )


def _groq(value: _Object) -> Groq:
    return Groq(usage=_maybe(value.get("usage"), _usage), error=_raw(value.get("error")))


def _choice(value: _Object) -> Choice:
    return Choice(
        index=_int(value.get("index")),
        delta=_maybe(value.get("delta"), _delta),
        message=_maybe(value.get("message"), _delta),
        finish_reason=_str(value.get("finish_reason")),
        native_finish_reason=_str(value.get("native_finish_reason")),
        usage=_maybe(value.get("usage"), _usage),
        error=_raw(value.get("error")),
    )


def _delta(value: _Object) -> Delta:
    content, tools = value.get("content"), value.get("tool_calls")
    return Delta(
        content=_list(content, _part) if isinstance(content, list) else _str(content),
        reasoning_content=_str(value.get("reasoning_content")),
        reasoning=_str(value.get("reasoning")),
        reasoning_text=_str(value.get("reasoning_text")),
        reasoning_details=_list(value.get("reasoning_details"), _detail),
        reasoning_opaque=_str(value.get("reasoning_opaque")),
        refusal=_str(value.get("refusal")),
        tool_calls=_list([tools] if isinstance(tools, dict) else tools, _tool),
        function_call=_maybe(value.get("function_call"), _function),
    )


def _part(value: _Object | str) -> Part:
    if isinstance(value, str):
        return Part(type="text", text=value)
    thinking = value.get("thinking")
    return Part(
        type=_str(value.get("type")),
        text=_str(value.get("text")),
        thinking=_list(thinking, _part) if isinstance(thinking, list) else _str(thinking),
        refusal=_str(value.get("refusal")),
    )


def _detail(value: _Object) -> Detail:
    texts = {name: _str(value.get(name)) for name in ("type", "text", "summary", "data", "signature", "id", "format")}
    return Detail(**texts, index=_int(value.get("index")))


def _tool(value: _Object) -> ToolDelta:
    return ToolDelta(
        index=_int(value.get("index")),
        id=_str(value.get("id")),
        type=_str(value.get("type")),
        function=_maybe(value.get("function"), _function),
        extra_content=_raw(value.get("extra_content")),
    )


def _function(value: _Object) -> Function:
    arguments = value.get("arguments")
    if isinstance(arguments, dict):
        return Function(_str(value.get("name")), {str(key): _raw(item, null=True) for key, item in arguments.items()})
    return Function(_str(value.get("name")), _str(arguments))


def _usage(value: _Object) -> UsageDelta:
    counts = {name: _int(value.get(name)) for name in UsageDelta.__struct_fields__ if not name.endswith("_details")}
    return UsageDelta(
        **counts,
        prompt_tokens_details=_maybe(value.get("prompt_tokens_details"), _tokens),
        completion_tokens_details=_maybe(value.get("completion_tokens_details"), _tokens),
    )


def _tokens(value: _Object) -> Tokens:
    return Tokens(*(_int(value.get(name)) for name in Tokens.__struct_fields__))


def _str(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _int(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def _raw(value: object, *, null: bool = False) -> Raw:
    if value is None and not null:
        return ABSENT
    return Raw(json.dumps(value, separators=(",", ":")).encode())


def _maybe(value: object, build: Callable[[_Object], _T]) -> _T | None:
    return build(value) if isinstance(value, dict) else None


def _list(value: object, build: Callable[[Any], _T]) -> list[_T] | None:
    if not isinstance(value, list):
        return None
    return [build(item) for item in value if isinstance(item, dict) or (build is _part and isinstance(item, str))]
