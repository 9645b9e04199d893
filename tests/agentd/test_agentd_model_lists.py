"""model/list: every provider that has a key or is local, at the same time, kept for an hour, each silence bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentd.config import Config
from agentd.errors import Refusal
from agentd.model_lists import KEPT_S, ModelLists
from agentd.protocol import encode_result
from agentd.protocol_lists import ModelList, ProviderModels
from agentd.providers.catalog import Choice, KeyReaders, ProviderOverride
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.models import MAX_MODELS, ModelInfo
from tests.agentd.daemon_fakes import FakeClock
from tests.agentd.daemon_harness import running
from tests.replay_server import Script, Sleep, replay_server
from tracewriter.events import Failure

pytestmark = pytest.mark.anyio
KEY = "sk-list-0123456789"


class FakeLister:
    """Says what it is told to; counts."""

    def __init__(self, world: World, choice: Choice) -> None:
        self._world, self._choice = world, choice

    async def models(self) -> tuple[ModelInfo, ...] | Failure:
        self._world.asked.append(self._choice)
        if len(self._world.asked) >= self._world.together:
            self._world.met.set()
        async with asyncio.timeout(10):
            await self._world.met.wait()
        if self._world.failing:
            return Failure("transport", "could not reach it", "start it")
        return self._world.found

    async def aclose(self) -> None:
        self._world.closed += 1


class World:
    def __init__(self, config: Config = Config()) -> None:  # noqa: B008 - frozen
        self.asked: list[Choice] = []
        self.found: tuple[ModelInfo, ...] = (ModelInfo("b"), ModelInfo("a", 4096))
        self.closed = 0
        self.together = 1  # nobody is answered before so many were asked
        self.met = asyncio.Event()
        self.failing = False
        self.clock = FakeClock()
        self.lists = ModelLists(config, self.clock, make_lister=self._make, keys=KeyReaders())

    def _make(self, choice: Choice, env: Mapping[str, str]) -> FakeLister:
        return FakeLister(self, choice)

    async def rows(
        self, provider: str | None = None, *, refresh: bool = False, **env: str
    ) -> dict[str, ProviderModels]:
        models = await self.lists.list(ModelList(provider, env, refresh))
        return {row.provider: row for row in models.providers}


async def test_who_has_a_key_or_is_local_is_asked_and_the_others_name_their_variable() -> None:
    world = World()
    world.together = 3
    rows = await world.rows(OPENAI_API_KEY=KEY)
    assert {name for name, row in rows.items() if row.state == "ok"} >= {"openai", "ollama", "lmstudio"}
    assert world.closed == len(world.asked)
    assert "ANTHROPIC_API_KEY" in rows["anthropic"].reason
    assert "MISTRAL_API_KEY" in rows["mistral"].reason
    others = "gemini groq deepseek xai together fireworks perplexity openrouter cerebras copilot"
    assert {row.state for name, row in rows.items() if name in others.split()} == {"no_key"}
    assert "demo" not in rows
    assert [model.model for model in rows["openai"].models] == ["b", "a"]
    assert rows["openai"].models[1].context_tokens == 4096
    assert rows["ollama"].local
    assert KEY not in repr(rows)


async def test_a_list_is_kept_for_an_hour_and_its_age_is_told() -> None:
    world = World()
    await world.rows("openai", OPENAI_API_KEY=KEY)
    world.clock.s += 90
    rows = await world.rows("openai", OPENAI_API_KEY=KEY)
    assert (rows["openai"].age_s, len(world.asked)) == (90.0, 1)
    await world.rows("openai", refresh=True, OPENAI_API_KEY=KEY)
    assert len(world.asked) == 2
    world.clock.s += KEPT_S
    assert (await world.rows("openai", OPENAI_API_KEY=KEY))["openai"].age_s == 0.0
    assert len(world.asked) == 3


async def test_another_key_or_place_is_another_list() -> None:
    world = World()
    await world.rows("openai", OPENAI_API_KEY=KEY)
    await world.rows("openai", OPENAI_API_KEY="sk-other-01234567")
    await world.rows("openai", OPENAI_API_KEY=KEY, OPENAI_BASE_URL="http://box:1/v1")
    assert len(world.asked) == 3


async def test_a_failure_is_told_and_not_kept() -> None:
    world = World()
    world.failing = True
    row = (await world.rows("ollama"))["ollama"]
    assert (row.state, row.reason, row.hint) == ("failed", "could not reach it", "start it")
    world.failing = False
    assert (await world.rows("ollama"))["ollama"].state == "ok"


async def test_one_that_is_not_known_is_refused_with_those_that_are() -> None:
    for name in ("opnai", "demo", "\x1b[31m"):
        with pytest.raises(Refusal) as caught:
            await World().rows(name)
        assert caught.value.kind == "unknown_provider"
        assert "openai" in caught.value.hint
        assert "\x1b" not in str(caught.value)


async def test_what_the_configuration_adds_is_there_and_aliases_work() -> None:
    world = World(Config(providers={"mine": ProviderOverride(uds="/run/m.sock"), "half": ProviderOverride()}))
    assert set(await world.rows("mine")) == {"mine"}
    assert world.asked[0].uds == "/run/m.sock"
    assert set(await world.rows("google", GEMINI_API_KEY=KEY)) == {"gemini"}
    assert "half" not in await world.rows()  # it has no address


async def test_the_longest_answer_fits_a_message() -> None:
    providers = {f"p{at}": ProviderOverride(base_url=f"http://box:{at + 1}/v1") for at in range(40)}
    world = World(Config(providers=providers))
    world.found = tuple(ModelInfo(f"{at:04}" + "x" * 124, 10**9) for at in range(MAX_MODELS))
    models = await world.lists.list(ModelList())
    assert len(encode_result(1, models)) < 6 * 1024 * 1024


async def test_only_variables_of_the_catalog_are_looked_at_and_none_is_shown() -> None:
    assert KEY not in repr(ModelList("openai", {"OPENAI_API_KEY": KEY}))


# --- over real connections

ANSWERS = {
    "openai-chat": (b'{"data":[{"id":"m"}]}', "/v1/models"),
    "openai-responses": (b'{"data":[{"id":"m"}]}', "/v1/models"),
    "anthropic": (b'{"data":[{"id":"m","type":"model"}]}', "/v1/models?limit=1000"),
    "gemini": (b'{"models":[{"name":"models/m"}]}', "/v1/models?pageSize=1000"),
}


def real(choice: Choice, env: Mapping[str, str]) -> HttpProvider:
    return HttpProvider(choice, env=env, timeouts=Timeouts(list_s=1.0))


@pytest.mark.parametrize("wire", ANSWERS)
async def test_each_wire_has_its_own_list(tmp_path: Path, wire: str) -> None:
    body, target = ANSWERS[wire]
    async with replay_server([Script.of_error(200, body)]) as server:
        config = Config(
            providers={"mine": ProviderOverride(base_url=server.base_url, wire=wire, key_env="OPENAI_API_KEY")}
        )
        async with running(tmp_path / "home", config=config, lister=real) as daemon:
            client = await daemon.connect()
            answer = await client.result("model/list", provider="mine", env={"OPENAI_API_KEY": KEY})
        (row,) = answer["providers"]
        assert (row["state"], row["models"]) == ("ok", [{"model": "m", "context_tokens": None}])
        (request,) = server.requests
        assert (request.method, request.target) == ("GET", target)
        assert KEY in "".join(request.headers.values())


async def test_ollama_has_a_list_of_its_own() -> None:
    async with replay_server([Script.of_error(200, b'{"models":[{"name":"qwen3:8b","model":"qwen3:8b"}]}')]) as server:
        lists = ModelLists(Config(), FakeClock(), make_lister=real, keys=KeyReaders())
        models = await lists.list(ModelList("ollama", {"OLLAMA_HOST": f"127.0.0.1:{server.port}"}))
        assert [model.model for model in models.providers[0].models] == ["qwen3:8b"]
        assert server.requests[0].target == "/api/tags"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script((Sleep(60),)), "no list of models within 1 s"),
        (Script.of_error(401, b'{"error":{"message":"bad ' + KEY.encode() + b'"}}'), "answered 401: bad [redacted]"),
        (Script.of_error(200, b"<html>login</html>", "text/html"), "in place of"),
        (Script.of_error(200, b'{"hello":1}'), "no list of models"),
        (Script(status=302, headers=(("location", "http://evil.example/x"),)), "a redirect to evil.example"),
    ],
)
async def test_what_gives_no_list_is_one_line_in_time(script: Script, said: str) -> None:
    async with replay_server([script]) as server:
        config = Config(providers={"mine": ProviderOverride(base_url=server.base_url, key_env="OPENAI_API_KEY")})
        lists = ModelLists(config, FakeClock(), make_lister=real, keys=KeyReaders())
        async with asyncio.timeout(10):
            (row,) = (await lists.list(ModelList("mine", {"OPENAI_API_KEY": KEY}))).providers
    assert row.state == "failed"
    assert said in row.reason
    assert KEY not in repr(row)
