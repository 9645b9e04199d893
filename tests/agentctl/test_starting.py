"""Starting agentd: what it inherits, races, and what is said when it dies."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentctl import starting
from agentctl.errors import NoDaemon
from agentctl.starting import daemon_env, enabled_unit, log_file, open_daemon, start_agentd
from tests.agentctl.fake_daemon import FakeDaemon

Env = dict[str, str]


class Dead:
    """A daemon that died at once."""

    def exit_code(self) -> int | None:
        return 7

    def last_words(self) -> str:
        return "the state directory is not writable"

    def release(self) -> None:
        pass


class Alive(Dead):
    """One that runs."""

    released = False

    def exit_code(self) -> int | None:
        return None

    def release(self) -> None:
        self.released = True


def test_a_running_daemon_is_used(daemon: FakeDaemon, env: Env) -> None:
    def never(env: Mapping[str, str]) -> Dead:
        raise AssertionError("started a second one")

    connection, hello = open_daemon(env, never)
    connection.close()
    assert hello.agentd == "0.1.0"


def test_the_one_that_was_started_is_waited_for_and_let_go(env: Env) -> None:
    fakes: list[FakeDaemon] = []
    child = Alive()

    def start(env: Mapping[str, str]) -> Alive:
        fakes.append(FakeDaemon(dict(env)))
        return child

    connection, _ = open_daemon(env, start)
    connection.close()
    assert child.released
    with fakes[0]:
        pass


def test_losing_the_race_against_another_client_is_no_failure(env: Env) -> None:
    fakes: list[FakeDaemon] = []

    def start(env: Mapping[str, str]) -> Dead:
        timer = threading.Timer(0.2, lambda: fakes.append(FakeDaemon(dict(env))))
        timer.start()
        return Dead()

    connection, _ = open_daemon(env, start)
    connection.close()
    with fakes[0]:
        pass


class Failing(Dead):
    """Ends with a given code, saying why."""

    def __init__(self, code: int) -> None:
        self.code = code

    def exit_code(self) -> int | None:
        return self.code


@pytest.mark.parametrize(("code", "starts"), [(1, 1), (2, 1), (7, 1), (starting.ALREADY_RUNS, starting.MAX_STARTS)])
def test_only_a_daemon_that_met_another_one_is_started_again(env: Env, code: int, starts: int) -> None:
    started: list[Mapping[str, str]] = []

    def start(env: Mapping[str, str]) -> Dead:
        started.append(env)
        return Failing(code)

    with pytest.raises(NoDaemon, match=f"ended with exit code {code}: the state directory is not writable") as problem:
        open_daemon(env, start)
    assert log_file(env) in problem.value.hint
    assert len(started) == starts


def test_one_that_hangs_up_on_everybody_is_not_called_another_one(daemon: FakeDaemon, env: Env) -> None:
    daemon.turned_away = b""
    with pytest.raises(NoDaemon, match="closed the connection without a word") as problem:
        open_daemon(env, lambda env: Failing(starting.ALREADY_RUNS))
    assert "no room" in problem.value.hint


def test_what_belongs_to_one_shell_is_not_inherited(env: Env) -> None:
    personal = {
        "OPENAI_API_KEY": "k",
        "GITHUB_TOKEN": "k",
        "AWS_SECRET_ACCESS_KEY": "k",
        "DB_PASSWORD": "k",
        "HTTPS_PROXY": "http://u:p@h",
        "https_proxy": "http://u:p@h",
        "OPENAI_BASE_URL": "http://h",
        "MYAPIKEY": "k",
        "AGENTD_NO_TRACE": "1",
    }
    shared = {"XDG_RUNTIME_DIR": "/run/user/1", "LANG": "C.UTF-8", "PYTHONPATH": "/p", "KEYBOARD": "de"}
    assert daemon_env({**env, **personal, **shared}) == {**env, **shared}


def test_a_relative_home_stays_where_it_is(env: Env) -> None:
    assert daemon_env({"AGENTD_HOME": "here"}) == {"AGENTD_HOME": os.path.abspath("here")}


def test_a_unit_is_used_only_when_enabled_and_without_a_home_of_its_own(env: Env) -> None:
    wants = Path(env["HOME"], ".config/systemd/user/sockets.target.wants")
    wants.mkdir(parents=True)
    plain = {"HOME": env["HOME"]}
    assert enabled_unit(plain) == ""
    (wants / "agentd.socket").symlink_to("../agentd.socket")
    assert enabled_unit(plain) == "agentd.socket"
    assert enabled_unit(env) == ""
    assert enabled_unit({"HOME": "relative"}) == ""


def test_the_log_is_private_bounded_and_tells_only_of_this_start(env: Env) -> None:
    log = Path(log_file(env))
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier start\n" * 100_000, encoding="utf-8")
    child = start_agentd(env, "/bin/false")
    while child.exit_code() is None:
        time.sleep(0.001)
    assert child.exit_code() == 1
    assert child.last_words() == ""
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert log.stat().st_size == 0
    assert log.with_name("agentd.log.1").exists()


def test_a_directory_that_cannot_be_made_is_named(env: Env) -> None:
    home = Path(env["AGENTD_HOME"])
    home.write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(NoDaemon, match="cannot write to") as problem:
        start_agentd(env)
    assert "AGENTD_HOME" in problem.value.hint
