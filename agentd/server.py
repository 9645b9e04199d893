"""The socket's server: connections, each with a reader and a writer, over an `Api` that answers requests.

Requests of one connection are handled in order; connections do not wait for each other. What a client does not read is
bounded: notifications then lag, answers hold back its next request, and after a while the client is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from msgspec import UNSET

from agentd.bad_lines import likely_id
from agentd.errors import Refusal
from agentd.feed import Subscription
from agentd.lines import Budget, LineSplitter, TooLong
from agentd.protocol import (
    INTERNAL_ERROR,
    OVERLOADED,
    PARSE_ERROR,
    REFUSED,
    Error,
    ErrorData,
    Initialize,
    Invalid,
    Params,
    Request,
    Result,
    decode_params,
    decode_request,
    encode_error,
    encode_result,
    id_of,
)
from agentd.session import where

MAX_CONNECTIONS: Final = 256
MAX_SUBSCRIPTIONS: Final = 256
READ_BYTES: Final = 64 * 1024
MAX_OUTBOX_BYTES: Final = 8 * 1024 * 1024
MAX_OUTBOX_LINES: Final = 10_000
# A client that took nothing for so long is cut; it resumes by cursor.
WRITE_S: Final = 30.0
HELLO_S: Final = 30.0
# Who comes when all places are taken is told so in answer to its first request, which it sends at once.
TURN_AWAY_S: Final = 1.0
MAX_TURNED_AWAY: Final = 64
_PEERCRED: Final = struct.Struct("3i")
_log: Final = logging.getLogger("agentd")

# Waits until the daemon listens at another socket, and gives it.
Moved: TypeAlias = Callable[[], Awaitable[socket.socket]]


class Outbox:
    """What one client has still to be sent: bounded for notifications, answers always fit (one request at a time)."""

    def __init__(self, *, max_bytes: int = MAX_OUTBOX_BYTES, max_lines: int = MAX_OUTBOX_LINES) -> None:
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self.held_bytes = 0
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.closed = False

    def __repr__(self) -> str:
        return f"<Outbox lines={len(self._lines)} bytes={self.held_bytes}>"

    def offer(self, line: bytes) -> bool:
        """Take a notification if there is room."""
        full = len(self._lines) >= self._max_lines or self.held_bytes + len(line) > self._max_bytes
        if self.closed or (full and self._lines):
            return False
        self.put(line)
        return True

    def put(self, line: bytes) -> None:
        """Take an answer."""
        self._lines.append(line)
        self.held_bytes += len(line)
        self._filled.set()
        if self.held_bytes > self._max_bytes:
            self._has_room.clear()

    async def room(self) -> None:
        """Wait until less than the bound is held."""
        await self._has_room.wait()

    async def take(self) -> bytes:
        """Wait for lines, and take what makes a good write. Empty when the box was closed and all is taken."""
        while not self._lines and not self.closed:
            self._filled.clear()
            await self._filled.wait()
        out = bytearray()
        while self._lines and (not out or len(out) + len(self._lines[0]) <= READ_BYTES):
            out += self._lines.popleft()
        self.held_bytes -= len(out)
        if self.held_bytes <= self._max_bytes:
            self._has_room.set()
        return bytes(out)

    def close(self) -> None:
        """No more lines; what is held can still be taken."""
        self.closed = True
        self._filled.set()


class Api(Protocol):
    """Who answers requests."""

    async def handle(self, connection: Connection, params: Params) -> Result | None:
        """The result; None when the handler put the answer in the outbox itself. Raises Refusal."""


class Connection:
    """One client."""

    def __init__(
        self,
        api: Api,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        write_s: float = WRITE_S,
        half_lines: Budget | None = None,
    ) -> None:
        self._api = api
        self._reader = reader
        self._writer = writer
        self._write_s = write_s
        self._half_lines = half_lines
        self._current: Request | None = None
        self.outbox = Outbox()
        self.subscriptions: dict[str, Subscription] = {}
        self.initialized = False
        self.client = ""

    def __repr__(self) -> str:
        return f"<Connection {self.client!r} subscriptions={len(self.subscriptions)} {self.outbox!r}>"

    async def serve(self) -> None:
        """Until the client is gone, or does not read, or the task is cancelled."""
        self._writer.transport.set_write_buffer_limits(high=READ_BYTES)
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read())
                await self._write()
                reading.cancel()
        finally:
            for subscription in self.subscriptions.values():
                subscription.close()
            self._writer.transport.abort()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._writer.wait_closed()

    def close(self) -> None:
        """Say nothing more, send what is held, and end."""
        self.outbox.close()

    def reply(self, result: Result) -> None:
        """Answer the request in progress now, before what its handling causes."""
        if self._current is not None and self._current.id is not UNSET:
            self.outbox.put(encode_result(id_of(self._current), result))

    async def _write(self) -> None:
        while data := await self.outbox.take():
            self._writer.write(data)
            try:
                async with asyncio.timeout(self._write_s):
                    await self._writer.drain()
            except (OSError, TimeoutError):
                return
            for subscription in tuple(self.subscriptions.values()):
                subscription.resume()

    async def _read(self) -> None:
        lines = LineSplitter(budget=self._half_lines)
        try:
            while data := await self._receive():
                for line in lines.feed(data):
                    await self._answer(line)
                    await self.outbox.room()
        except OSError:
            pass  # the client is gone
        finally:
            lines.close()
            self.close()

    async def _receive(self) -> bytes:
        if self.initialized:
            return await self._reader.read(READ_BYTES)
        try:
            async with asyncio.timeout(HELLO_S):
                return await self._reader.read(READ_BYTES)
        except TimeoutError:
            return b""

    async def _answer(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            self.outbox.put(encode_error(likely_id(line.head), _too_long(line)))
            return
        try:
            self._current = decode_request(line)
            params = decode_params(self._current)
            if not self.initialized and not isinstance(params, Initialize):
                raise Refusal("not_initialized", "the first request must be initialize", "send it, then this one again")
            result = await self._api.handle(self, params)
            if result is not None:
                self.reply(result)
        except Invalid as exc:
            self._fail(Error(exc.code, str(exc), ErrorData(exc.kind, exc.hint)), exc)
        except Refusal as exc:
            code = OVERLOADED if exc.kind == "overloaded" else REFUSED
            self._fail(Error(code, str(exc), ErrorData(exc.kind, exc.hint)))
        except Exception as exc:  # noqa: BLE001 - the seam: a bug met by one request must not end the connection or the daemon
            _log.error("request: %s", where(exc))
            hint = "this is a bug in agentd; its log says where"
            self._fail(Error(INTERNAL_ERROR, f"internal error ({type(exc).__name__})", ErrorData("internal", hint)))
        finally:
            self._current = None

    def _fail(self, error: Error, invalid: Invalid | None = None) -> None:
        if self._current is not None and self._current.id is UNSET:
            return  # a notification gets no answer, not even this one
        request_id = id_of(self._current) if self._current is not None else (invalid.id if invalid else None)
        self.outbox.put(encode_error(request_id, error))


def _too_long(line: TooLong) -> Error:
    if line.crowded:
        hint = ErrorData("overloaded", "send it again in a moment, or put large content in a file and name it")
        return Error(
            OVERLOADED, "the unfinished lines of all clients take too much memory; the longest was dropped", hint
        )
    hint = ErrorData("too_big", "put large content in a file and name it")
    return Error(PARSE_ERROR, f"the line has {line.length_bytes:,} bytes; 8 MiB is the most", hint)


class Server:
    """Accepts connections and owns their tasks."""

    def __init__(
        self,
        api: Api,
        *,
        uid: int | None = None,
        max_connections: int = MAX_CONNECTIONS,
        write_s: float = WRITE_S,
        half_lines: Budget | None = None,
    ) -> None:
        self._api = api
        self._uid = os.geteuid() if uid is None else uid
        self._max = max_connections
        self._write_s = write_s
        self._half_lines = half_lines or Budget()
        self._admitted = 0
        self._turned_away = 0
        self.connections: set[Connection] = set()

    def __repr__(self) -> str:
        return f"<Server connections={len(self.connections)}>"

    async def serve(self, listener: socket.socket, moved: Moved | None = None) -> None:
        """Until cancelled. The caller owns the listening sockets, which must not block.

        `moved` waits for the next socket to accept at; who is connected stays when it comes.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                accepting = group.create_task(self._accept(listener, group))
                if moved is None:
                    return  # the group waits
                listener = await moved()
                accepting.cancel()
                await asyncio.wait([accepting])

    async def _accept(self, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as exc:
                # Out of descriptors: those who are connected go on, and the next is tried when some may be free.
                _log.warning("cannot accept a connection: %s", exc.strerror)
                await asyncio.sleep(0.2)
                continue
            if peer_uid(sock) != self._uid:
                sock.close()  # not a word to strangers
            elif self._admitted < self._max:
                self._admitted += 1
                group.create_task(self._connection(sock))
            elif self._turned_away < MAX_TURNED_AWAY:
                self._turned_away += 1
                group.create_task(self._turn_away(sock))
            else:
                with sock, contextlib.suppress(OSError):
                    sock.setblocking(False)
                    sock.send(self._no_place(b""))

    def _no_place(self, request: bytes) -> bytes:
        error = ErrorData("overloaded", "close some, or try again later")
        return encode_error(likely_id(request), Error(OVERLOADED, f"{self._max} clients are connected already", error))

    async def _turn_away(self, sock: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock)
            request = b""
            try:
                async with asyncio.timeout(TURN_AWAY_S):
                    request = await reader.readuntil(b"\n")
            except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # nothing readable came in time: it is told all the same
            try:
                writer.write(self._no_place(request))
                writer.close()
                async with asyncio.timeout(TURN_AWAY_S):
                    await writer.wait_closed()
            except (TimeoutError, OSError):
                writer.transport.abort()
        finally:
            self._turned_away -= 1

    async def _connection(self, sock: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock)
            connection = Connection(self._api, reader, writer, write_s=self._write_s, half_lines=self._half_lines)
            self.connections.add(connection)
            try:
                await connection.serve()
            finally:
                self.connections.discard(connection)
        finally:
            self._admitted -= 1


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end; -1 when the kernel does not say."""
    try:
        _, uid, _ = _PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    except OSError:
        return -1
    return int(uid)
