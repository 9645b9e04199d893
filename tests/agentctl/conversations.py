"""Runs of the daemon's own loop over scripts, and their records as a reader finds them: for rebuilding what the model saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct

from agentd.ids import Ids
from agentd.loop import Limits, run_loop
from agentd.messages import Message
from agentd.providers.stream import ModelRequest, StreamEvent
from agentd.recorded import Recorded
from agentd.run import Emitted, Run, Setup
from agentd.store import repair
from agentd.tools.base import Tool, ToolContext, ToolOutput
from agentd.tools.registry import run_tool
from agentd.tools.workspace import Workspace
from tests.agentctl.fake_daemon import SESSION
from tests.agentd.daemon_fakes import FakeClock, FakeTool, ScriptedProvider, fake_ids, no_price
from tracewriter.events import DELTAS, Event, ModelRequestStarted, Record, name_of
from tracewriter.findings import Found, Note
from tracewriter.payload import PayloadRef
from tracewriter.scan import parse_record


class Asked(Struct, frozen=True):
    """A request that a provider got, and what is needed to find it in the record."""

    run: str
    number: int
    op: str
    request: ModelRequest


class Script(Struct, frozen=True):
    """One run: what is asked, what the model answers and the tools give, and whether it is cut off after so many events."""

    text: str
    replies: tuple[tuple[StreamEvent, ...], ...]
    outputs: tuple[str, ...]
    system: str = "be good"
    budget_chars: int = 200_000
    stop_after: int | None = None
    provider: str = "openai"


class Recording:
    """The records of one session, over any number of runs."""

    def __init__(self, workspace: Path) -> None:
        self._clock = FakeClock()
        self._ids: Ids = fake_ids(self._clock)
        self._context = ToolContext(Workspace(workspace), {})
        self._recorded = Recorded()
        self.history: tuple[Message, ...] = ()
        self.lines: list[bytes] = []
        self.events: list[tuple[Event, str, str, str]] = []  # event, run, operation, parent
        self.asked: list[Asked] = []

    def close(self) -> None:
        """Let the workspace go."""
        self._context.workspace.close()

    def reopen(self, workspace: Path) -> None:
        """The workspace again, for more runs."""
        self._context = ToolContext(Workspace(workspace), {})

    def restart(self) -> None:
        """The daemon begins anew: the conversation comes from the store, and nothing is known of the record."""
        self._recorded = Recorded()
        self.history = repair(self.history)

    async def run(self, script: Script, *tools: Tool) -> None:
        """One run, as a session does it."""
        self._clock.s += 1
        provider = ScriptedProvider(*script.replies, name=script.provider)
        setup = Setup(
            self._ids.uuid7(),
            "p" * 16,
            script.text,
            "build",
            provider,
            "m",
            script.system,
            tools or scripted_tools(script.outputs),
            self._context,
            self.history,
            self._recorded,
        )
        run = Run(setup, clock=self._clock, ids=self._ids, price=no_price)
        limits = Limits(60, budget_chars=script.budget_chars)
        count = 0
        events: AsyncGenerator[Emitted, None] = run_loop(run, run_tool, limits)
        async for emitted in events:
            self._record(setup.run, emitted)
            count += 1
            if count == script.stop_after:
                break
        await events.aclose()
        for emitted in run.close("cancelled"):
            self._record(setup.run, emitted)
        self.history = (*self.history, *run.messages)
        begun = [
            op for event, run_id, op, _ in self.events if isinstance(event, ModelRequestStarted) and run_id == setup.run
        ]
        asked = enumerate(zip(begun, provider.requests, strict=False), 1)  # the last may never have been sent
        self.asked += [Asked(setup.run, number, op, request) for number, (op, request) in asked]

    def _record(self, run: str, emitted: Emitted) -> None:
        if type(emitted.event) in DELTAS:
            return  # they are shown, and not recorded
        self.events.append((emitted.event, run, emitted.op, emitted.parent))
        record = Record(
            seq=len(self.lines) + 1,
            ts=datetime(2026, 11, 29, 20, 45, tzinfo=UTC),
            event=name_of(emitted.event),
            session=SESSION,
            run=run,
            op=emitted.op or UNSET,
            parent=emitted.parent or UNSET,
            data=emitted.event,
        )
        self.lines.append(msgspec.json.encode(record))

    def read(self, without: Sequence[int] = ()) -> Iterator[Found | Note]:
        """As the reader gives them; records `without` are lost."""
        for line in self.lines:
            parsed = parse_record(line)
            assert parsed is not None
            record, end = parsed
            if record.seq in without:
                yield Note("dropped", "gone", first=record.seq, last=record.seq)
            else:
                yield Found(record, line, 1, 0, "verified", end)


def scripted_tools(outputs: Sequence[str]) -> tuple[FakeTool, ...]:
    """Two tools that read and one that writes; each call gives the next of the outputs, the last for ever."""
    left = list(outputs)

    async def give() -> ToolOutput:
        await asyncio.sleep(0)
        text = left.pop(0) if len(left) > 1 else left[0] if left else ""
        return ToolOutput(text, is_error=text.startswith("!"))

    return FakeTool("a", give), FakeTool("b", give), FakeTool("w", give, writes=True)


def no_payload(ref: PayloadRef) -> bytes | Note:
    """Nothing was moved out."""
    raise AssertionError(f"no record names a payload: {ref}")
