"""search: lines of files that match a pattern, with ripgrep's habits, in a process that can be killed.

The scan is Python's `re` in a worker process (search_worker), not ripgrep: two engines would be two regex dialects, so the same
call would answer differently on another machine and a replayed run would diverge. `re` can take exponential time, and holds
the interpreter's lock while it does, so a thread would freeze the daemon and could not be stopped: hence a process, which a
time-out or a cancellation kills. What it found until then is kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from agentd.providers.stream import ToolSpec
from agentd.tools import search_worker
from agentd.tools.base import MAX_RESULT_CHARS, ToolContext, ToolOutput
from agentd.tools.blocking import run_stoppable
from agentd.tools.typed import InputError, TypedTool, quoted
from agentd.tools.workspace import MAX_PATH_BYTES, Workspace, shown

DEFAULT_TIMEOUT_S: Final = 10.0
MAX_MATCHES: Final = 500
MAX_PATTERN_CHARS: Final = 10_000
_NOTE_CHARS: Final = 600
_ANY_ANSWER_BYTES: Final = 4 * 1024 * 1024
# The worker ends itself this long after it should have been killed, should the daemon be gone.
_GRACE_S: Final = 5


class SearchInput(Struct, frozen=True):
    pattern: str
    path: str = "."
    glob: str = ""
    literal: bool = False
    ignore_case: bool = False
    limit: int = 100


class _Match(Struct, frozen=True, tag="match"):
    path: str
    line: int
    text: str


class _End(Struct, frozen=True, tag="end"):
    files: int
    more: bool
    large: int


class _Bad(Struct, frozen=True, tag="bad"):
    message: str


_Answer: TypeAlias = _Match | _End | _Bad
_decoder: Final = msgspec.json.Decoder(_Answer)


class Request(Struct, frozen=True):
    """What the worker is asked. `prefix` is what paths begin with: the searched directory and "/", or the file itself."""

    pattern: str
    prefix: str
    glob: str
    literal: bool
    ignore_case: bool
    limit: int
    seconds: int


class Worker:
    """One worker process, waited for in a thread and killed from anywhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, once it was started."""
        return None if self._process is None else self._process.pid

    def run(self, fd: int, request: Request, timeout_s: float) -> tuple[bytes, bool]:
        """The worker's answers, and whether the time was too short for all of them. The process is gone afterwards."""
        with self._lock:
            if self._killed:
                return b"", True
            self._process = process = self._start(fd)
        with process:
            try:
                return process.communicate(msgspec.json.encode(request), timeout_s)[0][:_ANY_ANSWER_BYTES], False
            except subprocess.TimeoutExpired:
                process.kill()
                return process.communicate()[0][:_ANY_ANSWER_BYTES], True
            except BaseException:
                process.kill()
                raise

    def _start(self, fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(Path(search_worker.__file__)), str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(fd,),
            cwd="/",
            env={},
            start_new_session=True,
        )

    def kill(self) -> bool:
        """End it, or never start it. Always in time: a search changes nothing."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()
        return True


def _search(workspace: Workspace, wanted: SearchInput, worker: Worker, timeout_s: float) -> ToolOutput:
    path = workspace.locate(wanted.path)
    limit = max(1, min(wanted.limit, MAX_MATCHES))
    seconds = int(timeout_s) + _GRACE_S
    if workspace.is_directory(path):
        fd, prefix = workspace.open_directory(path), "" if path == "." else path + "/"
    else:
        file = workspace.open_file(path)
        fd, prefix = file.fileno(), path
    request = Request(wanted.pattern, prefix, wanted.glob, wanted.literal, wanted.ignore_case, limit, seconds)
    try:
        answers, cut_short = worker.run(fd, request, timeout_s)
    finally:
        os.close(fd)
    return _report(wanted, _decode(answers), timeout_s if cut_short else None)


def _decode(answers: bytes) -> list[_Answer]:
    """All complete lines; a killed worker may leave half a line."""
    return [_decoder.decode(line) for line in answers.split(b"\n")[:-1]]


def _report(wanted: SearchInput, answers: list[_Answer], timed_out_s: float | None) -> ToolOutput:
    lines: list[str] = []
    end: _End | None = None
    for answer in answers:
        match answer:
            case _Match(path, line, text):
                lines.append(f"{shown(path, MAX_PATH_BYTES)}:{line}:{text}")
            case _End():
                end = answer
            case _Bad(message):
                hint = "use literal to search for it as it is" if not wanted.literal else "check the glob"
                raise InputError(f"the pattern or glob is not valid: {message} ({hint})")
    if end is None and timed_out_s is None:
        return ToolOutput(_fit(lines, ["the search failed on the way: narrow path or glob"]), is_error=True)
    return ToolOutput(_fit(lines, _notes(wanted, lines, end, timed_out_s)), is_error=end is None and not lines)


def _notes(wanted: SearchInput, lines: list[str], end: _End | None, timed_out_s: float | None) -> list[str]:
    if end is None:
        return [
            f"stopped after {timed_out_s:g} s, what was found until then is shown: narrow path or glob, or simplify the pattern"
        ]
    notes = []
    if not lines:
        notes.append(f"no match for {quoted(wanted.pattern)} in {end.files:,} files")
    if end.more:
        notes.append(f"there are more matches than these {len(lines):,}: narrow the pattern, path or glob")
    if end.large:
        notes.append(f"{end.large:,} files over {search_worker.MAX_FILE_BYTES:,} bytes were not searched")
    return notes


def _fit(lines: list[str], notes: list[str]) -> str:
    room, kept = MAX_RESULT_CHARS - _NOTE_CHARS, 0
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            notes = [*notes, f"{len(lines) - kept:,} more matches are not shown"]
            break
        kept += 1
    return "\n".join([*lines[:kept], *(f"[{note}]" for note in notes)])


async def search(wanted: SearchInput, context: ToolContext, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ToolOutput:
    """Run one search; killed, with what it found so far, after `timeout_s`."""
    if not wanted.pattern:
        raise InputError("pattern is empty")
    if max(len(wanted.pattern), len(wanted.glob)) > MAX_PATTERN_CHARS:
        raise InputError(f"pattern or glob is too long (over {MAX_PATTERN_CHARS:,} characters)")
    worker = Worker()
    return await run_stoppable(lambda: _search(context.workspace, wanted, worker, timeout_s), worker.kill)


SEARCH: Final = TypedTool(
    ToolSpec(
        "search",
        "Find lines in the workspace's files that match a pattern, as path:line:text. Hidden, binary and git-ignored files are "
        "left out.",
        Raw(
            b'{"type":"object","properties":{"pattern":{"type":"string","description":"Regular expression (Python syntax)"},'
            b'"path":{"type":"string","description":"Directory or file, default: the workspace"},'
            b'"glob":{"type":"string","description":"Only such files, e.g. *.py or src/**/*.ts"},'
            b'"literal":{"type":"boolean","description":"Take the pattern as plain text"},'
            b'"ignore_case":{"type":"boolean"},'
            b'"limit":{"type":"integer","description":"Most matches, default 100"}},"required":["pattern"]}'
        ),
    ),
    SearchInput,
    search,
    writes=False,
)
