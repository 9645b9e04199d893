"""Records with bodies under any sequence of disk faults, kills and cuts, with a producer that does as it is told.

Held at every step: no record on disk names a body that is not there whole. At the end everything is recorded, once.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.fakes import FaultyDisk
from tests.strategies import drop_line_of, line_of
from tests.tracewriter.harness import (
    LIFE,
    Answer,
    Writer,
    broken_references,
    covered,
    damage,
    drop,
    events,
    naming,
    parts,
    read_all,
)
from tracewriter import reader
from tracewriter.config import Limits
from tracewriter.journal import Producer
from tracewriter.protocol import Frame, Kind

CODES = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)
MEMORY = 8000  # more than one receive brings
OPERATIONS = ("create", "write", "truncate", "unlink", "replace", "open_dir", "sync", "stat", "fstat")


def body_of(number: int) -> bytes:
    return b"body %d, " % number * (10 + number * 5)


class PayloadMachine(RuleBasedStateMachine):
    """One session. `frames` is what the producer keeps: (last seq, frame) until it is acknowledged."""

    @initialize(durability=st.sampled_from(["interval", "batch"]))
    def start(self, durability: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="payloads-"))
        self.limits = Limits(segment_bytes=3000, durability=durability, payload_memory=MEMORY)
        self.disk = FaultyDisk()
        self.writer = Writer(self.root, disk=self.disk, limits=self.limits)
        self.frames: list[tuple[int, Frame]] = []
        self.sent = 0  # of them
        self.given = self.acked = self.others = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.finish()
            shutil.rmtree(self.root)

    # --- the producer

    @rule(numbers=st.lists(st.integers(0, 7), max_size=3, unique=True), size=st.sampled_from([60, 300]))
    def record(self, numbers: list[int], size: int) -> None:
        seq = self.given = self.given + 1
        ids = [f"{number:x}" * 32 for number in numbers]
        for number, payload in zip(numbers, ids, strict=True):
            self.frames += [(seq, part) for part in parts(seq, payload, body_of(number), size=size)]
        self.frames.append((seq, events(seq, naming(seq, *ids) if ids else line_of(seq))))

    @rule(count=st.integers(1, 12))
    def send(self, count: int) -> None:
        """One receive."""
        taken = self.frames[self.sent : self.sent + count]
        self.sent += len(taken)
        self.hear(self.writer.send(*(frame for _, frame in taken)))

    @rule(first=st.integers(1, 6), second=st.integers(1, 6))
    def send_without_hearing_in_between(self, first: int, second: int) -> None:
        """What was on its way when the first answer was given still arrives."""
        said: list[Answer] = []
        for count in (first, second):
            taken = self.frames[self.sent : self.sent + count]
            self.sent += len(taken)
            said += self.writer.send(*(frame for _, frame in taken))
            self.writer.clock.advance(0.3)
        self.hear(said)

    def hear(self, said: list[Answer]) -> None:
        for answer in said:
            if answer.kind is Kind.ACK:
                assert answer.first >= self.acked
                self.acknowledge(answer.first)
                continue
            self.acknowledge(answer.first - 1)
            if answer.count:
                self.drop(answer.first, answer.first + answer.count - 1)
            self.sent = 0

    def acknowledge(self, seq: int) -> None:
        self.acked = max(self.acked, seq)
        done = next((at for at, (end, _) in enumerate(self.frames) if end > seq), len(self.frames))
        del self.frames[:done]
        self.sent = max(0, self.sent - done)

    def drop(self, first: int, last: int) -> None:
        kept = [(end, frame) for end, frame in self.frames if not first <= end <= last]
        self.frames = [(last, drop(first, last, drop_line_of(first, last))), *kept]

    # --- the world

    @rule(operation=st.sampled_from(OPERATIONS), code=st.sampled_from(CODES))
    def an_operation_fails_once(self, operation: str, code: int) -> None:
        self.disk.once.append((operation, code))

    @rule(operation=st.sampled_from(OPERATIONS), code=st.sampled_from(CODES))
    def an_operation_fails_for_long(self, operation: str, code: int) -> None:
        self.disk.failing[operation] = code

    @rule(left=st.integers(0, 900))
    def the_disk_fills_up(self, left: int) -> None:
        self.disk.free = left

    @rule(size=st.integers(MEMORY - 900, MEMORY))
    def other_sessions_have_the_memory(self, size: int) -> None:
        memory = self.writer.recording._parts._memory
        memory.used += size - self.others
        self.others = size

    @rule()
    def they_give_it_back(self) -> None:
        self.writer.recording._parts._memory.give(self.others)
        self.others = 0

    @rule()
    def the_disk_is_well_again(self) -> None:
        self.disk.failing.clear()
        self.disk.once.clear()
        self.disk.free = None

    @rule(seconds=st.sampled_from([0.3, 40]))
    def time_passes(self, seconds: float) -> None:
        self.writer.clock.advance(seconds)

    @rule()
    def seal_and_sync(self) -> None:
        self.writer.journal.seal()
        segment = self.writer.journal.segment
        problem = segment.sync() if segment is not None else None
        if segment is not None and problem is not None:
            self.writer.journal.leave_after_sync_error(segment, problem)

    @rule()
    def killed_and_started_again(self) -> None:
        self.the_disk_is_well_again()
        self.others = 0
        self.writer.close(closed=False)
        self.disk = FaultyDisk()
        producer = Producer(LIFE, self.acked, self.given)
        self.writer = Writer(self.root, disk=self.disk, limits=self.limits, producer=producer)
        self.acknowledge(self.writer.recording.next - 1)
        self.sent = 0

    # --- what holds

    @invariant()
    def no_record_names_a_body_that_is_not_whole(self) -> None:
        if not hasattr(self, "root"):
            return
        assert broken_references(self.writer.directory) == []
        for path in self.writer.directory.glob("payloads/*"):
            assert path.name.endswith(".part") or path.read_bytes() == body_of(int(path.name[0], 16))

    def finish(self) -> None:
        self.the_disk_is_well_again()
        self.they_give_it_back()
        self.record([1, 2], 100)
        for _ in range(400):
            if not self.frames:
                break
            self.writer.clock.advance(40)
            self.send(12)
        assert self.acked == self.given
        assert self.writer.recording._parts._memory.used == 0
        self.writer.close()
        assert self.disk.open_fds == []
        found, _ = read_all(self.writer.directory)
        assert covered(found) == list(range(1, self.given + 1))
        assert damage(reader.verify(self.writer.directory)) == []
        assert broken_references(self.writer.directory) == []


TestPayloadMachine = PayloadMachine.TestCase
TestPayloadMachine.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
