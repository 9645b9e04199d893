"""The anthropic wire's stream events as one flat typed struct, decoded in one pass; unknown fields and types are skipped.

One struct for all types instead of a tagged union: a type that does not exist yet then decodes like any other, and an
event whose data lacks its type can take it from the event line.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from agentd.providers.chat_chunk import ABSENT, parse_json
from agentd.providers.lenient import lenient


class OutputDetails(Struct, gc=False):
    """What output tokens were spent on."""

    thinking_tokens: int | None = None


class UsageDelta(Struct, gc=False):
    """Counters, cumulative over the stream; null or absent ones say nothing."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class Block(Struct, gc=False):
    """A content block, as it starts or (in answers that are not streamed) whole."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = ABSENT
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class StopDetails(Struct, gc=False):
    """Why a refusal was one."""

    explanation: str | None = None


class Delta(Struct, gc=False):
    """What is added to a block, or (in message_delta) to the message."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class Message(Struct, gc=False):
    """The message as it starts, or whole."""

    type: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    usage: UsageDelta | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class Event(Struct, gc=False):
    """One frame's data."""

    type: str | None = None
    index: int | None = None
    delta: Delta | None = None
    content_block: Block | None = None
    message: Message | None = None
    usage: UsageDelta | None = None
    error: Raw = ABSENT


# Raises msgspec.DecodeError or RecursionError for what only `lenient_event` can read.
strict_event: Final = msgspec.json.Decoder(Event).decode


def lenient_event(data: bytes) -> Event | None:
    """The event in a frame's data; None when it is no JSON object. Never raises. Texts may hold lone surrogates."""
    try:
        return lenient(Event, parse_json(data))
    except ValueError:
        return None


def whole_message(data: bytes) -> Message | None:
    """A message that came in one piece; None when the data is none."""
    try:
        message = lenient(Message, parse_json(data))
    except ValueError:
        return None
    return message if message is not None and message.type == "message" else None
