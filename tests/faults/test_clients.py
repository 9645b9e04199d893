"""Group C of the faults, the crowd: broken, many, silent, unread and foreign clients, and limits of the writer's process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import (
    START_S,
    WORKSPACE,
    Lab,
    RawClient,
    check,
    events,
    require_root,
    require_tool,
    tally,
    wait_for,
)
from tracewriter.config import KIB, MIB
from tracewriter.protocol import HEADER, Hello, Kind, Open, encode
from tracewriter.reader import verify


def _kinds(directory: Path) -> set[str]:
    return {note.kind for note in verify(directory).notes}


@pytest.mark.parametrize(
    "garbage",
    [
        encode(Kind.HELLO, body=Hello("a" * 16, 1))[:-5],
        HEADER.pack(1000, 6, 0, 0, 1, 10, 1) + b'{"seq":1,"half',
        HEADER.pack(0xFFFFFFFF, 6, 0, 0, 1, 1, 1),
        HEADER.pack(0, 99, 0, 0, 0, 0, 0),
        HEADER.pack(0, 11, 7, 0, 0, 0, 0),
        HEADER.pack(0, 6, 0, 0, 1, 0, 1),
        encode(Kind.FLUSH, first=1),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0" * 4096,
        os.urandom(1).hex().encode() * 5000,
    ],
    ids=range(10),
)
def test_c11_half_frames_and_garbage_touch_nobody_else(lab: Lab, garbage: bytes) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(20)
    for hello in (False, True):
        with RawClient(lab.socket, hello=hello) as client:
            if hello:
                client.send(encode(Kind.OPEN, channel=1, body=Open("stranger", WORKSPACE, last=1)))
                client.expect(Kind.OPENED)
                client.send(events(range(1, 4), "stranger"))
                client.expect(Kind.ACK)
            try:
                client.send(garbage)
            except OSError:
                pass
    recorder.wait_acked(recorder.acked() + 100)
    check(lab.directory(), recorder.settle().sessions["s1"])
    wait_for(lambda: not writer.status().sessions, "the stranger's session to be closed")
    result = tally(lab.directory("stranger"))
    assert (result.records, result.damaged, _kinds(lab.directory("stranger"))) == (3, 0, {"end_missing"})


def test_c13_1000_sessions_on_4_connections_stay_within_4096_descriptors(lab: Lab, own_mounts: None) -> None:
    lab.mount("-t", "tmpfs", "-o", "size=200m", "tmpfs", at=lab.root)  # closing syncs each file: 20 s on a disk
    writer = lab.writer(wrap=[require_tool("prlimit"), "--nofile=4096"])
    names = [[f"a{part}-{number}" for number in range(250)] for part in range(4)]
    recorders = [lab.recorder(sessions=part, count=3, pace=5, report_s=0.2) for part in names]
    for part, recorder in zip(names, recorders, strict=True):
        for session in part:
            recorder.wait_acked(4, session, timeout_s=60)
    assert writer.open_files() <= 4096
    assert len(writer.status().sessions) == 1000
    for part, recorder in zip(names, recorders, strict=True):
        report = recorder.close(60)
        for session in part:
            assert check(lab.directory(session), report.sessions[session]).records == 5


def test_c13_segments_whose_descriptors_are_given_back_are_synced_and_closed_like_the_others(lab: Lab) -> None:
    limits = {"open_segments": 2, "sync_interval_s": 0.1, "seal_interval_s": 0.02}
    writer = lab.writer(limits=limits, plant="slow_sync")
    sessions = [f"s{number}" for number in range(12)]
    recorder = lab.recorder(sessions=sessions, pace=200)
    recorder.wait_acked(300, "s11")
    assert writer.open_files() < 60
    report = recorder.settle()
    for session in sessions:
        assert check(lab.directory(session), report.sessions[session]).dropped == 0
    assert "Traceback" not in writer.log


def test_c13_beyond_the_cap_a_connection_is_refused_with_the_reason_until_there_is_room(lab: Lab) -> None:
    lab.writer(limits={"connections": 4})
    clients = [RawClient(lab.socket) for _ in range(4)]
    for client in clients:
        client.expect(Kind.WELCOME)
    recorder = lab.recorder(pace=300)
    recorder.wait_reason("4 producers are connected already")
    for client in clients:
        client.close()
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_c13_beyond_the_cap_of_sessions_one_is_refused_with_the_reason(lab: Lab) -> None:
    lab.writer(limits={"sessions": 2})
    recorder = lab.recorder(pace=300, sessions=("s1", "s2", "s3"))
    recorder.wait_reason("2 sessions are being recorded already", "too many sessions wait", session="s3")
    recorder.wait_acked(200, "s1")
    report = recorder.close(0.5)
    check(lab.directory("s1"), report.sessions["s1"])
    check(lab.directory("s2"), report.sessions["s2"])


@pytest.mark.parametrize(
    ("limits", "asks"), [({}, 30_000), ({"unread_timeout_s": 0.5, "unread_bytes": 64 * MIB}, 3000)]
)
def test_c15_a_client_that_never_reads_is_cut_and_memory_stays_flat(
    lab: Lab, limits: dict[str, float], asks: int
) -> None:
    writer = lab.writer(limits={"retry_first_s": 0.25, **limits})
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(100)
    before = writer.rss_kib()
    with RawClient(lab.socket) as client:
        try:
            for _ in range(asks // 100):
                client.send(encode(Kind.STATUS, body=b"{}") * 100)
        except OSError:
            pass
        wait_for(lambda: "read" in writer.log, "the connection to be cut")
    assert writer.rss_kib() - before < 8 * KIB
    recorder.wait_acked(recorder.acked() + 200)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_c15_half_a_hello_and_silence_are_cut_after_a_time(lab: Lab) -> None:
    writer = lab.writer(limits={"hello_timeout_s": 0.3, "half_frame_timeout_s": 0.3})
    with RawClient(lab.socket, hello=False) as silent, RawClient(lab.socket) as half:
        half.send(HEADER.pack(1000, 6, 0, 0, 1, 10, 1))
        assert silent.ended()
        assert half.ended()
    assert "no hello" in writer.log
    assert "half a frame" in writer.log


def test_c16_without_descriptors_open_sessions_go_on_and_new_ones_are_refused_with_the_reason(lab: Lab) -> None:
    writer = lab.writer()
    first = lab.recorder(pace=500, sessions=("s1",))
    first.wait_acked(50)
    number = writer.open_files() + 1
    subprocess.run(
        [require_tool("prlimit"), f"--nofile={number}:1024", "--pid", str(writer.pid)], check=True, timeout=START_S
    )
    second = lab.recorder(pace=100, sessions=("s2",))
    second.wait_reason("EMFILE", session="s2")
    third = lab.recorder(pace=100, sessions=("s3",))
    before, now = writer.cpu_s(), first.acked()
    first.wait_acked(now + 500)
    time.sleep(0.5)
    assert writer.cpu_s() - before < 0.75, "the writer spins"
    subprocess.run(["prlimit", "--nofile=1024:", "--pid", str(writer.pid)], check=True, timeout=START_S)
    for session, recorder in (("s1", first), ("s2", second), ("s3", third)):
        assert check(lab.directory(session), recorder.settle().sessions[session]).dropped == 0


@pytest.fixture
def open_lab() -> Iterator[Lab]:
    """A lab in a place that other users can pass through; pytest's own closes itself to them at every start."""
    base = Path(tempfile.mkdtemp(prefix="faults-"))
    base.chmod(0o755)
    lab = Lab(base)
    try:
        yield lab
    finally:
        lab.end()
        shutil.rmtree(base)


def test_c18_without_threads_recording_works_all_the_same(open_lab: Lab) -> None:
    lab = open_lab
    require_root()
    for path in (lab.socket.parent, lab.root):
        path.mkdir()
        os.chown(path, 65534, 65534)
    writer = lab.writer(plant="no_threads")  # becomes another user, with a process limit of 1
    recorder = lab.recorder(pace=1000, uid=65534)
    recorder.wait_acked(500)
    assert len(os.listdir(f"/proc/{writer.pid}/task")) == 1
    recorder.ask("flush 2")
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped == 0
    assert "no thread" in writer.log
    assert writer.stop() == 0


def test_a_client_of_another_user_is_refused(open_lab: Lab) -> None:
    lab = open_lab
    require_root()
    lab.writer()
    lab.socket.parent.chmod(0o755)
    lab.socket.chmod(0o666)
    stranger = lab.recorder(pace=100, uid=65534)
    stranger.wait_reason("belongs to another user")
    program = (  # a client that does not care whose writer it is
        "import os, sys; from pathlib import Path; from tests.faults.harness import RawClient\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "with RawClient(Path(sys.argv[1])) as client: sys.exit(client.frame() is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(lab.socket)], timeout=START_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "BrokenPipe" in done.stderr, done.stderr
    assert not list(lab.root.iterdir())
