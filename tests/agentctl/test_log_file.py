"""Where the log of a started daemon should be may lie anything: opening it neither waits, nor follows, nor fails the start."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentctl.log_file import MAX_LOG_BYTES, last_line, open_log, where_it_says_more
from agentctl.starting import log_file, start_agentd

Env = dict[str, str]


def link(path: Path) -> None:
    path.with_name("victim").write_text("mine", encoding="utf-8")
    path.symlink_to("victim")


def dangling(path: Path) -> None:
    path.symlink_to("victim")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


PLANTED: dict[str, Callable[[Path], None]] = {
    "FIFO": lambda path: os.mkfifo(path),
    "symbolic link": link,
    "symbolic link ": dangling,
    "directory": lambda path: path.mkdir(),
    "socket": listener,
}


@pytest.fixture
def log(env: Env) -> Path:
    path = Path(log_file(env))
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("kind", PLANTED)
def test_a_daemon_starts_without_a_log_and_one_note_says_why(env: Env, log: Path, kind: str) -> None:
    PLANTED[kind](log)
    notes: list[str] = []
    child = start_agentd(env, "/bin/false", notes.append)
    while child.exit_code() is None:
        time.sleep(0.001)
    assert child.exit_code() == 1
    assert child.last_words() == ""
    assert notes == [f"agentd starts without a log: {log} is a {kind.strip()}"]
    assert f"{log} is a {kind.strip()}, so there is no log" in where_it_says_more(str(log))
    victim = log.with_name("victim")
    assert victim.exists() == (kind == "symbolic link")
    assert not victim.exists() or victim.read_text(encoding="utf-8") == "mine"


def test_a_fifo_that_is_read_is_no_log_either(log: Path) -> None:
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    fd, why = open_log(str(log))
    assert why == f"{log} is a FIFO"
    assert os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    os.close(fd)
    os.close(reader)


def test_a_log_that_cannot_be_moved_away_stays_bounded(log: Path) -> None:
    log.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    log.with_name("agentd.log.1").mkdir()
    fd, why = open_log(str(log))
    assert (why, os.fstat(fd).st_size, stat.S_IMODE(os.fstat(fd).st_mode)) == ("", 0, 0o600)
    os.close(fd)


def test_the_last_line_is_of_this_start(log: Path) -> None:
    log.write_text("earlier\n", encoding="utf-8")
    start = log.stat().st_size
    assert last_line(str(log), start) == ""
    with log.open("a", encoding="utf-8") as more:
        more.write("y" * 10_000 + "\nwhy\n\n")
    assert last_line(str(log), start) == "why"
    assert where_it_says_more(str(log)) == f"its log: {log}"
