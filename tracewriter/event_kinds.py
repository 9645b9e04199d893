"""Kinds of events around a run's work: the session, its settings, prompts and approvals, and the recording itself.

`tracewriter.events` has them all, also those of the run's own work; import them from there.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from tracewriter.event_parts import Attachment, EventBase, Failure, Usage

# --- the session


class SessionRecordStarted(EventBase, frozen=True, gc=False):
    """First record a producer's life makes in a session: who writes, where, and how much is captured."""

    format: str
    agentd: str
    workspace: str
    mode: str
    capture: str


class SessionRecordFinished(EventBase, frozen=True, gc=False):
    """Last record of a recording that was closed in order; `emitted` proves that nothing after it is missing."""

    emitted: int
    counts: dict[str, int]
    usage: Usage | None
    cost_usd: float | None


class SessionLifecycleObserved(EventBase, frozen=True, gc=False):
    """The session was created, resumed, forked, archived or restored."""

    change: str
    origin: str | UnsetType = UNSET


class SessionSaveStarted(EventBase, frozen=True, gc=False):
    """What a prompt adds to the conversation is being saved as it comes, from message number `first` on (an operation)."""

    prompt: str
    first: int


class SessionSaveFinished(EventBase, frozen=True, gc=False):
    """All of it is in the store, after the run's end: so many messages. Without this or a failure the daemon was killed before."""

    prompt: str
    messages: int
    duration_ms: float


class SessionSaveFailed(EventBase, frozen=True, gc=False):
    """The conversation could not be saved; it goes on in memory. Said once, until a save works again."""

    error: Failure


# --- what a run begins with


class PolicyPresetObserved(EventBase, frozen=True, gc=False):
    """What a run may do, as resolved at its start. writes: those of its tools that may change something, within `scope`.

    scope: none or workspace. approvals: what is asked of people (ask, edits, all, never), absent where nothing is. iterations,
    context_chars (of one request), parallel_calls and budget_usd (None: none) are the bounds of the run.
    """

    preset: str
    tools: tuple[str, ...]
    writes: tuple[str, ...]
    scope: str
    iterations: int
    context_chars: int
    parallel_calls: int
    budget_usd: float | None
    approvals: str | UnsetType = UNSET


class PromptQueueObserved(EventBase, frozen=True, gc=False):
    """A prompt was added to the session's queue, consumed by a run, or cleared."""

    change: str
    prompt: str
    text: str | UnsetType = UNSET


class InputPrepareStarted(EventBase, frozen=True, gc=False):
    """A prompt was taken up and is made into what a run begins with (an operation)."""

    prompt: str


class InputPrepareFinished(EventBase, frozen=True, gc=False):
    """What the run begins with: the prompt, the conversation before it as it was loaded, the system prompt, the attachments.

    Sizes are characters; a tool call in the history counts with its arguments.
    """

    prompt: str
    prompt_chars: int
    history_messages: int
    history_chars: int
    system_chars: int
    attachments: tuple[Attachment, ...]
    duration_ms: float


class SkillSelectObserved(EventBase, frozen=True, gc=False):
    """A skill was added to what the model is told. by: user, model or rule; path is where it was read; chars its length."""

    name: str
    path: str
    by: str
    chars: int


# --- people


class ApprovalRequestRequested(EventBase, frozen=True, gc=False):
    """A call waits for somebody's answer. approval names the question; exactly one decision follows, whatever happens.

    category: write, shell, network or mcp. summary: the question as people are asked it, one line. rule: what asks for it.
    """

    approval: str
    call: str
    tool: str
    category: str
    summary: str
    input: Raw
    rule: str | UnsetType = UNSET


class ApprovalRequestDecided(EventBase, frozen=True, gc=False):
    """The one answer that counted. outcome: allowed, refused, cancelled, timed_out, unavailable (nobody was there to ask).

    by: client, rule or policy. scope: once, session or always. reason: what was said with it.
    """

    approval: str
    outcome: str
    by: str
    scope: str
    duration_ms: float
    reason: str | UnsetType = UNSET


# --- configuration


class ConfigChangeRequested(EventBase, frozen=True, gc=False):
    """A client wants a setting of the session changed: mode, model or capture. What came of it follows: applied or failed."""

    setting: str
    value: str


class ConfigChangeApplied(EventBase, frozen=True, gc=False):
    """A setting of the session now holds."""

    setting: str
    value: str


class ConfigChangeFailed(EventBase, frozen=True, gc=False):
    """The change was refused; the setting is as before."""

    setting: str
    value: str
    error: Failure


# --- the recording itself


class TraceDropObserved(EventBase, frozen=True, gc=False):
    """Records first … last were not recorded. The record's own seq is `first`; it stands for the whole range."""

    first: int
    last: int
    count: int
    reason: str


class TraceLimitObserved(EventBase, frozen=True, gc=False):
    """The session reached a bound of the recorder; the run goes on, unrecorded but for its ends."""

    limit: str
    bytes: int


class TraceDegradedObserved(EventBase, frozen=True, gc=False):
    """Recording is held up: why, and since which seq."""

    reason: str
    since: int


class TraceRecoveredObserved(EventBase, frozen=True, gc=False):
    """Recording goes on after `reason`; duration_ms is how long it was held up."""

    reason: str
    duration_ms: float


class TraceScrubApplied(EventBase, frozen=True, gc=False):
    """The records before this one were written anew with newer rules of redaction, the only thing that ever changes one.

    at: when. rules: whose. hits: how often each rule found something, in so many records and payloads (files). damage: how many
    places were damaged and are not as they were. old_head and new_head: the digests' head before, and after, without this segment.
    """

    at: str
    rules: str
    hits: dict[str, int]
    records: int
    payloads: int
    damage: int
    old_head: str
    new_head: str


class TraceClockObserved(EventBase, frozen=True, gc=False):
    """The wall clock jumped against the monotonic one: time stamps after this record are jump_s later than they would be."""

    jump_s: float
