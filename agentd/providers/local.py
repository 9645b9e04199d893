"""Models out of GGUF files on this machine: llama.cpp's server as a child of the daemon, one for each file, on a Unix socket.

A server is started by the first request to its model, asked for its health before each, and stopped when nobody asked it for a
while. It may crash: the request that met that is sent once more, to a new one, when nothing of its answer was shown. The socket
is in a directory of ours (0700), so that nobody else reaches it; nothing listens on the network, and nothing is fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from agentd import paths
from agentd.providers.catalog import Choice
from agentd.providers.errors import one_line
from agentd.providers.http import HttpProvider
from agentd.providers.local_launch import INSTALL, Launch, LocalConfig, Machine, find, listed, plan, this_machine
from agentd.providers.models import ModelInfo
from agentd.providers.retries import Retries
from agentd.providers.stream import (
    Failed,
    Finished,
    ModelRequest,
    Retry,
    StreamEvent,
    UsageReported,
)
from tracewriter.events import Failure

# Each takes hundreds of megabytes at least; who wants a fifth can wait until one is idle.
MAX_SERVERS: Final = 4
HEALTH_S: Final = 5.0
_POLL_S: Final = 0.05
# A connection ends a moment before the process that held it.
_DEATH_S: Final = 1.0
_WORDS_BYTES: Final = 16 * 1024
_HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# What a program needs. No key, no proxy: it has nobody to call.
_PASSED: Final = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
_PASSED_PREFIXES: Final = ("LC_", "PYTHON", "COVERAGE_", "GGML_")
_ONCE: Final = Retries(attempts=1)  # a server on this machine does not recover by being asked again

Command = Callable[[str, Launch], list[str]]


class Unavailable(Exception):
    """A local model cannot be asked; `failure` says why, and what to do."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Locals(Protocol):
    """What a provider needs of LocalServers."""

    def use(self, model: str) -> contextlib.AbstractAsyncContextManager[Server]:
        """The model's server, running and in use inside the `with`. Raises Unavailable."""

    async def models(self) -> tuple[ModelInfo, ...] | Failure:
        """Those in the data directory."""


class Server:
    """One file's process. `socket` is where it answers; `users` are the requests that it has."""

    def __init__(self, path: str, directory: str) -> None:
        name = sha256(os.fsencode(path)).hexdigest()[:12]
        self.path = path
        self.socket = os.path.join(directory, f"{name}.sock")
        self.log = os.path.join(directory, f"{name}.log")
        self.users = 0
        self.used_at_s = 0.0
        self.starting = asyncio.Lock()
        self.process: Process | None = None
        self.file: tuple[int, ...] = ()
        self.timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Server {os.path.basename(self.path)} users={self.users} runs={self.running}>"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.returncode is None

    def kill(self) -> None:
        """At once: it has nothing to save. The process is reaped by the event loop."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        if self.process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        with contextlib.suppress(OSError):
            os.unlink(self.socket)

    async def died(self) -> str:
        """How the process ended, when it did so just now; "" while it lives."""
        if self.process is None:
            return "was stopped"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_S):
                await self.process.wait()
        return _ending(self.process.returncode)


class LocalServers:
    """All servers of a daemon. Belongs to one event loop; `aclose` ends them all, and so does the end of this process."""

    def __init__(
        self,
        env: Mapping[str, str],
        config: LocalConfig = LocalConfig(),  # noqa: B008 - frozen
        *,
        command: Command | None = None,
        machine: Callable[[], Machine] = this_machine,
        installed: Callable[[], bool] = lambda: importlib.util.find_spec("xllamacpp") is not None,
        health_s: float = HEALTH_S,
    ) -> None:
        """`command` gives the words that start a server; `installed` whether the extra is there; `health_s` is a server's time
        to say that it is well."""
        self._env = env
        self._config = config
        self._command = command or child_command
        self._machine = machine
        self._installed = installed
        self._health_s = health_s
        self._directory = os.path.join(paths.runtime_dir(env), "local")
        self._models = paths.models_dir(env)
        self._servers: dict[str, Server] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<LocalServers {list(self._servers.values())}>"

    @property
    def running(self) -> int:
        """Processes that are there."""
        return sum(server.running for server in self._servers.values())

    async def models(self) -> tuple[ModelInfo, ...] | Failure:
        """Those in the data directory, by name; a Failure when they could not be asked."""
        if not self._installed():
            return _not_installed()
        found = await asyncio.to_thread(listed, self._models)
        return found or Failure("config", f"no model is in {self._models}", "`agentctl models pull smollm2` gets one")

    @asynccontextmanager
    async def use(self, model: str) -> AsyncIterator[Server]:
        """The model's server, running and in use inside the `with`. Raises Unavailable."""
        if not self._installed():
            raise Unavailable(_not_installed())
        path = await asyncio.to_thread(find, model, self._models, self._env.get("HOME", ""))
        if isinstance(path, Failure):
            raise Unavailable(path)
        server = self._servers.get(path) or Server(path, self._directory)
        self._servers[path] = server
        server.users += 1
        if server.timer is not None:
            server.timer.cancel()
            server.timer = None
        try:
            async with server.starting:
                await self._ready(server, model)
            yield server
        finally:
            server.users -= 1
            self._released(server)

    async def aclose(self) -> None:
        """Kill them all and see them end. Nothing is started any more."""
        self._closed = True
        for server in self._servers.values():
            self._stop(server)
        for server in self._servers.values():
            await server.died()

    # --- idle

    def _released(self, server: Server) -> None:
        loop = asyncio.get_running_loop()
        server.used_at_s = loop.time()
        if server.users:
            return
        if not server.running or self._closed:
            self._stop(server)
            self._servers.pop(server.path, None)
            return
        if server.timer is not None:
            server.timer.cancel()
        server.timer = loop.call_later(self._config.idle_s, self._idle, server)

    def _idle(self, server: Server) -> None:
        if not server.users:
            self._stop(server)
            self._servers.pop(server.path, None)

    def _stop(self, server: Server) -> None:
        if server.timer is not None:
            server.timer.cancel()
            server.timer = None
        server.kill()

    # --- start

    async def _ready(self, server: Server, model: str) -> None:
        """Running, healthy and of the file as it is now, or raises Unavailable."""
        if self._closed:
            raise Unavailable(Failure("config", "the daemon is ending"))
        file = await asyncio.to_thread(_identity, server.path)
        if (
            server.running
            and (server.file == file or server.users > 1)
            and await healthy(server.socket, self._health_s)
        ):
            return
        await self._end(server)
        await self._make_room(server)
        name = os.path.basename(model).removesuffix(".gguf")
        machine = await asyncio.to_thread(self._machine)
        launch = await asyncio.to_thread(plan, server.path, name, machine, self._config)
        if isinstance(launch, Failure):
            # Memory that an idle model holds is to be had.
            if not await self._end_idle(server):
                raise Unavailable(launch)
            launch = await asyncio.to_thread(plan, server.path, name, self._machine(), self._config)
            if isinstance(launch, Failure):
                raise Unavailable(launch)
        server.file = file
        try:
            await self._start(server, launch)
        except Unavailable:
            await self._end(server)
            raise
        except BaseException:
            server.kill()
            raise

    async def _make_room(self, server: Server) -> None:
        while sum(other.running for other in self._servers.values()) >= MAX_SERVERS:
            if not await self._end_idle(server):
                message = f"{MAX_SERVERS} local models are answering already"
                raise Unavailable(Failure("config", message, "wait for one of them"))

    async def _end_idle(self, keep: Server) -> bool:
        idle = [one for one in self._servers.values() if one is not keep and one.running and not one.users]
        for server in sorted(idle, key=lambda one: one.used_at_s)[:1]:
            self._servers.pop(server.path, None)
            await self._end(server)
        return bool(idle)

    async def _end(self, server: Server) -> None:
        self._stop(server)
        if server.process is not None:
            await server.died()
            server.process = None

    async def _start(self, server: Server, launch: Launch) -> None:
        await asyncio.to_thread(paths.private_dir, os.path.dirname(self._directory))
        await asyncio.to_thread(paths.private_dir, self._directory)
        log = os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        passed = {n: v for n, v in self._env.items() if n in _PASSED or n.startswith(_PASSED_PREFIXES)}
        try:
            # Started by this thread, which lives as long as the daemon: PR_SET_PDEATHSIG is about the thread.
            server.process = await asyncio.create_subprocess_exec(
                *self._command(server.socket, launch),
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=log,
                env=passed,
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C at the daemon's terminal: it ends the runs first
            )
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise Unavailable(Failure("config", f"the local model's process cannot be started: {why}")) from exc
        finally:
            os.close(log)
        await self._until_healthy(server)

    async def _until_healthy(self, server: Server) -> None:
        assert server.process is not None
        limit_s = self._config.start_s
        try:
            async with asyncio.timeout(limit_s):
                while not await healthy(server.socket, self._health_s):
                    if server.process.returncode is not None:
                        raise Unavailable(await asyncio.to_thread(_did_not_start, server))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            hint = "a larger start_s under [local] in config.toml gives it longer; a smaller model loads faster"
            message = f"the local model was not ready within {limit_s:g} s"
            raise Unavailable(Failure("transport", message, hint)) from None


class LocalProvider:
    """A stream.Provider for the models of `local/…`. It holds nothing between requests: the servers are the daemon's."""

    def __init__(self, choice: Choice, servers: Locals, *, env: Mapping[str, str]) -> None:
        self._choice = choice
        self._servers = servers
        self._env = env

    def __repr__(self) -> str:
        return f"LocalProvider({self._choice.model})"

    @property
    def name(self) -> str:
        """The provider's name in the catalog."""
        return self._choice.spec.name

    async def aclose(self) -> None:
        """Nothing to close."""

    async def models(self) -> tuple[ModelInfo, ...] | Failure:
        """The models in the data directory."""
        return await self._servers.models()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Start the server when it does not run, and yield the answer; closing the generator frees its slot at once."""
        retried = False
        while True:
            shown = False
            usage, died = UsageReported(None), ""
            ended: Finished | Failed = Failed(Failure("transport", "no answer"))
            try:
                async with self._servers.use(request.model) as server:
                    async with aclosing(self._ask(server, request)) as events:
                        async for event in events:
                            if isinstance(event, UsageReported):
                                usage = event
                            elif isinstance(event, Finished | Failed):
                                ended = event
                            else:
                                shown = True
                                yield event
                    if isinstance(ended, Failed) and ended.failure.kind in ("transport", "truncated"):
                        died = await server.died()
            except Unavailable as exc:
                ended = Failed(exc.failure)
            if died and isinstance(ended, Failed):
                ended = msgspec.structs.replace(ended, failure=_crashed(died), retryable=False)
                if not shown and not retried:
                    retried = True
                    yield Retry(2, 0.0, ended.failure)
                    continue
            yield usage
            yield ended
            return

    async def _ask(self, server: Server, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        place = msgspec.structs.replace(self._choice, uds=server.socket, key=None)
        provider = HttpProvider(place, env=self._env, retries=_ONCE)
        try:
            async with aclosing(provider.stream(request)) as events:
                async for event in events:
                    yield event
        finally:
            await provider.aclose()


def child_command(socket_path: str, launch: Launch) -> list[str]:
    """The words that start llama.cpp's server. No secret is among them."""
    # -P: the directory it is started in may hold a module of the same name.
    told = msgspec.json.encode(launch).decode()
    return [sys.executable, "-P", "-m", "agentd.providers.local_child", socket_path, told]


async def healthy(socket_path: str, timeout_s: float) -> bool:
    """Whether a server answers there that is ready to be asked. Not over httpx: it is a line, asked before each request."""
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            with paths.address(socket_path) as name:
                reader, writer = await asyncio.open_unix_connection(name)
            writer.write(_HEALTH)
            status = await reader.readline()
        return status.split(b" ")[1:2] == [b"200"]
    except (OSError, TimeoutError, ValueError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def _identity(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _not_installed() -> Failure:
    return Failure("config", "local models need the extra agentd[local] (llama.cpp), which is not installed", INSTALL)


def _crashed(ending: str) -> Failure:
    return Failure(
        "transport",
        f"the local model's process {ending} while it answered",
        "try again; if it comes back, a smaller model",
    )


def _did_not_start(server: Server) -> Failure:
    """Why, by the last lines of its log: llama.cpp's own words."""
    assert server.process is not None
    ending = _ending(server.process.returncode)
    try:
        with open(server.log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _WORDS_BYTES))
            said = file.read(_WORDS_BYTES).decode("utf-8", "replace")
    except OSError:
        said = ""
    words = reason_in_log(said)
    hint = "the file may be damaged or too new for this llama.cpp: get it again, or `pip install -U xllamacpp`"
    if server.process.returncode == -signal.SIGKILL:
        hint = "it was killed, most likely for lack of memory: end something, or take a smaller model"
    return Failure("config", f"the local model did not start: {words or ending}", hint)


def reason_in_log(said: str) -> str:
    """What llama.cpp names as the reason: the first error of the attempt, without its clock and function."""
    errors = [line.split(" E ", 1)[1].partition(": ")[2] for line in said.split("\n") if " E " in line]
    reason = next((error for error in errors if error.strip()), "") or said.strip().rpartition("\n")[2]
    return one_line(reason, limit=300)


def _ending(code: int | None) -> str:
    if code is None:
        return ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
