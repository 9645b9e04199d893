"""The recorder's process, seen from the daemon: find it, start it when nobody listens, start it again when it died.

It is no child in spirit: it has a session of its own, outlives the daemon, drains and ends by itself (`--idle-exit`). Without
one the daemon works on and says "recording: degraded" with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Final

from agentd.paths import address, private_dir

IDLE_EXIT_S: Final = 60
POLL_S: Final = 0.5
BACKOFF_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# A writer that lived so long had started well: the next failure is a new one.
SETTLED_S: Final = 60.0
MAX_LOG_BYTES: Final = 1024 * 1024
# Its environment: what programs need, nothing that may be a key.
_PASSED: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "AGENTD_HOME",
    "XDG_RUNTIME_DIR",
    "VIRTUAL_ENV",
)
_PASSED_PREFIXES: Final = ("LC_", "PYTHON", "COVERAGE_", "XDG_")

Spawn = Callable[[], int]
_log: Final = logging.getLogger("agentd")


class WriterSupervisor:
    """Watches over one recorder. `run` is its task; `reason` says why none can be had, "" while one listens."""

    def __init__(self, socket_path: str, spawn: Spawn | None, *, poll_s: float = POLL_S) -> None:
        """`spawn` starts a recorder and gives its pid; None means that it is not ours to start (autostart off)."""
        self._socket_path = socket_path
        self._spawn = spawn
        self._poll_s = poll_s
        self._pid = 0
        self.starts = 0
        self.reason = "the recorder has not been looked for yet"
        self._known = asyncio.Event()
        self._kicked = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WriterSupervisor pid={self._pid} starts={self.starts} reason={self.reason!r}>"

    async def run(self, connected: Callable[[], bool], try_now: Callable[[], None]) -> None:
        """Until cancelled: when `connected` says no and nobody listens, start one, ever more patiently.

        `try_now` is called when one listens that is not connected to yet.
        """
        failures = 0
        started_s = -SETTLED_S
        now_s = asyncio.get_running_loop().time
        while True:
            self._reap()
            young = now_s() - started_s < SETTLED_S
            if connected() or listens(self._socket_path):
                failures = failures if young else 0
                if connected():
                    self._settle("")
                else:
                    try_now()
                await self._pause(self._poll_s)
            elif self._pid and young:
                await self._pause(self._poll_s / 25)  # it was started and has not bound its socket yet
            elif self._spawn is None:
                self._settle(f"no recorder listens on {self._socket_path} and autostart is off")
                await self._pause(self._poll_s)
            else:
                if failures:
                    await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
                failures += 1
                started_s = now_s()
                self._start(self._spawn)

    def kick(self) -> None:
        """Look now: somebody found no recorder."""
        self._kicked.set()

    async def settled(self, timeout_s: float) -> None:
        """Wait until it is known whether a recorder can be had, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._known.wait()

    async def _pause(self, wait_s: float) -> None:
        self._kicked.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._kicked.wait()

    def _settle(self, reason: str) -> None:
        self.reason = reason
        self._known.set()

    def _start(self, spawn: Spawn) -> None:
        try:
            self._pid = spawn()
            self.starts += 1
        except OSError as exc:
            self._settle(f"the recorder cannot be started: {exc.strerror or exc}")

    def _reap(self) -> None:
        if not self._pid:
            return
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self._pid, 0
        if pid:
            self._pid = 0
            self._settle(f"the recorder ended ({_ending(os.waitstatus_to_exitcode(status))}); its log says why")


def _ending(code: int) -> str:
    return f"exit {code}" if code >= 0 else f"signal {-code}"


def listens(path: str) -> bool:
    """Whether somebody listens there. Never blocks: a full backlog is somebody, too. Out of descriptors, nobody is found."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            with address(path) as name:
                sock.connect(name)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def spawner(socket_path: str, root: str, config_path: str, log_path: str, env: Mapping[str, str]) -> Spawn:
    """Starts `python -m tracewriter` in a session of its own; its stderr goes to a log that does not grow for ever."""
    # -P: the daemon may run in a directory that holds a module of the same name.
    arguments = [sys.executable, "-P", "-m", "tracewriter", "--socket", socket_path, "--root", root]
    arguments += ["--config", config_path, "--idle-exit", str(IDLE_EXIT_S)]
    passed = {name: value for name, value in env.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}

    def spawn() -> int:
        private_dir(os.path.dirname(log_path))
        log = _open_log(log_path)
        try:
            # posix_spawn and not subprocess: nothing here may kill it or wait for it when the daemon ends.
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ]
            return os.posix_spawn(sys.executable, arguments, passed, file_actions=actions, setsid=True)
        finally:
            os.close(log)

    return spawn


def _open_log(path: str) -> int:
    """The log, or nowhere when something else is in its place: a FIFO would block, a link or a device is not ours to write."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            if found.st_size > MAX_LOG_BYTES:
                os.ftruncate(fd, 0)
            return fd
        os.close(fd)
        why = "it is no regular file"
    except OSError as exc:
        why = (exc.strerror or "unknown error").lower()
    _log.warning("the recorder has no log: %s: %s", path, why)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
