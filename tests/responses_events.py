"""Events of the openai-responses wire as tests write them, and what a decoder makes of them."""

from __future__ import annotations

import json
from typing import Any

from agentd.providers.openai_responses import OpenAIResponsesDecoder
from agentd.providers.responses_kept import find_kept
from agentd.providers.stream import Failed, Opaque, Reasoning, Refusal, StreamEvent, Text
from tests import wire_cases
from tests.wire_cases import assert_contract
from tracewriter.events import ToolCall

DONE = b"data: [DONE]\n\n"
MESSAGE: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant"}
CALL: dict[str, Any] = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f"}


def frame(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": f"response.{kind}", **fields}).encode() + b"\n\n"


def text(delta: str, item_id: str | None = "m", **more: Any) -> bytes:
    return frame("output_text.delta", item_id=item_id, delta=delta, **more)


def arguments(delta: str, item_id: str | None = "fc", **more: Any) -> bytes:
    return frame("function_call_arguments.delta", item_id=item_id, delta=delta, **more)


def added(item: dict[str, Any], **more: Any) -> bytes:
    return frame("output_item.added", item=item, **more)


def ended(item: dict[str, Any], **more: Any) -> bytes:
    return frame("output_item.done", item=item, **more)


def said(words: str, kind: str = "output_text") -> list[dict[str, Any]]:
    return [{"type": kind, "refusal" if kind == "refusal" else "text": words}]


def completed(*output: dict[str, Any], kind: str = "completed", **more: Any) -> bytes:
    return frame(kind, response={"object": "response", "status": kind, "output": output, **more})


INCOMPLETE = completed(kind="incomplete", incomplete_details={"reason": "max_output_tokens"})


def decode(*pieces: bytes, think_split: bool = False) -> list[StreamEvent]:
    def make(new_id: Any) -> OpenAIResponsesDecoder:
        return OpenAIResponsesDecoder(think_split=think_split, new_id=new_id)

    events = wire_cases.decode(make, pieces).events
    assert_contract(events)
    return events


def joined(events: list[StreamEvent], kind: type[Text | Reasoning | Refusal] = Text) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def calls(events: list[StreamEvent]) -> list[tuple[str, str, Any]]:
    return [(event.id, event.name, json.loads(bytes(event.input))) for event in events if isinstance(event, ToolCall)]


def failed(events: list[StreamEvent]) -> Failed:
    assert isinstance(events[-1], Failed)
    return events[-1]


def kept(events: list[StreamEvent]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, Opaque):
            found = json.loads(bytes(event.data))["responses_output"]["items"]
            assert find_kept([event.data]) is not None
    return found
