"""The gemini decoder against recorded streams and fault cases: whole, byte by byte and at any cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.gemini import GeminiDecoder
from agentd.providers.stream import Failed
from tests import wire_cases, wire_corpus
from tests.wire_cases import Decoded, assert_contract, bytewise, cut

STREAMS = wire_corpus.names("streams/gemini", ".expected.json")
FAULTS = wire_corpus.faults("gemini")


def decode(pieces: list[bytes]) -> Decoded:
    return wire_cases.decode(lambda new_id: GeminiDecoder(new_id=new_id), pieces)


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_gemini_stream_gives_what_is_expected(name: str) -> None:
    body, expected = wire_corpus.stream("gemini", name)
    whole = decode([body])
    assert wire_corpus.mismatches(expected, whole.summary) == []
    assert_contract(whole.events)
    assert decode(bytewise(body)) == whole
    chance = random.Random(name)
    for _ in range(50):
        assert decode(cut(body, chance.sample(range(len(body)), chance.randint(1, 20)))) == whole


@given(st.data())
def test_a_recorded_gemini_stream_gives_the_same_events_at_any_cut(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream("gemini", data.draw(st.sampled_from(STREAMS)))
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=60))
    assert decode(cut(body, places)) == decode([body])


@given(st.data())
def test_a_recorded_gemini_stream_that_is_cut_off_never_runs_a_call_it_did_not_finish(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, expected = wire_corpus.stream("gemini", data.draw(st.sampled_from(STREAMS)))
    got = decode([body[: data.draw(st.integers(0, len(body)))]])
    assert_contract(got.events)
    assert expected["text"].startswith(got.summary["text"])
    calls = [(call["name"], call["input"]) for call in expected["tool_calls"]]
    assert [call for call in got.summary["tool_calls"] if (call["name"], call["input"]) not in calls] == []
    # Only a reason to finish makes an answer: without one it is a failure that says so, whatever came before.
    assert isinstance(got.events[-1], Failed) == (got.summary["finish"] in (None, "PROMPT_BLOCKED"))


@given(st.data())
def test_a_damaged_gemini_stream_ends_in_order_and_never_raises(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream("gemini", data.draw(st.sampled_from(STREAMS)))
    damaged = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=30)):
        damaged[place] = data.draw(st.integers(0, 255))
    assert_contract(decode([bytes(damaged)]).events)


@pytest.mark.parametrize("name", FAULTS)
def test_a_gemini_fault_case_is_decoded_as_expected_at_every_cut(name: str) -> None:
    fault = wire_corpus.fault(name)
    if fault["status"] != 200 or fault["steps"][-1].get("end") == "abort" or "content-encoding" in fault["headers"]:
        pytest.skip("a matter of the transport: see the HTTP tests")
    body = wire_cases.body_of(fault)
    whole = decode([body])
    assert wire_cases.fault_mismatches(fault, whole) == []
    assert_contract(whole.events)
    if len(body) < 10_000:
        assert decode(bytewise(body)) == whole
        for place in range(len(body)):
            assert decode([body[:place], body[place:]]) == whole
