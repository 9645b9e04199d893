"""The demo says what happened, also when it is not what should have happened. (End to end: tests/e2e.)"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentctl.__main__ import run
from agentctl.commands.demo import command_as_typed
from tests.agentctl import traces
from tests.agentctl.fake_daemon import CREATED, FakeDaemon, Screen, finished, started

Env = dict[str, str]


def fix(daemon: FakeDaemon) -> None:
    """What the tools would have done."""
    stats = Path(str(daemon.params("session/create")["cwd"]), "stats.py")
    text = stats.read_text(encoding="utf-8")
    even = "    if len(ordered) % 2 == 0:\n        return (ordered[middle - 1] + ordered[middle]) / 2\n"
    last = "    return ordered[middle]\n"
    stats.write_text(text.replace(last, even + last), encoding="utf-8")


@pytest.fixture
def scripted(daemon: FakeDaemon, env: Env) -> FakeDaemon:
    path = traces.write_session(env, [traces.opened(1), traces.started(2), traces.finished(3), traces.closed(4)])
    daemon.replies["session/create"] = {**CREATED, "trace": str(path)}
    daemon.script = [started(), lambda: fix(daemon), finished()]
    return daemon


def test_a_fixed_bug_and_a_sound_record_end_with_0(scripted: FakeDaemon, env: Env) -> None:
    screen = Screen(env)
    assert run(["demo"], screen.world) == 0
    asked = scripted.params("session/create")
    assert (asked["model"], asked["mode"]) == ("demo/scripted", "build")
    out = screen.out
    for words in (
        "The model is scripted",
        "✗ test_stats.py",
        "✓ test_stats.py",
        "+    if len(ordered)",
        "outcome   completed",
        "intact",
        "OPENAI_API_KEY",
        "ollama",
    ):
        assert words in out
    assert str(traces_path(env)) in out
    assert not Path(str(asked["cwd"])).exists()


@pytest.mark.parametrize(
    ("on_path", "started_as", "typed"),
    [
        (True, "/x/.venv/bin/agentctl", "agentctl"),
        (False, "/x/.venv/bin/agentctl", "/x/.venv/bin/agentctl"),
        (False, ".venv/bin/agentctl", "/w/.venv/bin/agentctl"),
        (False, "/my venv/bin/agentctl", "'/my venv/bin/agentctl'"),
        (False, "/x/agentctl/__main__.py", f"{sys.executable} -m agentctl"),
    ],
)
def test_what_to_type_next_starts_this_program(env: Env, on_path: bool, started_as: str, typed: str) -> None:
    found = Path(env["HOME"], "bin", "agentctl")
    found.parent.mkdir()
    if on_path:
        found.touch(0o755)
    world = Screen(env | {"PATH": str(found.parent)}, cwd="/w").world
    assert command_as_typed(world._replace(started_as=started_as)) == typed


def traces_path(env: Env) -> Path:
    return next(Path(env["AGENTD_HOME"], "traces").glob("*/*"))


def test_a_bug_that_is_still_there_ends_with_1(scripted: FakeDaemon, env: Env) -> None:
    scripted.script = [started(), finished()]
    screen = Screen(env)
    assert run(["demo"], screen.world) == 1
    assert "The demo did NOT end as it should." in screen.out


def test_a_damaged_record_ends_with_1(scripted: FakeDaemon, env: Env) -> None:
    segment = traces_path(env) / "000001.jsonl"
    segment.write_text(segment.read_text(encoding="utf-8").replace('"seq":2', '"seq";2'), encoding="utf-8")
    screen = Screen(env)
    assert run(["demo"], screen.world) == 1
    assert "DAMAGED" in screen.out


def test_without_a_record_it_says_so(scripted: FakeDaemon, env: Env) -> None:
    scripted.replies["trace/flush"] = {"ok": True, "state": "off", "reason": "AGENTD_NO_TRACE is set"}
    screen = Screen(env)
    assert run(["demo"], screen.world) == 1
    assert "recording is off: AGENTD_NO_TRACE is set" in screen.out
