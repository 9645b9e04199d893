"""--capture, and what status says of sessions that are not recorded."""

from __future__ import annotations

import pytest

from agentctl.__main__ import run
from tests.agentctl.fake_daemon import FakeDaemon, Screen, finished, started

Env = dict[str, str]


@pytest.mark.parametrize("mode", ["content", "metadata", "stream", "off"])
def test_ask_passes_the_capture_mode_on(daemon: FakeDaemon, env: Env, mode: str) -> None:
    daemon.script = [started(), finished()]
    assert run(["ask", "--capture", mode, "hi"], Screen(env).world) == 0
    assert daemon.params("session/create")["capture"] == mode


def test_ask_without_it_leaves_the_mode_to_the_session_and_the_configuration(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    assert run(["ask", "hi"], Screen(env).world) == 0
    assert "capture" not in daemon.params("session/create")


def test_an_unknown_mode_is_a_usage_error(env: Env) -> None:
    screen = Screen(env)
    assert run(["ask", "--capture", "all", "hi"], screen.world) == 2
    assert "content, metadata, stream, off" in screen.err


def test_status_counts_the_sessions_that_are_not_recorded(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["daemon/status"]["unrecorded"] = 2
    screen = Screen(env)
    assert run(["status"], screen.world) == 0
    assert screen.out.splitlines()[-1].endswith("; 2 open sessions not recorded")


def test_trace_status_names_them_with_the_reason(daemon: FakeDaemon, env: Env) -> None:
    off = {"session": "s1", "state": "off", "reason": "AGENTD_NO_TRACE is set\x1b", "emitted": 0, "recorded": 0}
    recording = {"state": "ok", "reason": "", "root": "/t"}
    rest = {"dropped": 0, "dropped_by": {}, "queued_bytes": 0}
    daemon.replies["trace/status"] = {"recording": recording, "sessions": [{**off, **rest}]}
    screen = Screen(env)
    run(["trace", "status"], screen.world)
    assert "  s1  not recorded: AGENTD_NO_TRACE is set␛" in screen.out.splitlines()
