"""All sessions of the daemon: made, resumed, found, counted, closed when nobody needs them.

What a session is made of is decided before it exists (`_plan`), so that a refusal leaves nothing behind. A session that is
idle and that nobody follows is closed after a while: its recording ends in order, the store keeps its conversation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from agentd import __version__
from agentd.config import Config
from agentd.errors import Refusal
from agentd.feed import Feed, RingBudget
from agentd.ids import is_session_id
from agentd.paths import workspace_hash
from agentd.plans import (
    Change,
    Chosen,
    Plan,
    busy_notes,
    capture_of,
    changes_of,
    check_join,
    choose,
    fallback_names,
    mode_of,
    open_workspace,
    place_of,
    secrets_of,
    session_summary,
    stored_notes,
    stored_summary,
)
from agentd.prompts import system_prompt
from agentd.protocol import SessionConfigure, SessionCreate, SessionCreated, SessionSummary
from agentd.providers import catalog
from agentd.providers.catalog import Choice, KeyReaders
from agentd.providers.fallback import Target
from agentd.recording import Captured, Recording
from agentd.session import Agent, Conversation, ModelProvider, Services, Session
from agentd.settling import Settled, Settling, ended
from agentd.store import Loaded, StoreError
from agentd.tools.base import ToolContext
from agentd.tools.registry import tools_for
from tracewriter.events import (
    ConfigChangeApplied,
    ConfigChangeFailed,
    ConfigChangeRequested,
    Failure,
    SessionLifecycleObserved,
)
from tracewriter.sender import Trace

MAX_SESSIONS: Final = 1_000
MAX_RUNNING: Final = 64
# A command that asked once is gone; its recording should not stay open for long.
IDLE_CLOSE_S: Final = 60.0
MAX_ENV_VALUE: Final = 16 * 1024
# Keys remembered per session, the newest; nobody changes a session's key more often.
MAX_SECRETS: Final = 64
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
        keys: KeyReaders = KeyReaders(),  # noqa: B008 - frozen
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
        self._keys = keys
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
    def unrecorded(self) -> tuple[tuple[str, str], ...]:
        """The sessions in memory that are not recorded, each with the reason."""
        return tuple(
            (session.id, session.trace.status().reason)
            for session in self._sessions.values()
            if session.capture == "off"
        )

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

    async def configure(self, params: SessionConfigure) -> SessionCreated:
        """Change settings of a session in memory, between its runs. Raises Refusal; the record has the wish and what came of it."""
        live = self.find(params.session)
        wanted = SessionCreate(
            live.workspace,
            mode=params.mode,
            model=params.model,
            env=params.env,
            session=live.id,
            capture=params.capture,
        )
        if live.capture == "off" and params.capture not in (None, "off"):
            raise Refusal(
                "config", "this session is not recorded and stays so", "begin a new one with that capture mode"
            )
        async with self._resuming:
            return await self._create(wanted, strict=True)

    async def _create(self, params: SessionCreate, *, strict: bool = False) -> SessionCreated:
        """`strict`: a session that cannot be changed now is refused, instead of joined as it is."""
        live, stored = await self._existing(params)
        if live is None:
            plan = await self._plan(params, None, stored)
            await self._make_room()
            self._check_open()
            live = self._add(plan)
            return self._created(live, resumed=plan.resumed, notes=plan.notes)
        changes = changes_of(params, live)
        for change in changes:
            live.observe(ConfigChangeRequested(change.setting, change.value))
        try:
            return await self._join(params, live, changes, strict=strict)
        except Refusal as refusal:
            why = Failure(refusal.kind, str(refusal), refusal.hint)
            for change in changes:
                live.observe(ConfigChangeFailed(change.setting, change.value, why))
            raise

    async def _join(
        self, params: SessionCreate, live: Session, changes: tuple[Change, ...], *, strict: bool
    ) -> SessionCreated:
        if live.state != "running":
            live.touch()  # it is wanted: not to be closed as idle before its client's next request
            plan = await self._plan(params, live, None)
            self._check_open()
            if self._sessions.get(live.id) is not live:  # closed meanwhile, to make room: it is in the store now
                return await self._create(params, strict=strict)
            if live.state != "running":
                await self._renewed(live, plan, changes)
                return self._created(live, resumed=plan.resumed, notes=plan.notes)
        # Its own run or, while it was looked at, another client's prompt.
        check_join(params, live, strict=strict)
        notes = busy_notes(params, live)
        for change in changes:
            live.observe(ConfigChangeFailed(change.setting, change.value, Failure("busy", notes[0])))
        return self._created(live, resumed=True, notes=notes)

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
        rows = {session.id: session_summary(session) for session in self._sessions.values()}
        store = self._services.store
        if store is not None:
            try:
                for row in await store.call(store.db.newest, limit):
                    rows.setdefault(row.id, stored_summary(row))
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

    async def _plan(self, params: SessionCreate, live: Session | None, stored: Loaded | None) -> Plan:
        mode = mode_of(params, live, stored, self._config)
        env = {name: params.env[name] for name in self.env_names if name in params.env}
        if any(len(value) > MAX_ENV_VALUE for value in env.values()):
            raise Refusal("config", "a variable in env is over 16 KiB", "unset it")
        names = fallback_names(params, live, self._config)
        same = live is not None and not (params.model or params.base_url or params.uds or env)
        same = same and params.fallback is None
        chosen = None if same else await self._choose(params, live, stored, env, names)
        where = live.workspace if live else stored.session.cwd if stored else params.cwd
        context = live.agent.context if live else ToolContext(await open_workspace(where), {})
        if chosen is None:
            assert live is not None
            agent = live.agent
        else:
            place = place_of(params, live, stored)
            agent = msgspec.structs.replace(self._agent(chosen, env, context, place), fallback_names=names)
        words = system_prompt(mode, str(context.workspace.root))
        agent = msgspec.structs.replace(agent, mode=mode, system=words, tools=tools_for(mode))
        notes = [*(chosen.choice.notes + chosen.notes if chosen else ()), *stored_notes(stored)]
        capture, unrecorded = capture_of(params, live, stored, self._config)
        if unrecorded:
            notes.append(f"recording is off: {unrecorded}")
        ephemeral = live.ephemeral if live else params.ephemeral
        if ephemeral:
            unrecorded = unrecorded or "the session is ephemeral"
            notes.append("ephemeral: neither the conversation nor a record is kept")
        session_id = live.id if live else stored.session.id if stored else self._services.ids.uuid7()
        return Plan(
            session_id,
            agent,
            await self._conversation(stored),
            live is not None or stored is not None,
            ephemeral,
            capture,
            self._all_secrets(session_id, secrets_of(chosen.all if chosen else (), env, self._config)),
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

    def _agent(self, chosen: Chosen, env: Mapping[str, str], context: ToolContext, place: tuple[str, str]) -> Agent:
        choice = chosen.choice
        spares = tuple(self._make_provider(other, env) for other in chosen.fallbacks)
        fallbacks = tuple(Target(spare, other.model) for spare, other in zip(spares, chosen.fallbacks, strict=True))
        provider = self._make_provider(choice, env)
        return Agent(
            "", provider, choice.model, "", (), context, *place, fallbacks, spares=spares, local=choice.spec.local
        )

    async def _choose(
        self,
        params: SessionCreate,
        live: Session | None,
        stored: Loaded | None,
        env: Mapping[str, str],
        fallbacks: tuple[str, ...],
    ) -> Chosen:
        old = live.agent.label if live else stored.session.model if stored else None
        model = params.model or (None if params.base_url or params.uds else old or self._config.model or None)
        where = place_of(params, live, stored)
        # It may read a key file, or wait for a command.
        chosen = await asyncio.to_thread(choose, model, where, fallbacks, env, self._config, self._keys)
        if isinstance(chosen, Failure):
            raise Refusal(chosen.kind, chosen.message, chosen.hint)
        return chosen

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

    def _add(self, plan: Plan) -> Session:
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
        recording = Recording(trace, Captured("off" if plan.unrecorded else plan.capture, plan.secrets))
        session = Session(plan.session, agent, feed, recording, services, plan.conversation)
        self._sessions[plan.session] = session
        session.observe(SessionLifecycleObserved("resumed" if plan.resumed else "created"))
        session.save()
        store = services.store
        if plan.resumed and store is not None:
            store.post(lambda _: None, store.db.clear_prompts, session.id)
        return session

    def _record(self, plan: Plan, workspace: str, *, resumed: bool) -> Trace:
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

    async def _renew(self, session: Session, plan: Plan, changes: tuple[Change, ...]) -> None:
        old, old_capture = session.agent, session.capture
        known = self._recorded.get(session.id)
        captured = Captured(plan.capture, plan.secrets)
        if known is not None and plan.unrecorded:
            del self._recorded[session.id]
            await session.record_with(captured, lambda: self._null_trace(session.id, plan.unrecorded))
        elif known is not None and (plan.capture != old_capture or not set(plan.secrets) <= set(known)):
            # The recorder must know a key before anything can be recorded that holds it; a mode is in the first record.
            await session.record_with(captured, lambda: self._record(plan, session.workspace, resumed=True))
        await session.use(plan.agent)
        wanted = {change.setting for change in changes}
        for setting, before, after in (
            ("mode", old.mode, plan.agent.mode),
            ("model", old.label, plan.agent.label),
            ("capture", old_capture, session.capture),
        ):
            if before != after or setting in wanted:
                session.observe(ConfigChangeApplied(setting, after))

    def _created(self, session: Session, *, resumed: bool, notes: tuple[str, ...]) -> SessionCreated:
        agent = session.agent
        trace = ""
        if session.id in self._recorded:
            trace = os.path.join(self._traces_root, workspace_hash(session.workspace), session.id)
        return SessionCreated(
            session.id,
            session.workspace,
            agent.mode,
            agent.provider.name,
            agent.model,
            resumed,
            notes,
            trace,
            agent.local,
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

    async def _renewed(self, session: Session, plan: Plan, changes: tuple[Change, ...]) -> None:
        task = self._settling.start(session.id, lambda: self._renew(session, plan, changes))
        await ended(task)
        if (bug := task.result()) is not None:
            raise bug
