"""The writer's loop: plain epoll, one thread, many producers with many sessions each. Phases: start, serve, drain, close.

A receive is one turn: its frames are taken, then every session they touched is written once and answered once. Slow work
(opening, fdatasync, digests, manifests) goes to the background threads; a session that closes keeps its lock, and its place
in `_held`, until that is done: this is what keeps a close before the next open of the same session (`background`).
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct

from tracewriter.background import Background
from tracewriter.clock import Clock
from tracewriter.config import MAX_FRAME, Limits
from tracewriter.connection import Connection, ReceiveBuffer, same_user, turn_away
from tracewriter.disk import Disk
from tracewriter.errors import ProtocolError, SessionUnavailable
from tracewriter.housekeeping import Sweeper
from tracewriter.journal import Journal, Key, Producer
from tracewriter.opener import Opener
from tracewriter.payload_parts import Memory
from tracewriter.protocol import (
    OLDEST_VERSION,
    VERSION,
    Flushed,
    Frame,
    Hello,
    Kind,
    Open,
    Status,
    Welcome,
    decode_body,
    encode,
)
from tracewriter.recorder import Recording, closed, refused
from tracewriter.redact import Redactor
from tracewriter.upkeep import Place, Upkeep
from tracewriter.validation import check_life, check_secrets, checked_key

_TICK_S: Final = 0.25
_DEAF_S: Final = 0.5
_DUE_S: Final = 0.02  # how often a busy loop looks for what is due
_RECEIVES: Final = 4  # of one turn while more is ready; a producer gets its answers after so many at the latest
_READ: Final = select.EPOLLIN | select.EPOLLRDHUP


class Versions(Struct, frozen=True):
    """The protocol versions that are spoken: the newest, and the oldest that is still served."""

    newest: int = VERSION
    oldest: int = OLDEST_VERSION


class _Opening:
    """A session that was asked for and is not open yet: it waits for its turn, or its files are being read."""

    def __init__(self, connection: Connection, channel: int, request: Open) -> None:
        self.connection, self.channel, self.request = connection, channel, request
        self.close_after = False  # its CLOSE has come already


class Server:
    """Serves a listening Unix socket until told to stop."""

    def __init__(
        self,
        listener: socket.socket,
        root_fd: int,
        *,
        root: str,
        disk: Disk,
        clock: Clock,
        limits: Limits,
        version: str,
        log: Callable[[str], None],
        sweeper: Sweeper | None = None,
        versions: Versions = Versions(),  # noqa: B008 - frozen
    ) -> None:
        self._sweeper, self._versions = sweeper, versions
        self._listener, self._root, self._clock, self._limits = listener, root, clock, limits
        self._version, self._log = version, log
        self._epoll = select.epoll()
        self._buffer = ReceiveBuffer()
        self.background = Background(log)
        self._connections: dict[int, Connection] = {}
        self._answering: dict[int, Connection] = {}  # those that have something queued
        self._held: dict[Key, Recording] = {}  # every session being recorded, until its lock is free again
        self._owners: dict[Key, Connection] = {}
        self._opens: deque[_Opening] = deque()  # those that wait for their turn
        self._opening: dict[Key, _Opening] = {}  # those whose files are being read in the background
        self._memory = Memory(limits.payload_memory, limits.half_frame_timeout_s)
        self._started = clock.monotonic()
        self._idle_since = self._started
        self._upkeep = Upkeep(self._held, self.background, Place(root, root_fd), clock=clock, limits=limits, log=log)
        self._opener = Opener(disk, root_fd, limits, self.background, self._upkeep)
        # most sessions have the same secrets, and two automata of 60 KiB each time would be most of this process's memory
        self._redactors: WeakValueDictionary[tuple[str, ...], Redactor] = WeakValueDictionary()
        Redactor()  # the automata of all rules are made now: the first session must not wait for them
        self._due_at = 0.0
        self._deaf_until = 0.0  # no descriptors left: do not ask for connections until then

    # --- the loop

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until `stop()` is true or nobody has been there for `idle_exit_s`, then drain and close."""
        self._listener.setblocking(False)
        if not self.background.threaded:
            self._log("no thread can be had (a process limit): opens, syncs and digests hold up the loop")
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(self.background.wake_fd, select.EPOLLIN)
        while not stop() and not self._idle_too_long():
            self.turn(0.0 if self._opens and self._may_open_more() else _TICK_S)
        self._drain()

    def turn(self, timeout_s: float) -> None:
        """One round: what is ready, a few opens, the answers, what is due."""
        for _ in range(_RECEIVES):
            ready = self._epoll.poll(timeout_s)
            for fd, events in ready:
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self.background.wake_fd:
                    self.background.collect()
                else:
                    self._ready(fd, events)
            if not ready:
                break
            timeout_s = 0.0
        while self._opens and self._may_open_more():
            self._serve_open(self._opens.popleft())
        self._answer()
        now = self._clock.monotonic()
        if not ready or now >= self._due_at:
            self._due_at = now + _DUE_S
            self._due(now)
            self._answer()

    def _may_open_more(self) -> bool:
        return len(self._opening) < self._limits.opens_per_turn

    def _idle_too_long(self) -> bool:
        if self._connections or self._held or self._opening or not self._limits.idle_exit_s:
            self._idle_since = self._clock.monotonic()
            return False
        return self._clock.monotonic() - self._idle_since > self._limits.idle_exit_s

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # the connection stays in the backlog and would wake the loop for ever; the others go on meanwhile
                self._log(f"no new connection: {exc.strerror}")
                self._deaf_until = self._clock.monotonic() + _DEAF_S
                self._epoll.modify(self._listener.fileno(), 0)
            return
        if not same_user(sock):
            sock.close()
            return
        if len(self._connections) >= self._limits.connections:
            turn_away(sock, f"{self._limits.connections} producers are connected already")
            return
        connection = Connection(sock, self._limits, self._clock.monotonic())
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, _READ)

    def _ready(self, fd: int, events: int) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            return
        try:
            if events & select.EPOLLOUT:
                self._answering[fd] = connection
            if events & ~select.EPOLLOUT:
                self._receive(connection)
        except ProtocolError as exc:
            self._log(f"a connection was closed: {exc}")
            self._gone(connection)
        except OSError:
            self._gone(connection)

    def _receive(self, connection: Connection) -> None:
        frames = connection.receive(self._buffer, self._clock.monotonic())
        if frames is None:
            self._gone(connection)
            return
        touched: dict[int, Recording] = {}
        try:
            for frame in frames:
                if connection.closing:
                    break
                self._frame(connection, frame, touched)
        finally:
            self._write(connection, touched)
        if connection.closing:
            self._gone(connection)

    def _frame(self, connection: Connection, frame: Frame, touched: dict[int, Recording]) -> None:
        if not connection.producer and frame.kind is not Kind.HELLO:
            raise ProtocolError("a frame before HELLO")
        match frame.kind:
            case Kind.EVENTS | Kind.DROP:
                recording = connection.channels.get(frame.channel)
                if recording is not None:  # a closed or refused channel: its frames in flight mean nothing
                    recording.take(frame)
                    touched[frame.channel] = recording
            case Kind.PAYLOAD:
                recording = connection.channels.get(frame.channel)
                if recording is not None:
                    recording.take_payload(frame)
                    touched[frame.channel] = recording
            case Kind.HELLO:
                self._hello(connection, decode_body(frame.body, Hello))
            case Kind.OPEN:
                self._queue_open(connection, frame)
            case Kind.FLUSH:
                self._write(connection, touched)
                self._flush(connection, frame.first)
            case Kind.CLOSE:
                self._write(connection, touched)
                self._close_channel(connection, frame.channel)
            case Kind.STATUS:
                self._queue(connection, encode(Kind.STATUS, body=self.status()))
            case _:
                raise ProtocolError(f"a {frame.kind.name} frame, which this version does not take")

    def _write(self, connection: Connection, touched: dict[int, Recording]) -> None:
        answers: list[bytes] = []
        for channel, recording in touched.items():
            answers.append(recording.write())
            if recording.refused is None:
                self._upkeep.warm(recording)
            elif connection.channels.pop(channel, None) is not None:
                self._close(recording, lambda: None)
        touched.clear()
        if answers:
            self._queue(connection, b"".join(answers))

    def _queue(self, connection: Connection, data: bytes) -> None:
        connection.queue(data)
        self._answering[connection.fd] = connection

    def _answer(self) -> None:
        """Send what was queued: once a turn, since every answer wakes its producer, which takes as long as a receive."""
        while self._answering:
            _, connection = self._answering.popitem()
            if not self._connected(connection):
                continue
            try:
                waits = not connection.send()
            except OSError:
                self._gone(connection)
                continue
            if waits is not connection.waits_to_send:
                connection.waits_to_send = waits
                self._epoll.modify(connection.fd, _READ | select.EPOLLOUT if waits else _READ)

    # --- connections and sessions

    def _hello(self, connection: Connection, hello: Hello) -> None:
        if connection.producer:
            raise ProtocolError("a second HELLO")
        check_life(hello.producer)
        if hello.version < self._versions.oldest:
            raise ProtocolError(f"version {hello.version}, which is too old; the oldest is {self._versions.oldest}")
        for other in list(self._connections.values()):
            if other is connection or other.producer != hello.producer:
                continue
            if hello.conn <= other.conn:
                connection.closing = True  # a late one of a life that has gone on
                return
            self._gone(other)
        connection.producer, connection.conn = hello.producer, hello.conn
        connection.version = min(hello.version, self._versions.newest)
        self._queue(connection, encode(Kind.WELCOME, body=Welcome(connection.version, MAX_FRAME)))

    def _queue_open(self, connection: Connection, frame: Frame) -> None:
        if frame.channel <= connection.used_channels:
            raise ProtocolError("a channel number was used twice")
        connection.used_channels = frame.channel
        request = decode_body(frame.body, Open)
        try:
            check_secrets(request.secrets)  # before they are kept: thousands may wait
            if len(self._opens) >= self._limits.sessions:
                raise SessionUnavailable("limit", "too many sessions wait to be opened", 5000)
        except SessionUnavailable as exc:
            self._queue(connection, refused(frame.channel, exc))
            return
        self._opens.append(_Opening(connection, frame.channel, request))

    def _serve_open(self, opening: _Opening) -> None:
        """Have its files opened and read in the background."""
        connection, request = opening.connection, opening.request
        if not self._connected(connection):
            return
        try:
            try:
                key = checked_key(request.session, request.workspace)
                self._check_free(connection, key)
            except SessionUnavailable as exc:
                self._refuse(opening, exc)
                return
        except (ProtocolError, OSError):
            self._gone(connection)
            return
        self._opening[key], self._owners[key] = opening, connection
        producer = Producer(connection.producer, request.acked, request.last)
        self._opener.open(key, producer, partial(self._opened, key, opening))

    def _opened(self, key: Key, opening: _Opening, result: object) -> None:
        connection = opening.connection
        del self._opening[key]
        if not self._connected(connection) or not isinstance(result, Journal):
            del self._owners[key]
        if not self._connected(connection):
            if isinstance(result, Journal):
                result.close()
            return
        try:
            if isinstance(result, Journal):
                recording = self._recording(opening, self._opener.keep(result))
                self._held[key] = connection.channels[opening.channel] = recording
                self._queue(connection, encode(Kind.OPENED, channel=opening.channel, first=recording.next))
                if opening.close_after:
                    self._close_channel(connection, opening.channel)
            elif isinstance(result, SessionUnavailable):
                self._refuse(opening, result)
            else:  # a bug, which is in the log
                self._refuse(opening, SessionUnavailable("internal", "the session could not be opened", 30_000))
        except (ProtocolError, OSError):
            self._gone(connection)

    def _refuse(self, opening: _Opening, problem: SessionUnavailable) -> None:
        self._queue(opening.connection, refused(opening.channel, problem))
        if opening.close_after:
            self._queue(opening.connection, closed(opening.channel, 0))

    def _connected(self, connection: Connection) -> bool:
        return self._connections.get(connection.fd) is connection

    def _check_free(self, connection: Connection, key: Key) -> None:
        holder = self._owners.get(key)
        if key in self._held or key in self._opening:
            if holder is not None and holder.producer == connection.producer and holder is not connection:
                self._gone(holder)
            raise SessionUnavailable("busy", "the session is being recorded by another connection", 250)
        if len(self._held) + len(self._opening) >= self._limits.sessions:
            raise SessionUnavailable("limit", f"{self._limits.sessions} sessions are being recorded already", 5000)

    def _recording(self, opening: _Opening, journal: Journal) -> Recording:
        return Recording(
            channel=opening.channel,
            journal=journal,
            reopen=partial(self._opener.again, journal.key, opening.connection.producer),
            redactor=self._redactor(opening.request.secrets),
            memory=self._memory,
            limited="limited" in opening.request.meta,
            limits=self._limits,
            clock=self._clock,
            let_go=self._upkeep.let_go,
        )

    def _redactor(self, secrets: tuple[str, ...]) -> Redactor:
        """The one of all sessions with these secrets; it, and they, are forgotten with the last of those."""
        redactor = self._redactors.get(secrets)
        if redactor is None:
            redactor = self._redactors[secrets] = Redactor(secrets)
        return redactor

    def _gone(self, connection: Connection) -> None:
        """The connection's end: forget half frames, write what was complete, close its sessions."""
        if self._connections.pop(connection.fd, None) is None:
            return
        try:
            self._epoll.unregister(connection.fd)
        except OSError:
            pass
        for recording in connection.channels.values():
            recording.write()
            self._close(recording, lambda: None)
        connection.channels.clear()
        connection.close()

    def _close_channel(self, connection: Connection, channel: int) -> None:
        recording = connection.channels.pop(channel, None)
        if recording is None:
            asked = (*self._opens, *self._opening.values())
            opening = next((o for o in asked if o.connection is connection and o.channel == channel), None)
            if opening is not None:
                opening.close_after = True  # it overtook its OPEN: closed as soon as it is open
            else:
                self._queue(connection, closed(channel, 0))
            return

        def done() -> None:
            if self._connected(connection):
                try:
                    self._queue(connection, closed(channel, recording.next - 1))
                except (ProtocolError, OSError):
                    self._gone(connection)

        self._close(recording, done)

    def _close(self, recording: Recording, done: Callable[[], None]) -> None:
        recording.forget_parts()

        def free() -> None:
            self._owners.pop(recording.key, None)
            done()

        self._upkeep.close(recording, free)

    def _flush(self, connection: Connection, token: int) -> None:
        code = ""
        for recording in connection.channels.values():
            code = code or recording.reason
            journal = recording.journal
            if journal is not None and recording.dirty:
                journal.seal()
                recording.dirty = False
                manifest = recording.manifest(journal, closed=False)
                self.background.submit(partial(journal.write_manifest, manifest))

        def done(_: object) -> None:
            if self._connected(connection):
                try:
                    self._queue(connection, encode(Kind.FLUSHED, first=token, body=Flushed(not code, code)))
                except (ProtocolError, OSError):
                    self._gone(connection)

        self.background.submit(lambda: None, done)

    # --- what is due

    def _due(self, now: float) -> None:
        if self._sweeper is not None:
            self._sweeper.tick()
        if self._deaf_until and now >= self._deaf_until:
            self._deaf_until = 0.0
            self._epoll.modify(self._listener.fileno(), select.EPOLLIN)
        for connection in [c for c in self._connections.values() if c.overdue(now)]:
            self._log(f"a connection was closed: {connection.overdue(now)}")
            self._gone(connection)
        self._upkeep.due(now)

    # --- the end

    def status(self) -> Status:
        """The writer as a whole."""
        sessions = tuple(recording.status() for recording in self._held.values())
        reason = next((s.reason for s in sessions if s.state == "degraded"), "")
        reason = reason or ("" if self.background.threaded else "no_thread")
        return Status(
            version=self._version,
            pid=os.getpid(),
            root=self._root,
            state="degraded" if reason else "ok",
            reason=reason,
            uptime_s=round(self._clock.monotonic() - self._started, 3),
            connections=len(self._connections),
            durability=self._limits.durability,
            retention=self._sweeper.state if self._sweeper is not None else "off",
            sessions=sessions,
        )

    def _drain(self) -> None:
        """Read what producers have already sent, write it, close every session in order. Bounded in time."""
        self._epoll.unregister(self._listener.fileno())
        deadline = self._clock.monotonic() + 1.0
        while self._clock.monotonic() < deadline:
            ready = [(fd, ev) for fd, ev in self._epoll.poll(0) if fd != self.background.wake_fd]
            if not ready:
                break
            for fd, events in ready:
                self._ready(fd, events)
            self._answer()
        for connection in list(self._connections.values()):
            self._gone(connection)
        deadline = self._clock.monotonic() + 5.0
        while (self._held or self._opening) and self._clock.monotonic() < deadline:
            self._epoll.poll(0.05)
            self.background.collect()
        if self._sweeper is not None:
            self._sweeper.stop()
        self.background.stop(5.0)
        self._epoll.close()
