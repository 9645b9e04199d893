"""The server as its clients see it: who waits for whom, what sessions share, and which versions it speaks."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from tests.faults.clients import RawClient, events
from tests.faults.waiting import wait_for
from tests.tracewriter.harness import read_all
from tests.tracewriter.served import served
from tracewriter.config import Limits
from tracewriter.disk import RealDisk
from tracewriter.journal import Key
from tracewriter.protocol import Hello, Kind, Open, Refused, Welcome, decode_body, encode
from tracewriter.redact import Redactor
from tracewriter.server import Versions

WORKSPACE = "/w"


def _open(channel: int, session: str, secrets: tuple[str, ...] = ()) -> bytes:
    return encode(Kind.OPEN, channel=channel, body=Open(session, WORKSPACE, secrets=secrets))


class _Stuck(RealDisk):
    """The fdatasync of one session's files does not come back until it is let go; the paths it was asked for are noted."""

    def __init__(self, session: str) -> None:
        self._part = f"/{session}/"
        self.entered, self.let_go = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        if self._part in os.readlink(f"/proc/self/fd/{fd}"):
            self.entered.set()
            self.let_go.wait(30)
        os.fdatasync(fd)


def test_an_fdatasync_that_does_not_come_back_holds_up_nobody_elses_open_nor_records(tmp_path: Path) -> None:
    disk = _Stuck("stuck")
    with served(tmp_path, disk=disk, limits=Limits(sync_interval_s=0.05)) as path, RawClient(path) as client:
        try:
            client.send(_open(1, "stuck"))
            client.expect(Kind.OPENED)
            client.send(events(range(1, 3), "stuck"))
            assert client.expect(Kind.ACK).first == 2
            assert disk.entered.wait(10)
            for channel in (2, 3):
                client.send(_open(channel, f"s{channel}"))
                assert client.expect(Kind.OPENED).channel == channel
                client.send(events(range(1, 3), f"s{channel}", channel=channel))
                assert client.expect(Kind.ACK).channel == channel
            assert not disk.let_go.is_set()
        finally:
            disk.let_go.set()


def test_a_session_whose_close_waits_for_a_stuck_fdatasync_is_busy_and_then_goes_on_where_it_ended(
    tmp_path: Path,
) -> None:
    disk = _Stuck("s1")
    with served(tmp_path, disk=disk) as path, RawClient(path) as client:
        try:
            client.send(_open(1, "s1"))
            client.expect(Kind.OPENED)
            client.send(events(range(1, 4), "s1") + encode(Kind.CLOSE, channel=1))
            assert disk.entered.wait(10)
            client.send(_open(2, "s1"))
            assert decode_body(client.expect(Kind.REFUSED).body, Refused).code == "busy"
        finally:
            disk.let_go.set()
        assert client.expect(Kind.CLOSED).first == 3
        client.send(_open(3, "s1"))
        assert client.expect(Kind.OPENED).first == 4
    found, _ = read_all(tmp_path / "traces" / Key("s1", WORKSPACE).workspace_hash / "s1")
    assert [item.end for item in found] == [1, 2, 3]


class _Counting(RealDisk):
    """Counts how often a directory was opened."""

    opened = 0

    def open_dir(self, name: str, dir_fd: int, *, create: bool) -> int:
        self.opened += 1
        return super().open_dir(name, dir_fd, create=create)


def test_an_idle_session_that_records_again_makes_a_segment_and_reads_nothing(tmp_path: Path) -> None:
    disk = _Counting()
    limits = Limits(seal_interval_s=0.02, session_idle_s=0.05)
    directory = tmp_path / "traces" / Key("s1", WORKSPACE).workspace_hash / "s1"
    with served(tmp_path, disk=disk, limits=limits) as path, RawClient(path) as client:
        client.send(_open(1, "s1"))
        client.expect(Kind.OPENED)
        client.send(events(range(1, 3), "s1"))
        client.expect(Kind.ACK)
        opened = disk.opened
        wait_for(lambda: (directory / "digests").exists(), "the idle session to be finished")
        client.send(events(range(3, 5), "s1"))
        assert client.expect(Kind.ACK).first == 4
        assert (directory / "000002.jsonl").exists()
        assert disk.opened == opened


def test_a_trace_root_that_is_deleted_while_it_is_recorded_in_is_made_again_and_recorded_in(tmp_path: Path) -> None:
    root = tmp_path / "traces"
    limits = Limits(seal_interval_s=0.05, retry_first_s=0.05)
    with served(tmp_path, limits=limits) as path, RawClient(path) as client:
        client.send(_open(1, "s1"))
        client.expect(Kind.OPENED)
        client.send(events(range(1, 4), "s1"))
        assert client.expect(Kind.ACK).first == 3
        shutil.rmtree(root)
        acked = 3
        while acked < 6:
            client.send(events(range(4, 7), "s1"))
            frame = client.frame()
            assert frame is not None
            acked = frame.first if frame.kind is Kind.ACK else acked
        client.send(encode(Kind.CLOSE, channel=1) + _open(2, "s2"))
        client.expect(Kind.OPENED)
    directory = root / Key("s1", WORKSPACE).workspace_hash / "s1"
    found, _ = read_all(directory)
    assert [item.end for item in found] == [4, 5, 6]
    assert b'"lost":3' in _first_line(directory)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def _first_line(directory: Path) -> bytes:
    return (directory / "000001.jsonl").read_bytes().partition(b"\n")[0]


def _redactors() -> int:
    return sum(isinstance(thing, Redactor) for thing in gc.get_objects())


def test_sessions_with_the_same_secrets_share_what_finds_them_and_it_goes_with_the_last_of_them(
    tmp_path: Path,
) -> None:
    gc.collect()
    before = _redactors()
    with served(tmp_path) as path:
        with RawClient(path) as client:
            for channel in range(1, 13):
                secrets = ("hunter2hunter2",) if channel % 2 else ()
                client.send(_open(channel, f"s{channel}", secrets))
                client.expect(Kind.OPENED)
            assert _redactors() == before + 2
            body = b'{"seq":1,"ts":"2026-01-01T00:00:00Z","event":"a.b.c","session":"s%d","data":["hunter2hunter2"]}\n'
            for channel in (1, 2):
                client.send(encode(Kind.EVENTS, channel=channel, count=1, first=1, body=body % channel))
                client.expect(Kind.ACK)
            for channel in range(1, 13, 2):
                client.send(encode(Kind.CLOSE, channel=channel))
                client.expect(Kind.CLOSED)
            wait_for(lambda: _redactors() == before + 1, "the redactor that knows the secret to be gone")
        wait_for(lambda: _redactors() == before, "the other one to be gone")
    workspace = tmp_path / "traces" / Key("s1", WORKSPACE).workspace_hash
    stored = [(workspace / name / "000001.jsonl").read_bytes() for name in ("s1", "s2")]
    assert [b"hunter2" in data for data in stored] == [False, True]


@pytest.mark.parametrize(
    ("versions", "offered", "spoken"),
    [
        (Versions(newest=1, oldest=1), 1, 1),
        (Versions(newest=1, oldest=1), 2, 1),  # a newer producer
        (Versions(newest=2, oldest=1), 1, 1),  # an older one
        (Versions(newest=2, oldest=1), 2, 2),
        (Versions(newest=2, oldest=1), 7, 2),
        (Versions(newest=3, oldest=2), 2, 2),
    ],
)
def test_writer_and_producer_speak_the_newest_version_of_both_and_record(
    tmp_path: Path, versions: Versions, offered: int, spoken: int
) -> None:
    with served(tmp_path, versions=versions) as path, RawClient(path, hello=False) as client:
        client.send(encode(Kind.HELLO, body=Hello(client.life, 1, offered)))
        assert decode_body(client.expect(Kind.WELCOME).body, Welcome).version == spoken
        client.send(_open(1, "s1"))
        assert client.expect(Kind.OPENED).first == 1
        client.send(events(range(1, 3), "s1"))
        assert client.expect(Kind.ACK).first == 2


@pytest.mark.parametrize(("versions", "offered"), [(Versions(), 0), (Versions(newest=3, oldest=2), 1)])
def test_a_producer_older_than_the_oldest_version_is_cut(tmp_path: Path, versions: Versions, offered: int) -> None:
    with served(tmp_path, versions=versions) as path, RawClient(path, hello=False) as client:
        client.send(encode(Kind.HELLO, body=Hello(client.life, 1, offered)))
        assert client.ended()


@pytest.mark.parametrize(
    "producer",
    [
        "",
        "0" * 15,
        "0" * 17,
        "A" * 16,
        "0" * 15 + "\n",
        "0" * 16 + "\n",
        "sk-ant-api03-" + "A1b2" * 20,
        "x" * 500_000,
        'a"b\n{}',
        "../x",
    ],
    ids=range(10),
)
def test_what_is_no_producers_id_is_cut_and_reaches_no_file(tmp_path: Path, producer: str) -> None:
    with served(tmp_path) as path, RawClient(path, life=producer, hello=False) as client:
        client.send(encode(Kind.HELLO, body=Hello(producer, 1)) + _open(1, "s1") + events(range(1, 3), "s1"))
        assert client.ended()
        with RawClient(path) as other:
            other.send(_open(1, "s2"))
            assert other.expect(Kind.OPENED).first == 1
    assert not [file for file in tmp_path.rglob("*") if "s1" in file.parts]


@pytest.mark.parametrize(
    "secrets",
    [("x" * 65_537,), ("x" * 900_000,), tuple(f"{at:012}" for at in range(1025)), tuple("x" * 9000 for _ in range(8))],
    ids=("long", "a frame", "many", "long together"),
)
def test_more_secrets_than_can_be_kept_out_refuse_the_session_and_hold_up_nobody(
    tmp_path: Path, secrets: tuple[str, ...]
) -> None:
    with served(tmp_path) as path, RawClient(path) as client:
        client.send(_open(1, "s1", secrets) + _open(2, "s2"))
        refusal = decode_body(client.expect(Kind.REFUSED).body, Refused)
        assert (refusal.code, refusal.retry_ms) == ("limit", -1)
        assert client.expect(Kind.OPENED).channel == 2
    assert not [file for file in tmp_path.rglob("*") if "s1" in file.parts]


@pytest.mark.parametrize("session", ["ghp_" + "a1b2" * 9, "sk-ant-api03-" + "a1b2" * 6, "x_glpat-" + "a1b2" * 5])
def test_a_session_named_like_a_secret_is_refused_for_good_and_names_no_directory(tmp_path: Path, session: str) -> None:
    with served(tmp_path) as path, RawClient(path) as client:
        client.send(_open(1, session) + _open(2, "sk-learn-session-1") + _open(3, "risk-based-task-management"))
        refusal = decode_body(client.expect(Kind.REFUSED).body, Refused)
        assert (refusal.code, refusal.retry_ms) == ("bad_id", -1)
        assert [client.expect(Kind.OPENED).channel, client.expect(Kind.OPENED).channel] == [2, 3]
    assert not [file for file in tmp_path.rglob("*") if session in str(file)]
