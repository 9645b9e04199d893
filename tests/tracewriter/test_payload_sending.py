"""Bodies that are too long for a record, from record() to the disk: whole, once, in place before they are named, counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tests.tracewriter.payload_model import Talk
from tests.tracewriter.test_producer_many import opened, sent
from tracewriter.config import KIB, MAX_BODY, MIB
from tracewriter.events import (
    Context,
    Event,
    Failure,
    ModelRequestFailed,
    ModelRequestStarted,
    RunExecuteStarted,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
)
from tracewriter.lines import data_of
from tracewriter.moving import keys_of
from tracewriter.outbox import SESSION_RESERVE, Outbox
from tracewriter.outframes import OutFrame, Sent
from tracewriter.payload import PAYLOAD_BYTES, REFERENCE
from tracewriter.protocol import FrameDecoder, Kind

TEXTS = ("short", "é " * 8193, "line of a file\n" * 1200, "two parts " * 30_000, "x" * PAYLOAD_BYTES, "y" * 16_385)


def made(kind: int, text: str) -> Event:
    """An event of some kind with this text in it."""
    body = Raw(msgspec.json.encode({"role": "user", "text": text}))
    kinds: list[Event] = [
        ToolCallFinished("id", "name", text, False, 1.0),
        ToolCallStarted("id", "name", body),
        ModelRequestStarted("main", "p", "m", Context(0, (body, Raw(b"{}"), body), 5)),
        ModelRequestFailed(Failure("k", "m"), text, "why", (), None, None, 1.0),
        ToolOutputDelta(0, text),
        RunExecuteStarted("0" * 16, text, "edit", "m", "p"),
    ]
    return kinds[kind % len(kinds)]


steps = st.one_of(
    st.tuples(st.just("record"), st.integers(0, 5), st.sampled_from(range(len(TEXTS)))),
    st.tuples(st.just("record"), st.integers(0, 5), st.sampled_from(range(len(TEXTS)))),
    st.tuples(st.just("pump"), st.just(0), st.just(0)),
    st.tuples(st.just("break"), st.integers(0, 700_000), st.just(0)),
    st.tuples(st.just("verdicts"), st.integers(0, 3**5 - 1), st.just(0)),
    st.tuples(st.just("time"), st.sampled_from([1, 200]), st.just(0)),
)
CODES = ("", "ENOSPC", "malformed")


scripts = st.tuples(st.lists(steps, max_size=25), st.sampled_from([2**24, 400_000]), st.integers(-1, 20))
# few bodies and much trouble: what goes wrong does so soon
narrow = st.one_of(
    st.tuples(st.just("record"), st.just(0), st.sampled_from([0, 2, 2])),
    st.sampled_from([("pump", 0, 0), ("break", 20_000, 0)]),
    st.tuples(st.just("verdicts"), st.integers(0, 3**5 - 1), st.just(0)),
)
troubles = st.tuples(st.lists(narrow, min_size=4, max_size=25), st.just(2**24), st.integers(-1, 20))
Script: TypeAlias = "tuple[list[tuple[str, int, int]], int, int]"


@settings(max_examples=300, deadline=None)
@given(scripts | troubles)
def test_whatever_happens_every_record_is_whole_or_counted(script: Script) -> None:
    play(script, Outbox)


def play(script: Script, outbox: type[Outbox]) -> None:
    todo, buffer_bytes, limit_at = script
    talk = Talk(buffer_bytes=buffer_bytes, outbox=outbox)
    for number, (what, one, other) in enumerate(todo):
        if number == limit_at:
            talk.codes = ["limit"]
        match what:
            case "record":
                talk.record(made(one, TEXTS[other]))
            case "pump":
                talk.pump()
            case "break":
                talk.pump(one + 1)
            case "verdicts":
                talk.codes += [CODES[one // 3**place % 3] for place in range(5)]
            case _:
                talk.clock.advance(one)
        talk.check()
    talk.settle()
    files, box = talk.files, talk.box
    if not box.stopped:
        assert box.emitted == len(files.lines) + files.dropped
        assert box.dropped == files.dropped
    for seq, event in talk.events.items():
        may_be_cut = isinstance(event, ModelRequestFailed) and (box.limited or buffer_bytes < 2**24)
        if seq in files.lines and not may_be_cut:
            assert files.whole(seq) == msgspec.json.encode(event)


class Forgetful(Sent):
    """Remembers what was refused."""

    def forget(self, payloads: Iterable[bytes]) -> None: ...


class RemembersRefused(Outbox):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent = Forgetful()


class LeavesHomeless(Outbox):
    """Bodies go with the first record that named them, whoever else names them."""

    def _replace(self, frames: list[OutFrame], code: str) -> None:
        kept = {id(frame) for frame in self.frames}
        super()._replace([f for f in frames if f.kind is not Kind.PAYLOAD or id(f) in kept], code)


class DoneWhenSent(Outbox):
    """Bodies are let go of with the record before theirs."""

    def acknowledge(self, seq: int) -> int:
        done = super().acknowledge(seq)
        while self.frames and self.frames[0].kind is Kind.PAYLOAD and self.frames[0].first == seq + 1:
            self._grow(-len(self.frames.popleft().body))
            done += 1
        return done


class InsideAFrame(Outbox):
    """Their frames come after the record."""

    def cut(self) -> None:
        before = [frame for frame in self.frames if frame.kind is Kind.PAYLOAD]
        super().cut()
        rest = [frame for frame in self.frames if frame.kind is not Kind.PAYLOAD]
        self.frames = deque([*rest, *before])


@pytest.mark.parametrize("flawed", [RemembersRefused, LeavesHomeless, DoneWhenSent, InsideAFrame])
def test_a_planted_bug_is_found(flawed: type[Outbox]) -> None:
    @settings(max_examples=1000, deadline=None, database=None, phases=[Phase.generate])
    @given(troubles)
    def search(script: Script) -> None:
        play(script, flawed)

    with pytest.raises(AssertionError):
        search()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_break_at_any_byte_costs_nothing(data: st.DataObject) -> None:
    talk = Talk()
    for number in range(6):
        talk.record(made(number, TEXTS[1 + number % 3]))
    total = sum(len(frame.body) + 24 for frame in talk.box.frames) + 2000
    for _ in range(3):
        talk.pump(data.draw(st.integers(1, total)))
    talk.settle()
    assert {seq: talk.files.whole(seq) for seq in talk.events} == {
        seq: msgspec.json.encode(event) for seq, event in talk.events.items()
    }


def frames(talk: Talk) -> list[tuple[str, int, int, int]]:
    talk.box.cut()
    return [(frame.kind.name, frame.first, frame.count, frame.flags) for frame in talk.box.frames]


def test_the_parts_come_right_before_the_frame_that_begins_with_the_record() -> None:
    talk = Talk()
    for text in ("a", "z " * 300_000, "b", "z " * 300_000):
        talk.record(ToolOutputDelta(0, text))
    assert frames(talk) == [
        ("EVENTS", 1, 1, 0),
        ("PAYLOAD", 2, 1, 0),
        ("PAYLOAD", 2, 2, 0),
        ("PAYLOAD", 2, 3, 1),
        ("EVENTS", 2, 3, 0),
    ]
    sent = FrameDecoder().feed(b"".join(map(bytes, talk.producer.outgoing())))
    assert [frame.flags for frame in sent if frame.kind is Kind.PAYLOAD] == [0, 0, 1]
    assert b"".join(bytes(frame.body[32:]) for frame in sent if frame.kind is Kind.PAYLOAD) == b"z " * 300_000


def test_a_body_is_sent_once_however_often_it_recurs() -> None:
    talk = Talk()
    for _ in range(5):
        for kind in range(6):
            talk.record(made(kind, TEXTS[2]))
        talk.pump()
    assert len(talk.files.bodies) == 2  # the text, and the message with it
    assert talk.writer.payload_frames == 2
    assert len(talk.files.lines) == 30


def test_another_life_and_another_key_give_other_ids() -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.pump()

    ids = {data_of(ToolOutputDelta(0, TEXTS[2]), keys_of(bytes([n]) * 32)).bodies[0].payload for n in range(3)}
    assert len(ids) == 3
    assert not ids & talk.files.bodies.keys()


def test_text_and_json_of_the_same_bytes_are_two_bodies() -> None:
    talk = Talk()
    text = msgspec.json.encode(["x " * 10_000])
    talk.record(ToolOutputDelta(0, text.decode()))
    talk.record(ToolCallStarted("id", "name", Raw(text)))
    talk.pump()
    assert sorted(is_json for _, is_json in talk.files.bodies.values()) == [False, True]


def test_what_is_refused_goes_with_its_body_and_the_next_record_sends_it_again() -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.codes = ["", "malformed"]
    talk.pump()
    assert (talk.files.drops, talk.box.dropped) == ({1: 1}, 1)
    talk.files.bodies.clear()  # nothing is promised of the body of a record that was dropped
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.settle()
    assert msgspec.json.decode(talk.files.whole(2))["text"] == TEXTS[2]


def test_a_body_that_a_later_record_names_too_moves_to_it_when_the_first_is_refused() -> None:
    talk = Talk()
    for text in (TEXTS[2], "a", TEXTS[2], TEXTS[1], TEXTS[2]):
        talk.record(ToolOutputDelta(0, text))
    talk.box.cut()
    talk.box.refuse(1, 1, "malformed")
    assert frames(talk) == [
        ("DROP", 1, 1, 0),
        ("EVENTS", 2, 1, 0),
        ("PAYLOAD", 3, 1, 1),
        ("EVENTS", 3, 1, 0),
        ("PAYLOAD", 4, 1, 1),
        ("EVENTS", 4, 2, 0),
    ]
    talk.check()
    talk.settle()
    assert [msgspec.json.decode(talk.files.whole(seq))["text"] for seq in (3, 4, 5)] == [TEXTS[2], TEXTS[1], TEXTS[2]]


def test_at_the_limit_ends_are_recorded_with_their_fields_cut_and_nothing_names_what_is_not_there() -> None:
    talk = Talk()
    failed = made(3, TEXTS[2])
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.record(failed)
    talk.codes = ["limit"]
    talk.pump()
    talk.record(failed)
    talk.settle()
    assert talk.files.bodies == {}
    shown = [msgspec.json.decode(line) for line in talk.files.lines.values()]
    ends = [record["data"]["text"] for record in shown if record["event"] == "model.request.failed"]
    assert len(ends) == 2
    assert ends[0].endswith(f"…[cut: {len(TEXTS[2])} characters]")
    assert TEXTS[2].startswith(ends[0].partition("…")[0])
    assert ends[1] == TEXTS[2]
    assert not any(REFERENCE.search(line) for line in talk.files.lines.values())


def test_an_end_whose_own_body_is_refused_at_the_limit_is_dropped_since_the_writer_waits_for_that_body() -> None:
    talk = Talk()
    talk.record(made(3, TEXTS[2]))
    talk.record(made(3, TEXTS[2]))
    talk.codes = ["limit"]
    talk.pump()
    talk.settle()
    assert talk.files.drops == {1: 1}
    assert b"[cut: 18000 characters]" in talk.files.lines[2]


def test_a_body_that_was_acknowledged_may_be_named_at_the_limit() -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.pump()
    talk.record(made(3, TEXTS[2]))
    talk.codes = ["limit"]
    talk.pump()
    assert talk.box.limited
    talk.settle()
    assert msgspec.json.decode(talk.files.whole(2))["text"] == TEXTS[2]


@pytest.mark.parametrize("pause_s", [10, 200])
def test_after_a_pause_in_which_the_session_may_have_been_deleted_the_body_is_sent_again(pause_s: int) -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.pump()
    talk.clock.advance(pause_s)
    if pause_s > 150:
        talk.files.bodies.clear()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.settle()
    assert talk.writer.payload_frames == (2 if pause_s > 150 else 1)
    assert msgspec.json.decode(talk.files.whole(2))["text"] == TEXTS[2]


def test_a_writer_that_comes_back_to_another_directory_gets_every_body_anew() -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.pump()
    talk.producer.disconnected()
    talk.files.bodies.clear()
    talk.connect()
    talk.pump()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.settle()
    assert msgspec.json.decode(talk.files.whole(talk.box.last))["text"] == TEXTS[2]


def test_a_body_that_waits_is_not_queued_again_after_a_reconnect() -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    talk.pump(40)
    talk.record(ToolOutputDelta(0, TEXTS[2]))
    assert sum(frame.kind is Kind.PAYLOAD for frame in talk.box.frames) == 1
    talk.settle()
    assert len(talk.files.bodies) == 1


# --- the buffer


def test_a_body_for_which_there_is_no_room_is_a_counted_drop_at_once_and_leaves_nothing() -> None:
    talk = Talk(buffer_bytes=SESSION_RESERVE)
    talk.record(ToolOutputDelta(0, "a"))
    talk.record(ToolOutputDelta(0, "z " * 40_000))
    talk.record(ToolOutputDelta(0, "b"))
    assert frames(talk) == [("EVENTS", 1, 1, 0), ("DROP", 2, 1, 0), ("EVENTS", 3, 1, 0)]
    talk.settle()
    assert (talk.box.emitted, talk.box.dropped, talk.files.drops) == (3, 1, {2: 2})
    talk.record(ToolOutputDelta(0, "z " * 10_000))
    talk.settle()
    assert len(talk.files.bodies) == 1


def test_an_end_for_whose_body_there_is_no_room_is_cut() -> None:
    talk = Talk(buffer_bytes=SESSION_RESERVE)
    talk.record(made(3, "word " * 60_000))
    talk.settle()
    text = msgspec.json.decode(talk.files.whole(1))["text"]
    assert text.endswith("…[cut: 300000 characters]")


def test_bodies_stay_within_the_buffer_of_the_process() -> None:
    talk = Talk()
    talk.producer.disconnected()
    for number in range(40):
        talk.record(ToolOutputDelta(0, f"{number} " * (MIB // 2)))
        assert talk.producer.budget.bytes < 2**24 + 64 * KIB
    assert talk.box.dropped > 20
    talk.connect()
    talk.settle()
    assert talk.box.emitted == len(talk.files.lines) + talk.files.dropped


def test_stopping_gives_back_what_bodies_took() -> None:
    talk = Talk()
    talk.record(ToolOutputDelta(0, TEXTS[3]))
    talk.record(ToolOutputDelta(0, "a"))
    talk.box.stop("taken: another")
    assert (talk.producer.budget.bytes, talk.box.dropped, talk.box.emitted) == (0, 2, 2)


def test_a_probing_producer_goes_on_after_the_first_part() -> None:
    talk = Talk()
    talk.codes = ["ENOSPC"]
    talk.record(ToolOutputDelta(0, TEXTS[3]))
    talk.pump()
    assert talk.channel.probing
    talk.clock.advance(1)
    (first,) = FrameDecoder().feed(b"".join(map(bytes, talk.producer.outgoing())))
    assert (first.kind, first.count) == (Kind.PAYLOAD, 1)
    assert talk.producer.outgoing() == []
    talk._answer(talk.writer.frame(first))
    talk.settle()
    assert msgspec.json.decode(talk.files.whole(1))["text"] == TEXTS[3]


def test_a_large_body_delays_others_by_a_round_at_most() -> None:
    producer = opened(3)
    first, second, third = producer.channels
    first.outbox.record(ToolOutputDelta(0, "w " * (MAX_BODY // 2)))
    second.outbox.record(ToolOutputDelta(0, "w"))
    third.outbox.record(ToolOutputDelta(0, "w"))
    rounds: list[set[int]] = []
    while got := sent(producer):
        assert sum(len(frame.body) for frame in got) <= MIB + 256 * KIB
        rounds.append({frame.channel for frame in got})
    assert len(rounds) >= 4
    assert {second.number, third.number} <= rounds[0] | rounds[1]


def test_prompts_of_any_length_up_to_the_bound_are_whole() -> None:
    talk = Talk()
    prompt = "do it well\n" * (MAX_BODY // 11)
    talk.record(RunExecuteStarted("0" * 16, prompt, "edit", "m", "p"))
    talk.settle()
    assert msgspec.json.decode(talk.files.whole(1))["text"] == prompt
