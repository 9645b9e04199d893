"""The conversation, as every provider builder, the store and the context budget see it: no provider's words in here."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from tracewriter.events import (
    Event,
    ModelRequestFailed,
    ModelRequestFinished,
    RunExecuteStarted,
    ToolCall,
    ToolCallFinished,
    UnknownEvent,
)


class UserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    """What a person (or the loop, as a hint) said."""

    text: str


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant", omit_defaults=True):
    """One reply of the model. `opaque` is what its provider must get back unchanged (signatures, encrypted reasoning)."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    opaque: tuple[Raw, ...] = ()


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool", omit_defaults=True):
    """The result of one tool call, linked to it by `call_id`."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """One line of JSON for the store and the record; its length is the message's size in the request budget."""
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """The inverse of encode_message. Raises msgspec.ValidationError for anything else."""
    return _decoder.decode(data)


def message_of(event: Event | UnknownEvent) -> Message | None:
    """The message that an event is in the conversation; None when it is none.

    The daemon takes its messages from here, and whoever reads a record finds the same ones again. What only goes back to
    the provider (`opaque`) is in no event.
    """
    if isinstance(event, RunExecuteStarted):
        return UserMessage(event.text)
    if isinstance(event, ModelRequestFinished):
        return AssistantMessage(event.text or event.refusal or "", event.reasoning, event.tool_calls)
    if isinstance(event, ModelRequestFailed) and event.text:
        # What was shown stays in the conversation. Its calls never ran, so they are not part of it.
        return AssistantMessage(event.text)
    if isinstance(event, ToolCallFinished):
        return ToolMessage(event.id, event.name, event.output, event.is_error)
    return None
