"""agentctl models: who can be asked comes first, a missing key is named, an age is told, and the exit code says if there is any."""

from __future__ import annotations

import json

import pytest

from agentctl.__main__ import run
from agentctl.render import LiveRun, run_line
from agentctl.wire import Event, Fact, RequestFailed, Retry, RunFinished, notice
from tests.agentctl.fake_daemon import CREATED, FakeDaemon, Screen, event, finished, refusal, started

Env = dict[str, str]
Json = dict[str, object]


def row(provider: str, state: str = "ok", models: int = 0, **more: object) -> Json:
    listed = [{"model": f"m{at}", "context_tokens": 4096 if at == 0 else None} for at in range(models)]
    return {
        "provider": provider, "state": state, "local": False, "models": listed, "age_s": 0.0, "default": "", "reason": "",
        "hint": "", **more,
    }  # fmt: skip


def listed(daemon: FakeDaemon, env: Env, *words: str, rows: list[Json]) -> tuple[int, list[str]]:
    daemon.replies["model/list"] = {"providers": rows}
    screen = Screen(env)
    return run(["models", *words], screen.world), screen.out.splitlines()


def test_who_can_be_asked_comes_first_then_what_is_missing(daemon: FakeDaemon, env: Env) -> None:
    code, out = listed(
        daemon,
        env,
        rows=[
            row("anthropic", "no_key", reason="no key for anthropic: ANTHROPIC_API_KEY is not set"),
            row("lmstudio", "failed", reason="could not reach localhost:1234", hint="is the server running there?"),
            row("openai", models=2, age_s=120.0, default="m1"),
            row("ollama", models=1, local=True),
        ],
    )
    assert code == 0
    assert out == [
        "openai: 2 models, as of 2 min 00 s ago",
        "  openai/m1",
        "  openai/m0  4,096 tokens",
        "ollama: 1 model, local",
        "  ollama/m0  4,096 tokens",
        "lmstudio: could not reach localhost:1234 (is the server running there?)",
        "no key for anthropic: ANTHROPIC_API_KEY is not set",
    ]


@pytest.mark.parametrize(("words", "lines"), [((), 12), (("--all",), 31), (("openai",), 31)])
def test_long_lists_are_cut_unless_they_are_wanted(
    daemon: FakeDaemon, env: Env, words: tuple[str, ...], lines: int
) -> None:
    code, out = listed(daemon, env, *words, rows=[row("openai", models=30)])
    assert (code, len(out)) == (0, lines)
    assert ("more: agentctl models openai" in out[-1]) is not bool(words)


def test_only_named_variables_go_to_the_daemon(daemon: FakeDaemon, env: Env) -> None:
    listed(daemon, {**env, "OPENAI_API_KEY": "sk-1", "HOME_KEY": "no"}, "openai", "--refresh", rows=[row("openai")])
    assert daemon.requests[-1]["params"] == {"env": {"OPENAI_API_KEY": "sk-1"}, "refresh": True, "provider": "openai"}


def test_nobody_to_ask_is_said_with_what_to_do_and_exit_1(daemon: FakeDaemon, env: Env) -> None:
    rows = [
        row("openai", "no_key", reason="no key for openai: OPENAI_API_KEY is not set"),
        row("ollama", "failed", reason="x"),
    ]
    code, out = listed(daemon, env, rows=rows)
    assert code == 1
    assert "agentctl demo" in out[-1]
    assert "OPENAI_API_KEY is not set" in out[-2]


def test_json_is_the_answer_itself(daemon: FakeDaemon, env: Env) -> None:
    code, out = listed(daemon, env, "--json", rows=[row("openai", models=1)])
    assert code == 0
    assert json.loads("\n".join(out)) == {"providers": [row("openai", models=1)]}


def test_an_unknown_provider_is_a_usage_problem(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["model/list"] = refusal("unknown_provider", "no provider is called 'x'", "known: openai")
    screen = Screen(env)
    assert run(["models", "x"], screen.world) == 2
    assert "no provider is called 'x'" in screen.err


def test_names_of_models_cannot_attack_the_terminal(daemon: FakeDaemon, env: Env) -> None:
    hostile: Json = {"model": "a\x1b]52;c;x\x07\u202eb", "context_tokens": None}
    _, out = listed(daemon, env, rows=[row("open\x1bai", models=0) | {"models": [hostile]}])
    assert all(line.isprintable() for line in out)


@pytest.mark.parametrize(
    ("cost", "local", "said"),
    [(None, False, "cost unknown"), (0.0, True, "$0 (local model)"), (0.0, False, "$0 ·"), (0.25, True, "$0.2500 ·")],
)
def test_the_last_line_says_what_it_cost_and_why_nothing(cost: float | None, local: bool, said: str) -> None:
    assert said in run_line("0" * 32, RunFinished("completed", 1, 1, 0, cost, 0, (), (), 1.0), local=local)


def test_the_last_line_says_when_nobody_knows_what_was_used() -> None:
    record = {"event": "run.execute.finished", "data": {"outcome": "completed", "usage": None, "cost_usd": None}}
    said = notice({"method": "session/event", "params": {"session": "0" * 32, "cursor": "1:1", "record": record}})
    assert isinstance(said, Event)
    assert isinstance(said.fact, RunFinished)
    line = run_line("0" * 32, said.fact)
    assert "usage unknown" in line
    assert "0 in" not in line


def test_a_fallback_is_said_even_when_quiet(env: Env) -> None:
    for quiet in (False, True):
        screen = Screen(env)
        live = LiveRun(screen.world.out, quiet=quiet)
        live.event("1", RequestFailed("openai answered 503: busy", "later", ""))
        live.event("2", Retry(1, 0.0, "openai answered 503: busy", "groq/llama"))
        assert "openai answered 503: busy" in screen.err
        assert screen.err.rstrip().endswith("asking groq/llama instead")


def test_a_retry_names_the_other_model_of_a_fallback() -> None:
    data: Json = {"attempt": 1, "wait_ms": 0.0, "error": {"message": "busy"}}
    assert fact_of({**data, "provider": "groq", "model": "a/b"}) == Retry(1, 0.0, "busy", "groq/a/b")
    assert fact_of(data) == Retry(1, 0.0, "busy")


def fact_of(data: Json) -> Fact:
    found = notice(event("model.retry.observed", data))
    assert isinstance(found, Event)
    return found.fact


def test_fallbacks_go_to_the_daemon_in_their_order(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["session/create"] = {**CREATED, "local": True}
    daemon.script = [started(), finished(cost=0.0)]
    screen = Screen(env)
    run(["ask", "--fallback", "groq/a", "--fallback=ollama/b", "hi"], screen.world)
    assert "$0 (local model)" in screen.err
    created = next(request for request in daemon.requests if request["method"] == "session/create")
    params = created["params"]
    assert isinstance(params, dict)
    assert params["fallback"] == ["groq/a", "ollama/b"]
