"""Where a session goes on is found in bounded time, whatever is at the end of its newest segment."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tests.strategies import SESSION, lines_of
from tests.tracewriter.harness import Writer, events
from tracewriter.config import MIB
from tracewriter.recovery import READ_MAX, Producer, newest_end
from tracewriter.segment import SealEntry, encode_entry


@pytest.mark.parametrize("sealed", [False, True])
def test_an_oversized_sparse_segment_is_not_read_whole_and_what_its_end_says_counts(
    tmp_path: Path, sealed: bool
) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    writer.close(closed=sealed)
    segment = writer.directory / "000001.jsonl"
    os.truncate(segment, 64 * 1024 * MIB)  # sparse: reading all of it would take minutes
    with segment.open("ab") as file:
        file.write(b"\n" + lines_of(6, 3))
    again = Writer(tmp_path)
    assert again.recording.next == 9
    again.close(closed=False)


def test_junk_without_an_end_in_an_oversized_segment_is_passed_over_and_its_seals_count(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    writer.close()
    os.truncate(writer.directory / "000001.jsonl", 2 * READ_MAX)
    again = Writer(tmp_path)
    assert again.recording.next == 6
    again.close(closed=False)


@pytest.mark.parametrize("count", [1, 3000])
def test_sealed_ranges_and_an_unsealed_end_count_alike(tmp_path: Path, count: int) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, count, "x" * 50)))
    writer.journal.seal()
    writer.send(events(count + 1, lines_of(count + 1, 2)))
    fd = os.open(writer.directory, os.O_RDONLY)
    assert newest_end(fd, [1], SESSION, Producer("00000000000000c3"))[0] == count + 2
    os.close(fd)
    writer.close(closed=False)


def _writer_with_seals(tmp_path: Path, seals: bytes) -> tuple[int, int]:
    """(where a session goes on whose 5 records are sealed and gone, when its seal file goes on like this; the peak of memory)"""
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    writer.close()
    data = (writer.directory / "000001.jsonl").read_bytes()
    (writer.directory / "000001.jsonl").write_bytes(data[: data.index(b"\n") + 1])
    with (writer.directory / "000001.seal").open("ab") as file:
        file.write(seals)
    tracemalloc.start()
    try:
        again = Writer(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    going_on = again.recording.next
    again.close(closed=False)
    return going_on, peak


@pytest.mark.parametrize("rest", [b"", b"torn", bytes(32), bytes(2048 * 32), bytes(2047 * 32) + b"torn"])
def test_what_seals_vouch_for_counts_whatever_follows_them(tmp_path: Path, rest: bytes) -> None:
    assert _writer_with_seals(tmp_path, rest)[0] == 6


def test_a_slot_without_records_vouches_for_no_seq(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    assert writer.journal.segment is not None
    slot = encode_entry(SealEntry(0xFFFFFFFF, 48_213, 0, 2**61, 7), writer.journal.segment.id)  # a payload's
    writer.close()
    with (writer.directory / "000001.seal").open("ab") as file:
        file.write(slot)
    again = Writer(tmp_path)
    assert again.recording.next == 6
    again.close(closed=False)


def test_a_seal_file_of_any_size_costs_little_memory(tmp_path: Path) -> None:
    going_on, peak = _writer_with_seals(tmp_path, bytes(48 * MIB))
    assert going_on == 6
    assert peak < 16 * MIB
