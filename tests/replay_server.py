"""A fake provider for tests: a real HTTP server on loopback or a Unix socket that answers with scripted bytes.

A script is one answer: status, headers, and steps (send, sleep, end clean or abort), as in the fault files of the wire
corpus. Requests are answered with the scripts in turn, the last one again and again, and are kept for inspection.

    async with replay_server([Script.of_sse(body)]) as server: ...      # in an async test
    with ReplayThread([Script.of_fault(fault)]) as server: ...           # beside subprocesses
    python tests/replay_server.py FILE.sse FAULT.json [--uds PATH] [--log FILE] [--seconds 60]     # prints its base URL

`server.base_url` is what a client is given (with `uds`: the socket is `server.uds`); `server.requests` what came.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import pathlib
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct


class Send(Struct, frozen=True):
    """Bytes of the body: one chunk of the chunked encoding, flushed."""

    data: bytes


class Sleep(Struct, frozen=True):
    """A pause, in seconds; over at once when the client goes away."""

    seconds: float


class Abort(Struct, frozen=True):
    """The connection is reset here. Without it the body ends in order."""


Step = Send | Sleep | Abort


class Script(Struct, frozen=True):
    """One answer. `raw` is sent in place of everything else when it is set: not even HTTP, if so wished."""

    steps: tuple[Step, ...] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream"),)
    raw: bytes | None = None

    @classmethod
    def of_sse(cls, body: bytes, *, chunk_bytes: int = 0, pause_s: float = 0.0) -> Script:
        """A stream, whole or in chunks of a size, with a pause after each."""
        size = chunk_bytes or max(1, len(body))
        steps: list[Step] = []
        for start in range(0, len(body), size):
            steps.append(Send(body[start : start + size]))
            if pause_s:
                steps.append(Sleep(pause_s))
        return cls(tuple(steps))

    @classmethod
    def of_error(cls, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Script:
        """An error answer; further headers with _ for -."""
        more = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return cls((Send(body),), status, (("content-type", content_type), *more))

    @classmethod
    def of_fault(cls, fault: dict[str, Any], *, time_scale: float = 1.0, split_bytes: int = 0) -> Script:
        """A case of the corpus's faults. `time_scale` shortens its pauses, `split_bytes` cuts its sends."""
        steps: list[Step] = []
        for step in fault["steps"]:
            steps += _steps_of(step, time_scale)
        if split_bytes:
            steps = [piece for step in steps for piece in _cut(step, split_bytes)]
        return cls(tuple(steps), fault["status"], tuple(fault["headers"].items()))


def _steps_of(step: dict[str, Any], time_scale: float) -> list[Step]:
    if "gen" in step:
        return [Send(step["prefix"].replace("@@", step["fill"] * step["count"]).encode())]
    if "send_b64" in step:
        return [Send(base64.b64decode(step["send_b64"]))]
    if "send" in step:
        once: list[Step] = [Send(step["send"].encode())]
        if "sleep" in step:
            once.append(Sleep(step["sleep"] * time_scale))
        return once * int(step.get("repeat", 1))
    if "sleep" in step:
        return [Sleep(step["sleep"] * time_scale)]
    return [Abort()] if step["end"] == "abort" else []


def _cut(step: Step, size: int) -> list[Step]:
    if not isinstance(step, Send):
        return [step]
    return [Send(step.data[start : start + size]) for start in range(0, len(step.data), size)]


class Request(Struct, frozen=True):
    """What a client sent. `target` as on the request line (absolute when it took this server for a proxy)."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class ReplayServer:
    """A running server. `connections` counts those accepted, `disconnects` those that clients left in mid-answer, `served`
    the requests whose answer has begun."""

    def __init__(self, scripts: Sequence[Script], uds: str | None) -> None:
        self.uds = uds
        self.port = 0
        self.requests: list[Request] = []
        self.connections = 0
        self.disconnects = 0
        self.served = 0
        self.changed = asyncio.Condition()
        self._scripts = list(scripts)
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = 0

    @property
    def base_url(self) -> str:
        """What a client is given; on a Unix socket the host means nothing."""
        return "http://localhost/v1" if self.uds else f"http://127.0.0.1:{self.port}/v1"

    def add(self, script: Script) -> None:
        """One more script after the others."""
        self._scripts.append(script)

    async def until(self, **counts: int) -> None:
        """Wait until counters (`disconnects`, `connections`, `served`) have reached these values."""
        async with self.changed:
            await self.changed.wait_for(lambda: all(getattr(self, name) >= value for name, value in counts.items()))

    async def start(self) -> asyncio.Server:
        """Bind and serve."""
        if self.uds:
            return await asyncio.start_unix_server(self._serve, self.uds)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def stop(self, server: asyncio.Server) -> None:
        """Close everything and wait until every connection's handler has ended."""
        server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        async with self.changed:
            await self.changed.wait_for(lambda: self._open == 0)

    async def _count(self, **changes: int) -> None:
        async with self.changed:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
            self.changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self._count(connections=1, _open=1)
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                script = self._scripts[min(self.served, len(self._scripts) - 1)]
                await self._count(served=1)
                if not await self._answer(script, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
            await self._count(_open=-1)

    async def _answer(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Play a script; false when the connection is over."""
        if script.raw is not None:
            writer.write(script.raw)
            await writer.drain()
            writer.close()
            await asyncio.sleep(0.01)
            return False
        gone = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(reader, gone))
            alive = await self._play(script, writer, gone)
            watch.cancel()
        if gone.is_set():
            await self._count(disconnects=1)
        return alive and not gone.is_set()

    async def _play(self, script: Script, writer: asyncio.StreamWriter, gone: asyncio.Event) -> bool:
        head = "".join(f"{name}: {value}\r\n" for name, value in script.headers)
        start = f"HTTP/1.1 {script.status} Scripted\r\n{head}transfer-encoding: chunked\r\n\r\n"
        try:
            await _write(writer, start.encode())
            for step in script.steps:
                if gone.is_set():
                    return False
                match step:
                    case Send():
                        if step.data:
                            await _write(writer, b"%x\r\n%s\r\n" % (len(step.data), step.data))
                            await asyncio.sleep(0)
                    case Sleep():
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(gone.wait(), step.seconds)
                    case Abort():
                        writer.transport.abort()
                        return False
            await _write(writer, b"0\r\n\r\n")
        except ConnectionError:
            gone.set()
            return False
        return True


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.transport.is_closing():  # uvloop raises RuntimeError for it
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    """Notices that the client went away: nothing else is to be read while an answer runs."""
    try:
        if not await reader.read(1):
            gone.set()
    except ConnectionError:
        gone.set()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    line = await reader.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


@asynccontextmanager
async def replay_server(scripts: Iterable[Script], *, uds: str | None = None) -> AsyncIterator[ReplayServer]:
    """A server for the time of the block, on this event loop."""
    replay = ReplayServer(list(scripts), uds)
    server = await replay.start()
    try:
        yield replay
    finally:
        await replay.stop(server)


class ReplayThread:
    """A server in a thread of its own, for tests that run subprocesses: a context manager that gives the ReplayServer."""

    def __init__(self, scripts: Iterable[Script], *, uds: str | None = None) -> None:
        self._scripts = list(scripts)
        self._uds = uds
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._server: ReplayServer | None = None
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> ReplayServer:
        self._thread.start()
        if not self._ready.wait(10) or self._server is None:
            raise RuntimeError("the replay server did not start")
        return self._server

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _main(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with replay_server(self._scripts, uds=self._uds) as server:
            self._server = server
            self._ready.set()
            await self._stop.wait()


def script_of_file(path: pathlib.Path) -> Script:
    """A script for a recorded stream (.sse) or a fault case (.json)."""
    if path.suffix == ".json":
        return Script.of_fault(json.loads(path.read_text("utf-8")))
    return Script.of_sse(path.read_bytes())


async def _run(options: argparse.Namespace) -> None:
    async with replay_server([script_of_file(path) for path in options.files], uds=options.uds) as server:
        print(server.uds or server.base_url, flush=True)
        try:
            await asyncio.sleep(options.seconds)
        finally:
            if options.log:
                lines = [msgspec.json.encode(request) for request in server.requests]
                options.log.write_bytes(b"".join(line + b"\n" for line in lines))


def main(arguments: Sequence[str]) -> None:
    """The command: serves the files in turn for a bounded time, and writes the requests it got to --log at the end."""
    parser = argparse.ArgumentParser(description="Serve recorded provider streams.")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--uds")
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
