"""A session's directory: who may record it, where the numbers go on, what is left alone, what digests remember."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.fakes import FaultyDisk
from tests.strategies import line_of, lines_of
from tests.tracewriter.harness import LIFE, OTHER_LIFE, Writer, covered, damage, events, read_all
from tracewriter import reader
from tracewriter.config import Limits
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Producer
from tracewriter.manifest import chain, parse_digests
from tracewriter.scan import parse_header


def recorded(root: Path, count: int, life: str = LIFE) -> Path:
    writer = Writer(root, producer=Producer(life))
    first = writer.recording.next
    writer.send(events(first, lines_of(first, count)))
    writer.close()
    return writer.directory


def headers(directory: Path) -> list[tuple[int, int, str, int]]:
    found = [parse_header(path.read_bytes().partition(b"\n")[0]) for path in sorted(directory.glob("*.jsonl"))]
    return [(h.segment, h.after, h.why, h.lost) for h in found if h is not None]


def test_each_open_makes_a_segment_only_with_its_first_record(tmp_path: Path) -> None:
    for _ in range(3):
        Writer(tmp_path).close()
    directory = recorded(tmp_path, 3)
    assert headers(directory) == [(1, 0, "open", 0)]
    assert headers(recorded(tmp_path, 2)) == [(1, 0, "open", 0), (2, 3, "open", 0)]


@pytest.mark.parametrize(
    ("acked", "last", "life", "after"),
    [
        (0, 0, LIFE, 3),  # a new life goes on after what is there
        (3, 5, LIFE, 3),  # a life that comes back
        (2, 5, LIFE, 3),  # whose last ACK was lost
        (3, 3, LIFE, 3),
        (7, 9, LIFE, 7),  # whose acknowledged records are gone
        (3, 5, OTHER_LIFE, 3),  # whose own records never got here
        (4, 5, OTHER_LIFE, 4),
    ],
)
def test_numbers_go_on_after_all_that_is_known(acked: int, last: int, life: str, after: int, tmp_path: Path) -> None:
    recorded(tmp_path, 3)
    writer = Writer(tmp_path, producer=Producer(life, acked, last))
    assert writer.recording.next == after + 1
    writer.send(events(after + 1, line_of(after + 1)))
    writer.close()
    assert headers(writer.directory)[-1] == (2, after, "open", acked if acked > 3 else 0)
    verdict = reader.verify(writer.directory)
    assert [note.kind for note in damage(verdict)] == (["gap"] if after > 3 else [])


@pytest.mark.parametrize("acked", [0, 1, 2])
def test_a_session_that_another_life_went_on_with_is_taken(acked: int, tmp_path: Path) -> None:
    recorded(tmp_path, 3)
    with pytest.raises(SessionUnavailable) as refused:
        Writer(tmp_path, producer=Producer(OTHER_LIFE, acked, 5))
    assert (refused.value.code, refused.value.retry_ms) == ("taken", -1)


def test_lines_of_this_life_that_claim_more_than_it_gave_out_are_passed_over(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 3)
    path = directory / "000001.jsonl"
    path.write_bytes(path.read_bytes() + line_of(4000) + line_of(4001))
    writer = Writer(tmp_path, producer=Producer(LIFE, 3, 5))
    assert writer.recording.next == 4
    writer.close()


def test_what_seals_vouch_for_is_never_numbered_again(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 9)
    os.truncate(directory / "000001.jsonl", 400)
    writer = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert writer.recording.next == 10
    writer.close()


@pytest.mark.parametrize("flip", range(0, 250, 3))
def test_a_damaged_header_never_keeps_a_session_from_being_recorded(flip: int, tmp_path: Path) -> None:
    directory = recorded(tmp_path, 3)
    path = directory / "000001.jsonl"
    data = bytearray(path.read_bytes())
    data[flip % data.index(b"\n")] ^= 1 << flip % 8
    path.write_bytes(data)
    writer = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    first = writer.recording.next
    assert first >= 4
    writer.send(events(first, line_of(first)))
    writer.close()
    assert covered(read_all(directory)[0])[-1] == first


@pytest.mark.parametrize("kind", ["file", "dangling link", "link", "fifo", "directory", "hard link"])
@pytest.mark.parametrize("name", ["000001.jsonl", "000001.seal", "digests", "manifest.json", "manifest.json.new"])
def test_nothing_outside_is_touched_through_what_is_planted(kind: str, name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    writer = Writer(root)
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    path = writer.directory / name
    match kind:
        case "file":
            path.write_bytes(b"theirs")
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case "link":
            path.symlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case "hard link":
            path.hardlink_to(outside)
        case _:
            path.mkdir()
    assert writer.send(events(1, lines_of(1, 3)))[0].first == 3
    writer.close()
    assert outside.read_bytes() == b"untouched"
    assert not (tmp_path / "nowhere").exists()
    found, _ = read_all(writer.directory)
    assert covered(found) == [1, 2, 3]


def test_digests_are_chained_and_appended_over_lives(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 3)
    one = (directory / "digests").read_bytes()
    recorded(tmp_path, 2)
    two = (directory / "digests").read_bytes()
    assert two.startswith(one)
    digests = parse_digests(two)
    assert sorted(digests) == [1, 2]
    head = chain(chain("", digests[1]), digests[2])
    assert two.split(b"\n")[-2].split(b" ")[2].decode() == head == reader.verify(directory).head


@pytest.mark.parametrize("cut", [1, 40, 100, 135])
def test_a_torn_digest_is_written_again_and_hides_no_other(cut: int, tmp_path: Path) -> None:
    directory = recorded(tmp_path, 3)
    path = directory / "digests"
    path.write_bytes(path.read_bytes()[:-cut])
    recorded(tmp_path, 2)
    assert sorted(parse_digests(path.read_bytes())) == [1, 2]
    assert damage(reader.verify(directory)) == []


def test_a_digest_never_waits_for_a_pipe(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 3)
    (directory / "digests").unlink()
    (directory / "000001.jsonl").unlink()
    os.mkfifo(directory / "000001.jsonl")
    keep = os.open(directory / "000001.jsonl", os.O_RDWR)
    os.write(keep, b"endless")
    try:
        recorded(tmp_path, 2)
    finally:
        os.close(keep)
    assert 1 not in parse_digests((directory / "digests").read_bytes())


def test_rotation_is_at_the_first_block_beyond_the_size_and_between_lines(tmp_path: Path) -> None:
    writer = Writer(tmp_path, limits=Limits(segment_bytes=2000))
    for first in range(1, 40, 3):
        writer.send(events(first, lines_of(first, 3)))
    writer.close()
    sizes = [path.stat().st_size for path in sorted(writer.directory.glob("*.jsonl"))]
    assert max(sizes) <= 2000
    assert [why for _, _, why, _ in headers(writer.directory)] == ["open"] + ["size"] * (len(sizes) - 1)
    assert covered(read_all(writer.directory)[0]) == list(range(1, 40))


def test_the_reason_for_each_new_segment_is_in_its_header(tmp_path: Path) -> None:
    disk = FaultyDisk()
    writer = Writer(tmp_path, disk=disk)
    writer.send(events(1, line_of(1)))
    disk.once.append(("write", errno.EIO))
    writer.send(events(2, line_of(2)))
    writer.clock.advance(1)
    writer.send(events(2, line_of(2)))
    (writer.directory / "000002.jsonl").unlink()
    writer.send(events(3, line_of(3)))
    os.truncate(writer.directory / "000003.jsonl", 10)
    writer.send(events(4, line_of(4)))
    writer.close()
    whys = [(number, why) for number, _, why, _ in headers(writer.directory)]
    assert whys == [(1, "open"), (4, "foreign:truncated")]


@pytest.mark.parametrize("operation", ["open_dir", "names"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ENOSPC])
def test_what_cannot_be_opened_is_refused_with_its_reason_and_nothing_stays_open(
    operation: str, code: int, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    disk.failing[operation] = code
    with pytest.raises(SessionUnavailable) as refused:
        Writer(tmp_path, disk=disk)
    assert refused.value.code == errno.errorcode[code]
    assert refused.value.retry_ms > 0
    assert disk.open_fds == []
    disk.failing.clear()
    Writer(tmp_path, disk=disk).close()
    assert disk.open_fds == []
