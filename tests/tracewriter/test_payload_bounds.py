"""Bodies count in every limit, and nothing that is planted in their place leads out of the session."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.strategies import drop_line_of, line_of
from tests.tracewriter.harness import OTHER_LIFE, Answer, Writer, drop, events, naming, parts
from tests.tracewriter.payload_writer import ACK_2, BODY, P, Q, stored, whole, with_body
from tracewriter.config import KIB, Limits
from tracewriter.journal import Producer
from tracewriter.protocol import Kind

# --- limits


def test_bodies_count_in_the_limit_and_the_record_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    limits = Limits(session_bytes=40 * KIB, session_reserve=8 * KIB)
    writer = Writer(tmp_path, limits=limits)
    step = 1
    while writer.recording.state == "ok":
        said = writer.send(*with_body(step, f"{step:032x}", bytes(5 * KIB)))
        step += 1
    refused = step - 1
    assert said[-1] == Answer(Kind.NACK, refused, 1, "limit", 0)
    assert len(stored(writer)) == refused - 1
    assert writer.recording._parts._memory.used == 0
    assert writer.send(events(refused, naming(refused, f"{refused:032x}"))) == [], "its record is not taken"
    last = drop_line_of(refused, refused)
    assert writer.send(drop(refused, refused, last)) == [Answer(Kind.ACK, refused)]
    end = refused + 1
    assert writer.send(*with_body(end, f"{end:032x}", bytes(5 * KIB))) == [Answer(Kind.ACK, end)], "the reserve"
    known = f"{1:032x}"
    assert writer.send(*with_body(end + 1, known, bytes(5 * KIB))) == [Answer(Kind.ACK, end + 1)], "takes nothing more"
    writer.close()
    whole(writer, end + 1)
    assert sum(map(len, stored(writer).values())) < 40 * KIB


def test_a_session_has_so_many_payload_files_at_most(tmp_path: Path) -> None:
    writer = Writer(tmp_path, limits=Limits(session_payloads=3))
    for step in range(1, 4):
        writer.send(*with_body(step, f"{step:032x}", b"x"))
    assert writer.send(*with_body(4, P))[-1] == Answer(Kind.NACK, 4, 1, "limit", 0)
    assert len(stored(writer)) == 3
    writer.close()


def test_without_memory_the_producer_is_told_to_come_again_later_and_nothing_is_taken_without_its_body(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, limits=Limits(payload_memory=1000))
    said = writer.send(*with_body(1), events(2, line_of(2)))
    assert said == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 0, "busy", 250)]
    assert writer.recording._parts._memory.used == 0
    assert writer.send(*with_body(1, P, BODY[:900]), events(2, line_of(2))) == ACK_2
    writer.close()


def test_a_body_over_the_bound_is_refused_and_its_record_dropped(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    said = writer.send(*parts(1, P, bytes(9 * 1024 * KIB), size=1000 * KIB), events(1, naming(1, P)))
    assert said == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 1, "malformed", 0)]
    assert writer.send(drop(1, 1, drop_line_of(1, 1)), events(2, line_of(2))) == ACK_2
    assert stored(writer) == {}
    writer.close()


# --- planted names


def _plant(kind: str, path: Path, outside: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(outside)
        case "dangling link":
            path.symlink_to(outside.parent / "nowhere")
        case "fifo":
            os.mkfifo(path)
        case "hard link":
            path.hardlink_to(outside)
        case "file":
            path.write_bytes(b"")
        case _:
            path.mkdir()
            (path / "inside").write_bytes(b"")


PLANTS = ["link", "dangling link", "fifo", "hard link", "directory"]


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("name", [P, P + ".part"])
def test_what_is_planted_at_a_body_s_name_is_never_written_through(name: str, kind: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    root = tmp_path / "traces"
    root.mkdir()
    writer = Writer(root)
    writer.send(events(1, line_of(1)))
    path = writer.directory / "payloads" / name
    _plant(kind, path, outside)
    said = writer.send(*with_body(2))
    if kind == "directory":
        assert said[-1].code in ("EISDIR", "ENOTEMPTY", "EPERM")
        assert (path / "inside").exists()
        shutil.rmtree(path)
        writer.clock.advance(1)
        said = writer.send(*with_body(2))
    assert said == ACK_2
    assert stored(writer) == {P: BODY}
    assert not (writer.directory / "payloads" / P).is_symlink()
    writer.close()
    assert outside.read_bytes() == b"untouched"
    assert outside.stat().st_nlink == 1
    assert not (tmp_path / "nowhere").exists()
    whole(writer, 2)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "hard link", "file", "link to a directory"])
def test_what_is_planted_at_payloads_holds_the_session_until_it_is_gone(kind: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / (P + ".part")).write_bytes(b"untouched")
    root = tmp_path / "traces"
    root.mkdir()
    Writer(root).close()
    directory = next(root.glob("*/*"))
    if kind == "link to a directory":
        (directory / "payloads").symlink_to(elsewhere)
    else:
        _plant(kind, directory / "payloads", outside)
    writer = Writer(root)
    assert writer.send(events(1, line_of(1))) == [Answer(Kind.ACK, 1)], "records go on"
    assert writer.send(*with_body(2))[-1].code in ("ENOTDIR", "ELOOP")
    assert writer.recording.status().reason in ("ENOTDIR", "ELOOP")
    (directory / "payloads").unlink()
    writer.clock.advance(1)
    assert writer.send(*with_body(2)) == ACK_2
    writer.close()
    assert outside.read_bytes() == b"untouched"
    assert [path.name for path in elsewhere.iterdir()] == [P + ".part"]
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    whole(writer, 2)


def test_half_bodies_of_dead_lives_are_removed_at_open_and_nothing_else_is(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    writer = Writer(tmp_path)
    writer.send(*with_body(1))
    writer.close()
    payloads = writer.directory / "payloads"
    (payloads / (Q + ".part")).write_bytes(b"half")
    (payloads / ("1" * 32 + ".part")).symlink_to(outside)
    (payloads / ("2" * 32 + ".part")).hardlink_to(outside)
    os.mkfifo(payloads / ("3" * 32 + ".part"))
    (payloads / ("4" * 32 + ".part")).mkdir()
    kept = {P, "4" * 32 + ".part", "notes.part", "x" * 32 + ".part"}
    (payloads / "notes.part").write_bytes(b"mine")
    (payloads / ("x" * 32 + ".part")).write_bytes(b"mine")
    again = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert {path.name for path in payloads.iterdir()} == kept
    assert (outside.read_bytes(), outside.stat().st_nlink) == (b"untouched", 1)
    again.close()


def test_a_writer_without_the_lock_removes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1))
    half = writer.directory / "payloads" / (Q + ".part")
    half.write_bytes(b"half")
    with pytest.raises(Exception, match="another writer process"):
        Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert half.exists()
    writer.close()
