"""What a model's answer is made of, whichever provider sent it. Nothing above this module learns which one it was.

A stream is any number of Text, Reasoning, Refusal, ToolCall and Retry events, then exactly one UsageReported, then exactly
one Finished or Failed, and nothing after it. Failure is an event, never an exception: what was shown stays shown. A tool
call that the end of the stream cut is named in Failed.cut_tool_calls and never becomes a ToolCall.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, TypeAlias

from msgspec import Raw, Struct

from agentd.messages import Message
from tracewriter.events import Failure, ToolCall, Usage


class Text(Struct, frozen=True, gc=False):
    """A piece of the answer, in order."""

    text: str


class Reasoning(Struct, frozen=True, gc=False):
    """A piece of the model's visible reasoning, in order."""

    text: str


class Refusal(Struct, frozen=True, gc=False):
    """A piece of the model's refusal, in order. It must reach the user."""

    text: str


class Opaque(Struct, frozen=True):
    """Provider data that must be sent back unchanged with the conversation (signatures, encrypted reasoning)."""

    data: Raw


class Retry(Struct, frozen=True):
    """Nothing was shown yet and the request will be sent again, as attempt number `attempt`, after `wait_s`."""

    attempt: int
    wait_s: float
    failure: Failure


class UsageReported(Struct, frozen=True):
    """What the request used; None when the provider did not say."""

    usage: Usage | None


class Finished(Struct, frozen=True):
    """The stream ended in order. stop_reason: stop, length, tool_calls, refusal, filter, error. finish: the provider's word.

    cut_tool_calls names the calls whose arguments a limit cut, or that were no JSON: they are reported, and never ToolCalls.
    """

    stop_reason: str
    finish: str | None
    cut_tool_calls: tuple[str, ...] = ()


class Failed(Struct, frozen=True):
    """The stream ended in an error. `retryable` says that sending the same request again may work."""

    failure: Failure
    retryable: bool = False
    cut_tool_calls: tuple[str, ...] = ()
    finish: str | None = None


StreamEvent: TypeAlias = Text | Reasoning | Refusal | Opaque | ToolCall | Retry | UsageReported | Finished | Failed


class ToolSpec(Struct, frozen=True):
    """A tool as the model is told of it. `schema` is a JSON Schema of its input, on one line."""

    name: str
    description: str
    schema: Raw


class ModelRequest(Struct, frozen=True):
    """One request to a model. `model` is the provider's own id, without our provider prefix."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None


class Decoder(Protocol):
    """Sans-IO: takes the body's bytes, cut anywhere, and gives events. After the last event it gives none."""

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that became complete with these bytes."""

    def end(self) -> list[StreamEvent]:
        """The body is over: what was still open, then usage and the end. Always leaves the stream ended."""


class Provider(Protocol):
    """A model that can be asked."""

    @property
    def name(self) -> str:
        """The provider's name in the catalog, for records and prices."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Send the request and yield its events. Closing the generator closes the connection at once."""
