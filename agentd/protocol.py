"""agentd.sock, sans I/O: the messages as types, lines out of bytes, and bytes out of messages. PROTOCOL.md is the reference.

Both sides use it. A line is decoded in two steps: `decode_request` or `decode_reply` for the envelope, then the params or the
result by their own type, so that what is wrong can be answered with the right code. Unknown fields are ignored: newer
clients and older daemons talk to each other.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.bad_lines import BROKEN, BROKEN_HINT, RequestId, broken_text, likely_id
from agentd.protocol_lists import ModelList, Models, TraceSession
from tracewriter.events import Record

VERSION: Final = 1

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
UNKNOWN_METHOD: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
OVERLOADED: Final = -32001
REFUSED: Final = -32000


class _Params(Struct, frozen=True, omit_defaults=True):
    """What requests carry; absent fields mean their defaults."""


class Initialize(_Params, frozen=True):
    """Who speaks, and which protocol."""

    protocol: int
    client: str = ""


class SessionCreate(_Params, frozen=True):
    """A new session, or an existing one. `env` holds keys: its repr is never logged."""

    cwd: str
    mode: str | None = None
    model: str | None = None
    base_url: str | None = None
    uds: str | None = None
    env: dict[str, str] = {}
    session: str | None = None
    resume_last: bool = False
    ephemeral: bool = False
    capture: str | None = None
    fallback: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"SessionCreate(cwd={self.cwd!r}, mode={self.mode!r}, model={self.model!r}, session={self.session!r})"


class SessionConfigure(_Params, frozen=True):
    """Other settings for a session between its runs; absent ones stay. `env` holds keys: its repr is never logged."""

    session: str
    mode: str | None = None
    model: str | None = None
    capture: str | None = None
    env: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"SessionConfigure({self.session!r}, {self.mode!r}, {self.model!r}, {self.capture!r})"


class SessionSubscribe(_Params, frozen=True):
    """Events from now on (`after` absent), or after a cursor ("" for all in memory)."""

    session: str
    after: str | None = None


class SessionUnsubscribe(_Params, frozen=True):
    """No more events of this session on this connection."""

    session: str


class SessionPrompt(_Params, frozen=True):
    """Run this after what is queued."""

    session: str
    text: str


class SessionCancel(_Params, frozen=True):
    """Stop the running run, clear the queue."""

    session: str


class SessionList(_Params, frozen=True):
    """The newest sessions, at most `limit`."""

    limit: int = 100


class TraceFlush(_Params, frozen=True):
    """Wait until what was recorded is on disk."""

    session: str


class TraceStatus(_Params, frozen=True):
    """How the recording of each session goes, as the daemon knows it."""


class DaemonStatus(_Params, frozen=True):
    """How is it going."""


class DaemonStop(_Params, frozen=True):
    """End, now or when nothing runs."""

    when_idle: bool = False


Params: TypeAlias = (
    Initialize
    | SessionCreate
    | SessionConfigure
    | SessionSubscribe
    | SessionUnsubscribe
    | SessionPrompt
    | SessionCancel
    | SessionList
    | TraceFlush
    | TraceStatus
    | ModelList
    | DaemonStatus
    | DaemonStop
)

METHODS: Final[dict[str, type[Params]]] = {
    "initialize": Initialize,
    "session/create": SessionCreate,
    "session/configure": SessionConfigure,
    "session/subscribe": SessionSubscribe,
    "session/unsubscribe": SessionUnsubscribe,
    "session/prompt": SessionPrompt,
    "session/cancel": SessionCancel,
    "session/list": SessionList,
    "trace/flush": TraceFlush,
    "trace/status": TraceStatus,
    "model/list": ModelList,
    "daemon/status": DaemonStatus,
    "daemon/stop": DaemonStop,
}


class Recording(Struct, frozen=True):
    """How recording goes: ok, degraded or off, why, and where the records are."""

    state: str
    reason: str
    root: str


class Initialized(Struct, frozen=True):
    """The daemon, and the environment variables it would like with session/create."""

    protocol: int
    agentd: str
    pid: int
    life: str
    env: tuple[str, ...]
    recording: Recording


class SessionCreated(Struct, frozen=True):
    """The session as it is now; `trace` is its directory ("" when nothing is recorded). `local`: its model costs nothing."""

    session: str
    workspace: str
    mode: str
    provider: str
    model: str
    resumed: bool
    notes: tuple[str, ...]
    trace: str
    local: bool = False


class Subscribed(Struct, frozen=True):
    """The newest cursor."""

    cursor: str


class Unsubscribed(Struct, frozen=True):
    """Done."""


class Prompted(Struct, frozen=True):
    """Accepted and saved, behind `queued` others."""

    prompt: str
    queued: int


class Cancelled(Struct, frozen=True):
    """Whether something was stopped."""

    cancelled: bool


class SessionSummary(Struct, frozen=True):
    """One line of session/list. state: idle, running, or stored (not in memory)."""

    session: str
    title: str
    workspace: str
    mode: str
    model: str
    updated_at: str
    state: str
    queued: int


class Sessions(Struct, frozen=True):
    """Newest first."""

    sessions: tuple[SessionSummary, ...]


class Flushed(Struct, frozen=True):
    """Whether everything recorded so far is on disk."""

    ok: bool
    state: str
    reason: str


class Traced(Struct, frozen=True):
    """The open recordings."""

    recording: Recording
    sessions: tuple[TraceSession, ...]


class Status(Struct, frozen=True):
    """The daemon's numbers. unrecorded: sessions in memory that nothing is recorded of."""

    agentd: str
    pid: int
    uptime_s: float
    sessions: int
    running: int
    queued: int
    clients: int
    recording: Recording
    unrecorded: int = 0


class Stopping(Struct, frozen=True):
    """The daemon will end."""

    stopping: bool


Result: TypeAlias = (
    Initialized
    | SessionCreated
    | Subscribed
    | Unsubscribed
    | Prompted
    | Cancelled
    | Sessions
    | Flushed
    | Traced
    | Models
    | Status
    | Stopping
)

RESULTS: Final[dict[str, type[Result]]] = {
    "initialize": Initialized,
    "session/create": SessionCreated,
    "session/configure": SessionCreated,
    "session/subscribe": Subscribed,
    "session/unsubscribe": Unsubscribed,
    "session/prompt": Prompted,
    "session/cancel": Cancelled,
    "session/list": Sessions,
    "trace/flush": Flushed,
    "trace/status": Traced,
    "model/list": Models,
    "daemon/status": Status,
    "daemon/stop": Stopping,
}


class SessionEvent(Struct, frozen=True):
    """A recorded event as it happens. `record` may be JSON already: it is encoded once for all subscribers."""

    session: str
    cursor: str
    record: Record | Raw


class SessionDelta(Struct, frozen=True):
    """A piece of text as it streams."""

    session: str
    run: str
    op: str
    kind: str
    offset: int
    text: str


class SessionLagged(Struct, frozen=True):
    """Events from … to, inclusive, are missing."""

    session: str
    from_: str = msgspec.field(name="from")
    to: str


class SessionEventRead(Struct, frozen=True):
    """session/event as a client decodes it: `tracewriter.events.event_of` types the record's data."""

    session: str
    cursor: str
    record: Raw


Notification: TypeAlias = SessionEvent | SessionDelta | SessionLagged
NOTIFICATIONS: Final[dict[str, type[SessionEventRead | SessionDelta | SessionLagged]]] = {
    "session/event": SessionEventRead,
    "session/delta": SessionDelta,
    "session/lagged": SessionLagged,
}


class ErrorData(Struct, frozen=True):
    """kind is for programs, hint says what to do next."""

    kind: str
    hint: str = ""


class Error(Struct, frozen=True, omit_defaults=True):
    """A request failed; `message` is one readable line."""

    code: int
    message: str
    data: ErrorData = ErrorData("error")


class Request(Struct, frozen=True, omit_defaults=True):
    """The envelope of a request. A request without an id is a notification and gets no answer."""

    jsonrpc: str
    method: str
    id: RequestId | UnsetType = UNSET
    params: Raw = Raw(b"{}")


class Reply(Struct, frozen=True, omit_defaults=True):
    """The envelope of what the daemon sends: an answer (result or error), or a notification (method and params)."""

    jsonrpc: str
    id: RequestId | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Error | UnsetType = UNSET
    method: str = ""
    params: Raw = Raw(b"{}")


class _Result(Struct, frozen=True):
    jsonrpc: str
    id: RequestId
    result: Result


class _Error(Struct, frozen=True):
    jsonrpc: str
    id: RequestId
    error: Error


class _Call(Struct, frozen=True):
    jsonrpc: str
    id: RequestId
    method: str
    params: Params


class _Notification(Struct, frozen=True):
    jsonrpc: str
    method: str
    params: Notification


class Invalid(Exception):
    """A line is no valid request: the code, a readable line, what to do next, and the id if one could be read."""

    def __init__(
        self, code: int, kind: str, message: str, request_id: RequestId = None, hint: str = "see PROTOCOL.md"
    ) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind
        self.id = request_id
        self.hint = hint


_encoder: Final = msgspec.json.Encoder()
_requests: Final = msgspec.json.Decoder(Request)
_replies: Final = msgspec.json.Decoder(Reply)
_params: Final = {method: msgspec.json.Decoder(cls) for method, cls in METHODS.items()}


def decode_request(line: bytes) -> Request:
    """The envelope of one line. Raises Invalid with -32700 for what is no JSON and -32600 for what is no request."""
    try:
        request = _requests.decode(line)
    except msgspec.ValidationError as exc:
        raise Invalid(INVALID_REQUEST, "invalid_request", f"not a JSON-RPC request: {exc}", likely_id(line)) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if broken_text(line):
            raise Invalid(PARSE_ERROR, "parse", f"the line {BROKEN}", likely_id(line), BROKEN_HINT) from exc
        raise Invalid(PARSE_ERROR, "parse", "the line is not valid JSON", likely_id(line)) from exc
    if request.jsonrpc != "2.0":
        raise Invalid(INVALID_REQUEST, "invalid_request", 'jsonrpc must be "2.0"', id_of(request))
    return request


def decode_params(request: Request) -> Params:
    """The params by their type. Raises Invalid with -32601 for an unknown method and -32602 for params that do not fit."""
    decoder = _params.get(request.method)
    if decoder is None:
        raise Invalid(UNKNOWN_METHOD, "unknown_method", f"unknown method: {request.method[:100]}", id_of(request))
    try:
        return decoder.decode(request.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if broken_text(request.params):
            words = f"{request.method}: the params {BROKEN.replace('is', 'are', 1)}"
            raise Invalid(INVALID_PARAMS, "invalid_params", words, id_of(request), BROKEN_HINT) from exc
        # The text names the field and the types, never the value.
        raise Invalid(INVALID_PARAMS, "invalid_params", f"{request.method}: {exc}", id_of(request)) from exc


def decode_reply(line: bytes) -> Reply:
    """One line of the daemon. Raises msgspec.DecodeError (msgspec.ValidationError is one) for anything else."""
    return _replies.decode(line)


def id_of(request: Request) -> RequestId:
    """The id to answer with; null for a request that has none."""
    return None if request.id is UNSET else request.id


def encode_request(request_id: RequestId, method: str, params: Params) -> bytes:
    """One line, LF included."""
    return _line(_Call("2.0", request_id, method, params))


def encode_result(request_id: RequestId, result: Result) -> bytes:
    """One line, LF included."""
    return _line(_Result("2.0", request_id, result))


def encode_error(request_id: RequestId, error: Error) -> bytes:
    """One line, LF included."""
    return _line(_Error("2.0", request_id, error))


def encode_notification(params: Notification) -> bytes:
    """One line, LF included; the method follows from the type."""
    match params:
        case SessionEvent():
            method = "session/event"
        case SessionDelta():
            method = "session/delta"
        case SessionLagged():
            method = "session/lagged"
    return _line(_Notification("2.0", method, params))


def _line(message: Struct) -> bytes:
    return _encoder.encode(message) + b"\n"
