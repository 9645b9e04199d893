"""A daemon in this process, on a real socket, with a scripted model and a recorder that keeps everything; and a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agentd import paths
from agentd.config import Config
from agentd.daemon import Daemon, Parts
from agentd.ids import Ids
from agentd.model_lists import Lister, MakeLister
from agentd.providers.catalog import Choice
from agentd.server import Connection
from agentd.session import ModelProvider
from agentd.writer import WriterSupervisor
from tests.agentd.daemon_fakes import FakeTrace, ScriptedProvider, no_price, say
from tracewriter.clock import SYSTEM_CLOCK
from tracewriter.sender import NullTrace, SessionFigures, Trace, TraceStatus

Json = dict[str, Any]
MODEL = {"model": "openai/m", "env": {"OPENAI_API_KEY": "sk-test-0123456789"}}


class FakeSender:
    """Opens FakeTraces and says that all is well."""

    def __init__(self) -> None:
        self.traces: list[FakeTrace] = []
        self.opened: list[tuple[str, str]] = []  # session and capture mode

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
    ) -> Trace:
        self.traces.append(FakeTrace(session, secrets))
        self.opened.append((session, capture))
        return self.traces[-1]

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def aclose(self, timeout_s: float = 2.0) -> None:
        return

    def try_now(self) -> None:
        return

    def status(self) -> TraceStatus:
        return TraceStatus("ok")

    def figures(self) -> tuple[SessionFigures, ...]:
        return tuple(SessionFigures(trace.session, "ok", "", 3, 1, 1, {"buffer_full": 1}, 300) for trace in self.traces)


class Client:
    """A JSON-RPC client that keeps the notifications it is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.notes: list[Json] = []
        self._id = 0

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> Json:
        async with asyncio.timeout(10):
            line = await self.reader.readline()
        if not line:
            raise ConnectionError("closed")
        message: Json = msgspec.json.decode(line)
        return message

    async def answer(self) -> Json:
        """The next message that is no notification."""
        while "method" in (message := await self.receive()):
            self.notes.append(message)
        return message

    async def call(self, method: str, **params: object) -> Json:
        self._id += 1
        self.send(msgspec.json.encode({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}) + b"\n")
        answer = await self.answer()
        assert answer["id"] == self._id
        return answer

    async def result(self, method: str, **params: object) -> Json:
        answer = await self.call(method, **params)
        assert "result" in answer, answer
        result: Json = answer["result"]
        return result

    async def kind(self, method: str, **params: object) -> str:
        error = (await self.call(method, **params))["error"]
        assert error["message"]
        assert "\n" not in error["message"]
        return str(error["data"]["kind"])

    async def create(self, cwd: Path, **params: object) -> str:
        return str((await self.result("session/create", **{"cwd": str(cwd)} | MODEL | params))["session"])

    async def until_end(self) -> Json:
        """The data of the next run.execute.finished."""
        while True:
            while self.notes:
                note = self.notes.pop(0)
                if note["method"] == "session/event" and note["params"]["record"]["event"] == "run.execute.finished":
                    data: Json = note["params"]["record"]["data"]
                    return data
            self.notes.append(await self.receive())

    async def ask(self, session: str, text: str) -> Json:
        await self.result("session/subscribe", session=session)
        await self.result("session/prompt", session=session, text=text)
        return await self.until_end()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


class Harness:
    """What a test sees of the daemon."""

    def __init__(self, daemon: Daemon, sender: FakeSender, env: Mapping[str, str]) -> None:
        self.daemon, self.sender, self.env = daemon, sender, env
        self.clients: list[Client] = []

    def connections(self) -> set[Connection]:
        """The daemon's side of the clients."""
        assert self.daemon.server is not None
        return self.daemon.server.connections

    async def connect(self, *, initialize: bool = True) -> Client:
        with paths.address(paths.agentd_socket(self.env)) as name:
            client = Client(*await asyncio.open_unix_connection(name, limit=16 * 1024 * 1024))
        self.clients.append(client)
        if initialize:
            await client.result("initialize", protocol=1, client="test")
        return client


def no_lister(choice: Choice, env: Mapping[str, str]) -> Lister:
    raise AssertionError("nobody asked for models")


@asynccontextmanager
async def running(
    home: Path,
    provider: Callable[[], ModelProvider] = lambda: ScriptedProvider(say("hello")),
    config: Config = Config(),  # noqa: B008 - frozen
    lister: MakeLister = no_lister,
) -> AsyncGenerator[Harness, None]:
    env = {"AGENTD_HOME": str(home)}
    sender = FakeSender()

    def make_provider(choice: Choice, env: Mapping[str, str]) -> ModelProvider:
        return provider()

    supervisor = WriterSupervisor(paths.writer_socket(env), None, poll_s=60)
    ids = Ids(SYSTEM_CLOCK)
    parts = Parts(
        config, env, SYSTEM_CLOCK, ids, sender, NullTrace, make_provider, lister, no_price, supervisor, lambda: None
    )
    daemon = Daemon(parts, listen_fds=[])
    daemon.start()
    harness = Harness(daemon, sender, env)
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(daemon.serve())
            try:
                yield harness
            finally:
                daemon.stop()
                for client in harness.clients:
                    await client.close()
                await asyncio.wait([serving])
    finally:
        daemon.close()
