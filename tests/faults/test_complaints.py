"""What people have reported of other tools that do this job: COMPLAINTS.md says which test shows that it cannot happen here.
The tests that no fault row asked for are in this file; and that every test which the tables name exists."""

from __future__ import annotations

import ast
import errno
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FaultyDisk
from tests.faults.harness import Lab, check, filled, wait_for
from tests.strategies import SESSION, drop_line_of, line_of, lines_of, structs
from tests.tracewriter.harness import OTHER_LIFE, Answer, Writer, covered, drop, events, read_all
from tests.tracewriter.old_sessions import make
from tracewriter.config import KIB, Limits
from tracewriter.events import KINDS
from tracewriter.journal import Producer
from tracewriter.protocol import Kind
from tracewriter.reader import list_sessions, verify

HERE = Path(__file__).parent
TESTS = HERE.parent
SECRET = "sk-ant-api03-abcdEFGH1234ijklMNOP5678"


def _life(root: Path, count: int = 5) -> Path:
    """A session that was recorded and closed in order."""
    writer = Writer(root)
    writer.send(events(1, lines_of(1, count)))
    writer.close()
    return writer.directory


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix in (".jsonl", ".seal")}


# --- damage


def test_complaint_5_a_record_without_a_number_is_one_damaged_line_and_the_session_goes_on(tmp_path: Path) -> None:
    directory = _life(tmp_path)
    path = directory / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"seq":3,', b""))
    found, notes = read_all(directory)
    assert covered(found) == [1, 2, 4, 5]
    assert sum(note.kind == "damaged" and note.length != path.stat().st_size for note in notes) >= 1
    writer = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert writer.send(events(6, line_of(6))) == [Answer(Kind.ACK, 6)]
    writer.close()


@pytest.mark.parametrize(
    "damage",
    [b"", b"\0" * 4096, b"garbage", b'{"seq":9', b'{"segment":1,"id":"x"}\n', b"\xff\xfe" * 100, b"{}\n" * 50],
)
def test_complaint_14_going_on_with_a_damaged_session_changes_and_deletes_nothing_that_was_there(
    tmp_path: Path, damage: bytes
) -> None:
    directory = _life(tmp_path)
    (directory / "000001.jsonl").write_bytes(damage)
    (directory / "000002.jsonl").write_bytes(damage)
    (directory / "000003.seal").write_bytes(damage)
    before = _contents(directory)
    for number in range(3):
        writer = Writer(tmp_path, producer=Producer(f"{number:016x}"))
        writer.send(events(writer.recording.next, line_of(writer.recording.next)))
        writer.close()
    verify(directory)
    after = _contents(directory)
    assert {name: after.get(name) for name in before} == before
    found, _ = read_all(directory)
    assert len(found) == 3


# --- growth


def test_complaint_17_hardly_more_bytes_are_written_than_are_stored(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=5000, size=200, count=15_000)
    recorder.wait_acked(15_000)
    recorder.ask("flush 2")
    written = int(Path(f"/proc/{writer.pid}/io").read_text().split("wchar:")[1].split()[0])
    stored = sum(path.stat().st_size for path in lab.segments())
    assert stored < written < 1.05 * stored
    check(lab.directory(), recorder.settle().sessions["s1"])


def test_complaint_18_every_documented_limit_has_a_test() -> None:
    text = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    untested = [name for name in Limits.__struct_fields__ if not re.search(rf"\b{name}\b", text)]
    assert untested == []


def test_complaint_18_the_writer_ends_so_long_after_the_last_producer_left(lab: Lab) -> None:
    """idle_exit_s: not while one is there, however quiet it is."""
    recorder = lab.recorder(pace=0)
    recorder.ask("burst 3")
    writer = lab.writer(limits={"idle_exit_s": 1.0})
    recorder.ask("kick")
    recorder.wait_acked(4)
    time.sleep(1.3)
    assert not writer.gone()
    recorder.settle()
    wait_for(writer.gone, "the writer to end")
    assert writer.stop() == 0


def test_complaint_18_an_idle_recording_is_finished_and_goes_on_in_a_new_segment(lab: Lab) -> None:
    """session_idle_s"""
    writer = lab.writer(limits={"session_idle_s": 0.3, "seal_interval_s": 0.1})
    recorder = lab.recorder(pace=0)
    recorder.ask("burst 3")
    wait_for(lambda: (lab.directory() / "digests").exists(), "the segment's digest")
    assert writer.open_files() < 20
    recorder.ask("burst 3")
    recorder.wait_acked(7)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).segments == 2


def test_complaint_18_many_opens_at_once_are_served_a_few_a_turn_and_all(lab: Lab) -> None:
    """opens_per_turn"""
    lab.writer(limits={"opens_per_turn": 1})
    names = tuple(f"s{number}" for number in range(1, 41))
    recorder = lab.recorder(pace=0, sessions=names)
    recorder.ask("burst 2")
    report = recorder.settle()
    for name in names:
        assert check(lab.directory(name), report.sessions[name]).dropped == 0


def test_complaint_18_drop_records_may_pass_a_full_session_by_so_much(tmp_path: Path) -> None:
    """drop_slack"""
    writer = Writer(tmp_path, limits=Limits(session_bytes=2000, session_reserve=0, drop_slack=500))
    count = 1800 // len(line_of(1))
    writer.send(events(1, lines_of(1, count)))
    at, refused = count + 1, 0
    for _ in range(20):
        (answer,) = writer.send(drop(at, at, drop_line_of(at, at)))
        refused += answer.code == "limit"
        at += answer.code == ""
    assert refused
    size = writer.journal.size_bytes
    assert 2000 < size <= 2500
    writer.close()


def test_complaint_18_sweeps_are_so_far_apart() -> None:
    """sweep_interval_s: the command hands it to the sweeper, which is held to its interval in test_retention_faults."""
    source = ast.parse((TESTS.parent / "tracewriter" / "__main__.py").read_text())
    keywords = {k.arg: ast.unparse(k.value) for n in ast.walk(source) if isinstance(n, ast.Call) for k in n.keywords}
    assert keywords["interval_s"] == "limits.sweep_interval_s"


def test_complaint_21_a_rotation_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    writer = Writer(tmp_path, disk=disk, limits=Limits(segment_bytes=500))
    writer.send(events(1, lines_of(1, 3)))
    disk.failing["create"] = errno.EACCES
    for _ in range(4):
        assert writer.send(events(4, lines_of(4, 3)))[-1].code == "EACCES"
        assert (writer.recording.state, writer.recording.reason) == ("degraded", "EACCES")
        writer.clock.advance(60)
    disk.failing.clear()
    assert writer.send(events(4, lines_of(4, 3))) == [Answer(Kind.ACK, 6)]
    assert (writer.recording.state, len(list(writer.directory.glob("*.jsonl")))) == ("ok", 2)
    writer.close()


# --- disk and permissions


def test_complaint_28_a_full_disk_is_a_state_and_no_stream_of_messages(lab: Lab, own_mounts: None) -> None:
    lab.mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=lab.root)
    writer = lab.writer(limits={"retry_first_s": 0.02, "retry_max_s": 0.05})
    recorder = lab.recorder(pace=1000, size=300)
    recorder.wait_acked(100)
    with filled(lab.root, leave=2000):
        recorder.wait_reason("ENOSPC")
        time.sleep(1.5)
    assert len(writer.log.splitlines()) <= 3, writer.log
    check(lab.directory(), recorder.settle().sessions["s1"])


def test_complaint_30_everything_is_private_whatever_the_umask_and_what_was_open_is_closed(lab: Lab) -> None:
    """The root is whoever's made it: no session can be entered from it."""
    lab.directory().mkdir(parents=True)
    for path in (lab.directory(), lab.directory().parent):
        path.chmod(0o755)
    wrap = ["/bin/sh", "-c", 'umask 0; exec "$@"', "sh"]
    lab.writer(wrap=wrap, limits={"segment_bytes": 64 * KIB})
    recorder = lab.recorder(pace=2000, count=1000, sessions=("s1", "s2"))
    recorder.wait_emitted(1001)
    recorder.settle()
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in lab.root.rglob("*")}
    wrong = {str(path): oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert wrong == {}
    assert stat.S_IMODE(lab.socket.stat().st_mode) & 0o077 == 0
    assert len(modes) > 10


def test_complaint_31_what_cannot_be_read_is_named_and_nobody_is_told_to_delete_it(tmp_path: Path) -> None:
    directory = _life(tmp_path)
    (directory / "000002.jsonl").mkdir()
    (directory / "000003.jsonl").symlink_to("/etc/passwd")
    messages = [note.message for note in verify(directory).notes]
    assert any("segment 2" in message for message in messages)
    assert not any(re.search(r"\b(delete|remove|clear|rm)\b", message) for message in messages)


# --- end and delivery


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_complaint_43_every_signal_that_asks_for_the_end_drains_first(lab: Lab, number: signal.Signals) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=0)
    recorder.ask("burst 2000")
    recorder.ask("kick")
    recorder.wait_acked(1)
    writer.signal(number)
    assert writer.process.wait(10) == 0
    assert not verify(lab.directory()).damaged
    lab.writer()
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


# --- encoding


def test_complaint_51_a_lone_surrogate_in_a_stored_line_costs_nothing(tmp_path: Path) -> None:
    """Other tools store such escapes; a strict decoder refuses them."""
    directory = _life(tmp_path)
    path = directory / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"text of 3", b"text \\ud83d"))
    found, notes = read_all(directory)
    assert covered(found) == [1, 2, 3, 4, 5]
    assert {note.kind for note in notes} <= {"damaged", "end_missing"}, "its sealed range was changed, and that is said"


# --- listing


def test_complaint_65_the_newest_is_the_one_with_the_newest_record_whatever_the_files_times_are(tmp_path: Path) -> None:
    for age, touched in ((3, 0), (1, 50), (2, 20)):
        directory = make(tmp_path, f"age{age}", age)
        then = time.time() - touched * 86_400
        for path in (directory / "000001.jsonl", directory):
            os.utime(path, (then, then))
    assert [entry.session for entry in list_sessions(tmp_path)] == ["age1", "age2", "age3"]


# --- secrets


@pytest.mark.parametrize("name", sorted(KINDS))
@settings(max_examples=6)
@given(data=st.data())
def test_complaint_63_no_kind_of_event_carries_a_secret_past_the_one_place_that_redacts(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    event = data.draw(structs(KINDS[name], st.sampled_from([SECRET, f"a {SECRET} b", f'"{SECRET}"\n'])))
    at = {"seq": 1, "ts": "2026-11-29T20:45:01.123456Z", "event": name, "session": SESSION}
    if name == "trace.drop.observed":
        event = msgspec.structs.replace(event, first=1, last=1, count=1)
    line = msgspec.json.encode({**at, "data": event}) + b"\n"
    root = tmp_path_factory.mktemp("root")
    writer = Writer(root)
    writer.send(events(1, line))
    writer.close()
    stored = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert SECRET.encode() not in stored
    assert b"abcdEFGH" not in stored
    found, _ = read_all(writer.directory)
    assert covered(found) == [1]


# --- the tables


def _rows(table: Path) -> Iterator[list[str]]:
    for line in table.read_text().splitlines():
        if re.match(r"\| *[A-Z0-9]", line):
            yield [cell.strip() for cell in line.strip("| ").split("|")]


@cache
def _tests_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, kinds) and n.name.startswith("test_"))


def test_every_test_that_the_table_of_complaints_names_exists() -> None:
    numbers = []
    for number, _, where in _rows(HERE / "COMPLAINTS.md"):
        numbers.append(int(number))
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", where)
        assert named or where.startswith("by design:"), f"complaint {number} names no test and no reason"
        for file, test in named:
            assert test in _tests_in(TESTS / file), f"complaint {number}: {file}::{test}"
    assert numbers == sorted(set(numbers))
    assert set(range(1, 35)) - {4, 8, 13, 22, 32} <= set(numbers)
    assert set(range(40, 66)) - {46, 48, 57, 59} <= set(numbers)


def test_every_row_of_the_readme_names_tests_that_exist() -> None:
    """`name…` stands for all tests that begin so, of the file that was named last."""
    rows = set()
    for first, where, *_ in _rows(HERE / "README.md"):
        path, count = HERE / "none", 0
        for file, prefix in re.findall(r"([\w/]+): |`(\w+)…?`", where):
            if file:
                path = (TESTS if "/" in file else HERE) / Path(file).parent / f"test_{Path(file).name}.py"
                continue
            count += 1
            assert any(test.startswith(f"test_{prefix}") for test in _tests_in(path)), f"{first}: {path.name} {prefix}"
        assert count, f"{first} names no test"
        rows |= set(
            re.findall(r"\b[A-E]\d+\b", re.sub(r"E1–E3", "E1, E2, E3", re.sub("E5–E9", "E5, E6, E7, E8, E9", first)))
        )
    expected = {
        "A1",
        "A2",
        "A3",
        "A5",
        "A6",
        "A7",
        "A8",
        "A9",
        "A11",
        "A12",
        "A14",
        "A16",
        "A17",
        "A18",
        "B1",
        "B3",
        "B4",
    }
    expected |= {"B6", "B7", "B9", "B11", "B12", "B13", "D1", "D2", "D4", "D5", "D8", "D9", "D10", "D11"}
    expected |= {
        f"C{number}" for number in (1, 2, 3, 4, 5, 6, 8, 10, 11, 13, 15, 16, 18, 19, 21, 22, 24, 25, 26, 27, 28)
    }
    expected |= {"E1", "E2", "E3", "E5", "E6", "E7", "E8", "E9"}
    assert expected <= rows
