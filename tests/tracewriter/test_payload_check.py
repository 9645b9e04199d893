"""verify judges each payload by its own bytes, its seal, its digest and the records that name it, and never by a broken seal."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import SESSION
from tests.tracewriter.harness import Writer, covered, damage, read_all
from tests.tracewriter.payload_sessions import (
    ONE,
    PLANTED,
    TWO,
    Body,
    a_session,
    flip,
    flips,
    plant,
    put,
    put_digests,
    put_segment,
    record,
)
from tests.tracewriter.payload_writer import BODY, OTHER, P, Q, with_body
from tracewriter import payload_check, reader
from tracewriter.chain import Bulk, Chain
from tracewriter.findings import Note, Verdict
from tracewriter.payload import MAX_PAYLOAD, PAYLOADS
from tracewriter.payload_check import References
from tracewriter.scan import scan_segment
from tracewriter.tail import Follower


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return a_session(tmp_path)


def kinds(verdict: Verdict) -> set[tuple[str, str | None]]:
    """(kind, payload) of every note but the one that says that the recording has no end."""
    return {(note.kind, note.payload) for note in verdict.notes if note.kind != "end_missing"}


def test_payloads_that_are_as_they_were_sealed_are_verified(directory: Path) -> None:
    verdict = reader.verify(directory)
    assert kinds(verdict) == set()
    assert (verdict.payloads, verdict.payloads_verified) == (2, 2)
    assert verdict.payload_bytes == len(ONE.data) + len(TWO.data)
    assert (verdict.records, verdict.verified, verdict.damaged) == (6, 6, False)


@pytest.mark.parametrize("digests", [False, True])
def test_every_bit_flip_in_a_payload_is_told_of_that_payload_alone(digests: bool, tmp_path: Path) -> None:
    directory = a_session(tmp_path, digests=digests)
    for body in (ONE, TWO):
        path = directory / PAYLOADS / body.id
        for bit in flips(path):
            flip(path, body.data, bit)
            verdict = reader.verify(directory)
            told = {("payload_damaged", body.id), ("digest", body.id)} if digests else {("payload_damaged", body.id)}
            assert kinds(verdict) == told, bit
            assert (verdict.damaged, verdict.verified, verdict.payloads_verified) == (True, 6, 1)
        path.write_bytes(body.data)


def test_no_bit_flip_in_a_seal_file_accuses_data_or_payload(directory: Path) -> None:
    for path in sorted(directory.glob("*.seal")):
        data = path.read_bytes()
        for bit in flips(path):
            flip(path, data, bit)
            verdict = reader.verify(directory)
            assert not verdict.damaged, (path.name, bit, damage(verdict))
            assert (verdict.records, verdict.payloads) == (6, 2)
            told = {kind for kind, _ in kinds(verdict)}
            assert told == {"unsealed"}, (path.name, bit)  # no flip is passed over in silence
        path.write_bytes(data)


def test_a_seal_slot_of_a_payload_is_no_range_and_no_loss(directory: Path) -> None:
    path = directory / "000002.seal"
    slots = path.read_bytes()
    path.write_bytes(slots + slots[64:96])  # again, after the ranges
    found, notes = read_all(directory)
    assert {item.state for item in found} == {"verified"}
    assert {note.kind for note in notes} == {"end_missing"}


@pytest.mark.parametrize("data", [ONE.data[:-1], ONE.data + b"x", b""])
def test_another_size_is_damage(data: bytes, directory: Path) -> None:
    path = directory / PAYLOADS / ONE.id
    path.write_bytes(data)
    verdict = reader.verify(directory)
    assert kinds(verdict) == {("payload_damaged", ONE.id)}
    assert damage(verdict)[0].first == 2  # the first record that names it


def test_bodies_that_were_exchanged_are_both_damaged(directory: Path) -> None:
    one, two = (directory / PAYLOADS / body.id for body in (ONE, TWO))
    one.write_bytes(TWO.data)
    two.write_bytes(ONE.data)
    assert kinds(reader.verify(directory)) == {("payload_damaged", ONE.id), ("payload_damaged", TWO.id)}


@pytest.mark.parametrize("all_gone", [False, True])
def test_a_missing_payload_is_named_with_the_first_record_that_names_it(all_gone: bool, directory: Path) -> None:
    if all_gone:
        shutil.rmtree(directory / PAYLOADS)
    else:
        (directory / PAYLOADS / ONE.id).unlink()
    verdict = reader.verify(directory)
    missing = {(note.payload, note.first) for note in verdict.notes if note.kind == "payload_missing"}
    assert missing == ({(ONE.id, 2), (TWO.id, 6)} if all_gone else {(ONE.id, 2)})
    assert verdict.damaged
    assert any(ONE.id in note.message and "seq 2" in note.message for note in damage(verdict))
    assert (verdict.records, verdict.verified) == (6, 6)


def test_a_payload_that_only_the_digests_know_is_missing(tmp_path: Path) -> None:
    directory = a_session(tmp_path)
    extra = Body(b"its record never came")
    put(directory, extra)
    put_digests(directory)
    assert not reader.verify(directory).damaged
    (directory / PAYLOADS / extra.id).unlink()
    verdict = reader.verify(directory)
    assert kinds(verdict) == {("payload_missing", extra.id)}
    assert verdict.damaged


def test_without_a_seal_it_is_a_note(directory: Path) -> None:
    extra = Body(b"never sealed, never named")
    put(directory, extra)
    verdict = reader.verify(directory)
    assert kinds(verdict) == {("unsealed", extra.id), ("unreferenced", extra.id)}
    assert (verdict.damaged, verdict.payloads, verdict.payloads_verified) == (False, 3, 2)
    for path in directory.glob("*.seal"):
        path.unlink()
    verdict = reader.verify(directory)
    assert (verdict.damaged, verdict.payloads, verdict.payloads_verified) == (False, 3, 0)
    assert any("3 payloads are covered by no seal" in note.message for note in verdict.notes)


def test_the_digests_of_payloads_are_in_the_head_and_are_checked(directory: Path) -> None:
    head = put_digests(directory)
    verdict = reader.verify(directory)
    assert (verdict.head, verdict.damaged) == (head, False)
    for path in directory.glob("*.seal"):  # then the digests alone have to tell
        path.unlink()
    (directory / PAYLOADS / TWO.id).write_bytes(TWO.data.replace(b"2", b"3"))
    assert [(note.kind, note.payload) for note in damage(reader.verify(directory))] == [("digest", TWO.id)]
    assert put_digests(directory) != head


def test_another_sessions_seals_accuse_nothing(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / SESSION
    other.mkdir(parents=True)
    put_segment(other, 1, 1, [record(1, {"n": 1})], [Body(b"of another session")])
    shutil.copy(other / "000001.seal", directory / "000001.seal")
    verdict = reader.verify(directory)
    assert (verdict.damaged, verdict.records, verdict.payloads) == (False, 6, 2)


def test_a_write_that_was_never_completed_is_a_note(directory: Path) -> None:
    (directory / PAYLOADS / f"{'ab' * 16}.part").write_bytes(b"half")
    verdict = reader.verify(directory)
    assert kinds(verdict) == {("unfinished", "ab" * 16)}
    assert not verdict.damaged


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("name", [ONE.id, f"{'ab' * 16}.part", "ab" * 16, "notes.txt"])
def test_what_is_planted_is_foreign_and_not_read(kind: str, name: str, directory: Path, tmp_path: Path) -> None:
    path = directory / PAYLOADS / name
    path.unlink(missing_ok=True)
    plant(kind, path, tmp_path / "outside")
    verdict = reader.verify(directory)
    (note,) = damage(verdict)
    assert note.kind == "foreign"
    assert name in note.message
    assert verdict.payloads == (1 if name == ONE.id else 2)


@pytest.mark.parametrize(
    "name", ["notes.txt", "notes.part", "A" * 32, "ab" * 16 + ".PART", "ab" * 15, "\udcff", "ab" * 16 + "\n"]
)
def test_any_other_name_is_foreign(name: str, directory: Path) -> None:
    (directory / PAYLOADS / name).write_bytes(b"hello")
    (note,) = damage(reader.verify(directory))
    assert note.kind == "foreign"


@pytest.mark.parametrize("kind", ["symlink", "fifo", "file"])
def test_a_payload_directory_that_is_none_is_foreign(kind: str, directory: Path, tmp_path: Path) -> None:
    (directory / PAYLOADS).rename(tmp_path / "moved")
    match kind:
        case "symlink":
            (directory / PAYLOADS).symlink_to(tmp_path / "moved")
        case "fifo":
            os.mkfifo(directory / PAYLOADS)
        case _:
            (directory / PAYLOADS).write_bytes(b"")
    verdict = reader.verify(directory)
    assert {note.kind for note in damage(verdict)} == {"foreign", "payload_missing"}
    assert verdict.payloads == 0


def test_what_no_payload_can_be_is_damage_and_is_not_read_to_its_end(directory: Path) -> None:
    os.truncate(directory / PAYLOADS / ONE.id, 2**40)  # sparse
    assert kinds(reader.verify(directory)) == {("payload_damaged", ONE.id)}
    path = put(directory, Body(b"unsealed"))
    os.truncate(path, MAX_PAYLOAD + 1)
    assert ("payload_damaged", path.name) in kinds(reader.verify(directory))


def test_while_it_is_recorded_what_is_on_its_way_is_nothing_to_tell(directory: Path) -> None:
    put(directory, Body(b"its record and its seal come in a moment"))
    (directory / PAYLOADS / f"{'ab' * 16}.part").write_bytes(b"half")
    (directory / "lock").touch()
    with (directory / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        verdict = reader.verify(directory)
    assert verdict.active
    assert {kind for kind, _ in kinds(verdict)} == {"active"}
    (directory / PAYLOADS / ONE.id).unlink()
    assert reader.verify(directory).damaged


def test_what_the_writer_made_is_verified_and_its_head_is_the_last_chain(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1, P, BODY), *with_body(2, Q, OTHER), *with_body(3, P, BODY))
    writer.close()
    verdict = reader.verify(writer.directory)
    assert (verdict.payloads, verdict.payloads_verified, verdict.records) == (2, 2, 3)
    assert kinds(verdict) == set()
    assert verdict.head == (writer.directory / "digests").read_text().split()[-1]
    (entry,) = reader.list_sessions(tmp_path)
    assert entry.bytes == verdict.bytes + verdict.payload_bytes
    (writer.directory / "manifest.json").unlink()
    assert [(one.bytes, one.records) for one in reader.list_sessions(tmp_path)] == [(entry.bytes, 3)]


def test_many_faults_of_a_kind_are_counted(directory: Path) -> None:
    for number in range(250):
        (directory / PAYLOADS / f"planted-{number}").touch()
    notes = damage(reader.verify(directory))
    assert len(notes) == 101
    assert "and 150 more" in notes[-1].message


def test_a_follower_and_a_reader_take_payload_slots_for_no_loss(directory: Path) -> None:
    with Follower(directory) as follower:
        items = [*follower.poll(), *follower.end()]
    assert {item.kind for item in items if isinstance(item, Note)} <= {"end_missing"}
    assert covered(read_all(directory)[0]) == list(range(1, 7))


IDS = [f"{n:032x}".encode() for n in range(1, 6)]
LINES = st.lists(st.lists(st.sampled_from([*IDS, b""]), max_size=3), min_size=1, max_size=12)


@given(named=LINES)
def test_references_are_found_in_ranges_as_line_by_line(
    named: list[list[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    def value(payload: bytes) -> object:
        ref = {"payload": payload.decode(), "bytes": 9, "chars": 9, "head": 'a "h"\n'}
        return ref if payload else {"like": str(ref), "payload": "none"}

    lines = [record(seq, {"all": [value(one) for one in names]}) for seq, names in enumerate(named, 1)]
    directory = tmp_path_factory.mktemp("s")
    put_segment(directory, 1, 1, lines)
    expected: dict[bytes, int] = {}
    for seq, names in enumerate(named, 1):
        for one in names:
            if one:
                expected.setdefault(one, seq)
    fd = os.open(directory, os.O_RDONLY)
    try:
        for blocks in (True, False):
            references, chain = References(), Chain(SESSION)
            items = list(chain.feed_blocks(scan_segment(fd, 1, blocks=blocks)))
            assert any(isinstance(item, Bulk) for item in items) == blocks
            for item in items:
                references.take(item)
            assert references.first == expected
    finally:
        os.close(fd)


def test_ids_beyond_the_bound_are_not_kept() -> None:
    references = References(most=2)
    data = b"".join(record(seq, {"ref": Body(b"%d" % seq).ref}) for seq in range(1, 5))
    references.take(Bulk(1, 4, data, 0))
    assert (len(references.first), references.over) == (2, True)


def test_beyond_the_bound_there_is_a_note_and_nothing_is_accused(directory: Path) -> None:
    references = References(most=1)
    for item in reader.read(directory):
        references.take(item)
    fd = os.open(directory, os.O_RDONLY)
    try:
        found = payload_check.check_payloads(fd, references, None, active=False)
    finally:
        os.close(fd)
    assert [note.kind for note in found.notes] == ["unchecked"]
    assert found.verified == 2
