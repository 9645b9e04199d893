"""agentctl status and stop, with and without a daemon."""

from __future__ import annotations

import json
import os

import pytest

from agentctl.__main__ import run
from agentd.paths import agentd_socket, traces_dir
from tests.agentctl.fake_daemon import HELLO, FakeDaemon, Screen, refusal

Env = dict[str, str]


def test_status_says_what_runs_and_whether_it_records(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["daemon/status"]["recording"] = {"state": "degraded", "reason": "disk full", "root": "/traces"}
    screen = Screen(env)
    assert run(["status"], screen.world) == 0
    assert screen.out.splitlines() == [
        "agentd 0.1.0 runs, pid 7, for 12.5 s",
        "sessions: 1 open, 1 running, 0 prompts queued, 2 clients",
        "recording: degraded: disk full in /traces",
    ]


def test_status_without_a_daemon_starts_none(env: Env) -> None:
    screen = Screen(env)
    assert run(["status"], screen.world) == 3
    assert screen.out == "agentd is not running\n"
    assert not os.path.exists(env["AGENTD_HOME"])


def test_status_as_json(env: Env) -> None:
    screen = Screen(env)
    assert run(["status", "--json"], screen.world) == 3
    assert json.loads(screen.out) == {"up": False, "socket": agentd_socket(env), "traces": traces_dir(env)}
    with FakeDaemon(env):
        screen = Screen({**env, "AGENTD_NO_TRACE": "1"})
        assert run(["status", "--json"], screen.world) == 0
    found = json.loads(screen.out)
    assert found["up"] is True
    assert found["running"] == 1
    assert found["uptime_s"] == 12.5
    assert found["no_trace_here"] is True


def test_stop_waits_until_the_daemon_is_gone(daemon: FakeDaemon, env: Env) -> None:
    screen = Screen(env)
    assert run(["stop"], screen.world) == 0
    assert screen.out == f"agentd (pid {HELLO['pid']}) stopped\n"
    assert daemon.params("daemon/stop") == {"when_idle": False}


def test_stop_when_idle_returns_while_runs_go_on(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["daemon/stop"] = refusal("stopping", "already stopping")
    screen = Screen(env)
    assert run(["stop", "--when-idle"], screen.world) == 0
    assert "stops when its runs have ended" in screen.out


@pytest.mark.parametrize(
    ("words", "out"),
    [(["stop"], "agentd is not running\n"), (["stop", "--json"], '{"was_running":false,"stopped":true}\n')],
)
def test_stop_without_a_daemon_is_done(env: Env, words: list[str], out: str) -> None:
    screen = Screen(env)
    assert run(words, screen.world) == 0
    assert screen.out == out


def test_stop_as_json(daemon: FakeDaemon, env: Env) -> None:
    screen = Screen(env)
    assert run(["stop", "--json"], screen.world) == 0
    assert json.loads(screen.out) == {"was_running": True, "stopped": True}
