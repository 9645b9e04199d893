"""A session resumed while no recorder can be had: what it does is numbered after all that was recorded before, never over it."""

from __future__ import annotations

import os
import signal
import subprocess

from tests.e2e.harness import Home, Record, ended, of, records, wait_for
from tests.e2e.model import Answer, Asked, Model, call, stream, text, turns

NO_AUTOSTART = "[recorder]\nautostart = false\n"


def model() -> Model:
    return Model(turns(call("list_files"), text("done")))


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def finished(home: Home) -> int:
    return len(of("run.execute.finished", records(home.trace())))


def check(home: Home, before: list[Record], runs: int) -> None:
    """All that was recorded before is as it was, and all of the later runs follows it, each number once."""
    found = records(home.trace())
    assert found[: len(before)] == before
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    assert [end["outcome"] for end in of("run.execute.finished", found)] == ["completed"] * runs
    assert len(of("run.execute.started", found)) == runs
    assert len(of("tool.call.finished", found)) == runs
    assert len(of("model.request.finished", found)) == 2 * runs
    home.sound(home.trace())


def test_by_the_same_daemon(home: Home) -> None:
    home.root.mkdir()
    (home.root / "config.toml").write_text(NO_AUTOSTART)
    first = home.start_writer()
    with model() as served:
        home.ask(served.url, "one").ok()
        wait_for(lambda: finished(home) == 1, "the first run's record")
        stop(first)
        before = records(home.trace())
        asked = home.ask(served.url, "-c", "two").ok()
        assert "recording: degraded" in asked.err
        assert records(home.trace()) == before
        home.start_writer()
        wait_for(lambda: finished(home) == 2, "the rest of the record")
        check(home, before, 2)


def test_by_another_daemon(home: Home) -> None:
    with model() as served:
        home.ask(served.url, "one").ok()
        home.ctl("stop").ok()
        (pid,) = home.writers()
        os.kill(pid, signal.SIGTERM)
        assert ended(pid)
        before = records(home.trace())
        assert before[-1]["event"] == "session.record.finished"

        (home.root / "config.toml").write_text(NO_AUTOSTART)
        asked = home.ask(served.url, "-c", "two").ok()
        assert "recording: degraded" in asked.err
        assert "autostart is off" in home.ctl("status").ok().out
        assert records(home.trace()) == before
        home.start_writer()
        wait_for(lambda: finished(home) == 2, "the second run's record")
        check(home, before, 2)
        assert [data["change"] for data in of("session.lifecycle.observed", records(home.trace()))] == [
            "created",
            "resumed",
        ]


def test_after_both_were_killed(home: Home) -> None:
    def decide(asked: Asked) -> Answer:
        return stream(call("list_files") if asked.turn == 0 else text("done"))

    with Model(decide) as served:
        home.ask(served.url, "one").ok()
        wait_for(lambda: finished(home) == 1, "the first run's record")
        home.kill_daemon()
        home.kill_writer()
        before = records(home.trace())
        (home.root / "config.toml").write_text(NO_AUTOSTART)
        assert "recording: degraded" in home.ask(served.url, "-c", "two").ok().err
        home.start_writer()
        wait_for(lambda: finished(home) == 2, "the second run's record")
        check(home, before, 2)
        sent = served.asked[-1].body["messages"]
        assert [message["content"] for message in sent if message["role"] == "user"] == ["one", "two"]
