"""One session on the producer's side: record() takes anything, numbers everything once, and accounts for every event."""

from __future__ import annotations

import gc
import math
from datetime import UTC, datetime
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from tests.fakes import START, FakeClock
from tests.strategies import SESSION, any_value, events, nasty_events, nasty_text, realise
from tracewriter.config import BATCH_BYTES, BATCH_EVENTS, HELD_EVENTS, MAX_FRAME, MAX_LINE
from tracewriter.events import (
    KINDS,
    ModelRequestFinished,
    SessionRecordFinished,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceDropObserved,
    Usage,
    event_of,
)
from tracewriter.lines import WITH_JSON
from tracewriter.outbox import SESSION_RESERVE, Budget, Outbox
from tracewriter.outframes import OutFrame
from tracewriter.protocol import Kind
from tracewriter.scan import parse_record


def outbox(*, resumed: bool = False, limit: int = 2**24) -> Outbox:
    return Outbox(SESSION, FakeClock(), Budget(limit, limit * 3 // 4), resumed=resumed)


def delta(text: str = "x") -> ToolOutputDelta:
    return ToolOutputDelta(0, text)


def seqs(frames: list[OutFrame]) -> list[int]:
    """Every number that frames stand for, each line checked against its place."""
    numbers: list[int] = []
    for frame in frames:
        if frame.kind is Kind.PAYLOAD:
            assert len(frame.body) <= MAX_FRAME
            continue
        lines = bytes(frame.body).split(b"\n")
        assert lines.pop() == b""
        ends: list[int] = []
        for line in lines:
            assert len(line) < MAX_LINE
            msgspec.json.decode(line)
            parsed = parse_record(line)
            assert parsed is not None
            ends += range(parsed[0].seq, parsed[1] + 1)
        assert ends == list(range(frame.first, frame.end + 1))
        assert len(frame.body) <= MAX_FRAME
        numbers += ends
    return numbers


@given(st.lists(events | nasty_events, max_size=20), st.lists(nasty_text, min_size=3, max_size=3))
def test_every_event_becomes_one_valid_line_with_the_next_number(given_events: list[object], ids: list[str]) -> None:
    box = outbox()
    for event in given_events:
        box.record(event, run=ids[0], op=ids[1], parent=ids[2])  # type: ignore[arg-type]
    box.cut()
    assert seqs(list(box.frames)) == list(range(1, len(given_events) + 1))
    assert (box.emitted, box.dropped) == (len(given_events), 0)


@given(st.lists(events, min_size=1, max_size=5))
def test_a_well_formed_event_comes_back_as_it_was(given_events: list[object]) -> None:
    box = outbox()
    for event in given_events:
        box.record(event, ts=START, run="ab")  # type: ignore[arg-type]
    box.cut()
    for event, line in zip(given_events, b"".join(f.body for f in box.frames).split(b"\n"), strict=False):
        parsed = parse_record(line)
        assert parsed is not None
        record = parsed[0]
        assert (record.ts, record.run, record.op) == (START, "ab", None)
        if isinstance(event, TraceDropObserved):
            assert record.event == "foreign.value.observed"  # only the outbox itself makes drop records
        else:
            assert msgspec.json.encode(event_of(record.event, record.data)) == msgspec.json.encode(event)


@given(any_value, st.booleans())
def test_record_takes_anything_and_never_raises(value: object, inside: bool) -> None:
    box = outbox()
    odd = realise(value)
    box.record(delta())
    box.record(ToolOutputDelta(0, odd) if inside else odd)  # type: ignore[arg-type]
    box.record(ToolCallStarted("id", "name", odd))  # type: ignore[arg-type]
    box.record(delta())
    box.cut()
    assert box.emitted == 4
    assert len(seqs(list(box.frames))) == 4 - box.dropped


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_say_is_marked_and_never_a_silent_null(number: float) -> None:
    box = outbox()
    box.record(ToolCallFinished("id", "name", "text", False, number))
    box.record(ModelRequestFinished("", "", (), "stop", None, None, number, None, 1.0))
    box.record(ModelRequestFinished("", "", (), "stop", None, None, None, None, 1.0))
    box.cut()
    lines = bytes(box.frames[0].body).split(b"\n")[:-1]
    data = [msgspec.json.decode(line)["data"] for line in lines]
    assert (data[0]["duration_ms"], data[0]["repaired"]) == (str(number), 1)
    assert (data[1]["cost_usd"], data[1]["repaired"]) == (str(number), 1)
    assert (data[2]["cost_usd"], "repaired" in data[2]) == (None, False)


@pytest.mark.parametrize(
    "body",
    [Raw(b'{"a":\n1}'), Raw(b"\n"), Raw(b'"x"\n{"seq":2}'), Raw(b'{\n"a": "b"\n}\n')],
)
def test_a_body_of_several_lines_does_not_break_its_line(body: Raw) -> None:
    box = outbox()
    box.record(delta())
    box.record(ToolCallStarted("id", "name", body))
    box.record(delta())
    box.cut()
    (frame,) = box.frames
    assert frame.count == 3
    assert seqs([frame]) == [1, 2, 3]


@pytest.mark.parametrize("size", [MAX_LINE - 400, MAX_LINE, 2 * MAX_LINE, 10_000_000])
@pytest.mark.parametrize("char", ["x", "\x01", "é", "\ud800"])
def test_a_body_of_any_size_becomes_a_line_under_the_bound(size: int, char: str) -> None:
    box = outbox()
    box.record(delta(char * size))
    box.record(ToolCallStarted("id", "name", Raw(b'"' + b"y" * size + b'"')))
    box.cut()
    assert seqs(list(box.frames)) == [1, 2]


def test_batches_are_cut_at_128_events_or_64_kib() -> None:
    box = outbox()
    for _ in range(BATCH_EVENTS * 2 + 1):
        box.record(delta())
    assert [frame.count for frame in box.frames] == [BATCH_EVENTS, BATCH_EVENTS]
    for _ in range(4):
        box.record(delta("y" * (BATCH_BYTES // 2)))
    assert all(len(frame.body) < 2 * BATCH_BYTES for frame in box.frames)


def test_recording_allocates_nothing_that_the_collector_tracks() -> None:
    box = outbox()
    for _ in range(10):
        box.record(delta())
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        for _ in range(100):
            box.record(delta())
        assert gc.get_count()[0] - before < 60
    finally:
        gc.enable()


def test_every_kind_that_can_hold_json_is_looked_at_for_line_ends() -> None:
    def holds_json(kind: type) -> bool:
        return any("Raw" in str(hint) or _holds(hint) for hint in get_type_hints(kind).values())

    def _holds(hint: object) -> bool:
        parts = get_args(hint) or (hint,)
        return any(
            (isinstance(part, type) and issubclass(part, Struct) and holds_json(part))
            or (part is not hint and _holds(part))
            for part in parts
        )

    assert {kind for kind in KINDS.values() if holds_json(kind)} == WITH_JSON


# --- what is not recorded


class Machine:
    """A writer that takes frames in order."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.dropped = 0

    def take(self, box: Outbox, *, only: int | None = None) -> None:
        box.cut()
        for frame in list(box.frames)[:only]:
            if frame.first == len(self.seqs) + 1:
                self.seqs += seqs([frame])
                self.dropped += frame.count if frame.kind is Kind.DROP else 0
        box.acknowledge(len(self.seqs))


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(["record", "take", "take one", "room"])), max_size=60))
def test_a_full_buffer_drops_and_counts_exactly(steps: list[tuple[int, str]]) -> None:
    box, writer = outbox(limit=SESSION_RESERVE + 20_000), Machine()
    budget = box._budget
    given_events = 0
    for size, what in steps:
        if what == "record":
            for _ in range(15):
                box.record(delta("z" * size))
                given_events += 1
        elif what == "room":
            if budget.full and budget.bytes <= budget.resume:
                budget.full = False
                box.room()
        else:
            writer.take(box, only=1 if what == "take one" else None)
        assert budget.bytes == box.own_bytes == sum(len(frame.body) for frame in box.frames)
        assert budget.bytes < budget.limit + 2 * BATCH_BYTES + 300
    box.prepare_close()
    writer.take(box)
    assert writer.seqs == list(range(1, given_events + 1))
    assert (box.emitted, box.dropped, box.idle) == (given_events, writer.dropped, True)


@pytest.mark.parametrize("events_before", [0, 1, HELD_EVENTS, HELD_EVENTS + 1, HELD_EVENTS + 100])
def test_a_resumed_session_numbers_only_when_it_is_told_and_the_next_record_has_its_own_number(
    events_before: int,
) -> None:
    box = outbox(resumed=True)
    for _ in range(events_before):
        box.record(delta())
    assert (box.has_numbers, list(box.frames), box.emitted) == (False, [], events_before)
    assert box.numbered(101)
    box.record(delta("after"))
    box.prepare_close()
    assert seqs(list(box.frames)) == list(range(101, 102 + events_before))
    assert (box.emitted, box.dropped) == (events_before + 1, max(0, events_before - HELD_EVENTS))
    assert b"after" in box.frames[-1].body


def test_a_writer_that_is_ahead_is_a_conflict() -> None:
    box = outbox()
    box.record(delta())
    assert box.numbered(2)
    assert not box.numbered(3)


@given(st.integers(1, 12), st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_what_is_refused_becomes_a_drop_of_exactly_that_range(first: int, count: int, batches: list[int]) -> None:
    box = outbox()
    for size in batches:
        for _ in range(size):
            box.record(delta())
        box.cut()
    total = sum(batches)
    first, last = min(first, total), min(first + count - 1, total)
    box.acknowledge(first - 1)
    box.refuse(first, last - first + 1, "malformed")
    numbers = seqs(list(box.frames))
    assert numbers[numbers.index(first) :] == list(range(first, total + 1))
    drops = [frame for frame in box.frames if frame.kind is Kind.DROP]
    assert [(frame.first, frame.end) for frame in drops] == [(first, last)]
    assert box.dropped == last - first + 1
    assert box._budget.bytes == sum(len(frame.body) for frame in box.frames)


@given(st.lists(st.sampled_from(["plain", "always", "cut"]), max_size=12), st.integers(0, 4), st.integers(0, 5))
def test_at_the_limit_only_ends_and_failures_are_kept_and_the_rest_is_one_account(
    before: list[str], acked: int, after: int
) -> None:
    box = outbox()
    always = SessionRecordFinished(1, {}, Usage(), None)
    for what in ["plain", *before]:
        if what == "cut":
            box.cut()
        else:
            box.record(always if what == "always" else delta())
    given_events = box.last
    acked = min(acked, given_events - 1)
    box.acknowledge(acked)
    box.cut()
    box.refuse(acked + 1, 1, "limit")
    for _ in range(after):
        box.record(delta())
    box.record(always)
    box.prepare_close()
    numbers = seqs(list(box.frames))
    assert numbers[-1] == given_events + 1 + after + 1  # the notice of the limit, what came after it, the end
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert box.dropped == sum(frame.count for frame in box.frames if frame.kind is Kind.DROP)


def test_a_second_limit_puts_one_drop_and_a_third_stops_the_session() -> None:
    box = outbox()
    for _ in range(3):
        box.record(delta())
    box.refuse(1, 3, "limit")
    box.refuse(1, 3, "limit") if box.frames[0].kind is Kind.EVENTS else None
    assert box.frames[0].kind is Kind.DROP
    box.refuse(1, 3, "limit")
    assert box.stopped.startswith("limit")
    box.record(delta())
    assert (list(box.frames), box.own_bytes, box._budget.bytes) == ([], 0, 0)
    assert box.dropped == box.emitted


def test_nothing_follows_the_last_record_of_a_session_that_reaches_its_limit() -> None:
    box = outbox()
    box.record(delta())
    box.record(SessionRecordFinished(2, {}, Usage(), None))
    box.prepare_close()
    box.refuse(1, 2, "limit")
    assert seqs(list(box.frames)) == [1, 2]
    assert b"session.record.finished" in box.frames[-1].body


def test_stopping_twice_counts_once_and_keeps_the_first_reason() -> None:
    box = outbox()
    for _ in range(5):
        box.record(delta())
    box.cut()
    box.acknowledge(2)
    box.record(delta())
    box.stop("taken: another")
    box.stop("closed")
    assert (box.stopped, box.emitted, box.dropped) == ("taken: another", 6, 4)


def test_a_refused_drop_is_not_counted_again() -> None:
    box = outbox()
    box.record(delta())
    box.cut()
    box.refuse(1, 1, "redact")
    box.refuse(1, 1, "malformed")
    assert (box.dropped, [frame.kind for frame in box.frames]) == (1, [Kind.DROP])


def test_times_and_numbers_that_json_has_not_are_marked() -> None:
    box = outbox()
    box.record(ToolOutputDelta(math.nan, "x"), ts=datetime(2026, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]
    box.cut()
    assert seqs(list(box.frames)) == [1]
