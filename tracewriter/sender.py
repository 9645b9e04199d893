"""What a program uses to record: open a session, `record()` events, `flush()`, `close()`.

`record()` never raises, never waits and does no I/O: it fills a bounded buffer. A task (`Sender.run`) connects to the
writer, sends, and sends again what a dead writer had not acknowledged. With no writer, a stuck one or a full disk the program
goes on; what does not fit is counted and becomes a record of its own. `NullTrace` has the same methods and records nothing,
so that callers need no `if`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Final, Protocol

from msgspec import Struct

from tracewriter import forks
from tracewriter.clock import SYSTEM_CLOCK, Clock
from tracewriter.config import BUFFER_BYTES, FLUSH_S, SEND_BUFFER
from tracewriter.errors import ProtocolError
from tracewriter.events import (
    FORMAT,
    Event,
    SessionRecordFinished,
    SessionRecordStarted,
)
from tracewriter.foreign import event_of
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.reach import dial
from tracewriter.standing import TraceStatus as TraceStatus
from tracewriter.standing import standing

_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 2.0
_RECEIVE: Final = 256 * 1024
_SILENT_S: Final = 1.0
_PIECES: Final = 512  # of one sendmsg; over 1,024 it is EINVAL


class SessionFigures(Struct, frozen=True):
    """What a process knows of a session it records. queued_bytes: not acknowledged yet, about.

    emitted == recorded + dropped + what is queued; dropped_by: dropped, by reason.
    """

    session: str
    state: str
    reason: str
    emitted: int
    recorded: int
    dropped: int
    dropped_by: dict[str, int]
    queued_bytes: int


class Trace(Protocol):
    """A handle for recording one session."""

    @property
    def session(self) -> str:
        """The session's id."""

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Record one event. Never raises, never waits, does no I/O."""

    async def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Wait until all that was recorded so far is on disk, at most so long; then say how things stand."""

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        """End the recording in order: its last record, everything acknowledged, the session's lock free."""

    def status(self) -> TraceStatus:
        """How things stand."""


class NullTrace:
    """Records nothing, in the same words."""

    def __init__(self, session: str, reason: str = "recording is off") -> None:
        self.session = session
        self._reason = reason

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Nothing."""

    def note(self, name: str, value: object = None, *, metadata: dict[str, object] | None = None) -> None:
        """Nothing."""

    async def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing to wait for."""
        return self.status()

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing to close."""
        return self.status()

    def status(self) -> TraceStatus:
        """Off, and why."""
        return TraceStatus("off", self._reason)


class SessionTrace:
    """A session that is recorded through a Sender. Use it from the sender's event loop only."""

    def __init__(self, sender: Sender, channel: Channel) -> None:
        self._sender, self._channel = sender, channel
        self.record = channel.outbox.record  # no wrapper: it is the hot path
        self._closing: asyncio.Future[None] | None = None
        self._unfinished = False  # the close ran out of time: what waited then is not recorded

    @property
    def session(self) -> str:
        """The session's id."""
        return self._channel.info.session

    def note(self, name: str, value: object = None, *, metadata: dict[str, object] | None = None) -> None:
        """Record an event of another tool, under the prefix `foreign`. As `record`; in capture mode metadata only `metadata`."""
        kept = value if self._channel.info.capture != "metadata" else metadata
        self.record(event_of("foreign", name, {} if kept is None else kept))  # type: ignore[arg-type]

    async def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Wait until all that was recorded so far is on disk, at most so long; then say how things stand."""
        if self._closing is None:
            await self._sender.flush(self._channel, timeout_s)
        return self.status()

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        """End the recording in order. A second close changes nothing."""
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return self.status()
        self._closing = asyncio.get_running_loop().create_future()
        try:
            return await self._close(timeout_s)
        finally:
            self._closing.set_result(None)

    async def _close(self, timeout_s: float) -> TraceStatus:
        if await self._sender.numbered(self._channel, timeout_s):
            box = self._channel.outbox
            emitted = box.last + 1  # this record's own seq: all that was ever numbered
            self.record(SessionRecordFinished(emitted, box.counts(), box.usage, box.cost_usd))
        self._unfinished = not await self._sender.close_session(self._channel, timeout_s)
        return self.status()

    def status(self) -> TraceStatus:
        """How things stand."""
        trouble = self._channel.reason or self._sender.trouble()
        closing = self._closing is not None
        return standing(self._channel.outbox, trouble, closing=closing, unfinished=self._unfinished)


class Sender:
    """Records for one process, over one connection. `run` is its task; without it everything stays in the buffer."""

    def __init__(
        self,
        socket_path: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        life: str | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        on_no_writer: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._clock = socket_path, clock
        self.producer = Producer(life or os.urandom(8).hex(), clock, buffer_bytes=buffer_bytes, wake=self._wake)
        self._on_no_writer = on_no_writer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sock: socket.socket | None = None
        self._out: deque[bytes | memoryview] = deque()
        self._scheduled: asyncio.Handle | None = None
        self._due: asyncio.Handle | None = None  # a session waits to be tried again; never in the way of _scheduled
        self._last_flush = 0.0
        self._writable = False  # a writer callback is registered
        self._lost: asyncio.Future[str] | None = None
        self._kick: asyncio.Event | None = None
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._asked_at: float | None = None  # when the first of what is not answered yet was sent
        self.problem = "no writer is connected yet"
        self._disowned = False
        forks.tell(self)

    def disown(self) -> None:
        """In a forked child: the connection and the sessions are the parent's. What is recorded here is counted, never sent."""
        self._disowned, self.problem = True, "the sessions belong to the process that this one was forked from"
        sock, self._sock, self._loop = self._sock, None, None
        self._out.clear()
        if sock is not None:
            sock.close()  # the loop is not told: its epoll set is the parent's too
        self.producer.disown(f"forked: {self.problem}")

    # --- for callers

    def open(
        self,
        session: str,
        workspace: str,
        *,
        agentd: str,
        mode: str,
        capture: str,
        secrets: tuple[str, ...] = (),
        resumed: bool = False,
    ) -> SessionTrace:
        """Record a session. `resumed` for one that an earlier process may have recorded: its numbers wait for the writer.

        secrets: exact values that must not reach the disk; kept in memory here and in the writer.
        """
        channel = self.producer.add(SessionInfo(session, workspace, capture, secrets), resumed=resumed)
        trace = SessionTrace(self, channel)
        trace.record(SessionRecordStarted(FORMAT, agentd, workspace, mode, capture))
        return trace

    def status(self) -> TraceStatus:
        """All sessions together."""
        boxes = [channel.outbox for channel in self.producer.channels]
        emitted, dropped = sum(box.emitted for box in boxes), sum(box.dropped for box in boxes)
        reason = self.producer.problem() or self.trouble()
        recorded = sum(max(0, box.acked - box.started_after) for box in boxes)
        return TraceStatus("degraded" if reason else "ok", reason, emitted, recorded, dropped)

    def figures(self) -> tuple[SessionFigures, ...]:
        """Each session that is not closed for good, as this process knows it."""
        return tuple(map(self._figures, self.producer.channels))

    def _figures(self, channel: Channel) -> SessionFigures:
        status, outbox = SessionTrace(self, channel).status(), channel.outbox
        counts = (status.emitted, status.recorded, status.dropped, dict(outbox.dropped_by), outbox.queued_bytes)
        return SessionFigures(outbox.session, status.state, status.reason, *counts)

    def trouble(self) -> str:
        """Why nothing gets through on this connection, or "": every frame is answered, so silence means a stuck writer."""
        silent_s = self._clock.monotonic() - self._asked_at if self._asked_at is not None else 0.0
        return self.problem or ("the writer does not answer" if silent_s > _SILENT_S else "")

    async def flush(self, channel: Channel, timeout_s: float) -> bool:
        """Wait until everything the session recorded so far is acknowledged and the writer has answered a FLUSH."""
        outbox = channel.outbox
        token = self.producer.ask_flush()
        target = outbox.emitted
        deadline = self._clock.monotonic() + timeout_s
        if not await self._wait(
            lambda: bool(outbox.stopped) or outbox.acked - outbox.started_after >= target, deadline
        ):
            return False
        self.producer.say_flush(token)
        return await self._wait(lambda: self.producer.flushed >= token, deadline)

    async def numbered(self, channel: Channel, timeout_s: float) -> bool:
        """Wait until the session has its numbers, which a resumed one gets from the writer."""
        deadline = self._clock.monotonic() + timeout_s
        await self._wait(lambda: channel.outbox.has_numbers or bool(channel.outbox.stopped), deadline)
        return channel.outbox.has_numbers

    async def close_session(self, channel: Channel, timeout_s: float) -> bool:
        """Send everything, say CLOSE, wait for CLOSED; at the time-out the session is let go of all the same."""
        self.producer.ask_close(channel)
        deadline = self._clock.monotonic() + timeout_s
        done = await self._wait(lambda: channel.phase == "gone" or bool(channel.outbox.stopped), deadline)
        if not done:
            self.producer.close_now(channel)
            self._pump()
            self.producer.forget(channel)
        return done

    async def aclose(self, timeout_s: float = 2.0) -> None:
        """Close every session that is still open. The task that runs `run` is its owner's to end."""
        for channel in list(self.producer.channels):
            await self.close_session(channel, timeout_s)

    # --- the task

    async def run(self) -> None:
        """Connect, send, receive, and connect again, for ever. Cancel it to stop."""
        self._loop = asyncio.get_running_loop()
        self._kick = asyncio.Event()
        wait_s = _RETRY_FIRST_S
        try:
            while not self._disowned:
                sock = self._connect()
                if sock is not None:
                    started = self._clock.monotonic()
                    self.problem = await self._serve(sock)
                    wait_s = _RETRY_FIRST_S if self._clock.monotonic() - started > 1 else wait_s
                else:
                    self._on_no_writer()
                await self._pause(wait_s)
                wait_s = min(wait_s * 2, _RETRY_MAX_S)
        finally:
            self._drop_connection()
            self._loop = None

    async def _pause(self, wait_s: float) -> None:
        assert self._kick is not None
        self._kick.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._kick.wait()
        except TimeoutError:
            pass

    def try_now(self) -> None:
        """A writer has just been started: connect without waiting for the next attempt."""
        if self._kick is not None:
            self._kick.set()

    def _connect(self) -> socket.socket | None:
        if self._disowned:
            return None
        found = dial(self._path, SEND_BUFFER)
        if isinstance(found, str):
            self.problem = found
            return None
        return found

    async def _serve(self, sock: socket.socket) -> str:
        """Run one connection to its end; gives why it ended."""
        assert self._loop is not None
        self._sock, self._lost, self._asked_at = sock, self._loop.create_future(), None
        self._out.clear()
        self._out.append(self.producer.connected())
        self._loop.add_reader(sock.fileno(), self._readable)
        self._pump()
        try:
            return await self._lost
        finally:
            self._drop_connection()

    def _drop_connection(self) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(sock.fileno())
            if self._writable:
                self._loop.remove_writer(sock.fileno())
        self._unschedule()
        self._writable = False
        sock.close()
        self._out.clear()
        self.producer.disconnected()
        self._check_waiters()

    def _end(self, why: str) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(why)

    # --- sending

    def _wake(self) -> None:
        """Something was recorded: hand it over in the next turn of the loop, but at most every FLUSH_S."""
        if self._scheduled is not None or self._loop is None or self._sock is None or self._loop.is_closed():
            return
        wait_s = self._last_flush + FLUSH_S - self._loop.time()
        if wait_s <= 0:
            self._scheduled = self._loop.call_soon(self._pump)
        else:
            self._scheduled = self._loop.call_later(wait_s, self._pump)

    def _pump(self) -> None:
        self._unschedule()
        if self._sock is None or self._loop is None or self._writable:
            return
        self._last_flush = self._loop.time()
        while True:
            if not self._out:
                self._out.extend(self.producer.outgoing())
                if not self._out:
                    break
            if not self._send_some(self._sock):
                return
        due = self.producer.next_time()
        if due is not None:
            wait_s = max(0.001, due - self._clock.monotonic())
            self._due = self._loop.call_later(wait_s, self._pump)

    def _unschedule(self) -> None:
        for handle in (self._scheduled, self._due):
            if handle is not None:
                handle.cancel()
        self._scheduled = self._due = None

    def _send_some(self, sock: socket.socket) -> bool:
        """One sendmsg. False when the socket takes no more, or is gone."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
        try:
            count = sock.sendmsg(list(islice(self._out, _PIECES)), (), socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as exc:
            self._end(f"the connection to the writer was lost: {exc.strerror or exc}")
            return False
        while self._out and count >= len(self._out[0]):
            count -= len(self._out.popleft())
        if not self._out:
            return True
        if count:
            self._out[0] = memoryview(self._out[0])[count:]
        assert self._loop is not None
        self._writable = True
        self._loop.add_writer(sock.fileno(), self._can_write)
        return False

    def _can_write(self) -> None:
        if self._sock is not None and self._loop is not None:
            self._loop.remove_writer(self._sock.fileno())
        self._writable = False
        self._pump()

    # --- receiving

    def _readable(self) -> None:
        if self._sock is None:
            return
        try:
            data = self._sock.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._end(f"the connection to the writer was lost: {exc.strerror or exc}")
            return
        if not data:
            self._end(self.producer.turned_away or "the writer ended")
            return
        try:
            self.producer.receive(data)
        except ProtocolError as exc:
            self._end(f"what answers at the writer's socket is no writer: {exc}")
            return
        self._asked_at = None
        if self.producer.ready:
            self.problem = ""
        self._check_waiters()

    async def _wait(self, done: Callable[[], bool], deadline: float) -> bool:
        """Wait until done() is true, looked at after every receive; False at the deadline."""
        if done():
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (done, waiter)
        self._waiters.append(entry)
        self._wake()
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                await waiter
        except TimeoutError:
            return done()
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
        return True

    def _check_waiters(self) -> None:
        for done, waiter in list(self._waiters):
            if not waiter.done() and done():
                waiter.set_result(None)
