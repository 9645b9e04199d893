"""Token counts that no provider should send, and answers that say nothing of usage or call tools with what is no JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.loop import Limits, run_loop
from agentd.providers.openai_chat import OpenAIChatDecoder
from agentd.providers.stream import StreamEvent, UsageReported
from agentd.run import Emitted
from agentd.tools.registry import run_tool
from tests.agentd.daemon_fakes import ScriptedProvider, call, make_run, say, tool
from tracewriter.events import MAX_TOKENS, RunExecuteFinished, Usage

COUNTS = [
    10**30,
    -(10**30),
    -5,
    2**53 + 1,
    2**64,
    1e308,
    0.5,
    True,
    False,
    "x",
    "-7",
    "9" * 400,
    None,
    [],
    {},
    [5],
    {"n": 5},
]
COUNTS += [float("nan"), float("inf"), float("-inf")]
numbers = st.one_of(st.sampled_from(COUNTS), st.integers(), st.floats(), st.integers(0, 2**53), st.text(max_size=5))


def reply(usage: object, *, arguments: str = "") -> list[StreamEvent]:
    delta: dict[str, object] = {"content": "hi"}
    if arguments:
        function = {"name": "read_file", "arguments": arguments}
        delta = {"tool_calls": [{"index": 0, "id": "c", "function": function}]}
    choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if arguments else "stop"}
    chunk = {"choices": [choice]} | ({} if usage is None else {"usage": usage})
    decoder = OpenAIChatDecoder()
    return [*decoder.feed(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"), *decoder.end()]


def used(events: Sequence[StreamEvent]) -> Usage | None:
    (reported,) = [event for event in events if isinstance(event, UsageReported)]
    return reported.usage


@given(
    st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"]), numbers)
)
def test_every_count_is_a_whole_number_up_to_2_to_53_or_was_not_said(usage: dict[str, object]) -> None:
    got = used(reply(usage))
    said = {name: _count(value) for name, value in usage.items()}
    if said.get("prompt_tokens") is None and said.get("completion_tokens") is None:
        assert got is None
    else:
        given, produced = said.get("prompt_tokens") or 0, said.get("completion_tokens") or 0
        assert got == Usage(given, produced, said.get("cached_tokens"))


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 16 else -1
    whole = isinstance(value, int) or value.is_integer()
    return int(value) if whole and 0 <= value <= 2**53 else None


@given(st.lists(st.tuples(numbers, numbers), max_size=5))
def test_totals_of_any_counts_can_be_recorded_and_read_back(counts: list[tuple[object, object]]) -> None:
    total = Usage(MAX_TOKENS, MAX_TOKENS, MAX_TOKENS)
    for given_tokens, produced in counts:
        total += used(reply({"prompt_tokens": given_tokens, "completion_tokens": produced})) or Usage()
    event = RunExecuteFinished("completed", total, None, (), (), (), 1.0)
    assert msgspec.json.decode(msgspec.json.encode(event), type=RunExecuteFinished) == event
    assert max(total.input_tokens, total.output_tokens) == MAX_TOKENS


async def _end(tmp_path: Path, *replies: Sequence[StreamEvent]) -> RunExecuteFinished:
    run = make_run(ScriptedProvider(*replies), tmp_path, tool("a"))
    events: list[Emitted] = [emitted async for emitted in run_loop(run, run_tool, Limits(5))]
    end = events[-1].event
    assert isinstance(end, RunExecuteFinished)
    assert msgspec.json.decode(msgspec.json.encode(end), type=RunExecuteFinished) == end
    return end


@pytest.mark.anyio
async def test_a_run_whose_requests_report_no_usage_says_that_it_is_not_known(tmp_path: Path) -> None:
    assert (await _end(tmp_path, say("", call("a"), usage=None), say("done", usage=None))).usage is None
    assert (await _end(tmp_path, say("", call("a"), usage=None), say("done", usage=Usage(3, 2)))).usage == Usage(3, 2)
    assert (await _end(tmp_path, say("done", usage=Usage(0, 0)))).usage == Usage(0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("count", COUNTS)
async def test_no_count_poisons_the_end_of_a_run(tmp_path: Path, count: object) -> None:
    end = await _end(tmp_path, reply({"prompt_tokens": -5, "completion_tokens": count, "total_tokens": "x"}))
    assert (end.outcome, end.usage) == ("completed", None)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "arguments", ['{"path":' + "[" * 100_000 + "]" * 100_000 + "}", "[" * 50_000, '{"path":"a', "<x>"]
)
async def test_arguments_that_cannot_be_read_are_told_as_such_and_not_as_the_providers_error(
    tmp_path: Path, arguments: str
) -> None:
    end = await _end(tmp_path, reply({"prompt_tokens": 1, "completion_tokens": 1}, arguments=arguments))
    assert end.outcome == "failed"
    (error,) = end.errors
    assert "read_file with arguments that cannot be read" in error
    assert "provider" not in error
