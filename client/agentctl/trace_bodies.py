"""What a record carries besides its facts: the texts and the JSON that people see whole with --full. Pure.

Every kind of event has its words here too; mypy's exhaustive match finds the one that was forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

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
    WorkspaceChangeObserved,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Raw


def bodies(event: Event | UnknownEvent) -> list[tuple[str, str]]:
    """(what it is, the text), of everything in the event that may be long and is not empty."""
    return [(name, text) for name, text in _bodies(event) if text]


def _bodies(event: Event | UnknownEvent) -> Iterator[tuple[str, str]]:
    match event:
        case PromptQueueObserved():
            yield "text", "" if event.text is UNSET else event.text
        case RunExecuteStarted() | ModelStreamDelta() | ToolOutputDelta():
            yield "text", event.text
        case RunExecuteFinished():
            yield from (("error", text) for text in event.errors)
        case ModelRequestStarted() | ModelRequestFinished() | ModelRequestFailed():
            yield from _of_model(event)
        case SessionSaveFailed() | ModelRetryObserved() | FileCheckFailed() | ContextCompactFailed():
            yield "error", event.error.message
        case ConfigChangeFailed():
            yield "error", event.error.message
        case ApprovalRequestRequested():
            yield "summary", event.summary
            yield "input", _text(event.input)
        case ApprovalRequestDecided():
            yield "reason", "" if event.reason is UNSET else event.reason
        case ContextCompactFinished():
            yield "summary", event.summary
        case ToolCallStarted():
            yield "input", _text(event.input)
        case ToolCallFinished():
            yield "output", event.output
        case FileChangeApplied():
            yield "diff", event.diff
        case UnknownEvent(data):
            yield "data", _text(data)
        case SessionRecordStarted() | SessionRecordFinished() | SessionLifecycleObserved():
            pass
        case SessionSaveStarted() | SessionSaveFinished() | PolicyPresetObserved() | SkillSelectObserved():
            pass
        case InputPrepareStarted() | InputPrepareFinished() | WorkspaceChangeObserved() | ContextCompactStarted():
            pass
        case ConfigChangeRequested() | ConfigChangeApplied() | ContextTrimApplied():
            pass
        case TraceDropObserved() | TraceLimitObserved():
            pass
        case TraceDegradedObserved() | TraceRecoveredObserved() | TraceClockObserved() | TraceScrubApplied():
            pass


def _of_model(event: ModelRequestStarted | ModelRequestFinished | ModelRequestFailed) -> Iterator[tuple[str, str]]:
    match event:
        case ModelRequestStarted(context=context):
            yield "system", "" if context.system is UNSET else context.system
            for at, message in () if context.replaced is UNSET else context.replaced:
                yield f"message {at}", _text(message)
            for at, message in enumerate(context.messages, context.keep):
                yield f"message {at}", _text(message)
        case ModelRequestFinished():
            yield "reasoning", event.reasoning
            yield "text", event.text
            yield "refusal", "" if event.refusal is UNSET else event.refusal
            yield from ((f"call {call.name}", _text(call.input)) for call in event.tool_calls)
        case ModelRequestFailed():
            yield "error", event.error.message
            yield "reasoning", event.reasoning
            yield "text", event.text


def _text(data: Raw) -> str:
    return bytes(data).decode("utf-8", "replace")
