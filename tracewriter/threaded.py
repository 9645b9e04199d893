"""Recording from plain threads, and from any of them at once: a thread of its own sends, so that nobody else ever waits.

`record` and `note` put an event into a queue and are done: no lock, no I/O, whatever the writer does. The sender's thread
looks there every 2 ms, numbers what it finds (so numbers have no holes, however many threads record), and sends it. It is a
daemon thread: a program that ends without closing is given 2 s at exit to hand over the rest.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Final, Protocol

from tracewriter import forks
from tracewriter.clock import SYSTEM_CLOCK, Clock
from tracewriter.config import BUFFER_BYTES, FLUSH_S, SEND_BUFFER
from tracewriter.errors import ProtocolError
from tracewriter.events import FORMAT, SessionRecordFinished, SessionRecordStarted
from tracewriter.foreign import tool_name
from tracewriter.handover import Handover
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.reach import dial
from tracewriter.standing import TraceStatus, standing
from tracewriter.thread_trace import CLOSE_S, Reply, ThreadTrace

MODE: Final = "tool"  # the mode of a session that is not the agent's own
NOBODY_S: Final = 0.25  # for a close where no writer was ever there: a program must not end later for that
_NOT_YET: Final = "no writer is connected yet"
_KNOWN_S: Final = 0.2  # until it is known whether there is one
_IDLE_S: Final = 0.02  # how often it looks when nothing was recorded for a while
_BUSY_FOR_S: Final = 1.0
_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 2.0
_SILENT_S: Final = 1.0
_RECEIVE: Final = 256 * 1024
_RECEIVES: Final = 16  # in one turn
_PIECES: Final = 512  # of one sendmsg; over 1,024 it is EINVAL
_TAKEN: Final = 4096  # events taken over in one turn, so that answers are read in between


class _Wait(Protocol):
    """Something that somebody waits for. `deadline` is on the monotonic clock."""

    deadline: float

    def done(self) -> bool:
        """Whether it has come, after doing what is to be done for it now."""

    def finish(self, *, in_time: bool) -> None:
        """It has come, or will not be waited for any longer."""


class ThreadSender:
    """Records for one process, over one connection, with a thread of its own. Any thread may use it."""

    def __init__(
        self,
        socket_path: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        life: str | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        one_session: bool = False,
        on_no_writer: Callable[[], None] = lambda: None,
    ) -> None:
        """one_session: the thread ends with its session. on_no_writer: called in the thread when nobody listens."""
        self._path, self._clock = socket_path, clock
        self._producer = Producer(life or os.urandom(8).hex(), clock, buffer_bytes=buffer_bytes)
        self._one_session, self._on_no_writer = one_session, on_no_writer
        self.queue: Handover[ThreadTrace] = Handover()
        self.over = ""  # why nothing is recorded through it any more
        self._problem = _NOT_YET
        self._traces: dict[ThreadTrace, None] = {}
        self._waits: list[_Wait] = []
        self._sock: socket.socket | None = None
        self._out: deque[bytes | memoryview] = deque()
        self._asked_at: float | None = None  # when the first of what is not answered yet was sent
        self._connected_at: float | None = None
        self._retry_at, self._retry_s = 0.0, _RETRY_FIRST_S
        self._busy_at = clock.monotonic()
        self._ending = False
        self._bell = -1  # rung for what is asked, never for what is recorded: that would be a system call each
        self._thread: threading.Thread | None = None
        self._start()

    def __repr__(self) -> str:
        return f"<ThreadSender {self._path} {self.over or self._problem or 'ok'}>"

    def _start(self) -> None:
        forks.tell(self)
        try:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(target=self._run, name="tracewriter", daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as exc:  # no descriptors, no threads, or the interpreter is ending
            self._thread = None
            self._end(f"no thread to send with: {exc}")
            return
        _living()[self] = None

    # --- for callers, in any thread

    def open(
        self,
        session: str,
        workspace: str,
        *,
        tool: str,
        capture: str = "content",
        secrets: tuple[str, ...] = (),
        resumed: bool = False,
    ) -> ThreadTrace:
        """Record a session. `resumed` for one that an earlier process may have recorded: its numbers wait for the writer.

        secrets: exact values that must not reach the disk; kept in memory here and in the writer.
        """
        tool = tool_name(tool)
        trace = ThreadTrace(self, session, tool, capture, self._clock)
        info = SessionInfo(session, workspace, capture, secrets)
        started, now = SessionRecordStarted(FORMAT, tool, workspace, MODE, capture), self._clock.now()

        def add() -> None:
            trace.channel = self._producer.add(info, resumed=resumed)
            trace.channel.outbox.record(started, ts=now)

        self._traces[trace] = None
        self.queue.order(add)
        return trace

    def flush(self, trace: ThreadTrace, timeout_s: float) -> Reply:
        """Ask for all that was recorded so far to be on disk."""
        return self._ask(trace, lambda reply: self._waits.append(_Flush(self, trace, reply, self._until(timeout_s))))

    def close_session(self, trace: ThreadTrace, timeout_s: float | None = None) -> Reply:
        """Ask for the end of a recording: its last record, everything acknowledged, the session's lock free."""

        def ask(reply: Reply) -> None:
            impatient = timeout_s is None and self._connected_at is None
            bound_s = NOBODY_S if impatient else CLOSE_S if timeout_s is None else timeout_s
            self._waits.append(_Close(self, trace, reply, self._until(bound_s)))

        return self._ask(trace, ask)

    def status(self, trace: ThreadTrace) -> Reply:
        """Ask how things stand."""
        return self._ask(trace, lambda reply: self._waits.append(_Status(self, trace, reply, self._until(_KNOWN_S))))

    def close(self, timeout_s: float | None = None) -> None:
        """Close every session that is open, then end the thread and its connection. As a trace's close, all together."""
        until = self._until(CLOSE_S if timeout_s is None else timeout_s)
        for reply in self.ask_to_close(timeout_s):
            reply.wait(max(0.0, until - self._clock.monotonic()))
        self.end()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def ask_to_close(self, timeout_s: float | None = None) -> list[Reply]:
        """Ask for the end of all recordings."""
        traces = list(self._traces)
        for trace in traces:
            trace.end_streams()
        return [self.close_session(trace, timeout_s) for trace in traces]

    def end(self) -> None:
        """Let the thread end, whatever is open."""
        self._ending = True
        self._ring()

    def _ask(self, trace: ThreadTrace, ask: Callable[[Reply], None]) -> Reply:
        reply = Reply()
        self._answer_if_over(trace, reply)
        if reply.status is None:
            self.queue.order(lambda: ask(reply))
            self._ring()
            self._answer_if_over(trace, reply)  # it may have ended in between, without a look at this
        return reply

    def _answer_if_over(self, trace: ThreadTrace, reply: Reply) -> None:
        if self.over:
            reply.set(trace.last_standing(self.over))

    def _ring(self) -> None:
        try:
            os.eventfd_write(self._bell, 1)
        except OSError:
            pass  # there is none

    def disown(self) -> None:
        """In a forked child: there is no thread, and the sessions are the parent's. What is recorded is counted, never sent."""
        self.over = "forked: the sessions belong to the process that this one was forked from"
        self.queue.clear()
        self._waits.clear()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def __del__(self) -> None:
        bell, self._bell = getattr(self, "_bell", -1), -1
        if bell >= 0:
            os.close(bell)  # not before: a number that is rung may be another file's by then

    # --- the thread

    def _run(self) -> None:
        why = "closed"
        try:
            while not self._ending and not self.over:
                self._turn()
        except Exception as exc:  # noqa: BLE001 - the seam: a bug in here costs the recording, and is told; the program goes on
            why = f"internal: {type(exc).__name__}"
        self._drop_connection("closed")
        self._end(why)

    def _end(self, why: str) -> None:
        self.over = self.over or why
        self.queue.closed = True
        while (item := self.queue.take()) is not None:
            if isinstance(item, tuple):
                item[0].lose()
            else:
                item()
        for wait in self._waits:
            wait.finish(in_time=wait.done())
        self._waits.clear()
        _living().pop(self, None)

    def _turn(self) -> None:
        started = self._clock.monotonic()
        all_taken = self._take_over(started)
        if self._sock is None and started >= self._retry_at:
            self._connect(started)
        self._send()
        self._receive()
        self._look_at_waits()
        if all_taken:
            self._rest(started)

    def _rest(self, started: float) -> None:
        """Until the next look: every 2 ms, less often after a second without a record; at once when something is asked."""
        now = self._clock.monotonic()
        idle = now - self._busy_at > _BUSY_FOR_S and not self._waits
        left_s = started + (_IDLE_S if idle else FLUSH_S) - now
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if self._waits and self._sock is not None:
            poll.register(self._sock, select.POLLIN)  # answers are waited for
        poll.poll(max(0.0, left_s) * 1000)
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass

    def _take_over(self, now: float) -> bool:
        """False: there is more."""
        for _ in range(_TAKEN):
            item = self.queue.take()
            if item is None:
                return True
            if not isinstance(item, tuple):
                item()
                continue
            self._busy_at = now
            trace, event, ts, run, op, parent, grains = item
            self._account(trace)
            if trace.channel is not None:
                # any value may be given to it: its type only says what it is meant for
                trace.channel.outbox.record(event, ts=ts, run=run, op=op, parent=parent)  # type: ignore[arg-type]
            if grains:
                self.queue.free(grains)
        return False

    def _account(self, trace: ThreadTrace) -> None:
        """What did not fit into the queue gets its drop record here: before the next one that did."""
        lost = trace.new_losses() if trace.lossy else 0
        if lost and trace.channel is not None:
            trace.channel.outbox.lose(lost)

    def _connect(self, now: float) -> None:
        found = dial(self._path, SEND_BUFFER)
        if isinstance(found, str):
            self._problem = found
            self._retry_at, self._retry_s = now + self._retry_s, min(self._retry_s * 2, _RETRY_MAX_S)
            self._on_no_writer()
            return
        self._sock, self._connected_at, self._asked_at = found, now, None
        self._out.append(self._producer.connected())

    def _drop_connection(self, why: str) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._problem = why
        sock.close()
        self._out.clear()
        self._producer.disconnected()
        now = self._clock.monotonic()
        if self._connected_at is not None and now - self._connected_at > 1:
            self._retry_s = _RETRY_FIRST_S
        self._retry_at, self._retry_s = now + self._retry_s, min(self._retry_s * 2, _RETRY_MAX_S)

    def _send(self) -> None:
        while self._sock is not None:
            if not self._out:
                self._out.extend(self._producer.outgoing())
                if not self._out:
                    return
            if self._asked_at is None:
                self._asked_at = self._clock.monotonic()
            try:
                count = self._sock.sendmsg(list(islice(self._out, _PIECES)), (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                self._drop_connection(f"the connection to the writer was lost: {exc.strerror or exc}")
                return
            while self._out and count >= len(self._out[0]):
                count -= len(self._out.popleft())
            if count:
                self._out[0] = memoryview(self._out[0])[count:]

    def _receive(self) -> None:
        for _ in range(_RECEIVES):
            if self._sock is None:
                return
            try:
                data = self._sock.recv(_RECEIVE)
                if not data:
                    self._drop_connection(self._producer.turned_away or "the writer ended")
                    return
                self._producer.receive(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                self._drop_connection(f"the connection to the writer was lost: {exc.strerror or exc}")
                return
            except ProtocolError as exc:
                self._drop_connection(f"what answers at the writer's socket is no writer: {exc}")
                return
            self._asked_at = None
            if self._producer.ready:
                self._problem = ""

    def _look_at_waits(self) -> None:
        now = self._clock.monotonic()
        for wait in list(self._waits):
            done = wait.done()
            if done or now >= wait.deadline:
                self._waits.remove(wait)
                wait.finish(in_time=done)

    # --- for those who wait, in the thread

    def _until(self, timeout_s: float) -> float:
        return self._clock.monotonic() + timeout_s

    def standing(self, trace: ThreadTrace) -> TraceStatus:
        """How a session stands."""
        channel = trace.channel
        if channel is None:
            return trace.last_standing(self.over or "not opened yet")
        self._account(trace)
        closing, unfinished = trace.closing, trace.unfinished
        trace.stood = standing(channel.outbox, channel.reason or self.trouble(), closing=closing, unfinished=unfinished)
        return trace.stood

    def trouble(self) -> str:
        """Why nothing gets through, or ""."""
        silent_s = self._clock.monotonic() - self._asked_at if self._asked_at is not None else 0.0
        return self._problem or ("the writer does not answer" if silent_s > _SILENT_S else "")

    def ask_flush(self) -> int:
        """Send a FLUSH now; gives its token."""
        token = self._producer.ask_flush()
        self._producer.say_flush(token)
        return token

    @property
    def flushed(self) -> int:
        """The newest token that came back."""
        return self._producer.flushed

    def ask_close(self, channel: Channel) -> None:
        """Close as soon as all is acknowledged."""
        self._producer.ask_close(channel)

    def forget(self, trace: ThreadTrace, channel: Channel, *, in_time: bool) -> None:
        """A session is closed, or let go of at its time-out."""
        if not in_time:
            self._producer.close_now(channel)
            self._send()
            self._producer.forget(channel)
        self._traces.pop(trace, None)
        self._ending = self._ending or self._one_session


@cache  # once in a process, for all of them: each on its own would have its own 2 s
def _living() -> dict[ThreadSender, None]:
    """The senders whose threads run; what they have is handed over when the program ends."""
    living: dict[ThreadSender, None] = {}

    def at_exit() -> None:
        until = time.monotonic() + CLOSE_S
        for reply in [reply for sender in list(living) for reply in sender.ask_to_close()]:
            reply.wait(max(0.0, until - time.monotonic()))

    atexit.register(at_exit)
    return living


class _Status:
    """It is known whether there is a writer."""

    def __init__(self, sender: ThreadSender, trace: ThreadTrace, reply: Reply, deadline: float) -> None:
        self._sender, self._trace, self._reply, self.deadline = sender, trace, reply, deadline

    def done(self) -> bool:
        return self._sender.trouble() != _NOT_YET

    def finish(self, *, in_time: bool) -> None:
        self._reply.set(self._sender.standing(self._trace))


class _Flush:
    """All that was recorded before it is acknowledged, then a FLUSH is answered."""

    def __init__(self, sender: ThreadSender, trace: ThreadTrace, reply: Reply, deadline: float) -> None:
        self._sender, self._trace, self._reply, self.deadline = sender, trace, reply, deadline
        sender.standing(trace)  # what did not fit into the queue is accounted for
        self._target = trace.channel.outbox.emitted if trace.channel is not None else 0
        self._token = 0

    def done(self) -> bool:
        channel = self._trace.channel
        if channel is None or channel.outbox.stopped:
            return True
        if not self._token and channel.outbox.acked - channel.outbox.started_after >= self._target:
            self._token = self._sender.ask_flush()
        return 0 < self._token <= self._sender.flushed

    def finish(self, *, in_time: bool) -> None:
        self._reply.set(self._sender.standing(self._trace))


class _Close:
    """The session has its numbers, its last record is made, all is acknowledged, CLOSE is answered."""

    def __init__(self, sender: ThreadSender, trace: ThreadTrace, reply: Reply, deadline: float) -> None:
        self._sender, self._trace, self._reply, self.deadline = sender, trace, reply, deadline
        self._asked, trace.closing = False, True

    def done(self) -> bool:
        channel = self._trace.channel
        if channel is None or self._trace.unfinished:
            return True
        box = channel.outbox
        if not self._asked and box.has_numbers:
            self._asked = True
            self._sender.standing(self._trace)
            if not channel.close_asked:
                # its own seq: all that was ever numbered; what no run told the cost of has an unknown one
                cost_usd = box.cost_usd if box.usage is not None else None
                box.record(SessionRecordFinished(box.last + 1, box.counts(), box.usage, cost_usd))
                self._sender.ask_close(channel)
        return channel.phase == "gone" or bool(box.stopped)

    def finish(self, *, in_time: bool) -> None:
        trace, channel = self._trace, self._trace.channel
        if channel is not None:
            trace.unfinished = trace.unfinished or not in_time
            self._sender.forget(trace, channel, in_time=in_time)
        self._reply.set(self._sender.standing(trace))
