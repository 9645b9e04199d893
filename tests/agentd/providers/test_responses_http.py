"""The openai-responses wire through a real connection: what is sent where, and how answers and errors come back."""

from __future__ import annotations

import pytest

from agentd.messages import UserMessage
from agentd.providers.catalog import Choice, ProviderOverride, for_model, resolve
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, ModelRequest, Retry, StreamEvent, Text, UsageReported
from tests import wire_cases, wire_corpus
from tests.replay_server import Request, Script, replay_server
from tests.responses_events import completed, failed, frame, text
from tests.wire_cases import assert_contract
from tracewriter.events import Usage

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
REQUEST = ModelRequest("gpt-5.4", "be brief", (UserMessage("hi"),))
HELLO = text("Hel") + text("lo") + completed(usage={"input_tokens": 3, "output_tokens": 2})
ANSWER: list[StreamEvent] = [Text("Hel"), Text("lo"), UsageReported(Usage(3, 2)), Finished("stop", "completed")]
FAST = Timeouts(connect_s=2, first_byte_s=5, stall_s=5, total_s=10, settle_s=1, error_body_s=1)


def choice_at(base_url: str) -> Choice:
    found = resolve(
        "openai/gpt-5.4",
        env={"OPENAI_API_KEY": KEY},
        overrides={"openai": ProviderOverride(base_url=base_url, wire="openai-responses")},
    )
    assert isinstance(found, Choice)
    return found


async def no_sleep(seconds: float) -> None:
    assert seconds >= 0


async def ask(*scripts: Script, attempts: int = 1) -> tuple[list[StreamEvent], list[Request]]:
    async with replay_server(list(scripts)) as server:
        choice = choice_at(server.base_url)
        provider = HttpProvider(choice, env={}, timeouts=FAST, retries=Retries(attempts=attempts), sleep=no_sleep)
        try:
            return [event async for event in provider.stream(REQUEST)], server.requests
        finally:
            await provider.aclose()


async def test_an_answer_arrives_and_the_request_is_what_the_wire_wants() -> None:
    events, [request] = await ask(Script.of_sse(HELLO, chunk_bytes=7))
    assert events == ANSWER
    assert (request.method, request.target) == ("POST", "/v1/responses")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json()["store"] is False
    assert KEY.encode() not in request.body + request.target.encode()


@pytest.mark.parametrize(
    ("model", "wire"),
    [
        ("openai/gpt-5.4", "openai-chat"), ("openai/gpt-5-codex", "openai-responses"), ("codex-mini-latest", "openai-responses"),
        ("openai/o3-pro-2025-06-10", "openai-responses"), ("openai/gpt-5.2-pro", "openai-responses"), ("openai/o3", "openai-chat"),
        ("o4-mini-deep-research", "openai-responses"), ("openrouter/openai/gpt-5-codex", "openai-chat"),
    ],
)  # fmt: skip
def test_models_that_are_on_this_wire_only_are_asked_on_it(model: str, wire: str) -> None:
    found = resolve(model, env={"OPENAI_API_KEY": KEY, "OPENROUTER_API_KEY": KEY})
    assert isinstance(found, Choice)
    assert found.spec.wire == wire
    assert for_model(found.spec, found.model) == found.spec


def test_the_configurations_wire_counts_for_all_models() -> None:
    for wire in ("openai-chat", "openai-responses"):
        for model in ("openai/gpt-5-codex", "openai/gpt-5.4"):
            overrides = {"openai": ProviderOverride(wire=wire)}
            found = resolve(model, env={"OPENAI_API_KEY": KEY}, overrides=overrides)
            assert isinstance(found, Choice)
            assert found.spec.wire == wire


async def test_an_error_in_the_stream_is_tried_again_while_nothing_was_shown() -> None:
    error = {"code": "server_error", "message": f"key {KEY} had trouble"}
    broken = frame("failed", response={"status": "failed", "error": error, "usage": {"input_tokens": 7}})
    events, requests = await ask(Script.of_sse(broken), Script.of_sse(HELLO), attempts=2)
    assert isinstance(events[0], Retry)
    assert KEY not in events[0].failure.message
    assert events[1:] == [*ANSWER[:2], UsageReported(Usage(10, 2)), ANSWER[-1]]
    assert len(requests) == 2


@pytest.mark.parametrize("name", wire_corpus.names("streams/openai-responses", ".expected.json"))
async def test_a_recorded_response_comes_through_a_real_connection_as_expected(name: str) -> None:
    body, expected = wire_corpus.stream("openai-responses", name)
    events, _ = await ask(Script.of_sse(body, chunk_bytes=4096))
    assert_contract(events)
    assert "".join(event.text for event in events if isinstance(event, Text)) == expected["text"]
    last = events[-1]
    assert isinstance(last, Finished | Failed)
    assert last.finish == expected["finish"]


@pytest.mark.parametrize("name", wire_corpus.faults("openai-responses"))
async def test_a_responses_fault_case_comes_through_a_real_connection_as_expected(name: str) -> None:
    fault = wire_corpus.fault(name)
    expected = fault["expected"]
    for split_bytes in (0, 23) if len(wire_cases.body_of(fault)) < 100_000 else (0,):
        events, _ = await ask(Script.of_fault(fault, split_bytes=split_bytes))
        assert "".join(event.text for event in events if isinstance(event, Text)) == expected["text"]
        last = events[-1]
        assert isinstance(last, Failed if expected["error"] else Finished)
        if isinstance(last, Failed):
            assert last.failure.kind == expected["error"]["kind"]
            assert expected["error"]["retryable"] in (None, last.retryable)
            assert [words for words in expected["error"]["must_contain"] if words not in last.failure.message] == []


@pytest.mark.parametrize("case", wire_corpus.http_errors("openai-responses"), ids=lambda case: str(case["name"]))
async def test_a_recorded_responses_error_body_gives_its_reason(case: dict[str, str]) -> None:
    script = Script.of_error(int(case["status"]), case["body"].encode(), case["content_type"])
    last = failed((await ask(script))[0])
    assert case["message_must_contain"] in last.failure.message
    assert last.failure.status == int(case["status"])
    assert last.failure.hint
    assert "\n" not in last.failure.message
