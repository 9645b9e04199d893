"""A producer's side of the socket protocol, without I/O: many sessions over one connection, and over many in a row.

Feed it what was received and the times that pass; take from it what to send. Frames stay until they are acknowledged, so a
lost connection costs nothing: on the next one each session is opened again and the writer says where to go on. The driver
(`sender`) owns the socket.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Final

from msgspec import Struct

from tracewriter.clock import Clock
from tracewriter.config import BUFFER_BYTES, BUFFER_RESUME, MAX_SEQ
from tracewriter.errors import ProtocolError
from tracewriter.events import TraceClockObserved, TraceDegradedObserved, TraceRecoveredObserved
from tracewriter.jsonl import Repairs, safe_str
from tracewriter.moving import KEY_BYTES, keys_of
from tracewriter.outbox import Budget, Outbox
from tracewriter.outframes import OutFrame
from tracewriter.protocol import (
    HEADER,
    OLDEST_VERSION,
    VERSION,
    Flushed,
    Frame,
    FrameDecoder,
    Hello,
    Kind,
    Nack,
    Open,
    Refused,
    Welcome,
    decode_body,
    encode,
)

_PIECES: Final = 256  # of one sendmsg; over 1,024 it is EINVAL
_NAME_CHARS: Final = 100  # the writer refuses longer ids, saying why
_PATH_CHARS: Final = 8192  # as for ids: PATH_MAX is 4,096 bytes
_SECRETS_CHARS: Final = 64 * 1024  # of all exact values; a PEM key has 2 to 4 KiB
_JUMP_S: Final = 5.0  # a wall clock is slewed for less
_WATCH_S: Final = 0.1  # how often the two clocks are compared
_ROUND_BYTES: Final = 1024 * 1024  # handed to the socket at once


class SessionInfo(Struct, frozen=True):
    """What OPEN says of a session."""

    session: str
    workspace: str
    capture: str = "content"
    secrets: tuple[str, ...] = ()


def _sayable(info: SessionInfo) -> tuple[SessionInfo, str]:
    """The session as OPEN can say it, or why it cannot be recorded: what does not fit a frame would cut the connection, and
    with it every other session, again and again. A secret that cannot be named cannot be kept out, so nothing is recorded."""
    repairs = Repairs()
    workspace, capture, *secrets = (safe_str(text, repairs) for text in (info.workspace, info.capture, *info.secrets))
    fitting = SessionInfo(info.session[:_NAME_CHARS], workspace[:_PATH_CHARS], capture[:_NAME_CHARS], tuple(secrets))
    size = sum(map(len, secrets))
    if size > _SECRETS_CHARS:
        bare = SessionInfo(fitting.session, fitting.workspace, fitting.capture)
        return (
            bare,
            f"secrets of {size:,} characters are too long to be kept out of a record; the bound is {_SECRETS_CHARS:,}",
        )
    return fitting, ""


class Channel:
    """One session and where it stands on the current connection."""

    def __init__(self, info: SessionInfo, outbox: Outbox) -> None:
        self.info, self.outbox = info, outbox
        self.number = 0  # of the channel on this connection; 0: not opened on it
        self.phase = "closed"  # closed, opening, open, closing, gone
        self.sent = 0  # leading frames of the outbox that this connection has carried
        self.resend_at: float | None = None  # after a NACK with a wait
        self.probing = False  # one frame is out to see whether the disk works again
        self.reopen_at: float | None = None  # after a REFUSED that may be retried
        self.reason = ""  # why recording is held up, or ""
        self.held_up = ""  # the reason that was recorded, until recording goes on
        self.held_up_at = 0.0
        self.close_asked = False
        self.queued = False  # it has a place in the producer's queue of those that may have something to send

    @property
    def due(self) -> float | None:
        """When it is to be tried again, on the monotonic clock; None: it waits for no time."""
        return self.resend_at if self.resend_at is not None else self.reopen_at

    @property
    def has_more(self) -> bool:
        """Something waits that this connection has not carried."""
        return self.sent < len(self.outbox.frames) or self.outbox.batch_open

    def __repr__(self) -> str:
        return f"<Channel {self.number} {self.phase} {self.outbox!r}>"


class Producer:
    """Everything one process records."""

    def __init__(
        self,
        life: str,
        clock: Clock,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        wake: Callable[[], None] = lambda: None,
        secret: bytes | None = None,  # KEY_BYTES of this life, which nobody else may know; None: random ones
    ) -> None:
        self.life, self._clock = life, clock
        self.wake = wake
        self.budget = Budget(buffer_bytes, min(BUFFER_RESUME, buffer_bytes * 3 // 4))
        self._keys = keys_of(secret if secret is not None else os.urandom(KEY_BYTES))
        self._channels: dict[Channel, None] = {}
        # With 1,000 sessions a look at each for every handful of records would cost more than the records.
        self._queue: deque[Channel] = deque()  # those that may have something to send, each once
        self._timed: dict[Channel, None] = {}  # those that may wait for a time
        self._next_due = inf  # no timer of theirs is earlier
        self._by_number: dict[int, Channel] = {}
        self._decoder = FrameDecoder()
        self._conn = 0
        self._numbers = 0
        self._token = 0
        self._asked_token = 0  # the newest one of a FLUSH
        self.flushed = 0  # the newest token that came back
        self.flush_problem = ""
        self.ready = False  # WELCOME has come on this connection
        self._clocks = (clock.now().timestamp(), clock.monotonic())
        self.turned_away = ""  # why the writer takes no more connections, if it said so
        self._control: list[bytes] = []
        self._disowned = ""  # why this process may not say anything any more

    # --- sessions

    def add(self, info: SessionInfo, *, resumed: bool) -> Channel:
        """Record another session. A new one is numbered from 1 at once; a resumed one waits for the writer's word."""
        info, problem = _sayable(info)
        outbox = Outbox(info.session, self._clock, self.budget, resumed=resumed, keys=self._keys, wake=self.wake)
        channel = Channel(info, outbox)
        self.attach(channel)
        if problem or self._disowned:
            self._stop(channel, problem or self._disowned)
        if self.ready:
            self._open(channel)
        return channel

    def attach(self, channel: Channel) -> None:
        """Count a session in that was put together elsewhere."""
        channel.outbox.wake = partial(self._more, channel)
        self._channels[channel] = None

    @property
    def channels(self) -> list[Channel]:
        """All sessions that are not closed for good."""
        return list(self._channels)

    def _more(self, channel: Channel) -> None:
        """The session may have something to send; one that is not open is looked at when it is."""
        if channel.phase == "open":
            if not channel.queued:
                channel.queued = True
                self._queue.append(channel)
            self.wake()

    def ask_close(self, channel: Channel) -> None:
        """Close the session's recording as soon as all of it is acknowledged (`close_now`: at once)."""
        channel.outbox.prepare_close()
        channel.close_asked = True
        self._close_if_done(channel)

    def close_now(self, channel: Channel) -> None:
        """The time-out of closing has come: say CLOSE although something is not acknowledged."""
        if channel.phase == "open":
            channel.phase = "closing"
            self._say(encode(Kind.CLOSE, channel=channel.number))

    def forget(self, channel: Channel) -> None:
        """Drop a session from memory, with what it still holds."""
        channel.phase = "gone"
        channel.outbox.stop("closed")
        self._channels.pop(channel, None)
        self._timed.pop(channel, None)

    def _close_if_done(self, channel: Channel) -> None:
        if channel.close_asked and channel.phase == "open" and channel.outbox.idle:
            self.close_now(channel)

    def ask_flush(self) -> int:
        """Send a FLUSH after everything recorded so far; `flushed` reaches the token when the writer has answered."""
        self._token += 1
        self.wake()
        return self._token

    def say_flush(self, token: int) -> None:
        """Queue the FLUSH itself (after the frames it is about have been taken by `outgoing`)."""
        self._asked_token = max(self._asked_token, token)
        self._say(encode(Kind.FLUSH, first=token))

    def _say(self, data: bytes) -> None:
        if self.ready:
            self._control.append(data)
            self.wake()

    # --- connections

    def connected(self) -> bytes:
        """A new connection: its HELLO."""
        self._conn += 1
        self.turned_away = ""
        self._decoder = FrameDecoder()
        self._numbers = 0
        self._by_number.clear()
        self._control.clear()
        self.ready = False
        return encode(Kind.HELLO, body=Hello(self.life, self._conn))

    def disconnected(self) -> None:
        """The connection is gone: everything unacknowledged will be sent again on the next."""
        self.ready = False
        self._control.clear()
        self._queue.clear()
        self._timed.clear()
        self._next_due = inf
        for channel in list(self._channels):
            channel.number, channel.sent, channel.queued = 0, 0, False
            channel.probing, channel.resend_at, channel.reopen_at = False, None, None
            if channel.phase == "closing":
                self.forget(channel)  # the writer closes what a gone connection held
            elif channel.phase != "gone":
                was, channel.phase = channel.phase, "closed"
                if was == "open":
                    self._hold_up(channel, "writer_gone")

    def disown(self, reason: str) -> None:
        """Say nothing from now on, not even on another connection: another process goes on with this life and its sessions."""
        self._disowned, self.ready = reason, False
        self._control.clear()
        for channel in self._channels:
            self._stop(channel, reason)

    def _open(self, channel: Channel) -> None:
        if channel.outbox.stopped:
            return
        self._numbers += 1
        channel.number, channel.phase, channel.sent = self._numbers, "opening", 0
        channel.reopen_at = None
        self._by_number[channel.number] = channel
        outbox, info = channel.outbox, channel.info
        last = outbox.last if outbox.last > outbox.started_after else 0
        meta = {"limited": "1"} if outbox.limited else {}  # from then on the session's reserve is for what it sends
        body = Open(info.session, info.workspace, outbox.acked if last else 0, last, info.capture, info.secrets, meta)
        self._say(encode(Kind.OPEN, channel=channel.number, body=body))

    def _hold_up(self, channel: Channel, reason: str) -> None:
        """Recording of a session is held up from now on: one record says so, when it can be written."""
        channel.reason = reason
        if not channel.held_up and not channel.close_asked:
            channel.held_up, channel.held_up_at = reason, self._clock.monotonic()
            channel.outbox.record(TraceDegradedObserved(reason, channel.outbox.acked + 1))

    def _go_on(self, channel: Channel) -> None:
        """It goes on: one record says after how long."""
        reason, channel.held_up, channel.reason = channel.held_up, "", ""
        if reason and not channel.close_asked:
            duration_ms = round((self._clock.monotonic() - channel.held_up_at) * 1000, 3)
            channel.outbox.record(TraceRecoveredObserved(reason, duration_ms))

    # --- what comes in

    def receive(self, data: bytes) -> None:
        """Take what the writer sent. Raises ProtocolError when it is no writer of ours: then close the connection."""
        for frame in self._decoder.feed(data):
            self._frame(frame)
        if self.budget.full and self.budget.bytes <= self.budget.resume:
            self.budget.full = False
            for channel in self._channels:
                channel.outbox.room()

    def _frame(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.WELCOME:
                version = decode_body(frame.body, Welcome).version
                if not OLDEST_VERSION <= version <= VERSION:
                    raise ProtocolError(f"the writer speaks version {version}")
                self.ready = True
                for channel in self._channels:
                    self._open(channel)
                if self.flushed < self._asked_token:  # its answer went with the connection before
                    self._say(encode(Kind.FLUSH, first=self._asked_token))
            case Kind.FLUSHED:
                answer = decode_body(frame.body, Flushed)
                self.flushed, self.flush_problem = frame.first, "" if answer.ok else answer.code
            case Kind.REFUSED if frame.channel == 0:
                self.turned_away = decode_body(frame.body, Refused).message
            case Kind.OPENED | Kind.REFUSED | Kind.ACK | Kind.NACK | Kind.CLOSED:
                about = self._by_number.get(frame.channel)
                if about is not None:
                    self._about(about, frame)
            case _:
                raise ProtocolError(f"a {frame.kind.name} frame from the writer")

    def _about(self, channel: Channel, frame: Frame) -> None:
        match frame.kind:
            case Kind.OPENED:
                if not 1 <= frame.first <= MAX_SEQ + 1:
                    raise ProtocolError("a session opened at a number that cannot be")
                channel.phase, channel.sent = "open", 0
                if not channel.outbox.numbered(frame.first):
                    self._stop(channel, "conflict: the writer is ahead of this process")
                else:
                    self._go_on(channel)
            case Kind.REFUSED:
                self._refused(channel, decode_body(frame.body, Refused))
            case Kind.ACK:
                self._acked(channel, frame.first)
            case Kind.NACK:
                self._nacked(channel, frame, decode_body(frame.body, Nack))
            case _:  # CLOSED
                del self._by_number[channel.number]
                self.forget(channel)
        self._close_if_done(channel)
        if frame.kind is Kind.OPENED or channel.has_more:
            self._more(channel)

    def _refused(self, channel: Channel, answer: Refused) -> None:
        del self._by_number[channel.number]
        channel.number, channel.phase = 0, "closed"
        if answer.retry_ms < 0:
            self._stop(channel, f"{answer.code}: {answer.message}")
            return
        channel.reason = f"{answer.code}: {answer.message}"
        channel.reopen_at = self._clock.monotonic() + answer.retry_ms / 1000
        self._wait(channel, channel.reopen_at)

    def _stop(self, channel: Channel, reason: str) -> None:
        channel.reason = reason
        channel.outbox.stop(reason)
        self._by_number.pop(channel.number, None)
        if channel.phase == "open":
            self._say(encode(Kind.CLOSE, channel=channel.number))
        channel.phase = "closed"

    def _acked(self, channel: Channel, seq: int) -> None:
        if seq > channel.outbox.last:
            raise ProtocolError("an acknowledgement of what was never sent")
        further = seq > channel.outbox.acked
        channel.sent = max(0, channel.sent - channel.outbox.acknowledge(seq))
        if further or channel.resend_at is None:  # else it is about parts that were on their way before a NACK
            channel.probing, channel.resend_at = False, None
        if (
            further and channel.reason and not channel.outbox.limited
        ):  # a NACK may follow an ACK that brings nothing new
            self._go_on(channel)

    def _nacked(self, channel: Channel, frame: Frame, nack: Nack) -> None:
        outbox = channel.outbox
        taken_back = frame.count > 0 and frame.first <= outbox.acked
        if taken_back or not 1 <= frame.first <= outbox.last + 1 or frame.first + frame.count > outbox.last + 1:
            raise ProtocolError("a refusal of what was never sent")
        channel.sent = max(0, channel.sent - channel.outbox.acknowledge(frame.first - 1))
        if frame.count:
            channel.outbox.refuse(frame.first, frame.count, nack.code)
            channel.sent = 0
            if channel.outbox.stopped:
                self._stop(channel, channel.outbox.stopped)
            elif nack.code == "limit":
                channel.reason = "limit: the session's recording is as large as it may get"
            return
        channel.sent = 0
        if nack.retry_ms:
            channel.probing = True
            channel.resend_at = self._clock.monotonic() + nack.retry_ms / 1000
            self._wait(channel, channel.resend_at)
            if nack.code != "busy" or not channel.reason:
                self._hold_up(channel, nack.code)

    # --- what goes out

    def outgoing(self) -> list[bytes]:
        """What to send now, in order: at most a round's worth, so that frames wait here and not in the socket's queue. A session
        that has more than its round goes behind the others: none starves.
        """
        now = self._clock.monotonic()
        if self.ready:
            self._watch_clocks(now)
            self._run_timers(now)
        pieces, self._control = self._control, []
        size = 0
        while self._queue:
            channel = self._queue.popleft()
            channel.queued = False
            for frame in self._unsent(channel, now):
                body = frame.body
                pieces += (
                    HEADER.pack(len(body), frame.kind, frame.flags, 0, channel.number, frame.count, frame.first),
                    body,
                )
                size += len(body)
                if len(pieces) >= _PIECES or size >= _ROUND_BYTES:
                    self._more(channel)
                    return pieces
        return pieces

    def _watch_clocks(self, now: float) -> None:
        """Order is by seq, so a jump of the wall clock harms nothing; but who reads the times has to know of it."""
        if now - self._clocks[1] < _WATCH_S:
            return
        wall = self._clock.now().timestamp()
        before, self._clocks = self._clocks, (wall, now)
        jump_s = (wall - before[0]) - (now - before[1])
        if abs(jump_s) >= _JUMP_S:
            for channel in self._channels:
                channel.outbox.record(TraceClockObserved(round(jump_s, 3)))

    def _unsent(self, channel: Channel, now: float) -> Iterator[OutFrame]:
        outbox = channel.outbox
        if channel.phase != "open" or (channel.resend_at is not None and now < channel.resend_at):
            return
        channel.resend_at = None
        if not (channel.probing and outbox.frames):
            outbox.cut()
        if channel.probing:
            if channel.sent == 0 and outbox.frames:
                channel.sent = 1
                yield outbox.frames[0]
            return
        while channel.sent < len(outbox.frames):
            frame = outbox.frames[channel.sent]
            channel.sent += 1
            yield frame

    def _wait(self, channel: Channel, due: float) -> None:
        self._timed[channel] = None
        self._next_due = min(self._next_due, due)
        self.wake()

    def _run_timers(self, now: float) -> None:
        if now < self._next_due:
            return
        self._next_due = inf
        for channel in list(self._timed):
            due = channel.due
            if due is not None and now < due:
                self._next_due = min(self._next_due, due)
                continue
            del self._timed[channel]
            if channel.reopen_at is not None:
                self._open(channel)
            elif due is not None:
                self._more(channel)

    def next_time(self) -> float | None:
        """When `outgoing` may have more although nothing was received, on the monotonic clock."""
        return self._next_due if self._next_due < inf else None

    def problem(self) -> str:
        """Why recording is held up, for the first session that is; "" when all is well."""
        return next((c.reason for c in self._channels if c.reason), "")
