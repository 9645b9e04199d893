"""Real inference: llama.cpp with the 135M model, over every wire that it speaks. Left out, saying so, where it is not there."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from agentd.messages import AssistantMessage, ToolMessage, UserMessage
from agentd.prompts import system_prompt
from agentd.providers.catalog import Choice, ProviderSpec, resolve
from agentd.providers.local import LocalProvider, LocalServers, Unavailable
from agentd.providers.openai_chat_request import ChatQuirks
from agentd.providers.stream import Finished, ModelRequest, StreamEvent, Text, UsageReported
from agentd.providers.wires import WIRES
from agentd.tools.registry import tools_for
from tests.gguf_files import real_model
from tracewriter.events import ToolCall

pytestmark = pytest.mark.anyio
SPOKEN = ("openai-chat", "openai-responses", "anthropic")
# What a wire calls "you must call a tool".
FORCED: dict[str, object] = {"openai-chat": "required", "openai-responses": "required", "anthropic": {"type": "any"}}
TOOLS = tuple(tool.spec for tool in tools_for("plan"))


@pytest.fixture(scope="module")
def model() -> Path:
    return real_model()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what differs between the loops is tested with the stand-in; this takes seconds


@asynccontextmanager
async def served(home: Path) -> AsyncGenerator[LocalServers, None]:
    servers = LocalServers({"AGENTD_HOME": str(home), "PATH": os.environ["PATH"]})
    try:
        yield servers
    finally:
        await servers.aclose()


def provider(servers: LocalServers, model: Path, wire: str = "openai-chat") -> LocalProvider:
    choice = resolve(f"local/{model}", env={})
    assert isinstance(choice, Choice)
    return LocalProvider(msgspec.structs.replace(choice, spec=_spec(choice.spec, wire)), servers, env={})


def _spec(spec: ProviderSpec, wire: str) -> ProviderSpec:
    return msgspec.structs.replace(spec, wire=wire)


@asynccontextmanager
async def direct(servers: LocalServers, model: Path) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with (
        servers.use(str(model)) as server,
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=server.socket, limits=httpx.Limits(max_keepalive_connections=0)),
            base_url="http://localhost",
            timeout=300,
        ) as client,
    ):
        yield client


def asked(prompt: str, *, max_tokens: int = 48) -> ModelRequest:
    return ModelRequest("m", system_prompt("plan", "/w"), (UserMessage(prompt),), TOOLS, max_tokens)


@pytest.mark.parametrize("wire", SPOKEN)
async def test_it_speaks_on_every_wire_and_counts_what_it_used(tmp_path: Path, model: Path, wire: str) -> None:
    async with served(tmp_path) as servers:
        request = ModelRequest(str(model), "", (UserMessage("Say hello."),), max_tokens=12)
        events = [event async for event in provider(servers, model, wire).stream(request)]
    *said, usage, end = events
    assert "".join(event.text for event in said if isinstance(event, Text)).strip()
    assert isinstance(end, Finished), end
    assert end.stop_reason in ("stop", "length")
    assert isinstance(usage, UsageReported)
    assert usage.usage is not None
    assert usage.usage.input_tokens > 5
    assert 1 <= usage.usage.output_tokens <= 12


async def test_a_forced_call_is_a_whole_tool_call_on_every_wire(tmp_path: Path, model: Path) -> None:
    async with served(tmp_path) as servers, direct(servers, model) as client:
        for wire in SPOKEN:
            events = await forced(client, wire, asked("Read the file one.txt"))
            calls = [event for event in events if isinstance(event, ToolCall)]
            assert calls, (wire, events)
            assert calls[0].name in {tool.name for tool in TOOLS}
            assert isinstance(json.loads(bytes(calls[0].input)), dict)
            assert events[-1] == Finished("tool_calls", events[-1].finish), wire  # type: ignore[union-attr]


async def forced(client: httpx.AsyncClient, wire: str, request: ModelRequest) -> list[StreamEvent]:
    spoken = WIRES[wire]
    body: dict[str, Any] = json.loads(spoken.build(request, ChatQuirks()))
    path = spoken.path_for("m")
    answer = await client.post(
        path if path.startswith("/v1") else f"/v1{path}", json={**body, "tool_choice": FORCED[wire]}
    )
    assert answer.status_code == 200, answer.text
    decoder = spoken.decoder(ChatQuirks())
    return [*decoder.feed(answer.content), *decoder.end()]


async def test_the_template_shows_examples_of_the_tools_that_are_there_and_every_turn(
    tmp_path: Path, model: Path
) -> None:
    call = ToolCall("c1", "read_file", msgspec.Raw(b'{"path":"one.txt"}'))
    turns = (
        UserMessage("Read one.txt"),
        AssistantMessage("", "", (call,), ()),
        ToolMessage("c1", "read_file", "pineapple", False),
    )
    async with served(tmp_path) as servers, direct(servers, model) as client:
        whole = await rendered(client, ModelRequest("m", "Be brief.", turns, TOOLS))
        none = await rendered(client, ModelRequest("m", "Be brief.", (UserMessage("hi"),)))
        some = await rendered(client, ModelRequest("m", "", (UserMessage("hi"),), TOOLS[:1]))
    assert whole.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions.")
    called = '<tool_call>\n{"name": "read_file", "arguments": {"path":"one.txt"}}\n</tool_call><|im_end|>\n'
    assert whole.replace('"path": "one.txt"', '"path":"one.txt"').endswith(
        f"<|im_start|>user\nRead one.txt<|im_end|>\n<|im_start|>assistant\n{called}"
        "<|im_start|>user\n<tool_response>\npineapple\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert none == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    for name in ("read_file", "list_files", "search"):
        shown = f'<tool_call>\n{{"name": "{name}"'
        assert (shown in whole) is (name in {tool.name for tool in TOOLS})
        assert (shown in some) is (name == TOOLS[0].name)


async def rendered(client: httpx.AsyncClient, request: ModelRequest) -> str:
    body = json.loads(WIRES["openai-chat"].build(request, ChatQuirks()))
    answer = (await client.post("/apply-template", json=body)).json()
    assert "prompt" in answer, answer
    return str(answer["prompt"])


async def test_a_cancelled_stream_frees_its_slot(tmp_path: Path, model: Path) -> None:
    async with served(tmp_path) as servers:
        prompt = UserMessage("Write a long story about a river.")
        stream = provider(servers, model).stream(ModelRequest(str(model), "", (prompt,), max_tokens=500))
        async for event in stream:
            if isinstance(event, Text):
                break
        async with direct(servers, model) as client:
            assert await busy_slots(client) == 1
            await stream.aclose()
            async with asyncio.timeout(60):
                while await busy_slots(client):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            done = (await client.get("/metrics")).text.split("\nllamacpp:tokens_predicted_total ")[1].split("\n")[0]
            assert float(done) < 450  # it was stopped, and had not come to its end


async def busy_slots(client: httpx.AsyncClient) -> int:
    return sum(slot["is_processing"] for slot in (await client.get("/slots")).json())


async def test_a_cut_file_is_told_in_llama_cpps_words(tmp_path: Path, model: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with model.open("rb") as whole:
        cut.write_bytes(whole.read(8_000_000))
    async with served(tmp_path) as servers:
        with pytest.raises(Unavailable) as caught:
            async with servers.use(str(cut)):
                pass
    assert caught.value.failure.message.startswith("the local model did not start: ")
    assert "Traceback" not in caught.value.failure.message
    assert servers.running == 0
