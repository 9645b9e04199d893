"""agentctl trace record: events of other tools, as lines of JSON on standard input, into a session of their own."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agentctl import format as fmt
from agentctl.errors import DONE, INCOMPLETE, INTERRUPTED, NO_DAEMON, UsageProblem
from agentctl.foreign_lines import Bad, Said, Splitter, parse
from agentctl.interrupts import Interrupts
from agentctl.undecodable import require_text
from tracewriter.foreign import RESERVED, TOOL_CHARS, event_name, is_tool_name
from tracewriter.ids import is_session_id
from tracewriter.thread_trace import CAPTURES
from tracewriter.tool import ToolTrace, recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.world import World
    from tracewriter.standing import TraceStatus

TOOL: Final = "script"
_READ: Final = 64 * 1024
_NAMED: Final = 100  # bad lines that are named; the others are counted
# As much is handed over before the rest is read: what is read faster than it is written would be dropped.
_AHEAD_BYTES: Final = 1024 * 1024
_AHEAD_LINES: Final = 8192
_LOOK_S: Final = 0.25  # how often a wait looks for Ctrl-C
_PATIENCE_S: Final = 5.0  # with a recorder that takes nothing, and with another recording of the same session
_NO_WRITER_S: Final = 1.0  # one may be starting


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when all lines are recorded, 1 when some are not, 3 when none is because no recorder took them, 130 after Ctrl-C."""
    tool = parsed.value("tool") or TOOL
    if not is_tool_name(tool):
        wanted = f"a-z, 0-9, - and _, {TOOL_CHARS} at most, and none of {', '.join(sorted(RESERVED))}"
        raise UsageProblem(f"trace record: --tool is {wanted}; not {tool[:100]!r}", "see agentctl trace record --help")
    session = parsed.value("session")
    if session is not None and not is_session_id(session):
        raise UsageProblem(
            f"trace record: a session's id is a-z, 0-9, - and _, 64 at most; not {session[:100]!r}",
            "leave --session out for a new one",
        )
    workspace = os.path.join(world.cwd, parsed.value("workspace") or "")
    require_text("--workspace", workspace)
    capture = parsed.value("capture") or CAPTURES[1]
    with _source(parsed, world) as source, Interrupts() as interrupts:
        trace = recording(tool, workspace=workspace, session=session, capture=capture, env=world.env)
        intake = Intake(trace, world.out, interrupts, typed=parsed.has("typed"))
        if not parsed.has("json"):
            world.out.line(trace.session)
        with _terminations(interrupts) as terminations:
            intake.read(source, terminations)
        status = _closed(trace, interrupts)
    return _told(intake, status, parsed, world)


@contextmanager
def _source(parsed: Parsed, world: World) -> Iterator[int]:
    if not parsed.operands or parsed.operands[0] == "-":
        yield world.stdin.fileno()
        return
    fd = os.open(os.path.join(world.cwd, parsed.operands[0]), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _terminations(interrupts: Interrupts) -> Iterator[list[int]]:
    """SIGTERM ends the reading as the end of the input does; `interrupts.wake` tells of it too."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)


class Intake:
    """Takes lines, one after the other: each is on its way before the next is looked at."""

    def __init__(self, trace: ToolTrace, out: Output, interrupts: Interrupts, *, typed: bool) -> None:
        self._trace, self._out, self._interrupts, self._typed = trace, out, interrupts, typed
        self._number = 0
        self._ahead_bytes = self._ahead_lines = 0
        self._patient = True
        self.session, self.tool = trace.session, trace.tool
        self.recorded = 0
        self.bad: list[tuple[int, str]] = []
        self.bad_count = 0

    def read(self, source: int, terminations: list[int]) -> None:
        """Until the end of the input, Ctrl-C or SIGTERM; a line that is incomplete then is told as one."""
        splitter = Splitter()
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(self._interrupts.wake, select.POLLIN)
        while not self._interrupts.count and not terminations:
            if source not in dict(poll.poll()):
                self._interrupts.taken()
                continue
            try:
                data = os.read(source, _READ)
            except BlockingIOError:
                continue
            if not data:
                break
            for line in splitter.feed(data):
                self.take(line)
                if self._ahead_lines >= _AHEAD_LINES:
                    self._wait_for_writer()
            self._ahead_bytes += len(data)
            if self._ahead_bytes >= _AHEAD_BYTES:
                self._wait_for_writer()
        rest = splitter.end()
        if rest is not None:
            stopped = self._interrupts.count or terminations
            self.take(Bad("not complete when the reading was stopped") if stopped else rest)

    def take(self, line: bytes | Bad) -> None:
        """One line."""
        self._number += 1
        said = line if isinstance(line, Bad) else parse(line, typed=self._typed)
        match said:
            case None:
                return
            case Bad(reason):
                self.bad_count += 1
                if len(self.bad) < _NAMED:
                    self.bad.append((self._number, reason))
                    self._out.note(f"line {self._number}: {reason}", "red")
            case Said():
                self._record(said)

    @property
    def interrupted(self) -> bool:
        """Ctrl-C ended it."""
        return self._interrupts.count > 0

    def _record(self, said: Said) -> None:
        if said.typed is not None:
            self._trace.record(said.typed, ts=said.ts, run=said.run, op=said.op, parent=said.parent)
        else:
            name = event_name(self.tool, said.name)[0] if said.name_in_data else said.name
            self._trace.note(name, said.data, ts=said.ts, run=said.run, op=said.op, parent=said.parent)
        self.recorded += 1
        self._ahead_lines += 1

    def _wait_for_writer(self) -> None:
        """Until it has what was read so far. One that takes nothing is waited for once: the tool that is read from waits too."""
        self._ahead_bytes = self._ahead_lines = 0
        until = time.monotonic() + (_PATIENCE_S if self._patient else 0.0)
        while not self._interrupts.count:
            status = self._trace.flush(_LOOK_S)
            if status.state == "off":
                return
            if status.state == "ok" and _missing(status) == 0:
                self._patient = True
                return
            if status.state != "ok" and time.monotonic() >= until:
                self._patient = False
                return


def _missing(status: TraceStatus) -> int:
    return status.emitted - status.recorded - status.dropped


def _closed(trace: ToolTrace, interrupts: Interrupts) -> TraceStatus:
    """All that was taken is handed over, within bounds, then the recording is closed."""
    begun = time.monotonic()
    while True:
        status = trace.flush(_LOOK_S)
        waited_s = time.monotonic() - begun
        bound_s = _NO_WRITER_S if status.reason.startswith("no writer") else _PATIENCE_S
        if status.state == "off" or waited_s >= bound_s or interrupts.count > 1:
            return trace.close(_LOOK_S)
        if status.state == "ok" and _missing(status) == 0:
            return trace.close(_PATIENCE_S)


def _told(intake: Intake, status: TraceStatus, parsed: Parsed, world: World) -> int:
    off = status.state == "off" and not status.emitted
    unrecorded = 0 if off else min(intake.recorded, status.emitted - status.recorded)
    recorded = 0 if off else intake.recorded - unrecorded
    out = world.out
    if parsed.has("json"):
        out.json(
            {
                "session": intake.session,
                "tool": intake.tool,
                "recorded": recorded,
                "not_recorded": unrecorded,
                "bad": intake.bad_count,
                "bad_lines": [{"line": number, "reason": reason} for number, reason in intake.bad],
                "state": status.state,
                "reason": status.reason,
            }
        )
    if off:
        out.note(f"nothing is recorded: {status.reason}", "yellow")
        return DONE
    if intake.bad_count > len(intake.bad):
        out.note(f"and {intake.bad_count - len(intake.bad):,} more such lines")
    if intake.bad_count or unrecorded:
        not_recorded = f", {unrecorded:,} not ({status.reason or 'dropped'})" if unrecorded else ""
        out.note(f"{fmt.count(recorded, 'line')} recorded{not_recorded}, {intake.bad_count:,} bad")
    if intake.interrupted:
        return INTERRUPTED
    if unrecorded and not status.recorded and status.state != "off":
        out.note("no recorder took them: start one with agentd, or tracewriter --socket PATH --root DIR")
        return NO_DAEMON
    return INCOMPLETE if intake.bad_count or unrecorded else DONE
