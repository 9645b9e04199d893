"""Files with wild segment numbers cost one note each, never memory, other sessions or records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import lines_of
from tests.tracewriter.harness import Writer, covered, damage, events, read_all
from tracewriter import reader
from tracewriter.segment import MAX_NUMBER, insane_names, sane_numbers, segment_name
from tracewriter.tail import Follower


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 3)))
    writer.close()
    return writer.directory


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("999999999.seal", "foreign", "999999999.seal"),
        ("999999999.jsonl", "foreign", "999999999.jsonl"),
        ("999999.seal", "missing", "segments 2 to 999999 are missing"),
        ("900000000.jsonl", "missing", "segments 2 to 899999999 are missing"),
        ("000002.seal", "missing", "segment 2 is missing"),
    ],
)
def test_a_wild_number_is_one_note(name: str, kind: str, message: str, directory: Path) -> None:
    (directory / name).touch()
    verdict = reader.verify(directory)
    assert verdict.records == 3
    (note,) = damage(verdict)
    assert note.kind == kind
    assert message in note.message
    (entry,) = reader.list_sessions(directory.parent.parent)
    assert entry.records == 3
    with Follower(directory) as follower:
        told = [item for item in follower.poll() if not hasattr(item, "record")]
    assert len(told) <= 1


@pytest.mark.parametrize("number", [999_999_999, MAX_NUMBER + 1, MAX_NUMBER])
def test_what_is_acknowledged_after_a_number_was_planted_is_read(number: int, directory: Path, tmp_path: Path) -> None:
    (directory / segment_name(number)).touch()
    for first in (4, 6):
        writer = Writer(tmp_path)
        assert writer.send(events(first, lines_of(first, 2)))[0].first == first + 1
        writer.close()
    found, _ = read_all(directory)
    assert covered(found) == list(range(1, 8))


def test_one_session_that_cannot_be_looked_at_hides_no_other(directory: Path) -> None:
    for name in ("a", "b"):
        other = directory.parent / name
        other.mkdir()
        (other / "000001.jsonl").write_bytes(
            b'{"seq":1,"ts":"0001-01-01T00:00:00+14:00","event":"x","session":"a","data":{}}\n'
        )
    (directory.parent / "b" / "999999999.seal").touch()
    assert len(reader.list_sessions(directory.parent.parent)) == 3


@given(st.sets(st.integers(MAX_NUMBER - 3, MAX_NUMBER + 6)))
def test_every_name_is_sane_or_not_and_the_next_number_is_sane(numbers: set[int]) -> None:
    names = [segment_name(number) for number in numbers]
    sane = {number for number, _ in sane_numbers(names)}
    assert sane | {int(name[:9]) for name in insane_names(names)} == numbers
    following = max(sane, default=0) + 1
    assert (following, "jsonl") in sane_numbers([*names, segment_name(following)])
