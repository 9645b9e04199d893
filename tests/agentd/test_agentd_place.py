"""What stands where the daemon's files should be, and what is taken away from under it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentd import paths
from agentd.config import load_config
from agentd.errors import ConfigError, StartError
from agentd.listener import InstanceLock, listen
from agentd.writer import spawner
from tests.agentd.test_agentd_process import ask, command, connect, daemon, environment

# Each puts something at a path that is no regular file.
PLANTS: dict[str, Callable[[Path], None]] = {
    "fifo": lambda path: os.mkfifo(path),
    "directory": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link into nothing": lambda path: path.symlink_to("/nonexistent/there"),
    "socket": lambda path: _socket(path),
}


def _socket(path: Path) -> None:
    lock = InstanceLock(str(path.parent / "lock"))
    listen(str(path), lock).sock.close()
    lock.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "config.toml").write_text("[recorder]\nautostart = false\n")
    return tmp_path / "home"


@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "link into nothing"])
def test_a_configuration_that_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, plant: str) -> None:
    PLANTS[plant](tmp_path / "config.toml")
    with pytest.raises(ConfigError) as refused:
        load_config(str(tmp_path / "config.toml"))
    assert str(tmp_path / "config.toml") in str(refused.value)
    assert refused.value.hint


def test_a_link_to_a_configuration_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text('mode = "swe"\n')
    (tmp_path / "config.toml").symlink_to("mine")
    assert load_config(str(tmp_path / "config.toml")).mode == "swe"


@pytest.mark.parametrize("plant", PLANTS)
def test_a_recorder_whose_log_is_no_file_is_started_without_one(
    tmp_path: Path, plant: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    log = run / "tracewriter.log"
    PLANTS[plant](log)
    before = os.lstat(log)
    spawn = spawner(str(run / "s"), str(tmp_path / "traces"), str(tmp_path / "none.toml"), str(log), os.environ)
    pid = spawn()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert "the recorder has no log" in caplog.text
    assert str(log) in caplog.text
    after = os.lstat(log)
    assert (before.st_ino, stat.S_IFMT(before.st_mode)) == (after.st_ino, stat.S_IFMT(after.st_mode))


def test_a_second_daemon_never_serves_the_same_state_even_from_another_runtime_directory(home: Path) -> None:
    (home / "agentd").mkdir()
    (home / "config.toml").rename(home / "agentd" / "config.toml")
    shared = {"AGENTD_HOME": "", "XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    for name in ("one", "two"):
        (home / name).mkdir(mode=0o700)
    with daemon(environment(home) | shared | {"XDG_RUNTIME_DIR": str(home / "one")}):
        done = command(env=environment(home) | shared | {"XDG_RUNTIME_DIR": str(home / "two")})
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert str(home / "agentd" / "sessions.lock") in done.stderr
        assert not (home / "two" / "agentd" / "agentd.sock").exists()


@pytest.mark.parametrize("what", ["run", "run/agentd.sock", "run/agentd.lock"])
def test_a_daemon_whose_place_is_removed_takes_it_anew_and_keeps_its_clients(home: Path, what: str) -> None:
    env = environment(home)
    with daemon(env) as process, connect(env) as old:
        assert ask(old, "initialize", protocol=1)["result"]
        for _ in range(2):  # it may happen again
            before = (home / "run" / "agentd.sock").stat().st_ino
            if what == "run":
                shutil.rmtree(home / "run")
            else:
                (home / what).unlink()
            deadline = time.monotonic() + 20
            while not _anew(home, before) and time.monotonic() < deadline:
                time.sleep(0.02)
            with connect(env) as new:
                assert ask(new, "initialize", protocol=1)["result"]["pid"] == process.pid
            assert stat.S_IMODE((home / "run").stat().st_mode) == 0o700
            assert stat.S_IMODE((home / "run" / "agentd.sock").stat().st_mode) == 0o600
            assert command(env=env).returncode == 3
        assert ask(old, "daemon/status")["result"]["pid"] == process.pid
        assert ask(old, "daemon/stop")["result"]
        assert process.wait(20) == 0
        assert not (home / "run" / "agentd.sock").exists()


def _anew(home: Path, inode: int) -> bool:
    try:
        return (home / "run" / "agentd.sock").stat().st_ino != inode and (home / "run" / "agentd.lock").exists()
    except FileNotFoundError:
        return False


def test_a_daemon_whose_state_is_removed_ends_and_leaves_the_place_to_the_next(home: Path) -> None:
    env = environment(home)
    with daemon(env) as process:
        shutil.rmtree(home)
        home.mkdir(mode=0o700)
        with daemon(env) as next_one:
            assert process.wait(20) == 0
            with connect(env) as sock:
                assert ask(sock, "initialize", protocol=1)["result"]["pid"] == next_one.pid


def test_the_locks_of_runtime_and_state_differ_even_in_one_directory(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "HOME": "/"}
    assert paths.runtime_dir(env) == paths.state_dir(env)
    assert paths.state_lock(env) != f"{paths.runtime_dir(env)}/agentd.lock"
    lock = InstanceLock(paths.state_lock(env), "state")
    with pytest.raises(StartError):
        InstanceLock(paths.state_lock(env), "state")
    held = lock.lost
    os.unlink(lock.path)
    assert (held, lock.lost) == (False, True)
    lock.close()


def test_a_home_that_is_not_utf8_is_refused_in_one_line_at_once(tmp_path: Path) -> None:
    env = dict(os.environb) | {b"AGENTD_HOME": os.fsencode(tmp_path) + b"/h\xe9"}
    done = subprocess.run([sys.executable, "-m", "agentd"], capture_output=True, env=env, cwd="/", timeout=30)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"not UTF-8" in done.stderr
    assert b"AGENTD_HOME" in done.stderr
    assert os.listdir(tmp_path) == []
