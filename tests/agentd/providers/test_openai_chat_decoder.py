"""The openai-chat decoder beyond the recordings: dialects written out by hand, and any bytes at all."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.openai_chat import OpenAIChatDecoder
from agentd.providers.stream import (
    Failed,
    Finished,
    Opaque,
    Reasoning,
    Refusal,
    StreamEvent,
    Text,
    UsageReported,
)
from tracewriter.events import ToolCall, Usage

DONE = b"data: [DONE]\n\n"


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    return frame({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more})


def tool(index: int | None = None, name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, **more}
    return {"tool_calls": [call if index is None else {"index": index, **call}]}


def decode(*pieces: bytes, think_split: bool = False) -> list[StreamEvent]:
    ids = itertools.count()
    decoder = OpenAIChatDecoder(think_split=think_split, new_id=lambda: f"made_{next(ids)}")
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.end()


def calls(events: list[StreamEvent]) -> list[tuple[str, str, Any]]:
    return [(event.id, event.name, json.loads(bytes(event.input))) for event in events if isinstance(event, ToolCall)]


def failed(events: list[StreamEvent]) -> Failed:
    assert isinstance(events[-1], Failed)
    return events[-1]


def test_text_is_given_before_the_stream_goes_on() -> None:
    decoder = OpenAIChatDecoder()
    assert decoder.feed(chunk({"content": "a"})) == [Text("a")]
    assert decoder.feed(chunk({"reasoning": "b", "content": "c"})) == [Reasoning("b"), Text("c")]


def test_an_answer_of_a_server_that_does_not_stream_is_an_answer() -> None:
    message = {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": "{}"}}],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}}
    expected = [
        Text("hi"),
        ToolCall("t", "f", msgspec.Raw(b"{}")),
        UsageReported(Usage(1, 0)),
        Finished("tool_calls", "tool_calls"),
    ]
    assert decode(json.dumps(body, indent=2).encode()) == expected
    assert decode(frame(body)) == expected


def test_calls_without_ids_under_one_index_are_told_apart() -> None:
    events = decode(chunk(tool(0, "f", '{"a":1}')), chunk(tool(0, "f", '{"a":2}')), chunk(tool(0, "g", "{}")), DONE)
    assert calls(events) == [("made_0", "f", {"a": 1}), ("made_1", "f", {"a": 2}), ("made_2", "g", {})]


def test_calls_without_ids_or_indices_are_told_apart() -> None:
    both = {
        "tool_calls": [
            {"function": {"name": "f", "arguments": '{"a":1}'}},
            {"function": {"name": "g", "arguments": ""}},
        ]
    }
    events = decode(chunk(both), chunk({"tool_calls": [{"function": {"arguments": '{"b":2}'}}]}), DONE)
    assert calls(events) == [("made_0", "f", {"a": 1}), ("made_1", "g", {"b": 2})]


def test_a_name_repeated_without_an_id_is_still_a_repeat() -> None:
    events = decode(chunk(tool(0, "f", '{"a":')), chunk(tool(0, "f", "1")), chunk(tool(0, "f", "}")), DONE)
    assert calls(events) == [("made_0", "f", {"a": 1})]


def test_two_calls_with_one_id_get_two() -> None:
    events = decode(chunk(tool(0, "f", "{}", id="x")), chunk(tool(1, "g", "{}", id="x")), DONE)
    assert calls(events) == [("x", "f", {}), ("made_0", "g", {})]


def test_a_late_id_is_the_calls_id() -> None:
    assert calls(decode(chunk(tool(0, "f", "{")), chunk(tool(0, None, "}", id="late")), DONE)) == [("late", "f", {})]


def test_the_older_function_call_is_a_call() -> None:
    events = decode(
        chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
        chunk({"function_call": {"arguments": ":1}"}}, "function_call"),
    )
    assert calls(events) == [("made_0", "f", {"a": 1})]
    assert events[-1] == Finished("tool_calls", "function_call")


def test_what_the_provider_runs_itself_is_no_call_of_ours() -> None:
    searched = {"tool_calls": [{"index": 0, "id": "s", "type": "web_search", "web_search": {"q": 1}}]}
    events = decode(chunk(searched), chunk({"content": "found"}, "stop"), DONE)
    assert events == [Text("found"), UsageReported(None), Finished("stop", "stop")]


def test_arguments_become_one_compact_line() -> None:
    pretty = json.dumps({"text": "a\u2028\nb", "n": 12345678901234567890123, "deep": [{}]}, indent=2)
    [call] = [event for event in decode(chunk(tool(0, "f", pretty)), DONE) if isinstance(event, ToolCall)]
    assert b"\n" not in bytes(call.input)
    assert b" " not in bytes(call.input)
    assert json.loads(bytes(call.input)) == json.loads(pretty)


@pytest.mark.parametrize("arguments", ['{"s":"\\ud83d"}', '{"s":"\\ud83d\\ude00 \\udc00"}', '{"s":"a\nb"}'])
def test_arguments_that_are_nearly_json_are_mended(arguments: str) -> None:
    [call] = [event for event in decode(chunk(tool(0, "f", arguments)), DONE) if isinstance(event, ToolCall)]
    assert msgspec.json.decode(call.input)["s"] in ("\ufffd", "😀 \ufffd", "a\nb")


@pytest.mark.parametrize("arguments", ['{"a":', "{'a':1}", '{"a":1}}', "NaN", '{"a":1e999}', "[" * 5000, '"\\x"'])
@pytest.mark.parametrize("finish", ["tool_calls", "length", "stop"])
def test_arguments_that_are_no_json_are_reported_and_never_run(arguments: str, finish: str) -> None:
    events = decode(chunk(tool(0, "write", arguments, id="t"), finish), DONE)
    expected = Finished("length" if finish == "length" else "error", finish, ("write",))
    assert events == [UsageReported(None), expected]


def test_a_whole_call_beside_a_cut_one_runs() -> None:
    events = decode(chunk(tool(0, "f", "{}", id="a")), chunk(tool(1, "g", '{"x":', id="b"), "tool_calls"), DONE)
    assert calls(events) == [("a", "f", {})]
    assert events[-1] == Finished("tool_calls", "tool_calls", ("g",))


def test_no_call_of_a_failed_stream_runs() -> None:
    events = decode(chunk(tool(0, "f", "{}", id="a")))
    assert calls(events) == []
    assert failed(events).cut_tool_calls == ("f",)
    assert (failed(events).failure.kind, failed(events).retryable) == ("truncated", True)


@pytest.mark.parametrize(
    ("body", "message", "retryable"),
    [
        (frame({"error": "overloaded"}), "overloaded", True),
        (frame({"error": {"message": "bad", "code": "400"}}), "bad", False),
        (frame({"error": {"message": "no quota", "type": "insufficient_quota", "code": 429}}), "no quota", False),
        (frame({"object": "error", "message": "no such", "code": 40303}), "no such", False),
        (frame({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), "Overloaded", True),
        (
            frame({"detail": [{"loc": ["body", "model"], "msg": "field required"}]}),
            "field required (body.model)",
            False,
        ),
        (b"event: error\n" + frame({"message": "gone", "status": 503}), "gone", True),
        (b"event: error\ndata: upstream timeout\n\n", "upstream timeout", True),
        (b'error: {"message":"x"}\n\n', "x", False),
        (b'[{"error":{"code":503,"message":"busy"}}]\n', "busy", True),
        (b'{\n  "error": {\n    "message": "pretty"\n  }\n}\n', "pretty", False),
        (
            frame({"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "up"}}]}),
            "up",
            True,
        ),
        (frame({"choices": [], "x_groq": {"error": "over capacity"}}), "over capacity", True),
    ],
)
def test_errors_in_every_shape_are_failures(body: bytes, message: str, retryable: bool) -> None:
    for end in (b"", DONE):
        last = failed(decode(chunk({"content": "so far"}), body, end))
        assert (last.failure.kind, last.failure.message, last.retryable) == ("provider", message, retryable)


@pytest.mark.parametrize("nothing", [None, {}, "", False, []])
def test_an_error_field_that_says_nothing_is_none(nothing: object) -> None:
    assert decode(chunk({"content": "a"}, "stop", error=nothing))[-1] == Finished("stop", "stop")


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"), ("end_turn", "stop"), ("STOP", "stop"), ("eos", "stop"), ("something_new", "stop"),
        ("length", "length"), ("max_tokens", "length"), ("model_length", "length"),
        ("content_filter", "filter"), ("sensitive", "filter"), ("refusal", "refusal"), ("tool_calls", "stop"),
    ],
)  # fmt: skip
def test_reasons_to_stop_are_normalised_and_kept(finish: str, reason: str) -> None:
    assert decode(chunk({"content": "a"}, finish), DONE)[-1] == Finished(reason, finish)


@pytest.mark.parametrize(
    "finish", ["error", "network_error", "abort", "insufficient_system_resource", "upstream_failed"]
)
def test_reasons_that_mean_failure_are_failures(finish: str) -> None:
    last = failed(decode(chunk({"content": "a"}, finish), DONE))
    assert finish in last.failure.message
    assert (last.finish, last.retryable) == (finish, True)


def test_a_refusal_reaches_the_user() -> None:
    events = decode(chunk({"refusal": "I can"}), chunk({"refusal": "not"}, "stop"), DONE)
    assert events == [Refusal("I can"), Refusal("not"), UsageReported(None), Finished("refusal", "stop")]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(5, 2)),
        ({"prompt_tokens": 5.0, "completion_tokens": "2"}, Usage(5, 2)),
        ({"input_tokens": 5, "output_tokens": 2}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}, Usage(5, 2, 4)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1}},
            Usage(9, 2, 3, 1),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 16, "completion_tokens_details": {"reasoning_tokens": 5}},
            Usage(9, 7, None, None, 5),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16, "completion_tokens_details": {"reasoning_tokens": 5}},
            Usage(9, 7, None, None, 5),
        ),
        ({}, None), (None, None), ({"prompt_tokens": None}, None), ("?", None),
    ],
)  # fmt: skip
def test_usage_goes_by_many_names(usage: object, expected: Usage | None) -> None:
    places = [
        [chunk({"content": "a"}, "stop"), frame({"choices": [], "usage": usage})],
        [chunk({"content": "a"}, "stop", usage=usage)],
        [chunk({"content": "a"}, usage=usage), chunk({}, "stop", usage=usage)],
        [chunk({"content": "a"}, "stop", x_groq={"usage": usage})],
        [frame({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "usage": usage}]})],
    ]
    for pieces in places:
        assert decode(*pieces, DONE)[1:] == [UsageReported(expected), Finished("stop", "stop")]


def test_a_later_usage_replaces_an_earlier_one_and_zeros_do_not() -> None:
    usages = [{"prompt_tokens": 5, "completion_tokens": n} for n in (1, 2, 3)] + [
        {"prompt_tokens": 0, "completion_tokens": 0}
    ]
    events = decode(*(chunk({"content": "a"}, usage=usage) for usage in usages), DONE)
    assert events[-2] == UsageReported(Usage(5, 3))


def test_choice_zero_is_the_answer_and_another_alone_is_too() -> None:
    def of(index: int, text: str) -> bytes:
        return frame({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]})

    assert decode(of(1, "x"), of(0, "a"), of(1, "y"), of(0, "b"), DONE)[:2] == [Text("a"), Text("b")]
    assert decode(of(1, "x"), of(2, "-"), of(1, "y"), DONE)[:2] == [Text("x"), Text("y")]


def test_a_surrogate_pair_over_two_deltas_is_one_character() -> None:
    pieces = [
        b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ude00b"}}]}\n\n',
    ]
    assert decode(*pieces, DONE)[:2] == [Text("a"), Text("😀b")]
    assert decode(pieces[0], DONE)[:2] == [Text("a"), Text("\ufffd")]
    assert decode(pieces[1], DONE)[0] == Text("\ufffdb")


def test_frames_without_the_blank_line_between_them_are_frames() -> None:
    glued = chunk({"content": "a"}).rstrip(b"\n") + b"\n" + chunk({"content": "b"}, "stop")
    assert decode(glued, DONE)[:2] == [Text("a"), Text("b")]


def test_a_frame_that_cannot_be_read_is_not_passed_over_in_silence() -> None:
    events = decode(
        chunk({"content": "a"}), b'data: {"choices":[{"delta":{"cont\n\n', chunk({"content": "c"}, "stop"), DONE
    )
    assert events[:2] == [Text("a"), Text("c")]
    assert failed(events).failure.kind == "protocol"


def test_nothing_at_all_is_a_failure() -> None:
    for body in (b"", DONE, b": ping\n\n", b"\n\n\n", b"data: hello\n\n"):
        assert failed(decode(body)).failure.kind == "truncated"


def test_a_line_over_the_bound_is_a_failure_at_once() -> None:
    decoder = OpenAIChatDecoder()
    events = decoder.feed(chunk({"content": "a"}))
    for _ in range(9):
        events += decoder.feed(b"x" * 1024 * 1024)
    assert events[0] == Text("a")
    assert failed(events).failure.kind == "protocol"
    assert decoder.end() == []


def test_signed_reasoning_is_given_to_be_sent_back_and_unsigned_is_not() -> None:
    def details(**detail: object) -> bytes:
        return chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, **detail}]})

    events = decode(
        details(text="I "), details(text="think"), details(signature="sig"), chunk({"content": "x"}, "stop")
    )
    assert events[:2] == [Reasoning("I "), Reasoning("think")]
    [opaque] = [event for event in events if isinstance(event, Opaque)]
    kept = [{"type": "reasoning.text", "text": "I think", "signature": "sig", "index": 0}]
    assert json.loads(bytes(opaque.data)) == {"reasoning_details": kept}
    assert not [event for event in decode(details(text="a"), chunk({}, "stop")) if isinstance(event, Opaque)]


def test_what_belongs_to_a_call_is_given_to_be_sent_back_with_it() -> None:
    signed = tool(0, "f", "{}", id="t", extra_content={"google": {"thought_signature": "AA=="}})
    [opaque] = [event for event in decode(chunk(signed, "tool_calls")) if isinstance(event, Opaque)]
    assert json.loads(bytes(opaque.data)) == {"extra_content": {"t": {"google": {"thought_signature": "AA=="}}}}


@pytest.mark.parametrize("cuts", range(1, 8))
def test_inline_thinking_is_split_only_where_asked_and_at_any_cut(cuts: int) -> None:
    text = " <think>a < b</th </think>\n\nANSWER <think>not</think>"
    pieces = [chunk({"content": text[i : i + cuts]}) for i in range(0, len(text), cuts)]
    for split, expected in ((True, ("ANSWER <think>not</think>", "a < b</th ")), (False, (text, ""))):
        events = decode(*pieces, DONE, think_split=split)
        got = ["".join(e.text for e in events if isinstance(e, kind)) for kind in (Text, Reasoning)]
        assert tuple(got) == expected


def assert_contract(events: list[StreamEvent]) -> None:
    assert [type(event) for event in events if isinstance(event, UsageReported | Finished | Failed)] in (
        [UsageReported, Finished],
        [UsageReported, Failed],
    )
    assert isinstance(events[-1], Finished | Failed)
    msgspec.json.encode([event for event in events if not isinstance(event, ToolCall)])
    ids = [event.id for event in events if isinstance(event, ToolCall)]
    assert len(set(ids)) == len(ids)
    for event in events:
        if isinstance(event, ToolCall):
            assert b"\n" not in bytes(event.input)
            msgspec.json.decode(event.input)


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    assert_contract(decode(*pieces))


KEYS = [
    *(
        "choices",
        "delta",
        "message",
        "content",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_opaque",
    ),
    *(
        "tool_calls",
        "function",
        "function_call",
        "arguments",
        "name",
        "id",
        "index",
        "type",
        "finish_reason",
        "raw",
        "code",
    ),
    *("native_finish_reason", "usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens"),
    *("error", "text", "thinking", "refusal", "extra_content", "x_groq", "detail", "metadata", "signature"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(
    ["stop", "", "null", "{", "}", '{"a":1}', "\ud83d", "\ude00", "<think>", "</think>", "f", "\n", "\u2028"]
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
DELTAS = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5)
CHOICES = st.lists(st.fixed_dictionaries({"delta": DELTAS, "index": st.just(0)}), max_size=2)
CHUNKS = JSON | st.fixed_dictionaries({"choices": CHOICES})


@given(st.lists(CHUNKS, max_size=6), st.booleans(), st.lists(st.integers(0, 2000), max_size=10))
def test_json_of_any_shape_is_taken_and_cuts_change_nothing(chunks: list[object], done: bool, cuts: list[int]) -> None:
    body = b"".join(frame(value) for value in chunks) + (DONE if done else b"")
    events = decode(body)
    assert_contract(events)
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    assert decode(*(body[start:end] for start, end in itertools.pairwise(edges))) == events
    assert decode(*(frame(value) for value in chunks), DONE if done else b"") == events
    assert decode(*(frame(value).replace(b"\n", b"\r\n") for value in chunks), DONE if done else b"") == events
