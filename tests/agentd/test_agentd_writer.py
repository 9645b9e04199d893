from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from agentd.writer import MAX_LOG_BYTES, WriterSupervisor, listens, spawner

pytestmark = pytest.mark.anyio


def dies_with(code: int) -> int:
    return os.posix_spawn(sys.executable, [sys.executable, "-c", f"raise SystemExit({code})"], os.environ)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.01)


async def test_nobody_is_started_when_one_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "w.sock"))
        sock.listen(1)
        supervisor = WriterSupervisor(str(tmp_path / "w.sock"), lambda: dies_with(0), poll_s=0.01)
        tried = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(supervisor.run(lambda: False, tried.set))
            async with asyncio.timeout(10):
                await tried.wait()
            task.cancel()
        assert supervisor.starts == 0


async def test_without_autostart_the_reason_is_said(tmp_path: Path) -> None:
    supervisor = WriterSupervisor(str(tmp_path / "w.sock"), None, poll_s=0.01)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.run(lambda: False, lambda: None))
        await supervisor.settled(10)
        task.cancel()
    assert "autostart is off" in supervisor.reason


async def test_one_that_dies_is_reaped_started_again_and_its_end_is_told(tmp_path: Path) -> None:
    supervisor = WriterSupervisor(str(tmp_path / "w.sock"), lambda: dies_with(3), poll_s=0.01)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.run(lambda: False, lambda: None))
        await until(lambda: supervisor.starts >= 2)
        task.cancel()
    assert "exit 3" in supervisor.reason
    await until(no_child_is_left)


def no_child_is_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


async def test_one_that_cannot_be_started_is_no_failure_of_the_daemon(tmp_path: Path) -> None:
    def spawn() -> int:
        raise PermissionError(13, "Permission denied")

    supervisor = WriterSupervisor(str(tmp_path / "w.sock"), spawn, poll_s=0.01)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.run(lambda: False, lambda: None))
        await supervisor.settled(10)
        task.cancel()
    assert supervisor.reason == "the recorder cannot be started: Permission denied"


async def test_the_real_recorder_is_started_detached_and_without_keys(tmp_path: Path) -> None:
    path, log = str(tmp_path / "run" / "w.sock"), tmp_path / "run" / "w.log"
    (tmp_path / "run").mkdir(mode=0o700)
    log.write_text("x" * (MAX_LOG_BYTES + 1))
    log.chmod(0o600)
    config = str(tmp_path / "config.toml")
    env = dict(os.environ) | {"OPENAI_API_KEY": "sk-secret"}
    spawn = spawner(path, str(tmp_path / "traces"), config, str(log), env)
    pid = spawn()
    try:
        await until(lambda: listens(path))
        assert os.getsid(pid) == pid
        assert b"sk-secret" not in environment_of(pid)
        assert log.stat().st_size < 10_000
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    finally:
        os.kill(pid, signal.SIGTERM)
        assert ended_with(pid) == 0


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def ended_with(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
