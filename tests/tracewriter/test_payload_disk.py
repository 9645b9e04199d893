"""A disk that fails while a body is stored: its record waits, nothing half is left, and it goes on by itself."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.fakes import FaultyDisk
from tests.strategies import drop_line_of, line_of
from tests.tracewriter.harness import OTHER_LIFE, Answer, Writer, broken_references, drop, events, naming, parts
from tests.tracewriter.payload_writer import ACK_2, BODY, OTHER, P, Q, disk_of, files_bytes, stored, whole, with_body
from tracewriter.config import Limits
from tracewriter.journal import Producer
from tracewriter.protocol import Kind

# --- the disk


@pytest.mark.parametrize("free", [*range(0, 1700, 97), 1699])
def test_a_full_disk_holds_the_session_leaves_no_half_body_and_goes_on_when_there_is_room(
    free: int, tmp_path: Path
) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, line_of(1)))
    disk_of(writer).free = free
    said = writer.send(*with_body(2), events(3, line_of(3)))
    assert said == [Answer(Kind.ACK, 1), Answer(Kind.NACK, 2, 0, "ENOSPC", 250)]
    assert (stored(writer), writer.recording.state) == ({}, "degraded")
    assert [answer.code for answer in writer.send(*with_body(2))] == ["busy"]
    writer.clock.advance(0.3)
    assert writer.send(events(2, naming(2, P)))[-1].code == "gap", "one that was still on its way"
    assert writer.send(*with_body(2))[-1] == Answer(Kind.NACK, 2, 0, "ENOSPC", 500)
    disk_of(writer).free = None
    writer.clock.advance(0.6)
    assert writer.send(*with_body(2), events(3, line_of(3))) == [Answer(Kind.ACK, 3)]
    assert (stored(writer), writer.recording.state) == ({P: BODY}, "ok")
    assert writer.recording.status().bytes == files_bytes(writer)
    writer.close()
    whole(writer, 3)


@pytest.mark.parametrize("operation", ["open_dir", "create", "write", "replace", "fstat", "stat", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("durability", ["interval", "batch"])
def test_whatever_fails_while_a_body_is_stored_its_record_waits(
    operation: str, code: int, durability: str, tmp_path: Path
) -> None:
    writer = Writer(tmp_path, limits=Limits(durability=durability))
    for step in range(1, 6):
        first = writer.recording.next
        disk_of(writer).once.clear()
        disk_of(writer).once.append((operation, code))
        frames = [*parts(first, f"{step:032x}", BODY), *parts(first, f"{step:031x}f", OTHER)]
        frames.append(events(first, naming(first, f"{step:032x}", f"{step:031x}f")))
        for attempt in range(3):
            said = writer.send(*frames)
            assert broken_references(writer.directory) == []
            if writer.recording.next > first:
                break
            assert said[-1].code == errno.errorcode[code], attempt
            assert not [name for name in stored(writer) if name.endswith(".part")]
            writer.clock.advance(100)
    disk_of(writer).once.clear()
    assert writer.recording.next == 6
    writer.close()
    whole(writer, 5)
    assert disk_of(writer).open_fds == []


def test_of_two_bodies_the_one_that_failed_must_come_again_before_the_record(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    first, second, record = parts(1, P, BODY), parts(1, Q, OTHER), events(1, naming(1, P, Q))
    disk_of(writer).once.append(("write", errno.ENOSPC))
    assert writer.send(*first)[-1].code == "ENOSPC"
    writer.clock.advance(1)
    assert writer.send(*second, record) == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 0, "gap", 0)]
    assert stored(writer) == {Q: OTHER}
    assert writer.send(*first, *second, record) == [Answer(Kind.ACK, 1)]
    writer.close()
    whole(writer, 1)


def test_a_line_that_must_not_be_stored_keeps_back_the_bodies_after_it_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    bad = naming(1, P)[:-2] + b',"\\u0073k-live0123456789abcdefghij":1e999999}\n'
    said = writer.send(events(1, bad), *with_body(2))
    assert said == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 1, "redact", 0)]
    assert stored(writer) == {}
    assert writer.recording._parts._memory.used == 0
    assert writer.send(drop(1, 1, drop_line_of(1, 1)), *with_body(2)) == ACK_2
    writer.close()
    whole(writer, 2)


def test_a_body_that_a_file_size_limit_never_lets_through_is_refused_for_good(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    disk_of(writer).once.append(("write", errno.EFBIG))
    said = writer.send(*with_body(1), events(2, line_of(2)))
    assert said == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 1, "EFBIG", 0)]
    assert (stored(writer), writer.recording.state) == ({}, "ok")
    assert writer.send(events(1, naming(1, P))) == []
    assert writer.send(drop(1, 1, drop_line_of(1, 1)), events(2, line_of(2))) == ACK_2
    writer.close()
    whole(writer, 2)


def test_a_session_whose_directory_is_gone_goes_on_with_its_bodies_by_its_name(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1))
    shutil.rmtree(writer.directory)
    said = writer.send(*with_body(2, Q, OTHER))
    assert said == ACK_2
    assert stored(writer) == {Q: OTHER}
    writer.close()


# --- durability


def test_with_batch_a_body_and_its_name_are_on_disk_before_its_record_is_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path, limits=Limits(durability="batch"))
    writer.send(events(1, line_of(1)))
    before = len(disk_of(writer).log)
    writer.send(*with_body(2))
    log = [(operation.kind, operation.name) for operation in disk_of(writer).log[before:]]
    session = writer.directory.name
    assert log == [
        ("create", f"{P}.part"),
        ("write", f"{P}.part"),
        ("sync", f"{P}.part"),
        ("replace", f"{P}.part"),
        ("sync", "payloads"),
        ("sync", session),
        ("write", "000001.jsonl"),
        ("sync", "000001.jsonl"),
        ("sync", "000001.seal"),
    ]
    writer.close()


@pytest.mark.parametrize("number", range(3))
def test_with_batch_a_body_whose_sync_failed_is_written_anew(number: int, tmp_path: Path) -> None:
    class Fails(FaultyDisk):
        """The n-th sync of the session fails."""

        syncs = -100

        def sync(self, fd: int) -> None:
            self.syncs += 1
            if self.syncs == number + 1:
                raise OSError(errno.EIO, "no")
            super().sync(fd)

    disk = Fails()
    writer = Writer(tmp_path, disk=disk, limits=Limits(durability="batch"))
    disk.syncs = 0
    assert writer.send(*with_body(1)) == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 0, "EIO", 250)]
    writer.clock.advance(1)
    assert writer.send(*with_body(1)) == [Answer(Kind.ACK, 1)]
    renamed = [operation for operation in disk.log if operation.kind == "replace"]
    assert len(renamed) == (1 if number == 0 else 2)
    assert writer.recording.status().bytes == files_bytes(writer)
    writer.close()
    whole(writer, 1)


def test_in_the_background_bodies_are_synced_before_the_records_that_name_them(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1), *with_body(2, Q, OTHER))
    segment = writer.journal.segment
    assert segment is not None
    before = len(disk_of(writer).log)
    assert segment.sync() is None
    names = [operation.name for operation in disk_of(writer).log[before:]]
    assert names == [P, Q, "payloads", writer.directory.name, "000001.jsonl", "000001.seal"]
    writer.send(events(3, line_of(3)))
    before = len(disk_of(writer).log)
    assert segment.sync() is None
    assert [operation.name for operation in disk_of(writer).log[before:]] == ["000001.jsonl", "000001.seal"], "once"
    writer.close()


def test_what_a_killed_life_left_to_the_kernel_is_synced_bodies_first(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1))
    writer.close(closed=False)
    disk = FaultyDisk()
    again = Writer(tmp_path, disk=disk, limits=Limits(durability="batch"), producer=Producer(OTHER_LIFE))
    names = [operation.name for operation in disk.log if operation.kind == "sync"]
    assert [name for name in names if name in (P, "payloads", "000001.jsonl")] == [P, "payloads", "000001.jsonl"]
    again.close()
