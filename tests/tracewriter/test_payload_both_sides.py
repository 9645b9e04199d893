"""Both sides of bodies together, the producer's and the writer's, on a disk that fails: nothing stalls, nothing dangles."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FaultyDisk
from tests.strategies import SESSION
from tests.tracewriter.harness import KEY, Writer, broken_references, covered, damage, read_all
from tests.tracewriter.test_payload_sending import TEXTS, made
from tracewriter import reader
from tracewriter.config import KIB, MIB, Limits
from tracewriter.outbox import Outbox
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.protocol import FrameDecoder, Kind, Welcome, encode


class Both:
    """A Producer whose frames a Recording takes, a receive of so many frames at a time."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits, self.disk = root, limits, FaultyDisk()
        self.writer = Writer(root, disk=self.disk, limits=limits)
        self.clock = self.writer.clock
        self.producer = Producer("00000000000000a1", self.clock)
        self.box = Outbox(SESSION, self.clock, self.producer.budget, resumed=False)
        self.channel = Channel(SessionInfo(SESSION, KEY.workspace), self.box)
        self.producer.attach(self.channel)
        self.connect()

    def connect(self) -> None:
        self.producer.connected()
        self.producer.receive(encode(Kind.WELCOME, body=Welcome(1)))
        self.producer.outgoing()
        recording = self.writer.recording
        recording.channel = self.channel.number
        self.producer.receive(encode(Kind.OPENED, channel=recording.channel, first=recording.next))

    def pump(self, at_once: int, rounds: int = 3) -> None:
        recording = self.writer.recording
        for _ in range(rounds):
            frames = FrameDecoder().feed(b"".join(map(bytes, self.producer.outgoing())))
            for at in range(0, len(frames), at_once):
                for frame in frames[at : at + at_once]:
                    if frame.kind is Kind.PAYLOAD:
                        recording.take_payload(frame)
                    elif frame.kind in (Kind.EVENTS, Kind.DROP):
                        recording.take(frame)
                said = recording.write()
                if said:
                    self.producer.receive(said)

    def lose(self) -> None:
        self.producer.disconnected()
        self.writer.recording.forget_parts()
        self.connect()

    def settle(self) -> None:
        self.disk.failing.clear()
        self.disk.once.clear()
        for _ in range(40):
            self.box.prepare_close()
            self.pump(1000)
            self.clock.advance(61)
            if self.box.idle or self.box.stopped:
                return
        raise AssertionError(f"stall: {self.channel!r} {self.writer.recording!r}")


FAULTS = ("write", "create", "open_dir", "replace")
steps = st.one_of(
    st.tuples(st.just("record"), st.integers(0, 5), st.sampled_from(range(len(TEXTS)))),
    st.tuples(st.just("record"), st.sampled_from([0, 3]), st.sampled_from([2, 2, 3])),
    st.tuples(st.just("pump"), st.sampled_from([1, 2, 100]), st.integers(1, 3)),
    st.tuples(st.just("fault"), st.integers(0, len(FAULTS) - 1), st.just(0)),
    st.tuples(st.just("time"), st.sampled_from([1, 200]), st.just(0)),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=20), st.sampled_from([128 * MIB, 700 * KIB, 100 * KIB]), st.booleans())
def test_whatever_the_disk_does_every_record_is_there_with_its_bodies_or_counted(
    script: list[tuple[str, int, int]], session_bytes: int, little_memory: bool
) -> None:
    limits = Limits(
        session_bytes=session_bytes,
        session_reserve=min(MIB, session_bytes // 3),
        payload_memory=650 * KIB if little_memory else 32 * MIB,
    )
    with tempfile.TemporaryDirectory() as base:
        both = Both(Path(base), limits)
        given_events = {}
        for what, one, other in script:
            match what:
                case "record":
                    before = both.box.last
                    both.box.record(made(one, TEXTS[other]))
                    if both.box.last == before + 1:
                        given_events[before + 1] = made(one, TEXTS[other])
                case "pump":
                    both.pump(one, other)
                case "fault":
                    both.disk.once.append((FAULTS[one], errno.ENOSPC))
                case "time":
                    both.clock.advance(one)
                case _:
                    both.lose()
        both.settle()
        both.writer.close()
        directory = both.writer.directory
        found, _ = read_all(directory)
        assert damage(reader.verify(directory)) == []
        assert broken_references(directory) == []
        if not both.box.stopped:
            assert covered(found) == list(range(1, both.box.last + 1))
            dropped = sum(
                item.end - item.record.seq + 1 for item in found if item.record.event == "trace.drop.observed"
            )
            assert both.box.dropped == dropped
        assert len(found) >= 1 or not given_events


@pytest.mark.parametrize("before", [0, 1, 2])
def test_at_the_limit_an_end_with_a_body_does_not_stall(before: int, tmp_path: Path) -> None:
    both = Both(tmp_path, Limits(session_bytes=60 * KIB, session_reserve=20 * KIB))
    for number in range(before):
        both.box.record(made(0, f"{number} " * 9000))
    for number in range(4):
        both.box.record(made(3, f"failed {number} " * 3000))
    both.settle()
    both.writer.close()
    found, _ = read_all(both.writer.directory)
    assert covered(found) == list(range(1, both.box.last + 1))
    assert broken_references(both.writer.directory) == []
    failed = [msgspec.json.decode(item.record.data) for item in found if item.record.event == "model.request.failed"]
    assert any("…[cut: " in data["text"] for data in failed if isinstance(data["text"], str))
