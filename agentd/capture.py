"""What of an event is recorded in capture mode `metadata`: ids, names, outcomes, usage and timings, never content.

The decision is per kind and exhaustive, so that a new kind cannot slip through: it has to be decided here first. Nothing is
derived from content either, no digests and no first characters; counts and lengths stay.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from tracewriter.events import (
    ConfigChangeApplied,
    ContextTrimApplied,
    Event,
    Failure,
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
    ToolCall,
    ToolCallFinished,
    ToolCallStarted,
    ToolOutputDelta,
    TraceClockObserved,
    TraceDegradedObserved,
    TraceDropObserved,
    TraceLimitObserved,
    TraceRecoveredObserved,
)

NOT_CAPTURED: Final = "[not captured]"
_NO_INPUT: Final = Raw(b"{}")
_replace = msgspec.structs.replace


def metadata_of(event: Event) -> Event | None:
    """The event without content; None for one that would be nothing but content."""
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
            return _replace(event, context=_replace(event.context, messages=(), replaced=UNSET, system=UNSET))
        case ModelRequestFinished():
            refusal = UNSET if event.refusal is UNSET else NOT_CAPTURED
            return _replace(event, text="", reasoning="", tool_calls=_calls(event.tool_calls), refusal=refusal)
        case ModelRequestFailed():
            return _replace(event, error=_failure(event.error), text="", reasoning="")
        case ModelRetryObserved() | SessionSaveFailed():
            return _replace(event, error=_failure(event.error))
        case ToolCallStarted():
            return _replace(event, input=_NO_INPUT)
        case ToolCallFinished():
            chars = len(event.output) if event.chars is UNSET else event.chars
            return _replace(event, output="", chars=chars)
        case SessionRecordStarted() | SessionRecordFinished() | SessionLifecycleObserved() | ConfigChangeApplied():
            return event
        case ContextTrimApplied() | TraceDropObserved() | TraceLimitObserved():
            return event
        case TraceDegradedObserved() | TraceRecoveredObserved() | TraceClockObserved():
            return event


def _as_many(texts: tuple[str, ...]) -> tuple[str, ...]:
    return (NOT_CAPTURED,) * len(texts)


def _calls(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.id, call.name, _NO_INPUT) for call in calls)


def _failure(failure: Failure) -> Failure:
    return Failure(failure.kind, NOT_CAPTURED, status=failure.status)
