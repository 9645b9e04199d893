"""The agent loop: ask the model, run the tools it calls, tell it the results, until it answers or a bound is met.

An async generator of events over a provider, tools and messages; it keeps no state of its own (run.py has the books) and
does no I/O but through them. Failures of the world are events. The last event is run.execute.finished, whatever happened;
when the generator is cancelled, the caller gets it from `Run.close("cancelled")`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from agentd.context import REQUEST_BUDGET_CHARS, Window
from agentd.messages import UserMessage
from agentd.providers.stream import Failed, Finished, ModelRequest
from agentd.run import Emitted, Reply, Run, canonical, unreadable_calls
from agentd.tools.base import MAX_RESULT_CHARS, Tool, ToolContext, ToolOutput
from tracewriter.events import Failure, ModelRequestStarted, ModelRetryObserved, ToolCall, ToolCallStarted

ITERATIONS: Final = {"plan": 25, "build": 25, "swe": 60}
# File descriptors and threads, not the model, set this bound.
MAX_PARALLEL_CALLS: Final = 10
HINT_AT: Final = 3
STOP_AT: Final = 5

RunTool: TypeAlias = Callable[[tuple[Tool, ...], ToolCall, ToolContext], Awaitable[ToolOutput]]


class Limits(Struct, frozen=True):
    """The bounds of one run."""

    iterations: int
    budget_chars: int = REQUEST_BUDGET_CHARS
    parallel_calls: int = MAX_PARALLEL_CALLS


class _End(Struct, frozen=True):
    """How a run ends."""

    outcome: str
    failure: Failure | None = None


async def run_loop(run: Run, run_tool: RunTool, limits: Limits) -> AsyncGenerator[Emitted, None]:
    """All events of one run, in order. Cancelling it stops the model's stream and the tools at once."""
    yield run.start()
    conversation = (*run.setup.history, *run.messages)
    window = Window(conversation, budget_chars=limits.budget_chars, recorded=run.setup.recorded)
    turns = _Turns(run, run_tool, limits)
    end = _End("limit", Failure("limit", f"stopped after {limits.iterations} turns", "say what to do next to go on"))
    for _ in range(limits.iterations):
        known = len(run.messages)
        elsewhere: ModelRetryObserved | None = None
        while True:
            reply = run.open_request(run.ids.op())
            if elsewhere is not None:
                yield Emitted(elsewhere, reply.op)
            async with aclosing(_ask(run, reply, window)) as asking:
                async for emitted in asking:
                    yield emitted
            if (elsewhere := run.fall_back(reply)) is None:
                break
        stop = _end_of(reply, ran_tools=bool(turns.ran)) or turns.check_repeats(reply.calls)
        if stop is not None:
            end = stop
            break
        async with aclosing(turns.run_calls(reply)) as calling:
            async for emitted in calling:
                yield emitted
        for message in run.messages[known:]:
            window.append(message)
    for emitted in run.close(end.outcome, end.failure):
        yield emitted


async def _ask(run: Run, reply: Reply, window: Window) -> AsyncGenerator[Emitted, None]:
    setup = run.setup
    specs = tuple(tool.spec for tool in setup.tools)
    encoded = tuple(Raw(msgspec.json.encode(spec)) for spec in specs)
    overhead = len(setup.system) + sum(map(len, encoded))
    op = reply.op
    trimmed = window.fit(overhead)
    if trimmed is not None:
        yield Emitted(trimmed, op)
    context = window.delta(op, overhead)
    if context.since is UNSET:
        given = setup.recorded.given(setup.system, encoded, op)
        context = msgspec.structs.replace(context, **msgspec.structs.asdict(given))
    target = run.target
    yield Emitted(ModelRequestStarted("main", target.provider.name, target.model, context), op)
    request = ModelRequest(target.model, setup.system, window.messages, specs)
    async with aclosing(target.provider.stream(request)) as stream:
        async for event in stream:
            shown = reply.take(event, run.now_s())
            if shown is not None:
                yield Emitted(shown, op)
            if reply.too_long:
                reply.end = Failed(
                    Failure("too_long", "the model's answer does not end; the stream was closed", "try again")
                )
                break
    await run.price(reply)
    yield run.close_request(reply)


def _end_of(reply: Reply, *, ran_tools: bool) -> _End | None:
    """How the run ends with this reply; None when it called tools and goes on."""
    end = reply.end
    if not isinstance(end, Finished):
        return _End("failed")  # the failure is noted with the request
    if end.stop_reason == "error" and end.cut_tool_calls:
        return _End("failed", Failure("protocol", unreadable_calls(end.cut_tool_calls), "try again, or another model"))
    if end.stop_reason == "error":
        return _End("failed", Failure("provider", f"the provider stopped with an error ({end.finish})", "try again"))
    if end.stop_reason in ("refusal", "filter") or (reply.refusal and not reply.calls):
        return _End(
            "refused", Failure("refused", _REFUSALS.get(end.stop_reason, "the model refused"), "ask in another way")
        )
    if reply.calls:
        return None
    if end.stop_reason == "tool_calls":
        return _End("failed", Failure("protocol", "the model said that it calls tools, but named none", "try again"))
    if end.stop_reason == "length":
        return _End("limit", Failure("length", "the answer was cut at the model's output limit", "say: go on"))
    if not reply.text and not ran_tools:
        return _End("failed", Failure("empty", "the model sent an empty answer", "try again, or another model"))
    return _End("completed")


_REFUSALS: Final = {"filter": "the provider's content filter stopped the answer"}


class _Turns:
    """The tool calls of a run: which go together, how often the same was made, and their results."""

    def __init__(self, run: Run, run_tool: RunTool, limits: Limits) -> None:
        self._run = run
        self._run_tool = run_tool
        self._gate = asyncio.Semaphore(limits.parallel_calls)
        self._writers = {tool.spec.name for tool in run.setup.tools if tool.writes}
        self._seen: Counter[tuple[str, bytes]] = Counter()
        self.ran = 0

    def check_repeats(self, calls: list[ToolCall]) -> _End | None:
        """Count the calls; the end of the run when one was made too often."""
        for call in calls:
            self._seen[canonical(call)] += 1
        for call in calls:
            if self._seen[canonical(call)] >= STOP_AT:
                line = f"the model made the same call of {call.name} {STOP_AT} times"
                return _End("loop", Failure("loop", line, "say what it should do differently"))
        return None

    async def run_calls(self, reply: Reply) -> AsyncGenerator[Emitted, None]:
        """Events of one turn's calls: read-only neighbours at the same time, writes alone, results in call order."""
        repeated = sorted({call.name for call in reply.calls if self._seen[canonical(call)] == HINT_AT})
        for batch in self._batches(reply.calls):
            ops = [self._run.ids.op() for _ in batch]
            for op, call in zip(ops, batch, strict=True):
                self._run.open_call(op, call, reply.op)
                yield Emitted(ToolCallStarted(call.id, call.name, call.input), op, reply.op)
            outputs = await self._run_batch(batch)
            for op, (output, duration_ms) in zip(ops, outputs, strict=True):
                self._forget_reads(output)
                for emitted in self._run.close_call(op, output, duration_ms):
                    yield emitted
            self.ran += len(batch)
        if repeated:
            names = ", ".join(repeated)
            self._run.messages.append(UserMessage(_HINT.format(names=names, times=HINT_AT)))

    def _batches(self, calls: list[ToolCall]) -> list[list[ToolCall]]:
        batches: list[list[ToolCall]] = []
        together = False
        for call in calls:
            reads = call.name not in self._writers
            if reads and together:
                batches[-1].append(call)
            else:
                batches.append([call])
            together = reads
        return batches

    async def _run_batch(self, batch: list[ToolCall]) -> list[tuple[ToolOutput, float]]:
        if len(batch) == 1:
            # Here and not in a task of its own: a write that took effect as it was cancelled returns its result first, and the
            # cancellation comes at the next await, after the result was yielded.
            return [await self._run_one(batch[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_one(call)) for call in batch]
        return [task.result() for task in tasks]

    async def _run_one(self, call: ToolCall) -> tuple[ToolOutput, float]:
        async with self._gate:
            started_s = self._run.now_s()
            output = await self._run_tool(self._run.setup.tools, call, self._run.setup.context)
            return _capped(output), round((self._run.now_s() - started_s) * 1000, 3)

    def _forget_reads(self, output: ToolOutput) -> None:
        """After a change, reading the same again is no loop."""
        if output.changes:
            for key in [key for key in self._seen if key[0] not in self._writers]:
                del self._seen[key]


_HINT: Final = (
    "Note from agentd: you have made the same call ({names}) {times} times with the same input; its result will not change. "
    "Do something different, or say what keeps you from finishing."
)


def _capped(output: ToolOutput) -> ToolOutput:
    if len(output.text) <= MAX_RESULT_CHARS:
        return output
    mark = f"\n[cut: {len(output.text)} characters]"
    text = output.text[: MAX_RESULT_CHARS - len(mark)] + mark
    return msgspec.structs.replace(output, text=text, chars=output.chars or len(output.text))
