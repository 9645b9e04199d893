"""HttpProvider on every wire against llmock, a server of its own making that breaks answers on request and judges the client.

llmock sees requests, not what the client tells its user: of an answer that broke after some of it was shown it only knows
whether the same request came again. That is the user's to decide here, so those tests first hold that the answer ended in an
error, and then ask again, as the user would.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from llmock.testing import LLMockServer
from msgspec import Raw

from agentd.messages import UserMessage
from agentd.providers.catalog import Choice, ProviderOverride, resolve
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, ModelRequest, Retry, StreamEvent, Text, ToolSpec, UsageReported
from tracewriter.events import ToolCall

pytestmark = pytest.mark.anyio

BASES = {
    "openai-chat": "/v1",
    "openai-responses": "/v1",
    "anthropic": "/anthropic",
    "gemini": "/gemini/v1beta",
}
WIRES = list(BASES)
SHOWN_AFTER = 6  # chunks after which text has come on every wire
ANSWER = "one two three four five six seven eight nine ten"
TOOL = ToolSpec(
    "look_up",
    "Look a word up.",
    Raw(b'{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}'),
)
REQUEST = ModelRequest("m-1", "be brief", (UserMessage("count to ten"),))
WITH_TOOL = ModelRequest("m-1", "be brief", (UserMessage("what is a quine"),), tools=(TOOL,))
TIMES = Timeouts(connect_s=10, first_byte_s=30, stall_s=30, total_s=60, settle_s=10)
# Waits that grow, as llmock demands, but no longer than its clock can tell apart.
QUICK = Retries(attempts=4, base_s=0.08)

Json = dict[str, Any]


class Judge:
    """A running llmock, driven as its users drive it: over HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def script(self, *behaviors: Json) -> None:
        """Forget everything, and queue these."""
        await asyncio.to_thread(self._call, "POST", "reset", {})
        await asyncio.to_thread(self._call, "POST", "scenario", {"behaviors": list(behaviors)})

    async def verdict(self) -> Json:
        """What llmock holds of the requests since `script`."""
        return await asyncio.to_thread(self._call, "GET", "verdict", None)

    async def assert_clean(self, *, attempts: int, calls: int = 1) -> None:
        """No error and no warning, after so many requests; the faults that were scripted did happen."""
        verdict = await self.verdict()
        assert verdict["findings"] == []
        assert (verdict["attempts"], verdict["calls"]) == (attempts, calls)
        assert (await asyncio.to_thread(self._call, "GET", "scenario", None))["pending"] == []

    def _call(self, method: str, what: str, body: Json | None) -> Json:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_llmock/{what}", data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: Json = json.load(answer)
            return found


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The daemon's own loop: what differs between loops is held by the other tests of the transport."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with LLMockServer() as server:
        yield Judge(server.url)


async def ask(
    judge: Judge, wire: str, request: ModelRequest = REQUEST, *, times: Timeouts = TIMES, retries: Retries = QUICK
) -> list[StreamEvent]:
    override = ProviderOverride(base_url=judge.url + BASES[wire], wire=wire, key_env="MOCK_KEY")
    choice = resolve("mock/m-1", env={"MOCK_KEY": "sk-mock-0123456789"}, overrides={"mock": override})
    assert isinstance(choice, Choice)
    provider = HttpProvider(choice, env={}, timeouts=times, retries=retries, uniform=lambda: 1.0)
    try:
        return [event async for event in provider.stream(request)]
    finally:
        await provider.aclose()


def fault(kind: str, after_chunks: int, **more: Any) -> Json:
    return {"type": "stream_fault", "kind": kind, "after_chunks": after_chunks, **more}


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def assert_whole(events: list[StreamEvent], *, retries: int = 0) -> None:
    assert len([event for event in events if isinstance(event, Retry)]) == retries
    assert text_of(events) == ANSWER
    assert isinstance(events[-2], UsageReported)
    assert events[-2].usage is not None
    assert isinstance(events[-1], Finished)
    assert events[-1].stop_reason == "stop"


def failure_of(events: list[StreamEvent]) -> Failed:
    assert isinstance(events[-1], Failed)
    return events[-1]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_whole_answer_has_its_text_its_usage_and_its_end(wire: str, judge: Judge) -> None:
    await judge.script({"type": "reply", "text": ANSWER})
    assert_whole(await ask(judge, wire))
    await judge.assert_clean(attempts=1)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_rate_limit_is_waited_out_as_asked(wire: str, judge: Judge) -> None:
    await judge.script(
        {"type": "fail", "status": 429, "retry_after": 0.4, "times": 2}, {"type": "reply", "text": ANSWER}
    )
    events = await ask(judge, wire)
    assert_whole(events, retries=2)
    assert [event.wait_s for event in events if isinstance(event, Retry)] == [0.4, 0.4]
    await judge.assert_clean(attempts=3)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_failing_provider_is_asked_again_with_growing_waits(wire: str, judge: Judge) -> None:
    await judge.script({"type": "fail", "status": 500, "times": 3}, {"type": "reply", "text": ANSWER})
    assert_whole(await ask(judge, wire), retries=3)
    await judge.assert_clean(attempts=4)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_outage_ends_in_an_error_after_bounded_attempts(wire: str, judge: Judge) -> None:
    await judge.script({"type": "fail", "status": 529, "retry_after": 0.1, "times": 4})
    assert failure_of(await ask(judge, wire)).retryable
    await judge.assert_clean(attempts=4)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_no_repetition_mends_is_sent_once(wire: str, status: int, judge: Judge) -> None:
    await judge.script({"type": "fail", "status": status, "message": "mock says no"})
    failed = failure_of(await ask(judge, wire))
    assert not failed.retryable
    assert "mock says no" in failed.failure.message
    assert failed.failure.hint or status in (400, 422)
    verdict = await judge.verdict()  # after a 404 the list of models is asked for: another call, not a repetition
    assert verdict["findings"] == []
    assert verdict["attempts"] == verdict["calls"] == (2 if status == 404 else 1)


@pytest.mark.parametrize("kind", ["truncate", "disconnect"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_breaks_before_anything_was_shown_is_asked_for_again(
    wire: str, kind: str, judge: Judge
) -> None:
    await judge.script(fault(kind, 0, times=2), {"type": "reply", "text": ANSWER, "times": 3})
    assert_whole(await ask(judge, wire), retries=2)
    await judge.assert_clean(attempts=3)


@pytest.mark.parametrize(("kind", "finding"), [("truncate", "truncated_stream_accepted"), ("disconnect", "gave_up")])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_breaks_after_something_was_shown_is_an_error(
    wire: str, kind: str, finding: str, judge: Judge
) -> None:
    await judge.script(fault(kind, SHOWN_AFTER), {"type": "reply", "text": ANSWER, "times": 2})
    events = await ask(judge, wire)
    assert failure_of(events).retryable
    assert text_of(events)
    assert ANSWER.startswith(text_of(events))
    assert not any(isinstance(event, Retry) for event in events)
    assert [found["code"] for found in (await judge.verdict())["findings"]] == [finding]
    assert_whole(await ask(judge, wire))
    await judge.assert_clean(attempts=2)


@pytest.mark.parametrize("after_chunks", [0, SHOWN_AFTER])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_broken_chunk_is_an_error_after_what_else_came(wire: str, after_chunks: int, judge: Judge) -> None:
    """It is read to its end, for what it cost; that llmock cannot tell from not having noticed, and it warns."""
    await judge.script(fault("malformed", after_chunks), {"type": "reply", "text": ANSWER})
    events = await ask(judge, wire)
    assert failure_of(events).failure.kind == "protocol"
    assert text_of(events)
    verdict = await judge.verdict()
    assert [found["code"] for found in verdict["findings"]] == ["malformed_chunk_ignored"]
    assert verdict["passed"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stall_before_anything_was_shown_is_cut_and_asked_for_again(wire: str, judge: Judge) -> None:
    await judge.script(fault("stall", 0, stall_seconds=60), {"type": "reply", "text": ANSWER, "times": 2})
    patience = Timeouts(connect_s=10, first_byte_s=0.6, stall_s=0.6, total_s=60)
    assert_whole(await ask(judge, wire, times=patience), retries=1)
    await judge.assert_clean(attempts=2)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stall_after_something_was_shown_is_an_error_in_time(wire: str, judge: Judge) -> None:
    await judge.script(fault("stall", SHOWN_AFTER, stall_seconds=60), {"type": "reply", "text": ANSWER})
    events = await ask(judge, wire, times=Timeouts(connect_s=10, first_byte_s=30, stall_s=0.6, total_s=60))
    assert "idle" in failure_of(events).failure.message
    assert ANSWER.startswith(text_of(events))
    assert text_of(events)
    await judge.assert_clean(attempts=1)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_tool_call_arrives_whole(wire: str, judge: Judge) -> None:
    arguments = {"word": "quine", "where": [1, {"deep": "\u00e9\u2028"}]}
    await judge.script({"type": "reply", "tool_calls": [{"name": "look_up", "arguments": arguments}]})
    events = await ask(judge, wire, WITH_TOOL)
    [call] = [event for event in events if isinstance(event, ToolCall)]
    assert (call.name, json.loads(bytes(call.input))) == ("look_up", arguments)
    assert isinstance(events[-1], Finished)
    assert events[-1].stop_reason == "tool_calls"
    await judge.assert_clean(attempts=1)


@pytest.mark.parametrize(
    "wire", [wire for wire in WIRES if wire != "gemini"]
)  # gemini's arguments are JSON by themselves
async def test_a_tool_call_with_broken_arguments_never_runs(wire: str, judge: Judge) -> None:
    await judge.script({"type": "tool_fault", "kind": "malformed_arguments"})
    events = await ask(judge, wire, WITH_TOOL)
    assert not any(isinstance(event, ToolCall) for event in events)
    assert isinstance(events[-1], Finished | Failed)
    assert events[-1].cut_tool_calls == ("look_up",)
    await judge.assert_clean(attempts=1)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_tool_call_that_the_stream_cuts_never_runs(wire: str, judge: Judge) -> None:
    call = {"name": "look_up", "arguments": {"word": "quine" * 40}}
    await judge.script(
        fault("truncate", 0 if wire == "gemini" else SHOWN_AFTER), {"type": "reply", "tool_calls": [call], "times": 2}
    )
    events = await ask(judge, wire, WITH_TOOL, retries=Retries(attempts=1))
    assert not any(isinstance(event, ToolCall) for event in events)
    assert failure_of(events).cut_tool_calls == (() if wire == "gemini" else ("look_up",))
    again = await ask(judge, wire, WITH_TOOL)
    assert [event.name for event in again if isinstance(event, ToolCall)] == ["look_up"]
    await judge.assert_clean(attempts=2)
