"""What moves out of a record: put back, it is what it was; what stays is short, and nothing in it looks like a reference."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw, Struct, structs

from tests.strategies import any_value, clean_text, events, plain_json, realise
from tracewriter import jsonl, sizing
from tracewriter.config import KIB, MAX_BODY, MAX_LINE, MIB
from tracewriter.events import (
    Context,
    Event,
    Failure,
    Foreign,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    RunExecuteFinished,
    ToolCall,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceDropObserved,
)
from tracewriter.expand import expand
from tracewriter.lines import Entry, cut_data_of, data_of
from tracewriter.moving import DATA_BYTES, Data, cut_out, keys_of, looks_like_reference, move_out
from tracewriter.payload import MAX_PAYLOAD, PAYLOAD_BYTES, REFERENCE, PayloadRef, head_of
from tracewriter.sizing import MAY_WAIT, SHORT_LINE, is_flat, sizer

KEYS = keys_of(b"k" * 32)


def restored(data: Data) -> bytes:
    """With every body back, each checked against what stands for it; none is left over."""
    bodies = {body.payload: body for body in data.bodies}
    named: set[str] = set()

    def load(ref: PayloadRef) -> bytes:
        body = bodies[ref.payload]
        text = body.data.decode()
        kind = "json" if body.json else UNSET
        assert ref == PayloadRef(ref.payload, len(body.data), len(text), head_of(text), kind)
        named.add(ref.payload)
        return body.data

    whole = bytes(expand(data.line, load))
    assert named == bodies.keys()
    assert len(data.bodies) == len(bodies)
    assert all(len(body.data) <= MAX_BODY for body in data.bodies)
    assert sum(len(body.data) for body in data.bodies) <= MAX_PAYLOAD
    return whole


def stays(data: Data) -> None:
    """What stays is a line under the bound, with no reference but the true ones."""
    assert len(data.line) <= DATA_BYTES
    assert jsonl.is_json(data.line)
    assert {match[1].decode() for match in REFERENCE.finditer(bytes(data.line))} == {b.payload for b in data.bodies}
    assert not looks_like_reference(REFERENCE.sub(b"0", bytes(data.line)))


def has_long_text(event: Event) -> bool:
    return sizing.long_text(type(event))(event)


def texts(value: Any) -> list[str]:
    """Every text in a decoded line that is no part of a reference."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [] if next(iter(value), "") == "payload" else [t for v in value.values() for t in texts(v)]
    return [t for item in value for t in texts(item)] if isinstance(value, list) else []


lengths = st.sampled_from([0, 10, 4096, 4097, 5461, 5462, 16_384, 16_385, 70_000, 300_000])
long_text = st.builds(lambda unit, size: unit * (size // len(unit.encode()) + 1), clean_text.filter(bool), lengths)
long_json = st.builds(
    lambda value, text, many: jsonl.raw([value, text] * many), plain_json, long_text, st.sampled_from([1, 1, 3])
)
grown: st.SearchStrategy[Event] = st.one_of(
    st.builds(ToolOutputDelta, st.just(0), long_text),
    st.builds(ToolCallFinished, long_text, clean_text, long_text, st.booleans(), st.floats(0, 9)),
    st.builds(ToolCallStarted, clean_text, long_text, long_json),
    st.builds(
        ModelRequestFinished,
        long_text,
        long_text,
        st.lists(st.builds(ToolCall, clean_text, clean_text, long_json), max_size=3).map(tuple),
        clean_text,
        st.none() | long_text,
        st.none(),
        st.none(),
        st.none(),
        st.just(1.0),
        long_text | st.just(UNSET),
    ),
    st.builds(
        ModelRequestStarted,
        clean_text,
        clean_text,
        clean_text,
        st.builds(
            Context,
            st.just(0),
            st.lists(long_json, max_size=6).map(tuple),
            st.just(5),
            system=long_text,
            tools=st.lists(long_json, max_size=3).map(tuple),
        ),
    ),
    st.builds(
        ModelRequestFailed,
        st.builds(Failure, clean_text, long_text),
        long_text,
        clean_text,
        st.lists(long_text, max_size=4).map(tuple),
        st.none(),
        st.none(),
        st.just(1.0),
    ),
)


@settings(deadline=None)
@given(grown | events.filter(lambda event: not isinstance(event, TraceDropObserved)))
def test_an_event_with_its_bodies_put_back_is_what_it_was(event: Event) -> None:
    data = data_of(event, KEYS)
    stays(data)
    assert restored(data) == msgspec.json.encode(event)
    assert all(len(text.encode()) <= PAYLOAD_BYTES for text in texts(msgspec.json.decode(data.line)))
    if len(msgspec.json.encode(event)) <= PAYLOAD_BYTES and not looks_like_reference(msgspec.json.encode(event)):
        assert data.bodies == ()


@settings(deadline=None)
@given(any_value, long_text)
def test_whatever_is_put_in_there_is_a_line_and_its_bodies(value: object, text: str) -> None:
    odd: Any = realise(value)
    for event in (
        odd,
        [odd, text],
        {"a": odd, "b": text},
        ToolOutputDelta(0, odd),
        ToolCallFinished(text, odd, "", False, 1),
    ):
        data = data_of(event, KEYS)
        stays(data)
        assert isinstance(msgspec.json.decode(restored(data)), dict)
        cut = cut_data_of(event)
        stays(cut)
        assert cut.bodies == ()


@pytest.mark.parametrize("char", ["x", "é", "€", "\U0001f600", "\x01", '"'])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_bound_is_in_bytes_of_utf_8(char: str, more: int) -> None:
    size = PAYLOAD_BYTES // len(char.encode()) * len(char.encode())
    text = "x" * (PAYLOAD_BYTES - size) + char * (size // len(char.encode()) - 1)
    text += "x" * (PAYLOAD_BYTES - len(text.encode()) + more)
    assert len(text.encode()) == PAYLOAD_BYTES + more
    event = ToolOutputDelta(0, text)
    assert len(data_of(event, KEYS).bodies) == (more > 0)
    assert has_long_text(event) == (more > 0)


@given(grown)
def test_what_is_let_through_without_a_look_never_has_a_long_text_or_makes_a_long_line(event: Event) -> None:
    if not is_flat(type(event)):
        return
    size = sizer(type(event))(event) + Entry(type(event), "s", "", "", "", fast=True).rest
    if size <= SHORT_LINE:
        assert not has_long_text(event)
    if size <= MAY_WAIT:
        assert len(msgspec.json.encode(event)) < MAX_LINE - 2 * KIB


# --- what might be taken for a reference

REFERENCE_LIKE = b'{"payload":"%s","bytes":1,"chars":1,"head":""}' % (b"ab" * 16)
LOOKALIKES = [
    REFERENCE_LIKE,
    b"[1,%s]" % REFERENCE_LIKE,
    b'{"a":{"payload":"x"}}',
    b'{ "payload" : "x"}',
    b'{\t"p\\u0061yload":"x"}',
    b'{"\\u0070\\u0061\\u0079load":1}',
    b'{"payload":1,"payload":"abc"}',
]


@pytest.mark.parametrize("body", LOOKALIKES)
def test_what_looks_like_a_reference_moves_out_whatever_its_size(body: bytes) -> None:
    for event in (
        ToolCallStarted("id", "name", Raw(body)),
        ModelRequestStarted("main", "p", "m", Context(0, (Raw(b"{}"), Raw(body)), 5)),
        Foreign("other.tool.seen", Raw(body)),
        msgspec.json.decode(body),
        {"deep": [msgspec.json.decode(body)]},
    ):
        data = data_of(event, KEYS)
        stays(data)
        assert data.bodies
        expected = event if not isinstance(event, Foreign) else event.data
        whole = msgspec.json.decode(restored(data))
        plain = msgspec.json.decode(msgspec.json.encode(expected))
        assert whole in (plain, {"value": plain})
        assert not looks_like_reference(bytes(cut_data_of(event).line))


def test_a_reference_that_is_handed_in_as_an_event_is_content() -> None:
    ref = PayloadRef("ab" * 16, 1, 1, "")
    data = data_of(ref, KEYS)
    assert (len(data.bodies), data.bodies[0].json) == (1, True)
    assert restored(data) == msgspec.json.encode(ref)


@given(clean_text)
@example('{"payload":"')
@example('{\\"payload\\"')
def test_text_never_looks_like_a_reference(text: str) -> None:
    for shown in (text, REFERENCE_LIKE.decode() + text, text + '{"payload":"x"}'):
        assert data_of(ToolOutputDelta(0, shown), KEYS).bodies == ()
        assert data_of(ToolCallStarted("id", shown, Raw(msgspec.json.encode([shown]))), KEYS).bodies == ()


# --- lines that are still too long


def test_the_largest_field_moves_out_as_json_and_the_rest_stays_where_it_was() -> None:
    messages = tuple(jsonl.raw({"role": "user", "text": f"{n} " * 2000}) for n in range(100))
    event = ModelRequestStarted("main", "p", "m", Context(0, messages, 5, tools=(Raw(b"{}"),)))
    data = data_of(event, KEYS)
    (body,) = data.bodies
    assert body.data == msgspec.json.encode(messages)
    shown = msgspec.json.decode(data.line)
    assert (shown["model"], shown["context"]["tools"], shown["context"]["messages"]["type"]) == ("m", [{}], "json")
    assert restored(data) == msgspec.json.encode(event)


def test_a_field_that_moves_out_as_json_has_no_references_in_it() -> None:
    messages = tuple(jsonl.raw({"text": f"{n} " * size}) for n in range(100) for size in (2000, 9000))
    event = ModelRequestStarted("main", "p", "m", Context(0, messages, 5))
    data = data_of(event, KEYS)
    assert restored(data) == msgspec.json.encode(event)
    assert len(data.bodies) in (1, 100)


@pytest.mark.parametrize("width", [1, 30, 10_000])
def test_many_fields_or_names_that_are_too_long_move_out_together(width: int) -> None:
    event = {f"{n} " * width + "k": "v " * 3000 for n in range(60)}
    data = data_of(event, KEYS)
    stays(data)
    assert msgspec.json.decode(restored(data)) == event


def test_what_is_beyond_the_bound_of_a_body_is_cut_and_says_so() -> None:
    event = RunExecuteFinished("completed", None, 0.0, tuple("x" * 15_000 for _ in range(2000)), (), (), 1.0)
    data = data_of(event, KEYS)
    stays(data)
    whole = msgspec.json.decode(restored(data))
    assert whole["cut_from_bytes"] > 2000 * 15_000
    assert len(whole["tools"]) == 2000
    assert whole["tools"][0].endswith("…[cut: 15000 characters]")


@pytest.mark.parametrize("unit", ["x", "é", "words and words ", "\U0001f600", "\ud800"])
def test_a_text_beyond_the_bound_is_cut_and_its_length_told(unit: str) -> None:
    text = unit * (3 * MAX_BODY // len(unit.encode(errors="replace")))
    data = data_of(ToolOutputDelta(0, text), KEYS)
    whole = msgspec.json.decode(restored(data))
    assert whole["text"].endswith(f"…[cut: {len(text)} characters]")
    assert whole["cut_from_bytes"] >= len(text)
    assert len(data.bodies[0].data) > MAX_BODY - 4 * KIB
    assert text.startswith(whole["text"].partition("…")[0]) or unit == "\ud800"


def test_json_beyond_the_bound_is_left_out_and_says_so() -> None:
    body = b'"%s"' % (b"y" * (MAX_BODY + 1))
    shown = msgspec.json.decode(data_of(ToolCallStarted("id", "n", Raw(body)), KEYS).line)
    assert shown == {
        "id": "id",
        "name": "n",
        "input": f"[{len(body)} bytes of JSON, left out]",
        "cut_from_bytes": len(body),
    }


def test_what_one_record_moves_out_is_bounded_in_all() -> None:
    calls = tuple(f"{n} " * MIB for n in range(20))
    data = data_of(ModelRequestFailed(Failure("k", "m"), "", "", calls, None, None, 1.0), KEYS)
    stays(data)
    assert sum(len(body.data) for body in data.bodies) <= MAX_PAYLOAD
    whole = msgspec.json.decode(restored(data))["cut_tool_calls"]
    assert [len(text) for text in whole[:2]] == [2 * MIB, 2 * MIB]
    assert all(
        text.endswith(f"…[cut: {len(call)} characters]") for text, call in zip(whole[4:], calls[4:], strict=True)
    )


# --- odd values


def test_a_lone_surrogate_in_a_long_text_is_repaired_and_counted() -> None:
    whole = msgspec.json.decode(restored(data_of(ToolOutputDelta(0, "\ud800 " * 10_000), KEYS)))
    assert whole == {"offset": 0, "text": "\ufffd " * 10_000, "repaired": 1}


def test_a_number_that_json_has_not_does_not_make_a_long_text_short() -> None:
    whole = msgspec.json.decode(restored(data_of(ToolCallFinished("i", "n", "o " * 10_000, False, math.nan), KEYS)))
    assert (whole["output"], whole["duration_ms"], whole["repaired"]) == ("o " * 10_000, "nan", 1)


@pytest.mark.parametrize("body", [b'{"a":\n"%s"}', b'["%s",', b'{ "a": "%s" }', b'"%s\\ud800"'])
def test_a_long_body_of_several_lines_or_no_json_is_one_line_of_json(body: bytes) -> None:
    body %= b"x " * 10_000
    data = data_of(ToolCallStarted("id", "name", Raw(body)), KEYS)
    stays(data)
    shown = msgspec.json.decode(restored(data))["input"]
    text = shown if isinstance(shown, str) else shown["a"]
    assert "x " * 10_000 in text


def test_foreign_structs_have_their_own_names_for_their_fields() -> None:
    class Renamed(Struct, rename={"text": "body"}):
        text: str

    assert restored(move_out(Renamed("x " * 10_000), KEYS)) == msgspec.json.encode(Renamed("x " * 10_000))


# --- bodies that are not to be had


def test_without_its_body_a_line_has_the_head_and_the_mark_of_a_cut() -> None:
    text, body = 'say "it" \\ ' * 3000, jsonl.raw(["word"] * 9000)
    data = data_of(
        ModelRequestFinished(text, "", (ToolCall("i", "n", body),), "stop", None, None, None, None, 1.0), KEYS
    )
    ids = {item.payload.encode() for item in data.bodies}
    line = b'{"seq":1,"data":%s}\n' % data.line
    shown = msgspec.json.decode(cut_out(line, ids))["data"]
    assert shown["text"] == head_of(text) + f"…[cut: {len(text)} characters]"
    assert shown["tool_calls"][0]["input"] == f"[{len(body)} bytes of JSON, left out]"
    assert shown["cut_from_bytes"] == len(text) + len(body)
    assert cut_out(line, set()) == line


def test_without_the_body_that_all_of_its_data_is_a_line_has_the_mark_in_its_place() -> None:
    data = data_of({"payload": "x " * 10_000}, KEYS)
    line = cut_out(b'{"seq":1,"data":%s}\n' % data.line, {data.bodies[0].payload.encode()})
    assert msgspec.json.decode(line) == {"seq": 1, "data": f"[{len(data.bodies[0].data)} bytes of JSON, left out]"}


def test_keys_are_not_shown() -> None:
    assert "k" * 8 not in repr(KEYS) + repr(structs.replace(KEYS))
