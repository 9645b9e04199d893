"""The openai-responses decoder takes any bytes and any JSON, and where the bytes are cut changes nothing."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.responses_events import decode, kept
from tests.wire_cases import cut


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    decode(*pieces)


TYPES = [
    f"response.{kind}"
    for kind in (
        "created",
        "output_item.added",
        "output_item.done",
        "content_part.done",
        "output_text.delta",
        "output_text.done",
        "refusal.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "custom_tool_call_input.delta",
        "completed",
        "incomplete",
        "failed",
        "error",
    )
] + ["error", "ping"]
KEYS = [
    "type",
    "item",
    "item_id",
    "output_index",
    "content_index",
    "summary_index",
    "delta",
    "text",
    "arguments",
    "input",
    "name",
    "id",
    "call_id",
    "part",
    "refusal",
    "response",
    "output",
    "status",
    "error",
    "message",
    "code",
    "usage",
    "input_tokens",
    "content",
    "summary",
    "encrypted_content",
    "incomplete_details",
    "reason",
    "object",
    "phase",
    "model",
    "detail",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(
        [
            "completed",
            "incomplete",
            "message",
            "function_call",
            "reasoning",
            "output_text",
            "response",
            "a",
            "b",
            "",
            "{",
            "}",
            '{"a":1}',
            "\ud83d",
            "\ude00",
            "\n",
            "\u2028",
            0,
            1,
        ]
    )
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=14,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["output_text", "refusal", "reasoning_text"]), "text": st.text(max_size=4)}
)
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "reasoning", "custom_tool_call", "mcp_call"])},
    optional={
        "id": st.sampled_from("ab"),
        "call_id": st.sampled_from("cd"),
        "name": JSON,
        "arguments": st.sampled_from(["{}", "{", ""]) | JSON,
        "content": st.lists(PARTS, max_size=2) | JSON,
        "summary": st.lists(PARTS, max_size=2),
        "encrypted_content": JSON,
        "status": JSON,
    },
)
EVENTS = JSON | st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional={
        "item": ITEMS,
        "item_id": st.sampled_from("ab"),
        "output_index": st.integers(0, 2),
        "delta": st.text(max_size=4),
        "text": JSON,
        "arguments": st.sampled_from(["{}", "{", ""]),
        "part": PARTS,
        "content_index": st.integers(0, 1),
        "response": JSON
        | st.fixed_dictionaries({"output": st.lists(ITEMS, max_size=3), "status": JSON, "usage": JSON}),
    },
)


@given(st.lists(EVENTS, max_size=8), st.lists(st.integers(0, 2000), max_size=10))
def test_json_of_any_shape_is_taken_and_cuts_change_nothing(values: list[object], cuts: list[int]) -> None:
    body = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    events = decode(body)
    kept(events)
    assert decode(*cut(body, cuts)) == events
