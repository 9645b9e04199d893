"""The gemini decoder beyond the recordings: dialects written out by hand, and any bytes at all."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from agentd.providers.gemini import GeminiDecoder
from agentd.providers.stream import Failed, Finished, Opaque, Reasoning, StreamEvent, Text, UsageReported
from tests import wire_cases
from tests.wire_cases import assert_contract
from tracewriter.events import ToolCall, Usage


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\r\n\r\n"


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return frame({"candidates": [candidate], **more})


def call(name: str | None = None, args: Any = None, signature: str | None = None, **more: Any) -> dict[str, Any]:
    fields = {"name": name, "args": args, **more}
    part: dict[str, Any] = {"functionCall": {key: value for key, value in fields.items() if value is not None}}
    return part if signature is None else {**part, "thoughtSignature": signature}


def piece(path: str, value: Any = None, *, more: bool = False, kind: str = "stringValue") -> dict[str, Any]:
    arg = {"jsonPath": path, kind: value} if value is not None else {"jsonPath": path}
    return call(partialArgs=[{**arg, "willContinue": True} if more else arg], willContinue=True)


def decode(*pieces: bytes) -> list[StreamEvent]:
    return wire_cases.decode(lambda new_id: GeminiDecoder(new_id=new_id), pieces).events


def calls(events: list[StreamEvent]) -> list[tuple[str, str, Any]]:
    return [(event.id, event.name, json.loads(bytes(event.input))) for event in events if isinstance(event, ToolCall)]


def failed(events: list[StreamEvent]) -> Failed:
    assert_contract(events)
    assert isinstance(events[-1], Failed)
    return events[-1]


def kept(events: list[StreamEvent]) -> Any:
    found = [json.loads(bytes(event.data)) for event in events if isinstance(event, Opaque)]
    return found[0]["gemini"]["parts"] if found else None


STOP = chunk(finish="STOP")


def test_text_is_given_before_the_stream_goes_on() -> None:
    decoder = GeminiDecoder()
    assert decoder.feed(chunk({"text": "a"})) == [Text("a")]
    assert decoder.feed(chunk({"text": "b", "thought": True}, {"text": "c"})) == [Reasoning("b"), Text("c")]
    states = [(decoder.frames, decoder.settled, decoder.ended)]
    decoder.feed(b": ping\n\n" + chunk(finish="STOP"))
    states.append((decoder.frames, decoder.settled, decoder.ended))
    decoder.end()
    states.append((decoder.frames, decoder.settled, decoder.ended))
    assert states == [(2, False, False), (3, True, False), (3, True, True)]


def test_the_end_of_the_body_ends_the_last_frame_and_needs_no_blank_line() -> None:
    body = chunk({"text": "a"}, finish="STOP", usageMetadata={"promptTokenCount": 3})
    expected = [Text("a"), UsageReported(Usage(3, 0)), Finished("stop", "STOP")]
    for ending in (b"\r\n\r\n", b"\r\n", b"", b"\n", b"\r"):
        assert decode(body.strip() + ending) == expected


@pytest.mark.parametrize(
    ("reason", "normal"),
    [
        ("STOP", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "filter"), ("RECITATION", "filter"), ("LANGUAGE", "filter"),
        ("BLOCKLIST", "filter"), ("PROHIBITED_CONTENT", "filter"), ("SPII", "filter"), ("IMAGE_SAFETY", "filter"),
        ("OTHER", "error"), ("FINISH_REASON_UNSPECIFIED", "error"), ("OF_TOMORROW", "error"),
    ],
)  # fmt: skip
def test_reasons_are_normalised_and_kept(reason: str, normal: str) -> None:
    assert decode(chunk({"text": "a"}, finish=reason))[-1] == Finished(normal, reason)


@pytest.mark.parametrize(
    ("reason", "again"),
    [("MALFORMED_FUNCTION_CALL", True), ("UNEXPECTED_TOOL_CALL", True), ("MISSING_THOUGHT_SIGNATURE", False)],
)
def test_a_malformed_call_is_a_failure_that_says_so(reason: str, again: bool) -> None:
    message = "Malformed function call: print(default_api.w(\n'x"
    candidate = {"finishReason": reason, "finishMessage": message, "index": 0}
    last = failed(decode(frame({"candidates": [candidate], "usageMetadata": {"promptTokenCount": 5}})))
    assert last.failure.kind == "provider"
    assert last.failure.message == f"the model stopped with {reason}: Malformed function call: print(default_api.w( 'x"
    assert (last.retryable, last.finish) == (again, reason)


@pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "BLOCK_REASON_UNSPECIFIED"])
def test_a_blocked_prompt_is_a_failure_that_says_why(reason: str) -> None:
    feedback = {"blockReason": reason, "blockReasonMessage": "because\x1b[31m"}
    events = decode(frame({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 7}}))
    last = failed(events)
    assert events[-2] == UsageReported(Usage(7, 0))
    assert last.failure.kind == "blocked"
    assert last.failure.message == f"the provider blocked the prompt: {reason}: because [31m"
    assert not last.retryable


def test_what_the_provider_thinks_of_a_prompt_that_it_answers_is_nothing() -> None:
    ratings = [{"category": "HARM_CATEGORY_HATE_SPEECH", "probability": "HIGH"}]
    events = decode(chunk({"text": "a"}, promptFeedback={"safetyRatings": ratings}), STOP)
    assert events == [Text("a"), UsageReported(None), Finished("stop", "STOP")]


def test_an_end_without_a_reason_is_a_failure_and_no_call_runs() -> None:
    for body in (
        b"",
        b"\n\n",
        chunk({"text": "a"}),
        chunk(call("f", {})),
        frame({"usageMetadata": {}}),
        b"data: [DONE]\n\n",
    ):
        last = failed(decode(body))
        assert (last.failure.kind, last.retryable, last.finish) == ("truncated", True, None)
    assert failed(decode(chunk(call("f", {})))).cut_tool_calls == ("f",)


def test_several_calls_in_one_frame_and_over_frames_keep_their_order_and_get_ids() -> None:
    events = decode(
        chunk(call("f", {"a": 1}), call("f", {"a": 2}, id="x")), chunk(call("g", {}, id="x"), call("h"), finish="STOP")
    )
    assert calls(events) == [("made_0", "f", {"a": 1}), ("x", "f", {"a": 2}), ("made_1", "g", {}), ("made_2", "h", {})]
    assert events[-1] == Finished("tool_calls", "STOP")


def test_ids_that_are_made_are_never_made_twice() -> None:
    made = set()
    for _ in range(50):
        decoder = GeminiDecoder()
        events = decoder.feed(chunk(call("w", {}), call("w", {}), finish="STOP")) + decoder.end()
        made |= {event.id for event in events if isinstance(event, ToolCall)}
    assert len(made) == 100


@pytest.mark.parametrize("args", [None, {}, {"s": "ü\u2028\n", "deep": [{"n": 1.5}]}])
def test_arguments_become_one_compact_line(args: Any) -> None:
    events = decode(chunk(call("f", args), finish="STOP"))
    assert calls(events) == [("made_0", "f", args or {})]
    assert_contract(events)


@pytest.mark.parametrize(
    ("pieces", "args"),
    [
        ([piece("$.city", "Ber", more=True), piece("$.city", "lin", more=True), piece("$.city", "")], {"city": "Berlin"}),
        ([piece("$.a.b[0].c", "x"), piece("$.a.b[1].c", "y"), piece("$.a.d", 2.5, kind="numberValue")],
         {"a": {"b": [{"c": "x"}, {"c": "y"}], "d": 2.5}}),
        ([piece("$.n", 3, kind="numberValue"), piece("$.t", True, kind="boolValue"), piece("$.f", False, kind="boolValue"),
          piece("$.z", "NULL_VALUE", kind="nullValue")], {"n": 3, "t": True, "f": False, "z": None}),
        ([piece("$['a b'][\"c.d\"]['\\'']", "x")], {"a b": {"c.d": {"'": "x"}}}),
        ([piece("$.l[0]", "a", more=True), piece("$.l[1]", "b"), piece("$.l[0]", "c")], {"l": ["ac", "b"]}),
        ([piece("$.s", more=True), piece("$.s", "x", more=True), piece("$.s")], {"s": "x"}),
        ([piece("s", "x")], {"s": "x"}),
        ([], {}),
    ],
)  # fmt: skip
def test_streamed_arguments_are_put_together(pieces: list[dict[str, Any]], args: Any) -> None:
    begun = chunk(call("f", willContinue=True, id="t", signature="S"))
    events = decode(begun, *(chunk(one) for one in pieces), chunk(call(), finish="STOP"))
    assert calls(events) == [("t", "f", args)]
    assert kept(events) == [{"call": "f", "signature": "S"}]
    together = decode(chunk(call("f", willContinue=True, id="t", signature="S"), *pieces, call(), finish="STOP"))
    assert together == events


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("$..city", "x")], [piece("$.a[*]", "x")], [piece("$.a[999999]", "x")], [piece("", "x")], [piece("$", "x")],
        [piece("$.a", "x"), piece("$.a.b", "y")], [piece("$.a.b", "x"), piece("$.a", "y")],
        [piece("$.a[0]", "x"), piece("$.a.b", "y")], [piece("$.a[0]", "x"), piece("$.a", 2, kind="numberValue")],
        [piece("$.a", {"deep": 1}, kind="structValue")], [piece("$.a" + ".b" * 200, "x")],
        [piece("$.a", "1e999", kind="numberValue")],
    ],
)  # fmt: skip
def test_streamed_arguments_that_do_not_fit_are_reported_and_never_run(pieces: list[dict[str, Any]]) -> None:
    events = decode(
        chunk(call("f", willContinue=True)),
        *(chunk(one) for one in pieces),
        chunk(call(), call("g", {}), finish="STOP"),
    )
    assert [name for _, name, _ in calls(events)] == ["g"]
    assert events[-1] == Finished("tool_calls", "STOP", ("f",))


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (chunk(finish="STOP"), Finished("error", "STOP", ("f",))),
        (chunk(finish="MAX_TOKENS"), Finished("length", "MAX_TOKENS", ("f",))),
        (chunk(call(), finish="MAX_TOKENS"), Finished("length", "MAX_TOKENS", ("f",))),
        (chunk(call("g", {}), finish="STOP"), Finished("tool_calls", "STOP", ("f",))),
    ],
)
def test_a_streamed_call_that_was_not_ended_is_cut(last: bytes, end: Finished) -> None:
    events = decode(chunk(call("f", willContinue=True)), chunk(piece("$.p", "/etc", more=True)), last)
    assert "f" not in [name for _, name, _ in calls(events)]
    assert events[-1] == end


@pytest.mark.parametrize(
    ("args", "expected"),
    [({"b": 10**30}, 10**30), ({"b": "x\ud83d"}, "x\ufffd"), ({"b": {"\ud83d": [1.5, None]}}, {"\ufffd": [1.5, None]})],
)
def test_whole_arguments_beside_streamed_ones_are_taken_with_them(args: dict[str, Any], expected: Any) -> None:
    begun, streamed = call("f", args, willContinue=True), piece("$.a", "x")
    for order in ([begun, streamed], [call("f", willContinue=True), streamed, call(args=args, willContinue=True)]):
        events = decode(*(chunk(one) for one in order), chunk(call(), finish="STOP"))
        assert calls(events) == [("made_0", "f", {"a": "x", "b": expected})]
        assert_contract(events)


def test_arguments_that_are_nested_too_deeply_are_reported_and_never_run() -> None:
    deep = b'{"a":' * 3000 + b"1" + b"}" * 3000
    body = b'data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":%b,"willContinue":true}}]}}]}\n\n'
    events = decode(body % deep, chunk(piece("$.b", "x")), chunk(call(), finish="STOP"))
    assert_contract(events)
    assert calls(events) == []


def test_a_name_that_is_repeated_in_every_piece_is_a_repeat() -> None:
    named = [{"functionCall": {**piece("$.a", text, more=True)["functionCall"], "name": "f"}} for text in ("x", "y")]
    events = decode(*(chunk(one) for one in named), chunk(call(), finish="STOP"))
    assert calls(events) == [("made_0", "f", {"a": "xy"})]


def test_a_call_without_a_name_is_reported_and_an_empty_piece_is_nothing() -> None:
    events = decode(chunk(call(args={"a": 1})), chunk(call()), chunk(call(), finish="STOP"))
    assert events == [UsageReported(None), Finished("error", "STOP", ("made_0",))]


def test_what_the_provider_runs_itself_is_no_call_of_ours_and_is_kept() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "A"}
    parts: list[dict[str, Any]] = [
        code,
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"toolType": "GOOGLE_SEARCH", "id": "s"}},
        {"toolResponse": {"toolType": "GOOGLE_SEARCH", "id": "s"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"ofTomorrow": {"x": 1}},
    ]
    events = decode(chunk(*parts), chunk({"text": "done"}, finish="STOP", groundingMetadata={}))
    assert [event for event in events if not isinstance(event, Opaque)] == [
        Text("done"),
        UsageReported(None),
        Finished("stop", "STOP"),
    ]
    whole = [{"whole": {"executableCode": code["executableCode"]}, "signature": "A"}]
    whole += [{"whole": part} for part in parts[1:4]]
    assert kept(events) == [*whole, {"text": 4}]


def test_signatures_are_kept_for_exactly_their_parts() -> None:
    events = decode(
        chunk({"text": "I ", "thought": True}),
        chunk({"text": "think", "thought": True, "thoughtSignature": "T"}),
        chunk({"text": "a"}),
        chunk({"text": "b"}),
        chunk({"text": "c", "thoughtSignature": "C"}),
        chunk({"text": "d"}),
        chunk(call("f", {}, signature="F"), call("g", {})),
        chunk({"text": "", "thoughtSignature": "E"}),
        chunk({"thoughtSignature": "N"}, finish="STOP"),
    )
    assert kept(events) == [
        {"thought": 5, "start": 2, "signature": "T"},
        {"text": 2},
        {"text": 1, "signature": "C"},
        {"text": 1},
        {"call": "f", "signature": "F"},
        {"call": "g"},
        {"text": 0, "signature": "E"},
        {"text": 0, "signature": "N"},
    ]


def test_an_answer_without_signatures_keeps_nothing() -> None:
    events = decode(chunk({"text": "a"}, {"text": "t", "thought": True}, call("f", {})), STOP)
    assert kept(events) is None
    assert (
        kept(decode(chunk(call("f", {}, signature="S")))) is None
    )  # an answer that failed is not part of the conversation


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        ([{"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}], Usage(5, 2)),
        ([{"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 3}], Usage(5, 5, None, None, 3)),
        ([{"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "cachedContentTokenCount": 3}], Usage(9, 0, 3)),
        ([{"promptTokenCount": 5, "candidatesTokenCount": 1}, {"promptTokenCount": 4}, {"candidatesTokenCount": 9}], Usage(4, 9)),
        ([{"promptTokenCount": 5.0, "candidatesTokenCount": "2"}], Usage(5, 2)),
        ([{"promptTokenCount": 5}, {"promptTokenCount": -1, "candidatesTokenCount": 1.5}], Usage(5, 0)),
        ([{"promptTokenCount": 10**30, "toolUsePromptTokenCount": 10**30}], Usage(2**53, 0)),
        ([{"trafficType": "ON_DEMAND"}, {}, None, "?"], None),
    ],
)  # fmt: skip
def test_usage_is_cumulative_and_all_in(usages: list[Any], expected: Usage | None) -> None:
    events = decode(*(chunk({"text": "a"}, usageMetadata=usage) for usage in usages), STOP)
    assert events[-2:] == [UsageReported(expected), Finished("stop", "STOP")]


ERROR = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}


@pytest.mark.parametrize(
    ("body", "message", "again"),
    [
        (frame({"error": ERROR}), "The model is overloaded.", True),
        (frame([{"error": ERROR}]), "The model is overloaded.", True),
        (json.dumps({"error": ERROR}, indent=2).encode(), "The model is overloaded.", True),
        (json.dumps([{"error": ERROR}], indent=2).replace("\n", "\r\n\r\n").encode(), "The model is overloaded.", True),
        (b",\r\n" + json.dumps({"error": ERROR}).encode() + b"\r\n]", "The model is overloaded.", True),
        (frame({"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}), "bad", False),
        (frame({"error": "gone"}), "gone", False),
        (frame({"message": "no such", "code": 404}), "no such", False),
        (b"event: error\n" + frame({"message": "busy", "status": 503}), "busy", True),
        (b"event: error\ndata: upstream timeout\n\n", "upstream timeout", True),
        (b'error: {"message":"x"}\n\n', "x", False),
        (b"error:\n\n", "an error without a reason", False),
    ],
)
def test_errors_in_every_shape_are_failures(body: bytes, message: str, again: bool) -> None:
    for before in (b"", chunk({"text": "so far"}), chunk({"text": "so far"}, finish="STOP")):
        last = failed(decode(before, body))
        assert (last.failure.kind, last.failure.message, last.retryable) == ("provider", message, again)


def test_an_answer_that_came_as_one_array_is_an_answer() -> None:
    frames = [
        {"candidates": [{"content": {"parts": [{"text": "Hel"}]}, "index": 0}]},
        {"candidates": [{"content": {"parts": [{"text": "lo"}, call("f", {"a": "}\n"})]}, "finishReason": "STOP"}]},
    ]
    expected = decode(*(frame(one) for one in frames))
    for body in (json.dumps(frames), json.dumps(frames, indent=2), ",\r\n".join(json.dumps(one) for one in frames)):
        assert decode(body.encode()) == expected
    assert failed(decode(json.dumps(frames)[:-20].encode())).failure.kind == "truncated"


def test_an_endless_body_that_is_no_stream_is_not_kept() -> None:
    decoder = GeminiDecoder()
    for _ in range(40):
        assert decoder.feed(b'{"x":"' + b"x" * 100_000 + b'"}\n') == []
    last = failed(decoder.end())
    assert last.failure.kind == "protocol"


def test_the_first_candidate_is_the_answer() -> None:
    def of(index: int | None, text: str) -> dict[str, Any]:
        candidate = {"content": {"parts": [{"text": text}]}, "finishReason": "STOP", "index": index}
        return {key: value for key, value in candidate.items() if value is not None}

    events = decode(frame({"candidates": [of(None, "a"), of(1, "x")]}), frame({"candidates": [of(0, "b")]}))
    assert events[:2] == [Text("a"), Text("b")]
    assert events[-1] == Finished("stop", "STOP")


def test_a_field_of_the_wrong_shape_costs_nothing_else() -> None:
    candidate = {"content": {"parts": [{"text": "a", "thought": "yes"}, 5, {"text": 7}], "role": 1}, "index": "0"}
    events = decode(frame({"candidates": [candidate], "usageMetadata": [], "error": None}), STOP)
    assert events == [Text("a"), UsageReported(None), Finished("stop", "STOP")]


def test_a_surrogate_pair_over_two_frames_is_one_character() -> None:
    pieces = [chunk({"text": "a\ud83d"}), chunk({"text": "\ude00b"}), chunk({"text": "c", "thoughtSignature": "S"})]
    events = decode(*pieces, STOP)
    assert events[:3] == [Text("a"), Text("😀b"), Text("c")]
    assert kept(events) == [{"text": 3}, {"text": 1, "signature": "S"}]
    assert decode(pieces[0], STOP)[:2] == [Text("a"), Text("\ufffd")]


def test_frames_without_the_blank_line_between_them_and_glued_ones_are_frames() -> None:
    lines = chunk({"text": "a"}).strip() + b"\n" + chunk({"text": "b"}, finish="STOP")
    assert decode(lines)[:2] == [Text("a"), Text("b")]
    glued = b'data: {"candidates":[{"con' + chunk({"text": "b"}, finish="STOP")
    assert decode(glued) == [Text("b"), UsageReported(None), Finished("stop", "STOP")]


def test_a_frame_that_cannot_be_read_is_not_passed_over_in_silence() -> None:
    events = decode(chunk({"text": "a"}), b'data: {"candidates":[{"cont\n\n', chunk({"text": "c"}, finish="STOP"))
    assert events[:2] == [Text("a"), Text("c")]
    assert failed(events).failure.kind == "protocol"
    assert decode(b"data: hello\n\n", chunk({"text": "a"}, finish="STOP"))[-1] == Finished("stop", "STOP")


def test_a_line_over_the_bound_is_a_failure_at_once() -> None:
    decoder = GeminiDecoder()
    events = decoder.feed(chunk({"text": "a"}))
    for _ in range(9):
        events += decoder.feed(b"x" * 1024 * 1024)
    assert failed(events).failure.kind == "protocol"
    assert decoder.end() == []


def test_memory_stays_flat_over_a_long_stream() -> None:
    decoder = GeminiDecoder()
    some = chunk({"text": "word " * 20}, usageMetadata={"promptTokenCount": 5, "candidatesTokenCount": 9}) * 50
    decoder.feed(some)
    tracemalloc.start()
    for _ in range(100):
        decoder.feed(some)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 32 * 1024
