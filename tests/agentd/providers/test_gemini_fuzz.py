"""The gemini decoder on anything at all: any bytes, JSON of any shape, framing of any kind, cut anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.gemini import GeminiDecoder
from agentd.providers.stream import Failed, Finished, StreamEvent, Text
from tests import wire_cases
from tests.wire_cases import assert_contract, bytewise, cut


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\r\n\r\n"


def decode(*pieces: bytes) -> list[StreamEvent]:
    return wire_cases.decode(lambda new_id: GeminiDecoder(new_id=new_id), pieces).events


STOP = frame({"candidates": [{"finishReason": "STOP"}]})


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    assert_contract(decode(*pieces))


KEYS = [
    *("candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "name", "args", "id"),
    *("partialArgs", "jsonPath", "stringValue", "numberValue", "boolValue", "nullValue", "willContinue", "index"),
    *("finishReason", "finishMessage", "usageMetadata", "promptTokenCount", "thoughtsTokenCount", "executableCode"),
    *("promptFeedback", "blockReason", "blockReasonMessage", "error", "message", "code", "status", "inlineData"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(
    ["STOP", "MAX_TOKENS", "MALFORMED_FUNCTION_CALL", "", "$.a", "$.a.b", "$.a[0]", "$.a[1].b", "\ud83d", "\ude00", "f", "\n"]
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
PARTIAL = st.dictionaries(
    st.sampled_from(["jsonPath", "stringValue", "numberValue", "boolValue", "willContinue"]), SCALARS
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["f", "g"]) | SCALARS,
        "args": JSON,
        "id": st.sampled_from(["x", "y"]) | SCALARS,
        "partialArgs": st.lists(PARTIAL, max_size=3) | JSON,
        "willContinue": st.booleans() | SCALARS,
    },
)
PARTS = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4) | st.fixed_dictionaries({"functionCall": CALLS})
CANDIDATES = st.fixed_dictionaries(
    {"content": st.fixed_dictionaries({"parts": st.lists(PARTS, max_size=3)})},
    optional={"finishReason": SCALARS, "index": st.just(0) | SCALARS},
)
CHUNKS = JSON | st.fixed_dictionaries({"candidates": st.lists(CANDIDATES, max_size=2)})


@given(st.lists(CHUNKS, max_size=6), st.booleans(), st.booleans(), st.lists(st.integers(0, 2000), max_size=10))
def test_json_of_any_shape_is_taken_and_cuts_change_nothing(
    chunks: list[object], framed: bool, stop: bool, cuts: list[int]
) -> None:
    body = b"".join(frame(value) if framed else json.dumps(value, indent=1).encode() + b"\n" for value in chunks)
    body += STOP if stop else b""
    events = decode(body)
    assert_contract(events)
    assert decode(*cut(body, cuts)) == events


FRAMED = st.sampled_from(
    [
        b"data: %b\n\n", b"data: %b\r\n\r\n", b"data:%b\n\n", b"data: %b\r\r", b": ping\n\ndata: %b\n\n", b"id: 1\ndata: %b\n\n",
        b"event: x\ndata: %b\r\n\r\n", b"data: %b\r\n\r\n\r\n", b"data: %b\r\n\r\n: ping\r\n\r\n", b"\xef\xbb\xbfdata: %b\n\n",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(FRAMED, st.booleans()), min_size=1, max_size=8), st.lists(st.integers(0, 2000), max_size=12))
def test_framing_of_any_kind_gives_the_same_texts_at_any_cut(framed: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    texts, body = [], b""
    for number, (form, alike) in enumerate(framed):
        form = framed[0][0] if alike else form  # runs of one form take the short way
        text = f"{number}\r\nü\u2028"
        body += form % json.dumps({"candidates": [{"content": {"parts": [{"text": text}]}}]}).encode()
        texts += [text] if number == 0 or not form.startswith(b"\xef") else []
    events = decode(body, STOP)
    assert [event.text for event in events if isinstance(event, Text)] == texts
    assert events[-1] == Finished("stop", "STOP")
    assert decode(*cut(body + STOP, cuts)) == events


@pytest.mark.parametrize("white", [b"\r", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\r"])
@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n"])
def test_white_space_of_json_that_ends_a_line_ends_it_also_in_a_row_of_frames(white: bytes, blank: bytes) -> None:
    whole = frame({"candidates": [{"content": {"parts": [{"text": "a"}]}}]}).replace(b"\r\n\r\n", blank)
    body = whole + whole.replace(b'"candidates": ', b'"candidates":' + white) + whole
    events = decode(whole, body, STOP)
    assert decode(*bytewise(whole + body + STOP)) == events
    assert [event for event in events if isinstance(event, Text)] == [Text("a")] * 3
    assert isinstance(events[-1], Failed)
