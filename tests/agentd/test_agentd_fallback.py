"""Fallback models: asked only when nothing was shown and another may do better, told, charged, and given only what is theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from agentd.config import Config
from agentd.loop import Limits, run_loop
from agentd.plans import Chosen, choose
from agentd.providers.catalog import KeyReaders, ProviderOverride
from agentd.providers.fallback import Chain, Target, may_go_elsewhere
from agentd.providers.http import HttpProvider
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Opaque, Provider, Reasoning, Refusal, StreamEvent, Text, UsageReported
from agentd.run import Emitted, Price, Run, Setup
from agentd.tools.base import ToolContext
from agentd.tools.registry import run_tool
from agentd.tools.workspace import Workspace
from tests.agentd.daemon_fakes import (
    FakeClock,
    FakeTool,
    Hang,
    ScriptedProvider,
    call,
    cent_per_token,
    fake_ids,
    names,
    say,
    tool,
)
from tests.agentd.daemon_harness import MODEL, running
from tests.replay_server import Script, replay_server
from tests.wire_answers import ANSWERS, WIRES, choice_of, sse
from tracewriter.events import (
    Failure,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    ModelRetryObserved,
    RunExecuteFinished,
    RunExecuteStarted,
    Usage,
)

pytestmark = pytest.mark.anyio
DOWN: Final = Failed(Failure("provider", "one answered 503: overloaded", "later", 503), True)
NOTHING: Final[tuple[StreamEvent, ...]] = (UsageReported(None), DOWN)


def provider(name: str, *replies: Sequence[StreamEvent | Hang]) -> ScriptedProvider:
    return ScriptedProvider(*replies, name=name)


def run_of(
    tmp_path: Path,
    first: Provider,
    *others: Provider,
    tools: tuple[FakeTool, ...] = (),
    price: Price = cent_per_token,
) -> Run:
    fallbacks = tuple(Target(other, f"{other.name}-m") for other in others)
    context = ToolContext(Workspace(tmp_path), {})
    setup = Setup(
        "r" * 32, "p" * 16, "do it", "build", first, f"{first.name}-m", "be good", tools, context, fallbacks=fallbacks
    )
    clock = FakeClock()
    return Run(setup, clock=clock, ids=fake_ids(clock), price=price)


async def collect(run: Run) -> list[Emitted]:
    return [emitted async for emitted in run_loop(run, run_tool, Limits(25))]


def asked(events: Sequence[Emitted]) -> list[str]:
    """Which model each request went to."""
    return [f"{e.event.provider}/{e.event.model}" for e in events if isinstance(e.event, ModelRequestStarted)]


def end_of(events: Sequence[Emitted]) -> RunExecuteFinished:
    assert isinstance(events[-1].event, RunExecuteFinished)
    return events[-1].event


async def test_what_gives_nothing_is_asked_elsewhere_and_each_step_is_told(tmp_path: Path) -> None:
    one, two = provider("one", NOTHING), provider("two", say("hello"))
    events = await collect(run_of(tmp_path, one, two))
    assert names(events) == [
        "run.execute.started",
        "model.request.started",
        "model.request.failed",
        "model.retry.observed",
        "model.request.started",
        "model.stream.delta",
        "model.request.finished",
        "run.execute.finished",
    ]
    assert asked(events) == ["one/one-m", "two/two-m"]
    told = events[3].event
    assert told == ModelRetryObserved(1, 0.0, DOWN.failure, "two", "two-m")
    assert events[3].op == events[4].op != events[1].op  # one operation per request
    assert isinstance(events[0].event, RunExecuteStarted)
    assert events[0].event.provider == "one"
    assert end_of(events).outcome == "completed"
    assert end_of(events).errors == ("one answered 503: overloaded",)
    assert one.requests[0].messages == two.requests[0].messages
    assert two.requests[0].model == "two-m"
    first, second = (e.event.context for e in events if isinstance(e.event, ModelRequestStarted))
    assert (second.keep, second.messages, second.since) == (1, (), events[1].op)
    assert first.count == second.count


async def test_each_request_is_charged_to_the_model_that_answered(tmp_path: Path) -> None:
    charged: list[str] = []

    async def price(provider: str, model: str, usage: Usage) -> float | None:
        charged.append(f"{provider}/{model}")
        return {"one": 1.0, "two": 10.0}[provider]

    one = provider("one", say("", call("a")), (UsageReported(Usage(1, 0)), DOWN))
    two = provider("two", say("done"))
    run = run_of(tmp_path, one, two, tools=(tool("a"),), price=price)
    events = await collect(run)
    assert charged == ["one/one-m", "one/one-m", "two/two-m"]
    assert end_of(events).cost_usd == 12.0
    assert [e.event.cost_usd for e in events if isinstance(e.event, ModelRequestFinished)] == [1.0, 10.0]


async def test_a_later_request_falls_back_too_and_the_model_that_answered_stays(tmp_path: Path) -> None:
    one = provider("one", say("", call("a", '{"x":1}')), NOTHING)
    two = provider("two", say("", call("a", '{"x":2}', "c2")), say("done"))
    events = await collect(run_of(tmp_path, one, two, tools=(tool("a"),)))
    assert asked(events) == ["one/one-m", "one/one-m", "two/two-m", "two/two-m"]
    assert end_of(events).outcome == "completed"
    assert end_of(events).tools == ("a", "a")


@pytest.mark.parametrize(
    "begun",
    [Text("x"), Reasoning("x"), Refusal("x"), call("a"), Opaque(msgspec.Raw(b"{}"))],
    ids=lambda event: type(event).__name__,
)
async def test_never_once_anything_of_an_answer_came(tmp_path: Path, begun: StreamEvent) -> None:
    two = provider("two", say("no"))
    events = await collect(run_of(tmp_path, provider("one", (begun, *NOTHING)), two, tools=(tool("a"),)))
    assert two.requests == []
    assert end_of(events).outcome == "failed"


async def test_when_none_gives_anything_the_last_failure_ends_the_run(tmp_path: Path) -> None:
    others = [provider(name, NOTHING) for name in ("two", "three")]
    events = await collect(run_of(tmp_path, provider("one", NOTHING), *others))
    assert asked(events) == ["one/one-m", "two/two-m", "three/three-m"]
    assert names(events)[-2:] == ["model.request.failed", "run.execute.finished"]
    assert end_of(events).outcome == "failed"


async def test_without_fallbacks_nothing_changes(tmp_path: Path) -> None:
    events = await collect(run_of(tmp_path, provider("one", NOTHING)))
    assert "model.retry.observed" not in names(events)
    assert end_of(events).outcome == "failed"


async def test_a_run_that_is_cancelled_in_the_fallback_has_all_its_ends(tmp_path: Path) -> None:
    hang = Hang()
    run = run_of(tmp_path, provider("one", NOTHING), provider("two", (hang,)))
    events: list[Emitted] = []

    async def follow() -> None:
        async with aclosing(run_loop(run, run_tool, Limits(25))) as emitted:
            async for one in emitted:
                events.append(one)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await hang.reached.wait()
        task.cancel()
    events += run.close("cancelled")
    failed = [e.op for e in events if isinstance(e.event, ModelRequestFailed)]
    assert failed == [e.op for e in events if isinstance(e.event, ModelRequestStarted)]
    assert end_of(events).outcome == "cancelled"


@pytest.mark.parametrize(
    ("failed", "goes"),
    [
        (Failed(Failure("provider", "x", "", 503), True), True),
        (Failed(Failure("provider", "x", "", 429), True), True),
        (Failed(Failure("provider", "x", "", 401), False), True),
        (Failed(Failure("provider", "x", "", 402), False), True),
        (Failed(Failure("provider", "x", "", 403), False), True),
        (Failed(Failure("provider", "x", "", 404), False), True),
        (Failed(Failure("provider", "a answered 429: insufficient_quota", "", 429), False), True),
        (Failed(Failure("provider", "a answered 400: model not found", "", 400), False), True),
        (Failed(Failure("transport", "could not reach x", ""), False), True),
        (Failed(Failure("provider", "a answered 400: temperature", "", 400), False), False),
        (Failed(Failure("provider", "a answered 400: prompt is too long", "", 400), False), False),
        (Failed(Failure("provider", "a answered 413: too large", "", 413), False), False),
        (Failed(Failure("blocked", "the prompt was blocked", ""), False), False),
        (Failed(Failure("config", "no", ""), False), False),
    ],
)
def test_only_what_may_be_another_providers_matter_goes_elsewhere(failed: Failed, goes: bool) -> None:
    assert may_go_elsewhere(failed) is goes
    other = Target(provider("two"), "m")
    chain = Chain(Target(provider("one"), "m"), (other,))
    assert chain.advance(failed) is (other if goes else None)
    assert (chain.current is other) is goes
    assert chain.advance(failed) is None


# --- which fallbacks a session has

KEYS: Final = {"OPENAI_API_KEY": "sk-openai", "GROQ_API_KEY": "gsk-groq"}


def chosen(names: tuple[str, ...], config: Config = Config(), env: dict[str, str] = KEYS) -> Chosen:  # noqa: B008
    found = choose("openai/gpt-5", ("", ""), names, env, config, KeyReaders())
    assert isinstance(found, Chosen)
    return found


def test_each_fallback_has_its_own_providers_key() -> None:
    found = chosen(("groq/llama-4", "mistral/m", "openai/gpt-5", "groq/llama-4", "ollama/qwen3"))
    assert [(one.spec.name, one.model, one.key.reveal() if one.key else "") for one in found.all] == [
        ("openai", "gpt-5", "sk-openai"),
        ("groq", "llama-4", "gsk-groq"),
        ("ollama", "qwen3", ""),
    ]
    assert found.notes == ("the fallback mistral/m cannot be asked: no key for mistral: MISTRAL_API_KEY is not set",)


def test_the_address_given_for_the_model_is_not_its_fallbacks() -> None:
    found = choose("m", ("http://box:8000/v1", ""), ("groq/llama-4",), KEYS, Config(), KeyReaders())
    assert isinstance(found, Chosen)
    assert [one.base_url for one in found.all] == ["http://box:8000/v1", "https://api.groq.com/openai/v1"]
    assert found.choice.key is None


async def test_a_session_falls_back_as_configured_and_as_asked(tmp_path: Path) -> None:
    made: list[ScriptedProvider] = []
    replies = iter([say("from two"), NOTHING, say("from three"), NOTHING])

    def make() -> ScriptedProvider:  # the fallbacks' providers are made first
        made.append(ScriptedProvider(next(replies), name=f"p{len(made)}"))
        return made[-1]

    config = Config(fallback=("mine/two",), providers={"mine": ProviderOverride(base_url="http://box:1/v1")})
    async with running(tmp_path / "home", make, config) as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        assert (await client.ask(session, "hi"))["outcome"] == "completed"
        session = await client.create(tmp_path, fallback=["mine/three", "nobody/x"])
        assert (await client.ask(session, "hi"))["outcome"] == "completed"
        kept = await client.result("session/create", cwd=str(tmp_path), session=session)
        assert kept["notes"] == []
        assert await client.kind("session/create", cwd=str(tmp_path), fallback=["a/b"] * 9, **MODEL) == "config"
    assert [one.requests[0].model for one in made] == ["two", "m", "three", "m"]
    assert [one.closed for one in made] == [1] * 4


# --- another wire in the middle of a run

MARK: Final = "c2lnbmF0dXJlLW9m"
_FUNCTION: Final = {"name": "look", "arguments": '{"x":1}'}


def signed(wire: str) -> str:
    """What only this wire's provider understands: in base64, as they come."""
    return MARK + wire.encode().hex()


def calling(wire: str) -> bytes:
    """A turn of each wire that thinks, signs, and calls a tool."""
    sign = signed(wire)
    frames: dict[str, list[dict[str, Any]]] = {
        "openai-chat": [
            {"choices": [{"index": 0, "delta": {"reasoning": "hm", "reasoning_details": [
                {"type": "reasoning.encrypted", "data": sign, "id": "r1", "format": "x", "index": 0}]}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": _FUNCTION}]}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ],
        "openai-responses": [
            {"type": "response.created", "response": {"id": "r", "model": "m-1", "status": "in_progress", "output": []}},
            *_item(0, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sign}),
            *_item(1, {"type": "function_call", "id": "fc_1", "call_id": "c1", "status": "completed", **_FUNCTION}),
            {"type": "response.completed", "response": {"id": "r", "model": "m-1", "status": "completed", "output": [],
                                                        "usage": {"input_tokens": 1, "output_tokens": 1}}},
        ],
        "anthropic": [
            {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 3}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": sign}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {
                "type": "tool_use", "id": "c1", "name": "look", "input": {}}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"x":1}'}},
            {"type": "content_block_stop", "index": 1},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ],
        "gemini": [
            {"candidates": [{"index": 0, "content": {"role": "model", "parts": [
                {"text": "hm", "thought": True},
                {"functionCall": {"name": "look", "args": {"x": 1}}, "thoughtSignature": sign}]}, "finishReason": "STOP"}],
             "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2}},
        ],
    }  # fmt: skip
    done = b"data: [DONE]\n\n" if wire == "openai-chat" else b""
    return sse(*frames[wire], named=wire in ("anthropic", "openai-responses")) + done


def _item(at: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "response.output_item.added", "output_index": at, "item": item},
        {"type": "response.output_item.done", "output_index": at, "item": item},
    ]


async def bodies_of_a_switch(tmp_path: Path, first: str, second: str) -> tuple[list[bytes], list[bytes], list[Emitted]]:
    """A run that begins on one wire, is refused there at its second request, and ends on the other: the bodies sent to each."""
    async with (
        replay_server([Script.of_sse(calling(first)), Script.of_error(503, b"{}")]) as one,
        replay_server([Script.of_sse(ANSWERS[second])]) as two,
    ):
        providers = [
            HttpProvider(choice_of(wire, server.base_url), env={}, retries=Retries(attempts=1))
            for wire, server in ((first, one), (second, two))
        ]
        try:
            run = run_of(tmp_path, *providers, tools=(tool("look", "seen"),))
            events = await collect(run)
        finally:
            for each in providers:
                await each.aclose()
        return [r.body for r in one.requests], [r.body for r in two.requests], events


@pytest.mark.parametrize("second", WIRES)
@pytest.mark.parametrize("first", WIRES)
async def test_what_only_one_wire_understands_is_never_sent_to_another(tmp_path: Path, first: str, second: str) -> None:
    to_first, to_second, events = await bodies_of_a_switch(tmp_path, first, second)
    assert end_of(events).outcome == "completed"
    assert asked(events) == ["there/there-m"] * 3
    again, other = to_first[1], to_second[0]
    assert signed(first).encode() in again  # its own provider gets it back
    assert (MARK.encode() in other) is (first == second)
    json.loads(other)
    for words in (b"do it", b"look", b"seen"):  # the conversation itself goes on
        assert words in other
