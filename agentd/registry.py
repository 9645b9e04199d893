"""All sessions of the daemon: made, resumed, found, counted, closed when nobody needs them.

What a session is made of is decided before it exists (`_plan`), so that a refusal leaves nothing behind. A session that is
idle and that nobody follows is closed after a while: its recording ends in order, the store keeps its conversation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from agentd import __version__
from agentd.config import CAPTURES, Config
from agentd.errors import Refusal
from agentd.feed import Feed, RingBudget
from agentd.ids import is_session_id
from agentd.paths import workspace_hash
from agentd.prompts import MODES, system_prompt
from agentd.protocol import SessionCreate, SessionCreated, SessionSummary
from agentd.providers import catalog
from agentd.providers.catalog import Choice
from agentd.session import Agent, Conversation, ModelProvider, Services, Session, stamp
from agentd.settling import Settled, Settling, ended
from agentd.store import Loaded, StoredSession, StoreError
from agentd.tools.base import ToolContext
from agentd.tools.registry import tools_for
from agentd.tools.workspace import Workspace
from tracewriter.events import ConfigChangeApplied, Failure, SessionLifecycleObserved
from tracewriter.sender import Trace

MAX_SESSIONS: Final = 1_000
MAX_RUNNING: Final = 64
# A command that asked once is gone; its recording should not stay open for long.
IDLE_CLOSE_S: Final = 60.0
MAX_ENV_VALUE: Final = 16 * 1024
# Keys remembered per session, the newest; nobody changes a session's key more often.
MAX_SECRETS: Final = 64
NOT_UTF8: Final = "its real path has bytes that are not UTF-8"
# Sessions closed at the same time to make room: each may wait seconds for a recorder that does not answer.
MAX_SETTLING: Final = 64

MakeProvider = Callable[[Choice, Mapping[str, str]], ModelProvider]


class OpenTrace(Protocol):
    """tracewriter.sender.Sender.open, or what stands for it."""

    def __call__(
        self,
        session: str,
        workspace: str,
        *,
        agentd: str,
        mode: str,
        capture: str,
        secrets: tuple[str, ...] = (),
        resumed: bool = False,
    ) -> Trace: ...


class _Plan(Struct, frozen=True):
    session: str
    agent: Agent
    conversation: Conversation
    resumed: bool
    ephemeral: bool
    capture: str
    secrets: tuple[str, ...]
    notes: tuple[str, ...]
    unrecorded: str  # why nothing is recorded; "" when it is


class Registry:
    """Sessions by id. `open_trace` and `null_trace` give the recorder's side, `make_provider` the model's."""

    def __init__(
        self,
        config: Config,
        services: Services,
        *,
        life: str,
        traces_root: str,
        open_trace: OpenTrace,
        null_trace: Callable[[str, str], Trace],
        make_provider: MakeProvider,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._config = config
        self._services = services
        self._life = life
        self._traces_root = traces_root
        self._open_trace = open_trace
        self._null_trace = null_trace
        self._make_provider = make_provider
        self._max_sessions = max_sessions
        self._rings = RingBudget()
        self._sessions: dict[str, Session] = {}
        self._recorded: dict[str, tuple[str, ...]] = {}  # the secrets that the recorder knows; absent: not recorded
        # All keys that clients brought for a session, kept while the daemon lives: its conversation may hold earlier ones.
        self._brought: dict[str, tuple[str, ...]] = {}
        # Resuming, one at a time: two clients that resume a session must get the same one.
        self._resuming = asyncio.Lock()
        self._settling = Settling(services.tasks)
        self._closed = False

    def __repr__(self) -> str:
        return f"<Registry sessions={len(self._sessions)} running={self.running}>"

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def running(self) -> int:
        """Runs in progress."""
        return sum(session.running for session in self._sessions.values())

    @property
    def queued(self) -> int:
        """Prompts that wait."""
        return sum(session.queued for session in self._sessions.values())

    @property
    def busy(self) -> bool:
        """Whether any session has something to do."""
        return any(session.state == "running" for session in self._sessions.values())

    @property
    def env_names(self) -> tuple[str, ...]:
        """The variables that clients are asked for."""
        return (*catalog.env_names(self._config.providers), "AGENTD_NO_TRACE")

    def find(self, session_id: str) -> Session:
        """A session in memory. Raises Refusal."""
        session = self._sessions.get(session_id)
        if session is None:
            name = session_id[:64] if is_session_id(session_id[:64]) else "of that name"
            raise Refusal(
                "unknown_session", f"there is no session {name} in memory", "session/create with its id resumes it"
            )
        return session

    async def create(self, params: SessionCreate) -> SessionCreated:
        """A new session, or an existing one with what the client brought. Raises Refusal."""
        if params.session is None and not params.resume_last:
            return await self._create(params)
        async with self._resuming:
            return await self._create(params)

    async def _create(self, params: SessionCreate) -> SessionCreated:
        live, stored = await self._existing(params)
        if live is not None and live.state == "running":
            return self._created(live, resumed=True, notes=_busy_notes(params, live))
        if live is not None:
            live.touch()  # it is wanted: not to be closed as idle before its client's next request
        plan = await self._plan(params, live, stored)
        if live is None:
            await self._make_room()
            self._check_open()
            live = self._add(plan)
        else:
            self._check_open()
            if self._sessions.get(live.id) is not live:  # closed meanwhile, to make room: it is in the store now
                return await self._create(params)
            if live.state == "running":  # another client's prompt came while this one was looked at
                return self._created(live, resumed=True, notes=_busy_notes(params, live))
            await self._renewed(live, plan)
        return self._created(live, resumed=plan.resumed, notes=plan.notes)

    def _check_open(self) -> None:
        if self._closed:
            raise Refusal("stopping", "the daemon is ending", "try again in a moment")

    async def close_idle(self, idle_s: float = IDLE_CLOSE_S) -> None:
        """Close the sessions that are idle for so long and followed by nobody."""
        oldest_s = self._services.clock.monotonic() - idle_s
        idle = [s for s in self._sessions.values() if self._unused(s) and s.idle_since_s <= oldest_s]
        await ended(*map(self._close, idle))

    async def aclose(self) -> None:
        """End all runs as cancelled and all recordings in order, side by side. Nothing is made or resumed any more."""
        self._closed = True
        await self._settling.all()
        for session in self._sessions.values():
            self._settling.start(session.id, session.aclose)
        await self._settling.all()
        self._sessions.clear()  # only now: who followed a run to its end still asks for its recording

    async def list(self, limit: int) -> tuple[SessionSummary, ...]:
        """The newest sessions, in memory or stored."""
        rows = {session.id: _summary(session) for session in self._sessions.values()}
        store = self._services.store
        if store is not None:
            try:
                for row in await store.call(store.db.newest, limit):
                    rows.setdefault(row.id, _stored_summary(row))
            except StoreError:
                pass  # those in memory are shown; daemon/status has the reason
        return tuple(sorted(rows.values(), key=lambda row: row.updated_at, reverse=True)[:limit])

    # --- making

    async def _existing(self, params: SessionCreate) -> tuple[Session | None, Loaded | None]:
        wanted = params.session
        if params.resume_last and wanted is None:
            wanted = await self._newest_of(await asyncio.to_thread(os.path.realpath, params.cwd))
            if wanted is None:
                raise Refusal(
                    "no_session", f"no session of {params.cwd} can be resumed", "leave -c away to begin a new one"
                )
        if wanted is None:
            return None, None
        if not is_session_id(wanted):
            raise Refusal("unknown_session", "that is no session id", "`agentctl trace ls` lists what was recorded")
        await self._settling.over(wanted)
        live = self._sessions.get(wanted)
        stored = None if live is not None else await self._load(wanted)
        if live is None and stored is None:
            raise Refusal(
                "unknown_session", f"there is no session {wanted}", "`agentctl trace ls` lists what was recorded"
            )
        return live, stored

    async def _newest_of(self, cwd: str) -> str | None:
        newest = max(
            (s for s in self._sessions.values() if s.workspace == cwd), key=lambda s: s.updated_at, default=None
        )
        if newest is not None:
            return newest.id
        store = self._services.store
        try:
            return None if store is None else await store.call(store.db.newest_of, cwd)
        except StoreError as exc:
            raise Refusal("config", str(exc), exc.hint) from exc

    async def _load(self, session_id: str) -> Loaded | None:
        store = self._services.store
        try:
            return None if store is None else await store.call(store.db.load, session_id)
        except StoreError as exc:
            raise Refusal("config", str(exc), exc.hint) from exc

    async def _plan(self, params: SessionCreate, live: Session | None, stored: Loaded | None) -> _Plan:
        old_mode = live.agent.mode if live else stored.session.mode if stored else None
        mode = params.mode or old_mode or self._config.mode
        if mode not in MODES:
            raise Refusal("bad_mode", f"there is no mode {mode[:50]!r}", f"one of {', '.join(MODES)}")
        # A live session that is not recorded stays so: whoever began it asked for that.
        capture = live.capture if live and live.capture == "off" else params.capture or self._config.capture
        if capture not in CAPTURES:
            raise Refusal("config", f"there is no capture mode {capture[:50]!r}", f"one of {', '.join(CAPTURES)}")
        env = {name: params.env[name] for name in self.env_names if name in params.env}
        if any(len(value) > MAX_ENV_VALUE for value in env.values()):
            raise Refusal("config", "a variable in env is over 16 KiB", "unset it")
        same = live is not None and not (params.model or params.base_url or params.uds or env)
        choice = None if same else await self._choose(params, live, stored, env)
        where = live.workspace if live else stored.session.cwd if stored else params.cwd
        context = live.agent.context if live else ToolContext(await _workspace(where), {})
        if choice is None:
            assert live is not None
            provider, model = live.agent.provider, live.agent.model
        else:
            provider, model = self._make_provider(choice, env), choice.model
        workspace = str(context.workspace.root)
        place = _place(params, live, stored)
        agent = Agent(mode, provider, model, system_prompt(mode, workspace), tools_for(mode), context, *place)
        notes = [*(choice.notes if choice else ()), *_stored_notes(stored)]
        unrecorded = ""
        if env.get("AGENTD_NO_TRACE", "") not in ("", "0"):
            capture, unrecorded = "off", "AGENTD_NO_TRACE is set"
        elif capture == "off":
            unrecorded = "capture is off"
        elif capture == "stream":
            # Deltas need the hold-back of secrets that are split over them; without it they would be recorded in the clear.
            capture = "content"
            notes.append("capture stream is not available yet: recording as content")
        if unrecorded:
            notes.append(f"recording is off: {unrecorded}")
        ephemeral = live.ephemeral if live else params.ephemeral
        if ephemeral:
            unrecorded = unrecorded or "the session is ephemeral"
            notes.append("ephemeral: neither the conversation nor a record is kept")
        session_id = live.id if live else stored.session.id if stored else self._services.ids.uuid7()
        return _Plan(
            session_id,
            agent,
            await self._conversation(stored),
            live is not None or stored is not None,
            ephemeral,
            capture,
            self._all_secrets(session_id, _secrets(choice, env, self._config)),
            tuple(notes),
            unrecorded,
        )

    def _all_secrets(self, session_id: str, secrets: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._brought) >= 4 * self._max_sessions and session_id not in self._brought:
            del self._brought[next(iter(self._brought))]
        known = self._brought.get(session_id, ())
        new = tuple(secret for secret in secrets if secret not in known)
        self._brought[session_id] = (*known, *new)[-MAX_SECRETS:]
        return self._brought[session_id]

    async def _choose(
        self, params: SessionCreate, live: Session | None, stored: Loaded | None, env: Mapping[str, str]
    ) -> Choice:
        old = live.agent.label if live else stored.session.model if stored else None
        model = params.model or (None if params.base_url or params.uds else old or self._config.model or None)
        base_url, uds = _place(params, live, stored)

        def resolve() -> Choice | Failure:
            return catalog.resolve(
                model,
                base_url=base_url or None,
                uds=uds or None,
                env=env,
                overrides=self._config.providers,
                default_provider=self._config.default_provider,
            )

        choice = await asyncio.to_thread(resolve)  # it may read a key file
        if isinstance(choice, Failure):
            raise Refusal(choice.kind, choice.message, choice.hint)
        return choice

    async def _conversation(self, stored: Loaded | None) -> Conversation:
        store = self._services.store
        if stored is None or store is None:
            return Conversation()
        try:
            number = await store.call(store.db.next_number, stored.session.id)
        except StoreError as exc:
            raise Refusal("config", str(exc), exc.hint) from exc
        return Conversation(stored.messages, number, stored.session.title)

    async def _make_room(self) -> None:
        """Close what was idle longest. On return there is room, until the next await."""
        while len(self._sessions) >= self._max_sessions:
            unused = [session for session in self._sessions.values() if self._unused(session)]
            if unused and len(self._settling) < MAX_SETTLING:
                self._close(min(unused, key=lambda session: session.idle_since_s))
            elif self._settling:
                await self._settling.one()
            else:
                raise Refusal("overloaded", f"{self._max_sessions} sessions are in use", "end one, or wait")

    def _add(self, plan: _Plan) -> Session:
        agent = plan.agent
        workspace = str(agent.context.workspace.root)
        if plan.unrecorded:
            trace = self._null_trace(plan.session, plan.unrecorded)
        else:
            trace = self._record(plan, workspace, resumed=plan.resumed)
        services = self._services
        if plan.ephemeral:
            services = Services(
                services.clock, services.ids, services.price, services.run_tool, services.gate, services.tasks, None
            )
        feed = Feed(plan.session, self._life, self._rings)
        session = Session(plan.session, agent, feed, trace, services, plan.conversation, capture=plan.capture)
        self._sessions[plan.session] = session
        session.observe(SessionLifecycleObserved("resumed" if plan.resumed else "created"))
        session.save()
        store = services.store
        if plan.resumed and store is not None:
            store.post(lambda _: None, store.db.clear_prompts, session.id)
        return session

    def _record(self, plan: _Plan, workspace: str, *, resumed: bool) -> Trace:
        self._recorded[plan.session] = plan.secrets
        return self._open_trace(
            plan.session,
            workspace,
            agentd=__version__,
            mode=plan.agent.mode,
            capture=plan.capture,
            secrets=plan.secrets,
            resumed=resumed,
        )

    async def _renew(self, session: Session, plan: _Plan) -> None:
        old = session.agent
        known = self._recorded.get(session.id)
        if known is not None:
            session.capture = plan.capture
            if plan.capture == "off":
                del self._recorded[session.id]
                await session.record_with(lambda: self._null_trace(session.id, plan.unrecorded))
            elif not set(plan.secrets) <= set(known):
                # The recorder must know a key before anything can be recorded that holds it.
                await session.record_with(lambda: self._record(plan, session.workspace, resumed=True))
        await session.use(plan.agent)
        for setting, before, after in (("mode", old.mode, plan.agent.mode), ("model", old.label, plan.agent.label)):
            if before != after:
                session.observe(ConfigChangeApplied(setting, after))

    def _created(self, session: Session, *, resumed: bool, notes: tuple[str, ...]) -> SessionCreated:
        agent = session.agent
        trace = ""
        if session.id in self._recorded:
            trace = os.path.join(self._traces_root, workspace_hash(session.workspace), session.id)
        return SessionCreated(
            session.id, session.workspace, agent.mode, agent.provider.name, agent.model, resumed, notes, trace
        )

    # --- what takes time

    def _unused(self, session: Session) -> bool:
        idle = session.state == "idle" and not session.queued and not session.feed.subscriptions
        return idle and session.id not in self._settling

    def _close(self, session: Session) -> Settled:
        """From now on nobody finds it; the task ends when it is closed."""
        self._sessions.pop(session.id, None)
        self._recorded.pop(session.id, None)
        return self._settling.start(session.id, session.aclose)

    async def _renewed(self, session: Session, plan: _Plan) -> None:
        task = self._settling.start(session.id, lambda: self._renew(session, plan))
        await ended(task)
        if (bug := task.result()) is not None:
            raise bug


async def _workspace(cwd: str) -> Workspace:
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


def _busy_notes(params: SessionCreate, live: Session) -> tuple[str, ...]:
    wanted = [name for name in (params.mode, params.model) if name not in (None, live.agent.mode, live.agent.label)]
    return ("a run is going on: mode, model and keys stay as they are",) if wanted else ()


def _secrets(choice: Choice | None, env: Mapping[str, str], config: Config) -> tuple[str, ...]:
    values = set(catalog.secret_values(env, config.providers))
    if choice is not None and choice.key is not None:
        values.add(choice.key.reveal())
    return tuple(sorted(values))


def _place(params: SessionCreate, live: Session | None, stored: Loaded | None) -> tuple[str, str]:
    """The address given for the model, now or when the session was made: who names another model starts anew."""
    if params.base_url or params.uds or params.model:
        return params.base_url or "", params.uds or ""
    if live is not None:
        return live.agent.base_url, live.agent.uds
    return (stored.session.base_url, stored.session.uds) if stored is not None else ("", "")


def _stored_notes(stored: Loaded | None) -> list[str]:
    if stored is None:
        return []
    notes = [f"accepted earlier but never run: {text[:200]!r}" for text in stored.pending[:5]]
    if stored.damaged:
        notes.append(f"{stored.damaged} stored messages could not be read and were left out")
    return notes


def _summary(session: Session) -> SessionSummary:
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


def _stored_summary(row: StoredSession) -> SessionSummary:
    return SessionSummary(row.id, row.title, row.cwd, row.mode, row.model, row.updated_at, "stored", 0)
