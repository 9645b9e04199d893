"""The fake provider refuses what real ones refuse, and serves our own client on every wire."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from msgspec import Raw

from agentd.messages import AssistantMessage, ToolMessage, UserMessage
from agentd.providers.catalog import Choice, ProviderOverride, resolve
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.models import ModelInfo
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, ModelRequest, Text, ToolSpec, UsageReported
from agentd.providers.wires import WIRES
from tests.fake_provider_server import MODELS, FakeProvider
from tests.fake_provider_streams import Answer, Call
from tracewriter.events import ToolCall, Usage

KEY = "sk-fake-0123456789abcdef"
TOOL = ToolSpec("now", "The time.", Raw(b'{"type":"object","properties":{}}'))
CALL = ToolCall("call_1", "now", Raw(b"{}"))
HELLO = Answer(text="Hello", given=20, produced=10)
TALK = ModelRequest(
    "m-1",
    "be brief",
    (
        UserMessage("hi"),
        AssistantMessage("Let me see.", "", (CALL,)),
        ToolMessage("call_1", "now", "noon"),
        UserMessage("so?"),
    ),
    tools=(TOOL,),
)


def provider_at(fake: FakeProvider, wire: str, key: str = KEY) -> HttpProvider:
    override = ProviderOverride(base_url=fake.base_url(wire), wire=wire, key_env="FAKE_KEY")
    choice = resolve("fake/m-1", env={"FAKE_KEY": key}, overrides={"fake": override})
    assert isinstance(choice, Choice)
    return HttpProvider(choice, env={}, timeouts=Timeouts(total_s=30), retries=Retries(attempts=1))


@pytest.mark.anyio
@pytest.mark.parametrize("wire", WIRES)
async def test_our_client_is_served_with_a_conversation_in_which_tools_were_called(wire: str) -> None:
    with FakeProvider(HELLO, Answer(calls=(Call("c", "now", "{}"),), stop="tool_calls"), key=KEY) as fake:
        provider = provider_at(fake, wire)
        try:
            first = [event async for event in provider.stream(TALK)]
            second = [event async for event in provider.stream(TALK)]
            models = await provider.models()
        finally:
            await provider.aclose()
    assert "".join(event.text for event in first if isinstance(event, Text)) == "Hello"
    [usage] = [event.usage for event in first if isinstance(event, UsageReported)]
    assert isinstance(usage, Usage)
    assert (usage.input_tokens, usage.output_tokens) == (20, 10)
    assert isinstance(first[-1], Finished)
    assert [event.name for event in second if isinstance(event, ToolCall)] == ["now"]
    assert isinstance(models, tuple)
    assert all(isinstance(model, ModelInfo) for model in models)
    assert [model.id for model in models] == list(MODELS)


@pytest.mark.anyio
@pytest.mark.parametrize("wire", WIRES)
async def test_a_wrong_key_is_refused(wire: str) -> None:
    with FakeProvider(HELLO, key=KEY) as fake:
        provider = provider_at(fake, wire, "sk-wrong-0123456789")
        try:
            events = [event async for event in provider.stream(TALK)]
        finally:
            await provider.aclose()
    assert isinstance(events[-1], Failed)
    assert events[-1].failure.status == 401


def post(fake: FakeProvider, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(fake.url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


BEARER = {"authorization": f"Bearer {KEY}"}
CLAUDE = {**BEARER, "anthropic-version": "2026-10-21"}
HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m-1", "stream": True, "messages": HI}
MESSAGES = {**CHAT, "max_tokens": 9}
CONTENTS = {"contents": [{"parts": [{"text": "hi"}]}]}
STREAM = ":streamGenerateContent"
ASKED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/chat/completions", CHAT, BEARER, 200),
        ("/v1/chat/completions", CHAT, {}, 401),
        ("/v1/chat/completions", b"{", BEARER, 400),
        ("/v1/chat/completions", [], BEARER, 400),
        ("/v1/chat/completions", {**CHAT, "messages": []}, BEARER, 400),
        ("/v1/chat/completions", {**CHAT, "stream": False}, BEARER, 400),
        ("/v1/chat/completions", {**CHAT, "messages": [*HI, ASKED]}, BEARER, 400),
        ("/v1/responses", {"model": "m-1", "stream": True, "input": "hi"}, BEARER, 200),
        ("/v1/responses", {"model": "m-1", "stream": True}, BEARER, 400),
        ("/v1/responses", {"model": "m-1", "stream": True, "input": [{}]}, BEARER, 400),
        ("/v1/messages", MESSAGES, CLAUDE, 200),
        ("/v1/messages", MESSAGES, {"x-api-key": KEY, "anthropic-version": "2023-06-01"}, 200),
        ("/v1/messages", MESSAGES, {"anthropic-version": "2023-06-01"}, 401),
        ("/v1/messages", MESSAGES, BEARER, 400),
        ("/v1/messages", CHAT, CLAUDE, 400),
        ("/v1/messages", {**MESSAGES, "messages": [*HI, *HI]}, CLAUDE, 400),
        ("/v1/messages", {**MESSAGES, "messages": [{"role": "system", "content": "x"}]}, CLAUDE, 400),
        (f"/v1beta/models/m-1{STREAM}?alt=sse", CONTENTS, {"x-goog-api-key": KEY}, 200),
        (f"/v1/models/m-1{STREAM}?alt=sse", CONTENTS, {"x-goog-api-key": KEY}, 200),
        (f"/v1/models/m-1{STREAM}?alt=sse&key={KEY}", CONTENTS, {}, 200),
        (f"/v1/models/m-1{STREAM}?alt=sse", CONTENTS, BEARER, 401),
        (f"/v1/models/m-1{STREAM}", CONTENTS, {"x-goog-api-key": KEY}, 400),
        (f"/v1/models/m-1{STREAM}?alt=sse", {"contents": [{"role": "system"}]}, {"x-goog-api-key": KEY}, 400),
        (f"/v2/models/m-1{STREAM}?alt=sse", CONTENTS, {"x-goog-api-key": KEY}, 404),
    ],
)
def test_a_request_is_taken_or_refused_as_by_the_real_one(
    path: str, body: Any, headers: dict[str, str], status: int
) -> None:
    with FakeProvider(HELLO, key=KEY) as fake:
        got, text = post(fake, path, body, headers)
    assert got == status
    if status != 200:
        assert json.loads(text)["error"]["message"]


def test_usage_comes_only_when_it_was_asked_for() -> None:
    with FakeProvider(HELLO) as fake:
        assert b'"usage"' not in post(fake, "/v1/chat/completions", CHAT, BEARER)[1]
        asked = {**CHAT, "stream_options": {"include_usage": True}}
        assert b'"prompt_tokens":20' in post(fake, "/v1/chat/completions", asked, BEARER)[1]
