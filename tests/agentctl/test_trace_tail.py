"""agentctl trace tail over real files and as a process: what is shown, when it ends, how it goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.__main__ import run
from tests.agentctl import traces
from tests.agentctl.fake_daemon import SESSION, Screen

Env = dict[str, str]
LINES = [traces.opened(1), traces.started(2), *[traces.request(n, f"m{n}") for n in range(3, 20)], traces.finished(20)]


def tail(env: Env, *words: str, code: int = 0, cwd: str = "/") -> Screen:
    screen = Screen(env, cwd=cwd)
    assert run(["trace", "tail", *words], screen.world) == code, screen.err
    return screen


def shown(screen: Screen) -> list[int]:
    return [int(line[:6]) for line in screen.out.splitlines() if line[:6].strip().isdecimal()]


def test_it_begins_with_the_last_ten_or_as_many_as_asked_for(env: Env) -> None:
    traces.write_session(env, [*LINES, traces.closed(21)])
    assert shown(tail(env)) == list(range(12, 22))
    assert shown(tail(env, "last", "-n", "3")) == [19, 20, 21]
    assert shown(tail(env, SESSION, "-n", "0")) == []
    assert shown(tail(env, SESSION[:9], "--since", "0")) == list(range(1, 22))
    assert shown(tail(env, "--since", "18")) == [19, 20, 21]


def test_the_end_is_told(env: Env) -> None:
    traces.write_session(env, LINES)
    assert "end missing" in tail(env).out.splitlines()[-1]


def test_json_is_the_stored_lines_and_the_notes(env: Env) -> None:
    traces.write_session(env, LINES[:4])
    lines = tail(env, "--json").out.splitlines()
    assert lines[:4] == LINES[:4]
    assert json.loads(lines[4])["note"]["kind"] == "end_missing"


def test_damage_is_shown_in_its_place_and_is_exit_5(env: Env) -> None:
    traces.write_session(env, [*LINES[:3], "garbage", *LINES[4:6]])
    assert "damaged: segment 1" in tail(env, code=5).out


def test_following_a_recording_that_was_closed_ends_by_itself(env: Env) -> None:
    traces.write_session(env, [*LINES, traces.closed(21)])
    assert shown(tail(env, "-f", "-n", "2")) == [20, 21]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "x"], "is no cursor"),
        (["-n", "-1"], "--lines is a number"),
        (["-n", "x"], "--lines is a number"),
        (["-n", "1", "--since", "2"], "either --lines or --since"),
        (["nobody"], "no session 'nobody'"),
        (["./nowhere"], "there is no directory"),
    ],
)
def test_what_cannot_be_is_said(env: Env, words: list[str], said: str) -> None:
    traces.write_session(env, LINES)
    assert said in tail(env, *words, code=2).err


class Tail:
    """The command as a process, its lines as they come."""

    def __init__(self, env: Env, *words: str) -> None:
        command = [sys.executable, "-m", "agentctl", "trace", "tail", "-f", *words]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            command, env={**env, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=env["HOME"]
        )
        self._rest = b""
        self.lines: list[str] = []

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + 20
        while not any(text in line for line in self.lines):
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not come: {self.lines}"
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"it ended before {text!r}: {self.lines}"
                *whole, self._rest = (self._rest + data).split(b"\n")
                self.lines += [line.decode() for line in whole]

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=20)
        self.lines += (self._rest + out).decode().splitlines()
        return self.process.returncode, err.decode()


@pytest.fixture
def started(env: Env) -> Iterator[list[Tail]]:
    tails: list[Tail] = []
    yield tails
    for one in tails:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=20)


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("".join(line + end for line in lines))


def test_records_are_shown_as_they_come_until_the_recording_is_closed(env: Env, started: list[Tail]) -> None:
    directory = traces.write_session(env, LINES[:4])
    started.append(Tail(env, SESSION))
    started[0].wait_for("     4  ")
    append(directory / "000001.jsonl", LINES[4][:30], end="")
    append(directory / "000001.jsonl", LINES[4][30:], LINES[5])
    started[0].wait_for("     6  ")
    append(directory / "000001.jsonl", traces.closed(7))
    assert started[0].end()[0] == 0
    assert [line[:6].strip() for line in started[0].lines[1:]] == [str(n) for n in range(1, 8)]


def test_ctrl_c_is_130_and_says_how_to_go_on(env: Env, started: list[Tail]) -> None:
    directory = traces.write_session(env, LINES[:4])
    started.append(Tail(env))
    started[0].wait_for("     4  ")
    started[0].process.send_signal(signal.SIGINT)
    code, err = started[0].end()
    assert code == 130
    size = (directory / "000001.jsonl").stat().st_size
    assert f"go on with --since 1:{size}" in err
    append(directory / "000001.jsonl", LINES[4])
    assert shown(tail(env, "--since", f"1:{size}")) == [5]


def test_a_directory_may_appear_later_and_forever_outlasts_the_end(env: Env, started: list[Tail]) -> None:
    directory = Path(env["AGENTD_HOME"], "traces", "0a1b2c3d4e5f60718293a4b5", SESSION)
    started.append(Tail(env, str(directory), "--forever"))
    time.sleep(0.2)
    traces.write_session(env, [LINES[0], traces.closed(2)])
    started[0].wait_for("session.record.finished")
    append(directory / "000001.jsonl", traces.opened(3))
    started[0].wait_for("     3  ")
    assert started[0].process.poll() is None
