"""Segments and seals: slots say what they mean, entries cover exactly what was written, a failure never touches the data."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.fakes import FaultyDisk
from tests.strategies import SESSION, line_of, lines_of
from tracewriter.scan import decode_seals
from tracewriter.segment import (
    SEAL_RANGE,
    SEAL_SLOT,
    Header,
    Outcome,
    SealEntry,
    Segment,
    count_lines,
    decode_entry,
    decode_slot0,
    encode_entry,
    encode_slot0,
    seal_name,
    segment_name,
    segment_number,
)

uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
entries = st.builds(SealEntry, uint32, uint32, uint32, uint64, uint64)
HEADER = Header(1, "00000000000000ff", SESSION, "agentd.trace/1", "00000000000000a1", 0, "open")


@pytest.fixture
def dir_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@given(entries, uint64, uint64)
def test_an_entry_comes_back_for_its_segment_and_for_no_other(entry: SealEntry, ours: int, other: int) -> None:
    slot = encode_entry(entry, ours)
    assert len(slot) == SEAL_SLOT
    assert decode_entry(slot, ours) == entry
    assert ours == other or decode_entry(slot, other) is None


@given(entries, uint64, st.integers(0, SEAL_SLOT * 8 - 1))
def test_no_flipped_bit_of_a_slot_passes(entry: SealEntry, segment: int, bit: int) -> None:
    for slot, number in ((encode_entry(entry, segment), None), (encode_slot0(7, segment), 7)):
        flipped = bytearray(slot)
        flipped[bit // 8] ^= 1 << bit % 8
        decoded = decode_entry(bytes(flipped), segment) if number is None else decode_slot0(bytes(flipped))
        assert decoded is None
    assert decode_slot0(encode_slot0(7, segment)) == (7, segment)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("000001.jsonl", (1, "jsonl")),
        ("123456789.seal", (123456789, "seal")),
        ("00001.jsonl", None),
        ("000001.jsonl\n", None),
        ("000001.jsonl.new", None),
        ("٠٠٠٠٠١.jsonl", None),
        ("manifest.json", None),
    ],
)
def test_only_segments_and_seals_have_numbers(name: str, expected: tuple[int, str] | None) -> None:
    assert segment_number(name) == expected
    assert segment_number(segment_name(42)) == (42, "jsonl")


@given(st.binary(max_size=300))
def test_lines_are_counted_like_lf(data: bytes) -> None:
    assert count_lines(data) == count_lines(memoryview(data)) == data.count(b"\n")


def test_entries_are_made_at_64_kib_without_holes_and_hash_what_is_stored(tmp_path: Path, dir_fd: int) -> None:
    segment = Segment(FaultyDisk(), dir_fd, HEADER)
    assert segment.start(line_of(1, "x" * 1000), 1, 1) == Outcome(1)
    for seq in range(2, 200):
        assert segment.append(line_of(seq, "x" * 1000), 1, seq) == Outcome(1)
        if seq in (50, 51, 150):
            segment.seal()
    segment.seal()
    segment.seal()
    segment.suspend()
    data = (tmp_path / segment_name(1)).read_bytes()
    seals = decode_seals((tmp_path / seal_name(1)).read_bytes(), 1)
    assert (seals.segment_id, seals.bad_slots) == (255, 0)
    at = records = 0
    for entry in seals.entries:
        assert entry.offset == at
        piece = data[at : at + entry.length]
        assert entry.digest == xxh3_64_intdigest(piece)
        assert piece.endswith(b"\n")
        assert entry.length < SEAL_RANGE + 2000
        at += entry.length
        records += entry.records
        assert entry.last == records
    assert (at, records) == (len(data), 199)


def test_each_kind_of_foreign_change_is_named(tmp_path: Path, dir_fd: int) -> None:
    path = tmp_path / segment_name(1)
    segment = Segment(FaultyDisk(), dir_fd, HEADER)
    segment.start(line_of(1), 1, 1)
    assert segment.foreign_change(by_name=True) == ""
    data = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"x")
    assert segment.foreign_change(by_name=False) == "grown"
    os.truncate(path, 3)
    assert segment.foreign_change(by_name=False) == "truncated"
    path.write_bytes(data)
    moved = path.rename(tmp_path / "moved")
    assert segment.foreign_change(by_name=True) in ("replaced", "gone")
    path.write_bytes(data)
    assert segment.foreign_change(by_name=True) == "replaced"
    moved.unlink()
    assert segment.foreign_change(by_name=False) == "unlinked"
    segment.suspend()


@pytest.mark.parametrize(
    "what", ["nothing", "grown", "replaced", "linked", "seal linked", "seal gone", "gone", "symlink"]
)
def test_an_evicted_segment_is_reopened_only_as_it_was_left(what: str, tmp_path: Path, dir_fd: int) -> None:
    path, seal = tmp_path / segment_name(1), tmp_path / seal_name(1)
    outside = tmp_path / "outside"
    disk = FaultyDisk()
    segment = Segment(disk, dir_fd, HEADER)
    segment.start(line_of(1), 1, 1)
    segment.seal()
    segment.suspend()
    assert disk.open_fds == []
    data, seals = path.read_bytes(), seal.read_bytes()
    match what:
        case "grown":
            path.write_bytes(data + b"x")
        case "replaced":
            path.rename(tmp_path / "moved")  # kept, so that the other one cannot get its inode
            path.write_bytes(data)
        case "linked":
            outside.hardlink_to(path)
        case "seal linked":
            seal.unlink()
            outside.write_bytes(seals)
            seal.hardlink_to(outside)
        case "seal gone":
            seal.unlink()
        case "gone":
            path.unlink()
        case "symlink":
            path.rename(outside)
            path.symlink_to(outside)
        case _:
            pass
    assert segment.resume() == (what == "nothing")
    segment.suspend()
    assert disk.open_fds == []
    if what == "seal linked":
        assert outside.read_bytes() == seals


@pytest.mark.parametrize("takes", range(0, 33, 4))
def test_a_short_seal_write_is_cut_back_to_whole_slots_and_tried_again(takes: int, tmp_path: Path, dir_fd: int) -> None:
    disk = FaultyDisk()
    segment = Segment(disk, dir_fd, HEADER)
    segment.start(line_of(1), 1, 1)
    disk.short.append(takes)
    segment.seal()
    segment.append(line_of(2), 1, 2)
    segment.seal()
    segment.suspend()
    data = (tmp_path / seal_name(1)).read_bytes()
    assert len(data) % SEAL_SLOT == 0
    assert [entry.last for entry in decode_seals(data, 1).entries] == [1, 2]


@pytest.mark.parametrize("operation", ["create", "write", "fstat"])
def test_a_segment_that_cannot_be_begun_leaves_nothing(operation: str, tmp_path: Path, dir_fd: int) -> None:
    disk = FaultyDisk()
    disk.failing[operation] = errno.EIO
    segment = Segment(disk, dir_fd, HEADER)
    outcome = segment.start(lines_of(1, 3), 3, 3)
    assert (outcome.lines, outcome.error and outcome.error.errno) == (0, errno.EIO)
    assert list(tmp_path.iterdir()) == []
    assert disk.open_fds == []


def test_a_header_is_unique_in_its_first_256_bytes_and_under_them() -> None:
    long = Header(999_999_999, "f" * 16, "a" * 64, "agentd.trace/1", "f" * 16, 2**40, "error:ENOTRECOVERABLE", 2**40)
    line = msgspec.json.encode(long)
    assert line.index(b'"id"') < 40
    assert line.startswith(b'{"segment":999999999,"id":"')
