"""Where a session goes on is found in bounded time, whatever is at the end of its newest segment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.strategies import SESSION, lines_of
from tests.tracewriter.harness import Writer, events
from tracewriter.config import MIB
from tracewriter.recovery import READ_MAX, Producer, newest_end


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
