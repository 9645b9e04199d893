"""Group B of the faults: somebody else changes, plants, moves or damages files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.harness import WORKSPACE, Lab, RawClient, check, tally, wait_for
from tracewriter.config import KIB
from tracewriter.findings import Found, Note
from tracewriter.protocol import Kind, Open, Refused, decode_body, encode
from tracewriter.reader import list_sessions, read, verify
from tracewriter.segment import SEAL_SLOT


def test_b1_an_unlinked_segment_costs_at_most_one_flush(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(300)
    (segment,) = lab.segments()
    with segment.open("rb") as unlinked:
        segment.unlink()
        recorder.wait_acked(recorder.acked() + 1000)
        report = recorder.settle().sessions["s1"]
        in_file = unlinked.read().count(b"\n") - 1
    result = check(lab.directory(), report, closed=False, may_lose=in_file, allow=("missing", "gap"))
    assert result.gaps == in_file  # what was deleted with the file, and nothing else: it all is in the file
    assert result.first == in_file + 1
    assert in_file < 900
    assert b'"why":"foreign:unlinked"' in lab.segments()[0].read_bytes()[:400]
    assert writer.stop() == 0


def test_b1_an_unlinked_segment_of_an_idle_session_costs_nothing_of_what_comes_later(lab: Lab) -> None:
    lab.writer()
    recorder = lab.recorder(pace=0)
    recorder.ask("burst 50")
    recorder.wait_acked(51)
    lab.segments()[0].unlink()
    recorder.ask("burst 50")
    recorder.wait_acked(101)
    result = check(
        lab.directory(), recorder.settle().sessions["s1"], closed=False, may_lose=51, allow=("missing", "gap")
    )
    assert (result.first, result.last, result.records) == (52, 102, 51)


@pytest.mark.parametrize("change", ["truncated", "grown", "replaced"])
def test_b3_a_changed_segment_is_left_and_no_nul_is_written(lab: Lab, change: str) -> None:
    lab.writer()
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(500)
    (segment,) = lab.segments()
    match change:
        case "truncated":
            os.truncate(segment, segment.stat().st_size // 2)
        case "grown":
            with segment.open("ab") as file:
                file.write(b"not ours\n")
        case _:
            copy = segment.with_name("copy")
            shutil.copy(segment, copy)
            copy.replace(segment)
    wait_for(lambda: len(lab.segments()) > 1, "the next segment")
    changed_at = recorder.acked()
    recorder.wait_acked(changed_at + 300)
    report = recorder.settle().sessions["s1"]
    allow = ("lost", "gap", "damaged", "digest")
    result = check(lab.directory(), report, closed=False, may_lose=changed_at, allow=allow)
    assert result.closed
    assert all(b"\0" not in path.read_bytes() for path in lab.segments())
    assert result.gaps < changed_at if change == "truncated" else result.gaps < 1000


def test_b4_a_renamed_session_is_recorded_on_and_reported_and_nothing_is_deleted(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(100)
    moved = lab.directory().with_name("elsewhere")
    lab.directory().rename(moved)
    wait_for(lambda: writer.status().sessions[0].reason == "moved", "the status")
    report = recorder.settle().sessions["s1"]
    assert not lab.directory().exists()
    assert check(moved, report).dropped == 0


PLANTED_NAMES = (
    "000001.jsonl",
    "000001.seal",
    "000002.jsonl",
    "lock",
    "digests",
    "manifest.json",
    "manifest.json.new",
)


def _plant(kind: str, at: Path, canary: Path) -> None:
    match kind:
        case "symlink":
            at.symlink_to(canary)
        case "dangling":
            at.symlink_to(canary.parent / "made-through-a-link")
        case "hardlink":
            os.link(canary, at)
        case "fifo":
            os.mkfifo(at)
        case _:
            at.mkdir()


@pytest.mark.parametrize("kind", ["symlink", "dangling", "hardlink", "fifo", "directory"])
def test_b6_b7_b9_nothing_planted_in_a_session_leads_out_of_the_tree(lab: Lab, kind: str) -> None:
    outside = lab.base / "outside"
    outside.mkdir()
    canary = outside / "canary"
    canary.write_bytes(b"canary\n")
    os.chmod(canary, 0o644)
    sessions = [f"s{number}" for number in range(len(PLANTED_NAMES))]
    for session, name in zip(sessions, PLANTED_NAMES, strict=True):
        lab.directory(session).mkdir(parents=True)
        _plant(kind, lab.directory(session) / name, canary)
    writer = lab.writer(limits={"segment_bytes": 20 * KIB})
    recorder = lab.recorder(sessions=sessions, count=200, pace=1000)
    recorder.wait_emitted(201)
    recordable = [s for s, name in zip(sessions, PLANTED_NAMES, strict=True) if name != "lock"]
    for session in recordable:
        recorder.wait_acked(201, session)
    locked = sessions[PLANTED_NAMES.index("lock")]
    recorder.wait_reason("foreign", "ELOOP", "EISDIR", "ENXIO", session=locked)
    report = recorder.close(0.5)
    for session in recordable:
        result = check(lab.directory(session), report.sessions[session], allow=("foreign", "missing"))
        assert result.dropped == 0, session
    assert report.sessions[locked].state == "degraded"
    assert not list(lab.directory(locked).glob("*.jsonl"))
    assert list_sessions(lab.root)
    assert writer.stop() == 0
    assert (os.listdir(outside), canary.read_bytes()) == (["canary"], b"canary\n")
    assert canary.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("place", ["session", "workspace"])
def test_b7_a_link_at_a_directorys_place_is_refused_and_another_session_goes_on(lab: Lab, place: str) -> None:
    outside = lab.base / "outside"
    outside.mkdir()
    linked = lab.directory() if place == "session" else lab.directory().parent
    linked.parent.mkdir(parents=True)
    linked.symlink_to(outside)
    lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_reason("ELOOP", "ENOTDIR")
    assert os.listdir(outside) == []
    assert recorder.latest().raised == 0
    linked.unlink()
    check(lab.directory(), recorder.settle().sessions["s1"])


@pytest.mark.parametrize(
    ("session", "workspace"),
    [
        ("../x", WORKSPACE),
        ("..", WORKSPACE),
        (".", WORKSPACE),
        ("", WORKSPACE),
        ("a/b", WORKSPACE),
        ("/abs", WORKSPACE),
        ("a\0b", WORKSPACE),
        ("Upper", WORKSPACE),
        ("-dash", WORKSPACE),
        ("x" * 65, WORKSPACE),
        ("é", WORKSPACE),
        ("line\n", WORKSPACE),
        ("ok", "relative"),
        ("ok", ""),
        ("ok", "/nul\0"),
        ("ok", "/" + "x" * 5000),
    ],
)
def test_b6_names_that_could_lead_elsewhere_are_refused_for_good(
    shared_writer: Lab, session: str, workspace: str
) -> None:
    with RawClient(shared_writer.socket) as client:
        client.send(encode(Kind.OPEN, channel=1, body=Open(session, workspace)))
        answer = decode_body(client.expect(Kind.REFUSED).body, Refused)
    assert (answer.code, answer.retry_ms) == ("bad_id", -1)
    assert not list(shared_writer.root.iterdir())


@pytest.fixture(scope="module")
def shared_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("shared"))
    lab.writer()
    yield lab
    lab.end()


def test_b6_a_bad_id_turns_recording_off_and_the_program_goes_on(lab: Lab) -> None:
    lab.writer()
    recorder = lab.recorder(sessions=("../x", "fine"), pace=500)
    recorder.wait_acked(100, "fine")
    report = recorder.settle_some("fine")
    assert (report.sessions["../x"].state, report.raised) == ("off", 0)
    assert report.sessions["../x"].emitted == report.sessions["../x"].dropped
    check(lab.directory("fine"), report.sessions["fine"])
    assert not (lab.root / "x").exists()


# --- damage in a real trace


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of 601 records over several segments, closed in order."""
    lab = Lab(tmp_path_factory.mktemp("original"))
    try:
        lab.writer(limits={"segment_bytes": 64 * KIB, "seal_interval_s": 0.02})
        recorder = lab.recorder(count=600, pace=1500)
        recorder.wait_emitted(601)
        check(lab.directory(), recorder.settle().sessions["s1"])
        return lab.directory()
    finally:
        lab.end()


@pytest.fixture
def trace(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "s1"))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def _spoil(lines: list[bytes], how: str) -> tuple[list[bytes], int, set[int]]:
    """Damage line 40 in this way: (the lines, the offset where it shows, the line numbers whose records may be gone)."""
    at = 40
    offset = sum(map(len, lines[:at]))
    match how:
        case "nul_run":
            lines[at] = b"\0" * len(lines[at])
            return lines, offset, {at}
        case "torn_then_whole":
            lines[at] = lines[at][:30]
            return lines, offset, {at}
        case "bit_flip":
            lines[at] = lines[at][:2] + bytes([lines[at][2] ^ 4]) + lines[at][3:]
            return lines, offset, {at}
        case "cut":
            lines[at] = lines[at][:50] + b"\n"
            return lines, offset, {at}
        case "doubled":
            lines.insert(at, lines[at])
            return lines, offset, set()
        case "moved":
            lines.insert(at + 5, lines.pop(at))
            return lines, offset, {at}
        case _:
            del lines[at]
            return lines, offset, {at}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("how", ["nul_run", "torn_then_whole", "bit_flip", "cut", "doubled", "moved", "deleted"])
def test_b11_damage_is_named_with_its_place_and_its_neighbours_survive(trace: Path, how: str, sealed: bool) -> None:
    before = [item.record.seq for item in read(trace) if isinstance(item, Found)]
    segment = sorted(trace.glob("*.jsonl"))[1]
    (trace / "digests").unlink()
    if not sealed:
        for seal in trace.glob("*.seal"):
            seal.unlink()
    original_lines = _lines(segment)
    lines, offset, gone = _spoil(list(original_lines), how)
    segment.write_bytes(b"".join(lines))
    first_seq = next(i.record.seq for i in read(trace) if isinstance(i, Found) and i.segment == 2)
    items = list(read(trace))
    seqs = {item.record.seq for item in items if isinstance(item, Found)}
    assert set(before) - seqs <= {first_seq + number - 1 for number in gone}
    notes = [item for item in items if isinstance(item, Note) and item.damage and item.segment in (2, None)]
    assert notes, "unnoticed"
    assert any(
        n.offset is not None and n.offset <= offset + 2000 and n.offset + (n.length or 400) >= offset for n in notes
    ), notes
    if how not in ("doubled", "moved"):
        assert all(note.kind != "duplicate" for note in notes), notes
    assert verify(trace).damaged


def _bytes_changed(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def _zero_entries(data: bytearray) -> None:
    data[SEAL_SLOT:] = bytes(len(data) - SEAL_SLOT)


def _flip(data: bytearray) -> None:
    data[SEAL_SLOT + 5] ^= 1


def _cut_slot(data: bytearray) -> None:
    del data[-10:]


@pytest.mark.parametrize(
    "harm",
    ["no_manifest", "stale_manifest", "garbage_manifest", "no_seals", "stale_seals", "zero_seals", "flipped", "cut"],
)
def test_b12_side_files_that_are_missing_or_wrong_never_accuse_healthy_data(trace: Path, harm: str) -> None:
    before = [(i.record.seq, i.line) for i in read(trace) if isinstance(i, Found)]
    seals = sorted(trace.glob("*.seal"))
    match harm:
        case "no_manifest":
            (trace / "manifest.json").unlink()
        case "stale_manifest":
            text = (trace / "manifest.json").read_text().replace('"last": ', '"last": 9')
            (trace / "manifest.json").write_text(text)
        case "garbage_manifest":
            (trace / "manifest.json").write_bytes(b"\xff\0{")
        case "no_seals":
            for seal in seals:
                seal.unlink()
        case "stale_seals":
            for seal in seals:
                _bytes_changed(seal, lambda data: data.__delitem__(slice(2 * SEAL_SLOT, None)))
        case "zero_seals":
            for seal in seals:
                _bytes_changed(seal, _zero_entries)
        case "flipped":
            for seal in seals:
                _bytes_changed(seal, _flip)
        case _:
            for seal in seals:
                _bytes_changed(seal, _cut_slot)
    assert [(i.record.seq, i.line) for i in read(trace) if isinstance(i, Found)] == before
    verdict = verify(trace)
    assert not verdict.damaged, verdict.notes
    assert verdict.emitted == 602
    assert tally(trace).last == 602


@pytest.mark.parametrize("sealed", [True, False])
def test_b13_one_changed_digit_in_a_seq_damages_that_line_only(trace: Path, sealed: bool) -> None:
    (trace / "digests").unlink()
    for seal in trace.glob("*.seal") if not sealed else ():
        seal.unlink()
    segment = sorted(trace.glob("*.jsonl"))[1]
    lines = _lines(segment)
    seq = lines[40].split(b",")[0]
    lines[40] = lines[40].replace(seq, seq[:-1] + (b"1" if seq[-1:] != b"1" else b"2"), 1)
    segment.write_bytes(b"".join(lines))
    notes = [item for item in read(trace) if isinstance(item, Note) and item.damage]
    assert {note.kind for note in notes} == {"damaged"}, notes
    found = [item.record.seq for item in read(trace) if isinstance(item, Found)]
    assert len(found) == 601
    assert len(set(found)) == 601


def test_b4_a_damaged_header_does_not_accuse_the_records_after_it(trace: Path) -> None:
    (trace / "digests").unlink()
    first = min(trace.glob("*.jsonl"))
    first.write_bytes(first.read_bytes().replace(b'"session":"s1"', b'"session":"s9"', 1))
    assert len([item for item in read(trace) if isinstance(item, Found)]) == 602
