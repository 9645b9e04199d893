"""Records and notes as people read them. Pure: a finding in, lines out, each without a line break. Output makes them safe.

Every kind of event has its words here; mypy's exhaustive match finds the one that was forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from agentctl import format as fmt
from agentctl.safe_text import safe_line
from agentctl.trace_bodies import bodies
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
)
from tracewriter.expand import shown_chars

if TYPE_CHECKING:
    from tracewriter.findings import Found, Note

# A record's words fit a wide terminal; --json has the whole.
_LINE_CHARS: Final = 160
_HEAD_CHARS: Final = 60
_MAX_DIFF_LINES: Final = 60
_INDENT: Final = " " * 9


def record_lines(found: Found, *, full: bool = False) -> list[str]:
    """One line for a record (seq, local time, event, key facts), and the lines of the diff under a changed file.

    full: all its texts under it instead, to their ends.
    """
    record = found.record
    event = typed(record)
    at = fmt.local(record.ts).strftime("%H:%M:%S.%f")[:-3]
    doubt = f"  [{found.state}]" if found.state in ("unverified", "unfinished") else ""
    said = fmt.first_line(safe_line(facts(event)), _LINE_CHARS)
    head = f"{record.seq:>6}  {at}  {safe_line(record.event):<26}  {said}{doubt}"
    return [head.rstrip(), *(_whole(event) if full else _body(event))]


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
        case ConfigChangeRequested() | ConfigChangeApplied() | ConfigChangeFailed():
            refused = f": {event.error.message}" if isinstance(event, ConfigChangeFailed) else ""
            return f"{event.setting} = {event.value}{refused}"
        case SessionSaveStarted() | SessionSaveFinished() | SessionSaveFailed():
            return _save_facts(event)
        case PolicyPresetObserved() | InputPrepareStarted() | InputPrepareFinished() | SkillSelectObserved():
            return _input_facts(event)
        case ApprovalRequestRequested():
            return f"{event.tool} ({event.category}): {_quoted(event.summary)}"
        case ApprovalRequestDecided():
            return f"{event.outcome} by {event.by}, {event.scope}, after {fmt.duration(event.duration_ms)}"
        case ContextCompactStarted() | ContextCompactFinished() | ContextCompactFailed():
            return _compact_facts(event)
        case FileCheckFailed():
            return f"{event.check}: {event.error.message}"
        case WorkspaceChangeObserved():
            return f"{event.path} was {event.change} by somebody else (noticed by {event.noticed})"
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
            | TraceScrubApplied()
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


def _save_facts(event: SessionSaveStarted | SessionSaveFinished | SessionSaveFailed) -> str:
    match event:
        case SessionSaveStarted():
            return f"from message {event.first} on, for prompt {event.prompt}"
        case SessionSaveFinished():
            return f"{fmt.count(event.messages, 'message')} in {fmt.duration(event.duration_ms)}"
        case SessionSaveFailed():
            return event.error.message


def _input_facts(
    event: PolicyPresetObserved | InputPrepareStarted | InputPrepareFinished | SkillSelectObserved,
) -> str:
    match event:
        case PolicyPresetObserved():
            writes = f"{', '.join(event.writes)} may write ({event.scope})" if event.writes else "nothing may write"
            budget = "" if event.budget_usd is None else f", {fmt.cost(event.budget_usd)} at most"
            tools = fmt.count(len(event.tools), "tool")
            return f"{event.preset}: {tools}, {writes}, {event.iterations} turns at most{budget}"
        case InputPrepareStarted():
            return event.prompt
        case InputPrepareFinished():
            added = "".join(f", {one.kind} {one.name}" for one in event.attachments)
            history = f"{fmt.count(event.history_messages, 'earlier message')} ({event.history_chars:,} characters)"
            return f"{event.prompt_chars:,} characters after {history}{added}"
        case SkillSelectObserved():
            return f"{event.name} by {event.by}, {event.chars:,} characters"


def _compact_facts(event: ContextCompactStarted | ContextCompactFinished | ContextCompactFailed) -> str:
    match event:
        case ContextCompactStarted():
            return f"{event.trigger}: {fmt.count(event.messages, 'message')}, {event.chars:,} characters"
        case ContextCompactFinished():
            return f"{event.before_chars:,} → {event.after_chars:,} characters: {_quoted(event.summary)}"
        case ContextCompactFailed():
            return f"{event.error.message} after {fmt.duration(event.duration_ms)}"


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
            if event.model is not UNSET:
                return f"now {event.provider}/{event.model}: {event.error.message}"
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
            return f"{event.name} {_cut(main_argument(plain(event.input)), 200)}"
        case ToolCallFinished():
            chars = (shown_chars(event.output) or len(event.output)) if event.chars is UNSET else event.chars
            took = fmt.duration(event.duration_ms)
            if event.is_error:
                return f"{event.name} failed in {took}" + (f": {_cut(event.output, 200)}" if event.output else "")
            return f"{event.name} ok in {took}, {fmt.count(chars, 'character')}"
        case ToolOutputDelta():
            return f"at {event.offset}: {_quoted(event.text)}"
        case FileChangeApplied():
            what = "created" if event.before is None else "deleted" if event.after is None else "changed"
            return f"{what} {event.path}"
        case ContextTrimApplied():
            return f"{event.before_chars:,} → {event.after_chars:,} characters, {event.results_trimmed} results trimmed"


def _trace_facts(
    event: TraceDropObserved
    | TraceLimitObserved
    | TraceDegradedObserved
    | TraceRecoveredObserved
    | TraceClockObserved
    | TraceScrubApplied,
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
        case TraceScrubApplied():
            hits = ", ".join(f"{rule} {count:,}" for rule, count in event.hits.items())
            where = f"{fmt.count(event.records, 'record')} and {fmt.count(event.payloads, 'payload')} changed"
            damage = f", {fmt.count(event.damage, 'damaged place')} not carried over" if event.damage else ""
            return f"{where} on {event.at} by the rules of {event.rules}: {hits}{damage}; head before {event.old_head}"
        case TraceRecoveredObserved():
            return f"after {fmt.duration(event.duration_ms)}: {event.reason}"


def _body(event: Event | UnknownEvent) -> list[str]:
    if not isinstance(event, FileChangeApplied) or not event.diff:
        return []
    lines = _split(event.diff)
    more = [f"{_INDENT}… {len(lines) - _MAX_DIFF_LINES} more lines"] if len(lines) > _MAX_DIFF_LINES else []
    return [_INDENT + line for line in lines[:_MAX_DIFF_LINES]] + more


def _whole(event: Event | UnknownEvent) -> list[str]:
    """What it is on a line of its own, then the text's lines, further in than any record."""
    lines: list[str] = []
    for name, text in bodies(event):
        lines.append(f"{_INDENT}{safe_line(name)}:")
        lines += [f"{_INDENT}  {line}" for line in _split(text)]
    return lines


def _split(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _used(usage: Usage | None) -> str:
    if usage is None:
        return "usage unknown"
    return fmt.usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)


def _quoted(text: str) -> str:
    chars = shown_chars(text)
    return f"“{_cut(text, 100)}”" if chars is None else _cut(text, 100)


def _cut(text: str, limit: int) -> str:
    """The first line; of a body that is in a payload file less of it, so that how long that is can be seen."""
    chars = shown_chars(text)
    if chars is None:
        return fmt.first_line(text, limit)
    return f"“{fmt.first_line(text.rpartition('…[')[0], min(limit, _HEAD_CHARS))}” [payload: {chars:,} characters]"
