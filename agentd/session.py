"""One session: a conversation, its queue of prompts, the run in progress, what its clients see and what is recorded of it.

Runs do not depend on clients: whoever goes, the session goes on. All of it happens in the event loop; the only waits are the
model, the tools, the turn at the gate of running sessions, and saving a prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from agentd.capture import metadata_of
from agentd.errors import Refusal
from agentd.feed import Feed
from agentd.ids import Ids
from agentd.loop import ITERATIONS, Limits, RunTool, run_loop
from agentd.messages import Message, encode_message
from agentd.protocol import SessionDelta
from agentd.providers.stream import Provider
from agentd.run import Emitted, Price, Run, Setup
from agentd.store import MAX_LOADED_MESSAGES, SessionStore, StoredSession, StoreError, repair
from agentd.tools.base import Tool, ToolContext
from tracewriter.clock import Clock
from tracewriter.events import (
    DELTAS,
    Event,
    Failure,
    ModelStreamDelta,
    PromptQueueObserved,
    Record,
    RunExecuteFinished,
    SessionSaveFailed,
    ToolOutputDelta,
    name_of,
)
from tracewriter.jsonl import encode_safely
from tracewriter.sender import Trace, TraceStatus

MAX_QUEUED_PROMPTS: Final = 64
MAX_PROMPT_CHARS: Final = 1_000_000
# Well under the 8 MiB that a client takes as one line.
MAX_EVENT_BYTES: Final = 7 * 1024 * 1024
TITLE_CHARS: Final = 80
CLOSE_S: Final = 5.0

_log: Final = logging.getLogger("agentd")
_encoder: Final = msgspec.json.Encoder()


class ModelProvider(Provider, Protocol):
    """A provider that holds connections."""

    async def aclose(self) -> None:
        """Close them."""


class HeldTrace:
    """Keeps records while a session's recording is changed for another, and gives them to that one."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._held: list[tuple[Event, datetime | None, str, str, str]] = []

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Keep it. The change takes two seconds at most: what is held is bounded by that."""
        self._held.append((event, ts, run, op, parent))

    async def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing is on disk yet."""
        return self.status()

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing to close."""
        return self.status()

    def status(self) -> TraceStatus:
        """Between two recordings."""
        return TraceStatus("degraded", "the recording is being reopened", len(self._held))

    def replay(self, trace: Trace) -> None:
        """Hand over."""
        for event, ts, run, op, parent in self._held:
            trace.record(event, ts=ts, run=run, op=op, parent=parent)


class Agent(Struct, frozen=True):
    """What answers in a session: the model behind its provider, the tools, the words it is told first."""

    mode: str
    provider: ModelProvider
    model: str
    system: str
    tools: tuple[Tool, ...]
    context: ToolContext
    base_url: str = ""  # the address that was given for the model, "" for its provider's own
    uds: str = ""

    @property
    def label(self) -> str:
        """provider/model."""
        return f"{self.provider.name}/{self.model}"


class Services(Struct, frozen=True):
    """What all sessions share. `store` is None for an ephemeral session."""

    clock: Clock
    ids: Ids
    price: Price
    run_tool: RunTool
    gate: asyncio.Semaphore
    tasks: asyncio.TaskGroup
    store: SessionStore | None


class Conversation(Struct, frozen=True):
    """What a session begins with: the stored messages, the number of the next one, and the title."""

    messages: tuple[Message, ...] = ()
    next_number: int = 0
    title: str = ""


class _Queued(Struct, frozen=True):
    prompt: str
    text: str


class Session:
    """One session. Made by the registry, which also closes it."""

    def __init__(
        self,
        session_id: str,
        agent: Agent,
        feed: Feed,
        trace: Trace,
        services: Services,
        conversation: Conversation,
        *,
        capture: str,
    ) -> None:
        self.id = session_id
        self.agent = agent
        self.feed = feed
        self.trace = trace
        self.title = conversation.title
        self.idle_since_s = services.clock.monotonic()
        self.updated_at = services.clock.now()
        self._services = services
        self.capture = capture
        self._history: tuple[Message, ...] = conversation.messages
        self._next_number = conversation.next_number
        self._queue: deque[_Queued] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._run: Run | None = None
        self._cancelling = False
        self._closed = False
        self._save_failed = False
        self._retired: list[ModelProvider] = []

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.agent.label} {self.state} queued={self.queued} messages={len(self._history)}>"

    @property
    def workspace(self) -> str:
        """The directory it works in."""
        return str(self.agent.context.workspace.root)

    @property
    def state(self) -> str:
        """idle, or running (a run is going on or waits for its turn)."""
        return "running" if self._worker is not None else "idle"

    @property
    def ephemeral(self) -> bool:
        """Whether nothing of it is kept."""
        return self._services.store is None

    @property
    def running(self) -> bool:
        """Whether a run is in progress now."""
        return self._run is not None

    @property
    def queued(self) -> int:
        """Prompts that wait."""
        return len(self._queue)

    def touch(self) -> None:
        """Somebody wants it: count its idle time from now."""
        self.idle_since_s = self._services.clock.monotonic()

    # --- what clients ask for

    async def prompt(self, text: str) -> tuple[str, int]:
        """Accept a prompt, saved: its id and how many are before it. Raises Refusal when too many wait or it is too long."""
        self._check_open()
        if len(self._queue) >= MAX_QUEUED_PROMPTS:
            raise Refusal(
                "overloaded", f"{MAX_QUEUED_PROMPTS} prompts are waiting already", "wait for a run to end, or cancel"
            )
        if len(text) > MAX_PROMPT_CHARS:
            raise Refusal(
                "too_big", f"the prompt is over {MAX_PROMPT_CHARS:,} characters", "put the text in a file instead"
            )
        self._save_failed = False  # told again with each prompt: whoever sends it need not have been here the last time
        queued = _Queued(self._services.ids.op(), text)
        ahead = len(self._queue) + (1 if self._run is not None else 0)
        self._queue.append(queued)
        self.observe(PromptQueueObserved("added", queued.prompt, text if ahead else UNSET))
        if not self.title:
            self.title = title_of(text)
            self.save()
        store = self._services.store
        if store is not None:
            try:
                await store.call(store.db.add_prompt, self.id, queued.prompt, text, stamp(self._services.clock.now()))
                self._saved(None)
            except StoreError as exc:
                self._saved(exc)
            self._check_open()  # it may have been closed meanwhile, and its queue cleared
        self._start_worker()
        return queued.prompt, ahead

    def _check_open(self) -> None:
        if self._closed:
            raise Refusal("stopping", "the session is being closed", "create it again with its id")

    def cancel(self) -> bool:
        """Stop the run at once and clear the queue; whether there was anything to stop."""
        something = bool(self._queue) or self._worker is not None
        cleared = [queued.prompt for queued in self._queue]
        self._queue.clear()
        for prompt in cleared:
            self.observe(PromptQueueObserved("cleared", prompt))
        self._drop_prompts(cleared)
        if self._worker is not None and not self._cancelling:
            self._cancelling = True  # a second cancellation would break off the tidying up of the first
            self._worker.cancel()
        return something

    async def use(self, agent: Agent) -> None:
        """The next run is done by this agent. A run in progress keeps the one it has."""
        old, self.agent = self.agent.provider, agent
        self.save()
        if old is not agent.provider:
            self._retired.append(old)
            await self._close_retired()

    async def record_with(self, open_trace: Callable[[], Trace]) -> None:
        """Close the recording and go on in a new one; what happens meanwhile is in the new one."""
        old, held = self.trace, HeldTrace(self.id)
        self.trace = held
        await old.close()
        self.trace = open_trace()
        held.replay(self.trace)

    async def _close_retired(self) -> None:
        if self._run is None:
            retired, self._retired = self._retired, []
            for provider in retired:
                await provider.aclose()

    async def aclose(self, timeout_s: float = CLOSE_S) -> None:
        """End the run as cancelled, then the recording. The session is of no use afterwards."""
        self._closed = True
        self.cancel()
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=timeout_s)
        self._retired.append(self.agent.provider)
        await self._close_retired()
        await self.trace.close()
        self.feed.close()

    # --- runs

    def _start_worker(self) -> None:
        if self._worker is None and self._queue and not self._closed:
            self._worker = self._services.tasks.create_task(self._work())
            self._worker.add_done_callback(self._worker_done)

    def _worker_done(self, _: asyncio.Task[None]) -> None:
        # In a callback and not in a `finally`: a task cancelled before its first step never enters its body.
        self._worker = None
        self._cancelling = False
        self.idle_since_s = self._services.clock.monotonic()
        self._start_worker()

    async def _work(self) -> None:
        while self._queue:
            async with self._services.gate:
                if self._queue:
                    await self._execute(self._queue.popleft())

    async def _execute(self, queued: _Queued) -> None:
        agent, services = self.agent, self._services
        self.observe(PromptQueueObserved("consumed", queued.prompt))
        setup = Setup(
            services.ids.uuid7(),
            queued.prompt,
            queued.text,
            agent.mode,
            agent.provider,
            agent.model,
            agent.system,
            agent.tools,
            agent.context,
            self._history,
        )
        run = self._run = Run(setup, clock=services.clock, ids=services.ids, price=services.price)
        saved = 0
        try:
            async with aclosing(run_loop(run, services.run_tool, Limits(ITERATIONS[agent.mode]))) as events:
                async for emitted in events:
                    saved = self._save_messages(run, saved, queued)
                    self._emit(run, emitted)
        except asyncio.CancelledError:
            saved = self._end(run, saved, queued, "cancelled")
            raise
        except Exception as exc:  # noqa: BLE001 - the seam: a bug in one run must not end the runs of all others
            _log.error("run %s: %s", setup.run, where(exc))
            bug = Failure(
                "internal", f"a bug in agentd ended the run ({type(exc).__name__})", "the daemon's log says where"
            )
            self._end(run, saved, queued, "failed", bug)
        finally:
            self._run = None
            self._remember(run.messages)

    def _end(self, run: Run, saved: int, queued: _Queued, outcome: str, failure: Failure | None = None) -> int:
        ends = run.close(outcome, failure)
        saved = self._save_messages(run, saved, queued)
        for emitted in ends:
            self._emit(run, emitted)
        return saved

    def _remember(self, messages: Sequence[Message]) -> None:
        self._history = (*self._history, *messages)
        if len(self._history) > MAX_LOADED_MESSAGES:
            self._history = repair(self._history[-MAX_LOADED_MESSAGES // 2 :])

    # --- events

    def _emit(self, run: Run, emitted: Emitted) -> None:
        event = emitted.event
        if type(event) not in DELTAS:
            self.observe(event, run.setup.run, emitted.op, emitted.parent)
            return
        match event:
            case ModelStreamDelta(kind, offset, text):
                self.feed.publish_delta(SessionDelta(self.id, run.setup.run, emitted.op, kind, offset, text))
            case ToolOutputDelta(offset, text):
                self.feed.publish_delta(SessionDelta(self.id, run.setup.run, emitted.op, "output", offset, text))
            case _:
                raise AssertionError(f"not a delta: {event}")

    def observe(self, event: Event, run: str = "", op: str = "", parent: str = "") -> None:
        """Record an event, and show it to whoever follows."""
        ts = self.updated_at = self._services.clock.now()
        recorded = metadata_of(event) if self.capture == "metadata" else event
        if recorded is not None:
            self.trace.record(recorded, ts=ts, run=run, op=op, parent=parent)
        record = Record(
            ts=ts,
            event=name_of(event),
            session=self.id,
            run=run or UNSET,
            op=op or UNSET,
            parent=parent or UNSET,
            data=event,
        )
        self.feed.publish(_encode(record, event))
        if isinstance(event, RunExecuteFinished):
            self.idle_since_s = self._services.clock.monotonic()

    # --- saving

    def save(self) -> None:
        """Save what is kept besides the messages."""
        store = self._services.store
        if store is not None:
            row = StoredSession(
                self.id,
                self.workspace,
                self.title,
                self.agent.mode,
                self.agent.label,
                stamp(self.updated_at),
                self.agent.base_url,
                self.agent.uds,
            )
            store.post(self._saved, store.db.save_session, row)

    def _save_messages(self, run: Run, saved: int, queued: _Queued) -> int:
        new = run.messages[saved:]
        store = self._services.store
        if new and store is not None:
            encoded = [encode_message(message) for message in new]
            at = stamp(self._services.clock.now())
            store.post(self._saved, store.db.add_messages, self.id, self._next_number, encoded, at)
            if saved == 0:
                self._drop_prompts([queued.prompt])
        self._next_number += len(new)
        return saved + len(new)

    def _drop_prompts(self, prompts: list[str]) -> None:
        store = self._services.store
        if store is not None and prompts:
            store.post(self._saved, store.db.drop_prompts, self.id, prompts)

    def _saved(self, error: StoreError | None) -> None:
        if error is not None and not self._save_failed:
            self.observe(SessionSaveFailed(Failure("store", str(error), error.hint)))
        self._save_failed = error is not None


def title_of(text: str) -> str:
    """A session's title: the first words of its first prompt, on one line."""
    line = " ".join(text[: 20 * TITLE_CHARS].split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"


def _encode(record: Record, event: Event) -> Raw:
    try:
        encoded = _encoder.encode(record)
        if len(encoded) <= MAX_EVENT_BYTES:
            return Raw(encoded)
    except (TypeError, ValueError, RecursionError, OverflowError):
        pass
    return Raw(_encoder.encode(msgspec.structs.replace(record, data=Raw(encode_safely(event)))))


def stamp(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds: sorts as text."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def where(exc: BaseException) -> str:
    """The kind of an exception and where it was raised. Its text may hold content, which the log must not."""
    if isinstance(exc, BaseExceptionGroup) and exc.exceptions:
        return f"{type(exc).__name__}: {where(exc.exceptions[0])}"
    frames = []
    trace = exc.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(exc).__name__} at {' > '.join(frames[-8:])}"
