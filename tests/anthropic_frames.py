"""Streams of the anthropic wire written out by hand, event by event, for tests of its decoder."""

from __future__ import annotations

import itertools
import json
from typing import Any

from agentd.providers.anthropic import AnthropicDecoder
from agentd.providers.stream import Failed, Finished, StreamEvent, UsageReported
from tracewriter.events import ToolCall


def frame(kind: str, **fields: Any) -> bytes:
    """An event of a type, with its event line."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def message(**fields: Any) -> bytes:
    """The beginning."""
    return frame("message_start", message={"id": "m", "type": "message", "content": [], **fields})


def start(index: int, kind: str, **fields: Any) -> bytes:
    """A block begins."""
    return frame("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, **fields: Any) -> bytes:
    """A piece of a block."""
    return frame("content_block_delta", index=index, delta={"type": f"{kind}_delta", **fields})


def stop(index: int) -> bytes:
    """A block ends."""
    return frame("content_block_stop", index=index)


def end(reason: str | None = "end_turn", **usage: Any) -> bytes:
    """The reason to stop, usage and the end."""
    return frame("message_delta", delta={"stop_reason": reason}, usage=usage) + frame("message_stop")


def use(index: int, *pieces: str, id: str = "t", name: str = "f", **fields: Any) -> bytes:
    """A whole call, its arguments in pieces."""
    begun = start(index, "tool_use", id=id, name=name, **({"input": {}} | fields))
    return begun + b"".join(delta(index, "input_json", partial_json=piece) for piece in pieces) + stop(index)


def say(text: str, index: int = 0) -> bytes:
    """A whole text block."""
    return start(index, "text", text="") + delta(index, "text", text=text) + stop(index)


def decode(*pieces: bytes) -> list[StreamEvent]:
    """All events of a stream that is fed in these pieces."""
    ids = itertools.count()
    decoder = AnthropicDecoder(new_id=lambda: f"made_{next(ids)}")
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.end()


def calls(events: list[StreamEvent]) -> list[tuple[str, str, Any]]:
    """Ids, names and arguments of the calls to run."""
    return [(event.id, event.name, json.loads(bytes(event.input))) for event in events if isinstance(event, ToolCall)]


def assert_contract(events: list[StreamEvent]) -> None:
    """One usage, then one end, and nothing after it."""
    assert [isinstance(event, UsageReported) for event in events].count(True) == 1
    assert [isinstance(event, Finished | Failed) for event in events].count(True) == 1
    assert isinstance(events[-1], Finished | Failed)
    assert isinstance(events[-2], UsageReported)
