"""A daemon that is there and does not answer, or has no room: said soon, named with its process, never mistaken for none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentctl import processes
from agentctl.__main__ import run
from agentctl.world import Patience
from agentd.paths import agentd_socket, private_dir, runtime_dir
from tests.agentctl.fake_daemon import CLOSE, FakeDaemon, Screen, finished, started
from tests.agentctl.test_ask import interrupt

Env = dict[str, str]
SOON = Patience(slow_s=0.05, greet_s=0.2, call_s=0.2)
COMMANDS = (["status"], ["ask", "hi"], ["stop"], ["stop", "--when-idle"])
LISTEN = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(); s.accept(); input()"
NO_ROOM = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"256 clients are connected already",'
    b'"data":{"kind":"overloaded","hint":"close some"}}}\n'
)


@pytest.fixture
def stopped(env: Env) -> Iterator[int]:
    """A process that listens where the daemon would, and is stopped."""
    private_dir(runtime_dir(env))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LISTEN, agentd_socket(env)], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process.pid
        process.kill()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_stopped_daemon_is_named_with_what_lets_it_go_on(stopped: int, env: Env, words: list[str]) -> None:
    screen = Screen(env, cwd="/", patience=SOON)
    assert run(words, screen.world) == 3
    *notes, problem, hint = screen.err.splitlines()
    assert problem.startswith(f"agentctl: agentd (pid {stopped}) is stopped")
    assert f"`kill -CONT {stopped}`" in hint
    slow = f"agentd (pid {stopped}) has not answered for 0 s; waiting up to 0 s"
    assert notes == ([] if words == ["status"] else [slow])
    assert not os.path.exists(f"{runtime_dir(env)}/agentd.log")  # none was started beside it


def test_trace_status_goes_on_beside_a_stopped_daemon(stopped: int, env: Env) -> None:
    screen = Screen(env, patience=SOON)
    assert run(["trace", "status"], screen.world) == 3
    assert f"daemon: agentd (pid {stopped}) is stopped" in screen.out
    assert f"kill -CONT {stopped}" in screen.out
    assert "kept: 0 sessions" in screen.out


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["status"], "initialize"),
        (["status"], "daemon/status"),
        (["stop"], "daemon/stop"),
        (["ask", "hi"], "initialize"),
        (["ask", "hi"], "session/create"),
        (["ask", "hi"], "session/subscribe"),
        (["ask", "hi"], "session/prompt"),
    ],
)
def test_a_hanging_daemon_is_named_with_what_ends_it(
    daemon: FakeDaemon, env: Env, words: list[str], method: str
) -> None:
    daemon.silent = {method}
    screen = Screen(env, cwd="/w", patience=SOON)
    assert run(words, screen.world) == 3
    problem, hint = screen.err.splitlines()[-2:]
    assert problem.startswith(f"agentctl: agentd (pid {os.getpid()}) did not answer {method} in ")
    assert hint.startswith(f"`kill {os.getpid()}` ends it in order")


def test_a_daemon_that_does_not_cancel_is_named_too(daemon: FakeDaemon, env: Env) -> None:
    daemon.silent = {"session/cancel"}
    daemon.script = [started(), interrupt]
    screen = Screen(env, cwd="/w", patience=SOON)
    assert run(["ask", "hi"], screen.world) == 130
    assert f"agentctl: agentd (pid {os.getpid()}) did not answer session/cancel in 0 s" in screen.err
    assert f"`kill {os.getpid()}` ends it" in screen.err


@pytest.mark.parametrize("silent", [True, False])
def test_a_run_that_ended_has_ended_whatever_becomes_of_the_daemon(daemon: FakeDaemon, env: Env, silent: bool) -> None:
    daemon.silent = {"trace/flush"} if silent else set()
    daemon.script = [started(), finished(), *([] if silent else [CLOSE])]
    screen = Screen(env, cwd="/w", patience=SOON)
    assert run(["ask", "hi"], screen.world) == 0
    assert "completed" in screen.err
    assert silent == ("recording: unknown: agentd" in screen.err.splitlines()[-1] and "did not answer" in screen.err)


@pytest.mark.parametrize("words", COMMANDS)
def test_no_room_is_said_as_such(daemon: FakeDaemon, env: Env, words: list[str]) -> None:
    daemon.turned_away = NO_ROOM
    screen = Screen(env, cwd="/w")
    assert run(words, screen.world) == 4
    assert screen.err == "agentctl: agentd has no room: 256 clients are connected already\nclose some\n"


@pytest.mark.parametrize("words", [["status"], ["stop"]])
def test_one_that_hangs_up_without_a_word_is_named(daemon: FakeDaemon, env: Env, words: list[str]) -> None:
    daemon.turned_away = b""
    screen = Screen(env)
    assert run(words, screen.world) == 3
    problem, hint = screen.err.splitlines()
    assert problem == f"agentctl: agentd (pid {os.getpid()}) closed the connection without a word"
    assert "no room" in hint


def test_the_state_of_a_process_is_the_kernels() -> None:
    assert processes.state(os.getpid()) == "R"
    assert processes.state(2**22 + 1) == ""
    assert processes.silence(0, "did not answer") == ("agentd did not answer", "agentctl status")
