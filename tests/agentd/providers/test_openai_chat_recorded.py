"""The openai-chat decoder against recorded streams: whole, byte by byte and at random cuts, the expected result each time."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.openai_chat import OpenAIChatDecoder
from agentd.providers.stream import Failed, Finished, StreamEvent, UsageReported
from agentd.providers.summary import summarise
from tests import wire_corpus
from tracewriter.events import ToolCall

STREAMS = wire_corpus.names("streams/openai-chat", ".expected.json")


def decode(pieces: list[bytes], *, think_split: bool = False) -> tuple[list[StreamEvent], dict[str, Any]]:
    ids = itertools.count()
    decoder = OpenAIChatDecoder(think_split=think_split, new_id=lambda: f"made_{next(ids)}")
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.end()
    assert decoder.feed(b"data: more\n\n") + decoder.end() == []
    return events, json.loads(msgspec.json.encode(summarise(events, decoder)))


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def assert_contract(events: list[StreamEvent]) -> None:
    assert [isinstance(event, UsageReported) for event in events].count(True) == 1
    assert [isinstance(event, Finished | Failed) for event in events].count(True) == 1
    assert isinstance(events[-1], Finished | Failed)
    assert isinstance(events[-2], UsageReported)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("think_split", [False, True])
def test_a_recorded_stream_gives_what_is_expected(name: str, think_split: bool) -> None:
    body, expected = wire_corpus.stream("openai-chat", name)
    events, whole = decode([body], think_split=think_split)
    assert wire_corpus.mismatches(expected, whole) == []
    assert_contract(events)
    assert decode([body[i : i + 1] for i in range(len(body))], think_split=think_split) == (events, whole)


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_gives_the_same_events_frame_by_frame_and_in_large_pieces(name: str) -> None:
    body, _ = wire_corpus.stream("openai-chat", name)
    whole = decode([body])
    plain = body.replace(b"\r\n", b"\n")
    for end in (b"\n", b"\r\n"):
        frames = [frame.replace(b"\n", end) + end + end for frame in plain.split(b"\n\n")]
        assert decode(frames) == decode([b"".join(frames)]) == whole
    for size in (1000, 1003, 4096):
        assert decode([body[at : at + size] for at in range(0, len(body), size)]) == whole


@given(st.data())
def test_a_recorded_stream_gives_the_same_events_at_any_cut(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream("openai-chat", data.draw(st.sampled_from(STREAMS)))
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=60))
    assert decode(cut(body, places)) == decode([body])


@given(st.data())
def test_a_recorded_stream_that_is_cut_off_never_runs_a_call_it_did_not_finish(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, expected = wire_corpus.stream("openai-chat", data.draw(st.sampled_from(STREAMS)))
    events, summary = decode([body[: data.draw(st.integers(0, len(body)))]])
    assert_contract(events)
    calls = [(call["name"], call["input"]) for call in expected["tool_calls"]]
    got = [(call["name"], call["input"]) for call in summary["tool_calls"] if "_raw" not in call["input"]]
    assert [call for call in got if call not in calls] == []
    if isinstance(events[-1], Failed):
        assert events[-1].failure.message


@given(st.data())
def test_a_damaged_stream_ends_in_order_and_never_raises(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream("openai-chat", data.draw(st.sampled_from(STREAMS)))
    damaged = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=30)):
        damaged[place] = data.draw(st.integers(0, 255))
    assert_contract(decode([bytes(damaged)])[0])


NAMES_200 = [
    name
    for name in wire_corpus.faults("openai-chat")
    if not wire_corpus.PRESENT
    or (
        wire_corpus.fault(name)["status"] == 200
        and wire_corpus.fault(name)["headers"] == {"content-type": "text/event-stream"}
    )
]


def sent(fault: dict[str, Any]) -> bytes:
    pieces = [
        step["prefix"].replace("@@", step["fill"] * step["count"]) if "gen" in step else step.get("send", "")
        for step in fault["steps"]
    ]
    return "".join(pieces).encode()


def assert_as_expected(fault: dict[str, Any], events: list[StreamEvent], summary: dict[str, Any]) -> None:
    expected = fault["expected"]
    assert {key: summary[key] for key in ("text", "reasoning", "finish", "complete")} == {
        key: expected[key] for key in ("text", "reasoning", "finish", "complete")
    }
    calls = [(call["name"], call["input"]) for call in summary["tool_calls"]]
    assert calls == [(call["name"], filled(call["input"])) for call in expected["tool_calls"]]
    ids = [call["id"] for call in summary["tool_calls"]]
    wanted = [call["id"] for call in expected["tool_calls"]]
    assert [want or got for want, got in zip(wanted, ids, strict=True)] == ids
    assert len(set(ids)) == len(ids)
    assert all(ids)
    assert_usage(expected["usage"], summary["usage"])
    assert_error(expected["error"], summary["error"], events[-1])
    run = {event.id for event in events if isinstance(event, ToolCall)}
    assert run.isdisjoint(fault.get("must_not_execute", []))
    assert_contract(events)


def filled(value: dict[str, Any]) -> dict[str, Any]:
    return {"s": "x" * 1_300_000} if value == {"s": "<1300000 x>"} else value


def assert_usage(expected: dict[str, int] | None, got: dict[str, int] | None) -> None:
    if expected is None or got is None:
        assert got == expected
        return
    output = expected.get("outputTokensTotal", expected["outputTokens"])
    assert (got["input_tokens"], got["output_tokens"]) == (expected["inputTokens"], output)


def assert_error(expected: dict[str, Any] | None, got: dict[str, str] | None, last: StreamEvent) -> None:
    if expected is None:
        assert got is None
        return
    assert isinstance(last, Failed)
    assert got is not None
    assert got["kind"] == expected["kind"]
    assert [words for words in expected["must_contain"] if words not in got["message"]] == []
    assert expected["retryable"] in (None, last.retryable)


@pytest.mark.parametrize("name", NAMES_200)
def test_a_fault_case_is_decoded_as_expected(name: str) -> None:
    fault = wire_corpus.fault(name)
    if fault["steps"][-1].get("end") == "abort":
        pytest.skip("an aborted connection is the transport's matter: see the HTTP tests")
    body = sent(fault)
    think_split = "<th" in body.decode()
    events, summary = decode([body], think_split=think_split)
    assert_as_expected(fault, events, summary)
    if len(body) < 10_000:
        assert decode([body[i : i + 1] for i in range(len(body))], think_split=think_split) == (events, summary)
        for place in range(len(body) if fault["split"] == "any" else 0):
            assert decode([body[:place], body[place:]], think_split=think_split) == (events, summary)
