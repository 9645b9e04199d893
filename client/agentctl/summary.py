"""What the runs of a session really did, from its records alone. Pure: an iterable of findings in, values out.

Only facts count: a file was changed when file.change.applied says so, not when a call that might have changed it was made;
a call failed when its result says so, however long its error is; a run ended when run.execute.finished is there.
Memory grows with the number of tool calls, not with what they carried.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct, structs

from agentctl.format import first_line
from agentctl.trace_events import plain, typed
from agentctl.wire import main_argument
from tracewriter.events import (
    ApprovalRequestDecided,
    ApprovalRequestRequested,
    ConfigChangeApplied,
    ConfigChangeFailed,
    ConfigChangeRequested,
    ContextCompactFailed,
    ContextCompactFinished,
    ContextCompactStarted,
    ContextTrimApplied,
    Event,
    FileChangeApplied,
    FileCheckFailed,
    InputPrepareFinished,
    InputPrepareStarted,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    ModelRetryObserved,
    ModelStreamDelta,
    PolicyPresetObserved,
    PromptQueueObserved,
    RawRecord,
    RunExecuteFinished,
    RunExecuteStarted,
    SessionLifecycleObserved,
    SessionRecordFinished,
    SessionRecordStarted,
    SessionSaveFailed,
    SessionSaveFinished,
    SessionSaveStarted,
    SkillSelectObserved,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceClockObserved,
    TraceDegradedObserved,
    TraceDropObserved,
    TraceLimitObserved,
    TraceRecoveredObserved,
    TraceScrubApplied,
    UnknownEvent,
    Usage,
    WorkspaceChangeObserved,
    name_of_class,
)
from tracewriter.findings import Found, Note

# The record has the whole of them.
MAX_PROMPT_CHARS = 100_000
MAX_ARGUMENT_CHARS = 500
MAX_ERRORS = 200
MAX_ERROR_CHARS = 2_000
MAX_OTHERS = 200  # kinds that are counted by name
MORE_OTHERS = "others"

_TOOL_FINISHED = name_of_class(ToolCallFinished)
_TOLD = frozenset(map(name_of_class, (RunExecuteStarted, RunExecuteFinished, ToolCallStarted, ModelRequestFailed)))

END_MISSING = "end missing"
RUNNING = "running"


class ToolUse(Struct, frozen=True):
    """One tool call. ok None: no result is recorded. error: its first line."""

    name: str
    argument: str
    ok: bool | None
    duration_ms: float | None
    error: str


class RunSummary(Struct, frozen=True):
    """One run. prompt None: its beginning is not in the records. cost_usd None: unknown. usage None: nothing is known.

    outcome is what run.execute.finished said, "running" for the open run of an active recording, else "end missing"; then
    usage, cost and duration are what is known so far.
    """

    run: str
    started_at: datetime
    prompt: str | None
    mode: str
    provider: str
    model: str
    requests: int
    tools: tuple[ToolUse, ...]
    files: tuple[str, ...]
    errors: tuple[str, ...]
    outcome: str
    usage: Usage | None
    cost_usd: float | None
    duration_ms: float | None


class Summary(Struct, frozen=True):
    """A session's runs in order, and every note of the reader: what is missing here may be missing from the runs.

    others: how many events there are of each kind that is not known here, as other tools record them.
    """

    workspace: str
    runs: tuple[RunSummary, ...]
    notes: tuple[Note, ...]
    damaged: bool
    others: dict[str, int] = {}


def needs_bodies(record: RawRecord) -> bool:
    """Whether a summary tells something that may be in the record's payloads, beyond their heads."""
    if record.event == _TOOL_FINISHED:
        return b'"is_error":true' in bytes(record.data)
    return record.event in _TOLD


def summarise(items: Iterable[Found | Note]) -> Summary:
    """The summary of a session's findings, read once and in order."""
    runs: dict[str, _Run] = {}
    notes: list[Note] = []
    others: dict[str, int] = {}
    gone: frozenset[str] = frozenset()
    workspace = ""
    for item in items:
        if isinstance(item, Note):
            notes.append(item)
            continue
        event = typed(item.record)
        if isinstance(event, SessionRecordStarted):
            workspace = event.workspace
            gone = frozenset(runs)  # what an earlier recording left open goes on in none
        if isinstance(event, UnknownEvent):
            kind = item.record.event if item.record.event in others or len(others) < MAX_OTHERS else MORE_OTHERS
            others[kind] = others.get(kind, 0) + 1
        if item.record.run is not None:
            run = runs.get(item.record.run)
            if run is None:
                if isinstance(event, UnknownEvent):
                    continue  # no run of the agent's begins with it
                run = runs[item.record.run] = _Run(item.record.run, item.record.ts)
            run.take(item.record, event)
    active = any(note.kind == "active" for note in notes)
    summaries = tuple(
        run.summary(RUNNING if active and name not in gone else END_MISSING) for name, run in runs.items()
    )
    return Summary(workspace, summaries, tuple(notes), any(note.damage for note in notes), others)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…[cut: {len(text):,} characters]"


class _Call:
    def __init__(self, name: str, argument: str) -> None:
        self.name = name
        self.argument = argument
        self.ok: bool | None = None
        self.duration_ms: float | None = None
        self.error = ""


class _Run:
    """Takes the records of one run."""

    def __init__(self, run: str, first_at: datetime) -> None:
        self._run = run
        self._first_at = first_at
        self._last_at = first_at
        self._start: RunExecuteStarted | None = None
        self._end: RunExecuteFinished | None = None
        self._calls: list[_Call] = []
        self._open: dict[str, _Call] = {}
        self._files: dict[str, None] = {}
        self._errors: dict[str, None] = {}
        self._requests = 0
        self._usage: Usage | None = None
        self._cost: float | None = 0.0

    def take(self, record: RawRecord, event: Event | UnknownEvent) -> None:
        self._last_at = max(self._last_at, record.ts)
        # Ids of calls come from models, late, empty or twice; ops are ours.
        call = record.op or ""
        match event:
            case RunExecuteStarted():
                self._start = structs.replace(event, text=_cut(event.text, MAX_PROMPT_CHARS))
            case RunExecuteFinished():
                self._finish(event)
            case ModelRequestStarted():
                self._requests += 1
            case ModelRequestFinished(usage=usage, cost_usd=cost):
                self._used(usage, cost)
            case ModelRequestFailed(error=error, usage=usage, cost_usd=cost):
                self._used(usage, cost)
                self._error(error.message)
            case ToolCallStarted():
                self._call_started(call or event.id, event)
            case ToolCallFinished():
                self._call_finished(call or event.id, event)
            case FileChangeApplied(path=path):
                self._files[path] = None
            case PromptQueueObserved() | ModelRetryObserved() | ContextTrimApplied():
                pass  # on the way, not what came of it
            case InputPrepareStarted() | InputPrepareFinished() | SkillSelectObserved() | PolicyPresetObserved():
                pass
            case ContextCompactStarted() | ContextCompactFinished() | ContextCompactFailed():
                pass
            case ApprovalRequestRequested() | ApprovalRequestDecided() | FileCheckFailed() | WorkspaceChangeObserved():
                pass  # the call's result says what came of it
            case ConfigChangeRequested() | ConfigChangeApplied() | ConfigChangeFailed():
                pass
            case ModelStreamDelta() | ToolOutputDelta():
                pass  # the finished request and call have it all
            case SessionRecordStarted() | SessionRecordFinished() | SessionLifecycleObserved():
                pass
            case SessionSaveStarted() | SessionSaveFinished() | SessionSaveFailed():
                pass
            case (
                TraceDropObserved()
                | TraceLimitObserved()
                | TraceDegradedObserved()
                | TraceRecoveredObserved()
                | TraceClockObserved()
                | TraceScrubApplied()
            ):
                pass  # the reader notes what is missing
            case UnknownEvent():
                pass  # a kind from another version

    def _call_started(self, key: str, event: ToolCallStarted) -> None:
        argument = main_argument(plain(event.input))[:MAX_ARGUMENT_CHARS]
        call = _Call(event.name, argument)
        self._calls.append(call)
        self._open[key] = call

    def _call_finished(self, key: str, event: ToolCallFinished) -> None:
        call = self._open.pop(key, None)
        if call is None:  # its beginning is not in the records
            call = _Call(event.name, "")
            self._calls.append(call)
        call.ok = not event.is_error
        call.duration_ms = event.duration_ms
        if event.is_error:
            call.error = first_line(event.output)
            self._error(f"{event.name}: {call.error}")

    def _used(self, usage: Usage | None, cost: float | None) -> None:
        if usage is not None:
            self._usage = usage if self._usage is None else self._usage + usage
        # One request of unknown cost makes the sum unknown, not smaller.
        self._cost = None if cost is None or self._cost is None else self._cost + cost

    def _error(self, text: str) -> None:
        if len(self._errors) < MAX_ERRORS:
            self._errors[_cut(text, MAX_ERROR_CHARS)] = None

    def _finish(self, event: RunExecuteFinished) -> None:
        self._end = structs.replace(event, tools=(), files=(), errors=())
        for path in event.files:
            self._files[path] = None
        for error in event.errors:
            self._error(error)

    def summary(self, unfinished: str) -> RunSummary:
        start, end = self._start, self._end
        so_far_ms = (self._last_at - self._first_at).total_seconds() * 1000
        return RunSummary(
            run=self._run,
            started_at=self._first_at,
            prompt=start.text if start else None,
            mode=start.mode if start else "",
            provider=start.provider if start else "",
            model=start.model if start else "",
            requests=self._requests,
            tools=tuple(ToolUse(c.name, c.argument, c.ok, c.duration_ms, c.error) for c in self._calls),
            files=tuple(self._files),
            errors=tuple(self._errors),
            outcome=end.outcome if end else unfinished,
            usage=end.usage if end else self._usage,
            cost_usd=end.cost_usd if end else self._cost if self._requests else None,
            duration_ms=end.duration_ms if end else so_far_ms,
        )
