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

FORMAT: Final = "agentd.trace/1"
# Every JSON reader has whole numbers up to here exactly; no program of any size will ever use so many tokens.
MAX_TOKENS: Final = 2**53


class _Event(Struct, frozen=True, gc=False, omit_defaults=False):
    """What all events share: immutable, never tracked by the garbage collector (recording 10^6 of them must not start it)."""


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one or more model requests, 2**53 at most. Input and output are all-in; a part that is None was not said."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __add__(self, other: Usage) -> Usage:
        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None and b is None else min((a or 0) + (b or 0), MAX_TOKENS)

        return Usage(
            min(self.input_tokens + other.input_tokens, MAX_TOKENS),
            min(self.output_tokens + other.output_tokens, MAX_TOKENS),
            both(self.cache_read_tokens, other.cache_read_tokens),
            both(self.cache_write_tokens, other.cache_write_tokens),
            both(self.reasoning_tokens, other.reasoning_tokens),
        )


class ToolCall(Struct, frozen=True, gc=False):
    """A complete tool call as the model made it. `input` is its JSON; what a cut stream left is never one of these."""

    id: str
    name: str
    input: Raw


class Failure(Struct, frozen=True, gc=False):
    """A failure of the world, for people: what kind, one readable line, and what to do next."""

    kind: str
    message: str
    hint: str = ""
    status: int | None = None


class Context(Struct, frozen=True, gc=False):
    """What a model request carried, as the difference from the previous request of the same run.

    `keep` leading messages are as before; those at `replaced` positions changed (trimming); `messages` follow after them.
    `chars` is the size of the whole request in characters. The system prompt and the tools are named when they change.
    """

    keep: int
    messages: tuple[Raw, ...]
    chars: int
    replaced: tuple[tuple[int, Raw], ...] | UnsetType = UNSET
    system: str | UnsetType = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET


# --- session


class SessionRecordStarted(_Event, frozen=True, gc=False):
    """First record a producer's life makes in a session: who writes, where, and how much is captured."""

    format: str
    agentd: str
    workspace: str
    mode: str
    capture: str


class SessionRecordFinished(_Event, frozen=True, gc=False):
    """Last record of a recording that was closed in order; `emitted` proves that nothing after it is missing."""

    emitted: int
    counts: dict[str, int]
    usage: Usage | None
    cost_usd: float | None


class SessionLifecycleObserved(_Event, frozen=True, gc=False):
    """The session was created, resumed, forked, archived or restored."""

    change: str
    origin: str | UnsetType = UNSET


class SessionSaveFailed(_Event, frozen=True, gc=False):
    """The conversation could not be saved; it goes on in memory. Said once, until a save works again."""

    error: Failure


# --- prompts and runs


class PromptQueueObserved(_Event, frozen=True, gc=False):
    """A prompt was added to the session's queue, consumed by a run, or cleared."""

    change: str
    prompt: str
    text: str | UnsetType = UNSET


class RunExecuteStarted(_Event, frozen=True, gc=False):
    """A run was accepted. The prompt is kept whole, so that the run can be replayed."""

    prompt: str
    text: str
    mode: str
    model: str
    provider: str
    continues: str | UnsetType = UNSET


class RunExecuteFinished(_Event, frozen=True, gc=False):
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


class ModelRequestStarted(_Event, frozen=True, gc=False):
    """A request to a model is about to be sent. purpose: main, summary or title."""

    purpose: str
    provider: str
    model: str
    context: Context


class ModelRequestFinished(_Event, frozen=True, gc=False):
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


class ModelRequestFailed(_Event, frozen=True, gc=False):
    """A model request failed, perhaps after showing part of an answer; a tool call that was cut is named, never run."""

    error: Failure
    text: str
    reasoning: str
    cut_tool_calls: tuple[str, ...]
    usage: Usage | None
    cost_usd: float | None
    duration_ms: float


class ModelRetryObserved(_Event, frozen=True, gc=False):
    """A request is tried again before any output: which attempt comes next, after what wait, and why."""

    attempt: int
    wait_ms: float
    error: Failure


class ModelStreamDelta(_Event, frozen=True, gc=False):
    """A piece of text or reasoning as it arrived. Shown live; recorded in capture mode `stream` only.

    kind: text, reasoning or refusal. offset: code points of the same kind before this piece in this request.
    """

    kind: str
    offset: int
    text: str


# --- tools


class ToolCallStarted(_Event, frozen=True, gc=False):
    """A tool call is about to run."""

    id: str
    name: str
    input: Raw


class ToolCallFinished(_Event, frozen=True, gc=False):
    """A tool call ended. `is_error` says that it changed nothing; `chars` is the output's full length when it was cut."""

    id: str
    name: str
    output: str
    is_error: bool
    duration_ms: float
    chars: int | UnsetType = UNSET


class ToolOutputDelta(_Event, frozen=True, gc=False):
    """A piece of a tool's output as it arrived. Shown live; recorded in capture mode `stream` only."""

    offset: int
    text: str


class FileChangeApplied(_Event, frozen=True, gc=False):
    """A tool changed a file. before and after: SHA-256 of the contents in hex, null where there was or is no file."""

    path: str
    before: str | None
    after: str | None
    diff: str


class ContextTrimApplied(_Event, frozen=True, gc=False):
    """Messages were shortened so that the request stays under its budget. The conversation itself is unchanged."""

    before_chars: int
    after_chars: int
    results_trimmed: int
    arguments_cut: int


# --- configuration


class ConfigChangeApplied(_Event, frozen=True, gc=False):
    """A setting of the session now holds."""

    setting: str
    value: str


# --- the recording itself


class TraceDropObserved(_Event, frozen=True, gc=False):
    """Records first … last were not recorded. The record's own seq is `first`; it stands for the whole range."""

    first: int
    last: int
    count: int
    reason: str


class TraceLimitObserved(_Event, frozen=True, gc=False):
    """The session reached a bound of the recorder; the run goes on, unrecorded but for its ends."""

    limit: str
    bytes: int


class TraceDegradedObserved(_Event, frozen=True, gc=False):
    """Recording is held up: why, and since which seq."""

    reason: str
    since: int


class TraceRecoveredObserved(_Event, frozen=True, gc=False):
    """Recording goes on after `reason`; duration_ms is how long it was held up."""

    reason: str
    duration_ms: float


class TraceClockObserved(_Event, frozen=True, gc=False):
    """The wall clock jumped against the monotonic one: time stamps after this record are jump_s later than they would be."""

    jump_s: float


Event: TypeAlias = (
    SessionRecordStarted
    | SessionRecordFinished
    | SessionLifecycleObserved
    | SessionSaveFailed
    | PromptQueueObserved
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
    | FileChangeApplied
    | ContextTrimApplied
    | ConfigChangeApplied
    | TraceDropObserved
    | TraceLimitObserved
    | TraceDegradedObserved
    | TraceRecoveredObserved
    | TraceClockObserved
)


class UnknownEvent(Struct, frozen=True, gc=False):
    """An event of a kind this version does not know, or knows with other fields: its data, untouched."""

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
