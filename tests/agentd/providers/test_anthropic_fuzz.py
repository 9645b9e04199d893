"""The anthropic decoder on anything: bytes, JSON of any shape, events in any order, frames of any form."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.anthropic_event import Event, lenient_event, strict_event
from agentd.providers.stream import Failed, Reasoning, Text
from tests.anthropic_frames import assert_contract, calls, decode, delta, end, frame, message, start, stop, use


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_end_in_order(pieces: list[bytes]) -> None:
    assert_contract(decode(*pieces))


KEYS = [
    *Event.__struct_fields__, "type", "text", "thinking", "partial_json", "signature", "stop_reason", "stop_details", "id", "name",
    "input", "content", "data", "input_tokens", "output_tokens", "output_tokens_details", "thinking_tokens", "explanation", "model",
]  # fmt: skip
TYPES = st.sampled_from([
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping",
    "error", "message", "text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "text_delta", "thinking_delta",
    "input_json_delta", "signature_delta", "citations_delta",
])  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.integers(0, 3) | TYPES | st.sampled_from(["", "{", "}", '{"a":1}'])
    | st.text(st.characters() | st.sampled_from("\ud800\udc00\u2028"), max_size=4)
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries({"type": TYPES | LEAVES}, optional={key: JSON for key in KEYS if key != "type"})
EVENTS = JSON | st.fixed_dictionaries(
    {"type": TYPES},
    optional={
        "index": st.integers(0, 2) | LEAVES,
        "delta": PARTS | JSON,
        "content_block": PARTS | JSON,
        "message": PARTS | JSON,
        "usage": JSON,
        "error": JSON,
        "content": st.lists(PARTS, max_size=3) | JSON,
    },
)


@given(st.lists(EVENTS, max_size=10), st.booleans(), st.lists(st.integers(0, 3000), max_size=10))
def test_json_of_any_shape_is_taken_and_cuts_change_nothing(values: list[object], whole: bool, cuts: list[int]) -> None:
    body = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values) + (end() if whole else b"")
    events = decode(body)
    assert_contract(events)
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    assert decode(*(body[a:b] for a, b in itertools.pairwise(edges))) == events
    for event in events:  # what is given can be stored
        if isinstance(event, Text | Reasoning):
            event.text.encode()


def named(kind: str, data: str) -> bytes:
    return f"event: {kind}\ndata: {data}\n\n".encode()


ODD_TEXT = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"odd"}}'
ODD_FRAMES = [
    b"\n", b": comment\n\n", b"\r\n", b"id: 1\n", b"event: ping\n", b"data: [DONE]\n\n", b"event: ping\nid: 5\n\n",
    b'event: ping\n{"type":"ping"}\n\n', b"\xef\xbb\xbfdata: %s\n\n" % ODD_TEXT.encode(), b"data: %s\n" % ODD_TEXT.encode(),
    b"event: ping\ndata: %s\ndata: junk\n" % ODD_TEXT.encode(), b"event: ping\ndata: %s\n: junk\n\n" % ODD_TEXT.encode(),
    b"event: ping\ndata:%s\n\n" % ODD_TEXT.encode(), b"data: %s\n\n" % ODD_TEXT.encode(),
    named("ping", ODD_TEXT), named("ping", ODD_TEXT.replace(",", ",\r")), named("ping", ODD_TEXT.replace(",", ",\ndata: ")),
    named("content_block_delta", ODD_TEXT.replace('"type":"content_block_delta",', "")), named("new_type", ODD_TEXT),
    named("content_block_delta", ODD_TEXT.replace("odd", "\\ud83d")), named("content_block_delta", ODD_TEXT[:40]),
    named("ping", '{"message":"bare","code":1}'), frame("new_type", text="x"), frame("message_stop"),
    frame("error", error={"type": "api_error", "message": "e"}), frame("ping", error={"message": "e"}),
]  # fmt: skip
MANY = b"".join(delta(0, "text", text="long " * 60) for _ in range(4))


@pytest.mark.parametrize("odd", range(len(ODD_FRAMES)))
def test_many_frames_at_once_give_what_they_give_one_by_one(odd: int) -> None:
    frames = [MANY, ODD_FRAMES[odd], MANY.replace(b"long", b"more"), use(1, '{"a":', "1}") + end()]
    for first in range(2):  # the odd one between others, or at the beginning
        body = b"".join(frames[first:])
        expected = decode(*(body[at : at + 1] for at in range(len(body))))
        for joints in range(8):  # each way to join the frames to pieces
            pieces = [b""]
            for at, one in enumerate(frames[first:]):
                pieces = [*pieces[:-1], pieces[-1] + one] if joints >> at & 1 else [*pieces, one]
            assert decode(*pieces) == expected


@given(st.lists(st.sampled_from([
    message(), start(0, "text", text="x"), delta(0, "text", text="y"), start(0, "thinking", thinking=""), stop(0), stop(1),
    delta(0, "signature", signature="s"), delta(0, "thinking", thinking="t"), use(1, '{"a":', "1}"), use(1, '{"a"'), use(2),
    frame("message_delta", delta={"stop_reason": "tool_use"}), frame("message_stop"), frame("ping"),
    frame("error", error={"type": "api_error", "message": "e"}), start(1, "tool_use", id="t", name="f", input={}),
    delta(1, "input_json", partial_json='{"a":1}'), frame("message_delta", delta={"stop_reason": "max_tokens"}),
]), max_size=12))  # fmt: skip
def test_events_in_any_order_end_in_order_and_run_only_whole_calls(frames: list[bytes]) -> None:
    events = decode(*frames)
    assert_contract(events)
    if isinstance(events[-1], Failed):
        assert calls(events) == []
    assert all(arguments in ({}, {"a": 1}) for _, _, arguments in calls(events))
    ids = [call[0] for call in calls(events)]
    assert len(set(ids)) == len(ids)


@given(EVENTS)
def test_the_lenient_reading_of_what_is_well_formed_is_the_strict_one(value: object) -> None:
    data = json.dumps(value).encode()
    try:
        strict = strict_event(data)
    except Exception:  # noqa: BLE001 - whatever it refuses is the other one's
        return
    second = lenient_event(data)
    assert second is not None
    assert [getattr(second, name) == getattr(strict, name) for name in ("type", "index", "usage")] == [True] * 3
