"""The gemini wire through a real connection: what is sent where, and how errors come back."""

from __future__ import annotations

import pytest

from agentd.messages import UserMessage
from agentd.providers.catalog import Choice, ProviderOverride, resolve
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, ModelRequest, Retry, StreamEvent, Text, UsageReported
from tests import wire_corpus
from tests.replay_server import Request, Script, replay_server
from tracewriter.events import Usage

pytestmark = pytest.mark.anyio

KEY = "AIzaSyTest0123456789abcdefghijklmnop"
REQUEST = ModelRequest("gemini-2.5-flash", "be brief", (UserMessage("hi"),))
HELLO = (
    b'data: {"candidates": [{"content": {"parts": [{"text": "Hel"}],"role": "model"}}]}\r\n\r\n'
    b'data: {"candidates": [{"content": {"parts": [{"text": "lo"}]},"finishReason": "STOP"}],'
    b'"usageMetadata": {"promptTokenCount": 3,"candidatesTokenCount": 2}}\r\n\r\n'
)
ANSWER: list[StreamEvent] = [Text("Hel"), Text("lo"), UsageReported(Usage(3, 2)), Finished("stop", "STOP")]
FAST = Timeouts(connect_s=2, first_byte_s=5, stall_s=5, total_s=10, settle_s=1, error_body_s=1)


def choice_at(base_url: str) -> Choice:
    found = resolve(
        "gemini/gemini-2.5-flash",
        env={"GEMINI_API_KEY": KEY},
        overrides={"gemini": ProviderOverride(base_url=base_url)},
    )
    assert isinstance(found, Choice)
    return found


async def no_sleep(seconds: float) -> None:
    assert seconds >= 0


async def ask(
    *scripts: Script, query: str = "", request: ModelRequest = REQUEST, attempts: int = 1
) -> tuple[list[StreamEvent], list[Request]]:
    async with replay_server(list(scripts)) as server:
        choice = choice_at(server.base_url + query)
        provider = HttpProvider(choice, env={}, timeouts=FAST, retries=Retries(attempts=attempts), sleep=no_sleep)
        try:
            return [event async for event in provider.stream(request)], server.requests
        finally:
            await provider.aclose()


def failure_of(events: list[StreamEvent]) -> Failed:
    assert isinstance(events[-1], Failed)
    return events[-1]


async def test_the_model_is_in_the_url_and_the_key_in_a_header_only() -> None:
    events, [request] = await ask(Script.of_sse(HELLO, chunk_bytes=7))
    assert events == ANSWER
    assert (request.method, request.target) == ("POST", "/v1/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
    assert request.headers["x-goog-api-key"] == KEY
    assert "authorization" not in request.headers
    assert KEY.encode() not in request.body + request.target.encode()
    assert request.json()["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


async def test_the_query_of_a_base_url_stays_and_each_request_goes_to_its_own_model() -> None:
    other = ModelRequest("models/gemini-3-pro-preview", "", (UserMessage("hi"),))
    _, [request] = await ask(Script.of_sse(HELLO), query="?v=1", request=other)
    assert request.target == "/v1/models/gemini-3-pro-preview:streamGenerateContent?v=1&alt=sse"


def test_the_public_address_is_the_version_that_takes_tools() -> None:
    found = resolve("gemini-2.5-pro", env={"GOOGLE_API_KEY": KEY})
    assert isinstance(found, Choice)
    assert (found.spec.wire, found.base_url, found.key_name) == (
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta",
        "GOOGLE_API_KEY",
    )


async def test_a_malformed_call_is_asked_for_again_while_nothing_was_shown() -> None:
    malformed = (
        b'data: {"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL"}],"usageMetadata":{"promptTokenCount":7}}\n\n'
    )
    events, requests = await ask(Script.of_sse(malformed), Script.of_sse(HELLO), attempts=2)
    assert isinstance(events[0], Retry)
    assert events[1:] == [*ANSWER[:2], UsageReported(Usage(10, 2)), ANSWER[-1]]
    assert len(requests) == 2


async def test_a_key_that_an_error_echoes_is_not_shown() -> None:
    body = f'{{"error":{{"code":403,"message":"Key {KEY} may not","status":"PERMISSION_DENIED"}}}}'.encode()
    failed = failure_of((await ask(Script.of_error(403, body)))[0])
    assert KEY not in failed.failure.message
    assert failed.failure.message.endswith("Key [redacted] may not")


@pytest.mark.parametrize("name", wire_corpus.faults("gemini"))
async def test_a_gemini_fault_case_comes_through_a_real_connection_as_expected(name: str) -> None:
    fault = wire_corpus.fault(name)
    expected = fault["expected"]
    for split_bytes in (0, 23):
        events, _ = await ask(Script.of_fault(fault, split_bytes=split_bytes))
        assert "".join(event.text for event in events if isinstance(event, Text)) == expected["text"]
        last = events[-1]
        assert isinstance(last, Failed if expected["error"] else Finished)
        if isinstance(last, Failed):
            assert last.failure.kind == expected["error"]["kind"]
            assert expected["error"]["retryable"] in (None, last.retryable)
            assert [words for words in expected["error"]["must_contain"] if words not in last.failure.message] == []


@pytest.mark.parametrize("case", wire_corpus.http_errors("gemini"), ids=lambda case: str(case["name"]))
async def test_a_recorded_gemini_error_body_gives_its_reason(case: dict[str, str]) -> None:
    script = Script.of_error(int(case["status"]), case["body"].encode(), case["content_type"])
    failed = failure_of((await ask(script))[0])
    assert case["message_must_contain"] in failed.failure.message
    assert failed.failure.status == int(case["status"])
    assert "\n" not in failed.failure.message
    assert failed.failure.hint


async def test_the_400_for_a_wrong_key_says_which_key() -> None:
    body = b'{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}'
    failed = failure_of((await ask(Script.of_error(400, body)))[0])
    assert "GEMINI_API_KEY was not accepted" in failed.failure.hint


async def test_a_rate_limit_that_speaks_of_quota_and_billing_is_a_rate_limit() -> None:
    said = "You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s."
    body = f'{{"error":{{"code":429,"message":"{said}","status":"RESOURCE_EXHAUSTED"}}}}'.encode()
    events, requests = await ask(Script.of_error(429, body), Script.of_sse(HELLO), attempts=2)
    assert isinstance(events[0], Retry)
    assert "rate limit" in events[0].failure.hint
    assert len(requests) == 2
