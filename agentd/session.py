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
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from agentd.errors import Refusal
from agentd.feed import Feed
from agentd.ids import Ids
from agentd.loop import ITERATIONS, Limits, RunTool, run_loop
from agentd.messages import AssistantMessage, Message
from agentd.protocol import SessionDelta
from agentd.providers.fallback import Target
from agentd.providers.stream import Provider
from agentd.recorded import Recorded
from agentd.recording import Captured, Recording
from agentd.run import Emitted, Price, Run, Setup
from agentd.saving import Saving, stamp
from agentd.store import MAX_LOADED_MESSAGES, SessionStore, StoredSession, repair
from agentd.tools.base import Tool, ToolContext
from tracewriter.clock import Clock
from tracewriter.events import (
    Event,
    Failure,
    InputPrepareFinished,
    InputPrepareStarted,
    ModelStreamDelta,
    PolicyPresetObserved,
    PromptQueueObserved,
    Record,
    RunExecuteFinished,
    RunExecuteStarted,
    ToolOutputDelta,
    name_of,
)
from tracewriter.jsonl import encode_safely
from tracewriter.sender import Trace

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


class Agent(Struct, frozen=True):
    """What answers in a session: the model behind its provider, the tools, the words it is told first. `fallbacks` are asked in
    turn when the model gives nothing."""

    mode: str
    provider: ModelProvider
    model: str
    system: str
    tools: tuple[Tool, ...]
    context: ToolContext
    base_url: str = ""  # the address that was given for the model, "" for its provider's own
    uds: str = ""
    fallbacks: tuple[Target, ...] = ()
    fallback_names: tuple[str, ...] = ()  # as they were asked for
    spares: tuple[ModelProvider, ...] = ()  # the fallbacks' providers, as they are closed
    local: bool = False  # the model runs on this machine: it costs nothing

    @property
    def providers(self) -> tuple[ModelProvider, ...]:
        """All that holds connections."""
        return (self.provider, *self.spares)

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
        recording: Recording,
        services: Services,
        conversation: Conversation,
    ) -> None:
        self.id = session_id
        self.agent = agent
        self.feed = feed
        self.recording = recording
        self.title = conversation.title
        self.idle_since_s = services.clock.monotonic()
        self.updated_at = services.clock.now()
        self._services = services
        self._recorded, self._recorded_in = Recorded(), recording.mode
        self._history: tuple[Message, ...] = conversation.messages
        self._saving = Saving(
            session_id,
            services.store,
            services.clock,
            services.ids,
            self.observe,
            next_number=conversation.next_number,
        )
        self._queue: deque[_Queued] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._run: Run | None = None
        self._cancelling = False
        self._closed = False
        self._gone = False
        self._retired: list[ModelProvider] = []

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.agent.label} {self.state} queued={self.queued} messages={len(self._history)}>"

    @property
    def workspace(self) -> str:
        """The directory it works in."""
        return str(self.agent.context.workspace.root)

    @property
    def trace(self) -> Trace:
        """Its recording's handle."""
        return self.recording.trace

    @property
    def capture(self) -> str:
        """The capture mode it is recorded in."""
        return self.recording.mode

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
        queued = _Queued(self._services.ids.op(), text)
        ahead = len(self._queue) + (1 if self._run is not None else 0)
        self._queue.append(queued)
        self.observe(PromptQueueObserved("added", queued.prompt, text if ahead else UNSET))
        if not self.title:
            self.title = title_of(text)
            self.save()
        await self._saving.prompt(queued.prompt, text)
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
        self._saving.drop(cleared)
        if self._worker is not None and not self._cancelling:
            self._cancelling = True  # a second cancellation would break off the tidying up of the first
            self._worker.cancel()
        return something

    async def use(self, agent: Agent) -> None:
        """The next run is done by this agent. A run in progress keeps the one it has."""
        old, self.agent = self.agent.providers, agent
        self.save()
        self._retired += [provider for provider in old if provider not in agent.providers]
        await self._close_retired()

    async def record_with(self, captured: Captured, open_trace: Callable[[], Trace]) -> None:
        """Go on in a new recording, in this mode; what happens meanwhile is in that one."""
        await self.recording.change(captured, open_trace, self._services.clock.now())

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
        self._retired += self.agent.providers
        await self._close_retired()
        await self._saving.settle()
        self._gone = True
        await self.recording.aclose(self._services.clock.now())
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
        services = self._services
        self.observe(PromptQueueObserved("consumed", queued.prompt))
        if self._recorded_in != self.capture:  # what was recorded in another mode may hold nothing to refer to
            self._recorded, self._recorded_in = Recorded(), self.capture
        setup = self._prepare(queued)
        run = self._run = Run(setup, clock=services.clock, ids=services.ids, price=services.price)
        limits = Limits(ITERATIONS[setup.mode])
        self._saving.begin(queued.prompt)
        saved = 0
        try:
            async with aclosing(run_loop(run, services.run_tool, limits)) as events:
                async for emitted in events:
                    saved = self._save_messages(run, saved, queued)
                    self._emit(run, emitted)
                    if isinstance(emitted.event, RunExecuteStarted):
                        self.observe(policy_of(setup, limits), setup.run)
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
            self._saving.end()
            self._remember(run.messages)

    def _prepare(self, queued: _Queued) -> Setup:
        agent, services = self.agent, self._services
        run, op, started_s = services.ids.uuid7(), services.ids.op(), services.clock.monotonic()
        self.observe(InputPrepareStarted(queued.prompt), run, op)
        setup = Setup(
            run,
            queued.prompt,
            queued.text,
            agent.mode,
            agent.provider,
            agent.model,
            agent.system,
            agent.tools,
            agent.context,
            self._history,
            self._recorded,
            agent.fallbacks,
        )
        history_chars = sum(map(_chars, setup.history))
        sizes = (len(queued.text), len(setup.history), history_chars, len(setup.system))
        took_ms = round((services.clock.monotonic() - started_s) * 1000, 3)
        self.observe(InputPrepareFinished(queued.prompt, *sizes, (), took_ms), run, op)
        return setup

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
        if not isinstance(event, (ModelStreamDelta, ToolOutputDelta)):
            self.observe(event, run.setup.run, emitted.op, emitted.parent)
            return
        kind = event.kind if isinstance(event, ModelStreamDelta) else "output"
        delta = SessionDelta(self.id, run.setup.run, emitted.op, kind, event.offset, event.text)
        self.feed.publish_delta(delta)
        if self.capture == "stream":
            ts = self._services.clock.now()
            self.recording.delta(event, ts=ts, run=run.setup.run, op=emitted.op, parent=emitted.parent)

    def observe(self, event: Event, run: str = "", op: str = "", parent: str = "") -> None:
        """Record an event, and show it to whoever follows. Nothing once the session is closed."""
        if self._gone:
            return
        ts = self.updated_at = self._services.clock.now()
        self.recording.record(event, ts=ts, run=run, op=op, parent=parent)
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
        row = StoredSession(
            self.id,
            self.workspace,
            self.title,
            self.agent.mode,
            self.agent.label,
            stamp(self.updated_at),
            self.agent.base_url,
            self.agent.uds,
            self.capture,
        )
        self._saving.row(row)

    def _save_messages(self, run: Run, saved: int, queued: _Queued) -> int:
        new = run.messages[saved:]
        self._saving.messages(new)
        if new and saved == 0:
            self._saving.drop([queued.prompt])
        return saved + len(new)


def policy_of(setup: Setup, limits: Limits) -> PolicyPresetObserved:
    """What a run may do and how far it may go."""
    tools = tuple(tool.spec.name for tool in setup.tools)
    writes = tuple(tool.spec.name for tool in setup.tools if tool.writes)
    bounds = (limits.iterations, limits.budget_chars, limits.parallel_calls)
    return PolicyPresetObserved(setup.mode, tools, writes, "workspace" if writes else "none", *bounds, None)


def _chars(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        return len(message.text) + sum(len(call.input) for call in message.tool_calls)
    return len(message.text)


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
