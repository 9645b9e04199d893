from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from agentd.errors import Refusal
from agentd.feed import Feed, RingBudget
from agentd.messages import AssistantMessage, ToolMessage, UserMessage
from agentd.providers.stream import ModelRequest, StreamEvent
from agentd.recording import Captured, Recording
from agentd.session import MAX_QUEUED_PROMPTS, Agent, Conversation, Services, Session, title_of
from agentd.store import SessionStore
from agentd.tools.base import ToolContext
from agentd.tools.registry import run_tool
from agentd.tools.workspace import Workspace
from tests.agentd.daemon_fakes import (
    FakeClock,
    FakeTool,
    FakeTrace,
    Hang,
    ListSink,
    ScriptedProvider,
    call,
    fake_ids,
    no_price,
    say,
    tool,
)
from tracewriter.events import ModelRequestStarted, RunExecuteFinished, RunExecuteStarted

pytestmark = pytest.mark.anyio


class World:
    """A session with what surrounds it."""

    def __init__(self, session: Session, trace: FakeTrace, sink: ListSink, store: SessionStore) -> None:
        self.session, self.trace, self.sink, self.store = session, trace, sink, store

    async def until(self, count: int) -> list[RunExecuteFinished]:
        """Wait until so many runs have ended."""
        while len(self.ends()) < count or self.session.running:  # noqa: ASYNC110 - the session has no such event
            await asyncio.sleep(0.001)
        return self.ends()

    def ends(self) -> list[RunExecuteFinished]:
        return [event for event in self.trace.events if isinstance(event, RunExecuteFinished)]


@asynccontextmanager
async def world(
    tmp_path: Path,
    provider: ScriptedProvider,
    *tools: FakeTool,
    database: str = "s.db",
    gate: int = 8,
    capture: str = "content",
) -> AsyncGenerator[World, None]:
    clock = FakeClock()
    store = SessionStore(str(tmp_path / database))
    try:
        async with asyncio.TaskGroup() as tasks:
            services = Services(clock, fake_ids(clock), no_price, run_tool, asyncio.Semaphore(gate), tasks, store)
            agent = Agent("build", provider, "m", "sys", tools, ToolContext(Workspace(tmp_path), {}))
            trace, sink = FakeTrace(), ListSink()
            feed = Feed("s1", "life", RingBudget())
            feed.subscribe(sink, None)
            recording = Recording(trace, Captured(capture))
            session = Session("s1", agent, feed, recording, services, Conversation())
            session.save()
            yield World(session, trace, sink, store)
            await session.aclose()
    finally:
        await store.aclose()


async def test_prompts_run_in_order_one_after_the_other_with_the_conversation_so_far(tmp_path: Path) -> None:
    provider = ScriptedProvider(say("one"), say("two"), say("three"))
    async with world(tmp_path, provider) as w:
        accepted = [await w.session.prompt(text) for text in ("a", "b", "c")]
        await w.until(3)
        started = [event for event in w.trace.events if isinstance(event, RunExecuteStarted)]
        assert [(event.prompt, event.text) for event in started] == [
            (prompt, text) for (prompt, _), text in zip(accepted, "abc", strict=True)
        ]
        assert [message.text for message in provider.requests[2].messages] == ["a", "one", "b", "two", "c"]
        assert len({event.prompt for event in started}) == 3


async def test_a_prompt_is_saved_before_it_is_accepted_and_the_conversation_follows(tmp_path: Path) -> None:
    hang = Hang()
    provider = ScriptedProvider(say("", call("a")), [hang, *say("done")])
    async with world(tmp_path, provider, tool("a", "result")) as w:
        await w.session.prompt("first")
        await w.session.prompt("second")
        await hang.reached.wait()
        loaded = await w.store.call(w.store.db.load, "s1")
        assert loaded is not None
        assert loaded.pending == ("second",)
        assert [type(m) for m in loaded.messages] == [UserMessage, AssistantMessage, ToolMessage]
        assert loaded.session.title == "first"
        hang.released.set()
        await w.until(2)


async def test_live_events_carry_cursors_and_are_the_recorded_ones(tmp_path: Path) -> None:
    async with world(tmp_path, ScriptedProvider(say("hello"))) as w:
        await w.session.prompt("a")
        await w.until(1)
        lines = [msgspec.json.decode(line) for line in w.sink.lines]
        events = [line["params"] for line in lines if line["method"] == "session/event"]
        assert [e["record"]["event"] for e in events] == w.trace.names()
        assert [e["cursor"] for e in events] == [f"life:{n}" for n in range(1, len(events) + 1)]
        assert all("run" in e["record"] for e in events if e["record"]["event"].startswith("run."))
        (delta,) = [line["params"] for line in lines if line["method"] == "session/delta"]
        assert (delta["kind"], delta["offset"], delta["text"]) == ("text", 0, "hello")
        assert "model.stream.delta" not in w.trace.names()


async def test_cancel_ends_the_run_at_once_clears_the_queue_and_the_session_goes_on(tmp_path: Path) -> None:
    hang = Hang()
    async with world(tmp_path, ScriptedProvider([*say("x")[:1], hang], say("again"))) as w:
        await w.session.prompt("a")
        await w.session.prompt("b")
        await hang.reached.wait()
        assert w.session.cancel()
        w.session.cancel()
        (end,) = await w.until(1)
        assert end.outcome == "cancelled"
        assert w.session.queued == 0
        assert w.trace.names().count("run.execute.started") == 1
        await w.session.prompt("c")
        assert [e.outcome for e in await w.until(2)] == ["cancelled", "completed"]
        assert not w.session.cancel()


async def test_a_prompt_accepted_while_a_cancelled_run_ends_is_run(tmp_path: Path) -> None:
    hang = Hang()
    async with world(tmp_path, ScriptedProvider([hang], say("b"))) as w:
        await w.session.prompt("a")
        await hang.reached.wait()
        w.session.cancel()
        await w.session.prompt("b")
        assert [e.outcome for e in await w.until(2)] == ["cancelled", "completed"]


async def test_a_run_cancelled_before_its_first_step_leaves_the_session_usable(tmp_path: Path) -> None:
    async with world(tmp_path, ScriptedProvider(say("ok")), gate=1) as w:
        await w.session.prompt("a")
        w.session.cancel()
        await w.session.prompt("b")
        assert [end.outcome for end in await w.until(1)] == ["completed"]
        assert w.trace.names().count("run.execute.started") == 1


async def test_a_bug_in_a_run_ends_that_run_as_failed_and_nothing_else(tmp_path: Path) -> None:
    class Broken(ScriptedProvider):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
            self.requests.append(request)
            if len(self.requests) == 1:
                raise ZeroDivisionError("secret content")
            async for event in ScriptedProvider(say("ok")).stream(request):
                yield event

    async with world(tmp_path, Broken([])) as w:
        await w.session.prompt("a")
        await w.session.prompt("b")
        ends = await w.until(2)
        assert [end.outcome for end in ends] == ["failed", "completed"]
        assert "ZeroDivisionError" in ends[0].errors[0]
        assert "secret content" not in str(w.trace.events)


async def test_too_many_and_too_long_prompts_are_refused(tmp_path: Path) -> None:
    hang = Hang()
    async with world(tmp_path, ScriptedProvider([hang])) as w:
        await w.session.prompt("a")
        await hang.reached.wait()
        for _ in range(MAX_QUEUED_PROMPTS):
            await w.session.prompt("b")
        with pytest.raises(Refusal) as caught:
            await w.session.prompt("c")
        assert caught.value.kind == "overloaded"
        w.session.cancel()
        with pytest.raises(Refusal, match="characters"):
            await w.session.prompt("x" * 5_000_000)


async def test_a_store_that_cannot_be_written_is_said_once_a_prompt_and_the_runs_go_on(tmp_path: Path) -> None:
    async with world(tmp_path, ScriptedProvider(say("one"), say("two")), database="missing/s.db") as w:
        await w.session.prompt("a")
        await w.session.prompt("b")
        assert [end.outcome for end in await w.until(2)] == ["completed", "completed"]
        assert w.trace.names().count("session.save.failed") == 2


async def test_closing_ends_the_run_as_cancelled_then_the_recording_then_the_connections(tmp_path: Path) -> None:
    hang = Hang()
    provider = ScriptedProvider([hang])
    async with world(tmp_path, provider) as w:
        await w.session.prompt("a")
        await hang.reached.wait()
        await w.session.aclose()
        assert w.ends()[0].outcome == "cancelled"
        assert (w.trace.closed, provider.closed) == (1, 1)
        with pytest.raises(Refusal):
            await w.session.prompt("b")
        w.trace.closed = 0


async def test_a_recording_changed_for_another_loses_nothing_between_them(tmp_path: Path) -> None:
    async with world(tmp_path, ScriptedProvider(say("one"), say("two"))) as w:
        old, new = w.trace, FakeTrace()
        await w.session.prompt("a")
        await w.until(1)
        await w.session.record_with(Captured("content"), lambda: new)
        w.trace = new
        await w.session.prompt("b")
        await w.until(1)
        assert old.closed == 1
        assert new.names()[0] == "prompt.queue.observed"


async def test_the_agent_can_be_changed_and_the_old_ones_connections_are_closed(tmp_path: Path) -> None:
    first, second = ScriptedProvider(say("one")), ScriptedProvider(say("two"))
    async with world(tmp_path, first) as w:
        await w.session.prompt("a")
        await w.until(1)
        await w.session.use(msgspec.structs.replace(w.session.agent, provider=second))
        assert first.closed == 1
        await w.session.prompt("b")
        await w.until(2)
        assert [m.text for m in second.requests[0].messages] == ["a", "one", "b"]


async def test_capture_metadata_records_nothing_that_was_said_and_clients_still_see_all(tmp_path: Path) -> None:
    provider = ScriptedProvider(say("TOPSECRET", call("a", '{"x":"TOPSECRET"}')), say("TOPSECRET"))
    async with world(tmp_path, provider, tool("a", "TOPSECRET"), capture="metadata") as w:
        await w.session.prompt("TOPSECRET")
        await w.session.prompt("TOPSECRET")
        await w.until(2)
        recorded = msgspec.json.encode(w.trace.events)
        assert b"TOPSECRET" not in recorded
        assert b'"input_tokens":10' in recorded
        assert w.trace.names().count("tool.call.finished") == 1
        assert sum(b"TOPSECRET" in line for line in w.sink.lines) > 5


def test_a_title_is_one_short_line() -> None:
    assert title_of("fix\n the\tbug ") == "fix the bug"
    assert len(title_of("word " * 100)) <= 80


async def test_a_run_refers_to_what_earlier_runs_recorded_until_that_is_recorded_in_another_way(tmp_path: Path) -> None:
    async with world(tmp_path, ScriptedProvider(say("a long enough answer to be worth a reference"))) as w:
        for count in (1, 2):
            await w.session.prompt("a long enough question to be worth a reference")
            await w.until(count)
        first, second = contexts(w.trace)
        assert ["same_as" in told for told in first] == [True]
        assert ["same_as" in told for told in second] == [True, True, True]
        metadata, content = FakeTrace(), FakeTrace()
        await w.session.record_with(Captured("metadata"), lambda: metadata)
        await w.session.prompt("not to be recorded, and not to be referred to")
        while w.session.state != "idle":  # noqa: ASYNC110 - the session has no such event
            await asyncio.sleep(0.001)
        assert contexts(metadata) == [[]]
        await w.session.record_with(Captured("content"), lambda: content)
        await w.session.prompt("recorded again, at a length that is worth a reference")
        while w.session.state != "idle":  # noqa: ASYNC110 - the session has no such event
            await asyncio.sleep(0.001)
        (after,) = contexts(content)
        assert len(after) == 7
        assert "not to be recorded, and not to be referred to" in after[4]
        assert ["same_as" in told for told in after] == [False, False, True, True, False, True, True]


def contexts(trace: FakeTrace) -> list[list[str]]:
    """What each request's record says of its messages."""
    started = [event for event in trace.events if isinstance(event, ModelRequestStarted)]
    return [[bytes(raw).decode() for raw in event.context.messages] for event in started]
