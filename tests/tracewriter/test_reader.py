"""The reader names what is wrong in its place: every bit flip, every cut, lines doubled or moved, seals and manifests that lie."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.strategies import SESSION, drop_line_of, line_of, lines_of
from tests.tracewriter.harness import KEY, OTHER_LIFE, Writer, covered, damage, drop, events, read_all
from tracewriter import reader
from tracewriter.config import Limits
from tracewriter.journal import Producer

LAST = 12


def a_session(root: Path, *, seal_each: bool = True, closed: bool = True, text: str = "") -> Path:
    """Two segments of short lines, several sealed ranges each, with a drop record."""
    root.mkdir(parents=True, exist_ok=True)
    writer = Writer(root, limits=Limits(segment_bytes=1150))
    for first in (1, 3, 5):
        writer.send(events(first, lines_of(first, 2, text)))
        if seal_each:
            writer.journal.seal()
    writer.send(drop(7, 9, drop_line_of(7, 9)))
    writer.send(events(10, lines_of(10, 3, text)))
    writer.close(closed=closed)
    directory = writer.directory
    assert sorted(path.name for path in directory.glob("*.jsonl")) == ["000001.jsonl", "000002.jsonl"]
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return a_session(tmp_path / "root")


def good_lines() -> set[bytes]:
    return {line_of(seq)[:-1] for seq in (*range(1, 7), *range(10, LAST + 1))} | {drop_line_of(7, 9)[:-1]}


def test_a_healthy_session_is_verified_to_the_last_record(directory: Path) -> None:
    found, notes = read_all(directory)
    assert covered(found) == list(range(1, LAST + 1))
    assert {item.state for item in found} == {"verified"}
    verdict = reader.verify(directory)
    assert (verdict.damaged, verdict.records, verdict.dropped, verdict.first, verdict.last) == (False, 9, 3, 1, LAST)
    assert verdict.head is not None
    assert {note.kind for note in notes} == {"dropped", "end_missing"}


def test_no_bit_flip_in_a_sealed_segment_goes_unnoticed_and_its_neighbours_survive(directory: Path) -> None:
    (directory / "digests").unlink()  # the seals alone have to tell
    for path in sorted(directory.glob("*.jsonl")):
        data = path.read_bytes()
        lines = len(good_lines())
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert reader.verify(directory).damaged, (path.name, bit)
            found, notes = read_all(directory)
            assert any(note.kind == "damaged" and note.segment == int(path.stem) for note in notes), (path.name, bit)
            assert not any(note.kind in ("duplicate", "missing", "lost") for note in notes), (path.name, bit)
            intact = {item.line for item in found} & good_lines()
            assert len(intact) >= lines - 2, (path.name, bit)
        path.write_bytes(data)


def test_no_bit_flip_in_a_seal_accuses_healthy_data(directory: Path) -> None:
    for path in sorted(directory.glob("*.seal")):
        data = path.read_bytes()
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            verdict = reader.verify(directory)
            assert not verdict.damaged, (path.name, bit, damage(verdict))
            assert (verdict.records, verdict.dropped) == (9, 3)
        path.write_bytes(data)


Change = Callable[[Path], object]


def _seals(change: Callable[[bytes], bytes]) -> Change:
    def apply(directory: Path) -> None:
        for path in directory.glob("*.seal"):
            path.write_bytes(change(path.read_bytes()))

    return apply


def _no_seals(directory: Path) -> None:
    for path in directory.glob("*.seal"):
        path.unlink()


def _swap_seals(directory: Path) -> None:
    one, two = directory / "000001.seal", directory / "000002.seal"
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


def _renumbered_seals(directory: Path) -> None:
    """Seals of another session's first segment: right number, other id."""
    other = a_session(directory.parent.parent.parent / "other", text="other text")
    shutil.copy(other / "000001.seal", directory / "000001.seal")


LYING_CACHES: dict[str, Change] = {
    "no seals": _no_seals,
    "empty seals": _seals(lambda data: b""),
    "zero-filled seals": _seals(lambda data: bytes(len(data))),
    "zero-filled entries": _seals(lambda data: data[:32] + bytes(len(data) - 32)),
    "seals cut in the middle of a slot": _seals(lambda data: data[:-7]),
    "seals with a tail of zeros": _seals(lambda data: data + bytes(320)),
    "seals doubled": _seals(lambda data: data + data[32:]),
    "seals out of order": _seals(lambda d: d[:32] + b"".join(d[i : i + 32] for i in range(len(d) - 32, 0, -32))),
    "a garbage slot": _seals(lambda data: data[:32] + os.urandom(32) + data[32:]),
    "seals swapped": _swap_seals,
    "another session's seals": _renumbered_seals,
    "no manifest": lambda d: (d / "manifest.json").unlink(),
    "empty manifest": lambda d: (d / "manifest.json").write_bytes(b""),
    "garbage manifest": lambda d: (d / "manifest.json").write_bytes(b"\xff[[[["),
    "stale manifest": lambda d: (d / "manifest.json").write_bytes(b'{"session":"x","last":3}'),
    "no digests": lambda d: (d / "digests").unlink(),
    "garbage digests": lambda d: (d / "digests").write_bytes(b"1 zz\n\x00\xff\n"),
    "torn digests": lambda d: (d / "digests").write_bytes((d / "digests").read_bytes()[:-40]),
    "no lock": lambda d: (d / "lock").unlink(),
    "foreign files": lambda d: (d / "notes.txt").write_bytes(b"hello"),
}


@pytest.mark.parametrize("name", LYING_CACHES)
def test_what_is_only_a_cache_or_an_index_never_changes_what_is_read(name: str, directory: Path) -> None:
    before, _ = read_all(directory)
    LYING_CACHES[name](directory)
    found, notes = read_all(directory)
    assert [item.record for item in found] == [item.record for item in before]
    assert [note for note in notes if note.damage] == []
    assert not reader.verify(directory).damaged
    listed = reader.list_sessions(directory.parent.parent)
    assert [(entry.session, entry.records) for entry in listed] == [(SESSION, LAST)]


@pytest.mark.parametrize("closed", [True, False])
def test_cut_at_any_byte_all_that_was_whole_is_read_and_a_new_life_goes_on(closed: bool, tmp_path: Path) -> None:
    source = a_session(tmp_path / "source", seal_each=False, closed=closed)
    data = (source / "000002.jsonl").read_bytes()
    target = tmp_path / "root" / KEY.workspace_hash / KEY.session
    for size in range(len(data)):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        os.truncate(target / "000002.jsonl", size)
        (target / "digests").unlink(missing_ok=True)
        before, notes = read_all(target)
        whole = [line for line in data[:size].split(b"\n")[:-1] if not line.startswith(b'{"segment"')]
        assert [item.line for item in before if item.segment == 2] == whole
        kinds = {note.kind for note in notes if note.damage}
        assert kinds <= ({"lost", "damaged"} if closed else set()), (size, notes)
        writer = Writer(tmp_path / "root", producer=Producer(OTHER_LIFE))
        first = writer.recording.next
        last = covered(before)[-1]
        # what a seal vouches for is never numbered again
        assert first == (LAST + 1 if closed else last + 1)
        writer.send(events(first, lines_of(first, 2)))
        writer.close()
        after, notes = read_all(target)
        assert [item.line for item in after][: len(before)] == [item.line for item in before]
        assert covered(after)[-2:] == [first, first + 1]
        kinds = {note.kind for note in notes if note.damage}
        assert kinds <= ({"lost", "gap", "damaged"} if closed else set()), (size, notes)


def edited(directory: Path, change: Callable[[list[bytes]], list[bytes]], *, sealed: bool) -> Path:
    path = directory / "000001.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))
    (directory / "digests").unlink()
    if not sealed:
        (directory / "000001.seal").unlink()
    return path


EDITS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str, int]] = {
    # what is done to the lines (0 is the header's), the note that must come, records of the segment that must survive
    "a line doubled": (lambda x: [*x[:3], x[2], *x[3:]], "duplicate|damaged", 6),
    "a line moved to the end": (lambda x: [*x[:2], *x[3:], x[2]], "gap|damaged", 5),
    "a line taken out": (lambda x: [*x[:3], *x[4:]], "gap", 5),
    "two lines taken out": (lambda x: [*x[:3], *x[5:]], "gap", 4),
    "a NUL run for a line": (lambda x: [*x[:3], bytes(len(x[3])), *x[4:]], "damaged", 5),
    "a NUL run before a line": (lambda x: [*x[:3], bytes(100) + x[3], *x[4:]], "damaged", 6),
    "torn and whole on one line": (lambda x: [*x[:3], x[3][:40] + x[3], *x[4:]], "damaged", 6),
    "garbage between lines": (lambda x: [*x[:3], b"garbage", *x[3:]], "damaged", 6),
    "an empty line": (lambda x: [*x[:3], b"", *x[3:]], "damaged", 6),
    "a line cut": (lambda x: [*x[:3], x[3][:-9], *x[4:]], "damaged", 5),
    "a digit of a seq changed": (lambda x: [*x[:3], x[3].replace(b'"seq":3', b'"seq":8'), *x[4:]], "damaged", 5),
    "a seq made huge": (lambda x: [*x[:3], x[3].replace(b'"seq":3', b'"seq":3000000'), *x[4:]], "damaged", 5),
    "a seq made small": (lambda x: [*x[:5], x[5].replace(b'"seq":5', b'"seq":1'), *x[6:]], "damaged", 5),
    "the first seq changed": (lambda x: [x[0], x[1].replace(b'"seq":1', b'"seq":7'), *x[2:]], "damaged", 5),
    "the last seq changed": (lambda x: [*x[:6], x[6].replace(b'"seq":6', b'"seq":2')], "damaged", 5),
    "another session's line": (lambda x: [*x[:3], x[3].replace(SESSION.encode(), b"0" * 32), *x[4:]], "damaged", 5),
    "the header gone": (lambda x: x[1:], "", 6),
    "the header damaged": (lambda x: [x[0][:-9], *x[1:]], "", 6),
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", EDITS)
def test_each_edit_is_named_in_its_segment_and_hides_no_neighbour(name: str, sealed: bool, directory: Path) -> None:
    change, kinds, survive = EDITS[name]
    edited(directory, change, sealed=sealed)
    found, notes = read_all(directory)
    bad = [note for note in notes if note.damage]
    if kinds or sealed:
        assert {note.kind for note in bad} & set((kinds or "damaged").split("|")), notes
        assert reader.verify(directory).damaged
    assert not [note for note in bad if note.kind == "duplicate" and name != "a line doubled"], notes
    intact = [item for item in found if item.segment == 1 and item.line in good_lines()]
    assert len({item.line for item in intact}) >= survive
    assert covered([item for item in found if item.segment == 2]) == list(range(10, LAST + 1)) or len(found) > survive


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("with_seal", [True, False])
def test_a_missing_segment_is_named(number: int, with_seal: bool, directory: Path) -> None:
    (directory / f"{number:06d}.jsonl").unlink()
    if with_seal:
        (directory / f"{number:06d}.seal").unlink()
    verdict = reader.verify(directory)
    assert verdict.damaged
    assert {note.kind for note in damage(verdict)} & {"missing", "gap"}
    assert verdict.records > 0


@pytest.mark.parametrize("kind", ["hard link", "symlink", "fifo", "directory", "socket"])
def test_nothing_planted_at_a_segments_place_is_read(kind: str, directory: Path, tmp_path: Path) -> None:
    path = directory / "000001.jsonl"
    outside = tmp_path / "outside"
    shutil.copy(path, outside)
    path.unlink()
    match kind:
        case "hard link":
            path.hardlink_to(outside)
        case "symlink":
            path.symlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    verdict = reader.verify(directory)
    assert "foreign" in {note.kind for note in damage(verdict)}
    found, _ = read_all(directory)
    assert {item.segment for item in found} == {2}
    assert len(reader.list_sessions(directory.parent.parent)) == 1


def test_a_directory_that_is_not_there_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(reader.read(tmp_path / "missing"))
    assert list(reader.read(tmp_path)) == []
    assert not reader.verify(tmp_path).damaged
    assert reader.list_sessions(tmp_path / "missing") == []


def test_a_digest_that_changed_is_damage_although_the_seals_are_gone(directory: Path) -> None:
    path = directory / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"text of 2", b"TEXT of 2"))
    (directory / "000001.seal").unlink()
    assert {note.kind for note in damage(reader.verify(directory))} == {"digest"}


def test_read_and_verify_agree_on_every_edit(directory: Path) -> None:
    for change, _, _ in EDITS.values():
        copy = directory.parent / "copy"
        shutil.copytree(directory, copy)
        edited(copy, change, sealed=True)
        found, notes = read_all(copy)
        verdict = reader.verify(copy)
        assert verdict.records + sum(item.end > item.record.seq for item in found) == len(found)
        assert {note for note in notes if note.damage} <= set(verdict.notes)
        shutil.rmtree(copy)


def test_a_renamed_session_reads_as_it_is_although_a_header_is_damaged(directory: Path) -> None:
    renamed = directory.rename(directory.parent / "renamed")
    assert covered(read_all(renamed)[0]) == list(range(1, LAST + 1))
    path = renamed / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(SESSION.encode(), b"f" * 32, 1))
    assert covered(read_all(renamed)[0]) == list(range(1, LAST + 1))
