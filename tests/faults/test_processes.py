"""Group C of the faults: processes that die, stop, stall, race or are strangers."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.harness import (
    START_S,
    WORKSPACE,
    Lab,
    RawClient,
    can_connect,
    check,
    events,
    require_tool,
    wait_for,
)
from tracewriter.config import KIB, MIB
from tracewriter.protocol import Hello, Kind, Open, Refused, Welcome, decode_body, encode
from tracewriter.reader import read, verify


def _kinds(directory: Path) -> set[str]:
    return {note.kind for note in verify(directory).notes}


# --- the writer dies


def _kill_loop(lab: Lab, kills: int) -> None:
    rng = random.Random(1)
    recorder = lab.recorder(pace=3000)
    for _ in range(kills):
        writer = lab.writer()
        recorder.ask("kick")
        time.sleep(rng.uniform(0.0, 0.25))
        writer.kill()
    lab.writer()
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped == 0
    assert result.segments > kills // 2


def test_c1_24_kills_of_the_writer_lose_nothing_and_double_nothing(lab: Lab) -> None:
    _kill_loop(lab, 24)


@pytest.mark.nightly
def test_c1_200_kills_of_the_writer_lose_nothing_and_double_nothing(lab: Lab) -> None:
    _kill_loop(lab, 200)


POINTS = [
    *(("mkdirat,mkdir", k) for k in (1, 2)),
    ("flock", 1),
    *(("write", k) for k in range(1, 11)),
    *(("openat", k) for k in range(1, 9)),
    *(("fdatasync", k) for k in range(1, 4)),
    *(("sendto", k) for k in range(1, 6)),
    *(("recvfrom", k) for k in range(1, 5)),
    ("unlink,unlinkat", 1),
    ("rename,renameat,renameat2", 1),
    *(("close", k) for k in range(1, 5)),
]
BUSY = {"segment_bytes": 40 * KIB, "seal_interval_s": 0.05, "sync_interval_s": 0.05}


def _kill_at(lab: Lab, points: list[tuple[str, int]]) -> None:
    recorder = lab.recorder(pace=1000)
    missed: list[tuple[str, int]] = []
    for call, k in points:
        writer = lab.writer(limits=BUSY)
        strace = lab.inject(writer.pid, f"inject={call}:signal=KILL:when={k}", f"trace={call}")
        before = recorder.acked()
        until = time.monotonic() + 3
        while not writer.gone() and time.monotonic() < until and recorder.acked() < before + 500:
            recorder.tell("kick")
            recorder.ask("flush 0.1")
        if not writer.gone():
            missed.append((call, k))
        writer.kill()
        strace.wait(START_S)
    lab.writer()
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped == 0
    assert len(missed) <= len(points) * 0.4, f"not reached: {missed}"


def test_c2_killed_at_its_kth_system_call_loses_nothing_and_doubles_nothing(lab: Lab) -> None:
    require_tool("strace")
    _kill_at(lab, POINTS)


@pytest.mark.nightly
def test_c2_killed_at_many_more_system_calls(lab: Lab) -> None:
    require_tool("strace")
    calls = (
        "write",
        "openat",
        "fdatasync",
        "sendto",
        "recvfrom",
        "close",
        "fstat,newfstatat",
        "epoll_wait,epoll_pwait",
    )
    _kill_at(lab, [(call, k) for call in calls for k in range(1, 41)])


def test_c4_a_stopped_writer_does_not_touch_record_and_is_exact_when_it_goes_on(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=2000)
    recorder.wait_acked(100)
    writer.signal(signal.SIGSTOP)
    started, before = time.monotonic(), recorder.latest().sessions["s1"].emitted
    recorder.ask("burst 20000")
    recorder.wait_emitted(before + 22_000)
    assert time.monotonic() - started < 22_000 / 1000
    writer.signal(signal.SIGCONT)
    report = recorder.settle()
    assert check(lab.directory(), report.sessions["s1"]).dropped == 0


def test_c4_with_a_full_buffer_drops_are_exact_when_the_writer_goes_on(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=2000, buffer_bytes=256 * KIB, sessions=("s1", "s2"))
    recorder.wait_acked(100)
    for _ in range(3):
        writer.signal(signal.SIGSTOP)
        recorder.ask("burst 8000")
        writer.signal(signal.SIGCONT)
        recorder.wait_acked(recorder.latest().sessions["s1"].emitted)
    writer.signal(signal.SIGSTOP)
    recorder.ask("burst 8000")
    recorder.tell("close 20")
    time.sleep(0.2)
    writer.signal(signal.SIGCONT)
    report = recorder.reply("close 20")
    for session in ("s1", "s2"):
        assert check(lab.directory(session), report.sessions[session]).dropped > 5000


# --- the agent dies


def test_c5_a_killed_agent_loses_nothing_of_what_it_had_sent(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=0)
    recorder.wait_acked(1)
    writer.signal(signal.SIGSTOP)
    recorder.ask("burst 500")
    time.sleep(0.2)  # the socket takes it all: 4 MiB are asked for
    report = recorder.kill().sessions["s1"]
    writer.signal(signal.SIGCONT)
    wait_for(lambda: not writer.status().sessions, "the session to be closed")
    result = check(lab.directory(), report, closed=False)
    assert (result.last, _kinds(lab.directory())) == (501, {"end_missing"})


def test_c6_a_killed_agent_with_a_stuck_writer_loses_at_most_its_buffer_and_the_missing_end_is_said(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=0, size=1000)
    recorder.ask("burst 200")
    recorder.wait_acked(201)
    writer.signal(signal.SIGSTOP)
    report = recorder.ask("burst 12000")
    time.sleep(0.2)
    recorder.kill()
    writer.signal(signal.SIGCONT)
    wait_for(lambda: not writer.status().sessions, "the session to be closed")
    result = check(lab.directory(), report.sessions["s1"], closed=False)
    lost = report.sessions["s1"].emitted - result.last
    assert 0 < lost * 1000 <= 16 * MIB
    (note,) = verify(lab.directory()).notes
    assert (note.kind, note.last) == ("end_missing", result.last)


def test_c8_c10_a_writer_killed_with_unread_data_gets_it_again_after_the_restart(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    writer.signal(signal.SIGSTOP)
    recorder.ask("burst 3000")
    time.sleep(0.1)
    writer.kill()
    wait_for(lambda: "writer" in recorder.latest().sessions["s1"].reason, "the status")
    lab.writer()
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


# --- who owns what


def test_c19_a_second_writer_for_the_socket_ends_and_the_first_goes_on(lab: Lab) -> None:
    first = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    for unlinked in (False, True):
        if unlinked:
            lab.socket.unlink()
        second = lab.writer(ready=False)
        assert second.process.wait(START_S) == 1
        assert f"another tracewriter serves {lab.socket}" in second.log
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0
    assert first.stop() == 0


def test_c19_many_writers_started_at_once_leave_exactly_one(lab: Lab) -> None:
    writers = [lab.writer(ready=False) for _ in range(5)]
    wait_for(lambda: sum(writer.gone() for writer in writers) == 4 and can_connect(lab.socket), "one to be left")
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    check(lab.directory(), recorder.settle().sessions["s1"])


def test_c21_c22_what_a_killed_writer_leaves_is_taken_over_at_once(lab: Lab) -> None:
    first = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    first.kill()
    locks = [lab.socket.with_name(lab.socket.name + ".lock"), lab.directory() / "lock"]
    assert lab.socket.exists()
    assert [lock.stat().st_size for lock in locks] == [0, 0]  # no pid that could be reused
    second = lab.writer()
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0
    assert second.stop() == 0
    assert not lab.socket.exists()


@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP"])
def test_c24_without_locks_a_session_is_refused_saying_so_and_the_others_go_on(lab: Lab, error: str) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    strace = lab.inject(writer.pid, f"inject=flock:error={error}", "trace=flock")
    other = lab.recorder(pace=500, sessions=("s2", "s3"))
    other.wait_reason("use another trace directory", session="s2")
    assert not list(lab.directory("s2").glob("*.jsonl"))
    lab.detach(strace)
    recorder.wait_acked(recorder.acked() + 300)
    check(lab.directory(), recorder.settle().sessions["s1"])
    report = other.close(0.5)
    assert (report.sessions["s2"].state, report.raised) == ("degraded", 0)


def test_c24_a_refused_session_does_not_hold_back_another_of_the_same_program(lab: Lab) -> None:
    lab.directory("s2").mkdir(parents=True)
    (lab.directory("s2") / "lock").mkdir()
    lab.writer()
    recorder = lab.recorder(pace=0, sessions=("s2", "s1"))
    recorder.wait_reason("lock", session="s2")
    took = []
    for number in range(1, 11):
        recorder.ask("burst 1")
        took.append(recorder.wait_acked(number + 1, "s1"))
    assert sorted(took)[5] < 0.3, took  # the refused one is tried again every second


def test_c24_a_socket_directory_without_locks_is_named(lab: Lab) -> None:
    wrap = [
        require_tool("strace"),
        "-D",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=flock",
        "-e",
        "inject=flock:error=ENOLCK",
    ]
    writer = lab.writer(wrap=wrap, ready=False)
    assert writer.process.wait(START_S) == 1
    assert "cannot be locked: No locks available" in writer.log


def test_c25_a_second_writer_for_a_session_is_refused_at_once_and_its_program_goes_on(lab: Lab) -> None:
    lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    lab.writer(socket_path=lab.base / "run2" / "w.sock")
    stranger = lab.recorder(pace=500, socket=str(lab.base / "run2" / "w.sock"), resumed=True, first=100_001)
    stranger.wait_reason("locked")
    stranger.wait_emitted(200)
    last = recorder.settle().sessions["s1"]
    check(lab.directory(), last)
    report = stranger.settle_later(last.emitted).sessions["s1"]
    result = check(lab.directory(), report, started_after=last.emitted)
    assert (result.dropped, result.verdict.emitted) == (0, last.emitted + report.emitted)


def test_c25_another_program_on_the_same_writer_waits_until_the_session_is_free(lab: Lab) -> None:
    lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    other = lab.recorder(pace=500, resumed=True, first=100_001)
    other.wait_reason("busy")
    last = recorder.settle().sessions["s1"].emitted
    report = other.settle_later(last).sessions["s1"]
    check(lab.directory(), report, started_after=last)


def test_c26_a_newer_client_is_answered_with_our_version_and_an_older_one_is_cut(lab: Lab) -> None:
    lab.writer()
    with RawClient(lab.socket, hello=False) as newer:
        newer.send(encode(Kind.HELLO, body=b'{"producer":"00000000000000aa","conn":1,"version":9,"news":[1]}'))
        assert decode_body(newer.expect(Kind.WELCOME).body, Welcome).version == 1
    with RawClient(lab.socket, hello=False) as older:
        older.send(encode(Kind.HELLO, body=Hello("1" * 16, 1, version=0)))
        assert older.ended()


def test_c27_a_writer_told_to_stop_writes_what_was_sent_and_ends_in_time(lab: Lab) -> None:
    first = lab.writer()
    recorder = lab.recorder(pace=2000, sessions=("s1", "s2", "s3"))
    recorder.wait_acked(100)
    recorder.ask("burst 2000")
    started = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - started < 10
    for session in ("s1", "s2", "s3"):
        assert not verify(lab.directory(session)).damaged
        assert _kinds(lab.directory(session)) == {"end_missing"}
    lab.writer()
    report = recorder.settle()
    for session in ("s1", "s2", "s3"):
        assert check(lab.directory(session), report.sessions[session]).dropped == 0


@pytest.mark.parametrize("newest_first", [False, True])
def test_c28_old_bytes_of_a_dead_connection_neither_double_nor_stall(lab: Lab, newest_first: bool) -> None:
    writer = lab.writer()
    life = os.urandom(8).hex()
    with RawClient(lab.socket, life=life, conn=1) as old, RawClient(lab.socket, hello=False) as new:
        old.expect(Kind.WELCOME)
        old.send(encode(Kind.OPEN, channel=1, body=Open("s1", WORKSPACE, 0, 10)))
        old.expect(Kind.OPENED)
        writer.signal(signal.SIGSTOP)
        hello = encode(Kind.HELLO, body=Hello(life, 2)) + encode(
            Kind.OPEN, channel=1, body=Open("s1", WORKSPACE, 0, 10)
        )
        if newest_first:
            new.send(hello)
            time.sleep(0.05)
        old.send(events(range(1, 11), "s1"))
        old.send(encode(Kind.OPEN, channel=2, body=Open("s1", WORKSPACE, 0, 10)))
        old.close()
        if not newest_first:
            new.send(hello)
        writer.signal(signal.SIGCONT)
        new.expect(Kind.WELCOME)
        channel, frame = 1, new.frame()
        while frame is not None and frame.kind is Kind.REFUSED:
            answer = decode_body(frame.body, Refused)
            assert answer.code == "busy"
            time.sleep(answer.retry_ms / 1000)
            channel += 1
            new.send(encode(Kind.OPEN, channel=channel, body=Open("s1", WORKSPACE, 0, 10)))
            frame = new.frame()
        assert frame is not None
        assert frame.kind is Kind.OPENED
        new.send(events(range(1, 21), "s1", channel=channel))
        while new.expect(Kind.ACK).first < 20:
            pass
        new.send(encode(Kind.CLOSE, channel=channel))
        new.expect(Kind.CLOSED)
    found = list(read(lab.directory()))
    assert [item.record.seq for item in found if hasattr(item, "record")] == list(range(1, 21))
    assert not verify(lab.directory()).damaged
