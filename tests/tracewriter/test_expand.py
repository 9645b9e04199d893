"""Whatever was moved out of a record comes back as it was, heads say that they are heads, and look-alikes stay."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.strategies import SESSION, clean_text
from tests.tracewriter.payload_sessions import Body
from tracewriter import expand as expanding
from tracewriter.bodies import with_bodies, with_whole_lines
from tracewriter.events import RawRecord, ToolCallFinished, UnknownEvent, event_of
from tracewriter.expand import expand, heads, names_payloads, shown_chars
from tracewriter.findings import Found, Note
from tracewriter.payload import PayloadRef

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | clean_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(clean_text, inner, max_size=4),
    max_leaves=12,
)
LOOK_ALIKE = msgspec.json.encode(PayloadRef("ab" * 16, 9, 9, "h")).decode()


class Store:
    """Bodies by id."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def text(self, text: str) -> PayloadRef:
        return self._put(Body(text.encode()))

    def json(self, value: object) -> PayloadRef:
        return self._put(Body(msgspec.json.encode(value), is_json=True))

    def _put(self, body: Body) -> PayloadRef:
        self.bodies[body.id] = body.data
        return body.ref

    def load(self, ref: PayloadRef) -> bytes | None:
        return self.bodies.get(ref.payload)

    def find(self, ref: PayloadRef) -> bytes | Note:
        return self.bodies.get(ref.payload) or Note("payload_missing", "it is missing", payload=ref.payload)


def moved_out(value: object, store: Store, choices: st.DataObject) -> object:
    """The value with any of its parts moved out."""
    if choices.draw(st.integers(0, 3)) == 0:
        return store.text(value) if isinstance(value, str) else store.json(value)
    if isinstance(value, list):
        return [moved_out(item, store, choices) for item in value]
    if isinstance(value, dict):
        return {name: moved_out(item, store, choices) for name, item in value.items()}
    return value


@given(json_values, st.data())
def test_any_json_with_any_parts_moved_out_comes_back_equal(value: object, choices: st.DataObject) -> None:
    store = Store()
    data = msgspec.json.encode({"v": moved_out(value, store, choices)})
    assert msgspec.json.decode(expand(data, store.load)) == {"v": value}
    assert names_payloads(data) == bool(store.bodies)
    msgspec.json.decode(heads(data))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=600))
def test_any_text_comes_back_equal_and_its_head_tells_its_length(text: str) -> None:
    store = Store()
    data = msgspec.json.encode({"output": store.text(text)})
    assert msgspec.json.decode(expand(data, store.load)) == {"output": text}
    shown = msgspec.json.decode(heads(data))["output"]
    assert shown_chars(shown) == len(text)
    assert text.startswith(shown.rpartition("…[")[0])


@given(clean_text)
def test_look_alikes_inside_strings_are_untouched(text: str) -> None:
    data = msgspec.json.encode({"a": LOOK_ALIKE, LOOK_ALIKE: text + LOOK_ALIKE, "b": [text]})
    assert bytes(expand(data, Store().load)) == data
    assert bytes(heads(data)) == data


def test_what_a_body_contains_is_content() -> None:
    store = Store()
    inner = {"x": msgspec.json.decode(LOOK_ALIKE)}
    data = msgspec.json.encode({"json": store.json(inner), "text": store.text(LOOK_ALIKE)})
    assert msgspec.json.decode(expand(data, store.load)) == {"json": inner, "text": LOOK_ALIKE}


def test_structure_that_is_no_reference_is_untouched() -> None:
    for value in (
        {"payload": "x", "bytes": 1, "chars": 1, "head": ""},
        {"payload": "ab" * 16, "bytes": 1},
        {"payload": "ab" * 16, "bytes": 1, "chars": 1, "head": "", "type": "yaml"},
        {"bytes": 1, "payload": "ab" * 16, "chars": 1, "head": ""},
    ):
        data = msgspec.json.encode({"v": value})
        assert bytes(expand(data, Store().load)) == bytes(heads(data)) == data
    bad = b'{"v":' + LOOK_ALIKE.replace('"h"', '"\\x"').encode() + b"}"  # no JSON: damaged
    assert bytes(heads(bad)) == bad


def test_a_missing_or_wrong_body_is_its_head_and_a_mark() -> None:
    store = Store()
    words = "some words " * 50
    refs = [store.text(words), store.json({"a": words}), store.json(words)]
    data = msgspec.json.encode(refs)
    for bodies in ({}, dict.fromkeys(store.bodies, b"\xff"), {refs[1].payload: b"{}\n", refs[2].payload: b"{"}):
        gone = Store()
        gone.bodies = bodies
        shown = msgspec.json.decode(expand(data, gone.load))
        whole = [isinstance(text, str) and text.endswith("…[payload missing]") for text in shown]
        assert whole == [True] * 3
        assert shown[0].startswith(words[:180])


def test_of_json_the_head_is_a_string() -> None:
    store = Store()
    data = msgspec.json.encode({"input": store.json({"path": "a b"})})
    assert msgspec.json.decode(heads(data)) == {"input": '{"path":"a b"}…[payload: 14 characters]'}


def test_bodies_beyond_the_limit_stay_heads() -> None:
    store = Store()
    ref = store.text("x" * 100)
    shown = msgspec.json.decode(expand(msgspec.json.encode([ref] * 5), store.load, limit=250))
    assert [shown_chars(text) for text in shown] == [None, None, 100, 100, 100]
    assert expanding.MAX_EXPANDED == 64 * 1024 * 1024


def test_a_text_that_is_whole_has_no_note() -> None:
    for text in ("", "…[payload: x characters]", "…[payload: 9 characters] and more", "[payload: 9 characters]"):
        assert shown_chars(text) is None


# --- records


def found(name: str, data: object, seq: int = 7) -> Found:
    record = RawRecord(
        seq=seq,
        ts=datetime(2026, 11, 29, tzinfo=UTC),
        event=name,
        session=SESSION,
        data=Raw(msgspec.json.encode(data)),
    )
    return Found(record, msgspec.json.encode(record), 1, 0, "verified", seq)


def test_wanted_records_are_whole_and_others_keep_their_references() -> None:
    store = Store()
    output = "many words " * 3000
    data = {"id": "c", "name": "read", "output": store.text(output), "is_error": False, "duration_ms": 1.0}
    one, two = found("tool.call.finished", data, 7), found("tool.call.finished", data, 8)
    first, second = with_bodies([one, two], store.find, lambda record: record.seq == 8)
    assert first == one
    assert isinstance(second, Found)
    event = event_of(second.record.event, second.record.data)
    assert isinstance(event, ToolCallFinished)
    assert (event.output, second.line) == (output, two.line)


def test_a_record_that_heads_would_make_unreadable_has_its_structure_put_back() -> None:
    store = Store()
    usage = {"input_tokens": 1, "output_tokens": 2}
    data = {
        "text": store.text("said " * 9),
        "reasoning": "",
        "tool_calls": store.json([{"id": "1", "name": "n", "input": {}}]),
        "stop_reason": "tool",
        "finish": None,
        "usage": usage,
        "cost_usd": None,
        "ttft_ms": None,
        "duration_ms": 1.0,
    }
    (item,) = with_bodies([found("model.request.finished", data)], store.find, lambda record: False)
    assert isinstance(item, Found)
    event = event_of("model.request.finished", heads(item.record.data))
    assert not isinstance(event, UnknownEvent)
    assert b'[{"id":"1"' in bytes(item.record.data)
    assert shown_chars(msgspec.json.decode(item.record.data)["text"]) == 45


def test_whole_lines_are_the_same_record_with_its_bodies() -> None:
    store = Store()
    item = found("some.tool.observed", {"a": store.json({"b": [1]}), "c": store.text("t")})
    (whole,) = with_whole_lines([item], store.find, lambda record: True)
    assert isinstance(whole, Found)
    fields = msgspec.json.decode(whole.line)
    assert fields.pop("data") == {"a": {"b": [1]}, "c": "t"}
    assert fields == {name: value for name, value in msgspec.json.decode(item.line).items() if name != "data"}
    assert list(with_whole_lines([item], store.find, lambda record: False)) == [item]


def test_what_cannot_be_had_is_noted_after_its_record() -> None:
    store = Store()
    gone, bad = Body(b"gone").ref, store.text("bad")
    store.bodies[bad.payload] = b"\xff\xfe"
    item, *notes = with_bodies([found("some.tool.observed", [gone, bad])], store.find, lambda record: True)
    assert isinstance(item, Found)
    assert msgspec.json.decode(item.record.data) == ["gone…[payload missing]", "bad…[payload missing]"]
    assert [(note.kind, note.payload, note.first) for note in notes if isinstance(note, Note)] == [
        ("payload_missing", gone.payload, 7),
        ("payload_damaged", bad.payload, 7),
    ]
