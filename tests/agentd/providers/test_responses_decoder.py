"""The openai-responses decoder beyond the recordings: texts, ends and errors of many makes, written out by hand."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from agentd.providers.openai_responses import OpenAIResponsesDecoder
from agentd.providers.stream import Finished, Reasoning, Refusal, Text, UsageReported
from tests.responses_events import (
    CALL,
    DONE,
    INCOMPLETE,
    MESSAGE,
    added,
    arguments,
    calls,
    completed,
    decode,
    ended,
    failed,
    frame,
    joined,
    kept,
    said,
    text,
)
from tracewriter.events import Usage


def test_text_is_given_before_the_stream_goes_on() -> None:
    decoder = OpenAIResponsesDecoder()
    assert decoder.feed(added(MESSAGE)) == []
    assert decoder.feed(text("a")) == [Text("a")]
    assert decoder.feed(text("b")) == [Text("b")]
    assert decoder.feed(frame("reasoning_text.delta", item_id="r", delta="c")) == [Reasoning("c")]
    assert decoder.frames == 4
    assert not decoder.settled


def test_the_answer_ends_with_its_terminal_event_without_waiting_for_the_body() -> None:
    decoder = OpenAIResponsesDecoder()
    events = decoder.feed(text("a") + completed(usage={"input_tokens": 3, "output_tokens": 2}))
    assert events == [Text("a"), UsageReported(Usage(3, 2)), Finished("stop", "completed")]
    assert decoder.settled


@pytest.mark.parametrize("end", [b"", DONE, frame("in_progress", response={"status": "in_progress"})])
def test_without_a_terminal_event_the_answer_is_cut_and_no_call_runs(end: bytes) -> None:
    body = added(CALL), arguments("{}"), ended({**CALL, "arguments": "{}"})
    last = failed(decode(text("a"), *body, end))
    assert (last.failure.kind, last.retryable, last.cut_tool_calls) == ("truncated", True, ("f",))


@pytest.mark.parametrize(
    "whole",
    [
        frame("output_text.done", item_id="m", text="abc"),
        frame("content_part.done", item_id="m", part=said("abc")[0]),
        ended({**MESSAGE, "content": said("abc")}),
        ended({**MESSAGE, "content": "abc"}),
        completed({**MESSAGE, "content": said("abc")}),
    ],
)
@pytest.mark.parametrize("deltas", [(), ("abc",), ("a", "b"), ("a", "bc"), ("abc", "d"), ("x", "y")])
@pytest.mark.parametrize("place", [{}, {"content_index": 0, "output_index": 0}])
def test_a_text_is_given_once_and_its_end_adds_what_its_deltas_left_out(
    whole: bytes, deltas: tuple[str, ...], place: dict[str, Any]
) -> None:
    pieces = [text(delta, **place) for delta in deltas]
    expected = "".join(deltas) if deltas in (("abc", "d"), ("x", "y")) else "abc"  # what was shown stays shown
    assert joined(decode(*pieces, whole, whole, completed({**MESSAGE, "content": said("abc")}))) == expected


def test_refusals_and_reasoning_are_given_once_too() -> None:
    summary, thought = said("sum", "summary_text"), said("why", "reasoning_text")
    reasoning = {"type": "reasoning", "id": "r", "summary": summary, "content": thought}
    refusal = {**MESSAGE, "content": said("no", "refusal")}
    deltas = [
        frame("reasoning_summary_text.delta", item_id="r", summary_index=0, delta="su"),
        frame("reasoning_text.delta", item_id="r", content_index=0, delta="why"),
        frame("refusal.delta", item_id="m", delta="n"),
    ]
    for some in (deltas, deltas[:1], deltas[1:], []):
        events = decode(*some, ended(reasoning), ended(refusal), completed(reasoning, refusal))
        assert sorted(joined(events, Reasoning)) == sorted("sumwhy")
        assert joined(events, Refusal) == "no"
        assert joined(events) == ""
        assert events[-1] == Finished("refusal", "completed")


def test_the_parts_of_a_message_are_told_apart() -> None:
    whole = {**MESSAGE, "content": [*said("ab"), *said("cd")]}
    one: dict[str, Any] = {"content_index": 0}
    two: dict[str, Any] = {"content_index": 1}
    assert (
        joined(decode(text("a", **one), text("c", **two), text("b", **one), ended(whole), completed(whole))) == "acbd"
    )
    assert joined(decode(text("ab"), text("c"), ended(whole), completed(whole))) == "abcd"


@pytest.mark.parametrize(
    ("end", "finish", "stop_reason"),
    [
        (completed(), "completed", "stop"),
        (frame("done", response={"status": "completed"}), "completed", "stop"),
        (frame("completed", response=None), "completed", "stop"),
        (frame("completed"), "completed", "stop"),
        (INCOMPLETE, "incomplete:max_output_tokens", "length"),
        (completed(kind="incomplete", incomplete_details={"reason": "content_filter"}), "incomplete:content_filter", "filter"),
        (completed(kind="incomplete", incomplete_details=None), "incomplete", "length"),
        (completed(kind="incomplete", incomplete_details={"reason": "something_new"}), "incomplete:something_new", "length"),
        (frame("completed", response={"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}),
         "incomplete:max_output_tokens", "length"),
    ],
)  # fmt: skip
def test_reasons_to_stop_are_normalised_and_kept(end: bytes, finish: str, stop_reason: str) -> None:
    assert decode(text("a"), end)[-1] == Finished(stop_reason, finish)


@pytest.mark.parametrize(
    ("body", "message", "finish", "retryable"),
    [
        (frame("failed", response={"error": {"code": "server_error", "message": "broke"}}), "broke", "failed", True),
        (frame("failed", response={"error": {"code": "invalid_prompt", "message": "no"}}), "no", "failed", False),
        (frame("failed", response={"status": "failed", "error": None}), "failed", "failed", True),
        (frame("failed"), "failed", "failed", True),
        (frame("completed", response={"status": "failed", "error": {"message": "late"}}), "late", "failed", False),
        (frame("cancelled", response={"status": "cancelled"}), "cancelled", "cancelled", True),
        (frame("completed", response={"status": "canceled"}), "cancelled", "cancelled", True),
        (b'data: {"type":"error","code":"rate_limit_exceeded","message":"slow down","param":null,"sequence_number":3}\n\n',
         "slow down", None, True),
        (b'data: {"type":"error","error":{"type":"tokens","code":"rate_limit_exceeded","message":"slow down"}}\n\n',
         "slow down", None, True),
        (b'event: error\ndata: {"code":"server_error","message":"oops"}\n\n', "oops", None, True),
        (b'event: error\ndata: {"error":{"code":500,"message":"oops","type":"server_error"}}\n\n', "oops", None, True),
        (b"event: error\ndata: upstream timeout\n\n", "upstream timeout", None, True),
        (b'data: {"error":{"code":503,"message":"busy"}}\n\n', "busy", None, True),
        (b'data: {"detail":"not here"}\n\n', "not here", None, False),
        (frame("error", message="odd", code="x"), "odd", None, False),
        (b'error: {"message":"x"}\n\n', "x", None, False),
        (b"error:\n\n", "without a reason", None, False),
        (b"event: error\ndata:  \n\n", "without a reason", None, False),
        (b'{\n  "error": {\n    "message": "pretty"\n  }\n}\n', "pretty", None, False),
    ],
)  # fmt: skip
def test_errors_in_every_shape_are_failures(body: bytes, message: str, finish: str | None, retryable: bool) -> None:
    for before in (b"", text("so far"), added(CALL) + arguments("{}")):
        events = decode(before, body, DONE)
        last = failed(events)
        assert last.failure.kind == "provider"
        assert message in last.failure.message
        assert (last.finish, last.retryable) == (finish, retryable)
        assert joined(events) == ("so far" if b"so far" in before else "")


def test_an_error_before_the_failed_response_is_one_failure_with_the_usage_of_the_end() -> None:
    error = b'data: {"type":"error","error":{"code":"server_error","message":"first"}}\n\n'
    end = frame("failed", response={"status": "failed", "error": {"message": "second"}, "usage": {"input_tokens": 7}})
    events = decode(error, end)
    assert events[0] == UsageReported(Usage(7, 0))
    assert failed(events).failure.message == "first"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, Usage(5, 2)),
        (
            {"input_tokens": 9, "output_tokens": 7, "total_tokens": 16,
             "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
             "output_tokens_details": {"reasoning_tokens": 5}},
            Usage(9, 7, 3, 2, 5),
        ),
        (
            {"input_tokens": 9, "output_tokens": 2, "total_tokens": 16, "output_tokens_details": {"reasoning_tokens": 5}},
            Usage(9, 7, None, None, 5),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}, Usage(5, 2, 1)),
        ({"input_tokens": "5", "output_tokens": 2.0, "input_tokens_details": None}, Usage(5, 2)),
        ({"input_tokens": 0, "output_tokens": 0}, Usage(0, 0)),
        ({}, None), (None, None), ("?", None),
    ],
)  # fmt: skip
def test_usage_is_all_in_with_its_parts_apart(usage: object, expected: Usage | None) -> None:
    for kind in ("completed", "incomplete"):
        assert decode(text("a"), completed(kind=kind, usage=usage))[-2] == UsageReported(expected)


def test_a_response_of_a_server_that_does_not_stream_is_an_answer() -> None:
    body = {"object": "response", "status": "completed", "error": None, "output": [
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "AA"},
        {**MESSAGE, "content": said("hi")}, {**CALL, "arguments": "{}"}], "usage": {"input_tokens": 1}}  # fmt: skip
    for sent in (json.dumps(body, indent=2).encode(), b"data: " + json.dumps(body).encode() + b"\n\n"):
        events = decode(sent)
        assert joined(events) == "hi"
        assert calls(events) == [("c1", "f", {})]
        assert kept(events)[0] == {"reasoning": body["output"][0]}  # type: ignore[index]
        assert events[-2:] == [UsageReported(Usage(1, 0)), Finished("tool_calls", "completed")]


def test_the_type_may_be_on_the_event_line_only() -> None:
    body = b'event: response.output_text.delta\ndata: {"delta":"a"}\n\nevent: response.completed\ndata: {"response":{}}\n\n'
    assert decode(body) == [Text("a"), UsageReported(None), Finished("stop", "completed")]


def test_events_of_types_that_do_not_exist_yet_are_passed_over() -> None:
    strange = [
        frame("hologram.delta", delta={"x": [1]}),
        b'data: {"type":"codex.rate_limits","plan":1}\n\n',
        b"data: 7\n\n",
        b"data: []\n\n",
    ]
    assert decode(*strange, text("a"), *strange, completed())[0] == Text("a")


def test_what_only_keeps_a_connection_open_is_no_progress() -> None:
    decoder = OpenAIResponsesDecoder()
    for body in (
        b": ping\n\n",
        b'data: {"type":"keepalive","sequence_number":3}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
    ):
        decoder.feed(body)
    assert decoder.frames == 0
    decoder.feed(frame("web_search_call.searching", item_id="w"))
    assert decoder.frames == 1


def test_a_surrogate_pair_over_two_deltas_is_one_character() -> None:
    pieces = [
        b'data: {"type":"response.output_text.delta","item_id":"m","delta":"a\\ud83d"}\n\n',
        b'data: {"type":"response.output_text.delta","item_id":"m","delta":"\\ude00b"}\n\n',
    ]
    assert joined(decode(text("-"), *pieces, completed())) == "-a😀b"
    assert joined(decode(pieces[0], completed())) == "a\ufffd"
    assert joined(decode(pieces[1], completed())) == "\ufffdb"


def test_frames_without_the_blank_line_between_them_are_frames() -> None:
    glued = b"data: " + text("a").partition(b"data: ")[2].rstrip() + b"\ndata: " + text("b").partition(b"data: ")[2]
    assert decode(glued, completed())[:2] == [Text("a"), Text("b")]


def test_a_frame_that_cannot_be_read_is_not_passed_over_in_silence() -> None:
    events = decode(text("a"), b'data: {"type":"response.output_text.delta","del\n\n', text("c"), completed())
    assert joined(events) == "ac"
    assert failed(events).failure.kind == "protocol"


@pytest.mark.parametrize("body", [b"", DONE, b": ping\n\n", b"\n\n", b"data: hello\n\n", b'data: {"choices":[]}\n\n'])
def test_nothing_at_all_is_a_failure(body: bytes) -> None:
    assert failed(decode(body)).failure.kind == "truncated"


def test_a_line_over_the_bound_is_a_failure_at_once() -> None:
    decoder = OpenAIResponsesDecoder()
    events = decoder.feed(text("a"))
    for _ in range(9):
        events += decoder.feed(b"x" * 1024 * 1024)
    assert joined(events) == "a"
    assert failed(events).failure.kind == "protocol"
    assert decoder.end() == []


def test_items_and_parts_without_end_are_a_failure() -> None:
    for endless in (
        (added({"type": "message", "id": f"m{n}"}) for n in range(5000)),
        (text("a", content_index=n) for n in range(20_000)),
    ):
        assert failed(decode(*endless, completed())).failure.kind == "protocol"


@pytest.mark.parametrize("cuts", range(1, 6))
def test_inline_thinking_is_split_only_where_asked(cuts: int) -> None:
    words = " <think>a < b</think>\n\nANSWER"
    pieces = [text(words[at : at + cuts]) for at in range(0, len(words), cuts)]
    for split, expected in ((True, ("ANSWER", "a < b")), (False, (words, ""))):
        events = decode(*pieces, completed({**MESSAGE, "content": said(words)}), think_split=split)
        assert (joined(events), joined(events, Reasoning)) == expected


def test_memory_stays_flat_over_a_long_stream() -> None:
    decoder = OpenAIResponsesDecoder()
    piece = b"".join(text("x" * 50, content_index=0, output_index=0, sequence_number=n) for n in range(2000))
    decoder.feed(piece)
    tracemalloc.start()
    try:
        for _ in range(8):
            assert len(decoder.feed(piece)) == 2000
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 100_000
