"""Bytes that are no UTF-8, in every place where they can come in: one readable line that names the place, and nothing done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl import catalog
from agentctl.__main__ import run
from agentctl.errors import UsageProblem
from agentctl.undecodable import repaired, require_text
from tests.agentctl.fake_daemon import FakeDaemon, Screen, finished, started

Env = dict[str, str]
BAD = "a\udcffb"


@given(st.binary())
def test_any_bytes_become_text_that_can_be_sent(data: bytes) -> None:
    given = data.decode("utf-8", "surrogateescape")
    text, count = repaired(given)
    text.encode("utf-8")
    assert len(text) == len(given)
    assert (count == 0) == (text == given)
    if count:
        with pytest.raises(UsageProblem, match=r"^it holds bytes that are no UTF-8 text$"):
            require_text("it", given)
    else:
        require_text("it", given)


@pytest.mark.parametrize(
    ("words", "cwd", "named"),
    [
        (["ask", "hi"], f"/{BAD}", "the current directory's name"),
        (["ask", "hi", "-m", BAD], "/w", "ask: --model"),
        (["ask", "hi", "--base-url", f"http://{BAD}"], "/w", "ask: --base-url"),
        (["ask", "hi", "--uds", BAD], "/w", "ask: --uds"),
        (["ask", "hi", "--session", BAD], "/w", "ask: --session"),
    ],
)
def test_what_would_mean_something_else_is_refused_by_name(
    daemon: FakeDaemon, env: Env, words: list[str], cwd: str, named: str
) -> None:
    screen = Screen(env, cwd=cwd)
    assert run(words, screen.world) == 2
    assert screen.err.splitlines()[0] == f"agentctl: {named} holds bytes that are no UTF-8 text"
    assert daemon.requests == []


def test_a_key_is_refused_by_the_name_of_its_variable(daemon: FakeDaemon, env: Env) -> None:
    screen = Screen({**env, "OPENAI_API_KEY": "sk-secret" + BAD}, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 2
    assert screen.err.splitlines()[0] == "agentctl: OPENAI_API_KEY holds bytes that are no UTF-8 text"
    assert "secret" not in screen.err
    assert daemon.methods() == ["initialize"]


@pytest.mark.parametrize("words", [["ask", "x" + BAD], ["ask", "-"]])
def test_a_prompt_is_repaired_and_said_to_be(daemon: FakeDaemon, env: Env, words: list[str]) -> None:
    daemon.script = [started(), finished()]
    screen = Screen(env, cwd="/w", stdin="x" + BAD)
    assert run(words, screen.world) == 0
    assert daemon.params("session/prompt")["text"] == "xa\ufffdb"
    assert screen.err.splitlines()[0] == "the prompt is not all UTF-8: 1 byte replaced by U+FFFD"


EVERY = [[*command.name.split(), *(["x"] if command.operands else [])] for command in catalog.COMMANDS]


@pytest.mark.parametrize("words", EVERY)
@pytest.mark.parametrize("name", ["AGENTD_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"])
def test_no_command_does_anything_under_such_a_path(env: Env, words: list[str], name: str) -> None:
    del env["AGENTD_HOME"]
    home = env["HOME"]
    screen = Screen({**env, name: f"{home}/{BAD}"}, cwd=home)
    assert run(words, screen.world) == 2
    assert screen.err.splitlines()[0] == f"agentctl: {name} holds bytes that are no UTF-8 text"
    assert os.listdir(home) == []


def test_a_relative_home_under_such_a_directory_is_refused(env: Env) -> None:
    place = Path(env["HOME"], BAD)
    place.mkdir()
    command = [sys.executable, "-m", "agentctl", "status"]
    done = subprocess.run(command, env={**env, "AGENTD_HOME": "a"}, cwd=place, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"the current directory's name" in done.stderr
    assert b"Traceback" not in done.stderr


def test_variables_that_decide_nothing_may_hold_anything(env: Env) -> None:
    screen = Screen({**env, "XDG_STATE_HOME": f"/{BAD}", "HOME": f"/{BAD}", "OTHER": BAD})
    assert run(["status"], screen.world) == 3
    assert screen.out == "agentd is not running\n"
    assert run(["--version"], Screen({"HOME": f"/{BAD}"}).world) == 0


def test_bytes_on_standard_input_arrive_like_bytes_in_arguments(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    command = [sys.executable, "-m", "agentctl", "ask", "-"]
    done = subprocess.run(command, env=env, cwd="/", input=b"x\xff\xfe", capture_output=True, check=False)
    assert done.returncode == 0
    assert b"2 bytes replaced" in done.stderr
    assert daemon.params("session/prompt")["text"] == "x\ufffd\ufffd"


def test_a_trace_in_such_a_directory_is_read_and_its_path_is_json(env: Env) -> None:
    place = Path(env["HOME"], BAD)
    place.mkdir()
    (place / "000001.jsonl").touch()
    screen = Screen(env, cwd=env["HOME"])
    run(["trace", "verify", f"./{BAD}", "--json"], screen.world)
    assert json.loads(screen.out)["path"] == str(place)
    screen.out.encode()
