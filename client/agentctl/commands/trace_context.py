"""agentctl trace context: what the model saw, rebuilt from the record: as text, as JSON, or as the body that was sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agentctl import format as fmt
from agentctl.commands.trace import find
from agentctl.context import Missing, outline
from agentctl.context_sources import rebuild
from agentctl.errors import DAMAGED, DONE, INCOMPLETE, ClientError, UsageProblem
from agentctl.ids import MAX_CANDIDATES, choose_run, matching, recorded
from agentctl.safe_text import safe_line
from agentd.messages import AssistantMessage, ToolMessage, UserMessage, encode_message
from agentd.paths import config_file, traces_dir
from tracewriter.findings import Note
from tracewriter.payload_files import SessionPayloads
from tracewriter.reader import list_sessions, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentctl.arguments import Parsed
    from agentctl.context import Line, Outline, Request
    from agentctl.output import Output
    from agentctl.world import World
    from agentd.messages import Message
    from tracewriter.findings import SessionEntry

# A run's id is a UUIDv7: its first 12 digits are the millisecond at which it began, by the clock that stamps the records.
_TIME_DIGITS: Final = 12
_SLACK_MS: Final = 3_600_000
_ID_DIGITS: Final = 32


def run(parsed: Parsed, world: World) -> int:
    """Exit 5 when damage was found, 1 when something of the request cannot be rebuilt, else 0. Raises UsageProblem."""
    path, run_id = locate(parsed.operands[0], parsed.value("run"), world)
    number = _number(parsed)
    with SessionPayloads(path) as payloads:
        told = outline(read(path), payloads.find, run_id, number)
        if told.chosen is None:
            raise UsageProblem(_no_such(run_id, number, told), f"agentctl trace summary {path.name}")
        request, damaged = rebuild(told.chosen, lambda: read(path), payloads.find)
    if parsed.has("body"):
        _show_body(request, world)
    elif parsed.has("json"):
        world.out.json_line(as_json(path.name, run_id, request, None if number else told).decode())
    else:
        _show(path.name, run_id, request, None if number else told, world.out)
    for line in (*request.missing, *request.notes):
        world.out.note(line, "yellow")
    damage = told.damage + damaged
    if damage:
        world.out.note(f"DAMAGE FOUND in {fmt.count(damage, 'place')} (agentctl trace verify tells where)", "red")
    return DAMAGED if damage else INCOMPLETE if request.missing else DONE


def _number(parsed: Parsed) -> int | None:
    typed = parsed.value("request")
    if typed is None:
        return None
    if not typed.isdecimal() or int(typed[:9]) < 1:
        raise UsageProblem(f"trace context: --request is a number from 1, not {typed!r}")
    return int(typed[:9])


def _no_such(run_id: str, number: int | None, told: Outline) -> str:
    count = len(told.lines) + told.more
    if number is None or not count:
        return f"the run {run_id} made no request that is recorded"
    return f"the run {run_id} has {fmt.count(count, 'recorded request')}, no number {number}"


# --- which run


def locate(typed: str, run_typed: str | None, world: World) -> tuple[Path, str]:
    """The session's directory and the run that were meant. Raises UsageProblem for none and for more than one.

    A run's id or its beginning; "last"; or a session (an id, its beginning, a directory), whose last run it then is.
    """
    sessions = matching(typed, recorded(traces_dir(world.env))) if typed != "last" and "/" not in typed else []
    exact = any(one.session == typed.lower() for one in sessions)
    if typed == "last" or "/" in typed or run_typed is not None or exact:
        path = find(typed, world)
        return path, _of_session(path, run_typed)
    found = find_runs(typed.lower(), list_sessions(Path(traces_dir(world.env))))
    if len(found) == 1 and not sessions:
        return found[0]
    if found:
        names = sorted({f"{run_id} in {path}" for path, run_id in found} | {one.path for one in sessions})
        more = f" and {len(names) - MAX_CANDIDATES} more" if len(names) > MAX_CANDIDATES else ""
        raise UsageProblem(
            f"{typed!r} is ambiguous: {', '.join(names[:MAX_CANDIDATES])}{more}",
            "give more of it, or the session or its directory with --run",
        )
    if not sessions and not Path(world.cwd, typed).is_dir():
        raise UsageProblem(f"no run and no session {typed!r} is recorded", "agentctl trace ls")
    path = find(typed, world)
    return path, _of_session(path, None)


def _of_session(path: Path, typed: str | None) -> str:
    runs = _runs(path)
    if typed is not None:
        return choose_run(typed, runs)
    if not runs:
        raise UsageProblem(f"no run is recorded in {path.name}", "agentctl trace ls")
    return runs[-1]


def _runs(path: Path) -> list[str]:
    named = (item.record.run for item in read(path) if not isinstance(item, Note))
    return list(dict.fromkeys(run_id for run_id in named if run_id))


def find_runs(typed: str, sessions: Sequence[SessionEntry]) -> list[tuple[Path, str]]:
    """All runs whose id begins so. Sessions that were recorded at another time than the id says are read only if need be."""
    now = [entry for entry in sessions if _at_that_time(typed, entry)]
    found = _runs_in(typed, now)
    return found or _runs_in(typed, [entry for entry in sessions if entry not in now])


def _runs_in(typed: str, sessions: Sequence[SessionEntry]) -> list[tuple[Path, str]]:
    return [(entry.path, run_id) for entry in sessions for run_id in _runs_of(entry) if run_id.startswith(typed)]


def _runs_of(entry: SessionEntry) -> list[str]:
    try:
        return _runs(entry.path)
    except OSError:
        return []  # it went meanwhile


def _at_that_time(typed: str, entry: SessionEntry) -> bool:
    if entry.started_at is None or entry.last_at is None:
        return True
    try:
        first, last = (int(typed[:_TIME_DIGITS].ljust(_TIME_DIGITS, digit), 16) for digit in "0f")
    except ValueError:
        return True
    started_ms, last_ms = (at.timestamp() * 1000 for at in (entry.started_at, entry.last_at))
    return started_ms - _SLACK_MS <= last and first <= last_ms + _SLACK_MS


# --- for people


def _show(session: str, run_id: str, request: Request, told: Outline | None, out: Output) -> None:
    out.line(f"run {run_id} of session {session}", "bold")
    if told is not None:
        for line in told.lines:
            out.line(_list_line(line))
        if told.more:
            out.line(f"{'…':>4}  {told.more:,} more")
    head = f"request {request.line.number}: {_kind(request.line)}, {_size(request.line)}"
    out.line(head, "bold")
    _show_part(out, "system", request.system)
    if isinstance(request.tools, Missing):
        _show_part(out, "tools", request.tools)
    else:
        out.line(f"tools: {', '.join(map(_tool_name, request.tools)) or 'none'}", "bold")
    for at, message in enumerate(request.messages):
        if out.closed:
            return
        _show_message(out, at, message)


def _list_line(line: Line) -> str:
    return f"{line.number:>4}  {line.op}  {_kind(line)}, {_size(line)} ({line.new:,} new)"


def _kind(line: Line) -> str:
    return f"{safe_line(line.purpose)} to {safe_line(line.provider)}/{safe_line(line.model)}"


def _size(line: Line) -> str:
    count = "messages unknown" if line.count is None else fmt.count(line.count, "message")
    return f"{count}, {fmt.count(line.chars, 'character')}"


def _tool_name(raw: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=_Named).name
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "?"


class _Named(msgspec.Struct):
    name: str


def _show_part(out: Output, name: str, text: str | Missing) -> None:
    out.line(name, "bold")
    if isinstance(text, Missing):
        out.line(f"    [missing: {text.why}]", "red")
    else:
        for line in _indented(text):
            out.lines(line)


def _show_message(out: Output, at: int, message: Message | Missing) -> None:
    match message:
        case Missing():
            _show_part(out, f"[{at}]", message)
        case UserMessage(text):
            _show_part(out, f"[{at}] user", text)
        case ToolMessage(call_id, name, text, is_error):
            failed = ", failed" if is_error else ""
            _show_part(out, f"[{at}] tool {name} ({call_id}{failed})", text)
        case AssistantMessage(text, reasoning, calls, opaque):
            _show_part(out, f"[{at}] assistant", text)
            for line in _indented(reasoning, "(reasoning) "):
                out.lines(line, "dim")
            for call in calls:
                out.lines(f"    calls {safe_line(call.name)} ({safe_line(call.id)}) {_text(call.input)}")
            if opaque:
                out.line(f"    (and {fmt.size(sum(map(len, opaque)))} that only the provider understands)", "dim")


def _indented(text: str, mark: str = "") -> Iterator[str]:
    if text:
        yield from (f"    {mark}{line}" for line in text.removesuffix("\n").split("\n"))


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")


# --- for programs


def as_json(session: str, run_id: str, request: Request, told: Outline | None) -> bytes:
    """The request as a document. What is missing stands in its place as {"missing": why}; `whole` says whether anything is."""
    document = {
        "session": session,
        "run": run_id,
        **({} if told is None else {"requests": told.lines, "more": told.more}),
        "request": request.line,
        "whole": not request.missing,
        "system": request.system,
        "tools": request.tools,
        "messages": [_as_recorded(message) for message in request.messages],
        "notes": request.notes,
    }
    return msgspec.json.encode(document)


def _as_recorded(message: Message | Missing) -> Missing | msgspec.Raw:
    return message if isinstance(message, Missing) else msgspec.Raw(encode_message(message))


def _show_body(request: Request, world: World) -> None:
    """The body on stdout, or nothing: half a request would be another one."""
    if not request.missing:
        world.out.json_line(body_of(request, config_file(world.env)).decode())


def body_of(request: Request, config_path: str) -> bytes:
    """The body as the provider's wire sends it. Raises ClientError for a provider or a wire that is not known here."""
    # What speaks to providers is a third of a second of imports, and only this needs it.
    from agentd.config import load_config
    from agentd.errors import AgentdError
    from agentd.providers.catalog import for_model, specs
    from agentd.providers.stream import ModelRequest, ToolSpec
    from agentd.providers.wires import WIRES

    line = request.line
    try:
        spec = specs(load_config(config_path).providers).get(line.provider)
    except AgentdError as problem:
        raise ClientError(str(problem), "mend it, or use --json") from problem
    wire = None if spec is None else WIRES.get(for_model(spec, line.model).wire)
    if spec is None or wire is None:
        raise ClientError(f"how to speak to the provider {line.provider!r} is not known here", "use --json")
    if isinstance(request.system, Missing) or isinstance(request.tools, Missing):
        raise ClientError("the request is not whole", "use --json")
    try:
        tools = tuple(msgspec.json.decode(tool, type=ToolSpec) for tool in request.tools)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ClientError("the tools that were recorded cannot be read", "use --json") from problem
    messages = tuple(message for message in request.messages if not isinstance(message, Missing))
    return wire.build(ModelRequest(line.model, request.system, messages, tools), spec.quirks)
