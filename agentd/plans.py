"""What a session is to be made of, decided from what was asked, what it was before, and the configuration. Pure, but for looking
at the workspace.

Recording: what a session was begun with holds for it, also when it is resumed from the store, until a client names another mode.
One that was begun unrecorded stays so: its conversation goes into the record with the next request, and somebody did not want that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from agentd.config import CAPTURES, MAX_FALLBACKS, Config
from agentd.errors import Refusal
from agentd.prompts import MODES
from agentd.protocol import SessionCreate, SessionSummary
from agentd.providers import catalog
from agentd.providers.catalog import Choice, KeyReaders
from agentd.saving import stamp
from agentd.session import Agent, Conversation, Session
from agentd.store import Loaded, StoredSession
from agentd.tools.workspace import Workspace
from tracewriter.events import Failure

NOT_UTF8: Final = "its real path has bytes that are not UTF-8"
# From the mode that records least to the one that records most.
_LEAST_FIRST: Final = ("off", "metadata", "content", "stream")
_VALUE_CHARS: Final = 200


class Plan(Struct, frozen=True):
    """A session as it will be. unrecorded: why nothing is recorded, "" when it is."""

    session: str
    agent: Agent
    conversation: Conversation
    resumed: bool
    ephemeral: bool
    capture: str
    secrets: tuple[str, ...]
    notes: tuple[str, ...]
    unrecorded: str


class Change(Struct, frozen=True):
    """A setting that a client wants to be another."""

    setting: str
    value: str


def mode_of(params: SessionCreate, live: Session | None, stored: Loaded | None, config: Config) -> str:
    """The mode: asked for, as before, or configured. Raises Refusal."""
    before = live.agent.mode if live else stored.session.mode if stored else None
    mode = params.mode or before or config.mode
    if mode not in MODES:
        raise Refusal("bad_mode", f"there is no mode {mode[:50]!r}", f"one of {', '.join(MODES)}")
    return mode


def capture_of(params: SessionCreate, live: Session | None, stored: Loaded | None, config: Config) -> tuple[str, str]:
    """The capture mode, and why nothing is recorded ("" when something is). Raises Refusal."""
    before = "" if live and live.ephemeral else live.capture if live else stored.session.capture if stored else ""
    capture = params.capture or before or config.capture
    if capture not in CAPTURES:
        raise Refusal("config", f"there is no capture mode {capture[:50]!r}", f"one of {', '.join(CAPTURES)}")
    if _no_trace(params):
        return "off", "AGENTD_NO_TRACE is set"
    if before == "off":
        return "off", "the session was begun without a record and stays so"
    return capture, "capture is off" if capture == "off" else ""


def _no_trace(params: SessionCreate) -> bool:
    return params.env.get("AGENTD_NO_TRACE", "") not in ("", "0")


def changes_of(params: SessionCreate, live: Session) -> tuple[Change, ...]:
    """What the client wants to be other than it is."""
    agent = live.agent
    wanted = (
        ("mode", params.mode, (agent.mode,)),
        ("model", params.model, (agent.label, agent.model)),
        ("capture", "off" if _no_trace(params) else params.capture, (live.capture,)),
    )
    return tuple(Change(name, value[:_VALUE_CHARS]) for name, value, now in wanted if value and value not in now)


def check_join(params: SessionCreate, live: Session, *, strict: bool) -> None:
    """Raise Refusal when the client must not join this session while a run goes on: it wants less recorded, or insists."""
    if strict:
        raise Refusal("busy", "a run is going on: nothing can be changed", "wait for its end, or cancel it")
    wanted = "off" if _no_trace(params) else params.capture
    if wanted in CAPTURES and _LEAST_FIRST.index(wanted) < _LEAST_FIRST.index(live.capture):
        raise Refusal(
            "busy",
            f"a run of this session is going on, and is recorded (capture {live.capture})",
            "wait for its end, or begin a new session",
        )


def busy_notes(params: SessionCreate, live: Session) -> tuple[str, ...]:
    """What is said to who joins a session that is running."""
    if not changes_of(params, live):
        return ()
    return ("a run is going on: mode, model, capture and keys stay as they are",)


async def open_workspace(cwd: str) -> Workspace:
    """The directory to work in. Raises Refusal."""
    if not os.path.isabs(cwd):
        raise Refusal("bad_cwd", "cwd must be an absolute path", "send the client's own working directory")
    try:
        workspace = await asyncio.to_thread(Workspace, cwd)
        # What JSON cannot carry cannot be recorded or answered either.
        os.fspath(workspace.root).encode()
        return workspace
    except UnicodeEncodeError as exc:
        raise Refusal("bad_cwd", f"cannot work in {cwd[:500]}: {NOT_UTF8}", "rename the directory") from exc
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "not a path"
        raise Refusal("bad_cwd", f"cannot work in {cwd[:500]}: {why.lower()}", "go to a directory that exists") from exc


def secrets_of(choices: Sequence[Choice], env: Mapping[str, str], config: Config) -> tuple[str, ...]:
    """The exact values that must not be recorded."""
    values = set(catalog.secret_values(env, config.providers))
    values.update(choice.key.reveal() for choice in choices if choice.key is not None)
    return tuple(sorted(values))


class Chosen(Struct, frozen=True):
    """The model and, in their order, the fallbacks that can be asked; `notes` say which cannot, and why."""

    choice: Choice
    fallbacks: tuple[Choice, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Choice, ...]:
        """Every place that requests may go to."""
        return (self.choice, *self.fallbacks)


def choose(
    model: str | None,
    place: tuple[str, str],
    fallbacks: Sequence[str],
    env: Mapping[str, str],
    config: Config,
    keys: KeyReaders,
) -> Chosen | Failure:
    """The model at its place (base URL, socket; "" for none), with the fallbacks of these names, each with its own provider's
    key. May block: key files and commands."""

    def known(name: str | None, base_url: str = "", uds: str = "") -> Choice | Failure:
        where = {"base_url": base_url or None, "uds": uds or None}
        providers, default = config.providers, config.default_provider
        return catalog.resolve(name, **where, env=env, overrides=providers, default_provider=default, keys=keys)

    choice = known(model, *place)
    if isinstance(choice, Failure):
        return choice
    chosen, notes = list[Choice](), list[str]()
    for name in filter(str.strip, fallbacks):
        found = known(name)
        if isinstance(found, Failure):
            notes.append(f"the fallback {name[:_VALUE_CHARS]} cannot be asked: {found.message}")
        elif (found.spec.name, found.model) not in [(one.spec.name, one.model) for one in (choice, *chosen)]:
            chosen.append(found)
    return Chosen(choice, tuple(chosen), tuple(notes))


def fallback_names(params: SessionCreate, live: Session | None, config: Config) -> tuple[str, ...]:
    """The fallbacks: asked for, as before, or configured. Raises Refusal."""
    if params.fallback is None:
        return live.agent.fallback_names if live else config.fallback
    if len(params.fallback) > MAX_FALLBACKS:
        raise Refusal("config", f"{len(params.fallback)} fallbacks are too many", f"at most {MAX_FALLBACKS}")
    return params.fallback


def place_of(params: SessionCreate, live: Session | None, stored: Loaded | None) -> tuple[str, str]:
    """The address given for the model, now or when the session was made: who names another model starts anew."""
    if params.base_url or params.uds or params.model:
        return params.base_url or "", params.uds or ""
    if live is not None:
        return live.agent.base_url, live.agent.uds
    return (stored.session.base_url, stored.session.uds) if stored is not None else ("", "")


def stored_notes(stored: Loaded | None) -> list[str]:
    """What is said to who resumes a stored session."""
    if stored is None:
        return []
    notes = [f"accepted earlier but never run: {text[:200]!r}" for text in stored.pending[:5]]
    if stored.damaged:
        notes.append(f"{stored.damaged} stored messages could not be read and were left out")
    return notes


def session_summary(session: Session) -> SessionSummary:
    """The line of a session in memory."""
    return SessionSummary(
        session.id,
        session.title,
        session.workspace,
        session.agent.mode,
        session.agent.label,
        stamp(session.updated_at),
        session.state,
        session.queued,
    )


def stored_summary(row: StoredSession) -> SessionSummary:
    """The line of one that is not."""
    return SessionSummary(row.id, row.title, row.cwd, row.mode, row.model, row.updated_at, "stored", 0)
