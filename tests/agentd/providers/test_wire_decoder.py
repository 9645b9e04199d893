"""The short way through frames gives what the long one gives, on each wire: any framing, in pieces of any size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.anthropic import AnthropicDecoder
from agentd.providers.gemini import GeminiDecoder
from agentd.providers.openai_responses import OpenAIResponsesDecoder
from agentd.providers.sse import MAX_LINE_BYTES
from agentd.providers.stream import Failed, StreamEvent, Text
from agentd.providers.wire_decoder import WireDecoder
from tests.wire_cases import cut

Make = Callable[[Callable[[], str]], WireDecoder[object]]
MAKE: dict[str, Make] = {
    "anthropic": lambda new_id: AnthropicDecoder(new_id=new_id),  # type: ignore[dict-item,return-value]
    "gemini": lambda new_id: GeminiDecoder(new_id=new_id),  # type: ignore[dict-item,return-value]
    "openai-responses": lambda new_id: OpenAIResponsesDecoder(new_id=new_id),  # type: ignore[dict-item,return-value]
}
DATA: dict[str, list[object]] = {
    "anthropic": [
        {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        *({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} for text in ("a", "\ud83d", "é")),
        {"type": "content_block_stop", "index": 1}, {"type": "ping"}, {"type": "new"}, {"index": 0, "delta": {"text": "no type"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}, {"error": {"message": "e"}},
    ],
    "gemini": [
        *({"candidates": [{"content": {"parts": [{"text": text}]}}], "usageMetadata": {}} for text in ("a", "\ud83d")),
        {"candidates": [{"content": {"parts": [{"text": "t", "thought": True}]}}]}, {"new": 1}, [], {"error": {"message": "e"}},
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {}}}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "s", "thoughtSignature": "x"}]}}]},
        {"candidates": [{"finishReason": "STOP"}]},
    ],
    "openai-responses": [
        *({"type": "response.output_text.delta", "item_id": "m", "delta": text} for text in ("a", "\ud83d", "b")),
        {"type": "response.output_text.delta", "item_id": "n", "delta": "n"}, {"type": "response.new"}, {"type": "keepalive"},
        {"type": "response.output_item.done", "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}},
        {"type": "response.content_part.added"}, {"delta": "no type"}, {"type": "error", "message": "e"},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ],
}  # fmt: skip
NAMES = ["content_block_delta", "message_stop", "response.output_text.delta", "ping", "error", "new", "x: y", ""]
FORMS = [
    *("event: {name}\ndata: {data}\n\n", "data: {data}\n\n") * 3, "data: {data}\nevent: {name}\n\n",
    "event: {name}\n\n", ": comment\n\n", "id: 1\ndata: {data}\n\n", "data:{data}\n\n", "event: {name}\n{data}\n\n",
    "data: {data}\n",
    "event: {name}\nid: 1\ndata: {data}\n\n", "data: {data}\ndata: \n\n", "data: [DONE]\n\n", "data: {data}\n: comment\n", "\n",
    "event: {name}\ndata: {data}\nevent: {name}\n\n", "\ufeffdata: {data}\n\n", "error: {data}\n\n", "{data}\n\n",
    "data: \n\n", "dato: {data}\n\n",
]  # fmt: skip


def decode(wire: str, pieces: list[bytes]) -> list[StreamEvent]:
    ids = itertools.count()
    decoder = MAKE[wire](lambda: f"made_{next(ids)}")
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.end()


@pytest.mark.parametrize("wire", DATA)
@given(st.data(), st.sampled_from(["\n", "\n", "\r\n", "\r\n", "\r"]), st.lists(st.integers(0, 3000), max_size=8))
def test_any_framing_gives_in_any_pieces_what_it_gives_byte_by_byte(
    wire: str, draw: st.DataObject, line_end: str, cuts: list[int]
) -> None:
    frame = st.tuples(st.sampled_from(FORMS), st.sampled_from(NAMES), st.sampled_from(DATA[wire]), st.booleans())
    frames = draw.draw(st.lists(frame, min_size=1, max_size=9))
    body = "".join(
        form.format(name=name, data=json.dumps(value, ensure_ascii=True)).replace("\n", line_end if usual else "\n")
        for form, name, value, usual in frames
    ).encode()
    slowly = decode(wire, [body[at : at + 1] for at in range(len(body))])
    assert decode(wire, [body]) == slowly
    assert decode(wire, list(cut(body, cuts))) == slowly


@pytest.mark.parametrize("wire", DATA)
def test_a_line_that_is_too_long_is_one_also_when_it_comes_in_one_piece(wire: str) -> None:
    begun = b"data: " + json.dumps(DATA[wire][0]).encode() + b"\n\n"
    long = b'data: {"type":"new","x":"' + b"x" * MAX_LINE_BYTES + b'"}\n\n'
    for pieces in ([begun + long], [begun, long], [begun, long[:5000], long[5000:]]):
        last = decode(wire, pieces)[-1]
        assert isinstance(last, Failed)
        assert "longer than" in last.failure.message


@pytest.mark.parametrize("wire", DATA)
def test_what_is_whole_is_given_at_once(wire: str) -> None:
    text = next(value for value in DATA[wire] if '"a"' in json.dumps(value))
    for form in (
        "event: ping\ndata: {data}\n\n",
        "data: {data}\n\n",
        "data: {data}\r\n\r\n",
        "data: {data}\r\r",
        ": c\n\ndata: {data}\n\n",
    ):
        decoder = MAKE[wire](lambda: "id")
        one = form.format(data=json.dumps(text)).encode()
        for _ in range(3):
            for size in (len(one), 40, 1):
                events = [event for at in range(0, len(one), size) for event in decoder.feed(one[at : at + size])]
                assert [event for event in events if isinstance(event, Text)] == [Text("a")]
