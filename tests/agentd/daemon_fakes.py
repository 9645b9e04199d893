"""Stand-ins for what surrounds the daemon's core: time, ids, a model that follows a script, tools, the recorder."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Raw

from agentd.ids import Ids
from agentd.messages import Message
from agentd.providers.stream import Finished, ModelRequest, StreamEvent, Text, ToolSpec, UsageReported
from agentd.run import Emitted, Run, Setup
from agentd.tools.base import ToolContext, ToolOutput
from agentd.tools.workspace import Workspace
from tracewriter.events import Event, ToolCall, Usage, name_of
from tracewriter.sender import TraceStatus


class FakeClock:
    """Time that moves only when it is told to."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def now(self) -> datetime:
        return datetime(2026, 11, 29, 20, 45, 1, tzinfo=UTC) + timedelta(seconds=self.s)

    def monotonic(self) -> float:
        return self.s


def counting_random() -> Callable[[int], bytes]:
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def fake_ids(clock: FakeClock | None = None) -> Ids:
    return Ids(clock or FakeClock(), counting_random())


def call(name: str, arguments: str = "{}", call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id, name, Raw(arguments.encode()))


def say(text: str, *calls: ToolCall, usage: Usage | None = Usage(10, 5)) -> list[StreamEvent]:  # noqa: B008 - frozen
    """A reply that ends well."""
    pieces: list[StreamEvent] = [Text(text)] if text else []
    return [*pieces, *calls, UsageReported(usage), Finished("tool_calls" if calls else "stop", "x")]


class Hang:
    """In a script: stop here until cancelled, or until `released` is set."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()


Reply = Sequence[StreamEvent | Hang]


class ScriptedProvider:
    """Gives one reply of the script per request and keeps the requests; the last reply repeats."""

    def __init__(self, *replies: Reply, name: str = "fake") -> None:
        self._replies = replies
        self._name = name
        self.requests: list[ModelRequest] = []
        self.closed = 0

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
        self.requests.append(request)
        for event in reply:
            if isinstance(event, Hang):
                event.reached.set()
                await event.released.wait()
            else:
                await asyncio.sleep(0)
                yield event

    async def aclose(self) -> None:
        self.closed += 1


class FakeTool:
    """A tool made of a function."""

    def __init__(self, name: str, run: Callable[[], Awaitable[ToolOutput]], *, writes: bool = False) -> None:
        self._spec = ToolSpec(name, f"{name} does it", Raw(b'{"type":"object"}'))
        self._run = run
        self._writes = writes

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    @property
    def writes(self) -> bool:
        return self._writes

    async def run(self, arguments: Raw, context: ToolContext) -> ToolOutput:
        return await self._run()


def tool(name: str, text: str = "ok", *, writes: bool = False, is_error: bool = False) -> FakeTool:
    async def run() -> ToolOutput:
        return ToolOutput(text, is_error)

    return FakeTool(name, run, writes=writes)


async def no_price(provider: str, model: str, usage: Usage) -> float | None:
    return None


async def cent_per_token(provider: str, model: str, usage: Usage) -> float | None:
    return (usage.input_tokens + usage.output_tokens) / 100


def make_run(
    provider: ScriptedProvider,
    workspace: Path,
    *tools: FakeTool,
    text: str = "do it",
    history: tuple[Message, ...] = (),
    clock: FakeClock | None = None,
    price: Callable[[str, str, Usage], Awaitable[float | None]] = cent_per_token,
) -> Run:
    clock = clock or FakeClock()
    context = ToolContext(Workspace(workspace), {})
    setup = Setup("r" * 32, "p" * 16, text, "build", provider, "m", "be good", tools, context, history)
    return Run(setup, clock=clock, ids=fake_ids(clock), price=price)


def names(events: Sequence[Emitted]) -> list[str]:
    return [name_of(emitted.event) for emitted in events]


class FakeTrace:
    """Keeps what is recorded."""

    def __init__(self, session: str = "s", secrets: tuple[str, ...] = ()) -> None:
        self.session = session
        self.secrets = secrets
        self.events: list[Event] = []
        self.closed = 0

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        assert not self.closed
        self.events.append(event)

    async def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        return self.status()

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        self.closed += 1
        return self.status()

    def status(self) -> TraceStatus:
        return TraceStatus("ok", "", len(self.events), len(self.events))

    def names(self) -> list[str]:
        return [name_of(event) for event in self.events]


class ListSink:
    """A subscriber's end with room for so many lines."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.lines: list[bytes] = []

    def offer(self, line: bytes) -> bool:
        if self.room <= 0:
            return False
        self.room -= 1
        self.lines.append(line)
        return True
