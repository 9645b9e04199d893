"""Clients come and go: several follow one session, one interrupts it, one stops reading; the run and its record go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

from agentctl import wire
from agentctl.connection import Connection
from tests.e2e.harness import Home, finish, of, records, wait_for
from tests.e2e.model import Answer, Asked, Model, call, sse, stream, text, turns

USAGE = sse({}, None) + b'data: {"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 3}}\n\n'


def shown(client: subprocess.Popen[str], characters: int) -> str:
    """The next so many characters of what it shows."""
    assert client.stdout is not None
    return client.stdout.read(characters)


def run_to_end(connection: Connection) -> tuple[list[dict[str, Any]], str]:
    """The records of one run, and its text as it streamed."""
    seen: list[dict[str, Any]] = []
    said = ""
    while not seen or seen[-1]["event"] != "run.execute.finished":
        notice = connection.next_notice(30.0)
        assert notice is not None, [record["event"] for record in seen]
        if isinstance(notice, wire.Event):
            seen.append(dict(notice.record))
        elif isinstance(notice, wire.Delta) and notice.kind == "text":
            assert notice.offset == len(said)
            said += notice.text
    return seen, said


def test_two_clients_follow_one_session(home: Home) -> None:
    def decide(asked: Asked) -> Answer:
        if asked.turn == 0:
            return stream(call("write_file", path="a.txt", content="a\n"))
        return stream(sse({"content": "one "}), sse({"content": "two "}), text("three"))

    with Model(decide) as model:
        home.ask(model.url, "-q", "-b", "warm up").ok()
        with home.connected() as first, home.connected() as second:
            session = first.call("session/create", {"cwd": str(home.workspace), "resume_last": True})["session"]
            where = {"session": session}
            for connection in (first, second):
                connection.call("session/subscribe", where)
            (home.workspace / "a.txt").unlink()
            second.call("session/prompt", {**where, "text": "go"})
            assert run_to_end(first) == run_to_end(second)
            first.call("session/prompt", {**where, "text": "again"})
            seen, said = run_to_end(second)
        assert said == "one two three"
        home.ctl("stop").ok()
    assert of("run.execute.finished", records(home.trace()))[-1] == seen[-1]["data"]
    home.sound(home.trace())


def test_a_client_that_comes_late_gets_the_whole_run(home: Home) -> None:
    hold = threading.Event()
    with Model(turns(call("list_files"), stream(text("half, ", finish=False), hold, text("whole")))) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "go")
        model.wait_held()
        session = home.trace().name
        with home.connected() as late:
            late.call("session/subscribe", {"session": session, "after": ""})
            hold.set()
            kinds = [record["event"] for record in run_to_end(late)[0]]
        finish(asking).ok()
    assert kinds[0] == "session.lifecycle.observed"
    recorded = [record["event"] for record in records(home.trace()) if record.get("run")]
    assert [kind for kind in kinds if kind in set(recorded)] == recorded


def test_ctrl_c_ends_the_run_as_cancelled_with_what_it_used(home: Home) -> None:
    with Model(turns(call("list_files"), stream(text("half", finish=False), USAGE, threading.Event()))) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "go")
        model.wait_held()
        assert shown(asking, 4) == "half"
        os.kill(asking.pid, signal.SIGINT)
        done = finish(asking)
        assert (done.code, done.out) == (130, "\n")
        assert "· cancelled ·" in done.err
        assert "Traceback" not in done.err
        found = records(home.trace())
        (end,) = of("run.execute.finished", found)
        assert end["outcome"] == "cancelled"
        assert end["usage"]["input_tokens"] == 100  # of the request that was answered; the other never told
        (failed,) = of("model.request.failed", found)
        assert failed["text"] == "half"


def test_a_second_ctrl_c_is_not_needed_and_the_session_goes_on(home: Home) -> None:
    def decide(asked: Asked) -> Answer:
        return stream(text("half", finish=False), threading.Event()) if asked.prompt == "go" else stream(text("fine"))

    with Model(decide) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "go")
        model.wait_held()
        assert shown(asking, 4) == "half"
        os.kill(asking.pid, signal.SIGINT)
        assert finish(asking).code == 130
        assert home.ask(model.url, "-c", "and now").ok().out == "fine\n"
        said = [(message["role"], message["content"]) for message in model.asked[-1].body["messages"][1:]]
        assert said == [("user", "go"), ("assistant", "half"), ("user", "and now")]
    assert [end["outcome"] for end in of("run.execute.finished", records(home.trace()))] == ["cancelled", "completed"]
    home.sound(home.trace())


def test_a_closed_pipe_does_not_end_the_run(home: Home) -> None:
    hold = threading.Event()
    many = b"".join(sse({"content": f"line {number}\n"}) for number in range(2_000))
    with Model(turns(stream(many, hold, call("write_file", path="late.txt", content="x\n")), text("end"))) as model:
        words = f"{sys.executable} -P -m agentctl ask --base-url {model.url} -m scripted -b go"
        piped = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"{words} | head -n 1"],
            env=home.env,
            cwd=home.workspace,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        model.wait_held()
        hold.set()
        out, err = piped.communicate(timeout=60)
        assert out == "line 0\n"
        assert "Traceback" not in err
        assert "BrokenPipe" not in err
        wait_for(lambda: bool(of("run.execute.finished", records(home.trace()))), "the run's end")
    (end,) = of("run.execute.finished", records(home.trace()))
    assert (end["outcome"], end["files"]) == ("completed", ["late.txt"])
    assert piped.returncode == 0


def test_a_client_that_is_killed_does_not_end_the_run(home: Home) -> None:
    hold = threading.Event()
    with Model(turns(stream(hold, call("write_file", path="late.txt", content="x\n")), text("end"))) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "-b", "go")
        model.wait_held()
        asking.kill()
        asking.wait(30)
        hold.set()
        wait_for(lambda: bool(of("run.execute.finished", records(home.trace()))), "the run's end")
    assert (home.workspace / "late.txt").read_text() == "x\n"
    assert of("run.execute.finished", records(home.trace()))[0]["outcome"] == "completed"


def test_stop_ends_a_run_as_cancelled_and_its_record_in_order(home: Home) -> None:
    with Model(turns(call("list_files"), stream(text("half", finish=False), threading.Event()))) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "go")
        model.wait_held()
        wait_for(lambda: len(of("model.request.started", records(home.trace()))) == 2, "the second request")
        assert "stopped" in home.ctl("stop").ok().out
        done = finish(asking)
        assert done.code == 1
        assert "Traceback" not in done.err
    assert home.daemons() == []
    found = records(home.trace())
    (end,) = of("run.execute.finished", found)
    assert (end["outcome"], end["usage"]["input_tokens"]) == ("cancelled", 100)
    assert found[-1]["event"] == "session.record.finished"
    verdict = home.sound(home.trace())
    assert verdict.emitted == verdict.records
    assert home.ctl("status").code == 3


def test_stop_when_idle_lets_the_run_end(home: Home) -> None:
    hold = threading.Event()
    with Model(turns(stream(text("half, ", finish=False), hold, text("whole")))) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "go")
        model.wait_held()
        assert "stops when its runs have ended" in home.ctl("stop", "--when-idle").ok().out
        refused = home.start("ask", "--base-url", model.url, "-m", "scripted", "later")
        hold.set()
        assert finish(asking).ok().out == "half, whole\n"
        assert finish(refused).ok().out == "half, whole\n"  # by the next daemon
    assert [of("run.execute.finished", records(path))[0]["outcome"] for path in home.traces()] == ["completed"] * 2


def test_stop_when_idle_of_an_idle_daemon_is_at_once(home: Home) -> None:
    with Model(turns(text("hi"))) as model:
        home.ask(model.url, "go").ok()
    stopped = home.ctl("stop", "--when-idle", "--json").ok().json()
    assert stopped == {"was_running": True, "stopped": True}
    assert home.daemons() == []
    assert records(home.trace())[-1]["event"] == "session.record.finished"
