"""A whole agentd of its own for each test: a private AGENTD_HOME, a workspace, clients as processes, everything ended by pid.

What a `Home` runs has an environment of four variables, so that no key or proxy of the machine's own gets in.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from agentctl.connection import Connection, connect, greet
from agentd import paths
from agentd.paths import address
from tracewriter.findings import Found, Verdict
from tracewriter.reader import read, verify

# Bounds of what should take about a second, on a machine that is busy.
COMMAND_S: Final = 90.0
WAIT_S: Final = 30.0
Record = dict[str, Any]


class Done(Struct, frozen=True):
    """A command that ended."""

    code: int
    out: str
    err: str

    def ok(self) -> Done:
        """Itself; an assertion that it ended with 0."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return self

    def json(self) -> Any:
        """Its output as one document."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """Its output as one document a line."""
        return [json.loads(line) for line in self.out.split("\n") if line]


def wait_for(done: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Poll until done() is true. Fails at the time-out."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for: {what}"
        time.sleep(0.02)


def ended(pid: int, timeout_s: float = WAIT_S) -> bool:
    """Wait until the process is gone or a zombie; whether it is."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], timeout_s)[0])
    finally:
        os.close(fd)


def processes() -> dict[int, str]:
    """All processes by pid, with their command lines, words joined by spaces. Zombies have none and are left out."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path("/proc", entry, "cmdline").read_bytes()
                if words:
                    found[int(entry)] = words.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return found


def environ(pid: int) -> bytes | None:
    """A process's environment at its start; None when the kernel does not let us read it, or it is gone."""
    try:
        return Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return None


class Home:
    """A user's AGENTD_HOME at `root`, with a workspace. Use as a context manager."""

    def __init__(self, root: str = "h") -> None:
        self.place = Path(tempfile.mkdtemp(prefix="agentd-e2e-"))
        self.root = self.place / root
        self.workspace = self.place / "w"
        self.workspace.mkdir()
        self.env: dict[str, str] = {
            "HOME": str(self.place),
            "AGENTD_HOME": str(self.root),
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
        } | {name: value for name, value in os.environ.items() if name.startswith(("COVERAGE_", "PYTHONPATH"))}
        self._clients: list[subprocess.Popen[str]] = []
        self._writers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._end()
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def _end(self) -> None:
        for client in self._clients:
            if client.poll() is None:
                client.kill()
            client.communicate()
        for pids in (self.daemons(), self.writers()):  # the daemon first: it would start another writer
            for number in (signal.SIGCONT, signal.SIGTERM):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            for pid in pids:
                if not ended(pid, 15.0):
                    os.kill(pid, signal.SIGKILL)
                    ended(pid)
        for writer in self._writers:
            writer.wait(WAIT_S)

    # --- clients

    def start(
        self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """`agentctl WORDS`, running; ended with the home."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentctl", *words],
            cwd=cwd or self.workspace,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._clients.append(process)
        return process

    def ctl(self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Done:
        """`agentctl WORDS` to its end, in the workspace."""
        return finish(self.start(*words, cwd=cwd, env=env))

    def ask(self, url: str, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Done:
        """`agentctl ask` of the model at this URL."""
        return self.ctl("ask", "--base-url", url, "-m", "scripted", *words, cwd=cwd, env=env)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """A client of the running daemon, in this process."""
        connection = connect(paths.agentd_socket(self.env))
        assert connection is not None, "no daemon listens"
        try:
            greet(connection)
            yield connection
        finally:
            connection.close()

    # --- what runs

    def daemon(self) -> int:
        """The pid of the process that listens on the daemon's socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with sock, address(paths.agentd_socket(self.env)) as name:
            sock.connect(name)
            pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return pid

    def daemons(self) -> list[int]:
        """All daemons of this home, listening or not (where /proc shows environments; else only the one that listens)."""
        mine = f"AGENTD_HOME={os.path.abspath(self.root)}\0".encode()
        pids = {pid for pid, words in processes().items() if words.endswith("-m agentd serve") and mine in _env(pid)}
        with contextlib.suppress(OSError):
            pids.add(self.daemon())
        return sorted(pids)

    def writers(self) -> list[int]:
        """All recorders of this home."""
        socket_path = paths.writer_socket(self.env)
        return [pid for pid, words in processes().items() if "-m tracewriter" in words and socket_path in words]

    def start_writer(self) -> subprocess.Popen[bytes]:
        """A recorder that is not the daemon's own."""
        command = ["--socket", paths.writer_socket(self.env), "--root", paths.traces_dir(self.env)]
        writer = subprocess.Popen([sys.executable, "-P", "-m", "tracewriter", *command], env=self.env)
        self._writers.append(writer)
        return writer

    def kill_daemon(self) -> None:
        """SIGKILL the daemon, and wait for its end."""
        pid = self.daemon()
        os.kill(pid, signal.SIGKILL)
        assert ended(pid)

    def kill_writer(self) -> int:
        """SIGKILL the recorder, and wait for its end."""
        (pid,) = self.writers()
        os.kill(pid, signal.SIGKILL)
        assert ended(pid)
        return pid

    # --- what is on disk

    def traces(self) -> list[Path]:
        """The directories of all recorded sessions, oldest first."""
        return sorted((self.root / "traces").glob("*/????????????????????????????????"), key=lambda path: path.name)

    def trace(self) -> Path:
        """The only one."""
        (path,) = self.traces()
        return path

    def logs(self) -> str:
        """What daemon and recorder said."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.root.glob("run/*.log*")))

    def sound(self, path: Path) -> Verdict:
        """The verdict over a trace; an assertion that nothing is damaged or missing in it, and that the client agrees."""
        verdict = verify(path)
        assert not verdict.damaged, verdict.notes
        assert verdict.dropped == 0, verdict.notes
        self.ctl("trace", "verify", path.name).ok()
        return verdict


def _env(pid: int) -> bytes:
    return (environ(pid) or b"") + b"\0"


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for a client's end, within a bound."""
    try:
        out, err = process.communicate(timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args!r} did not end\n{out}\n{err}") from None
    return Done(process.returncode, out, err)


def records(path: Path) -> list[Record]:
    """All records of a trace, in order."""
    return [json.loads(item.line) for item in read(path) if isinstance(item, Found)]


def of(kind: str, found: list[Record]) -> list[Record]:
    """The data of the records of a kind."""
    return [record["data"] for record in found if record["event"] == kind]


def side_by_side(jobs: list[Callable[[], Any]], workers: int = 3) -> list[Any]:
    """Run jobs that mostly wait for processes, a few at a time; their results in order."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda job: job(), jobs))
