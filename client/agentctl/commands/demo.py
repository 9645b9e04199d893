"""agentctl demo: a scripted model, served over HTTP on a Unix socket, fixes a small bug with the real tools.

Everything but the model is what `ask` uses: the same daemon, provider path, tools and record. The workspace is temporary, the
record is not, so that it can be read afterwards.
"""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentctl import format as fmt
from agentctl.commands import ask, trace_summary, trace_verify
from agentctl.commands.demo_local import LocalAct
from agentctl.errors import DONE, INCOMPLETE, ClientError
from agentctl.starting import daemon_env
from agentctl.summary import summarise
from agentctl.undecodable import require_text
from agentd.paths import address
from tracewriter.reader import read, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.world import World

MODEL: Final = "demo/scripted"
PROMPT: Final = (
    "median() in stats.py gives a wrong answer for lists of even length. "
    "Find the bug, fix it, and tell me what you changed."
)
STATS: Final = '''"""Small statistics."""


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle]
'''
TEST_STATS: Final = """from stats import mean, median

assert mean([1, 2, 3]) == 2
assert median([3, 1, 2]) == 2, f"median([3, 1, 2]) is {median([3, 1, 2])}, not 2"
assert median([4, 1, 3, 2]) == 2.5, f"median([4, 1, 3, 2]) is {median([4, 1, 3, 2])}, not 2.5"
print("all tests pass")
"""
READY_S: Final = 20.0
_TEST_S: Final = 30.0


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 only when the test passes after the run and the record verifies."""
    with _ended_in_order():
        place = tempfile.mkdtemp(prefix="agentd-demo-")  # 0700
        try:
            require_text("TMPDIR", place, "the demo needs a directory with a plain name")
            return _Demo(Path(place), world).run()
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A closed terminal or a kill unwinds too, so that the model's process and the workspace do not stay behind."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Demo:
    def __init__(self, place: Path, world: World) -> None:
        self._workspace = place / "workspace"
        self._uds = place / "model.sock"
        self._world = world
        self._out: Output = world.out

    def run(self) -> int:
        out = self._out
        self._workspace.mkdir()
        (self._workspace / "stats.py").write_text(STATS, encoding="utf-8")
        (self._workspace / "test_stats.py").write_text(TEST_STATS, encoding="utf-8")
        out.line(
            "agentctl demo: no key, no network. The model is scripted: it always gives the answers that fix this bug."
        )
        out.line("All else is real: the daemon, the HTTP requests, the tools, the files, the record.")
        self._title("The test before")
        if self._test():
            out.line("the test passes already: this demo is broken")
            return INCOMPLETE
        self._title(f"agentctl ask -b -m {MODEL} “{PROMPT}”")
        answer = self._ask()
        self._title("The test after")
        passes = self._test()
        self._title("What changed")
        self._diff()
        verified = self._record(answer)
        LocalAct(self._workspace, self._world).run()
        self._next(answer)
        done = passes and verified and answer.exit_code == DONE
        if not done:
            out.line("The demo did NOT end as it should.", "red")
        return DONE if done else INCOMPLETE

    def _title(self, text: str) -> None:
        self._out.line()
        self._out.line(f"== {text}", "bold")

    def _ask(self) -> ask.Answer:
        request = ask.Request(PROMPT, mode="build", model=MODEL, uds=str(self._uds))
        with _Model(self._uds, self._world):
            return ask.ask(request, self._world._replace(cwd=str(self._workspace)))

    def _test(self) -> bool:
        env = {name: value for name, value in daemon_env(self._world.env).items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [sys.executable, "-B", "test_stats.py"],
            cwd=self._workspace,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TEST_S,
            check=False,
        )
        said = (done.stdout + done.stderr).strip().split("\n")[-1]
        self._out.line(
            f"{self._out.mark(done.returncode == 0)} test_stats.py: {said}", "green" if done.returncode == 0 else "red"
        )
        return done.returncode == 0

    def _diff(self) -> None:
        after = (self._workspace / "stats.py").read_text(encoding="utf-8", errors="replace")
        lines = difflib.unified_diff(
            STATS.splitlines(), after.splitlines(), "stats.py before", "stats.py after", lineterm=""
        )
        for line in lines:
            style = {"+": "green", "-": "red"}.get(line[:1], "")
            self._out.lines(line, style)

    def _record(self, answer: ask.Answer) -> bool:
        if answer.recording.state == "off":
            self._title("The record")
            why = f": {answer.recording.reason}" if answer.recording.reason else ""
            self._out.line(f"recording is off{why}: there is nothing to show or to verify")
            return False
        path = Path(answer.session.trace)
        session = fmt.short_id(answer.session.session)
        try:
            self._title(f"agentctl trace summary {session}")
            trace_summary.show(path, summarise(read(path)), self._out)
            self._title(f"agentctl trace verify {session}")
            verdict = verify(path)
            trace_verify.show(path, verdict, self._world)
        except OSError as problem:
            self._out.line(f"the record cannot be read: {problem.strerror}: {path}", "red")
            return False
        self._out.line(f"record: {path}")
        return verdict.records > 0 and not verdict.damaged

    def _next(self, answer: ask.Answer) -> None:
        self._title("Next, in a project of yours")
        us = command_as_typed(self._world)
        for line in (
            f'with a key:       export OPENAI_API_KEY=…; {us} ask -b "fix the failing test"',
            f'with Ollama:      {us} ask -b -m ollama/MODEL "fix the failing test"   (a model from `ollama list`)',
            f"this record:      {us} trace show {fmt.short_id(answer.session.session)}",
            f"the daemon:       {us} status; {us} stop",
        ):
            self._out.line(line)


def command_as_typed(world: World) -> str:
    """The words that start this program again from any directory: its name when a shell finds it, else as it was started."""
    if shutil.which("agentctl", path=world.env.get("PATH", os.defpath)):
        return "agentctl"
    script = os.path.abspath(os.path.join(world.cwd or "/", world.started_as))
    if os.path.basename(script) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m agentctl"
    return shlex.quote(script)


class _Model:
    """A context manager: the scripted model as a process of ours, answering on its socket inside the `with`."""

    def __init__(self, uds: Path, world: World) -> None:
        self._uds = uds
        self._world = world

    def __enter__(self) -> None:
        # A file, not a pipe: nobody reads a pipe while the run goes on, and a full one would stop the model.
        self._log = self._uds.with_suffix(".log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentd", "demo-model", "--uds", str(self._uds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            cwd=self._uds.parent,
            env=daemon_env(self._world.env),
            start_new_session=True,  # Ctrl-C is for the run; this process ends with the demo
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while not _answers(str(self._uds)):
            if self._process.poll() is not None:
                raise ClientError(f"the scripted model did not start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ClientError(f"the scripted model did not answer in {READY_S:.0f} s")
            time.sleep(0.02)

    def _last_words(self) -> str:
        self._log.seek(0)
        said = self._log.read(65_536).decode("utf-8", "replace")
        return said.strip().split("\n")[-1] or "it said nothing"


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, address(path) as name:
        try:
            probe.connect(name)
        except OSError:
            return False
    return True
