"""Real writers and real producers: started and ended by pid, bounded in time.

What tests need besides comes through here too: the checks (`judge`), clients that speak frames by hand (`clients`), waiting
and what the machine must have (`waiting`).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec
import pytest

from tests.faults.clients import RawClient, ask_status, can_connect, connect, events, line
from tests.faults.judge import Tally, check, tally
from tests.faults.produce import Plan, Report
from tests.faults.waiting import START_S, require_file, require_root, require_tool, wait_for
from tests.faults.writer_with import Setup
from tracewriter.journal import Key
from tracewriter.protocol import Status

__all__ = [
    "START_S",
    "WORKSPACE",
    "Lab",
    "RawClient",
    "Recorder",
    "Tally",
    "Writer",
    "ask_status",
    "can_connect",
    "check",
    "connect",
    "events",
    "filled",
    "line",
    "require_file",
    "require_root",
    "require_tool",
    "tally",
    "wait_for",
]

_HERE: Final = Path(__file__).parent
WORKSPACE: Final = "/fault/workspace"


class Writer:
    """A writer process. `wrap` goes before its command (strace -D …, prlimit …, setpriv …): it must exec, not fork."""

    def __init__(self, process: subprocess.Popen[bytes], socket_path: Path, log: Path) -> None:
        self.process, self._socket, self._log = process, socket_path, log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What it said on stderr."""
        return self._log.read_text()

    def ready(self) -> Writer:
        """Wait until it takes connections."""

        def listening() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"the writer ended with {self.process.returncode}: {self.log}")
            return can_connect(self._socket)

        wait_for(listening, "the writer to listen")
        return self

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.process.wait(START_S)

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(START_S)

    def gone(self) -> bool:
        return self.process.poll() is not None

    def status(self) -> Status:
        return ask_status(self._socket)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kib(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Recorder:
    """A producer process (produce.py): records numbered events, tells over a pipe what it knows, obeys lines on stdin."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""
        self._replies: list[Report] = []
        self.seen: Report | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def _pump(self, timeout_s: float) -> bool:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            return False
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for text in lines:
            report = msgspec.json.decode(text, type=Report)
            self.seen = report
            if report.reply:
                self._replies.append(report)
        return bool(data)

    def latest(self) -> Report:
        """The newest report that has come; waits for the first."""
        while self._pump(0):
            pass
        if self.seen is None:
            wait_for(lambda: self._pump(0.2) and self.seen is not None, "a report")
        assert self.seen is not None
        return self.seen

    def drained(self) -> Report:
        """The last report of a producer that has been killed: all of the pipe is read."""
        while self._pump(1.0):
            pass
        assert self.seen is not None
        return self.seen

    def tell(self, command: str) -> None:
        """Give a command without waiting for its reply."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, command: str, timeout_s: float = START_S) -> Report:
        """Give a command and wait for its reply."""
        self.tell(command)
        return self.reply(command, timeout_s)

    def reply(self, command: str, timeout_s: float = START_S) -> Report:
        """The reply to a command given by `tell`."""
        found: list[Report] = []

        def answered() -> bool:
            self._pump(0.05)
            while self._replies and not found:
                reply = self._replies.pop(0)
                if reply.reply == command:
                    found.append(reply)
            return bool(found)

        wait_for(answered, f"the reply to {command}", timeout_s)
        return found[0]

    def acked(self, session: str = "s1") -> int:
        return self.latest().sessions[session].acked

    def wait_acked(self, seq: int, session: str = "s1", timeout_s: float = START_S) -> float:
        return wait_for(lambda: self.acked(session) >= seq, f"seq {seq} to be acknowledged", timeout_s)

    def wait_emitted(self, count: int, session: str = "s1") -> float:
        return wait_for(lambda: self.latest().sessions[session].emitted >= count, f"{count} events")

    def wait_reason(self, *reasons: str, session: str = "s1", timeout_s: float = START_S) -> None:
        """Wait until the session's status names one of these."""
        wait_for(
            lambda: any(r in self.latest().sessions[session].reason for r in reasons),
            f"the status {reasons}",
            timeout_s,
        )

    def settle(self) -> Report:
        """Record no more, wait until all is acknowledged, close in order."""
        return self.settle_some(*self.latest().sessions)

    def settle_some(self, *sessions: str) -> Report:
        """The same when only these sessions can be recorded."""
        still = self.ask("pace 0").sessions
        for session in sessions:
            self.wait_acked(still[session].emitted, session)
        report = self.close()
        assert report.raised == 0
        return report

    def settle_later(self, started_after: int) -> Report:
        """The same for a session whose numbers go on after another life's."""
        still = self.ask("pace 0").sessions["s1"]
        self.wait_acked(started_after + still.emitted)
        return self.settle_some()

    def kill(self) -> Report:
        """SIGKILL; the last it told."""
        self.process.kill()
        self.process.wait(START_S)
        return self.drained()

    def close(self, timeout_s: float = START_S) -> Report:
        """Close every session in order and end; its last report."""
        report = self.ask(f"close {timeout_s}", timeout_s + START_S)
        self.end()
        return report

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(START_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class Lab:
    """One test's place and processes."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.socket = base / "run" / "w.sock"
        self.root = base / "traces"
        self._writers: list[Writer] = []
        self._recorders: list[Recorder] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._mounts: list[Path] = []
        self._logs: list[IO[bytes]] = []

    def directory(self, session: str = "s1") -> Path:
        """Where a session of WORKSPACE is kept."""
        return self.root / Key(session, WORKSPACE).workspace_hash / session

    def data_files(self, session: str = "s1") -> list[Path]:
        """The names of the first segments and their seals, made or not: what only the writer's own I/O touches."""
        return [self.directory(session) / f"{n:06d}.{kind}" for n in range(1, 10) for kind in ("jsonl", "seal")]

    def segments(self, session: str = "s1") -> list[Path]:
        return sorted(self.directory(session).glob("*.jsonl"))

    def writer(
        self,
        *,
        limits: Mapping[str, float | str] | None = None,
        plant: str = "",
        wrap: Sequence[str] = (),
        env: dict[str, str] | None = None,
        socket_path: Path | None = None,
        ready: bool = True,
    ) -> Writer:
        """Start a writer: the real command, or with other Limits or a planted bug the same server from writer_with.py."""
        path = socket_path or self.socket
        if limits or plant:
            setup = msgspec.json.encode(Setup(str(path), str(self.root), limits or {}, plant))
            command = [sys.executable, str(_HERE / "writer_with.py"), setup.decode()]
        else:
            command = [sys.executable, "-m", "tracewriter", "--socket", str(path), "--root", str(self.root)]
        log = self.base / f"writer-{len(self._writers)}.log"
        stream = log.open("wb")
        self._logs.append(stream)
        process = subprocess.Popen([*wrap, *command], stderr=stream, env={**os.environ, **(env or {})})
        writer = Writer(process, path, log)
        self._writers.append(writer)
        return writer.ready() if ready else writer

    def recorder(self, *, env: dict[str, str] | None = None, **plan: object) -> Recorder:
        """Start a producer; the keywords are those of Plan."""
        full = msgspec.convert({"socket": str(self.socket), "workspace": WORKSPACE, **plan}, Plan)
        command = [sys.executable, str(_HERE / "produce.py"), msgspec.json.encode(full).decode()]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        recorder = Recorder(process)
        self._recorders.append(recorder)
        return recorder

    def inject(self, pid: int, *expressions: str, paths: Iterable[Path] = ()) -> subprocess.Popen[bytes]:
        """Attach strace to a running process and make its system calls fail; from the return on. End it with `detach`."""
        options = [part for expression in expressions for part in ("-e", expression)]
        only = [part for path in paths for part in ("-P", str(path))]
        log = self.base / f"strace-{len(self._others)}.log"
        stream = log.open("wb")
        self._logs.append(stream)
        process = subprocess.Popen(
            [require_tool("strace"), "-f", "-o", "/dev/null", *options, *only, "-p", str(pid)], stderr=stream
        )
        self._others.append(process)
        wait_for(lambda: process.poll() is not None or b"attached" in log.read_bytes(), "strace to attach")
        assert b"attached" in log.read_bytes(), log.read_text()  # it may have ended already, with what it killed
        return process

    def detach(self, strace: subprocess.Popen[bytes]) -> None:
        strace.terminate()
        strace.wait(START_S)

    def mount(self, *arguments: str, at: Path) -> None:
        """Mount something (needs the fixture own_mounts); unmounted at the end."""
        at.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", *arguments, str(at)], check=True, timeout=START_S)
        self._mounts.append(at)

    def ext4(self, at: Path, mib: int) -> None:
        """Mount an ext4 image of so many MiB, with nothing reserved for root."""
        image = self.base / "ext4.img"
        with image.open("wb") as file:
            file.truncate(mib * 1024 * 1024)
        subprocess.run([require_tool("mkfs.ext4"), "-q", "-m", "0", str(image)], check=True, timeout=START_S)
        self.mount("-o", "loop", str(image), at=at)

    def end(self) -> None:
        for recorder in self._recorders:
            recorder.end()
        for process in [*self._others, *(writer.process for writer in self._writers)]:
            if process.poll() is None:
                process.kill()
                process.wait(START_S)
        for stream in self._logs:
            stream.close()
        for at in reversed(self._mounts):
            subprocess.run(["umount", "-l", str(at)], check=False, timeout=START_S, stderr=subprocess.DEVNULL)


@contextmanager
def filled(path: Path, leave: int = 0) -> Iterator[None]:
    """Fill a small file system with a file (all but `leave` bytes), and free it again."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
        if leave:
            file.truncate(max(0, file.tell() - leave))
    try:
        yield
    finally:
        ballast.unlink()
