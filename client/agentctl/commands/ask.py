"""agentctl ask: one prompt, shown as it runs, until the run that took it up has ended."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from agentctl import format as fmt
from agentctl import wire
from agentctl.connection import Stopping
from agentctl.errors import (
    DONE,
    INCOMPLETE,
    INTERRUPTED,
    REFUSED,
    DaemonGone,
    NoAnswer,
    NoDaemon,
    Refused,
    UsageProblem,
)
from agentctl.ids import Recorded, choose, matching, recorded
from agentctl.interrupts import Interrupts
from agentctl.render import LiveRun, run_line
from agentctl.starting import open_daemon
from agentctl.undecodable import repaired, require_text
from agentd.paths import traces_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentctl.arguments import Parsed
    from agentctl.connection import Connection
    from agentctl.output import Output
    from agentctl.wire import Json
    from agentctl.world import World

MAX_PROMPT_BYTES: Final = 4 * 1024 * 1024
# After a cancel the run ends at once; a daemon that cannot say so in this time is left alone.
CANCEL_S: Final = 10.0
# How often to ask whether the run still goes on, once its end may have been missed.
LOST_POLL_S: Final = 2.0
STOPPING_S: Final = 10.0


class Request(NamedTuple):
    """What is asked of the daemon. mode "": plan. capture "": as the session is recorded already, or as configured."""

    prompt: str
    mode: str = ""
    model: str = ""
    base_url: str = ""
    uds: str = ""
    session: str = ""
    resume_last: bool = False
    ephemeral: bool = False
    capture: str = ""
    fallback: tuple[str, ...] = ()


class Answer(NamedTuple):
    """How it ended: the exit code, the session, and what the recorder said ("" states: it was not asked)."""

    exit_code: int
    session: wire.Session
    recording: wire.Recording


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when the run completed, 4 when it was refused, 130 after Ctrl-C, else 1."""
    request = request_of(parsed, _prompt(parsed, world), world.cwd)
    return ask(request, world, quiet=parsed.has("quiet"), as_json=parsed.has("json")).exit_code


def request_of(parsed: Parsed, prompt: str, cwd: str) -> Request:
    """The request that the command line means. Raises UsageProblem for options that exclude each other."""
    mode = parsed.value("mode") or ""
    if parsed.has("build"):
        if mode not in ("", "build"):
            raise UsageProblem(f"ask: -b and --mode {mode} exclude each other", "see agentctl ask --help")
        mode = "build"
    if parsed.has("continue") and parsed.has("session"):
        raise UsageProblem("ask: -c and --session exclude each other", "see agentctl ask --help")
    if parsed.has("ephemeral") and (parsed.has("continue") or parsed.has("session")):
        raise UsageProblem("ask: an ephemeral session cannot be continued", "see agentctl ask --help")
    if not cwd:
        raise UsageProblem("the current directory no longer exists", "cd to one that does")
    for name in ("model", "base-url", "uds", "session"):
        require_text(f"ask: --{name}", parsed.value(name) or "", "see agentctl ask --help")
    for model in parsed.all("fallback"):
        require_text("ask: --fallback", model, "see agentctl ask --help")
    uds = parsed.value("uds") or ""
    return Request(
        prompt,
        mode,
        parsed.value("model") or "",
        parsed.value("base-url") or "",
        os.path.join(cwd, uds) if uds else "",
        parsed.value("session") or "",
        parsed.has("continue"),
        parsed.has("ephemeral"),
        parsed.value("capture") or "",
        parsed.all("fallback"),
    )


def _prompt(parsed: Parsed, world: World) -> str:
    prompt = " ".join(parsed.operands)
    if parsed.operands == ("-",):
        try:
            prompt = world.stdin.read(MAX_PROMPT_BYTES + 1)
        except OSError as problem:
            raise UsageProblem(f"ask: cannot read standard input: {problem.strerror}") from problem
    if not prompt.strip():
        raise UsageProblem("ask: the prompt is empty", "see agentctl ask --help")
    if len(prompt) > MAX_PROMPT_BYTES:
        raise UsageProblem("ask: the prompt is over 4 MiB", "put long material into files in the workspace")
    text, replaced = repaired(prompt)
    if replaced:
        world.out.note(f"the prompt is not all UTF-8: {fmt.count(replaced, 'byte')} replaced by U+FFFD", "yellow")
    return text


def ask(request: Request, world: World, *, quiet: bool = False, as_json: bool = False) -> Answer:
    """Prompt the daemon (started when needed) and show the run. Raises ClientError when no run came to be."""
    require_text("the current directory's name", world.cwd, "agentd can only work in one with a plain name")
    connection, session = _open_session(request, world)
    try:
        with Interrupts() as interrupts:
            watch = _Watch(connection, session, world.out, interrupts, quiet=quiet, as_json=as_json)
            return watch.prompt(request.prompt)
    finally:
        connection.close()


def _open_session(request: Request, world: World) -> tuple[Connection, wire.Session]:
    deadline = time.monotonic() + STOPPING_S
    while True:
        connection, hello = open_daemon(world.env, patience=world.patience, note=world.out.note)
        try:
            return connection, _create(connection, _create_params(request, world, hello, connection), world)
        except (Stopping, DaemonGone):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # a daemon that was told to stop makes room for the next one
        except BaseException:
            connection.close()
            raise


def _create_params(request: Request, world: World, hello: wire.Hello, connection: Connection) -> Json:
    params: Json = {"cwd": world.cwd, "env": wanted_env(hello.env, world.env)}
    if request.session:
        params["session"] = _full_id(request.session, connection, world)
    if request.resume_last:
        params["resume_last"] = True
    params["mode"] = request.mode or "plan"  # also when it goes on: writing is asked for each time
    for name in ("model", "base_url", "uds", "capture"):
        if value := getattr(request, name):
            params[name] = value
    if request.ephemeral:
        params["ephemeral"] = True
    if request.fallback:
        params["fallback"] = list(request.fallback)
    return params


def wanted_env(names: tuple[str, ...], env: Mapping[str, str]) -> Json:
    """Of the caller's environment what the daemon named, and nothing else."""
    wanted: Json = {}
    for name in names:
        if name in env:
            require_text(name, env[name], f"set {name} again in this shell, or unset it")
            wanted[name] = env[name]
    return wanted


def _create(connection: Connection, params: Json, world: World) -> wire.Session:
    try:
        return wire.session(connection.call("session/create", params))
    except UsageProblem as problem:
        if problem.kind != "unknown_session":
            raise
        raise _unknown(wire.string(params, "session"), world) from problem


def _unknown(typed: str, world: World) -> UsageProblem:
    """What is wrong with an id that the daemon knows no conversation of: the record may be there all the same."""
    kept = matching(typed, recorded(traces_dir(world.env)))
    if not kept:
        hint = "agentctl trace ls shows the recorded ones; -c goes on with the newest of this directory"
        return UsageProblem(f"there is no session {typed!r}", hint)
    session = kept[0].session if len(kept) == 1 else typed
    return UsageProblem(
        f"session {session} is recorded, but its conversation is gone: it cannot go on",
        f"what it did: agentctl trace summary {fmt.short_id(session)}; leave --session away to begin a new one",
    )


def _full_id(typed: str, connection: Connection, world: World) -> str:
    if len(typed) == 32:
        return typed.lower()
    listed = connection.call("session/list", {"limit": 1000}).get("sessions")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    ids = [wire.string(row, "session") for row in rows]
    if typed == "last" and ids:
        return ids[0]
    known = [Recorded(session, session) for session in ids]
    if not matching(typed, known):
        raise _unknown(typed, world)
    return choose(typed, known).session


class _Watch:
    """Follows one prompt to the end of its run."""

    def __init__(
        self,
        connection: Connection,
        session: wire.Session,
        out: Output,
        interrupts: Interrupts,
        *,
        quiet: bool,
        as_json: bool,
    ) -> None:
        self._connection = connection
        self._session = session
        self._out = out
        self._interrupts = interrupts
        self._quiet = quiet
        self._as_json = as_json
        self._live = LiveRun(out, quiet=quiet or as_json)
        self._prompt = ""
        self._run = ""
        self._lost = False
        self._cancelled = False
        self._give_up_at = float("inf")

    def prompt(self, text: str) -> Answer:
        """Subscribe first, so that nothing of the run can be missed; then prompt, follow and report."""
        self._notes()
        where: Json = {"session": self._session.session}
        self._connection.call("session/subscribe", where)
        accepted = self._connection.call("session/prompt", {**where, "text": text})
        self._prompt = wire.string(accepted, "prompt")
        if waiting := wire.integer(accepted, "queued"):
            self._note(f"{fmt.count(waiting, 'prompt')} of this session before this one")
        try:
            finished = self._follow()
        except (DaemonGone, NoAnswer) as problem:
            return self._daemon_gone(problem)
        return self._report(finished, self._flush())

    def _notes(self) -> None:
        session = self._session
        for note in session.notes:
            self._note(note)
        model = f"{session.provider}/{session.model}" if session.provider else session.model
        how = "goes on" if session.resumed else "begins"
        self._note(f"session {fmt.short_id(session.session)} {how}: {model}, {session.mode} mode")

    def _follow(self) -> wire.RunFinished | None:
        while True:
            notice = self._connection.next_notice(self._patience(), self._interrupts.wake)
            if self._interrupts.taken():
                self._cancel()
            if notice is None:
                if time.monotonic() >= self._give_up_at or (self._lost and self._is_idle()):
                    return None
                continue
            finished = self._take(notice)
            if finished is not None:
                return finished

    def _patience(self) -> float:
        if self._cancelled:
            return max(0.001, self._give_up_at - time.monotonic())
        return LOST_POLL_S if self._lost else 3600.0

    def _take(self, notice: wire.Notice) -> wire.RunFinished | None:
        if notice.session != self._session.session:
            return None
        match notice:
            case wire.Delta():
                if notice.run == self._run and not self._as_json:
                    self._live.delta(notice)
            case wire.Lagged():
                self._lost = True
                self._note("some events came too fast to be shown; the record has them")
            case wire.Event():
                return self._event(notice)
        return None

    def _event(self, event: wire.Event) -> wire.RunFinished | None:
        if self._as_json:
            self._out.json(event.record)
        fact = event.fact
        if isinstance(fact, wire.RunStarted) and fact.prompt == self._prompt:
            self._run = event.run
        if isinstance(fact, wire.PromptMoved) and fact.prompt == self._prompt:
            if fact.change == "consumed" and event.run:
                self._run = event.run  # steered into a run that another prompt began
            elif fact.change == "cleared":
                return wire.RunFinished("cancelled", 0, 0, 0, 0.0, 0, (), (), 0.0)
        if isinstance(fact, wire.SaveFailed):
            self._out.note(f"not saved: {fact.message}", "yellow")
            self._out.note(f"  {fact.hint}" if fact.hint else "  the conversation goes on in memory")
        if not self._run or event.run != self._run:
            return None
        if isinstance(fact, wire.RunFinished):
            return fact
        if not self._as_json:
            self._live.event(event.op, fact)
        return None

    def _cancel(self) -> None:
        self._cancelled = True
        self._give_up_at = time.monotonic() + CANCEL_S
        self._out.note("cancelling…")
        self._connection.call("session/cancel", {"session": self._session.session}, self._soon_s())

    def _soon_s(self) -> float:
        return min(CANCEL_S, self._connection.patience.call_s)

    def _is_idle(self) -> bool:
        listed = self._connection.call("session/list", {"limit": 1000}).get("sessions")
        rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        mine = [row for row in rows if wire.string(row, "session") == self._session.session]
        return not any(wire.string(row, "state") == "running" or wire.integer(row, "queued") for row in mine)

    def _flush(self) -> wire.Recording:
        try:
            answer = self._connection.call("trace/flush", {"session": self._session.session}, self._soon_s())
        except (Refused, DaemonGone, NoAnswer) as problem:
            return wire.Recording("unknown", problem.message)
        state = wire.recording(answer)
        if answer.get("ok") is not True and state.state == "ok":
            return wire.Recording("degraded", state.reason or "not everything is on disk yet")
        return state

    def _report(self, finished: wire.RunFinished | None, recording: wire.Recording) -> Answer:
        self._out.end_line()
        session = self._session.session
        if finished is None:
            self._out.note("the run's end was not seen", "yellow")
            code = INTERRUPTED if self._cancelled else INCOMPLETE
        else:
            code = self._outcome(finished)
            self._note(run_line(session, finished, local=self._session.local))
        self._recording(recording)
        return Answer(code, self._session, recording)

    def _outcome(self, finished: wire.RunFinished) -> int:
        if finished.outcome != "completed":
            for error in finished.errors:
                if error not in self._live.errors:
                    self._out.note(f"error: {error}", "red")
        if self._cancelled:
            return INTERRUPTED
        return {"completed": DONE, "refused": REFUSED}.get(finished.outcome, INCOMPLETE)

    def _recording(self, recording: wire.Recording) -> None:
        why = f": {recording.reason}" if recording.reason else ""
        if recording.state == "ok":
            self._note(f"record: agentctl trace summary {fmt.short_id(self._session.session)}")
        elif recording.state == "off":
            self._note(f"not recorded{why}")
        else:
            # Said even to those who want only the answer: they may count on the record.
            self._out.note(f"recording: {recording.state}{why}", "yellow")

    def _daemon_gone(self, problem: NoDaemon) -> Answer:
        self._out.end_line()
        self._out.note(f"agentctl: {problem.message} before the run had ended", "red")
        if problem.hint:
            self._out.note(problem.hint)
        short = fmt.short_id(self._session.session)
        self._out.note(
            f"what it did until then: agentctl trace summary {short}; to go on: agentctl ask --session {short} …"
        )
        code = INTERRUPTED if self._cancelled else INCOMPLETE
        return Answer(code, self._session, wire.Recording("unknown", "agentd is gone"))

    def _note(self, text: str) -> None:
        if not self._quiet:
            self._out.note(text, "dim")
