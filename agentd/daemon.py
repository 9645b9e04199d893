"""The daemon from its first to its last moment: start (lock, directories, socket), serve, drain, close.

`Daemon` is put together from parts that tests replace: the recorder's sender, the providers, the supervisor of the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, Protocol

from msgspec import Struct

from agentd import paths
from agentd.api import DaemonApi
from agentd.config import Config, load_config
from agentd.errors import StartError
from agentd.ids import Ids
from agentd.listener import InstanceLock, Listener, adopt, listen
from agentd.model_lists import MakeLister, ModelLists
from agentd.protocol import Recording
from agentd.providers.catalog import CATALOG, LOCAL_URL, Choice, KeyReaders
from agentd.providers.http import HttpProvider
from agentd.providers.keys import KeyCommands
from agentd.providers.local import LocalProvider, LocalServers
from agentd.providers.prices import cost_usd
from agentd.registry import MAX_RUNNING, MakeProvider, OpenTrace, Registry
from agentd.run import Price
from agentd.server import Server
from agentd.session import Services
from agentd.store import SessionStore
from agentd.tools.registry import run_tool
from agentd.writer import WriterSupervisor, spawner
from tracewriter import systemd
from tracewriter.clock import Clock
from tracewriter.events import Usage
from tracewriter.sender import NullTrace, SessionFigures, Trace, TraceStatus
from tracewriter.sender import Sender as RealSender

IDLE_CHECK_S: Final = 5.0
# How often it is seen to that clients can still find the socket: two calls of stat.
PLACE_CHECK_S: Final = 1.0
# systemd's default is 90 s; a person waits less.
DRAIN_S: Final = 10.0
LOCAL_PROVIDERS: Final = frozenset(spec.name for spec in CATALOG if spec.local)
_PR_SET_DUMPABLE: Final = 4
_log: Final = logging.getLogger("agentd")


class Sender(Protocol):
    """tracewriter.sender.Sender."""

    @property
    def open(self) -> OpenTrace:
        """Begin the recording of a session."""

    def try_now(self) -> None:
        """A writer was just started."""

    async def run(self) -> None:
        """Connect and send, until cancelled."""

    async def aclose(self, timeout_s: float = 2.0) -> None:
        """Send what is left."""

    def status(self) -> TraceStatus:
        """All sessions together."""

    def figures(self) -> tuple[SessionFigures, ...]:
        """Each session."""


class Parts(Struct, frozen=True):
    """What a daemon is made of besides its own code."""

    config: Config
    env: Mapping[str, str]
    clock: Clock
    ids: Ids
    sender: Sender
    null_trace: Callable[[str, str], Trace]
    make_provider: MakeProvider
    make_lister: MakeLister
    price: Price
    supervisor: WriterSupervisor
    warm_up: Callable[[], None]
    end_models: Callable[[], Awaitable[None]] | None = None  # the processes of local models


class Daemon:
    """One daemon. `start` takes its place or raises StartError; `serve` returns when it was stopped; `close` leaves."""

    def __init__(self, parts: Parts, *, listen_fds: list[int]) -> None:
        self._parts = parts
        self._fds = listen_fds
        self._runtime = paths.runtime_dir(parts.env)
        self._traces = paths.traces_dir(parts.env)
        self._life = parts.ids.op()
        self._stop = asyncio.Event()
        self._when_idle = asyncio.Event()
        self._lock: InstanceLock | None = None
        self._state_lock: InstanceLock | None = None
        self._listener: Listener | None = None
        self._left: Listener | None = None  # the one before, until nobody accepts there any more
        self._api: DaemonApi | None = None
        self.server: Server | None = None

    def __repr__(self) -> str:
        return f"<Daemon life={self._life} {self._listener!r}>"

    def start(self) -> None:
        """Directories, locks, socket. Raises StartError and leaves nothing behind."""
        _check_text(self._runtime, self._traces)
        _make_private(paths.state_dir(self._parts.env), self._traces)
        try:
            self._lock = InstanceLock(os.path.join(self._runtime, "agentd.lock"))
            self._state_lock = InstanceLock(paths.state_lock(self._parts.env), "state")
            path = paths.agentd_socket(self._parts.env)
            self._listener = adopt(self._fds[0]) if self._fds else listen(path, self._lock)
        except StartError:
            self._release()
            raise

    def stop(self, when_idle: bool = False) -> None:
        """End soon: now, or when nothing runs."""
        if self._api is not None:
            self._api.stopping = True
        if when_idle:
            self._when_idle.set()
        else:
            self._stop.set()

    async def serve(self) -> None:
        """From READY to the last record. Runs are ended as cancelled, recordings closed, within DRAIN_S."""
        assert self._listener is not None
        parts = self._parts
        store = SessionStore(paths.sessions_db(parts.env))
        async with asyncio.TaskGroup() as background, asyncio.TaskGroup() as runs:
            gate = asyncio.Semaphore(MAX_RUNNING)
            keys = KeyReaders(command=KeyCommands())
            services = Services(parts.clock, parts.ids, parts.price, run_tool, gate, runs, store)
            registry = Registry(
                parts.config,
                services,
                life=self._life,
                traces_root=self._traces,
                open_trace=parts.sender.open,
                null_trace=parts.null_trace,
                make_provider=parts.make_provider,
                keys=keys,
            )
            api = self._api = DaemonApi(
                registry,
                parts.clock,
                life=self._life,
                models=ModelLists(parts.config, parts.clock, make_lister=parts.make_lister, keys=keys),
                recording=self._recording,
                figures=parts.sender.figures,
                settled=self._settled,
                clients=lambda: len(server.connections),
                stop=self.stop,
            )
            server = self.server = Server(api)
            jobs: list[Coroutine[None, None, None]] = [
                server.serve(self._listener.sock, self._moved),
                parts.sender.run(),
                self._supervise(),
                self._housekeeping(registry),
                self._watchdog(),
                asyncio.to_thread(parts.warm_up),
            ]
            tasks = [background.create_task(job) for job in jobs]
            systemd.notify("READY=1")
            await self._stop.wait()
            systemd.notify("STOPPING=1")
            # A tool or a disk that hangs must not keep the daemon alive: nothing it could still do would be recorded.
            asyncio.get_running_loop().call_later(DRAIN_S + 2.0, os._exit, 1)
            await self._drain(registry, server, store)
            for task in tasks:
                task.cancel()

    async def _drain(self, registry: Registry, server: Server, store: SessionStore) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await registry.aclose()
                if self._parts.end_models is not None:
                    await self._parts.end_models()
                await self._parts.sender.aclose()
                await store.aclose()
                for connection in tuple(server.connections):
                    connection.close()
                await asyncio.sleep(0)  # the answers to whoever asked us to stop are written now
        except TimeoutError:
            _log.warning("not everything ended within %.0f s", DRAIN_S)

    def close(self) -> None:
        """The socket goes first, then the locks."""
        for listener in (self._left, self._listener):
            if listener is not None:
                listener.close()
        self._release()

    def _release(self) -> None:
        for lock in (self._lock, self._state_lock):
            if lock is not None:
                lock.close()

    async def _moved(self) -> socket.socket:
        """Waits until the place was lost and taken anew, and gives the new socket. Called again when the old one is not in use."""
        if self._left is not None:
            self._left.close()
            self._left = None
        told = ""
        while True:
            await asyncio.sleep(PLACE_CHECK_S)
            assert self._lock is not None
            assert self._state_lock is not None
            assert self._listener is not None
            if self._state_lock.lost:
                # What is served is gone from the disk: the next one begins anew there.
                if not self._when_idle.is_set():
                    _log.warning("the state directory was removed or replaced: ending when nothing runs")
                    self.stop(when_idle=True)
            elif self._lock.lost or self._listener.lost:
                try:
                    return self._take_place(self._lock)
                except StartError as exc:
                    if str(exc) != told:
                        told = str(exc)
                        _log.warning("the socket was removed and cannot be made again: %s", told)

    def _take_place(self, old: InstanceLock) -> socket.socket:
        lock = InstanceLock(old.path) if old.lost else old
        try:
            listener = listen(paths.agentd_socket(self._parts.env), lock)
        except StartError:
            if lock is not old:
                lock.close()
            raise
        if lock is not old:
            old.close()
        assert self._listener is not None
        self._left = self._listener
        self._lock, self._listener = lock, listener
        _log.warning("the socket or its directory was removed: listening on it anew")
        return listener.sock

    def _recording(self) -> Recording:
        if self._parts.config.capture == "off":
            return Recording("off", "capture is off in the configuration", self._traces)
        status = self._parts.sender.status()
        reason = status.reason
        if status.state != "ok" and self._parts.supervisor.reason:
            reason = self._parts.supervisor.reason
        return Recording(status.state, reason, self._traces)

    async def _settled(self, timeout_s: float) -> None:
        if self._parts.config.capture != "off":
            await self._parts.supervisor.settled(timeout_s)

    async def _supervise(self) -> None:
        if self._parts.config.capture != "off":
            sender = self._parts.sender
            await self._parts.supervisor.run(lambda: sender.status().state == "ok", sender.try_now)

    async def _housekeeping(self, registry: Registry) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_CHECK_S):
                    await self._when_idle.wait()
            await registry.close_idle()
            if self._when_idle.is_set():
                if not registry.busy:
                    self._stop.set()
                await asyncio.sleep(0.2)

    async def _watchdog(self) -> None:
        period_s = systemd.watchdog_s()
        while period_s is not None:
            systemd.notify("WATCHDOG=1")
            await asyncio.sleep(period_s / 2)


def _check_text(*directories: str) -> None:
    for directory in directories:
        try:
            directory.encode()
        except UnicodeEncodeError as exc:
            shown = directory.encode("utf-8", "backslashreplace").decode()
            hint = "set AGENTD_HOME to a directory whose path is UTF-8"
            raise StartError(f"cannot work in {shown}: its path has bytes that are not UTF-8", hint) from exc


def _make_private(*directories: str) -> None:
    for directory in directories:
        try:
            paths.private_dir(directory)
        except OSError as exc:
            why = exc.strerror.lower() if exc.strerror else str(exc)
            where = f"{exc.filename}: " if exc.filename else ""
            hint = "set AGENTD_HOME to a directory that you may write, or mend its permissions"
            raise StartError(f"cannot use the state directory: {where}{why}", hint) from exc


def harden() -> None:
    """Keys are in memory: no other process of this user may read it or dump it; nothing made here is for others."""
    os.umask(0o077)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_daemon(env: Mapping[str, str], clock: Clock, make_loop: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    """`agentd serve`: the whole life of a daemon. Raises StartError when it cannot start."""
    config = load_config(paths.config_file(env))
    listen_fds = systemd.listen_fds()
    harden()
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_main(config, env, clock, listen_fds))


async def _main(config: Config, env: Mapping[str, str], clock: Clock, listen_fds: list[int]) -> None:
    daemon = Daemon(real_parts(config, env, clock), listen_fds=listen_fds)
    daemon.start()
    try:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.stop)
        await daemon.serve()
    finally:
        daemon.close()


def real_parts(config: Config, env: Mapping[str, str], clock: Clock) -> Parts:
    """The recorder, the providers and the prices that the package has."""
    socket_path, traces = paths.writer_socket(env), paths.traces_dir(env)
    log_path = os.path.join(paths.runtime_dir(env), "tracewriter.log")
    spawn = spawner(socket_path, traces, paths.config_file(env), log_path, env)
    supervisor = WriterSupervisor(socket_path, spawn if config.recorder.autostart else None)
    sender = RealSender(socket_path, clock=clock, on_no_writer=supervisor.kick)
    local = LocalServers(env, config.local)

    def make_provider(choice: Choice, env: Mapping[str, str]) -> HttpProvider | LocalProvider:
        if choice.base_url == LOCAL_URL and choice.uds is None:
            return LocalProvider(choice, local, env=env)
        return HttpProvider(choice, env=env)

    return Parts(
        config,
        env,
        clock,
        Ids(clock),
        sender,
        NullTrace,
        make_provider,
        make_provider,
        _price,
        supervisor,
        _warm_up,
        local.aclose,
    )


async def _price(provider: str, model: str, usage: Usage) -> float | None:
    return await cost_usd(provider, model, usage, local=provider in LOCAL_PROVIDERS)


def _warm_up() -> None:
    """What the first request would wait for, imported while nobody waits."""
    importlib.import_module("httpx")
    importlib.import_module("genai_prices")
