"""Words in, a command or one line about what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl import __version__, catalog
from agentctl.__main__ import run
from agentctl.arguments import parse
from agentctl.errors import UsageProblem
from tests.agentctl.fake_daemon import Screen

Env = dict[str, str]
ASK = catalog.find(["ask"])[0]


def test_options_may_stand_anywhere() -> None:
    for words in (
        ["-b", "x", "-m", "a/b"],
        ["x", "-bm", "a/b"],
        ["--build", "--model=a/b", "x"],
        ["-m", "a/b", "-b", "--", "x"],
    ):
        parsed = parse(ASK, words)
        assert parsed.operands == ("x",)
        assert parsed.has("build")
        assert parsed.value("model") == "a/b"


def test_after_two_dashes_all_are_operands() -> None:
    assert parse(ASK, ["--", "-b", "--help"]).operands == ("-b", "--help")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--nope"], "unknown option --nope"),
        (["x", "-z"], "unknown option -z"),
        (["x", "-bz"], "unknown option -z"),
        (["x", "--build=yes"], "--build takes no value"),
        (["x", "-m"], "-m needs a value (MODEL)"),
        (["x", "--mode", "fly"], "--mode is one of plan, build, swe, not 'fly'"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], message: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        parse(ASK, words)
    assert problem.value.message == f"ask: {message}"
    assert problem.value.hint == "see agentctl ask --help"


@given(st.lists(st.text(st.sampled_from("-=bcmqx "), max_size=6)))
def test_any_words_parse_or_are_refused(words: list[str]) -> None:
    try:
        parsed = parse(ASK, words)
    except UsageProblem:
        return
    assert parsed.wants_help or parsed.operands


@pytest.mark.parametrize("command", [command.name for command in catalog.COMMANDS])
def test_every_command_has_help(env: Env, command: str) -> None:
    screen = Screen(env)
    assert run([*command.split(), "--help"], screen.world) == 0
    assert screen.out.startswith(f"usage: agentctl {command}")
    assert "--help" in screen.out


def test_the_overview_names_every_command(env: Env) -> None:
    screen = Screen(env)
    assert run(["--help"], screen.world) == 0
    assert all(f"  {command.name} " in screen.out for command in catalog.COMMANDS)
    assert run([], screen.world) == 2
    screen = Screen(env)
    assert run(["trace", "--help"], screen.world) == 0
    assert "trace ls" in screen.out
    assert "demo" not in screen.out.split("agentctl COMMAND")[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["statsu"], "unknown command 'statsu' (did you mean 'status'?)"),
        (
            ["trace"],
            "trace: which one? trace ls, trace show, trace verify, trace summary, trace context, trace tail, trace record, "
            "trace status, trace prune, trace scrub, trace pin, trace unpin, trace undelete",
        ),
        (["trace", "shwo", "x"], "unknown command 'trace shwo' (did you mean 'trace show'?)"),
        (["status", "x"], "status: unexpected 'x'"),
        (["trace", "verify"], "trace verify: ID is missing (or --all)"),
        (["trace", "verify", "x", "--all"], "trace verify: either an ID or --all"),
        (["trace", "show"], "trace show: ID is missing"),
    ],
)
def test_wrong_words_are_one_line_and_the_way_to_the_help(env: Env, words: list[str], message: str) -> None:
    screen = Screen(env)
    assert run(words, screen.world) == 2
    first, second = screen.err.splitlines()
    assert first == f"agentctl: {message}"
    assert second.startswith("see agentctl ")
    assert second.endswith("--help")


def test_the_version_is_the_distributions(env: Env) -> None:
    assert __version__ == version("agentd-local")
    screen = Screen(env)
    assert run(["--version"], screen.world) == 0
    assert screen.out == f"agentctl {__version__}\n"


QUICK = """
import sys
import agentctl.__main__
import agentctl.commands.{0}
print(",".join(sorted({{"asyncio", "httpx", "msgspec", "argparse", "subprocess", "pathlib", "rich", "uvloop"}} & set(sys.modules))))
"""


@pytest.mark.parametrize("command", ["ask", "status", "stop"])
def test_quick_commands_import_nothing_heavy(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", SITE + QUICK.format(command)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


# -S keeps out what .pth files of other tools import (coverage, editable installs); the path is what it would have been.
SITE = f"import sys; sys.path[:] = {sys.path!r}\n"


def test_standard_streams_may_be_closed(env: Env) -> None:
    command = f"exec {sys.executable} -m agentctl --version <&- >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], env=env, check=False).returncode == 0


def test_a_closed_pipe_is_no_traceback(env: Env) -> None:
    command = f"{{ sleep 0.2; {sys.executable} -m agentctl --help; }} | true"
    done = subprocess.run(["/bin/sh", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_notes_that_nobody_reads_leave_the_exit_code_alone(env: Env) -> None:
    command = f"exec 3>&1; {{ sleep 0.2; {sys.executable} -m agentctl nonsense; echo $? >&3; }} 2>&1 | true"
    done = subprocess.run(["/bin/sh", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "2\n"


def test_a_terminal_that_knows_only_ascii_still_gets_the_text(env: Env) -> None:
    command = [sys.executable, "-m", "agentctl", "→"]
    done = subprocess.run(
        command, env={**env, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "\\u2192" in done.stderr
