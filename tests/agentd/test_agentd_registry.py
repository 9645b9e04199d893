"""Sessions that are made, joined, prompted, closed as idle and pushed out by others, all at the same moment."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentd.config import Config
from agentd.errors import Refusal
from agentd.protocol import SessionCreate
from agentd.providers.catalog import Choice
from agentd.registry import Registry
from agentd.session import ModelProvider, Services
from agentd.store import SessionStore
from agentd.tools.registry import run_tool
from tests.agentd.daemon_fakes import FakeClock, FakeTrace, ScriptedProvider, fake_ids, no_price, say
from tests.agentd.daemon_harness import MODEL
from tracewriter.sender import NullTrace, Trace, TraceStatus

pytestmark = pytest.mark.anyio
KEYS = {"OPENAI_API_KEY": "sk-test-0123456789"}


class SlowTrace(FakeTrace):
    """Takes a few turns of the loop to close, or ends in a bug."""

    def __init__(self, session: str, turns: int, *, broken: bool = False) -> None:
        super().__init__(session)
        self._turns, self._broken = turns, broken

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        if self._broken:
            self.closed += 1
            raise KeyError(self.session)
        return await super().close()


class World:
    """A registry whose recordings are watched: no id twice at once, each closed once."""

    def __init__(
        self, tasks: asyncio.TaskGroup, store: SessionStore | None, seed: int, *, broken: bool = False
    ) -> None:
        self.clock, self.random = FakeClock(), random.Random(seed)
        self.traces: list[SlowTrace] = []
        self._broken = broken
        gate = asyncio.Semaphore(4)
        services = Services(self.clock, fake_ids(self.clock), no_price, run_tool, gate, tasks, store)
        self.registry = Registry(
            Config(),
            services,
            life="l",
            traces_root="/t",
            open_trace=self._open,
            null_trace=NullTrace,
            make_provider=self._provider,
            max_sessions=4,
        )

    def _open(
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
        assert all(trace.closed for trace in self.traces if trace.session == session), "recorded twice at once"
        self.traces.append(SlowTrace(session, self.random.randrange(6), broken=self._broken))
        return self.traces[-1]

    def _provider(self, choice: Choice, env: Mapping[str, str]) -> ModelProvider:
        return ScriptedProvider(say("hello"))

    async def create(self, cwd: Path, session: str | None = None, key: str = "") -> str:
        env = {"OPENAI_API_KEY": key} if key else KEYS
        params = SessionCreate(str(cwd), model="openai/m", env=env, session=session)
        return (await self.registry.create(params)).session


@asynccontextmanager
async def world(tmp_path: Path, seed: int = 0, *, broken: bool = False) -> AsyncGenerator[World, None]:
    store = SessionStore(str(tmp_path / "sessions.db"))
    async with asyncio.TaskGroup() as tasks:
        made = World(tasks, store, seed, broken=broken)
        try:
            yield made
        finally:
            await made.registry.aclose()
            await store.aclose()
    assert [trace.closed for trace in made.traces] == [1] * len(made.traces)
    assert len(made.registry) == 0


async def _one(world: World, cwd: Path, known: list[str]) -> None:
    """Anything that may happen to a session, refused or not, and perhaps given up half-way by its client."""
    pick = world.random.choice
    for _ in range(world.random.randrange(4)):
        await asyncio.sleep(0)
    try:
        match pick(("new", "new", "new", "join", "join", "prompt", "sweep", "status")):
            case "new":
                known.append(await world.create(cwd))
            case "join" if known:
                await world.create(cwd, pick(known), f"sk-test-{world.random.randrange(100):010}")
            case "prompt" if known:
                await world.registry.find(pick(known)).prompt("hi")
            case "sweep":
                await world.registry.close_idle(0.0)
            case _:
                await world.registry.list(10)
    except Refusal:
        pass
    assert len(world.registry) <= 4


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_meets_whatever_no_session_is_closed_twice_or_recorded_twice_at_once(
    tmp_path: Path, seed: int
) -> None:
    async with world(tmp_path, seed) as made:
        known: list[str] = []
        for _ in range(6):
            async with asyncio.TaskGroup() as clients:
                tasks = [clients.create_task(_one(made, tmp_path, known)) for _ in range(12)]
                for task in made.random.sample(tasks, 3):
                    await asyncio.sleep(0)
                    task.cancel()  # its client is gone
        assert known


async def test_the_sweep_and_the_bound_that_want_the_same_session_close_it_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for _ in range(4):
            await made.create(tmp_path)
        async with asyncio.TaskGroup() as both:
            both.create_task(made.registry.close_idle(0.0))
            for _ in range(6):
                both.create_task(made.create(tmp_path))


async def test_a_bug_met_in_closing_one_session_ends_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path, broken=True) as made:
        for _ in range(3):
            await made.create(tmp_path)
        await made.registry.close_idle(0.0)
        assert len(made.registry) == 0
        await made.create(tmp_path)


async def test_a_session_that_is_joined_is_not_closed_before_its_clients_next_request(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        session = await made.create(tmp_path)
        made.clock.s += 3600
        await made.create(tmp_path, session)
        await made.registry.close_idle(60.0)
        await made.registry.find(session).prompt("hi")


async def test_a_client_that_goes_while_the_recording_changes_leaves_a_recorded_session(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        session = await made.create(tmp_path)
        async with asyncio.TaskGroup() as clients:
            task = clients.create_task(made.create(tmp_path, session, "sk-test-another-key"))
            await _replaced(made, session)
            task.cancel()
        assert await made.create(tmp_path, session) == session  # waits until the change is over
        assert made.registry.find(session).trace is made.traces[-1]


async def _replaced(world: World, session: str) -> None:
    for _ in range(10_000):
        if world.registry.find(session).trace is not world.traces[0]:
            return
        await asyncio.sleep(0)
    raise AssertionError("the recording does not change")


async def test_nothing_is_made_or_resumed_once_the_daemon_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        session = await made.create(tmp_path)
        async with asyncio.TaskGroup() as clients:
            late = [clients.create_task(_refused(made, tmp_path, wanted)) for wanted in (None, session)]
            await made.registry.aclose()
        assert [task.result() for task in late] == ["stopping", "stopping"]


async def test_a_session_is_found_until_the_daemon_has_closed_it(tmp_path: Path) -> None:
    async with world(tmp_path, seed=3) as made:
        session = await made.create(tmp_path)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(made.registry.aclose())
            while not ending.done():
                assert made.registry.find(session).trace.status().state == "ok"
                await asyncio.sleep(0)


async def _refused(world: World, cwd: Path, session: str | None) -> str:
    with pytest.raises(Refusal) as refused:
        await world.create(cwd, session)
    return refused.value.kind


async def test_a_prompt_that_is_cleared_while_it_is_saved_is_not_called_accepted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        session = made.registry.find(await made.create(tmp_path))
        async with asyncio.TaskGroup() as clients:
            prompting = clients.create_task(_prompt(made, session.id))
            await asyncio.sleep(0)
            await made.registry.aclose()
        assert prompting.result() == "stopping"


async def _prompt(world: World, session: str) -> str:
    with pytest.raises(Refusal) as refused:
        await world.registry.find(session).prompt("hi")
    return refused.value.kind


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"env": KEYS | {"AGENTD_NO_TRACE": "1"}}, "AGENTD_NO_TRACE is set"),
        ({"ephemeral": True}, "the session is ephemeral"),
        ({"capture": "off"}, "capture is off"),
    ],
)
async def test_why_a_session_is_not_recorded_is_said(tmp_path: Path, more: dict[str, object], reason: str) -> None:
    async with world(tmp_path) as made:
        params = SessionCreate(str(tmp_path), **({**MODEL, **more}))  # type: ignore[arg-type]
        created = await made.registry.create(params)
        assert made.registry.find(created.session).trace.status() == TraceStatus("off", reason)


async def test_a_directory_whose_real_path_is_not_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    odd = Path(f"{tmp_path}/h\udce9")
    os.mkdir(odd)
    os.symlink(odd, tmp_path / "link")
    async with world(tmp_path) as made:
        with pytest.raises(Refusal) as refused:
            await made.create(tmp_path / "link")
        assert refused.value.kind == "bad_cwd"
        assert "UTF-8" in str(refused.value)
