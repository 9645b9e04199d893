"""What of an event is recorded in capture mode `metadata`: ids, names, outcomes, usage and timings, never content.

The decision is per kind and exhaustive, so that a new kind cannot slip through: it has to be decided here first. Nothing is
derived from content either, no digests and no first characters; counts and lengths stay.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from tracewriter.events import (
    ApprovalRequestDecided,
    ApprovalRequestRequested,
    Attachment,
    ConfigChangeApplied,
    ConfigChangeFailed,
    ConfigChangeRequested,
    Context,
    ContextCompactFailed,
    ContextCompactFinished,
    ContextCompactStarted,
    ContextTrimApplied,
    Event,
    Failure,
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
    ToolCall,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceClockObserved,
    TraceDegradedObserved,
    TraceDropObserved,
    TraceLimitObserved,
    TraceRecoveredObserved,
    TraceScrubApplied,
    WorkspaceChangeObserved,
)

NOT_CAPTURED: Final = "[not captured]"
_NO_INPUT: Final = Raw(b"{}")
_replace = msgspec.structs.replace


def metadata_of(event: Event, tools: frozenset[str] | None = None) -> Event | None:
    """The event without content; None for one that would be nothing but content.

    tools: the names that were offered to a model. One that it made up is text of its own, and not captured (None: all are kept).
    """
    left = _left(event)
    return left if left is None or tools is None else _with_names(left, tools)


def _with_names(event: Event, tools: frozenset[str]) -> Event:
    def name(given: str) -> str:
        return given if given in tools else NOT_CAPTURED

    match event:
        case ToolCallStarted() | ToolCallFinished():
            return _replace(event, name=name(event.name))
        case ApprovalRequestRequested():
            return _replace(event, tool=name(event.tool))
        case ModelRequestFinished():
            return _replace(event, tool_calls=tuple(_replace(call, name=name(call.name)) for call in event.tool_calls))
        case ModelRequestFailed():
            return _replace(event, cut_tool_calls=tuple(map(name, event.cut_tool_calls)))
        case RunExecuteFinished():
            return _replace(event, tools=tuple(map(name, event.tools)))
        case _:
            return event


def _left(event: Event) -> Event | None:
    match event:
        case FileChangeApplied() | ModelStreamDelta() | ToolOutputDelta():
            return None
        case PromptQueueObserved():
            return _replace(event, text=UNSET)
        case RunExecuteStarted():
            return _replace(event, text=NOT_CAPTURED)
        case RunExecuteFinished():
            # How many, not which: a path or an error can tell as much as a file.
            return _replace(event, files=_as_many(event.files), errors=_as_many(event.errors))
        case ModelRequestStarted():
            # References go too: what they point at is not there. Counts and sizes stay.
            told = event.context
            return _replace(event, context=Context(told.keep, (), told.chars, told.count, told.since))
        case ModelRequestFinished():
            refusal = UNSET if event.refusal is UNSET else NOT_CAPTURED
            return _replace(event, text="", reasoning="", tool_calls=_calls(event.tool_calls), refusal=refusal)
        case ModelRequestFailed():
            return _replace(event, error=_failure(event.error), text="", reasoning="")
        case ModelRetryObserved() | SessionSaveFailed() | ContextCompactFailed() | ConfigChangeFailed():
            return _replace(event, error=_failure(event.error))
        case FileCheckFailed():
            return _replace(event, path=NOT_CAPTURED, error=_failure(event.error))
        case WorkspaceChangeObserved():
            return _replace(event, path=NOT_CAPTURED)
        case InputPrepareFinished():
            return _replace(event, attachments=tuple(map(_attachment, event.attachments)))
        case SkillSelectObserved():
            return _replace(event, name=NOT_CAPTURED, path=NOT_CAPTURED)
        case ApprovalRequestRequested():
            rule = UNSET if event.rule is UNSET else NOT_CAPTURED  # rules name paths and commands
            return _replace(event, summary=NOT_CAPTURED, input=_NO_INPUT, rule=rule)
        case ApprovalRequestDecided():
            return _replace(event, reason=UNSET)
        case ContextCompactFinished():
            return _replace(event, summary=NOT_CAPTURED)
        case ToolCallStarted():
            return _replace(event, input=_NO_INPUT)
        case ToolCallFinished():
            chars = len(event.output) if event.chars is UNSET else event.chars
            return _replace(event, output="", chars=chars)
        case SessionRecordStarted() | SessionRecordFinished() | SessionLifecycleObserved() | PolicyPresetObserved():
            return event
        case SessionSaveStarted() | SessionSaveFinished() | ConfigChangeRequested() | ConfigChangeApplied():
            return event
        case InputPrepareStarted() | ContextCompactStarted():
            return event
        case ContextTrimApplied() | TraceDropObserved() | TraceLimitObserved():
            return event
        case TraceDegradedObserved() | TraceRecoveredObserved() | TraceClockObserved() | TraceScrubApplied():
            return event


def _as_many(texts: tuple[str, ...]) -> tuple[str, ...]:
    return (NOT_CAPTURED,) * len(texts)


def _calls(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.id, call.name, _NO_INPUT) for call in calls)


def _attachment(attachment: Attachment) -> Attachment:
    return _replace(attachment, name=NOT_CAPTURED, sha256=None)


def _failure(failure: Failure) -> Failure:
    return Failure(failure.kind, NOT_CAPTURED, status=failure.status)
