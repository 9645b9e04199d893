"""Killed anywhere: the state after every prefix of what the writer did to the disk, read back and gone on from.

A full life is recorded once as a log of operations; then every prefix of it, within a write every byte, becomes a directory
that is read, and that a new life goes on in. Planted bugs show that the check can fail. Bodies too long for a
record are part of it: at no point does a record name one that is not whole.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.fakes import FaultyDisk, Operation
from tests.strategies import SESSION, drop_line_of, lines_of
from tests.tracewriter.harness import (
    KEY,
    OTHER_LIFE,
    Writer,
    answers,
    broken_references,
    covered,
    damage,
    drop,
    events,
    naming,
    parts,
    read_all,
)
from tracewriter import reader
from tracewriter.config import Limits
from tracewriter.journal import Producer
from tracewriter.protocol import Kind

SMALL = Limits(segment_bytes=2500)
BODIES = {f"{number:x}" * 32: b"body %d, " % number * (20 + number) for number in range(1, 6)}


class Acked(msgspec.Struct, frozen=True):
    """After so many operations, all up to this seq was acknowledged."""

    operations: int
    seq: int


def a_life(root: Path) -> tuple[list[Operation], list[Acked]]:
    """Open, batches, rotation, seals, a full disk, a foreign truncation, a manifest replaced, digests, close; then another life."""
    root.mkdir(parents=True)
    disk = FaultyDisk()
    acked: list[Acked] = []
    writer = Writer(root, disk=disk, limits=SMALL)
    next_seq = 1

    def note(said: bytes) -> None:
        acked.extend(Acked(len(disk.log), answer.first) for answer in answers(said) if answer.kind is Kind.ACK)

    def batch(count: int) -> None:
        nonlocal next_seq
        writer.recording.take(events(next_seq, lines_of(next_seq, count)))
        note(writer.recording.write())
        next_seq = writer.recording.next

    def named(*payloads: str) -> None:
        nonlocal next_seq
        for payload in payloads:
            for frame in parts(next_seq, payload, BODIES[payload], size=70):
                writer.recording.take_payload(frame)
                note(writer.recording.write())
        writer.recording.take(events(next_seq, naming(next_seq, *payloads)))
        note(writer.recording.write())
        next_seq = writer.recording.next

    one, two, three, four, five = BODIES
    named(one)
    for count in (2, 4, 1):
        batch(count)
        writer.journal.seal()
    named(two, one)
    writer.journal.seal()
    batch(6)  # more than a segment takes: rotation
    writer.recording.take(drop(next_seq, next_seq + 4, drop_line_of(next_seq, next_seq + 4)))
    note(writer.recording.write())
    next_seq = writer.recording.next
    disk.free = 400  # a short write, then ENOSPC
    batch(5)
    disk.free = None
    writer.clock.advance(1)
    batch(5)
    disk.free = 100  # a body cut short, then whole
    named(three)
    disk.free = None
    writer.clock.advance(1)
    named(three, four)
    writer.journal.write_manifest(writer.recording.manifest(writer.journal, closed=False))
    writer.journal.seal()
    batch(9)
    writer.close()
    writer = Writer(root, disk=disk, limits=SMALL, producer=Producer(OTHER_LIFE))
    assert writer.recording.next == next_seq
    named(five)
    batch(2)
    writer.close()
    return disk.log, acked


def build(directory: Path, log: list[Operation]) -> None:
    """The directory after these operations."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files: dict[str, bytearray] = {}
    for operation in log:
        match operation.kind:
            case "create":
                files[operation.name] = bytearray()
            case "write":
                files[operation.name] += operation.data
            case "truncate":
                del files[operation.name][operation.size :]
            case "unlink":
                del files[operation.name]
            case "replace":
                files[operation.new] = files.pop(operation.name)
            case _:
                pass  # sync changes nothing that a killed process leaves
    for name, data in files.items():
        path = directory / "payloads" / name if name.removesuffix(".part") in BODIES else directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def prefixes(log: list[Operation], *, stride: int) -> Iterator[tuple[int, list[Operation]]]:
    """(whole operations, the operations up to a crash point): within a write every byte of its ends, then every so-many."""
    for number, operation in enumerate(log):
        yield number, log[:number]
        if operation.kind == "write":
            size = len(operation.data)
            for cut in range(1, size):
                if (size <= 64 and cut % 5 == 1) or cut < 4 or size - cut < 4 or cut % stride == number % stride:
                    part = msgspec.structs.replace(operation, data=operation.data[:cut])
                    yield number, [*log[:number], part]
    yield len(log), log


def check(root: Path, log: list[Operation], whole: int, acked: list[Acked]) -> None:
    """What must hold after a crash, and after the life that comes then."""
    directory = root / KEY.workspace_hash / KEY.session
    build(directory, log)
    known = max((ack.seq for ack in acked if ack.operations <= whole), default=0)
    found, notes = read_all(directory)
    assert [note for note in notes if note.damage] == []
    seqs = covered(found)
    assert seqs == list(range(1, len(seqs) + 1)), "in order, once"
    assert len(seqs) >= known, "all that was acknowledged"
    assert damage(reader.verify(directory)) == []
    bodies_are_whole(directory)

    writer = Writer(root, limits=SMALL, producer=Producer("00000000000000c3"))
    first = writer.recording.next
    assert first == len(seqs) + 1, "the next life goes on with the next number"
    said = writer.send(events(first, lines_of(first, 3)))
    writer.close()
    assert [answer.first for answer in said] == [first + 2]
    after, notes = read_all(directory)
    assert [note for note in notes if note.damage] == []
    assert covered(after) == list(range(1, first + 3))
    assert [item.record for item in after[: len(found)]] == [item.record for item in found]
    assert damage(reader.verify(directory)) == []
    assert not list(directory.glob("payloads/*.part"))


def bodies_are_whole(directory: Path) -> None:
    """Each that is named, and each that has its name."""
    assert broken_references(directory) == []
    for path in (directory / "payloads").glob("*"):
        assert path.name.endswith(".part") or path.read_bytes() == BODIES[path.name]


def run(root: Path, log: list[Operation], acked: list[Acked], *, stride: int) -> int:
    points = 0
    for whole, prefix in prefixes(log, stride=stride):
        check(root, prefix, whole, acked)
        points += 1
    return points


def test_no_crash_point_loses_what_was_acknowledged_or_looks_like_damage(tmp_path: Path) -> None:
    log, acked = a_life(tmp_path / "life")
    kinds = {(operation.kind, operation.name.rpartition(".")[2]) for operation in log}
    assert {
        ("create", "jsonl"),
        ("write", "seal"),
        ("truncate", "jsonl"),
        ("replace", "new"),
        ("write", "digests"),
        ("replace", "part"),
        ("unlink", "part"),
    } <= kinds
    assert sum(operation.kind == "create" and operation.name.endswith(".jsonl") for operation in log) >= 4
    assert run(tmp_path / "crash", log, acked, stride=11) > 1000


def test_the_whole_life_reads_back_verified(tmp_path: Path) -> None:
    root = tmp_path / "life"
    log, _ = a_life(root)
    directory = root / KEY.workspace_hash / SESSION
    first = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}
    build(tmp_path / "again", log)
    again = (tmp_path / "again").rglob("*")
    assert {path.name: path.read_bytes() for path in again if path.is_file()} == first
    assert first.items() >= BODIES.items()
    found, _ = read_all(directory)
    assert {item.state for item in found} == {"verified"}
    assert reader.verify(directory).dropped == 5


# --- planted bugs: what a wrong writer would have done to the disk
# Harmless, so not here: the header line in a write of its own. A crash between the two leaves a segment without records, which
# a crash inside the one write may leave too; what it costs is files on a full disk (test_journal.py).


def _is(kind: str, suffix: str) -> Callable[[Operation], bool]:
    return lambda operation: operation.kind == kind and operation.name.endswith(suffix)


def seal_before_data(log: list[Operation]) -> list[Operation]:
    """Each append to a seal file comes before the data that it is about."""
    out: list[Operation] = []
    for operation in log:
        if _is("write", ".seal")(operation) and operation.data[:8] != b"agseal1\n":
            at = max(i for i, o in enumerate(out) if _is("write", ".jsonl")(o))
            if len(out) - at < 4 and out[at].name[:6] == operation.name[:6] and out[at - 1].kind == "write":
                out.insert(at, operation)
                continue
        out.append(operation)
    return out


def number_used_again(log: list[Operation]) -> list[Operation]:
    """The second segment is appended to the first one's file: no O_EXCL, a number that is in use."""
    return [
        msgspec.structs.replace(operation, name=operation.name.replace("000002", "000001"))
        for operation in log
        if not (operation.kind == "create" and operation.name == "000002.jsonl") and operation.name != "000002.seal"
    ]


def no_cut_back(log: list[Operation]) -> list[Operation]:
    """What was torn by the error is not cut off, and the next block is glued to it in the same file."""
    at = next(i for i, operation in enumerate(log) if operation.kind == "truncate")
    torn = log[at].name
    later = next(o.name for o in log[at:] if o.kind == "create" and o.name.endswith(".jsonl"))
    return [
        msgspec.structs.replace(operation, name=torn) if operation.name == later else operation
        for i, operation in enumerate(log)
        if i != at
        and not (operation.kind == "create" and operation.name == later)
        and not operation.name.startswith(later[:6] + ".seal")
    ]


def written_twice(log: list[Operation]) -> list[Operation]:
    """After the short write the whole block is written again."""
    at = next(i for i, operation in enumerate(log) if operation.kind == "truncate")
    return [*log[:at], log[at - 1], *log[at:]]


def acknowledged_early(log: list[Operation]) -> list[Operation]:
    """The last block of the first segment never reaches the file."""
    writes = [i for i, o in enumerate(log) if o.kind == "write" and o.name == "000001.jsonl"]
    return [operation for i, operation in enumerate(log) if i != writes[-1]]


def seal_of_other_bytes(log: list[Operation]) -> list[Operation]:
    """The hash is of the bytes before redaction."""
    return [
        msgspec.structs.replace(o, data=o.data.replace(b"text of", b"TEXT OF")) if _is("write", ".jsonl")(o) else o
        for o in log
    ]


def _moved_after_the_record(log: list[Operation], found: Callable[[Operation], bool]) -> list[Operation]:
    at = next(i for i, operation in enumerate(log) if found(operation))
    record = next(i for i, o in enumerate(log) if i > at and _is("write", ".jsonl")(o))
    return [*log[:at], *log[at + 1 : record + 1], log[at], *log[record + 1 :]]


def body_after_its_record(log: list[Operation]) -> list[Operation]:
    """The first body gets its name only when the record that names it is written."""
    return _moved_after_the_record(log, _is("replace", ".part"))


def body_written_in_place(log: list[Operation]) -> list[Operation]:
    """No temporary name: a body is there half while it is written."""
    bare = [msgspec.structs.replace(o, name=o.name.removesuffix(".part")) for o in log]
    return [o for o in bare if not (o.kind == "replace" and o.name in BODIES)]


def body_cut_short_kept(log: list[Operation]) -> list[Operation]:
    """What a full disk took of a body gets its name, and the rest is never written."""
    at = next(i for i, operation in enumerate(log) if _is("unlink", ".part")(operation))
    kept = Operation("replace", log[at].name, new=log[at].name.removesuffix(".part"))
    return [*log[:at], kept, *(o for o in log[at + 1 :] if not o.name.startswith(log[at].name))]


PLANTED = (
    body_after_its_record,
    body_written_in_place,
    body_cut_short_kept,
    number_used_again,
    no_cut_back,
    written_twice,
    acknowledged_early,
    seal_before_data,
    seal_of_other_bytes,
)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: Callable[[list[Operation]], list[Operation]], tmp_path: Path) -> None:
    log, acked = a_life(tmp_path / "life")
    wrong = bug(log)
    assert wrong != log
    added = max(0, len(wrong) - len(log))
    later = [Acked(ack.operations + added, ack.seq) for ack in acked]
    with pytest.raises(AssertionError):
        run(tmp_path / "crash", wrong, later, stride=211)


class ManifestIsTruth(Writer):
    """A writer that believes the manifest, which may be older than the data."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, producer=Producer("00000000000000d4"))
        manifest = self.directory / "manifest.json"
        if manifest.exists():
            self.recording.next = self.journal.last = msgspec.json.decode(manifest.read_bytes())["last"] + 1


def test_a_writer_that_believes_the_manifest_is_caught(tmp_path: Path) -> None:
    log, _ = a_life(tmp_path / "life")
    replaced = next(i for i, operation in enumerate(log) if operation.new == "manifest.json")
    directory = tmp_path / "crash" / KEY.workspace_hash / KEY.session
    wrong = 0
    for number in range(replaced + 1, len(log)):
        build(directory, log[:number])
        found, _ = read_all(directory)
        writer = ManifestIsTruth(tmp_path / "crash")
        wrong += writer.recording.next != covered(found)[-1] + 1
        writer.close(closed=False)
    assert wrong > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG])
@pytest.mark.parametrize(
    "operation", ["create", "write", "truncate", "fstat", "unlink", "replace", "append", "names", "stat"]
)
def test_an_operation_that_fails_once_or_for_long_loses_nothing_acknowledged(
    operation: str, code: int, tmp_path: Path
) -> None:
    for when in range(12):
        root = tmp_path / f"{when}"
        root.mkdir()
        disk = FaultyDisk()
        writer = Writer(root, disk=disk, limits=SMALL)
        for step in range(8):
            if step * 2 == when:
                disk.once.append((operation, code))
            if step * 2 + 1 == when:
                disk.failing[operation] = code
            first = writer.recording.next
            writer.send(events(first, lines_of(first, 3)))
            writer.journal.seal()
            writer.clock.advance(60)
        disk.failing.clear()
        disk.once.clear()
        first = writer.recording.next
        said = writer.send(events(first, lines_of(first, 1)))
        assert said[0].first == first
        writer.close()
        found, notes = read_all(writer.directory)
        assert covered(found) == list(range(1, first + 1))
        assert [note for note in notes if note.damage] == []
        assert disk.open_fds == []
