"""agentctl ask against a scripted daemon: what is sent, what is shown, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import agentctl
from agentctl import catalog
from agentctl.__main__ import run
from tests.agentctl import traces
from tests.agentctl.fake_daemon import (
    CLOSE,
    PROMPT,
    RUN,
    SESSION,
    WAIT_CANCEL,
    FakeDaemon,
    Json,
    Screen,
    delta,
    event,
    finished,
    refusal,
    replied,
    started,
)

Env = dict[str, str]


def tool(name: str, argument: str, op: str, *, is_error: bool = False, output: str = "") -> list[Json]:
    call: Json = {"id": op, "name": name, "input": {"path": argument}}
    result: Json = {"id": op, "name": name, "output": output, "is_error": is_error, "duration_ms": 12.0}
    return [event("tool.call.started", call, op=op), event("tool.call.finished", result, op=op)]


def test_text_goes_to_stdout_and_everything_else_to_stderr(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [
        started(),
        delta("Hel", 0),
        delta("lo", 3),
        replied("Hello"),
        *tool("read_file", "a.py", "t1"),
        *tool("edit_file", "a.py", "t2", is_error=True, output="no such text\nmore"),
        delta("Done.", 0, op="m2"),
        replied("Done.", "m2"),
        finished(tools=["read_file", "edit_file"]),
    ]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 0
    assert screen.out == "Hello\nDone.\n"
    lines = screen.err.splitlines()
    assert "✓ read_file a.py  12 ms" in lines
    assert "✗ edit_file a.py  12 ms  no such text" in lines
    assert "session 0199a1b2c3d47e5f · completed · 2 tool calls · 1,234 in / 56 out tokens · $0.0012 · 2.3 s" in lines
    assert lines[-1] == "record: agentctl trace summary 0199a1b2c3d47e5f"


def test_it_subscribes_before_it_prompts_and_flushes_at_the_end(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    assert run(["ask", "fix", "it", "-b", "-m", "openai/gpt-5"], Screen(env, cwd="/w").world) == 0
    wanted = ["initialize", "session/create", "session/subscribe", "session/prompt", "trace/flush"]
    assert daemon.methods() == wanted
    assert daemon.params("session/create") == {"cwd": "/w", "env": {}, "mode": "build", "model": "openai/gpt-5"}
    assert daemon.params("session/prompt") == {"session": SESSION, "text": "fix it"}


def test_only_the_variables_that_the_daemon_names_are_sent(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    env |= {"OPENAI_API_KEY": "sk-mine", "AWS_SECRET_ACCESS_KEY": "no", "OTHER": "no"}
    assert run(["ask", "hi"], Screen(env, cwd="/w").world) == 0
    assert daemon.params("session/create")["env"] == {"OPENAI_API_KEY": "sk-mine"}


def test_the_prompt_comes_from_stdin_for_a_dash(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    assert run(["ask", "-"], Screen(env, cwd="/w", stdin="line 1\nline 2\n").world) == 0
    assert daemon.params("session/prompt")["text"] == "line 1\nline 2\n"


@pytest.mark.parametrize("missed", [[], [delta("lo world", 3)], [delta("He", 0)], [delta("Hell", 0), delta("lo", 3)]])
def test_missed_and_repeated_deltas_are_made_good_by_the_finished_request(
    daemon: FakeDaemon, env: Env, missed: list[Json]
) -> None:
    daemon.script = [started(), *missed, replied("Hello world"), finished()]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 0
    assert screen.out == "Hello world\n"


def test_text_of_other_runs_and_of_summaries_is_not_the_answer(daemon: FakeDaemon, env: Env) -> None:
    other = "0199ffffc3d57e5f8a9b0c1d2e3f4a5b"
    daemon.script = [
        started("ffffffffffffffff", other),
        delta("not mine", 0, run=other),
        finished("failed", run=other),
        started(),
        event("model.request.started", {"purpose": "summary"}, op="s1"),
        replied("a summary", "s1"),
        replied("mine"),
        finished(),
    ]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 0
    assert screen.out == "mine\n"


def test_a_prompt_steered_into_another_run_ends_with_that_run(daemon: FakeDaemon, env: Env) -> None:
    consumed = event("prompt.queue.observed", {"change": "consumed", "prompt": PROMPT})
    daemon.script = [consumed, replied("ok"), finished()]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 0
    assert screen.out == "ok\n"


def test_a_prompt_cleared_from_the_queue_is_not_waited_for(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [event("prompt.queue.observed", {"change": "cleared", "prompt": PROMPT}, run="")]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 1
    assert "cancelled" in screen.err


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("completed", 0), ("failed", 1), ("limit", 1), ("cancelled", 1), ("interrupted", 1), ("loop", 1), ("refused", 4)],
)
def test_the_outcome_decides_the_exit_code(daemon: FakeDaemon, env: Env, outcome: str, code: int) -> None:
    daemon.script = [started(), finished(outcome)]
    assert run(["ask", "hi"], Screen(env, cwd="/w").world) == code


def test_an_error_is_said_once_with_its_hint(daemon: FakeDaemon, env: Env) -> None:
    error = {"kind": "auth", "message": "openai: the key is wrong (401)", "hint": "check OPENAI_API_KEY"}
    failed = event("model.request.failed", {"error": error, "text": "par", "reasoning": ""}, op="m1")
    daemon.script = [started(), delta("pa", 0), failed, finished("failed", errors=[error["message"]])]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "-q", "hi"], screen.world) == 1
    assert screen.out == "par\n"
    assert screen.err == "error: openai: the key is wrong (401)\n  check OPENAI_API_KEY\n"


def test_quiet_shows_the_answer_alone(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["session/create"] = {**daemon.replies["session/create"], "notes": ["chose gpt-5"]}
    daemon.script = [started(), *tool("read_file", "a", "t1"), replied("42"), finished()]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi", "--quiet"], screen.world) == 0
    assert (screen.out, screen.err) == ("42\n", "")


def test_notes_of_the_daemon_are_shown(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["session/create"] = {**daemon.replies["session/create"], "notes": ["recording off: AGENTD_NO_TRACE"]}
    daemon.script = [started(), finished()]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 0
    assert screen.err.splitlines()[0] == "recording off: AGENTD_NO_TRACE"


def test_json_gives_one_record_per_line_and_no_deltas(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), delta("x\x9b\u2028", 0), replied("x\x9b\u2028\ud800"), finished()]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi", "--json"], screen.world) == 0
    records = [json.loads(line) for line in screen.out.split("\n")[:-1]]
    assert [record["event"] for record in records] == [
        "run.execute.started",
        "model.request.finished",
        "run.execute.finished",
    ]
    assert records[1]["data"]["text"] == "x\x9b\u2028\ud800"
    assert screen.out.isascii()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"ok": True, "state": "ok", "reason": ""}, "record: agentctl trace summary"),
        ({"ok": False, "state": "degraded", "reason": "no space left"}, "recording: degraded: no space left"),
        ({"ok": True, "state": "off", "reason": "AGENTD_NO_TRACE"}, "not recorded: AGENTD_NO_TRACE"),
        ({"ok": False, "state": "ok", "reason": ""}, "recording: degraded: not everything is on disk yet"),
        (refusal("x", "no recorder"), "recording: unknown: no recorder"),
    ],
)
def test_the_last_line_says_whether_it_is_recorded(daemon: FakeDaemon, env: Env, answer: Json, words: str) -> None:
    daemon.replies["trace/flush"] = answer
    daemon.script = [started(), finished()]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 0
    assert words in screen.err.splitlines()[-1]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_cancels_and_waits_for_the_end_of_the_run(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), delta("half", 0), interrupt, WAIT_CANCEL, finished("cancelled")]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 130
    assert "session/cancel" in daemon.methods()
    assert screen.out == "half\n"
    assert "cancelled" in screen.err


def test_after_ctrl_c_the_usual_handler_is_back(daemon: FakeDaemon, env: Env) -> None:
    before = signal.getsignal(signal.SIGINT)
    daemon.script = [started(), finished()]
    run(["ask", "hi"], Screen(env, cwd="/w").world)
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_daemon_that_dies_in_the_run_is_named_with_what_to_do(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), delta("half", 0), CLOSE]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 1
    assert screen.out == "half\n"
    assert "agentd closed the connection before the run had ended" in screen.err
    assert "agentctl trace summary 0199a1b2c3d47e5f" in screen.err


def test_a_missed_end_is_asked_for(daemon: FakeDaemon, env: Env) -> None:
    lagged: Json = {
        "jsonrpc": "2.0",
        "method": "session/lagged",
        "params": {"session": SESSION, "from": "a:1", "to": "a:9"},
    }
    daemon.replies["session/list"] = {"sessions": [{"session": SESSION, "state": "idle", "queued": 0}]}
    daemon.script = [started(), lagged]
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 1
    assert "the run's end was not seen" in screen.err


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("no_key", 2),
        ("no_model", 2),
        ("unknown_provider", 2),
        ("bad_cwd", 2),
        ("no_session", 2),
        ("overloaded", 4),
        ("protocol", 3),
    ],
)
def test_a_refusal_is_one_line_a_hint_and_its_exit_code(daemon: FakeDaemon, env: Env, kind: str, code: int) -> None:
    daemon.replies["session/create"] = refusal(kind, "it cannot be", "do this")
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == code
    assert (screen.out, screen.err) == ("", "agentctl: it cannot be\ndo this\n")


def test_a_session_can_be_named_by_its_beginning(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["session/list"] = {"sessions": [{"session": SESSION}, {"session": "0199ffff" + SESSION[8:]}]}
    daemon.script = [started(), finished()]
    assert run(["ask", "more", "--session", "0199a"], Screen(env, cwd="/w").world) == 0
    assert daemon.params("session/create") == {"cwd": "/w", "env": {}, "session": SESSION, "mode": "plan"}
    screen = Screen(env, cwd="/w")
    assert run(["ask", "more", "--session", "0199"], screen.world) == 2
    assert "ambiguous" in screen.err
    assert SESSION in screen.err


OTHER = "0199ffff" + SESSION[8:]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("typed", [OTHER, OTHER.upper(), OTHER[:10]])
def test_a_session_that_cannot_go_on_is_told_from_one_that_never_was(
    daemon: FakeDaemon, env: Env, typed: str, recorded: bool
) -> None:
    daemon.replies["session/list"] = {"sessions": [{"session": SESSION}]}
    gone = refusal("unknown_session", "there is no such session", "`agentctl sessions list` shows them")
    daemon.replies["session/create"] = gone
    if recorded:
        traces.write_session(env, [traces.opened(1), traces.closed(2)], OTHER)
    screen = Screen(env, cwd="/w")
    assert run(["ask", "more", "--session", typed], screen.world) == 2
    problem, hint = screen.err.splitlines()
    if recorded:
        assert problem == f"agentctl: session {OTHER} is recorded, but its conversation is gone: it cannot go on"
        assert f"agentctl trace summary {OTHER[:16]}" in hint
    else:
        assert problem.lower() == f"agentctl: there is no session {typed!r}".lower()
        assert "agentctl trace ls" in hint


def test_every_command_that_a_text_names_exists() -> None:
    """Hints are typed as they stand."""
    known = {command.name for command in catalog.COMMANDS}
    groups = {name.split()[0] for name in known if " " in name}
    sources = [*Path(agentctl.__file__).parent.rglob("*.py"), Path(agentctl.__file__).parents[2] / "README.md"]
    for path in sources:
        for first, second in re.findall(r"agentctl ([a-z]+)(?: ([a-z]+))?", path.read_text(encoding="utf-8")):
            if path.suffix == ".py" and first in PROSE:
                continue
            assert first in known or f"{first} {second}" in known or (first in groups and not second), (path, first)


PROSE = {"import", "is", "starts"}


def test_continue_takes_the_newest_session_in_its_own_mode(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    assert run(["ask", "-c", "more"], Screen(env, cwd="/w").world) == 0
    assert daemon.params("session/create") == {"cwd": "/w", "env": {}, "resume_last": True, "mode": "plan"}


def test_a_relative_socket_is_the_callers(daemon: FakeDaemon, env: Env) -> None:
    daemon.script = [started(), finished()]
    assert run(["ask", "hi", "--uds", "m.sock", "--ephemeral"], Screen(env, cwd="/w").world) == 0
    wanted = {"cwd": "/w", "env": {}, "mode": "plan", "uds": "/w/m.sock", "ephemeral": True}
    assert daemon.params("session/create") == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ask"], "PROMPT|- is missing"),
        (["ask", "  "], "the prompt is empty"),
        (["ask", "-"], "the prompt is empty"),
        (["ask", "x", "-b", "--mode", "plan"], "exclude each other"),
        (["ask", "x", "-c", "--session", "y"], "exclude each other"),
        (["ask", "x", "-c", "--ephemeral"], "cannot be continued"),
        (["ask", "x", "--mode", "yolo"], "is one of plan, build, swe"),
    ],
)
def test_wrong_usage_never_reaches_the_daemon(daemon: FakeDaemon, env: Env, words: list[str], message: str) -> None:
    screen = Screen(env, cwd="/w")
    assert run(words, screen.world) == 2
    assert message in screen.err
    assert "--help" in screen.err
    assert daemon.requests == []


def test_a_directory_that_is_gone_is_said(daemon: FakeDaemon, env: Env) -> None:
    screen = Screen(env, cwd="")
    assert run(["ask", "x"], screen.world) == 2
    assert "no longer exists" in screen.err


def test_a_reader_that_goes_away_does_not_stop_the_run(daemon: FakeDaemon, env: Env) -> None:
    class Broken(Screen):
        def __init__(self, env: Env, gone: Callable[[str], int]) -> None:
            super().__init__(env, cwd="/w")
            self.stdout.write = gone  # type: ignore[method-assign]

    def gone(text: str) -> int:
        raise BrokenPipeError

    daemon.script = [started(), delta("Hello", 0), replied("Hello"), finished()]
    screen = Broken(env, gone)
    assert run(["ask", "hi"], screen.world) == 0
    assert screen.world.out.closed
    assert "completed" in screen.err


def test_a_run_id_is_not_mistaken_for_ours(daemon: FakeDaemon, env: Env) -> None:
    stray = event("run.execute.finished", {"outcome": "failed"}, run=RUN)
    daemon.script = [stray, started(), finished()]
    assert run(["ask", "hi"], Screen(env, cwd="/w").world) == 0
