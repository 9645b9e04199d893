"""What the requests of PROTOCOL.md do. One method each; the types of params and results are the protocol's."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from agentd import __version__
from agentd.errors import Refusal
from agentd.model_lists import ModelLists
from agentd.protocol import (
    VERSION,
    Cancelled,
    DaemonStatus,
    DaemonStop,
    Flushed,
    Initialize,
    Initialized,
    Params,
    Prompted,
    Recording,
    Result,
    SessionCancel,
    SessionConfigure,
    SessionCreate,
    SessionList,
    SessionPrompt,
    Sessions,
    SessionSubscribe,
    SessionUnsubscribe,
    Status,
    Stopping,
    Subscribed,
    Traced,
    TraceFlush,
    TraceStatus,
    Unsubscribed,
)
from agentd.protocol_lists import ModelList, TraceSession
from agentd.registry import Registry
from agentd.server import MAX_SUBSCRIPTIONS, Connection
from tracewriter.clock import Clock
from tracewriter.sender import SessionFigures, Trace

FLUSH_S: Final = 2.0
# A recorder that is just being started is waited for, so that the first client is told how recording really goes.
START_S: Final = 1.5
MAX_LISTED: Final = 1_000


class DaemonApi:
    """Implements server.Api over a registry. `recording` tells how recording goes, `stop` is asked to end the daemon."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        life: str,
        models: ModelLists,
        recording: Callable[[], Recording],
        figures: Callable[[], Sequence[SessionFigures]],
        settled: Callable[[float], Awaitable[None]],
        clients: Callable[[], int],
        stop: Callable[[bool], None],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._life = life
        self._models = models
        self._recording = recording
        self._figures = figures
        self._settled = settled
        self._clients = clients
        self._stop = stop
        self._started_s = clock.monotonic()
        self.stopping = False

    def __repr__(self) -> str:
        return f"<DaemonApi {self._registry!r} stopping={self.stopping}>"

    async def handle(self, connection: Connection, params: Params) -> Result | None:
        """The result; None when the answer is in the outbox already. Raises Refusal."""
        match params:
            case Initialize():
                await self._settled(START_S)
                return self._initialize(connection, params)
            case SessionCreate():
                self._accepting()
                return await self._registry.create(params)
            case SessionConfigure():
                self._accepting()
                return await self._registry.configure(params)
            case SessionSubscribe():
                self._subscribe(connection, params)
                return None
            case SessionUnsubscribe(session):
                subscription = connection.subscriptions.pop(session, None)
                if subscription is not None:
                    subscription.close()
                return Unsubscribed()
            case SessionPrompt(session, text):
                self._accepting()
                prompt, queued = await self._registry.find(session).prompt(text)
                return Prompted(prompt, queued)
            case SessionCancel(session):
                return Cancelled(self._registry.find(session).cancel())
            case SessionList(limit):
                return Sessions(await self._registry.list(max(0, min(limit, MAX_LISTED))))
            case TraceFlush(session):
                return await _flush(self._registry.find(session).trace)
            case TraceStatus():
                off = [TraceSession(session, "off", why, 0, 0, 0, {}, 0) for session, why in self._registry.unrecorded]
                return Traced(self._recording(), (*map(_traced, self._figures()), *off))
            case ModelList():
                return await self._models.list(params)
            case DaemonStatus():
                return self._status()
            case DaemonStop(when_idle):
                connection.reply(Stopping(True))
                self._stop(when_idle)
                return None

    def _accepting(self) -> None:
        if self.stopping:
            raise Refusal("stopping", "the daemon is ending", "try again in a moment")

    def _initialize(self, connection: Connection, params: Initialize) -> Result:
        if params.protocol < 1:
            raise Refusal(
                "protocol", f"no common version: {params.protocol} was asked for", f"this daemon speaks {VERSION}"
            )
        connection.initialized = True
        connection.client = params.client[:100]
        # A newer client is answered with what we speak; whether that is enough is for it to say.
        spoken = min(params.protocol, VERSION)
        return Initialized(spoken, __version__, os.getpid(), self._life, self._registry.env_names, self._recording())

    def _subscribe(self, connection: Connection, params: SessionSubscribe) -> None:
        feed = self._registry.find(params.session).feed
        old = connection.subscriptions.pop(params.session, None)
        if old is not None:
            old.close()
        if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refusal(
                "overloaded", f"{MAX_SUBSCRIPTIONS} sessions are subscribed to already", "unsubscribe from some"
            )
        connection.reply(Subscribed(feed.cursor()))
        connection.subscriptions[params.session] = feed.subscribe(connection.outbox, params.after)

    def _status(self) -> Status:
        registry = self._registry
        return Status(
            __version__,
            os.getpid(),
            round(self._clock.monotonic() - self._started_s, 3),
            len(registry),
            registry.running,
            registry.queued,
            self._clients(),
            self._recording(),
            len(registry.unrecorded),
        )


def _traced(figures: SessionFigures) -> TraceSession:
    return TraceSession(**msgspec.structs.asdict(figures))


async def _flush(trace: Trace) -> Flushed:
    wanted = trace.status().emitted
    status = await trace.flush(FLUSH_S)
    done = status.state == "ok" and status.recorded + status.dropped >= wanted
    reason = status.reason if done or status.reason else "not all of it was on disk in time"
    return Flushed(done, status.state, reason)
