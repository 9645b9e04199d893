"""The anthropic decoder against recorded streams, fault cases and error bodies: whole, byte by byte and at any cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.messages import AssistantMessage, UserMessage
from agentd.providers.anthropic import AnthropicDecoder
from agentd.providers.anthropic_request import build_request
from agentd.providers.catalog import Choice, ProviderOverride, resolve
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.retries import Retries
from agentd.providers.stream import (
    Failed,
    Finished,
    ModelRequest,
    Opaque,
    Reasoning,
    Refusal,
    Retry,
    StreamEvent,
    Text,
    UsageReported,
)
from agentd.providers.summary import summarise
from tests import wire_corpus
from tests.anthropic_frames import assert_contract
from tests.replay_server import ReplayServer, Request, Script, Send, replay_server
from tracewriter.events import ToolCall

STREAMS = wire_corpus.names("streams/anthropic", ".expected.json")
FAULTS = wire_corpus.faults("anthropic")
ERRORS = [case["name"] for case in wire_corpus.http_errors("anthropic")] or ["corpus-absent"]
KEY = "sk-ant-test-0123456789abcdef"
KEYED = {"ANTHROPIC_API_KEY": KEY}
ONCE = Retries(attempts=1)
PLAIN = ProviderOverride()
FAST = Timeouts(connect_s=2, first_byte_s=5, stall_s=0.5, total_s=10, settle_s=1, error_body_s=1)


def decode(pieces: Iterable[bytes]) -> tuple[list[StreamEvent], dict[str, Any]]:
    ids = itertools.count()
    decoder = AnthropicDecoder(new_id=lambda: f"made_{next(ids)}")
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.end()
    assert decoder.feed(b"data: more\n\n") + decoder.end() == []
    return events, json.loads(msgspec.json.encode(summarise(events, decoder)))


def bytewise(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_gives_what_is_expected(name: str) -> None:
    body, expected = wire_corpus.stream("anthropic", name)
    events, whole = decode([body])
    assert wire_corpus.mismatches(expected, whole) == []
    assert_contract(events)
    assert decode(bytewise(body)) == (events, whole)


@given(st.data())
def test_a_recorded_stream_gives_the_same_events_at_any_cut(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream("anthropic", data.draw(st.sampled_from(STREAMS)))
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=60))
    assert decode(cut(body, places)) == decode([body])


@given(st.data())
def test_a_recorded_stream_that_is_cut_off_never_runs_a_call_it_did_not_finish(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, expected = wire_corpus.stream("anthropic", data.draw(st.sampled_from(STREAMS)))
    events, _ = decode([body[: data.draw(st.integers(0, len(body)))]])
    assert_contract(events)
    calls = [(call["name"], call["input"]) for call in expected["tool_calls"]]
    run = [(event.name, json.loads(bytes(event.input))) for event in events if isinstance(event, ToolCall)]
    assert run in ([], calls)


@given(st.data())
def test_a_damaged_stream_ends_in_order_and_never_raises(data: st.DataObject) -> None:
    wire_corpus.need_corpus()
    body, _ = wire_corpus.stream("anthropic", data.draw(st.sampled_from(STREAMS)))
    damaged = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=30)):
        damaged[place] = data.draw(st.integers(0, 255))
    assert_contract(decode([bytes(damaged)])[0])


@pytest.mark.parametrize("name", STREAMS)
def test_signed_thinking_of_a_recorded_answer_goes_back_unmodified_and_in_its_place(name: str) -> None:
    body, _ = wire_corpus.stream("anthropic", name)
    sent = thinking_in(body)
    events, summary = decode([body])
    if summary["error"] is not None:
        assert not [event for event in events if isinstance(event, Opaque)]
        return
    replayed = replay(events)
    assert [block for block in replayed if block["type"] in ("thinking", "redacted_thinking")] == sent
    assert "".join(block["text"] for block in replayed if block["type"] == "text").strip() == summary["text"].strip()
    assert not sent or replayed[0] == sent[0]


def thinking_in(body: bytes) -> list[dict[str, Any]]:
    """The thinking blocks of a body, put together by index, independently of the decoder."""
    found: dict[int, dict[str, Any]] = {}
    for line in body.decode().split("\n"):
        event = json.loads(line[5:]) if line.startswith("data:") else {}
        block, delta = event.get("content_block", {}), event.get("delta", {})
        if block.get("type") == "thinking":
            found[event["index"]] = {"type": "thinking", "thinking": block["thinking"], "signature": ""}
        elif block.get("type") == "redacted_thinking":
            found[event["index"]] = block
        if delta.get("type") in ("thinking_delta", "signature_delta"):
            key = delta["type"].removesuffix("_delta")
            found[event["index"]][key] += delta[key]
    return list(found.values())


def replay(events: list[StreamEvent]) -> list[dict[str, Any]]:
    """The answer as the next request sends it, without cache marks."""
    answer = AssistantMessage(
        "".join(event.text for event in events if isinstance(event, Text)),
        "".join(event.text for event in events if isinstance(event, Reasoning)),
        tuple(event for event in events if isinstance(event, ToolCall)),
        tuple(event.data for event in events if isinstance(event, Opaque)),
    )
    request = ModelRequest("claude-sonnet-4-6", "", (UserMessage("q"), answer, UserMessage("more")))
    turns = json.loads(build_request(request))["messages"]
    return [block for turn in turns if turn["role"] == "assistant" for block in turn["content"]]


async def ask_at(
    server: ReplayServer,
    *,
    base_url: str = "",
    env: Mapping[str, str] = KEYED,
    override: ProviderOverride = PLAIN,
    retries: Retries = ONCE,
    waited: list[float] | None = None,
) -> tuple[list[StreamEvent], list[Request]]:
    async def sleep(seconds: float) -> None:
        (waited if waited is not None else []).append(seconds)

    overrides = {"anthropic": msgspec.structs.replace(override, base_url=base_url or server.base_url)}
    choice = resolve("anthropic/claude-sonnet-4-6", env=env, overrides=overrides)
    assert isinstance(choice, Choice)
    provider = HttpProvider(choice, env={}, timeouts=FAST, retries=retries, sleep=sleep, uniform=lambda: 1.0)
    request = ModelRequest("claude-sonnet-4-6", "be brief", (UserMessage("hi"),))
    try:
        return [event async for event in provider.stream(request)], server.requests
    finally:
        await provider.aclose()


async def ask(
    script: Script, *, retries: Retries = ONCE, waited: list[float] | None = None
) -> tuple[list[StreamEvent], list[Request]]:
    async with replay_server([script]) as server:
        return await ask_at(server, retries=retries, waited=waited)


@pytest.mark.anyio
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("split_bytes", [0, 7])
async def test_a_fault_case_comes_through_a_real_connection_as_expected(name: str, split_bytes: int) -> None:
    fault = wire_corpus.fault(name)
    events, _ = await ask(Script.of_fault(fault, time_scale=0.01, split_bytes=split_bytes))
    assert_as_expected(fault, events)


def assert_as_expected(fault: dict[str, Any], events: list[StreamEvent]) -> None:
    expected = fault["expected"]
    assert_contract(events)
    texts = ["".join(event.text for event in events if isinstance(event, kind)) for kind in (Text, Reasoning)]
    assert texts == [expected["text"], expected["reasoning"]]
    run = [event for event in events if isinstance(event, ToolCall)]
    calls = [(event.id, event.name, json.loads(bytes(event.input))) for event in run]
    assert calls == [
        (call["id"], call["name"], call["input"]) for call in expected["tool_calls"] if "_raw" not in call["input"]
    ]
    assert {event.id for event in run}.isdisjoint(fault.get("must_not_execute", []))
    assert_usage(expected["usage"], events[-2])
    last = events[-1]
    assert isinstance(last, Finished | Failed)
    assert last.finish == expected["finish"]
    if expected["error"] is None:
        assert isinstance(last, Finished)
    else:
        assert isinstance(last, Failed)
        assert last.failure.kind == expected["error"]["kind"]
        assert [words for words in expected["error"]["must_contain"] if words not in last.failure.message] == []
        assert expected["error"]["retryable"] in (None, last.retryable)
    if "replay" in expected:
        assert replay(events) == expected["replay"]


def assert_usage(expected: dict[str, int] | None, reported: StreamEvent) -> None:
    assert isinstance(reported, UsageReported)
    usage = reported.usage
    assert (expected is None) == (usage is None)
    if expected is None or usage is None:
        return
    parts = [expected.get(name) or 0 for name in ("inputTokens", "cachedInputTokens", "cacheWriteTokens")]
    total = expected.get("inputTokensTotal", sum(parts))
    assert (usage.input_tokens, usage.output_tokens) == (total, expected["outputTokens"])
    assert (usage.cache_read_tokens or 0, usage.cache_write_tokens or 0) == tuple(parts[1:])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_case_is_decoded_the_same_at_every_cut(name: str) -> None:
    steps = Script.of_fault(wire_corpus.fault(name)).steps
    body = b"".join(step.data for step in steps if isinstance(step, Send))[:1500]
    whole = decode([body])
    assert decode(bytewise(body)) == whole
    for place in range(len(body)):
        assert decode([body[:place], body[place:]]) == whole


@pytest.mark.anyio
@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_body_is_one_line_with_its_reason(name: str) -> None:
    wire_corpus.need_corpus()
    [case] = [case for case in wire_corpus.http_errors("anthropic") if case["name"] == name]
    events, _ = await ask(Script.of_error(int(case["status"]), case["body"].encode(), case["content_type"]))
    last = events[-1]
    assert isinstance(last, Failed)
    assert case["message_must_contain"] in last.failure.message
    assert (last.failure.status, last.failure.kind, last.retryable) == (int(case["status"]), "provider", False)
    assert last.failure.hint
    assert_contract(events)


@pytest.mark.anyio
async def test_the_request_carries_the_key_and_the_version_in_headers_only() -> None:
    _, [request] = await ask(Script.of_sse(b""))
    assert (request.method, request.target) == ("POST", "/v1/messages")
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in request.headers
    assert KEY.encode() not in request.body
    assert request.json()["stream"] is True


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/gateway", "/gateway/v1", "/v1/messages"])
async def test_a_base_url_may_hold_the_version_or_not(path: str) -> None:
    async with replay_server([Script.of_sse(b"")]) as server:
        _, [request] = await ask_at(server, base_url=server.base_url.removesuffix("/v1") + path)
    assert request.target == ("/gateway" if "gateway" in path else "") + "/v1/messages"


@pytest.mark.anyio
async def test_a_server_that_wants_a_bearer_gets_one() -> None:
    for env, override in (
        ({"ANTHROPIC_AUTH_TOKEN": KEY}, ProviderOverride()),
        ({"ANTHROPIC_API_KEY": KEY}, ProviderOverride(bearer=True)),
    ):
        async with replay_server([Script.of_sse(b"")]) as server:
            _, [request] = await ask_at(server, env=env, override=override)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert "x-api-key" not in request.headers


@pytest.mark.anyio
async def test_an_overloaded_provider_is_asked_again_also_when_it_says_so_inside_a_stream() -> None:
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    body = json.dumps(said).encode()
    for script in (
        Script.of_error(529, body, retry_after="3"),
        Script.of_sse(b"event: error\ndata: " + body + b"\n\n"),
    ):
        waited: list[float] = []
        events, requests = await ask(script, retries=Retries(attempts=3), waited=waited)
        assert [type(event) for event in events] == [Retry, Retry, UsageReported, Failed]
        assert len(requests) == 3
        assert len(waited) == 2
        assert script.status == 200 or waited == [3.0, 3.0]


def test_a_refusals_explanation_reaches_the_user() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "blocked by policy"}
    stop = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": details}, "usage": {}}
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in (stop, {"type": "message_stop"}))
    assert decode([body])[0] == [
        Refusal("blocked by policy"), UsageReported(None), Finished("refusal", "refusal"),
    ]  # fmt: skip


def test_opaque_data_is_one_object_under_a_key_of_its_own() -> None:
    frames = [
        {"type": "message_start", "message": {"model": "claude-x"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking", "data": "AA"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]
    events, _ = decode([b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames)])
    content = [{"type": "redacted_thinking", "data": "AA"}, {"type": "text", "chars": 2}]
    [opaque] = [event.data for event in events if isinstance(event, Opaque)]
    assert json.loads(bytes(opaque)) == {"anthropic": {"model": "claude-x", "content": content}}
    assert isinstance(opaque, Raw)
