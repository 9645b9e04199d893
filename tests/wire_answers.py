"""A short good answer of each wire, and a choice of the catalog that speaks it: for tests of what all wires have in common."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from agentd.providers.catalog import Choice, ProviderOverride, resolve
from agentd.providers.openai_chat_request import ChatQuirks

KEY: Final = "sk-test-0123456789abcdefghij"


def sse(*frames: dict[str, Any], named: bool = False) -> bytes:
    """The frames as a stream; `named`: each with an event line of its type."""
    lines = [f"event: {frame['type']}\n" if named else "" for frame in frames]
    return "".join(f"{line}data: {json.dumps(frame)}\n\n" for line, frame in zip(lines, frames, strict=True)).encode()


_ITEM: Final = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
_PART: Final = {"type": "output_text", "text": "Hello", "annotations": []}
# Each says "Hello" for 3 tokens in and 2 out.
ANSWERS: Final[dict[str, bytes]] = {
    "openai-chat": sse(
        {"choices": [{"index": 0, "delta": {"content": "Hello"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
    )
    + b"data: [DONE]\n\n",
    "openai-responses": sse(
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**_ITEM, "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "Hello"},
        {"type": "response.output_item.done", "output_index": 0, "item": {**_ITEM, "content": [_PART]}},
        {
            "type": "response.completed",
            "response": {
                "id": "r",
                "status": "completed",
                "output": [{**_ITEM, "content": [_PART]}],
                "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
            },
        },
        named=True,
    ),
    "anthropic": sse(
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
        named=True,
    ),
    "gemini": sse(
        {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "Hello"}]}}]},
        {
            "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
        },
    ),
}  # fmt: skip
WIRES: Final = tuple(ANSWERS)


def choice_of(wire: str, base_url: str, *, key: str = KEY, think_split: bool = False, model: str = "m-1") -> Choice:
    """A provider of the configuration, called `there`, that speaks the wire at this address."""
    overrides = {"there": ProviderOverride(base_url=base_url, wire=wire, key_env="THERE_KEY")}
    choice = resolve(f"there/{model}", env={"THERE_KEY": key}, overrides=overrides)
    assert isinstance(choice, Choice)
    quirks = ChatQuirks(think_split=think_split)
    return msgspec.structs.replace(choice, spec=msgspec.structs.replace(choice.spec, quirks=quirks))
