"""Every kind of event, once: the loop yields them, the trace stores them, the clients are shown them.

An event is a fact in the past tense; a record is an event with seq, time and ids, one line of JSON (`Record`). The name on
the wire follows mechanically from the class: `ToolCallStarted` is `tool.call.started`, entity, operation and phase.
Unknown names are kept as they are by every reader (`parse_record` gives `UnknownEvent`), so a new kind breaks nobody.

Fields: ids are lower-case hex; `*_ms` come from a monotonic clock; `usage` counts are all-in with the parts named apart;
None means "not known", and a field that does not apply is left out (UNSET). Bodies that are JSON already are `Raw`: one
compact line of valid JSON, which `tracewriter.jsonl.raw` makes of anything.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

# Otherwise every name that is passed on would get a statement of its own.
# isort: off
from tracewriter.event_kinds import (
    ApprovalRequestDecided as ApprovalRequestDecided,
    ApprovalRequestRequested as ApprovalRequestRequested,
    ConfigChangeApplied as ConfigChangeApplied,
    ConfigChangeFailed as ConfigChangeFailed,
    ConfigChangeRequested as ConfigChangeRequested,
    InputPrepareFinished as InputPrepareFinished,
    InputPrepareStarted as InputPrepareStarted,
    PolicyPresetObserved as PolicyPresetObserved,
    PromptQueueObserved as PromptQueueObserved,
    SessionLifecycleObserved as SessionLifecycleObserved,
    SessionRecordFinished as SessionRecordFinished,
    SessionRecordStarted as SessionRecordStarted,
    SessionSaveFailed as SessionSaveFailed,
    SessionSaveFinished as SessionSaveFinished,
    SessionSaveStarted as SessionSaveStarted,
    SkillSelectObserved as SkillSelectObserved,
    TraceClockObserved as TraceClockObserved,
    TraceDegradedObserved as TraceDegradedObserved,
    TraceDropObserved as TraceDropObserved,
    TraceLimitObserved as TraceLimitObserved,
    TraceRecoveredObserved as TraceRecoveredObserved,
    TraceScrubApplied as TraceScrubApplied,
)
from tracewriter.event_parts import (
    MAX_TOKENS as MAX_TOKENS,
    Attachment as Attachment,
    EventBase as EventBase,
    Failure as Failure,
    ToolCall as ToolCall,
    Usage as Usage,
)

# isort: on

FORMAT: Final = "agentd.trace/1"


class SameAs(Struct, frozen=True, gc=False, omit_defaults=True):
    """Stands in a context for a message that another record of the session holds: nothing is recorded twice.

    same_as is the id of a run (the user's message made of its run.execute.started) or of an operation (the assistant's made
    of its model.request.finished or failed, the tool's made of its tool.call.finished). With `at` it is the operation of an
    earlier request (or this one), whose model.request.started holds the message that stood at that position. `opaque`
    belongs to the message, and is not in that record.
    """

    same_as: str
    at: int | UnsetType = UNSET
    opaque: tuple[Raw, ...] | UnsetType = UNSET


class Context(Struct, frozen=True, gc=False):
    """What a model request carried, as the difference from the request `since`, the previous one of the same run.

    `keep` leading messages are as they were there; those at `replaced` positions changed (trimming); `messages` follow after
    them: `count` in all. A message is a whole one (it has a `role`) or a `SameAs`. `chars` is the size of the whole request in
    characters. The first request of a run has system prompt and tools (name, description, schema), or says with `system_as`
    and `tools_as` which earlier request of the session had the same; later ones have those of `since`.
    """

    keep: int
    messages: tuple[Raw, ...]
    chars: int
    count: int | UnsetType = UNSET
    since: str | UnsetType = UNSET
    replaced: tuple[tuple[int, Raw], ...] | UnsetType = UNSET
    system: str | UnsetType = UNSET
    system_as: str | UnsetType = UNSET
    tools: tuple[Raw, ...] | UnsetType = UNSET
    tools_as: str | UnsetType = UNSET


# --- prompts and runs


class RunExecuteStarted(EventBase, frozen=True, gc=False):
    """A run was accepted. The prompt is kept whole, so that the run can be replayed."""

    prompt: str
    text: str
    mode: str
    model: str
    provider: str
    continues: str | UnsetType = UNSET


class RunExecuteFinished(EventBase, frozen=True, gc=False):
    """Always the last record of a run, whatever ended it, with the usage (None: no request reported any) and the cost so far.

    outcome: completed, failed, cancelled, interrupted, limit, budget, loop, refused, check_failed.
    files: workspace paths really changed (a failed call changed nothing). tools: names in call order.
    """

    outcome: str
    usage: Usage | None
    cost_usd: float | None
    tools: tuple[str, ...]
    files: tuple[str, ...]
    errors: tuple[str, ...]
    duration_ms: float


# --- the model


class ModelRequestStarted(EventBase, frozen=True, gc=False):
    """A request to a model is about to be sent. purpose: main, summary or title."""

    purpose: str
    provider: str
    model: str
    context: Context


class ModelRequestFinished(EventBase, frozen=True, gc=False):
    """A model request ended well: what came, why it stopped (normalised and as the provider said it), and what it cost."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    stop_reason: str
    finish: str | None
    usage: Usage | None
    cost_usd: float | None
    ttft_ms: float | None
    duration_ms: float
    refusal: str | UnsetType = UNSET


class ModelRequestFailed(EventBase, frozen=True, gc=False):
    """A model request failed, perhaps after showing part of an answer; a tool call that was cut is named, never run."""

    error: Failure
    text: str
    reasoning: str
    cut_tool_calls: tuple[str, ...]
    usage: Usage | None
    cost_usd: float | None
    duration_ms: float


class ModelRetryObserved(EventBase, frozen=True, gc=False):
    """A request is tried again before any output: which attempt comes next, after what wait, and why.

    With `provider` and `model` it goes to that model from now on, as its first attempt: a fallback that the user named. The
    request that failed has its model.request.failed before this, the next one its own model.request.started after.
    """

    attempt: int
    wait_ms: float
    error: Failure
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET


class ModelStreamDelta(EventBase, frozen=True, gc=False):
    """A piece of text or reasoning as it arrived. Shown live; recorded in capture mode `stream` only.

    kind: text, reasoning or refusal. offset: code points of the same kind before this piece in this request.
    """

    kind: str
    offset: int
    text: str


# --- tools


class ToolCallStarted(EventBase, frozen=True, gc=False):
    """A tool call is about to run."""

    id: str
    name: str
    input: Raw


class ToolCallFinished(EventBase, frozen=True, gc=False):
    """A tool call ended. `is_error` says that it changed nothing; `chars` is the output's full length when it was cut."""

    id: str
    name: str
    output: str
    is_error: bool
    duration_ms: float
    chars: int | UnsetType = UNSET


class ToolOutputDelta(EventBase, frozen=True, gc=False):
    """A piece of a tool's output as it arrived. Shown live; recorded in capture mode `stream` only."""

    offset: int
    text: str


class FileCheckFailed(EventBase, frozen=True, gc=False):
    """A change was refused before it touched the file. check: unread, changed or deleted (since it was read), binary, match
    (the text to replace is not there, or not unique) or path (no such file, outside, …).
    """

    path: str
    check: str
    error: Failure


class WorkspaceChangeObserved(EventBase, frozen=True, gc=False):
    """Somebody else changed a file that the model had read. change: changed, created or deleted. noticed: edit (by a call that
    wanted to change it) or watch.
    """

    path: str
    change: str
    noticed: str


class FileChangeApplied(EventBase, frozen=True, gc=False):
    """A tool changed a file. before and after: SHA-256 of the contents in hex, null where there was or is no file."""

    path: str
    before: str | None
    after: str | None
    diff: str


class ContextTrimApplied(EventBase, frozen=True, gc=False):
    """Messages were shortened so that the request stays under its budget. The conversation itself is unchanged."""

    before_chars: int
    after_chars: int
    results_trimmed: int
    arguments_cut: int


class ContextCompactStarted(EventBase, frozen=True, gc=False):
    """The conversation is being replaced by a summary of it (an operation). trigger: auto or manual. Its request is a child."""

    trigger: str
    messages: int
    chars: int


class ContextCompactFinished(EventBase, frozen=True, gc=False):
    """From now on `summary` stands for the messages that were there; `messages` are left."""

    before_chars: int
    after_chars: int
    messages: int
    summary: str
    duration_ms: float


class ContextCompactFailed(EventBase, frozen=True, gc=False):
    """The conversation stays as it is."""

    error: Failure
    duration_ms: float


Event: TypeAlias = (
    SessionRecordStarted
    | SessionRecordFinished
    | SessionLifecycleObserved
    | SessionSaveStarted
    | SessionSaveFinished
    | SessionSaveFailed
    | PolicyPresetObserved
    | PromptQueueObserved
    | InputPrepareStarted
    | InputPrepareFinished
    | SkillSelectObserved
    | RunExecuteStarted
    | RunExecuteFinished
    | ModelRequestStarted
    | ModelRequestFinished
    | ModelRequestFailed
    | ModelRetryObserved
    | ModelStreamDelta
    | ToolCallStarted
    | ToolCallFinished
    | ToolOutputDelta
    | ApprovalRequestRequested
    | ApprovalRequestDecided
    | FileCheckFailed
    | WorkspaceChangeObserved
    | FileChangeApplied
    | ContextTrimApplied
    | ContextCompactStarted
    | ContextCompactFinished
    | ContextCompactFailed
    | ConfigChangeRequested
    | ConfigChangeApplied
    | ConfigChangeFailed
    | TraceDropObserved
    | TraceLimitObserved
    | TraceDegradedObserved
    | TraceRecoveredObserved
    | TraceClockObserved
    | TraceScrubApplied
)


class UnknownEvent(Struct, frozen=True, gc=False):
    """An event of a kind this version does not know, or knows with other fields: its data, untouched."""

    data: Raw


class Foreign(Struct, frozen=True, gc=False):
    """An event of another tool: its name (`tracewriter.foreign` makes legal ones) and its data, a JSON object in one line.

    No part of `Event`: readers find its records as UnknownEvent, under names that are never ours.
    """

    name: str
    data: Raw


def name_of_class(cls: type) -> str:
    """The wire name of an event class: ToolCallStarted is tool.call.started."""
    return re.sub(r"(?<!^)(?=[A-Z])", ".", cls.__name__).lower()


KINDS: Final[dict[str, type]] = {name_of_class(cls): cls for cls in get_args(Event)}
NAMES: Final[dict[type, str]] = {cls: name for name, cls in KINDS.items()}

# Recorded only in capture mode `stream`; clients get them as session/delta, without a cursor.
DELTAS: Final = frozenset({ModelStreamDelta, ToolOutputDelta})


def name_of(event: Event) -> str:
    """The wire name of an event."""
    return NAMES[type(event)]


class Record(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One line of a trace, or of what clients are shown. seq is absent only in live records (they have cursors)."""

    seq: int | UnsetType = UNSET
    ts: datetime
    event: str
    session: str
    run: str | UnsetType = UNSET
    op: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    data: Event | Raw


class RawRecord(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A record as a reader finds it: the data still JSON. `event_of` gives the typed event."""

    seq: int
    ts: datetime
    event: str
    session: str
    run: str | None = None
    op: str | None = None
    parent: str | None = None
    data: Raw = Raw(b"{}")


def event_of(name: str, data: Raw | bytes) -> Event | UnknownEvent:
    """The typed event of a record's data; what does not fit its kind (an older or newer version) comes back as UnknownEvent."""
    cls = KINDS.get(name)
    if cls is None:
        return UnknownEvent(Raw(data))
    try:
        event: Event = _decoder(cls).decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        return UnknownEvent(Raw(data))
    return event


_decoders: dict[type, msgspec.json.Decoder[Event]] = {}


def _decoder(cls: type) -> msgspec.json.Decoder[Event]:
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.json.Decoder(cls)
    return decoder
