"""The openai-responses wire's stream events as one flat typed struct, decoded in one pass; unknown fields and types are skipped.

One struct for all types, as the type may stand anywhere in the object, be new, or be only on the event line. The texts of
an answer come up to four times (deltas, the part's end, the item's end, the response's end): all of them decode to Parts.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from agentd.providers.chat_chunk import ABSENT, Tokens, UsageDelta, parse_json
from agentd.providers.lenient import lenient
from agentd.providers.tool_input import tool_input


class Part(Struct, gc=False):
    """A piece of an item's content or of its summary."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class Item(Struct, gc=False):
    """An output item, as it begins or whole. `input` is the free text of a custom tool's call."""

    type: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    status: str | None = None
    phase: str | None = None


class UsageObject(Struct, gc=False):
    """Counters under this wire's names, and under those of openai-chat, which some servers keep."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: Tokens | None = None
    output_tokens_details: Tokens | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Tokens | None = None
    completion_tokens_details: Tokens | None = None

    def delta(self) -> UsageDelta:
        """The same counters for the meter."""
        return UsageDelta(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.total_tokens,
            prompt_tokens_details=self.input_tokens_details or self.prompt_tokens_details,
            completion_tokens_details=self.output_tokens_details or self.completion_tokens_details,
        )


class Incomplete(Struct, gc=False):
    """Why a response is not whole."""

    reason: str | None = None


class Response(Struct, gc=False):
    """The response as it begins, or at its end, with all of its output."""

    object: str | None = None
    model: str | None = None
    status: str | None = None
    error: Raw = ABSENT
    incomplete_details: Incomplete | None = None
    output: list[Item] | None = None
    usage: UsageObject | None = None


class Event(Struct, gc=False):
    """One frame's data. `object` is there when the frame is a whole response and no event at all."""

    type: str | None = None
    delta: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item: Item | None = None
    part: Part | None = None
    text: str | None = None
    arguments: str | None = None
    input: str | None = None
    refusal: str | None = None
    name: str | None = None
    response: Response | None = None
    object: str | None = None
    error: Raw = ABSENT


class _WithItem(Struct):
    item: Raw


class _Output(Struct):
    output: list[Raw]


class _WithOutput(Struct):
    response: _Output


# Raises msgspec.DecodeError or RecursionError for what only `lenient_event` can read.
strict_event: Final = msgspec.json.Decoder(Event).decode


def lenient_event(data: bytes) -> Event | None:
    """The event in a frame's data; None when it is no JSON object. Never raises. Texts may hold lone surrogates."""
    try:
        value = parse_json(data)
    except ValueError:
        return None
    if isinstance(value, dict):
        _straighten(value)
        for item in _items_in(value):
            _straighten(item)
    return lenient(Event, value)


def raw_item(data: bytes) -> Raw | None:
    """The item in a frame's data as it came, on one line; None when there is none."""
    try:
        return tool_input(_text(msgspec.json.decode(data, type=_WithItem).item))
    except (msgspec.DecodeError, RecursionError):
        return None


def raw_output(data: bytes) -> list[Raw | None]:
    """The same for all items of the response in a frame's data."""
    try:
        return [tool_input(_text(raw)) for raw in msgspec.json.decode(data, type=_WithOutput).response.output]
    except (msgspec.DecodeError, RecursionError):
        return []


def _text(raw: Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")


def _items_in(value: dict[str, Any]) -> list[dict[str, Any]]:
    response = value.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    return [
        item for item in (value.get("item"), *(output if isinstance(output, list) else ())) if isinstance(item, dict)
    ]


def _straighten(value: dict[str, Any]) -> None:
    """Arguments as an object and content as a bare string are what some servers send; here they are what the wire says."""
    arguments, content = value.get("arguments"), value.get("content")
    if isinstance(arguments, dict):
        try:
            value["arguments"] = json.dumps(arguments)
        except RecursionError:
            value["arguments"] = "{"  # never runs
    if isinstance(content, str):
        value["content"] = [{"type": "output_text", "text": content}]
