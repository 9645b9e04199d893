"""SIGKILL or SIGSTOP tracewriter in the middle of a run: the run goes on, and its whole record is there in the end."""

from __future__ import annotations

import os
import signal
import threading

from tests.e2e.harness import Home, Record, finish, of, records, wait_for
from tests.e2e.model import Answer, Asked, Model, call, stream, text

TURNS = 8


def steps(holds: dict[int, threading.Event]) -> Model:
    """A model that writes a file each turn, and waits in some of them before it does."""

    def decide(asked: Asked) -> Answer:
        turn = asked.turn
        if turn == TURNS:
            return stream(text("all written"))
        wanted = call("write_file", path=f"{turn}.txt", content=f"{turn}\n" * 400)
        return stream(text(f"step {turn} ", finish=False), *([holds[turn]] if turn in holds else []), wanted)

    return Model(decide)


def check(home: Home, segments: int) -> None:
    """The one run is recorded from its first to its last event, once each, over so many segments."""
    path = home.trace()
    found = records(path)
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    assert len(of("tool.call.finished", found)) == TURNS
    assert len(of("model.request.finished", found)) == TURNS + 1
    (end,) = of("run.execute.finished", found)
    assert end["outcome"] == "completed"
    assert end["files"] == [f"{turn}.txt" for turn in range(TURNS)]
    assert sorted(file.name for file in home.workspace.iterdir()) == end["files"]
    assert home.sound(path).segments == segments


def recording(home: Home, known: list[Record]) -> None:
    """Wait until a recorder runs and has recorded more than is known."""
    wait_for(lambda: bool(home.writers()), "a recorder")
    wait_for(lambda: bool(home.traces()) and len(records(home.trace())) > len(known), "the recorder to record")


def test_the_run_goes_on_and_the_record_continues_in_a_new_segment(home: Home) -> None:
    holds = {turn: threading.Event() for turn in (2, 4, 6)}
    with steps(holds) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "-b", "go")
        killed = set[int]()
        known: list[Record] = []
        for hold in holds.values():
            model.wait_held()
            recording(home, known)
            path = home.trace()
            acknowledged = records(path)
            assert acknowledged[: len(known)] == known
            killed.add(home.kill_writer())
            known = records(path)
            assert known[: len(acknowledged)] == acknowledged
            hold.set()
        finish(asking).ok()
        wait_for(lambda: bool(of("run.execute.finished", records(home.trace()))), "the rest of the record")
        assert records(home.trace())[: len(known)] == known
        assert len(killed) == 3
        check(home, 4)


def test_a_recorder_that_hangs_holds_nothing_up(home: Home) -> None:
    hold = threading.Event()
    with steps({1: hold}) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "-b", "go")
        model.wait_held()
        (writer,) = home.writers()
        os.kill(writer, signal.SIGSTOP)
        hold.set()
        asked = finish(asking).ok()
        assert "recording: degraded" in asked.err
        assert len(list(home.workspace.iterdir())) == TURNS
        os.kill(writer, signal.SIGCONT)
        wait_for(lambda: bool(of("run.execute.finished", records(home.trace()))), "the rest of the record")
        assert home.writers() == [writer]
        check(home, 1)


def test_killed_while_it_hangs(home: Home) -> None:
    hold = threading.Event()
    with steps({1: hold}) as model:
        asking = home.start("ask", "--base-url", model.url, "-m", "scripted", "-b", "go")
        model.wait_held()
        (writer,) = home.writers()
        os.kill(writer, signal.SIGSTOP)
        hold.set()
        finish(asking).ok()
        home.kill_writer()
        wait_for(lambda: bool(of("run.execute.finished", records(home.trace()))), "the rest of the record")
        check(home, 2)
