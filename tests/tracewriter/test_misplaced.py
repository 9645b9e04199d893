"""A session's directory that is deleted or replaced while it is recorded: recording goes on where its name leads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.strategies import lines_of
from tests.tracewriter.harness import KEY, Answer, Writer, covered, events, read_all
from tracewriter.background import Background
from tracewriter.protocol import Kind
from tracewriter.scan import parse_header
from tracewriter.segment import Header
from tracewriter.upkeep import Place, Upkeep


def _header(path: Path) -> Header:
    header = parse_header(path.read_bytes().partition(b"\n")[0])
    assert header is not None
    return header


def _seal(writer: Writer) -> list[str]:
    """What the seal interval does to the recording; gives what was logged."""
    said: list[str] = []
    background = Background()
    place = Place(str(writer.root), os.open(writer.root, os.O_RDONLY | os.O_DIRECTORY))
    upkeep = Upkeep(
        {KEY: writer.recording}, background, place, clock=writer.clock, limits=writer.limits, log=said.append
    )
    writer.clock.advance(writer.limits.seal_interval_s)
    upkeep.due(writer.clock.monotonic())
    assert background.stop(5.0)
    os.close(place.fd)
    return said


@pytest.mark.parametrize("sealed", [False, True])
def test_a_deleted_directory_is_made_anew_and_what_was_in_it_is_said_to_be_lost(tmp_path: Path, sealed: bool) -> None:
    writer = Writer(tmp_path)
    assert writer.send(events(1, lines_of(1, 5))) == [Answer(Kind.ACK, 5)]
    shutil.rmtree(writer.directory)
    if sealed:
        assert len(_seal(writer)) == 1
    assert writer.send(events(6, lines_of(6, 3))) == [Answer(Kind.ACK, 8)]
    assert writer.recording.status().state == "ok"
    header = _header(writer.directory / "000001.jsonl")
    assert (header.after, header.lost) == (5, 5)
    found, _ = read_all(writer.directory)
    assert covered(found) == [6, 7, 8]
    writer.close()


def test_an_older_copy_in_its_place_is_gone_on_with_and_says_what_is_lost(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    shutil.copytree(writer.directory, tmp_path / "copy")
    writer.send(events(6, lines_of(6, 3)))
    shutil.rmtree(writer.directory)
    (tmp_path / "copy").rename(writer.directory)
    assert writer.send(events(9, lines_of(9, 2))) == [Answer(Kind.ACK, 10)]
    header = _header(writer.directory / "000002.jsonl")
    assert (header.after, header.lost) == (8, 8)
    found, _ = read_all(writer.directory)
    assert covered(found) == [1, 2, 3, 4, 5, 9, 10]
    writer.close()


def test_a_copy_in_place_of_a_directory_that_was_moved_away_is_noticed_at_the_next_seal(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    shutil.copytree(writer.directory, tmp_path / "copy")
    writer.send(events(6, lines_of(6, 3)))
    writer.directory.rename(tmp_path / "moved")
    (tmp_path / "copy").rename(writer.directory)
    assert len(_seal(writer)) == 1
    assert writer.send(events(9, lines_of(9, 2))) == [Answer(Kind.ACK, 10)]
    assert _header(writer.directory / "000002.jsonl").lost == 8
    assert covered(read_all(tmp_path / "moved")[0]) == [1, 2, 3, 4, 5, 6, 7, 8]
    writer.close()


def test_a_directory_that_was_only_moved_away_is_recorded_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 5)))
    moved = tmp_path / "moved"
    writer.directory.rename(moved)
    assert _seal(writer) == []
    assert writer.send(events(6, lines_of(6, 3))) == [Answer(Kind.ACK, 8)]
    assert covered(read_all(moved)[0]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not writer.directory.exists()
    writer.close()
