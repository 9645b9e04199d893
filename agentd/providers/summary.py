"""A whole stream on one page: what `agentd decode-stream` prints last, and what tests compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from agentd.providers.stream import Failed, Finished, Reasoning, Refusal, StreamEvent, Text, UsageReported
from agentd.providers.tool_calls import CutCall
from tracewriter.events import ToolCall, Usage


class SummaryCall(Struct, frozen=True):
    """A call as it came. A cut one's input is {"_raw": what there was of it}."""

    id: str
    name: str
    input: Raw


class SummaryError(Struct, frozen=True):
    """What a stream failed for."""

    kind: str
    message: str


class Summary(Struct, frozen=True, tag_field="type", tag="summary"):
    """The field meanings are those of the events; `complete`: a terminal mark was seen; `finish`: the provider's word."""

    text: str
    reasoning: str
    refusal: str
    tool_calls: tuple[SummaryCall, ...]
    usage: Usage | None
    stop_reason: str
    finish: str | None
    complete: bool
    error: SummaryError | None


class Decoded(Protocol):
    """What a decoder knows of its stream beyond the events."""

    complete: bool
    calls: list[ToolCall | CutCall]


def summarise(events: Iterable[StreamEvent], decoder: Decoded) -> Summary:
    """The summary of a stream that has ended. Calls of a failed stream are left out: nobody may run them."""
    texts: dict[type, list[str]] = {Text: [], Reasoning: [], Refusal: []}
    usage: Usage | None = None
    stop_reason, finish, error = "error", None, None
    for event in events:
        if isinstance(event, Text | Reasoning | Refusal):
            texts[type(event)].append(event.text)
        elif isinstance(event, UsageReported):
            usage = event.usage
        elif isinstance(event, Finished):
            stop_reason, finish = event.stop_reason, event.finish
        elif isinstance(event, Failed):
            finish, error = event.finish, SummaryError(event.failure.kind, event.failure.message)
    return Summary(
        text="".join(texts[Text]),
        reasoning="".join(texts[Reasoning]),
        refusal="".join(texts[Refusal]),
        tool_calls=() if error else tuple(_call(call) for call in decoder.calls),
        usage=usage,
        stop_reason=stop_reason,
        finish=finish,
        complete=decoder.complete,
        error=error,
    )


def _call(call: ToolCall | CutCall) -> SummaryCall:
    if isinstance(call, ToolCall):
        return SummaryCall(call.id, call.name, call.input)
    return SummaryCall(call.id, call.name, Raw(msgspec.json.encode({"_raw": call.arguments})))
