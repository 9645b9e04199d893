"""durability batch: acknowledged is what fdatasync has returned for. After one that failed, nobody knows what is on disk: that
file is never synced again, its block is taken back and goes into a new segment, once."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FaultyDisk
from tests.strategies import lines_of
from tests.tracewriter.harness import LIFE, OTHER_LIFE, Answer, Writer, covered, damage, events, read_all
from tracewriter import reader
from tracewriter.config import KIB, Limits
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Producer
from tracewriter.protocol import Kind
from tracewriter.scan import parse_header

BATCH = Limits(durability="batch", retry_first_s=0.25)
EIO = "EIO"


class Watched(FaultyDisk):
    """Remembers which files (by inode) had an fdatasync fail, and refuses to see them synced again."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[tuple[int, int]] = set()
        self.synced: dict[tuple[int, int], int] = {}  # file: size at its last good fdatasync

    def create(self, name: str, dir_fd: int) -> int:
        fd = super().create(name, dir_fd)
        info = os.fstat(fd)
        self.failed.discard((info.st_dev, info.st_ino))  # the number of a file that is gone, used again
        self.synced.pop((info.st_dev, info.st_ino), None)
        return fd

    def sync(self, fd: int) -> None:
        info = os.fstat(fd)
        file = (info.st_dev, info.st_ino)
        is_segment = self._names.get(fd, "").endswith(".jsonl")
        assert not (is_segment and file in self.failed), "synced again after a failure"
        try:
            super().sync(fd)
        except OSError:
            self.failed.add(file)
            raise
        self.synced[file] = info.st_size


@pytest.fixture
def disk() -> Watched:
    return Watched()


@pytest.fixture
def writer(tmp_path: Path, disk: Watched) -> Iterator[Writer]:
    writer = Writer(tmp_path, disk=disk, limits=BATCH)
    yield writer
    writer.close()
    assert disk.open_fds == []


def durable_lines(writer: Writer, disk: Watched) -> int:
    """How many records of the session a power cut would leave."""
    count = 0
    for path in writer.directory.glob("*.jsonl"):
        info = path.stat()
        count += path.read_bytes()[: disk.synced.get((info.st_dev, info.st_ino), 0)].count(b"\n") - 1
    return count


def send(writer: Writer, count: int) -> list[Answer]:
    """So many records, after the wait that the last answer asked for."""
    writer.clock.advance(60)
    first = writer.recording.next
    return writer.send(events(first, lines_of(first, count)))


def files(writer: Writer) -> list[str]:
    return sorted(path.name for path in writer.directory.glob("00*"))


def whole(writer: Writer, last: int) -> None:
    """1 to last are there once, and nothing looks damaged."""
    found, notes = read_all(writer.directory)
    assert covered(found) == list(range(1, last + 1))
    assert [note for note in notes if note.damage] == []
    assert damage(reader.verify(writer.directory)) == []


def test_the_fdatasync_comes_after_the_write_and_before_the_acknowledgement(tmp_path: Path, disk: Watched) -> None:
    writer = Writer(tmp_path, disk=disk, limits=BATCH)
    for count in (1, 3, 2):
        (answer,) = send(writer, count)
        assert answer == Answer(Kind.ACK, writer.recording.next - 1)
        assert durable_lines(writer, disk) == answer.first
        assert [operation.kind for operation in disk.log if operation.name.endswith(".jsonl")][-1] == "sync"
    writer.close()


def test_the_names_of_a_new_session_and_of_a_new_segment_are_synced_too(writer: Writer, disk: Watched) -> None:
    send(writer, 1)
    directory, workspace = writer.directory.stat(), writer.directory.parent.stat()
    synced = disk.synced.keys()
    assert {(directory.st_dev, directory.st_ino), (workspace.st_dev, workspace.st_ino)} <= synced
    root = writer.root.stat()
    assert (root.st_dev, root.st_ino) in synced


def test_after_a_failed_fdatasync_the_block_goes_into_a_new_segment_once(writer: Writer, disk: Watched) -> None:
    send(writer, 3)
    disk.once.append(("sync", errno.EIO))
    said = send(writer, 4)
    assert [(a.kind, a.first, a.code) for a in said] == [(Kind.ACK, 3, ""), (Kind.NACK, 4, EIO)]
    assert (writer.recording.state, writer.recording.reason) == ("degraded", EIO)
    assert send(writer, 4) == [Answer(Kind.ACK, 7)]
    assert (writer.recording.state, durable_lines(writer, disk)) == ("ok", 7)
    whole(writer, 7)
    assert [name for name in files(writer) if name.endswith(".jsonl")] == ["000001.jsonl", "000002.jsonl"]
    header = parse_header((writer.directory / "000002.jsonl").read_bytes().partition(b"\n")[0])
    assert header is not None
    assert (header.why, header.after) == ("error:EIO", 3)


def test_a_new_segment_whose_fdatasync_fails_leaves_no_file_and_no_number(writer: Writer, disk: Watched) -> None:
    disk.failing["sync"] = errno.EIO
    for _ in range(5):
        assert send(writer, 2)[-1].code == EIO
        assert files(writer) == []
        assert writer.recording.status().segments == 0
    disk.failing.clear()
    assert send(writer, 2) == [Answer(Kind.ACK, 2)]
    assert files(writer) == ["000001.jsonl", "000001.seal"]
    whole(writer, 2)


def test_what_was_lost_before_is_told_by_the_segment_that_gets_through(tmp_path: Path, disk: Watched) -> None:
    writer = Writer(tmp_path, disk=disk, limits=BATCH, producer=Producer(LIFE, acked=5, last=5))
    disk.once.append(("sync", errno.EIO))
    send(writer, 1)
    send(writer, 1)
    header = parse_header((writer.directory / "000001.jsonl").read_bytes().partition(b"\n")[0])
    assert header is not None
    assert (header.lost, header.after) == (5, 5)
    writer.close()


def test_a_range_that_was_closed_by_a_block_that_is_taken_back_is_no_seal(writer: Writer, disk: Watched) -> None:
    send(writer, 1)
    disk.once.append(("sync", errno.EIO))
    assert len(lines_of(2, 600)) > 64 * KIB
    assert send(writer, 600)[-1].code == EIO
    assert send(writer, 600) == [Answer(Kind.ACK, 601)]
    whole(writer, 601)


@pytest.mark.parametrize("operation", ["truncate", "unlink", "append"])
@pytest.mark.parametrize("before", [0, 3])
def test_what_cannot_be_taken_back_is_not_written_anywhere_else(
    writer: Writer, disk: Watched, operation: str, before: int
) -> None:
    """A file system that turns read-only under it fails first the fdatasync and then the cut."""
    if before:
        send(writer, before)
    disk.once.append(("sync", errno.EIO))
    disk.failing[operation] = errno.EROFS
    assert send(writer, 4)[-1].code == EIO
    for _ in range(3):
        send(writer, 4)
        found, _ = read_all(writer.directory)
        assert covered(found) == sorted(set(covered(found)))
    disk.failing.clear()
    send(writer, 4)
    last = writer.recording.next - 1
    assert durable_lines(writer, disk) >= last >= before + 4
    whole(writer, last)


def test_whole_lines_of_a_short_write_are_synced_before_they_count(writer: Writer, disk: Watched) -> None:
    send(writer, 1)
    disk.free = len(lines_of(2, 2)) + 5
    said = send(writer, 5)
    assert [(a.kind, a.first, a.code) for a in said] == [(Kind.ACK, 3, ""), (Kind.NACK, 4, "ENOSPC")]
    assert durable_lines(writer, disk) == 3
    disk.free = None
    send(writer, 3)
    whole(writer, 6)


def test_a_short_write_whose_fdatasync_fails_counts_nothing(writer: Writer, disk: Watched) -> None:
    send(writer, 1)
    disk.free = len(lines_of(2, 2)) + 5
    disk.once.append(("sync", errno.EIO))
    assert [(a.first, a.code) for a in send(writer, 5) if a.kind is Kind.NACK] == [(2, EIO)]
    disk.free = None
    send(writer, 5)
    whole(writer, 6)


def test_what_a_killed_life_wrote_is_synced_before_it_is_vouched_for(tmp_path: Path) -> None:
    first = Writer(tmp_path, limits=Limits(durability="none"))
    send(first, 3)
    first.close(closed=False)
    disk = Watched()
    second = Writer(tmp_path, disk=disk, limits=BATCH, producer=Producer(LIFE, acked=1, last=3))
    assert second.recording.next == 4
    assert durable_lines(second, disk) == 3
    second.close()


def test_what_a_killed_life_wrote_and_cannot_be_synced_is_not_vouched_for(tmp_path: Path) -> None:
    first = Writer(tmp_path, limits=BATCH)
    send(first, 3)
    first.close(closed=False)
    for number in range(3):  # the two directories' names, then the segment

        class Fails(Watched):
            calls = number

            def sync(self, fd: int) -> None:
                if not self.calls:
                    self.once.append(("sync", errno.EIO))
                self.calls -= 1
                super().sync(fd)

        disk = Fails()
        with pytest.raises(SessionUnavailable, match="Input/output error") as refused:
            Writer(tmp_path, disk=disk, limits=BATCH, producer=Producer(OTHER_LIFE))
        assert refused.value.code == EIO
        assert disk.open_fds == []


def test_without_it_nothing_is_synced_on_the_loop(tmp_path: Path) -> None:
    for durability in ("none", "interval"):
        disk = FaultyDisk()
        (tmp_path / durability).mkdir()
        writer = Writer(tmp_path / durability, disk=disk, limits=Limits(durability=durability))
        assert send(writer, 2) == [Answer(Kind.ACK, 2)]
        writer.close()
        assert [operation for operation in disk.log if operation.kind == "sync"] == []


@given(st.lists(st.tuples(st.integers(1, 6), st.sets(st.integers(0, 4), max_size=3)), max_size=12))
def test_however_fdatasync_fails_what_is_acknowledged_is_durable_and_there_once(
    steps: list[tuple[int, set[int]]],
) -> None:
    """Every step sends records while the so-manieth fdatasyncs from then on fail."""

    class Chosen(Watched):
        calls: frozenset[int] = frozenset()
        done = 0

        def sync(self, fd: int) -> None:
            self.done += 1
            if self.done - 1 in self.calls:
                self.once.append(("sync", errno.EIO))
            super().sync(fd)

    with tempfile.TemporaryDirectory() as directory:
        disk = Chosen()
        writer = Writer(Path(directory), disk=disk, limits=Limits(durability="batch", segment_bytes=3000))
        acked = 0
        for count, failing in steps:
            disk.calls, disk.done = frozenset(failing), 0
            acked = max([acked, *(a.first for a in send(writer, count) if a.kind is Kind.ACK)])
            assert durable_lines(writer, disk) >= acked == writer.recording.next - 1
        writer.close()
        if acked:
            whole(writer, acked)
