from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET, Raw

from agentd.loop import MAX_PARALLEL_CALLS, Limits, run_loop
from agentd.messages import AssistantMessage, ToolMessage, UserMessage
from agentd.providers.stream import (
    Failed,
    Finished,
    ModelRequest,
    Reasoning,
    Refusal,
    Retry,
    StreamEvent,
    Text,
    UsageReported,
)
from agentd.run import Emitted, Run
from agentd.tools.base import ToolOutput
from agentd.tools.registry import run_tool
from tests.agentd.daemon_fakes import FakeTool, Hang, ScriptedProvider, call, make_run, names, no_price, say, tool
from tracewriter.events import (
    ContextTrimApplied,
    Failure,
    FileChangeApplied,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    ModelStreamDelta,
    RunExecuteFinished,
    RunExecuteStarted,
    ToolCallFinished,
    Usage,
)

pytestmark = pytest.mark.anyio

DOWN = Failure("unreachable", "could not reach the server", "start it")


async def collect(run: Run, iterations: int = 25) -> list[Emitted]:
    return [emitted async for emitted in run_loop(run, run_tool, Limits(iterations))]


def end_of(events: list[Emitted]) -> RunExecuteFinished:
    ends = [e.event for e in events if isinstance(e.event, RunExecuteFinished)]
    assert len(ends) == 1
    assert isinstance(events[-1].event, RunExecuteFinished)
    return ends[0]


async def test_an_answer_in_words_completes_the_run(tmp_path: Path) -> None:
    provider = ScriptedProvider([Text("Hel"), Text("lo"), UsageReported(Usage(10, 5)), Finished("stop", "stop")])
    run = make_run(provider, tmp_path)
    events = await collect(run)
    assert names(events) == [
        "run.execute.started",
        "model.request.started",
        "model.stream.delta",
        "model.stream.delta",
        "model.request.finished",
        "run.execute.finished",
    ]
    assert events[0].event == RunExecuteStarted("p" * 16, "do it", "build", "m", "fake")
    assert [(e.event.offset, e.event.text) for e in events if isinstance(e.event, ModelStreamDelta)] == [
        (0, "Hel"),
        (3, "lo"),
    ]
    assert end_of(events) == RunExecuteFinished("completed", Usage(10, 5), 0.15, (), (), (), 0.0)
    assert run.messages == [UserMessage("do it"), AssistantMessage("Hello")]


async def test_reads_of_one_turn_run_at_the_same_time_and_answer_in_call_order(tmp_path: Path) -> None:
    order: list[str] = []
    second_ran = asyncio.Event()

    async def first() -> ToolOutput:
        await second_ran.wait()  # would wait for ever if the calls were run one after the other
        order.append("first")
        return ToolOutput("1")

    async def second() -> ToolOutput:
        order.append("second")
        second_ran.set()
        return ToolOutput("2")

    provider = ScriptedProvider(say("", call("a", call_id="x"), call("b", call_id="y")), say("done"))
    run = make_run(provider, tmp_path, FakeTool("a", first), FakeTool("b", second))
    events = await collect(run)
    assert order == ["second", "first"]
    finished = [e.event for e in events if isinstance(e.event, ToolCallFinished)]
    assert [(f.id, f.output) for f in finished] == [("x", "1"), ("y", "2")]
    assert provider.requests[1].messages[-2:] == (ToolMessage("x", "a", "1"), ToolMessage("y", "b", "2"))
    assert end_of(events).tools == ("a", "b")


async def test_parallel_calls_are_bounded(tmp_path: Path) -> None:
    running = most = 0

    async def work() -> ToolOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return ToolOutput("")

    calls = [call("a", f'{{"n":{n}}}', f"c{n}") for n in range(30)]
    run = make_run(ScriptedProvider(say("", *calls), say("done")), tmp_path, FakeTool("a", work))
    await collect(run)
    assert most == MAX_PARALLEL_CALLS


async def test_writes_run_alone_between_the_reads_around_them(tmp_path: Path) -> None:
    log: list[str] = []

    def logging_tool(name: str, *, writes: bool) -> FakeTool:
        async def work() -> ToolOutput:
            log.append(f"+{name}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            log.append(f"-{name}")
            return ToolOutput(name)

        return FakeTool(name, work, writes=writes)

    tools = [logging_tool("r1", writes=False), logging_tool("r2", writes=False), logging_tool("w", writes=True)]
    calls = [call(name, call_id=f"c{at}") for at, name in enumerate(["r1", "r2", "w", "w", "r1"])]
    run = make_run(ScriptedProvider(say("", *calls), say("done")), tmp_path, *tools)
    await collect(run)
    assert sorted(log[:2]) == ["+r1", "+r2"]
    assert log[4:] == ["+w", "-w", "+w", "-w", "+r1", "-r1"]


async def test_a_failure_after_text_keeps_the_text_and_runs_no_call(tmp_path: Path) -> None:
    ran: list[int] = []

    async def work() -> ToolOutput:
        ran.append(1)
        return ToolOutput("")

    reply: list[StreamEvent] = [
        Text("I will"),
        call("a"),
        UsageReported(None),
        Failed(DOWN, cut_tool_calls=("b",)),
    ]
    run = make_run(ScriptedProvider(reply), tmp_path, FakeTool("a", work))
    events = await collect(run)
    failed = next(e.event for e in events if isinstance(e.event, ModelRequestFailed))
    assert (failed.text, failed.cut_tool_calls, failed.error) == ("I will", ("b", "a"), DOWN)
    end = end_of(events)
    assert (end.outcome, end.errors, end.tools) == ("failed", ("could not reach the server",), ())
    assert not ran
    assert run.messages == [UserMessage("do it"), AssistantMessage("I will")]


async def test_a_stream_that_just_ends_is_a_failure(tmp_path: Path) -> None:
    events = await collect(make_run(ScriptedProvider([Text("half")]), tmp_path))
    assert end_of(events).outcome == "failed"
    assert "without saying how" in end_of(events).errors[0]


async def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    class Endless(ScriptedProvider):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
            while True:
                yield Text("x" * 100_000)

    events = await collect(make_run(Endless([]), tmp_path))
    assert end_of(events).outcome == "failed"
    assert len(events) < 20


async def test_retries_are_told(tmp_path: Path) -> None:
    run = make_run(ScriptedProvider([Retry(2, 0.5, DOWN), *say("ok")]), tmp_path)
    events = await collect(run)
    assert "model.retry.observed" in names(events)
    assert end_of(events).outcome == "completed"


@pytest.mark.parametrize("repeats", [3, 4])
async def test_the_same_call_three_times_gives_the_model_one_hint(tmp_path: Path, repeats: int) -> None:
    same = [say("", call("a", '{"x":1,"y":2}' if n % 2 else '{"y": 2, "x": 1}', f"c{n}")) for n in range(repeats)]
    provider = ScriptedProvider(*same, say("done"))
    run = make_run(provider, tmp_path, tool("a"))
    assert end_of(await collect(run)).outcome == "completed"
    hints = [m for m in provider.requests[-1].messages[1:] if isinstance(m, UserMessage)]
    assert len(hints) == 1
    assert "(a) 3 times" in hints[0].text


async def test_the_same_call_five_times_ends_the_run_before_the_fifth(tmp_path: Path) -> None:
    run = make_run(ScriptedProvider(*[say("", call("a", call_id=f"c{n}")) for n in range(9)]), tmp_path, tool("a"))
    end = end_of(await collect(run))
    assert (end.outcome, end.tools) == ("loop", ("a",) * 4)
    assert isinstance(run.messages[-1], ToolMessage)  # the fifth has a result that says it was not run
    assert run.messages[-1].is_error


async def test_reading_again_after_a_change_is_no_loop(tmp_path: Path) -> None:
    count = 0

    async def write() -> ToolOutput:
        nonlocal count
        count += 1
        return ToolOutput("ok", changes=(FileChangeApplied("f", str(count - 1), str(count), ""),))

    turns = [say("", call("r", call_id=f"r{n}"), call("w", f'{{"n":{n}}}', f"w{n}")) for n in range(8)]
    run = make_run(ScriptedProvider(*turns, say("ok")), tmp_path, tool("r"), FakeTool("w", write, writes=True))
    end = end_of(await collect(run))
    assert (end.outcome, end.files) == ("completed", ("f",))


async def test_a_file_changed_and_changed_back_was_not_changed(tmp_path: Path) -> None:
    changes = iter([FileChangeApplied("f", "a", "b", ""), FileChangeApplied("f", "b", "a", "")])

    async def write() -> ToolOutput:
        return ToolOutput("ok", changes=(next(changes),))

    turns = [say("", call("w", f'{{"n":{n}}}', f"w{n}")) for n in range(2)]
    run = make_run(ScriptedProvider(*turns, say("ok")), tmp_path, FakeTool("w", write, writes=True))
    assert end_of(await collect(run)).files == ()


async def test_the_iterations_are_limited(tmp_path: Path) -> None:
    turns = [say("", call("a", f'{{"n":{n}}}', f"c{n}")) for n in range(40)]
    provider = ScriptedProvider(*turns)
    end = end_of(await collect(make_run(provider, tmp_path, tool("a")), iterations=7))
    assert (end.outcome, len(provider.requests), len(end.tools)) == ("limit", 7, 7)


@pytest.mark.parametrize("stop_reason", ["refusal", "filter", "stop"])
async def test_a_refusal_ends_the_run_as_refused_and_is_shown(tmp_path: Path, stop_reason: str) -> None:
    reply: list[StreamEvent] = [Refusal("I won't"), UsageReported(Usage(1, 1)), Finished(stop_reason, "x")]
    events = await collect(make_run(ScriptedProvider(reply), tmp_path))
    assert end_of(events).outcome == "refused"
    finished = next(e.event for e in events if isinstance(e.event, ModelRequestFinished))
    assert finished.refusal == "I won't"
    assert [e.event.kind for e in events if isinstance(e.event, ModelStreamDelta)] == ["refusal"]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ([UsageReported(None), Finished("stop", "stop")], "failed"),
        ([Text("a"), UsageReported(None), Finished("length", "length")], "limit"),
        ([UsageReported(None), Finished("tool_calls", "tool_calls")], "failed"),
        ([Text("a"), UsageReported(None), Finished("error", "overloaded")], "failed"),
    ],
)
async def test_other_ends_are_told_apart(tmp_path: Path, reply: list[StreamEvent], outcome: str) -> None:
    end = end_of(await collect(make_run(ScriptedProvider(reply), tmp_path)))
    assert end.outcome == outcome
    assert len(end.errors) == 1


async def test_failed_and_unknown_calls_are_results_for_the_model_and_errors_of_the_run(tmp_path: Path) -> None:
    calls = say("", call("a", call_id="x"), call("nope", call_id="y"))
    provider = ScriptedProvider(calls, say("sorry"))
    end = end_of(await collect(make_run(provider, tmp_path, tool("a", "no\nfile", is_error=True))))
    assert end.outcome == "completed"
    assert end.errors[0] == "a: no"
    assert "no tool nope" in end.errors[1]
    results = [m for m in provider.requests[1].messages if isinstance(m, ToolMessage)]
    assert [m.is_error for m in results] == [True, True]


async def test_call_ids_are_made_usable_before_anything_refers_to_them(tmp_path: Path) -> None:
    calls = [call("a", f'{{"n":{n}}}', call_id) for n, call_id in enumerate(["same", "same", "", "x" * 5_000])]
    provider = ScriptedProvider(say("", *calls), say("done"))
    await collect(make_run(provider, tmp_path, tool("a")))
    _, assistant, *results = provider.requests[1].messages
    assert isinstance(assistant, AssistantMessage)
    ids = [made.id for made in assistant.tool_calls]
    assert ids == [m.call_id for m in results if isinstance(m, ToolMessage)]
    assert len(set(ids)) == 4
    assert all(0 < len(i) <= 256 for i in ids)


async def test_cost_is_known_only_when_every_answers_price_is(tmp_path: Path) -> None:
    turns = (say("", call("a")), say("done", usage=None))
    assert end_of(await collect(make_run(ScriptedProvider(*turns), tmp_path, tool("a")))).cost_usd is None
    assert end_of(await collect(make_run(ScriptedProvider(say("hi")), tmp_path, price=no_price))).cost_usd is None
    # A request that failed takes nothing from what is known so far.
    failed: list[StreamEvent] = [UsageReported(None), Failed(DOWN)]
    end = end_of(await collect(make_run(ScriptedProvider(say("", call("a")), failed), tmp_path, tool("a"))))
    assert (end.cost_usd, end.usage) == (0.15, Usage(10, 5))


async def test_the_context_is_recorded_as_a_difference(tmp_path: Path) -> None:
    provider = ScriptedProvider(say("", call("a")), say("done"))
    events = await collect(
        make_run(provider, tmp_path, tool("a"), history=(UserMessage("old"), AssistantMessage("yes")))
    )
    first, second = (e.event.context for e in events if isinstance(e.event, ModelRequestStarted))
    assert (first.keep, first.count, first.since, first.system) == (0, 3, UNSET, "be good")
    assert first.tools == (Raw(msgspec.json.encode(tool("a").spec)),)
    run, asked, called = events[0], events[1].op, next(e.op for e in events if isinstance(e.event, ToolCallFinished))
    assert run.event == RunExecuteStarted("p" * 16, "do it", "build", "m", "fake")
    told = [bytes(raw) for raw in first.messages]
    # The conversation before it is in no record of this life; the prompt is the run's, the rest is what came of operations.
    assert told == [
        b'{"role":"user","text":"old"}',
        b'{"role":"assistant","text":"yes"}',
        b'{"role":"user","text":"do it"}',
    ]
    assert (second.keep, second.count, second.since, second.system, second.tools) == (3, 5, asked, UNSET, UNSET)
    assert [bytes(raw) for raw in second.messages] == [
        f'{{"same_as":"{asked}"}}'.encode(), f'{{"same_as":"{called}"}}'.encode()
    ]  # fmt: skip
    assert second.chars > first.chars


async def test_a_long_conversation_is_trimmed_and_that_is_recorded(tmp_path: Path) -> None:
    turns = [say("", call("a", f'{{"n":{n}}}', f"c{n}")) for n in range(20)]
    provider = ScriptedProvider(*turns, say("done"))
    events = await collect(make_run(provider, tmp_path, tool("a", "x" * 19_000)))
    assert any(isinstance(e.event, ContextTrimApplied) for e in events)
    starts = [e.event.context.chars for e in events if isinstance(e.event, ModelRequestStarted)]
    assert max(starts) <= 200_000 < 20 * 19_000
    outputs = [e.event.output for e in events if isinstance(e.event, ToolCallFinished)]
    assert all(len(output) == 19_000 for output in outputs)  # the record is not trimmed


async def test_operations_name_their_parents(tmp_path: Path) -> None:
    events = await collect(make_run(ScriptedProvider(say("x", call("a")), say("done")), tmp_path, tool("a")))
    by_name = dict(zip(names(events), events, strict=True))
    request, started = by_name["model.request.finished"], by_name["tool.call.started"]
    assert started.op
    assert started.op == by_name["tool.call.finished"].op
    assert started.parent not in ("", request.op, started.op)
    assert started.parent == next(e.op for e in events if isinstance(e.event, ModelRequestStarted))


async def cancelled(run: Run, hang: Hang) -> list[Emitted]:
    """Run until the hang, cancel there as a session does, and give everything that was observed."""
    observed: list[Emitted] = []

    async def consume() -> None:
        try:
            async with aclosing(run_loop(run, run_tool, Limits(25))) as events:
                async for emitted in events:
                    observed.append(emitted)
        except asyncio.CancelledError:
            observed.extend(run.close("cancelled"))
            raise

    async with asyncio.TaskGroup() as group:
        task = group.create_task(consume())
        await hang.reached.wait()
        await asyncio.sleep(0)
        task.cancel()
    assert run.close("failed") == []  # once is enough
    return observed


async def test_cancelled_in_the_middle_of_a_stream_there_is_exactly_one_end_and_the_text_is_kept(
    tmp_path: Path,
) -> None:
    hang = Hang()
    run = make_run(ScriptedProvider(say("", call("a")), [Reasoning("hm"), Text("half an "), hang]), tmp_path, tool("a"))
    events = await cancelled(run, hang)
    end = end_of(events)
    assert (end.outcome, end.usage, end.cost_usd, end.tools) == ("cancelled", Usage(10, 5), 0.15, ("a",))
    failed = [e.event for e in events if isinstance(e.event, ModelRequestFailed)]
    assert [(f.text, f.reasoning, f.error.kind) for f in failed] == [("half an ", "hm", "cancelled")]
    assert run.messages[-1] == AssistantMessage("half an ")


async def test_cancelled_in_a_tool_every_call_has_an_end_and_a_result(tmp_path: Path) -> None:
    hang = Hang()

    async def work() -> ToolOutput:
        hang.reached.set()
        await hang.released.wait()
        return ToolOutput("never")

    calls = (call("a", call_id="x"), call("b", call_id="y"), call("w", call_id="z"))
    tools = (FakeTool("a", work), tool("b"), tool("w", writes=True))
    run = make_run(ScriptedProvider(say("", *calls)), tmp_path, *tools)
    events = await cancelled(run, hang)
    assert end_of(events).outcome == "cancelled"
    assert end_of(events).tools == ("a", "b")
    ended = [e.event for e in events if isinstance(e.event, ToolCallFinished)]
    assert [(f.id, f.is_error) for f in ended] == [("x", True), ("y", True)]
    results = [m for m in run.messages if isinstance(m, ToolMessage)]
    assert [(m.call_id, m.is_error) for m in results] == [("x", True), ("y", True), ("z", True)]


async def test_a_write_that_took_effect_while_it_was_cancelled_is_in_the_record(tmp_path: Path) -> None:
    hang = Hang()

    async def write() -> ToolOutput:
        hang.reached.set()
        try:
            await hang.released.wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            task.cancel()  # as tools.blocking does: the result now, the cancellation at the next await
        return ToolOutput("written", changes=(FileChangeApplied("f", None, "1", "+x"),))

    run = make_run(ScriptedProvider(say("", call("w"))), tmp_path, FakeTool("w", write, writes=True))
    events = await cancelled(run, hang)
    assert end_of(events).outcome == "cancelled"
    assert end_of(events).files == ("f",)
    assert "file.change.applied" in names(events)


@pytest.mark.parametrize(
    "end",
    [
        Finished("stop", "stop"), Finished("tool_calls", "tool_calls"), Finished("length", "length"), Finished("error", "x"),
        Finished("error", "stop", ("read_file",)), Finished("filter", "content_filter"), Finished("refusal", "refusal"),
    ],
    ids=repr,
)  # fmt: skip
async def test_an_end_without_an_answer_tells_why_and_what_next(tmp_path: Path, end: Finished) -> None:
    finished = end_of(await collect(make_run(ScriptedProvider([UsageReported(None), end]), tmp_path)))
    assert finished.outcome != "completed"
    [error] = finished.errors
    assert re.fullmatch(r"[^()\n]+( \([^()]*\))? \((try again|say: go on|ask in another way)[^()]*\)", error)
