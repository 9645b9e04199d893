"""What is encoded later, what is encoded at once: the bytes are the same, and nobody's later change is recorded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.fakes import START, FakeClock
from tests.strategies import SESSION, clean_text, events
from tracewriter.config import BATCH_BYTES, BATCH_EVENTS, MAX_FRAME, MAX_LINE
from tracewriter.events import (
    KINDS,
    NAMES,
    Event,
    FileChangeApplied,
    ModelRequestFinished,
    ModelStreamDelta,
    Record,
    RunExecuteFinished,
    SessionRecordFinished,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceDropObserved,
    Usage,
)
from tracewriter.lines import _LATER, Entry
from tracewriter.outbox import _IDS_KEPT, Budget, Outbox
from tracewriter.outframes import OutFrame
from tracewriter.protocol import Kind
from tracewriter.sizing import is_flat, sizer


def outbox() -> Outbox:
    return Outbox(SESSION, FakeClock(), Budget(2**40, 2**39), resumed=False)


def lines(box: Outbox) -> list[bytes]:
    box.cut()
    return b"".join(frame.body for frame in frames(box)).split(b"\n")[:-1]


def frames(box: Outbox) -> list[OutFrame]:
    """Those with lines."""
    return [frame for frame in box.frames if frame.kind is not Kind.PAYLOAD]


def alone(seq: int, event: Event, run: str = "ab", op: str = "") -> bytes:
    """The record as one call of the encoder makes it, field by field."""
    record = Record(
        seq=seq,
        ts=START,
        event=NAMES[type(event)],
        session=SESSION,
        run=run or msgspec.UNSET,
        op=op or msgspec.UNSET,
        data=event,
    )
    return msgspec.json.encode(record)


own_events = events.filter(lambda event: not isinstance(event, TraceDropObserved))


@given(st.lists(st.tuples(own_events, clean_text, st.sampled_from(["", "0" * 16])), max_size=20))
def test_a_line_is_byte_for_byte_what_encoding_it_alone_gives(given_events: list[tuple[Event, str, str]]) -> None:
    box = outbox()
    for event, run, op in given_events:
        box.record(event, run=run, op=op)
    expected = [alone(seq, event, run, op) for seq, (event, run, op) in enumerate(given_events, 1)]
    assert lines(box) == expected


POISON: list[Any] = [
    ToolOutputDelta(0, "\ud800"),
    ToolOutputDelta(10**5000, "x"),
    ToolOutputDelta(0, 5),  # type: ignore[arg-type]
    ModelStreamDelta(b"\xff", 0, "x"),  # type: ignore[arg-type]
    ToolCallFinished(object(), "n", "x", False, 1.0),  # type: ignore[arg-type]
    ToolCallStarted("id", "name", Raw(b'{"a":\n1')),
    object(),
]


@given(st.lists(own_events, max_size=6), st.lists(own_events, max_size=6), st.sampled_from(POISON))
def test_a_value_that_cannot_be_encoded_costs_its_own_line_and_neither_number_nor_neighbour(
    before: list[Event], after: list[Event], poison: Any
) -> None:
    box = outbox()
    for event in (*before, poison, *after):
        box.record(event, run="ab")
    found = lines(box)
    bad = found.pop(len(before))
    assert found[: len(before)] == [alone(seq, event) for seq, event in enumerate(before, 1)]
    assert found[len(before) :] == [alone(seq, event) for seq, event in enumerate(after, len(before) + 2)]
    assert msgspec.json.decode(bad)["seq"] == len(before) + 1
    assert box.dropped == 0


def test_what_the_caller_changes_afterwards_is_recorded_as_it_was() -> None:
    box = outbox()
    counts = {"a": 1}
    box.record(SessionRecordFinished(1, counts, Usage(), None))
    names: list[str] = ["one"]
    box.record(RunExecuteFinished("completed", None, None, names, (), (), 1.0))  # type: ignore[arg-type]
    body = bytearray(b'{"a":1}')
    box.record(ToolCallStarted("id", "name", Raw(body)))
    wrong: list[object] = [1]
    for field in range(5):
        values: list[Any] = ["id", "name", "text", False, 1.0]
        values[field] = wrong
        box.record(ToolCallFinished(*values))
    box.record(FileChangeApplied("p", wrong, None, "d"))  # type: ignore[arg-type]
    box.record(ToolOutputDelta(wrong, "x"))  # type: ignore[arg-type]
    ids: list[object] = [1]
    box.record(ToolOutputDelta(0, "x"), run=ids)  # type: ignore[arg-type]
    counts["b"] = 2
    names.append("two")
    body[5:6] = b"9"
    wrong.append(2)
    ids.append(2)
    data = [msgspec.json.decode(line)["data"] for line in lines(box)]
    assert data[0]["counts"] == {"a": 1}
    assert data[1]["tools"] == ["one"]
    assert data[2]["input"] == {"a": 1}
    assert [next(v for v in item.values() if isinstance(v, list)) for item in data[3:10]] == [[1]] * 7
    assert box.dropped + len(data) == box.emitted


def test_only_kinds_that_hold_nothing_changeable_wait() -> None:
    scalars = ["str", "int", "float", "bool", "NoneType", "UnsetType"]
    for kind in KINDS.values():
        names = {part.strip() for hint in kind.__annotations__.values() for part in str(hint).split("|")}
        assert is_flat(kind) == (names - {"None"} <= set(scalars))
    assert {KINDS[n] for n in ("tool.output.delta", "model.stream.delta", "tool.call.finished")} <= _LATER
    assert not {SessionRecordFinished, ToolCallStarted, ModelRequestFinished, TraceDropObserved} & _LATER


@given(own_events)
def test_the_size_of_an_event_is_known_closely_enough_before_it_is_encoded(event: Event) -> None:
    if is_flat(type(event)):
        plain = len(msgspec.json.encode(event))
        about = sizer(type(event))(event)
        text = sum(len(value) for value in msgspec.structs.astuple(event) if isinstance(value, str))
        fields = len(type(event).__struct_fields__)
        assert text <= about <= plain + 24 * fields + 40
        assert plain <= 6 * about + 40 * fields


@pytest.mark.parametrize("text", ["\x01" * 9_000, "\x01" * 65_000, "é" * 60_000, "x" * 60_000, "\ud800" * 3_000])
@pytest.mark.parametrize("between", [0, 3, 90])
def test_text_that_grows_when_it_is_encoded_still_makes_frames_and_lines_within_their_bounds(
    text: str, between: int
) -> None:
    box = outbox()
    given_events = 0
    for _ in range(6):
        for _ in range(between):
            box.record(ToolOutputDelta(0, "x" * 100))
        box.record(ToolOutputDelta(0, text))
        given_events += between + 1
    found = lines(box)
    assert [msgspec.json.decode(line)["seq"] for line in found] == list(range(1, given_events + 1))
    assert all(len(line) < MAX_LINE for line in found)
    assert all(len(frame.body) <= MAX_FRAME and frame.count <= BATCH_EVENTS for frame in frames(box))
    assert [frame.first for frame in frames(box)] == [1, *(frame.end + 1 for frame in frames(box)[:-1])]
    assert box.own_bytes == box.queued_bytes == sum(len(frame.body) for frame in box.frames)


@given(st.lists(st.integers(0, 100_000), max_size=60))
def test_what_is_not_encoded_yet_is_bounded(sizes: list[int]) -> None:
    box = outbox()
    for size in sizes:
        box.record(ToolCallFinished("i" * (size // 3), "n" * (size // 3), "o" * (size // 3), False, 1.0))
        waiting = sum(len(line.data.id) * 3 for line in box._lines if isinstance(line.data, ToolCallFinished))
        assert waiting <= box._size < BATCH_BYTES
        assert box.queued_bytes == box.own_bytes + box._size


@given(st.lists(st.tuples(st.integers(0, _IDS_KEPT + 5), st.booleans()), max_size=300))
def test_kinds_are_counted_whatever_ids_they_have(steps: list[tuple[int, bool]]) -> None:
    box = outbox()
    for number, first in steps:
        box.record(ToolOutputDelta(0, "x") if first else ModelStreamDelta("text", 0, "x"), op=str(number))
        assert len(box._all_heads) <= _IDS_KEPT + 1
    wanted = {"tool.output.delta": sum(f for _, f in steps), "model.stream.delta": sum(not f for _, f in steps)}
    assert box.counts() == {name: count for name, count in wanted.items() if count}
    assert [msgspec.json.decode(line).get("op") for line in lines(box)] == [str(number) for number, _ in steps]


def test_foreign_kinds_leave_nothing_behind() -> None:
    box = outbox()
    for number in range(100):
        box.record(type(f"K{number}", (), {})())
    assert box._heads == {}
    assert len(lines(box)) == 100


def test_ids_that_are_too_long_have_no_entry() -> None:
    with pytest.raises(ValueError, match="too long"):
        Entry(ToolOutputDelta, SESSION, "r" * 5000, "", "", fast=True)
