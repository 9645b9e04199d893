"""The scripted model's endpoint: HTTP/1.1 on a Unix socket, as much of openai-chat as a client needs, and really streamed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from agentd.demo_model import MODEL, Chat, answer, chunks
from agentd.errors import StartError
from agentd.paths import address

IDLE_EXIT_S: Final = 60.0
# Between two pieces: slow enough to be seen streaming, fast enough for a demo of seconds.
PAUSE_S: Final = 0.012
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
MAX_CONNECTIONS: Final = 16
READ_S: Final = 10.0

_decoder: Final = msgspec.json.Decoder(Chat)
_encoder: Final = msgspec.json.Encoder()


class _Failure(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Request(Struct, frozen=True):
    method: str
    path: str
    body: bytes


class DemoServer:
    """Serves until nothing was asked for `idle_s`, or `orphaned` says that whoever started it is gone."""

    def __init__(
        self,
        *,
        idle_s: float = IDLE_EXIT_S,
        pause_s: float = PAUSE_S,
        orphaned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._idle_s = idle_s
        self._pause_s = pause_s
        self._orphaned = orphaned
        self._busy = 0
        self._last_s = 0.0

    async def serve(self, listener: socket.socket) -> None:
        """Accept and answer; returns when idle or orphaned. The caller owns the socket, which must not block."""
        loop = asyncio.get_running_loop()
        self._last_s = loop.time()
        async with asyncio.TaskGroup() as group:
            accepting = group.create_task(self._accept(listener, group))
            while not self._orphaned() and (self._busy or loop.time() - self._last_s < self._idle_s):  # noqa: ASYNC110 - polled
                await asyncio.sleep(min(0.5, self._idle_s / 4))
            accepting.cancel()

    async def _accept(self, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            if self._busy >= MAX_CONNECTIONS:
                sock.close()
                continue
            self._busy += 1
            group.create_task(self._connection(sock))

    async def _connection(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_HEAD_BYTES)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone or sent half a request: nothing to answer
        finally:
            self._busy -= 1
            self._last_s = asyncio.get_running_loop().time()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        async with asyncio.timeout(READ_S):
            request = await _read_request(reader)
        if request is None:
            return False
        try:
            await self._respond(request, writer)
        except _Failure as failure:
            body = _encoder.encode({"error": {"message": str(failure), "type": "invalid_request_error"}})
            writer.write(_head(failure.status, "application/json", len(body)) + body)
        await writer.drain()
        return True

    async def _respond(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        if request.method == "GET" and request.path.endswith("/models"):
            body = _encoder.encode({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            writer.write(_head(200, "application/json", len(body)) + body)
            return
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            raise _Failure(404, f"there is no {request.method} {request.path[:200]} here")
        try:
            chat = _decoder.decode(request.body)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise _Failure(400, f"not a chat request: {exc}") from exc
        if not chat.stream:
            raise _Failure(400, "this scripted model only streams: send stream: true")
        writer.write(_head(200, "text/event-stream", None))
        for data in chunks(chat, answer(chat)):
            event = b"data: " + data + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(self._pause_s)
        writer.write(b"0\r\n\r\n")


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as exc:
        if exc.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path = rest.partition(" ")[0]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if not length.isdigit() or len(length) > 9 or int(length) > MAX_BODY_BYTES:
        raise ConnectionError("a body without a sensible length")
    return _Request(method, path, await reader.readexactly(int(length)))


def _head(status: int, content_type: str, length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n{size}\r\n\r\n".encode("latin-1")


def run(path: str) -> None:
    """`agentd demo-model --uds PATH`: serve there until idle or orphaned, and remove the socket. Raises StartError."""
    parent = os.getppid()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with sock:
        mask = os.umask(0o177)
        try:
            with address(path) as name:
                sock.bind(name)
            sock.listen(MAX_CONNECTIONS)
        except OSError as exc:
            raise StartError(
                f"cannot listen on {path}: {exc.strerror or exc}", "give --uds a path in a directory of yours"
            ) from exc
        finally:
            os.umask(mask)
        sock.setblocking(False)
        try:
            asyncio.run(DemoServer(orphaned=lambda: os.getppid() != parent).serve(sock))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
