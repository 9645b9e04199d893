"""Records and notes as people read them. Pure: a finding in, lines out, each without a line break. Output makes them safe.

Every kind of event has its words here; mypy's exhaustive match finds the one that was forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from agentctl import format as fmt
from agentctl.safe_text import safe_line
from agentctl.trace_events import plain, typed
from agentctl.wire import main_argument
from tracewriter.events import (
    ConfigChangeApplied,
    ContextTrimApplied,
    Event,
    FileChangeApplied,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    ModelRetryObserved,
    ModelStreamDelta,
    PromptQueueObserved,
    RunExecuteFinished,
    RunExecuteStarted,
    SessionLifecycleObserved,
    SessionRecordFinished,
    SessionRecordStarted,
    SessionSaveFailed,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceClockObserved,
    TraceDegradedObserved,
    TraceDropObserved,
    TraceLimitObserved,
    TraceRecoveredObserved,
    UnknownEvent,
    Usage,
)

if TYPE_CHECKING:
    from tracewriter.findings import Found, Note

# A record's words fit a wide terminal; --json has the whole.
_LINE_CHARS: Final = 160
_MAX_DIFF_LINES: Final = 60
_INDENT: Final = " " * 9


def record_lines(found: Found) -> list[str]:
    """One line for a record (seq, local time, event, key facts), and the lines of the diff under a changed file."""
    record = found.record
    event = typed(record)
    at = fmt.local(record.ts).strftime("%H:%M:%S.%f")[:-3]
    doubt = f"  [{found.state}]" if found.state in ("unverified", "unfinished") else ""
    said = fmt.first_line(safe_line(facts(event)), _LINE_CHARS)
    head = f"{record.seq:>6}  {at}  {safe_line(record.event):<26}  {said}{doubt}"
    return [head.rstrip(), *_body(event)]


def note_line(note: Note) -> str:
    """A note in its place among the records."""
    kind = note.kind.replace("_", " ")
    said = note.message if note.message.startswith(f"{kind}:") else f"{kind}: {note.message}"
    return f"{'!!!' if note.damage else '---':>6}  {said}"


def facts(event: Event | UnknownEvent) -> str:
    """What an event says, in one line (a name in it may hold line breaks of its own)."""
    match event:
        case SessionRecordStarted() | SessionRecordFinished() | SessionLifecycleObserved():
            return _session_facts(event)
        case ConfigChangeApplied():
            return f"{event.setting} = {event.value}"
        case SessionSaveFailed():
            return event.error.message
        case PromptQueueObserved() | RunExecuteStarted() | RunExecuteFinished():
            return _run_facts(event)
        case (
            ModelRequestStarted()
            | ModelRequestFinished()
            | ModelRequestFailed()
            | ModelRetryObserved()
            | ModelStreamDelta()
        ):
            return _model_facts(event)
        case ToolCallStarted() | ToolCallFinished() | ToolOutputDelta() | FileChangeApplied() | ContextTrimApplied():
            return _tool_facts(event)
        case (
            TraceDropObserved()
            | TraceLimitObserved()
            | TraceDegradedObserved()
            | TraceRecoveredObserved()
            | TraceClockObserved()
        ):
            return _trace_facts(event)
        case UnknownEvent(data):
            return bytes(data)[:400].decode("utf-8", "replace")


def _session_facts(event: SessionRecordStarted | SessionRecordFinished | SessionLifecycleObserved) -> str:
    match event:
        case SessionRecordStarted():
            return f"{event.workspace}, {event.mode} mode, capture {event.capture}, agentd {event.agentd}"
        case SessionRecordFinished():
            return f"{fmt.count(event.emitted, 'event')} in all, {_used(event.usage)}, {fmt.cost(event.cost_usd)}"
        case SessionLifecycleObserved():
            return event.change if event.origin is UNSET else f"{event.change} from {event.origin}"


def _run_facts(event: PromptQueueObserved | RunExecuteStarted | RunExecuteFinished) -> str:
    match event:
        case PromptQueueObserved():
            return f"{event.change} {event.prompt}" + (f" {_quoted(event.text)}" if event.text is not UNSET else "")
        case RunExecuteStarted():
            return f"{event.provider}/{event.model}, {event.mode} mode: {_quoted(event.text)}"
        case RunExecuteFinished():
            changed = f", changed {', '.join(event.files)}" if event.files else ""
            errors = f", {fmt.count(len(event.errors), 'error')}" if event.errors else ""
            spent = f"{_used(event.usage)}, {fmt.cost(event.cost_usd)}, {fmt.duration(event.duration_ms)}"
            return f"{event.outcome}: {fmt.count(len(event.tools), 'tool call')}{changed}{errors}, {spent}"


def _model_facts(
    event: ModelRequestStarted | ModelRequestFinished | ModelRequestFailed | ModelRetryObserved | ModelStreamDelta,
) -> str:
    match event:
        case ModelRequestStarted():
            new = fmt.count(len(event.context.messages), "new message")
            purpose = "" if event.purpose == "main" else f"{event.purpose}: "
            return f"{purpose}{event.provider}/{event.model}, {new}, {event.context.chars:,} characters"
        case ModelRequestFinished():
            return _finished(event)
        case ModelRequestFailed():
            return f"{event.error.message} after {fmt.duration(event.duration_ms)}"
        case ModelRetryObserved():
            return f"attempt {event.attempt} in {fmt.duration(event.wait_ms)}: {event.error.message}"
        case ModelStreamDelta():
            return f"{event.kind} at {event.offset}: {_quoted(event.text)}"


def _finished(event: ModelRequestFinished) -> str:
    calls = ", ".join(call.name for call in event.tool_calls)
    refusal = "" if event.refusal is UNSET or not event.refusal else f"refusal {_quoted(event.refusal)}"
    said = [
        part for part in (f"calls {calls}" if calls else "", _quoted(event.text) if event.text else "", refusal) if part
    ]
    spent = [_used(event.usage), fmt.cost(event.cost_usd), fmt.duration(event.duration_ms)]
    return ", ".join([event.stop_reason, *spent, *said])


def _tool_facts(
    event: ToolCallStarted | ToolCallFinished | ToolOutputDelta | FileChangeApplied | ContextTrimApplied,
) -> str:
    match event:
        case ToolCallStarted():
            return f"{event.name} {fmt.first_line(main_argument(plain(event.input)))}"
        case ToolCallFinished():
            chars = len(event.output) if event.chars is UNSET else event.chars
            took = fmt.duration(event.duration_ms)
            if event.is_error:
                return f"{event.name} failed in {took}: {fmt.first_line(event.output)}"
            return f"{event.name} ok in {took}, {fmt.count(chars, 'character')}"
        case ToolOutputDelta():
            return f"at {event.offset}: {_quoted(event.text)}"
        case FileChangeApplied():
            what = "created" if event.before is None else "deleted" if event.after is None else "changed"
            return f"{what} {event.path}"
        case ContextTrimApplied():
            return f"{event.before_chars:,} → {event.after_chars:,} characters, {event.results_trimmed} results trimmed"


def _trace_facts(
    event: TraceDropObserved | TraceLimitObserved | TraceDegradedObserved | TraceRecoveredObserved | TraceClockObserved,
) -> str:
    match event:
        case TraceDropObserved():
            return f"records {event.first} to {event.last} ({event.count}) were not recorded: {event.reason}"
        case TraceLimitObserved():
            return f"{event.limit} reached at {fmt.size(event.bytes)}"
        case TraceDegradedObserved():
            return f"{event.reason}, since record {event.since}"
        case TraceClockObserved():
            return (
                f"the clock jumped by {event.jump_s:+,.0f} s: times from here on are not comparable with those before"
            )
        case TraceRecoveredObserved():
            return f"after {fmt.duration(event.duration_ms)}: {event.reason}"


def _body(event: Event | UnknownEvent) -> list[str]:
    if not isinstance(event, FileChangeApplied) or not event.diff:
        return []
    lines = event.diff.removesuffix("\n").split("\n")
    more = [f"{_INDENT}… {len(lines) - _MAX_DIFF_LINES} more lines"] if len(lines) > _MAX_DIFF_LINES else []
    return [_INDENT + line for line in lines[:_MAX_DIFF_LINES]] + more


def _used(usage: Usage | None) -> str:
    if usage is None:
        return "usage unknown"
    return fmt.usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)


def _quoted(text: str) -> str:
    return f"“{fmt.first_line(text, 100)}”"
