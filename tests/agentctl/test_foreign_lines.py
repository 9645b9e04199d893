"""What lines of other tools say, and how bad ones are told: cut anywhere, of any length, of any shape."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.foreign_lines import Bad, Said, Splitter, parse
from tests.strategies import events, plain_json
from tracewriter.events import DELTAS, Event, name_of
from tracewriter.thread_trace import RECORDERS


def split(data: bytes, cuts: list[int], max_bytes: int = 64) -> list[bytes | Bad]:
    splitter, found = Splitter(max_bytes), []
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(at):
        found += list(splitter.feed(data[start:end]))
    rest = splitter.end()
    return found if rest is None else [*found, rest]


@given(st.lists(st.binary(max_size=90).map(lambda b: b.replace(b"\n", b"")), max_size=6), st.lists(st.integers(0, 500)))
def test_where_a_stream_is_cut_does_not_matter(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert split(data, cuts) == [line if len(line) <= 64 else Bad("longer than 64 bytes") for line in lines]


def test_an_endless_line_takes_no_memory_and_is_told_once() -> None:
    splitter = Splitter(1000)
    for _ in range(5000):
        assert list(splitter.feed(b"x" * 1000)) == []
    assert len(splitter._start) <= 1000
    assert list(splitter.feed(b"x\nnext\n")) == [Bad("longer than 1,000 bytes"), b"next"]


def said(value: dict[str, Any] | str, *, typed: bool = False) -> Said:
    found = parse(value.encode() if isinstance(value, str) else json.dumps(value).encode(), typed=typed)
    assert isinstance(found, Said), found
    return found


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ({"hook_event_name": "PreToolUse", "session_id": "x", "tool_name": "Bash"}, "PreToolUse"),
        ({"type": "message_start", "message": {}}, "message_start"),
        ({"type": "response_item", "payload": {"type": "message"}, "timestamp": "…"}, "response_item.message"),
        ({"id": "1", "msg": {"type": "agent_message", "message": "hi"}}, "agent_message"),
        ({"jsonrpc": "2.0", "method": "item/started", "params": {}}, "item/started"),
        ({"name": "GET /x", "traceId": "0" * 31 + "1"}, "GET /x"),
        ({"eventName": "gen_ai.choice", "body": {}}, "gen_ai.choice"),
        ({"body": "x", "attributes": {"event.name": "exception"}}, "exception"),
        ({"event": "started", "level": "info", "timestamp": "…"}, "started"),
        ({"event": {"type": "text"}, "n": 1}, "text"),
    ],
)
def test_the_shapes_of_other_tools_have_names_and_are_kept_whole(line: dict[str, Any], name: str) -> None:
    found = said(line)
    assert (found.name, found.data, found.typed, found.name_in_data) == (name, line, None, True)


def test_our_own_shape_has_its_time_and_ids() -> None:
    found = said({"event": "a.b", "data": {"x": 1}, "ts": "2026-01-01T00:00:00Z", "run": "r", "op": "o", "parent": "p"})
    assert (found.name, found.data, found.run, found.op, found.parent) == ("a.b", {"x": 1}, "r", "o", "p")
    assert found.ts is not None
    assert found.ts.year == 2026
    assert not found.name_in_data
    assert said({"event": "a.b", "seq": 7, "session": "other"}) == Said("a.b", {})


@pytest.mark.parametrize("more", [{"ts": "yesterday"}, {"run": 5}, {"op": "x y"}, {"data": [1]}, {"level": "info"}])
def test_what_only_looks_like_ours_is_kept_whole(more: dict[str, Any]) -> None:
    line = {"event": "a.b", **more}
    assert said(line) == Said("a.b", line, name_in_data=True)


def test_ids_of_spans_are_the_records_too() -> None:
    trace, span, parent = "0199a1b2c3d57e5f8a9b0c1d2e3f4a5b", "00f067aa0ba902b7", "53995c3f42cd8ad8"
    found = said({"name": "x", "traceId": trace, "spanId": span, "parentSpanId": parent})
    assert (found.run, found.op, found.parent) == (trace, span, parent)
    found = said({"name": "x", "context": {"trace_id": f"0x{trace}", "span_id": f"0x{span}"}, "parent_id": None})
    assert (found.run, found.op, found.parent) == (trace, span, "")


@given(events)
def test_events_of_ours_are_taken_as_such_only_when_asked_and_never_the_recorders(event: Event) -> None:
    line = msgspec.json.encode({"event": name_of(event), "data": event})
    untyped = parse(line, typed=False)
    assert isinstance(untyped, Said)
    assert untyped.typed is None
    typed = parse(line, typed=True)
    assert isinstance(typed, Said)
    if type(event) in RECORDERS | DELTAS:
        assert typed.typed is None
    else:
        assert type(typed.typed) is type(event)
        assert msgspec.json.encode(typed.typed) == msgspec.json.encode(event)


def test_an_event_of_ours_with_more_or_other_fields_is_a_tools_own() -> None:
    data = {"id": "c", "name": "n", "output": "o", "is_error": False, "duration_ms": 1.0}
    assert said({"event": "tool.call.finished", "data": data}, typed=True).typed is not None
    assert said({"event": "tool.call.finished", "data": {**data, "mine": 1}}, typed=True).typed is None
    assert said({"event": "tool.call.finished", "data": {**data, "output": 5}}, typed=True).typed is None
    assert said({"event": "no.such.kind", "data": data}, typed=True).typed is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "no JSON"),
        (b'{"type":"a"', "no JSON"),
        (b'{"type":"a"} x', "no JSON"),
        (b"[1]", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b"null", "no JSON object"),
        (b'{"a":1}', "no name of an event (event, hook_event_name, type, name, …)"),
        (b'{"type":5}', "no name of an event (event, hook_event_name, type, name, …)"),
        (b'{"type":" "}', "no name of an event (event, hook_event_name, type, name, …)"),
        (b'{"type":"a\xff"}', "no UTF-8 at byte 10"),
        (b'{"type":"a\0"}', "a NUL byte"),
        (b"[" * 5000, "no JSON"),
    ],
)
def test_a_bad_line_has_a_reason_that_tells_nothing_of_its_content(line: bytes, reason: str) -> None:
    assert parse(line, typed=False) == Bad(reason)


@pytest.mark.parametrize("line", [b"", b"  ", b"\r"])
def test_empty_lines_say_nothing(line: bytes) -> None:
    assert parse(line, typed=False) is None


def test_what_strict_decoders_refuse_is_taken_all_the_same() -> None:
    assert said('\ufeff{"type":"a"}').name == "a"
    assert said('{"type":"a","x":NaN}').name == "a"
    assert said('{"type":"a","x":"\\ud800"}').name == "a"
    assert said('{"type":"a"}\r').name == "a"


@given(st.binary(max_size=200) | plain_json.map(msgspec.json.encode), st.booleans())
def test_any_bytes_are_an_event_or_bad_or_nothing(line: bytes, typed: bool) -> None:
    found = parse(line, typed=typed)
    assert found is None or isinstance(found, (Said, Bad))
