"""The anthropic decoder beyond the recordings: dialects written out by hand, and any bytes at all."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from agentd.providers.anthropic import AnthropicDecoder
from agentd.providers.stream import (
    Failed,
    Finished,
    Opaque,
    Reasoning,
    StreamEvent,
    Text,
    UsageReported,
)
from agentd.providers.tool_calls import CutCall
from tests.anthropic_frames import calls, decode, delta, end, frame, message, say, start, stop, use
from tracewriter.events import MAX_TOKENS, ToolCall, Usage


def failed(events: list[StreamEvent]) -> Failed:
    assert isinstance(events[-1], Failed)
    return events[-1]


def test_text_is_given_before_the_stream_goes_on() -> None:
    decoder = AnthropicDecoder()
    assert decoder.feed(message() + start(0, "text", text="a") + delta(0, "text", text="b")) == [Text("a"), Text("b")]
    assert decoder.feed(start(1, "thinking", thinking="c") + delta(1, "thinking", thinking="d")) == [
        Reasoning("c"),
        Reasoning("d"),
    ]


def test_blocks_that_overlap_are_kept_apart_by_their_index() -> None:
    body = (
        message()
        + start(0, "text", text="")
        + start(1, "tool_use", id="a", name="f", input={})
        + start(2, "tool_use", id="b", name="g", input={})
        + delta(2, "input_json", partial_json='{"y":')
        + delta(1, "input_json", partial_json='{"x":1}')
        + delta(0, "text", text="hi")
        + delta(2, "input_json", partial_json="2}")
        + stop(0)
        + stop(1)
        + stop(2)
        + end("tool_use")
    )
    events = decode(body)
    assert events[0] == Text("hi")
    assert calls(events) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_an_index_used_again_is_another_block() -> None:
    events = decode(message() + use(0, '{"a":1}', id="a") + use(0, '{"a":2}', id="b") + end("tool_use"))
    assert calls(events) == [("a", "f", {"a": 1}), ("b", "f", {"a": 2})]


@pytest.mark.parametrize(
    "kind",
    ["server_tool_use", "mcp_tool_use", "web_search_tool_result", "tool_of_the_future", "compaction", "fallback"],
)
def test_what_the_provider_runs_itself_is_no_call_of_ours(kind: str) -> None:
    block = use(0, '{"q":1}').replace(b'"tool_use"', b'"%s"' % kind.encode())
    content = start(1, "web_search_tool_result", tool_use_id="t", content=[{"type": "web_search_result", "url": "u"}])
    assert decode(message() + block + content + stop(1) + say("found", 2) + end()) == [
        Text("found"),
        UsageReported(None),
        Finished("stop", "end_turn"),
    ]


def test_events_and_deltas_that_do_not_exist_yet_are_passed_over() -> None:
    new = (
        frame("content_block_note", index=[], note={"text": "x"}) + delta(0, "sparkle", text="no") + frame("heartbeat")
    )
    citation = delta(0, "citations", citation={"type": "char_location", "cited_text": "c"})
    assert decode(message() + new + citation + say("a") + new + end())[0] == Text("a")
    assert decode(message() + new + say("a") + new + end())[-1] == Finished("stop", "end_turn")


def test_a_ping_is_no_progress() -> None:
    decoder = AnthropicDecoder()
    decoder.feed(frame("ping") + b": comment\n\n" + frame("heartbeat"))
    assert decoder.frames == 0
    decoder.feed(message() + say("a"))
    assert decoder.frames == 4


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("pause_turn", "length"),
        ("model_context_window_exceeded", "length"), ("refusal", "refusal"), ("tool_use", "stop"),
        ("content_filter", "filter"), ("something_new", "stop"),
    ],
)  # fmt: skip
def test_reasons_to_stop_are_normalised_and_kept(reason: str, expected: str) -> None:
    assert decode(message() + say("a") + end(reason))[-1] == Finished(expected, reason)


@pytest.mark.parametrize("reason", ["error", "network_error", "aborted", "upstream_failed"])
def test_reasons_that_mean_failure_are_failures(reason: str) -> None:
    last = failed(decode(message() + say("a") + end(reason)))
    assert reason in last.failure.message
    assert last.retryable


USAGE = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7, "output_tokens": 1}


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (USAGE, {"output_tokens": 12}, Usage(110, 12, 100, 7)),
        (USAGE, {**USAGE, "output_tokens": 12}, Usage(110, 12, 100, 7)),
        (USAGE, dict.fromkeys(USAGE), Usage(110, 1, 100, 7)),
        (USAGE, {"cache_read_input_tokens": 0, "output_tokens": 8}, Usage(10, 8, 0, 7)),
        ({"input_tokens": 5}, {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}, Usage(5, 9, None, None, 4)),
        ({"input_tokens": 5, "output_tokens": "2"}, {"output_tokens": 9.0}, Usage(5, 9)),
        ({"input_tokens": -1, "output_tokens": True}, {"output_tokens": 9}, Usage(0, 9)),
        ({"input_tokens": 10**30}, {"output_tokens": 9}, Usage(0, 9)),
        ({"input_tokens": MAX_TOKENS, "cache_read_input_tokens": 5}, {}, Usage(MAX_TOKENS, 0, 5)),
        ({}, {}, None), (None, None, None), ("?", [], None),
    ],
)  # fmt: skip
def test_usage_is_all_in_and_the_last_word_on_each_counter_holds(first: Any, last: Any, expected: Usage | None) -> None:
    final = frame("message_delta", delta={"stop_reason": "end_turn"}, usage=last) + frame("message_stop")
    assert decode(message(usage=first) + say("a") + final)[1:] == [
        UsageReported(expected),
        Finished("stop", "end_turn"),
    ]


@pytest.mark.parametrize(
    ("kind", "status", "retryable"),
    [
        ("overloaded_error", 529, True), ("api_error", 500, True), ("rate_limit_error", 429, True), ("timeout_error", 504, True),
        ("invalid_request_error", 400, False), ("authentication_error", 401, False), ("billing_error", 402, False),
        ("permission_error", 403, False), ("not_found_error", 404, False), ("request_too_large", 413, False),
    ],
)  # fmt: skip
def test_an_error_inside_a_stream_has_the_status_that_it_has_outside(kind: str, status: int, retryable: bool) -> None:
    for before in (b"", message() + say("so far")):
        last = failed(decode(before + frame("error", error={"type": kind, "message": "words"}) + say("more") + end()))
        assert (last.failure.kind, last.failure.message, last.failure.status) == ("provider", "words", status)
        assert last.retryable is retryable
        assert last.failure.hint or status == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
        b'{\n "error": {\n "message": "Overloaded"}}\n',
        b'data: {"error":{"message":"Overloaded","code":529}}\n\n',
        b'data: {"message":"Overloaded","code":529}\n\n',
        b'data: {"detail":"Overloaded"}\n\n',
        b"event: error\ndata: Overloaded\n\n",
        b'event: error\ndata: {"message":"Overloaded"}\n\n',
        b'error: {"message":"Overloaded"}\n\n',
    ],
)
def test_errors_in_every_shape_are_failures(body: bytes) -> None:
    last = failed(decode(body))
    assert (last.failure.kind, last.failure.message, last.retryable) == ("provider", "Overloaded", True)


@pytest.mark.parametrize("nothing", [None, {}, "", False, []])
def test_an_error_field_that_says_nothing_is_none(nothing: object) -> None:
    assert decode(message() + frame("message_delta", error=nothing) + say("a") + end())[0] == Text("a")


def test_a_call_is_cut_where_its_arguments_are_and_never_runs() -> None:
    for reason, said in (("max_tokens", "length"), ("tool_use", "error"), ("pause_turn", "length")):
        events = decode(message() + use(0, "{}", id="a", name="whole") + use(1, '{"path":"/', name="cut") + end(reason))
        assert calls(events) == [("a", "whole", {})]
        assert events[-1] == Finished("tool_calls" if said == "error" else said, reason, ("cut",))


def test_a_limit_before_the_first_argument_does_not_look_like_a_call_without_arguments() -> None:
    for reason in ("max_tokens", "model_context_window_exceeded"):
        events = decode(message() + use(0, "", name="delete_everything") + end(reason))
        assert events == [UsageReported(None), Finished("length", reason, ("delete_everything",))]
    assert calls(decode(message() + use(0, "", id="a") + use(1, '{"x":', id="b") + end("max_tokens"))) == [
        ("a", "f", {})
    ]
    assert calls(decode(message() + use(0) + end("tool_use"))) == [("t", "f", {})]


def test_no_call_of_a_refused_or_failed_answer_runs() -> None:
    refused = decode(message() + use(0, "{}") + end("refusal"))
    assert refused == [UsageReported(None), Finished("refusal", "refusal", ("f",))]
    cut = failed(decode(message() + use(0, "{}")))
    assert (cut.failure.kind, cut.cut_tool_calls, cut.retryable) == ("truncated", ("f",), True)


def test_arguments_that_come_with_the_start_are_taken() -> None:
    assert calls(decode(message() + use(0, input={"a": 1}) + end("tool_use"))) == [("t", "f", {"a": 1})]
    assert calls(decode(message() + use(0, "", input={"a": 1}) + end("tool_use"))) == [("t", "f", {"a": 1})]
    assert calls(decode(message() + use(0, '{"b":2}', input={"a": 1}) + end("tool_use"))) == [("t", "f", {"b": 2})]


def test_ids_are_unique_and_made_up_where_none_came() -> None:
    body = message() + use(0, "{}", id="x") + use(1, "{}", id="x") + use(2, "{}", id="") + end("tool_use")
    assert [call[0] for call in calls(decode(body))] == ["x", "made_0", "made_1"]


def test_a_piece_of_a_call_that_cannot_be_read_or_placed_is_never_passed_over() -> None:
    odd = start(0, "tool_use", id="t", name="f", input={}) + delta(0, "input_json", partial_json={"a": 1}) + stop(0)
    decoder = AnthropicDecoder()
    assert decoder.feed(message() + odd + end("tool_use"))[-1] == Finished("error", "tool_use", ("f",))
    assert decoder.calls == [CutCall("t", "f", "{}")]
    lost = failed(decode(message() + delta(3, "input_json", partial_json="{}") + end("tool_use")))
    assert lost.failure.kind == "protocol"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", None),
        (message() + say("a"), None),
        (message() + start(0, "text", text="a") + frame("message_delta", delta={"stop_reason": None}), None),
        (
            message() + say("a") + frame("message_delta", delta={"stop_reason": "end_turn"}),
            Finished("stop", "end_turn"),
        ),
        (message() + say("a") + frame("message_stop"), Finished("stop", None)),
        (b"data: [DONE]\n\n", None),
        (b"data: hello\n\n: ping\n\n", None),
    ],
)
def test_an_end_without_a_terminal_mark_is_a_failure(body: bytes, expected: Finished | None) -> None:
    last = decode(body)[-1]
    if expected is None:
        assert isinstance(last, Failed)
        assert (last.failure.kind, last.retryable) == ("truncated", True)
    else:
        assert last == expected


def test_a_second_answer_spliced_into_the_first_is_a_failure_and_a_doubled_start_is_not() -> None:
    assert decode(message() + message() + say("a") + end())[-1] == Finished("stop", "end_turn")
    last = failed(decode(message() + use(0, '{"a":') + message() + say("b") + end()))
    assert (last.failure.kind, last.cut_tool_calls, last.retryable) == ("protocol", ("f",), True)


def test_an_answer_of_a_server_that_does_not_stream_is_an_answer() -> None:
    body = {
        "type": "message",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    for sent in (json.dumps(body, indent=1).encode(), b"data: " + json.dumps(body).encode() + b"\n\n"):
        events = decode(sent)
        assert [type(event) for event in events] == [Reasoning, Text, Opaque, ToolCall, UsageReported, Finished]
        assert calls(events) == [("t", "f", {"a": 1})]
        assert events[-2:] == [UsageReported(Usage(5, 2)), Finished("tool_calls", "tool_use")]


def test_a_surrogate_pair_over_two_deltas_is_one_character() -> None:
    first, second = delta(0, "text", text="a\ud83d"), delta(0, "text", text="\ude00b")
    begin = message() + start(0, "text", text="")
    assert decode(begin + first + second + end())[:2] == [Text("a"), Text("😀b")]
    assert decode(begin + first + end())[:2] == [Text("a"), Text("\ufffd")]
    assert decode(begin + second + end())[0] == Text("\ufffdb")


def test_frames_without_the_blank_line_between_them_are_frames() -> None:
    body = (message() + say("a") + end()).replace(b"\n\n", b"\n")
    assert decode(body) == [Text("a"), UsageReported(None), Finished("stop", "end_turn")]
    assert decode((message() + say("a") + end()).replace(b"\n", b"\r\n"))[0] == Text("a")


def test_a_frame_that_cannot_be_read_is_not_passed_over_in_silence() -> None:
    broken = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"te\n\n'
    events = decode(message() + say("a") + broken + say("c", 1) + end())
    assert events[:2] == [Text("a"), Text("c")]
    assert failed(events).failure.kind == "protocol"


def test_a_type_that_only_the_event_line_names_is_the_type() -> None:
    body = message() + say("a") + end()
    bare = b"".join(
        b"%s\ndata: %s\n\n"
        % (head, json.dumps({k: v for k, v in json.loads(data[6:]).items() if k != "type"}).encode())
        for head, data in (part.split(b"\n") for part in body.split(b"\n\n") if part)
    )
    assert decode(bare) == decode(body)


def test_a_line_over_the_bound_is_a_failure_at_once() -> None:
    decoder = AnthropicDecoder()
    events = decoder.feed(message() + say("a"))
    for _ in range(9):
        events += decoder.feed(b"x" * 1024 * 1024)
    assert events[0] == Text("a")
    assert failed(events).failure.kind == "protocol"
    assert decoder.end() == []


def test_unsigned_thinking_is_shown_and_not_kept() -> None:
    events = decode(message() + start(0, "thinking", thinking="hm") + stop(0) + say("a", 1) + end())
    assert events[0] == Reasoning("hm")
    assert not [event for event in events if isinstance(event, Opaque)]


def test_thinking_beyond_every_bound_is_shown_and_not_kept() -> None:
    piece = delta(0, "thinking", thinking="x" * 500_000)
    events = decode(
        message(), start(0, "thinking", thinking=""), *[piece] * 10, delta(0, "signature", signature="s"), end()
    )
    assert sum(len(event.text) for event in events if isinstance(event, Reasoning)) == 5_000_000
    assert not [event for event in events if isinstance(event, Opaque)]


def test_a_call_beyond_every_bound_is_a_failure() -> None:
    piece = delta(0, "input_json", partial_json="x" * 1_000_000)
    body = [message(), start(0, "tool_use", id="t", name="f", input={}), *[piece] * 17, end("tool_use")]
    assert failed(decode(*body)).failure.kind == "protocol"
    many = b"".join(start(at, "text", text="") for at in range(5000))
    assert failed(decode(message() + many + end())).failure.kind == "protocol"


def test_memory_stays_flat_over_a_long_stream() -> None:
    decoder = AnthropicDecoder()
    decoder.feed(message() + start(0, "text", text=""))
    piece = delta(0, "text", text="word " * 200) * 50
    decoder.feed(piece)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(400):  # 20 MB
            assert len(decoder.feed(piece)) == 50
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
