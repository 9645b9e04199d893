"""The openai-responses decoder against recorded streams and fault cases: whole, byte by byte and at any cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.openai_responses import OpenAIResponsesDecoder
from agentd.providers.stream import Failed, Opaque, Text
from tests import wire_cases, wire_corpus
from tests.wire_cases import Decoded, assert_contract, bytewise, cut

WIRE = "openai-responses"
STREAMS = wire_corpus.names(f"streams/{WIRE}", ".expected.json")
FAULTS = wire_corpus.faults(WIRE)


def decode(pieces: list[bytes]) -> Decoded:
    return wire_cases.decode(lambda new_id: OpenAIResponsesDecoder(new_id=new_id), pieces)


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_response_gives_what_is_expected(name: str) -> None:
    body, expected = wire_corpus.stream(WIRE, name)
    whole = decode([body])
    assert wire_corpus.mismatches(expected, whole.summary) == []
    assert_contract(whole.events)
    if len(body) < 100_000:
        assert decode(bytewise(body)) == whole
    assert decode([body[at : at + 7] for at in range(0, len(body), 7)]) == whole


@given(st.data())
def test_a_recorded_response_gives_the_same_events_at_any_cut(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream(WIRE, data.draw(st.sampled_from(STREAMS)))
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=60))
    assert decode(cut(body, places)) == decode([body])


@given(st.data())
def test_a_recorded_response_that_is_cut_off_fails_and_runs_no_call(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, expected = wire_corpus.stream(WIRE, data.draw(st.sampled_from(STREAMS)))
    got = decode([body[: data.draw(st.integers(0, len(body)))]])
    assert_contract(got.events)
    assert expected["text"].startswith(got.summary["text"])
    if got.summary["finish"] is None:
        assert isinstance(got.events[-1], Failed)
        assert got.summary["tool_calls"] == []
    else:
        assert wire_corpus.mismatches(expected, got.summary) == []


@given(st.data())
def test_a_damaged_response_ends_in_order_and_never_raises(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream(WIRE, data.draw(st.sampled_from(STREAMS)))
    damaged = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=30)):
        damaged[place] = data.draw(st.integers(0, 255))
    assert_contract(decode([bytes(damaged)]).events)


def without(body: bytes, *types: str) -> bytes:
    """The stream without the events of these types."""
    frames = body.replace(b"\r\n", b"\n").split(b"\n\n")
    return b"\n\n".join(frame for frame in frames if not any(f'"type":"{kind}"'.encode() in frame for kind in types))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "left_out",
    [
        ("response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta"),
        ("response.output_text.done", "response.refusal.done", "response.reasoning_text.done", "response.content_part.done"),
        ("response.function_call_arguments.delta",),
        ("response.function_call_arguments.done", "response.output_item.done"),
        ("response.output_item.added", "response.content_part.added"),
        ("response.created", "response.in_progress", "response.output_item.added", "response.output_item.done"),
        ("response.output_item.done", "response.content_part.done", "response.output_text.done"),
        (
            "response.output_text.delta", "response.output_text.done", "response.content_part.done",
            "response.refusal.delta", "response.refusal.done", "response.reasoning_text.delta",
            "response.reasoning_text.done", "response.output_item.added", "response.output_item.done",
            "response.function_call_arguments.delta", "response.function_call_arguments.done",
        ),
    ],
)  # fmt: skip
def test_an_answer_is_the_same_from_any_of_the_events_that_tell_it(name: str, left_out: tuple[str, ...]) -> None:
    """What servers of other make leave out: any one of the up to four times that a text or a call is told."""
    body, expected = wire_corpus.stream(WIRE, name)
    end = body.rpartition(b'"output":')[2]
    if end.startswith(b"[]") and {"response.output_item.added", "response.output_item.done"} <= set(left_out):
        pytest.skip("the end of this one repeats nothing: what its items told is gone with them")
    got = decode([without(body, *left_out)])
    assert wire_corpus.mismatches(expected, got.summary) == []
    assert_contract(got.events)


@pytest.mark.parametrize("name", STREAMS)
def test_the_items_of_a_recorded_response_are_told_apart_without_ids_or_without_places(name: str) -> None:
    body, expected = wire_corpus.stream(WIRE, name)
    for field, other in ((b'"output_index"', b'"was_index"'), (b'"item_id"', b'"was_id"'), (b'"id"', b'"was_own_id"')):
        got = decode([body.replace(field, other)])
        assert wire_corpus.mismatches(expected, got.summary) == []


def test_what_was_encrypted_is_kept_of_every_response_that_goes_on_from_it() -> None:
    wire_corpus.need_corpus()
    for name in STREAMS:
        body, _ = wire_corpus.stream(WIRE, name)
        events = decode([body]).events
        kept = [event for event in events if isinstance(event, Opaque)]
        if b'"encrypted_content"' in body and any(isinstance(event, Text) for event in events):
            assert len(kept) == 1 or b"_call.completed" in body  # what came of it is the provider's own call


@pytest.mark.parametrize("name", FAULTS)
def test_a_responses_fault_case_is_decoded_as_expected_at_every_cut(name: str) -> None:
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
