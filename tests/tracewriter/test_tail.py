"""A follower sees every record once, in order, however the files grow; never half a line; and says what is missing in its place."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracewriter.old_sessions import WORKSPACE
from tracewriter import lock
from tracewriter.chain import Item
from tracewriter.findings import Found, Note
from tracewriter.tail import Cursor, Follower, before_last, parse_cursor

SESSION = "s1"


def header(number: int, after: int) -> bytes:
    return (
        f'{{"segment":{number},"id":"{number:016x}","session":"{SESSION}","format":"agentd.trace/1",'
        f'"producer":"00f067aa0ba902b7","after":{after},"why":"open"}}\n'
    ).encode()


def record(seq: int, name: str = "prompt.queue.observed", data: str = '{"change":"added","prompt":"p"}') -> bytes:
    return (
        f'{{"seq":{seq},"ts":"2026-11-29T20:45:01Z","event":"{name}","session":"{SESSION}","data":{data}}}\n'.encode()
    )


def started(seq: int) -> bytes:
    fields = '"format":"agentd.trace/1","agentd":"1","workspace":"/w","mode":"plan","capture":"content"'
    return record(seq, "session.record.started", f"{{{fields}}}")


def finished(seq: int) -> bytes:
    return record(seq, "session.record.finished", f'{{"emitted":{seq},"counts":{{}},"usage":{{}},"cost_usd":null}}')


def dropped(first: int, last: int) -> bytes:
    fields = f'{{"first":{first},"last":{last},"count":{last - first + 1},"reason":"buffer_full"}}'
    return record(first, "trace.drop.observed", fields)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / WORKSPACE / SESSION
    path.mkdir(parents=True)
    return path


def grow(directory: Path, number: int, data: bytes) -> None:
    with (directory / f"{number:06d}.jsonl").open("ab") as file:
        file.write(data)


def seqs(items: Iterable[Item]) -> list[int]:
    return [item.record.seq for item in items if isinstance(item, Found)]


def kinds(items: Iterable[Item]) -> list[str]:
    return [item.kind for item in items if isinstance(item, Note)]


def test_records_come_as_their_lines_become_whole_and_never_half(directory: Path) -> None:
    with Follower(directory) as follower:
        assert list(follower.poll()) == []
        grow(directory, 1, header(1, 0) + record(1) + record(2)[:-1])
        assert seqs(follower.poll()) == [1]
        grow(directory, 1, b"\n" + record(3)[:40])
        assert seqs(follower.poll()) == [2]
        assert list(follower.poll()) == []
        grow(directory, 1, record(3)[40:] + finished(4))
        assert (seqs(follower.poll()), follower.finished) == ([3, 4], True)
        assert str(follower.cursor) == f"1:{(directory / '000001.jsonl').stat().st_size}"


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 400))
def test_however_the_files_grow_each_record_is_given_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, text: int
) -> None:
    cuts = random.Random(seed)
    directory = tmp_path_factory.mktemp("tail") / SESSION
    segments: list[bytes] = []
    for seq in range(1, count + 1):
        if not segments or cuts.random() < 0.15:
            segments.append(header(len(segments) + 1, seq - 1))
        segments[-1] += record(seq, data=f'{{"change":"added","prompt":"{"x" * text}"}}')
    seen: list[int] = []
    follower = Follower(directory)
    try:
        if cuts.random() < 0.5:
            seen += seqs(follower.poll())
        directory.mkdir()
        for number, data in enumerate(segments, 1):
            at = 0
            while at < len(data):
                size = cuts.randint(1, 700)
                grow(directory, number, data[at : at + size])
                at += size
                if cuts.random() < 0.5:
                    items = list(follower.poll())
                    assert kinds(items) == []
                    seen += seqs(items)
                if cuts.random() < 0.1:  # go on from the cursor as another process would
                    cursor = parse_cursor(str(follower.cursor))
                    follower.close()
                    follower = Follower(directory, cursor)
        seen += seqs(follower.poll())
    finally:
        follower.close()
        shutil.rmtree(directory.parent)
    assert seen == list(range(1, count + 1))


def test_gaps_drops_and_damage_are_told_in_their_place(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + record(1) + dropped(2, 5) + record(6) + b"garbage\n" + record(8))
    grow(directory, 2, header(2, 8) + record(9) + record(12) + record(13))
    with Follower(directory) as follower:
        told = [i.record.seq if isinstance(i, Found) else i.kind for i in follower.poll()]
    assert told == [1, 2, "dropped", 6, "damaged", 8, 9, "gap", 12, 13]


def test_a_missing_segment_and_an_unfinished_tail_are_told(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + record(1) + record(2)[:30])
    grow(directory, 3, header(3, 1) + record(2))
    (directory / "000004.jsonl").symlink_to("/etc/passwd")
    grow(directory, 5, header(5, 2) + record(3))
    with Follower(directory) as follower:
        items = list(follower.poll())
    assert seqs(items) == [1, 2, 3]
    assert sorted(kinds(items)) == ["foreign", "missing", "unfinished"]


_OTHERS = [
    pytest.param(header(2, 0).replace(b'"s1"', b'"s2"'), id="another session's"),
    pytest.param(header(3, 0), id="another number"),
    pytest.param(header(2, 0).replace(b"trace/1", b"trace/9"), id="another format"),
    pytest.param(b"garbage\n", id="garbage"),
    pytest.param(b"\0" * 5000, id="zeros"),
    pytest.param(record(1), id="a record"),
]


@pytest.mark.parametrize("data", _OTHERS)
@pytest.mark.parametrize("number", [2, 7, 900])
def test_a_planted_higher_number_is_told_once_and_the_writer_is_followed(
    directory: Path, number: int, data: bytes
) -> None:
    grow(directory, 1, header(1, 0) + record(1))
    with Follower(directory) as follower:
        assert seqs(follower.poll()) == [1]
        grow(directory, number, data.replace(b'"segment":2', b'"segment":%d' % number))
        assert [(item.kind, item.segment) for _ in range(5) for item in follower.poll() if isinstance(item, Note)] == [
            ("foreign", number)
        ]
        grow(directory, 1, record(2))  # the writer has not left its segment
        assert seqs(follower.poll()) == [2]
        following = number + 1 if number == 2 else 2
        grow(directory, following, header(following, 2)[:50])  # being made
        assert list(follower.poll()) == []
        grow(directory, following, header(following, 2)[50:] + record(3))
        assert seqs(follower.poll()) == [3]
        grow(directory, following, record(4))
        assert seqs(follower.poll()) == [4]


@pytest.mark.parametrize("first", [True, False])
def test_behind_a_damaged_header_line_the_records_are_shown_in_their_turn_or_at_the_end(
    directory: Path, first: bool
) -> None:
    before = 0 if first else 1
    if not first:
        grow(directory, 1, header(1, 0) + record(1))
    grow(directory, before + 1, header(before + 1, before).replace(b'{"segment"', b'{"sXgment"') + record(before + 1))
    with Follower(directory) as follower:
        assert (seqs(follower.poll()), seqs(follower.end())) == (list(range(1, before + 1)), [before + 1])
    grow(directory, before + 2, header(before + 2, before + 1) + record(before + 2))
    with Follower(directory) as follower:
        assert seqs(follower.poll()) == list(range(1, before + 3))


def test_many_planted_numbers_are_told_and_hide_no_writer(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + record(1))
    for number in range(100, 300):
        grow(directory, number, b"x\n")
    (directory / "000050.jsonl").symlink_to("/etc/passwd")
    with Follower(directory) as follower:
        items = [item for _ in range(3) for item in follower.poll()]
        assert seqs(items) == [1]
        assert 2 <= len(kinds(items)) <= 64
        grow(directory, 300, header(300, 1) + record(2))
        grow(directory, 300, record(3))
        items = list(follower.poll())
        assert seqs(items) == [2, 3]


def test_a_directory_under_another_name_is_read_as_the_session_that_it_holds(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + record(1))
    grow(directory, 2, header(2, 1) + record(2))
    grow(directory, 3, header(3, 0).replace(b'"s1"', b'"s2"') + record(1))
    moved = directory.rename(directory.with_name("copy"))
    with Follower(moved) as follower:
        items = list(follower.poll())
    assert (seqs(items), kinds(items)) == ([1, 2], ["foreign"])


def test_reading_goes_on_after_a_seq_in_a_segment_of_the_writer(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + record(1) + record(2))
    grow(directory, 5, header(5, 0).replace(b'"s1"', b'"s2"') + record(1))
    with Follower(directory, Cursor(seq=1)) as follower:
        assert seqs(follower.poll()) == [2]


def test_a_writers_death_is_told_once_and_the_next_life_is_followed(directory: Path) -> None:
    dir_fd = os.open(directory, os.O_RDONLY)
    lock_fd = lock.acquire(dir_fd)
    with Follower(directory) as follower:
        grow(directory, 1, header(1, 0) + started(1) + record(2))
        items = [item for _ in range(30) for item in follower.poll()]
        assert (seqs(items), kinds(items)) == ([1, 2], [])
        os.close(lock_fd)
        assert kinds(item for _ in range(40) for item in follower.poll()) == ["end_missing"]
        grow(directory, 2, header(2, 2) + started(3) + finished(4))
        items = list(follower.poll())
        assert (seqs(items), kinds(items), follower.finished) == ([3, 4], [], True)
    os.close(dir_fd)
    with Follower(directory) as afterwards:
        items = list(afterwards.poll())
    assert [i.record.seq if isinstance(i, Found) else i.kind for i in items] == [1, 2, "end_missing", 3, 4]


def test_a_directory_that_is_moved_away_ends_it(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + record(1))
    with Follower(directory) as follower:
        assert seqs(follower.poll()) == [1]
        directory.rename(directory.with_name("elsewhere"))
        items = [item for _ in range(20) for item in follower.poll()]
        assert (kinds(items), follower.gone) == (["missing"], True)


def test_lines_that_were_taken_back_are_told_and_shown_again_where_they_are_written(directory: Path) -> None:
    """durability batch: a block that could not be synced is cut off, and written again into the next segment."""
    grow(directory, 1, header(1, 0) + record(1) + record(2) + record(3))
    with Follower(directory) as follower:
        assert seqs(follower.poll()) == [1, 2, 3]
        os.truncate(directory / "000001.jsonl", len(header(1, 0) + record(1)))
        grow(directory, 2, header(2, 1) + record(2) + record(3))
        items = list(follower.poll())
        assert (seqs(items), kinds(items)) == ([2, 3], ["lost"])


@pytest.mark.parametrize(("seen", "told"), [(b"", []), (record(2), ["lost"])])
def test_a_segment_that_was_taken_back_is_followed_in_the_new_file_of_its_number(
    directory: Path, seen: bytes, told: list[str]
) -> None:
    """A full disk took the header and no whole record, or (durability batch) the first block could not be synced."""
    grow(directory, 1, header(1, 0) + record(1))
    grow(directory, 2, header(2, 1) + seen + record(2)[:20])
    with Follower(directory) as follower:
        assert seqs(follower.poll()) == ([1, 2] if seen else [1])
        (directory / "000002.jsonl").unlink()
        assert list(follower.poll()) == []
        grow(directory, 2, header(2, 1) + record(2) + record(3))
        items = list(follower.poll())
        assert (seqs(items), kinds(items)) == ([2, 3], told)


def test_reading_goes_on_after_a_seq_or_a_place(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + b"".join(map(record, range(1, 6))))
    grow(directory, 2, header(2, 5) + b"".join(map(record, range(6, 9))) + finished(9))
    for seq in range(10):
        with Follower(directory, Cursor(seq=seq)) as follower:
            items = list(follower.poll())
            assert (seqs(items), kinds(items)) == (list(range(seq + 1, 10)), [])
            assert follower.finished
    place = Cursor(1, len(header(1, 0) + record(1)))
    with Follower(directory, place) as follower:
        assert seqs(follower.poll()) == [2, 3, 4, 5, 6, 7, 8, 9]
    with Follower(directory, Cursor(1, place.offset + 3)) as follower:  # inside a line
        assert seqs(follower.poll()) == [3, 4, 5, 6, 7, 8, 9]
    with Follower(directory, Cursor(2, (directory / "000002.jsonl").stat().st_size)) as follower:
        assert (list(follower.poll()), follower.finished) == ([], True)
    with Follower(directory, Cursor(7, 0)) as follower:
        assert kinds(follower.poll()) == ["missing"]
    assert [before_last(directory, count).seq for count in (0, 3, 9, 99)] == [9, 6, 0, 0]
    assert before_last(directory / "nowhere", 3) == Cursor()


def test_a_cursor_that_is_none_is_refused() -> None:
    assert parse_cursor("3:120") == Cursor(3, 120)
    assert parse_cursor("17") == Cursor(seq=17)
    assert str(parse_cursor("17")) == "17"
    for text in ("", "x", "1:", ":1", "1:2:3", "-1", "1" * 30, "٣"):
        with pytest.raises(ValueError, match="is no cursor"):
            parse_cursor(text)


def test_the_end_says_how_the_recording_stands(directory: Path) -> None:
    grow(directory, 1, header(1, 0) + started(1) + record(2) + record(3)[:20])
    with Follower(directory) as follower:
        assert seqs(follower.poll()) == [1, 2]
        assert kinds(follower.end()) == ["unfinished", "end_missing"]
    dir_fd = os.open(directory, os.O_RDONLY)
    lock_fd = lock.acquire(dir_fd)
    with Follower(directory) as follower:
        list(follower.poll())
        assert kinds(follower.end())[-1] == "active"
    os.close(lock_fd)
    os.close(dir_fd)
    with Follower(directory / "nowhere") as follower:
        assert list(follower.poll()) + list(follower.end()) == []
