"""Keys out of commands: no shell, bounded in time and size, kept for a while, shown nowhere."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentd.providers.catalog import Choice, KeyReaders, ProviderOverride, resolve
from agentd.providers.keys import KeyCommands, Secret, read_key_file, run_key_command
from tracewriter.events import Failure

KEY = "sk-command-0123456789"


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def refused(argv: tuple[str, ...], **more: float) -> Failure:
    found = run_key_command(argv, **more)  # type: ignore[arg-type]
    assert isinstance(found, Failure), found
    assert found.kind == "config"
    assert KEY not in found.message + found.hint
    assert (found.message + found.hint).isprintable()
    return found


def test_the_key_is_what_the_command_prints() -> None:
    assert run_key_command(python(f"print({KEY!r})")) == Secret(KEY)


def test_no_shell_looks_at_the_arguments() -> None:
    assert run_key_command((sys.executable, "-S", "-c", "import sys; print(sys.argv[1])", "$HOME;id")) == Secret(
        "$HOME;id"
    )


def test_no_other_key_is_in_the_commands_environment() -> None:
    env = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-other", "LC_ALL": "C", "HOME": "/h"}
    code = "import os; print(','.join(sorted(set(os.environ) & {'OPENAI_API_KEY', 'PATH', 'HOME', 'LC_ALL'})))"
    assert run_key_command(python(code), env) == Secret("HOME,LC_ALL,PATH")


def test_what_goes_wrong_is_one_line_without_the_output() -> None:
    assert "exit code 3" in refused(python(f"print({KEY!r}); raise SystemExit(3)")).message
    assert "holds no key" in refused(python("pass")).message
    assert "holds no key" in refused(python(f"print({KEY!r}); print('and more')")).message
    assert "far more than a key" in refused(python("print('x' * 100000)")).message
    assert "ended by signal 9" in refused(python("import os; os.kill(os.getpid(), 9)")).message
    assert "cannot be run" in refused(("/nonexistent/pass", "show")).message
    assert "cannot be run" in refused(("nul\0", "show")).message
    refused(())


def test_a_command_without_end_is_killed_with_all_that_it_started(tmp_path: pathlib.Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )
    assert "did not end within" in refused(python(code), timeout_s=2.0).message
    pid = int(pid_file.read_text())
    for _ in range(100):
        state = pathlib.Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the command's child lives on")


def test_one_that_prints_without_end_is_killed() -> None:
    assert "far more than a key" in refused(python("while True: print('x' * 1000)"), timeout_s=5.0).message


def test_one_that_goes_on_after_its_output_is_killed() -> None:
    code = f"import os, time; print({KEY!r}, flush=True); os.close(1); time.sleep(60)"
    assert "did not end within" in refused(python(code), timeout_s=1.0).message


def test_what_it_leaves_running_with_its_output_open_is_not_waited_for() -> None:
    child = "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])"
    code = f"import subprocess, sys; print({KEY!r}, flush=True); {child}"
    assert run_key_command(python(code), timeout_s=50.0) == Secret(KEY)


@pytest.mark.parametrize("framed", ["{}", "{}\n", "\ufeff{}\r\n", "\n\n{}\n\n"])
def test_a_file_and_a_command_may_frame_the_key_as_editors_do(framed: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(framed.format(KEY).encode())
    assert read_key_file(str(file)) == Secret(KEY)
    assert run_key_command((sys.executable, "-S", "-c", f"print(open({str(file)!r}).read(), end='')")) == Secret(KEY)


def test_a_file_too_long_for_a_key_is_refused_and_not_cut(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text("k" * 20_000)
    found = read_key_file(str(file))
    assert isinstance(found, Failure)
    assert "holds no key" in found.message


class Counting:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.now_s = 0.0
        self.fails = False

    def run(self, argv: tuple[str, ...]) -> Secret | Failure:
        self.asked.append(argv)
        return Failure("config", "no") if self.fails else Secret(f"k{len(self.asked)}")


def test_a_key_is_kept_for_a_while_and_a_failure_is_not() -> None:
    world = Counting()
    keys = KeyCommands(world.run, kept_s=10, monotonic=lambda: world.now_s)
    assert [keys(("a",)), keys(("a",)), keys(("b",))] == [Secret("k1"), Secret("k1"), Secret("k2")]
    world.now_s = 10.0
    assert keys(("a",)) == Secret("k3")
    world.now_s, world.fails = 30.0, True
    assert isinstance(keys(("a",)), Failure)
    world.fails = False
    assert keys(("a",)) == Secret("k5")


def test_who_asks_at_the_same_time_asks_the_command_once() -> None:
    world = Counting()

    def slow(argv: tuple[str, ...]) -> Secret | Failure:
        time.sleep(0.05)
        return world.run(argv)

    keys = KeyCommands(slow)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(keys, [("a",)] * 8)) == {Secret("k1")}


def test_a_provider_gets_its_key_from_its_command_unless_a_variable_that_is_named_has_one() -> None:
    argv = ("pass", "show", "mine")
    override = ProviderOverride(base_url="http://box:1/v1", key_command=argv)
    world = Counting()
    keys = KeyReaders(command=world.run)
    found = resolve("mine/m", env={}, overrides={"mine": override}, keys=keys)
    assert isinstance(found, Choice)
    assert (found.key, found.key_name, world.asked) == (Secret("k1"), "the output of `pass`", [argv])
    named = ProviderOverride(base_url="http://box:1/v1", key_env="MINE", key_command=argv)
    found = resolve("mine/m", env={"MINE": "from-env"}, overrides={"mine": named}, keys=keys)
    assert isinstance(found, Choice)
    assert (found.key, len(world.asked)) == (Secret("from-env"), 1)
    world.fails = True
    assert resolve("mine/m", env={}, overrides={"mine": override}, keys=keys) == Failure("config", "no")


@pytest.mark.parametrize("status", [401])
def test_the_hint_names_where_the_key_came_from(status: int) -> None:
    from agentd.providers.errors import hint_for

    assert "the key in the output of `pass` was not accepted" in hint_for(status, key_name="the output of `pass`")
