"""What the daemon sends, as values. Pure: a decoded JSON object in, a typed notice out, anything unexpected as Other.

The daemon may be newer or older than we are: what is missing reads as empty, what is unknown is passed over.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Json: TypeAlias = dict[str, object]


class RunStarted(NamedTuple):
    """A run took up the prompt of this id."""

    prompt: str
    provider: str
    model: str


class RunFinished(NamedTuple):
    """A run is over. cost_usd None: unknown. input_tokens None: the provider said nothing of what was used."""

    outcome: str
    input_tokens: int | None
    output_tokens: int
    cache_read_tokens: int
    cost_usd: float | None
    tools: int
    files: tuple[str, ...]
    errors: tuple[str, ...]
    duration_ms: float


class PromptMoved(NamedTuple):
    """A prompt was added to the queue, consumed by a run, or cleared."""

    change: str
    prompt: str


class RequestStarted(NamedTuple):
    """A model request; only those of purpose `main` are the answer."""

    purpose: str


class RequestFinished(NamedTuple):
    """All that a model request gave."""

    text: str
    refusal: str


class RequestFailed(NamedTuple):
    """A model request failed; text is what it gave before that."""

    message: str
    hint: str
    text: str


class Retry(NamedTuple):
    """A request will be sent again after a wait, or to another model ("": to the same)."""

    attempt: int
    wait_ms: float
    message: str
    other: str = ""


class ToolStarted(NamedTuple):
    """A tool call begins; `argument` is the one worth showing."""

    name: str
    argument: str


class ToolFinished(NamedTuple):
    """A tool call ended."""

    name: str
    is_error: bool
    output: str
    duration_ms: float


class SaveFailed(NamedTuple):
    """The conversation is not on disk; it goes on in memory."""

    message: str
    hint: str


class Other(NamedTuple):
    """A fact that nobody here shows."""

    name: str


Fact: TypeAlias = (
    RunStarted
    | RunFinished
    | PromptMoved
    | RequestStarted
    | RequestFinished
    | RequestFailed
    | Retry
    | ToolStarted
    | ToolFinished
    | SaveFailed
    | Other
)


class Event(NamedTuple):
    """A record as it happened: where it is from, what it says, and the record itself for --json."""

    session: str
    cursor: str
    run: str
    op: str
    fact: Fact
    record: Json


class Delta(NamedTuple):
    """A piece of text. offset: code points of this kind in this op before it."""

    session: str
    run: str
    op: str
    kind: str
    offset: int
    text: str


class Lagged(NamedTuple):
    """Events from one cursor to another will not come."""

    session: str
    first: str
    last: str


Notice: TypeAlias = Event | Delta | Lagged


class Hello(NamedTuple):
    """Whom we speak to. `env` names the variables that the daemon wants of us, `recording` is its recorder's state."""

    agentd: str
    pid: int
    env: tuple[str, ...]
    recording: Recording


class Recording(NamedTuple):
    """ok, degraded or off, and why."""

    state: str
    reason: str
    root: str = ""


class Session(NamedTuple):
    """A session that was created or resumed. `trace`: its directory, "" when none is kept. `local`: its model costs nothing."""

    session: str
    workspace: str
    mode: str
    provider: str
    model: str
    resumed: bool
    notes: tuple[str, ...]
    trace: str
    local: bool = False


def notice(message: Json) -> Notice | None:
    """The notice in a notification, None for methods that this version does not know."""
    params = obj(message, "params")
    method = message.get("method")
    if method == "session/event":
        return _event(params)
    if method == "session/delta":
        where = (string(params, "session"), string(params, "run"), string(params, "op"))
        return Delta(*where, string(params, "kind"), integer(params, "offset"), string(params, "text"))
    if method == "session/lagged":
        return Lagged(string(params, "session"), string(params, "from"), string(params, "to"))
    return None


def _event(params: Json) -> Event:
    record = obj(params, "record")
    name = string(record, "event")
    where = (string(params, "session"), string(params, "cursor"), string(record, "run"), string(record, "op"))
    return Event(*where, _fact(name, obj(record, "data")), record)


def _fact(name: str, data: Json) -> Fact:
    match name:
        case "run.execute.started":
            return RunStarted(string(data, "prompt"), string(data, "provider"), string(data, "model"))
        case "run.execute.finished":
            return _run_finished(data)
        case "prompt.queue.observed":
            return PromptMoved(string(data, "change"), string(data, "prompt"))
        case "model.request.started":
            return RequestStarted(string(data, "purpose"))
        case "model.request.finished":
            return RequestFinished(string(data, "text"), string(data, "refusal"))
        case "model.request.failed":
            error = obj(data, "error")
            return RequestFailed(string(error, "message"), string(error, "hint"), string(data, "text"))
        case "session.save.failed":
            error = obj(data, "error")
            return SaveFailed(string(error, "message"), string(error, "hint"))
        case "model.retry.observed":
            message = string(obj(data, "error"), "message")
            model = string(data, "model")
            other = f"{string(data, 'provider')}/{model}" if model else ""
            return Retry(integer(data, "attempt"), number(data, "wait_ms") or 0.0, message, other)
        case "tool.call.started":
            return ToolStarted(string(data, "name"), main_argument(data.get("input")))
        case "tool.call.finished":
            is_error = data.get("is_error") is True
            output = string(data, "output")
            return ToolFinished(string(data, "name"), is_error, output, number(data, "duration_ms") or 0.0)
        case _:
            return Other(name)


def _run_finished(data: Json) -> RunFinished:
    used = obj(data, "usage")
    return RunFinished(
        string(data, "outcome"),
        integer(used, "input_tokens") if used else None,
        integer(used, "output_tokens"),
        integer(used, "cache_read_tokens"),
        number(data, "cost_usd"),
        len(strings(data, "tools")),
        strings(data, "files"),
        strings(data, "errors"),
        number(data, "duration_ms") or 0.0,
    )


def hello(result: Json) -> Hello:
    """The answer to initialize."""
    return Hello(
        string(result, "agentd"), integer(result, "pid"), strings(result, "env"), recording(obj(result, "recording"))
    )


def recording(result: Json) -> Recording:
    """The recorder's state, in initialize, daemon/status and trace/flush."""
    return Recording(string(result, "state"), string(result, "reason"), string(result, "root"))


def session(result: Json) -> Session:
    """The answer to session/create."""
    return Session(
        string(result, "session"),
        string(result, "workspace"),
        string(result, "mode"),
        string(result, "provider"),
        string(result, "model"),
        result.get("resumed") is True,
        strings(result, "notes"),
        string(result, "trace"),
        result.get("local") is True,
    )


# The arguments that say what a call is about, the most telling first.
_TELLING = ("command", "pattern", "query", "path", "file_path", "file", "url", "name")


def main_argument(arguments: object) -> str:
    """The one argument of a tool call worth showing: a telling name's, else the first that is text. A list of paths counts."""
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, dict):
        return ""
    if isinstance(arguments.get("payload"), str) and isinstance(arguments.get("head"), str):
        return str(arguments["head"])  # the whole is in a payload file
    for name in _TELLING:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            return value
    return next((value for value in arguments.values() if isinstance(value, str) and value), "")


def obj(data: Json, key: str) -> Json:
    """The object at key, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def string(data: Json, key: str) -> str:
    """The text at key, or ""."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def strings(data: Json, key: str) -> tuple[str, ...]:
    """The texts in the list at key."""
    value = data.get(key)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def integer(data: Json, key: str) -> int:
    """The whole number at key, or 0."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def number(data: Json, key: str) -> float | None:
    """The number at key, or None."""
    value = data.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
