"""A session's recording under any sequence of frames and disk faults (a state machine over a disk that fails on demand).

Held at every step: what was acknowledged is readable once, in order and as it was sent; a handled error leaves no damaged
line; seals cover only what was written. At the end a producer that does as it is told accounts for every event.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes import FaultyDisk
from tests.strategies import drop_line_of, line_of, lines_of
from tests.tracewriter.harness import LIFE, OTHER_LIFE, Answer, Writer, covered, drop, events, read_all
from tracewriter import lock
from tracewriter.config import Limits
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Producer
from tracewriter.protocol import Frame, Kind
from tracewriter.scan import decode_seals, parse_header

CODES = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EINTR)
OPERATIONS = ("create", "write", "truncate", "fstat", "unlink", "append", "replace")
LIMITS = Limits(segment_bytes=3000)


class RecordingMachine(RuleBasedStateMachine):
    """The writer's side of one session, and a producer that remembers what it was told."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="machine-"))
        self.disk = FaultyDisk()
        self.writer = Writer(self.root, disk=self.disk, limits=LIMITS)
        self.acked = 0
        self.life, self.told_to_first = LIFE, 0  # what the first life was told: later ones do not tell it
        self.drops: set[int] = set()  # seqs that drop records stand for
        self.foreign = False  # somebody else changed files: then what they took away is gone

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.heal()
            self.finish()
            shutil.rmtree(self.root)

    # --- helpers

    @property
    def other_life(self) -> bool:
        """Whether the newest segment with a header is another life's."""
        for path in sorted(self.writer.directory.glob("*.jsonl"), reverse=True):
            header = parse_header(path.read_bytes().partition(b"\n")[0])
            if header is not None:
                return header.producer != LIFE
        return False

    @property
    def next(self) -> int:
        return self.writer.recording.next

    def told(self, said: list[Answer]) -> list[Answer]:
        for answer in said:
            assert answer.kind in (Kind.ACK, Kind.NACK)
            self.acked = max(self.acked, answer.first if answer.kind is Kind.ACK else answer.first - 1)
            if answer.kind is Kind.NACK and not answer.count:
                assert answer.code in {"gap", "busy", *errno.errorcode.values()}
                assert (answer.retry_ms == 0) == (answer.code == "gap")
        assert self.next - 1 >= self.acked
        if self.life == LIFE:
            self.told_to_first = self.acked
        return said

    def send(self, *frames: Frame) -> list[Answer]:
        return self.told(self.writer.send(*frames))

    def heal(self) -> None:
        self.disk.failing.clear()
        self.disk.once.clear()
        self.disk.short.clear()
        self.disk.free = None

    # --- frames

    @rule(counts=st.lists(st.integers(1, 6), min_size=1, max_size=3))
    def frames_in_order(self, counts: list[int]) -> None:
        first, frames = self.next, []
        for count in counts:
            frames.append(events(first, lines_of(first, count)))
            first += count
        self.send(*frames)

    @rule(before=st.integers(1, 8), after=st.integers(0, 4))
    def known_or_overlapping(self, before: int, after: int) -> None:
        first = max(1, self.next - before)
        count = self.next - first + after
        if count and not any(seq in self.drops for seq in range(first, first + count)):
            self.send(events(first, lines_of(first, count)))

    @rule(ahead=st.integers(1, 5))
    def too_early(self, ahead: int) -> None:
        first = self.next + ahead
        said = self.send(events(first, lines_of(first, 2)), events(first + 2, lines_of(first + 2, 1)))
        assert [answer.code for answer in said if answer.kind is Kind.NACK] in (["gap"], ["busy"], [])
        self.writer.recording._gap_told = False

    @rule(count=st.integers(1, 9))
    def dropped(self, count: int) -> None:
        first, last = self.next, self.next + count - 1
        self.send(drop(first, last, drop_line_of(first, last)))
        if self.next == last + 1:
            self.drops |= set(range(first, last + 1))

    @precondition(lambda self: self.writer.recording.next > 2)
    @rule()
    def drop_that_straddles(self) -> None:
        first, last = self.next - 1, self.next + 1
        said = self.send(drop(first, last, drop_line_of(first, last)))
        assert all(answer.code in ("", "straddle", "busy") for answer in said)
        assert self.next == first + 1

    @rule(kind=st.sampled_from(["seq", "count", "newline", "drop range", "drop lines", "garbage"]), good=st.booleans())
    def malformed(self, kind: str, good: bool) -> None:
        first = self.next + good
        before = [events(self.next, line_of(self.next))] if good else []
        wrong = {
            "seq": events(first, line_of(first + 1)),
            "count": Frame(Kind.EVENTS, 1, 3, first, lines_of(first, 2)),
            "newline": Frame(Kind.EVENTS, 1, 1, first, line_of(first)[:-1]),
            "drop range": drop(first, first + 3, drop_line_of(first, first + 2)),
            "drop lines": drop(first, first + 1, drop_line_of(first, first + 1) * 2),
            "garbage": Frame(Kind.EVENTS, 1, 1, first, b"garbage\n"),
        }[kind]
        said = self.send(*before, wrong)
        assert self.next <= first
        refused = [answer for answer in said if answer.count]
        assert all((answer.first, answer.code) == (first, "malformed") for answer in refused)
        if not self.writer.recording.reason:
            assert len(refused) == 1

    # --- the disk

    @rule(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=3))
    def short_writes(self, sizes: list[int]) -> None:
        self.disk.short.extend(sizes)

    @rule(left=st.integers(0, 900))
    def the_disk_fills_up(self, left: int) -> None:
        self.disk.free = left

    @rule(operation=st.sampled_from(OPERATIONS), code=st.sampled_from(CODES))
    def an_operation_fails_once(self, operation: str, code: int) -> None:
        self.disk.once.append((operation, code))

    @rule(operation=st.sampled_from(OPERATIONS), code=st.sampled_from(CODES[:-1]))
    def an_operation_fails_for_long(self, operation: str, code: int) -> None:
        self.disk.failing[operation] = code

    @rule()
    def the_disk_is_well_again(self) -> None:
        self.heal()

    @rule(seconds=st.sampled_from([0.1, 0.3, 1, 40]))
    def time_passes(self, seconds: float) -> None:
        self.writer.clock.advance(seconds)

    # --- what the server does on its own

    @rule()
    def seal(self) -> None:
        if self.writer.recording.journal is not None:
            self.writer.recording.journal.seal()

    @rule()
    def give_the_descriptors_back(self) -> None:
        journal = self.writer.recording.journal
        if journal is not None and journal.segment is not None:
            journal.seal()
            if journal.segment is not None:
                journal.segment.suspend()

    @rule()
    def rest(self) -> None:
        if self.writer.recording.journal is not None:
            self.writer.recording.journal.rest()

    @rule()
    def go_to_sleep(self) -> None:
        journal, self.writer.recording.journal = self.writer.recording.journal, None
        if journal is not None:
            journal.seal()
            journal.note_digests()
            journal.write_manifest(self.writer.recording.manifest(journal, closed=True))
            journal.close()

    @rule(acked_only=st.booleans())
    def killed_and_started_again(self, acked_only: bool) -> None:
        """The producer opens its session again, with what it was told."""
        self.heal()
        before, last = self.next, self.next + 5
        journal = self.writer.recording.journal
        self.writer.close(closed=False)
        assert journal is None or self.disk.open_fds == []
        self.disk = FaultyDisk()
        producer = Producer(LIFE, self.told_to_first, last) if acked_only else Producer("00000000000000ff")
        if acked_only and self.foreign:
            producer = Producer(LIFE)  # what is left may show or hide that another life went on
        elif acked_only and self.other_life and before - 1 > self.told_to_first:
            with pytest.raises(SessionUnavailable) as refused:
                Writer(self.root, disk=self.disk, limits=LIMITS, producer=producer)
            assert refused.value.code == "taken"
            producer = Producer(LIFE)
        self.go_on_as(producer)
        assert self.next == before or self.foreign

    def go_on_as(self, producer: Producer) -> None:
        self.writer = Writer(self.root, disk=self.disk, limits=LIMITS, producer=producer)
        self.life = producer.life
        self.acked = self.next - 1  # this life is told in OPENED where it goes on
        if self.life == LIFE:
            self.told_to_first = self.acked

    @precondition(lambda self: self.writer.recording.journal is not None)
    @rule()
    def a_second_writer_is_refused(self) -> None:
        with pytest.raises(SessionUnavailable) as refused:
            Writer(self.root, disk=FaultyDisk(), limits=LIMITS)
        assert refused.value.code == "locked"

    @precondition(lambda self: self.writer.recording.journal is not None and self.writer.journal.segment is not None)
    @rule(how=st.sampled_from(["unlinked", "truncated", "grown", "replaced"]))
    def somebody_changes_the_segment(self, how: str) -> None:
        segment = self.writer.journal.segment
        assert segment is not None
        path = self.writer.directory / f"{segment.number:06d}.jsonl"
        if not path.exists() or path.stat().st_nlink != 1:
            return
        self.foreign = True
        data = path.read_bytes()
        if how == "unlinked":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(data[: len(data) // 2])
        elif how == "grown":
            path.write_bytes(data + b"not ours\n")
        else:
            path.unlink()
            path.write_bytes(data)
        self.writer.journal.check()

    # --- what always holds

    @invariant()
    def what_was_acknowledged_is_there_once_and_in_order(self) -> None:
        if not hasattr(self, "root"):
            return
        found, notes = read_all(self.writer.directory)
        seqs = covered(found)
        assert len(seqs) == len(set(seqs))
        assert seqs == sorted(seqs)
        for item in found:
            if item.record.event != "trace.drop.observed":
                assert item.line + b"\n" == line_of(item.record.seq)
        if not self.foreign:
            assert seqs == list(range(1, self.next))
            assert [note for note in notes if note.damage] == []

    @invariant()
    def seals_cover_only_what_was_written(self) -> None:
        if not hasattr(self, "root") or self.foreign:
            return
        for path in self.writer.directory.glob("*.seal"):
            data = path.with_suffix(".jsonl")
            size = data.stat().st_size if data.exists() else 0
            seals = decode_seals(path.read_bytes(), int(path.stem))
            at = 0
            for entry in seals.entries:
                assert entry.offset == at
                at += entry.length
            assert at <= size

    def finish(self) -> None:
        """The producer sends what it has until it is acknowledged, then everything is accounted for."""
        target = self.next + 4
        for _ in range(6):
            self.writer.clock.advance(40)
            if self.next <= target:
                self.send(events(self.next, lines_of(self.next, target - self.next + 1)))
        assert self.acked == target
        self.writer.close()
        assert self.disk.open_fds == []
        found, notes = read_all(self.writer.directory)
        if not self.foreign:
            assert covered(found) == list(range(1, target + 1))
            assert {seq for item in found if item.end > item.record.seq for seq in covered([item])} <= self.drops
            assert [note for note in notes if note.damage] == []
        assert not lock.is_held(str(self.writer.directory / "lock"))


TestRecordingMachine = RecordingMachine.TestCase
TestRecordingMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("free", [0, 1, 100, 300, 700])
def test_at_most_one_file_is_made_while_the_disk_is_full(free: int, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    disk = writer.disk
    assert isinstance(disk, FaultyDisk)
    writer.send(events(1, lines_of(1, 2)))
    before = sorted(path.name for path in writer.directory.iterdir())
    disk.free = free
    waits: list[int] = []
    for _ in range(30):
        first = writer.recording.next
        said = writer.send(events(first, lines_of(first, 9)))
        waits += [answer.retry_ms for answer in said if answer.code == "ENOSPC"]
        writer.clock.advance(31)
    after = sorted(path.name for path in writer.directory.iterdir())
    assert len([name for name in after if name.endswith(".jsonl") and name not in before]) <= 1
    assert waits[-1] == 30_000
    assert writer.recording.state == "degraded"
    disk.free = None
    first = writer.recording.next
    assert writer.send(events(first, lines_of(first, 9))) == [Answer(Kind.ACK, first + 8)]
    assert (writer.recording.state, writer.recording.reason) == ("ok", "")
    writer.close()


def test_waits_double_up_to_the_bound_and_start_anew_once_a_line_got_through(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    disk = writer.disk
    assert isinstance(disk, FaultyDisk)
    disk.failing["create"] = errno.EIO
    waits: list[int] = []
    for _ in range(9):
        (said,) = writer.send(events(1, line_of(1)))
        assert (said.kind, said.first, said.count, said.code) == (Kind.NACK, 1, 0, "EIO")
        waits.append(said.retry_ms)
        assert [answer.code for answer in writer.send(events(1, line_of(1)))] == ["busy"]
        writer.clock.advance(said.retry_ms / 1000)
    assert waits == [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]
    disk.failing.clear()
    assert writer.send(events(1, line_of(1))) == [Answer(Kind.ACK, 1)]
    disk.failing["write"] = errno.EIO
    assert writer.send(events(2, line_of(2)))[-1].retry_ms == 250
    writer.close()


def test_an_answer_comes_once_per_receive_and_also_when_all_was_known(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    first, second = events(1, lines_of(1, 2)), events(3, lines_of(3, 2))
    assert writer.send(first, second) == [Answer(Kind.ACK, 4)]
    assert writer.send(first) == [Answer(Kind.ACK, 4)]
    assert writer.send() == []
    early = events(9, line_of(9))
    assert writer.send(early, early) == [Answer(Kind.NACK, 5, 0, "gap", 0)]
    assert writer.send(early) == []
    assert writer.send(first, early) == [Answer(Kind.ACK, 4), Answer(Kind.NACK, 5, 0, "gap", 0)]
    writer.close()


@pytest.mark.parametrize("cut", range(0, 700, 9))
def test_after_a_short_write_whole_lines_count_and_nothing_is_left_half(cut: int, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    disk = writer.disk
    assert isinstance(disk, FaultyDisk)
    writer.send(events(1, line_of(1)))
    block = [events(2, lines_of(2, 2)), drop(4, 8, drop_line_of(4, 8)), events(9, line_of(9))]
    ends = [2, 3, 8, 9]
    data = b"".join(bytes(frame.body) for frame in block)
    whole = data[:cut].count(b"\n")
    disk.free = cut
    said = writer.send(*block)
    done = ends[whole - 1] if whole else 1
    if cut < len(data):
        assert said == [Answer(Kind.ACK, done), Answer(Kind.NACK, done + 1, 0, "ENOSPC", 250)]
    disk.free = None
    writer.clock.advance(1)
    writer.send(*block, events(10, line_of(10)))
    assert writer.recording.next == 11
    writer.close()
    found, notes = read_all(writer.directory)
    assert covered(found) == list(range(1, 11))
    assert {note.kind for note in notes} == {"dropped", "end_missing"}
    assert {item.state for item in found} <= {"verified", "unsealed"}  # on a full disk the last seal may be lost


def asleep(writer: Writer) -> None:
    """As the server closes a recording that is idle."""
    writer.journal.seal()
    writer.journal.close()
    writer.recording.journal = None


def test_an_idle_session_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 3)))
    asleep(writer)
    assert writer.send(events(4, line_of(4))) == [Answer(Kind.ACK, 4)]
    writer.close()
    assert covered(read_all(writer.directory)[0]) == [1, 2, 3, 4]


def test_a_life_that_wrote_nothing_yet_may_be_idle_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 3)))
    writer.close()
    writer = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    asleep(writer)
    assert writer.send(events(4, line_of(4))) == [Answer(Kind.ACK, 4)]
    writer.close()


def test_an_idle_session_that_another_process_went_on_with_is_refused_for_good(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 3)))
    asleep(writer)
    other = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    other.send(events(4, line_of(4)))
    assert writer.send(events(4, line_of(4)))[-1].code == "locked"
    other.close()
    writer.clock.advance(60)
    assert writer.send(events(4, line_of(4))) == [Answer(Kind.REFUSED, 0, 0, "taken")]
    assert writer.recording.journal is None
    writer.close()
    assert covered(read_all(writer.directory)[0]) == [1, 2, 3, 4]
