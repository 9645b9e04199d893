"""Recording from plain threads: no gap, no wait, no event uncounted, whatever becomes of the writer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracewriter
from tests.strategies import any_value, nasty_events, nasty_text, realise
from tests.tracewriter.served import served
from tracewriter.events import (
    KINDS,
    Event,
    ModelRequestFailed,
    RunExecuteFinished,
    SessionRecordFinished,
    ToolCallFinished,
    ToolOutputDelta,
    TraceDropObserved,
    Usage,
)
from tracewriter.findings import Found
from tracewriter.reader import read, verify
from tracewriter.standing import TraceStatus
from tracewriter.thread_trace import RECORDERS, ThreadTrace
from tracewriter.threaded import ThreadSender
from tracewriter.tool import OffTrace

RESULT = ToolCallFinished("call", "read", "out", False, 1.0)
EXACT = "an-odd-looking-value-that-no-rule-knows"
ONE = {"GITHUB": "ghp_" + "A1b2" * 9}


@pytest.fixture
def sock(tmp_path: Path) -> Iterator[str]:
    """A writer that serves."""
    with served(tmp_path) as path:
        yield str(path)


def opened(sock: str, tmp_path: Path, **more: Any) -> ThreadTrace:
    trace = tracewriter.recording("my-tool", workspace=tmp_path, socket_path=sock, env={}, **more)
    assert isinstance(trace, ThreadTrace)
    return trace


def records(tmp_path: Path, session: str) -> list[dict[str, Any]]:
    (path,) = tmp_path.glob(f"traces/*/{session}")
    verdict = verify(path)
    assert not verdict.damaged, verdict.notes
    return [json.loads(item.line) for item in read(path) if isinstance(item, Found)]


def names(found: list[dict[str, Any]]) -> list[str]:
    return [record["event"] for record in found]


def test_typed_events_and_notes_are_recorded_in_order_and_the_recording_is_closed(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path) as trace:
        trace.note("step.started", {"any": [1, None]}, run="a" * 32, op="b" * 16)
        trace.record(RESULT, run="a" * 32)
        assert trace.flush() == TraceStatus("ok", "", 3, 3, 0)
    assert trace.status() == trace.close() == TraceStatus("ok", "", 4, 4, 0)
    found = records(tmp_path, trace.session)
    started, finished = "session.record.started", "session.record.finished"
    assert names(found) == [started, "my-tool.step.started", "tool.call.finished", finished]
    assert found[0]["data"]["agentd"] == "my-tool"
    assert found[1]["data"] == {"any": [1, None]}
    assert (found[1]["run"], found[1]["op"]) == ("a" * 32, "b" * 16)
    assert found[3]["data"]["emitted"] == 4
    assert found[3]["data"]["cost_usd"] is None


def test_many_threads_at_once_leave_no_gap_and_each_keeps_its_order(sock: str, tmp_path: Path) -> None:
    count, each = 8, 1500
    with opened(sock, tmp_path) as trace:

        def work(number: int) -> None:
            for at in range(each):
                trace.note("step.observed", {"thread": number, "at": at})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = trace.flush(20)
    assert status.emitted == status.recorded + status.dropped == count * each + 1
    found = records(tmp_path, trace.session)
    steps = [record["data"] for record in found if record["event"] == "my-tool.step.observed"]
    assert len(steps) + status.dropped == count * each
    for number in range(count):
        at = [step["at"] for step in steps if step["thread"] == number]
        assert at == sorted(set(at))


def test_a_program_without_a_writer_goes_on_and_what_waits_is_recorded_when_one_comes(tmp_path: Path) -> None:
    trace = opened(str(tmp_path / "w.sock"), tmp_path)
    for at in range(100):
        trace.note("step.observed", {"at": at})
    status = trace.flush(0.05)
    assert (status.state, status.recorded, status.dropped) == ("degraded", 0, 0)
    assert status.emitted >= 101
    assert status.reason.startswith("no writer: ")
    with served(tmp_path):
        assert trace.flush(20).state == "ok"
        assert trace.close(20).state == "ok"
    steps = [record["data"]["at"] for record in records(tmp_path, trace.session) if "at" in record["data"]]
    assert steps == list(range(100))


def test_closing_without_a_writer_ends_at_the_time_out_and_tells_what_is_not_recorded(tmp_path: Path) -> None:
    trace = opened(str(tmp_path / "w.sock"), tmp_path)
    trace.note("a.b")
    status = trace.close(0.05)
    assert status.state == "degraded"
    assert (status.recorded, status.reason.startswith("no writer: ")) == (0, True)
    trace.note("too.late")
    trace.record(RESULT)
    after = trace.status()
    assert after.emitted == status.emitted + 2
    assert after.dropped == status.dropped + 2


def test_a_killed_writer_is_followed_by_the_next_without_loss(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "tracewriter", "--socket", str(tmp_path / "w.sock"), "--root"]
    command.append(str(tmp_path / "traces"))
    trace = opened(str(tmp_path / "w.sock"), tmp_path)
    sent = 0
    for _ in range(3):
        writer = subprocess.Popen(command)
        try:
            for _ in range(50):
                trace.note("step.observed", {"at": sent})
                sent += 1
            assert trace.flush(30).state == "ok"
            trace.note("step.observed", {"at": sent})
            sent += 1
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
    with served(tmp_path):
        assert trace.close(30).state == "ok"
    found = records(tmp_path, trace.session)
    assert [r["data"]["at"] for r in found if r["event"] == "my-tool.step.observed"] == list(range(sent))


def test_what_does_not_fit_into_the_queue_is_a_drop_record_in_its_place(sock: str, tmp_path: Path) -> None:
    trace = opened(sock, tmp_path)
    trace.note("before.observed")
    assert trace.flush(10).state == "ok"
    for _ in range(7):
        trace.lose()  # what record() does when the queue is full
    trace.note("after.observed")
    status = trace.close(10)
    assert (status.state, status.dropped) == ("ok", 7)
    found = records(tmp_path, trace.session)
    assert names(found)[1:4] == ["my-tool.before.observed", "trace.drop.observed", "my-tool.after.observed"]
    assert found[2]["data"] == {"first": 3, "last": 9, "count": 7, "reason": "queue_full"}


def test_more_than_the_buffer_holds_is_counted_and_the_rest_is_recorded_in_order(tmp_path: Path) -> None:
    sender = ThreadSender(str(tmp_path / "w.sock"), buffer_bytes=200_000)
    trace = sender.open("s", str(tmp_path), tool="my-tool")
    for at in range(400):
        trace.note("step.observed", {"at": at, "text": "x" * 2000})
        if at % 100 == 0:
            trace.flush(0.02)
    before = trace.status()
    assert before.dropped > 0
    with served(tmp_path):
        after = trace.flush(20)
        trace.note("last.observed")
        sender.close(20)
    found = records(tmp_path, "s")
    drops = sum(record["data"]["count"] for record in found if record["event"] == "trace.drop.observed")
    steps = [record["data"]["at"] for record in found if record["event"] == "my-tool.step.observed"]
    assert steps == sorted(set(steps))
    assert len(steps) + drops == 400
    assert after.dropped == drops
    assert names(found)[-2:] == ["my-tool.last.observed", "session.record.finished"]


def test_a_session_can_be_gone_on_with(sock: str, tmp_path: Path) -> None:
    for number in range(3):
        with opened(sock, tmp_path, session="mine") as trace:
            trace.note("step.observed", {"number": number})
    found = records(tmp_path, "mine")
    assert [r["data"]["number"] for r in found if r["event"] == "my-tool.step.observed"] == [0, 1, 2]
    assert [record["seq"] for record in found] == list(range(1, 10))


def test_two_sessions_over_one_connection(sock: str, tmp_path: Path) -> None:
    sender = ThreadSender(sock)
    traces = [sender.open(name, str(tmp_path), tool=name) for name in ("one", "two")]
    for trace in traces:
        trace.note("a.b", trace.tool)
    traces[0].close()
    traces[1].note("c.d")
    sender.close()
    assert names(records(tmp_path, "one"))[1:-1] == ["one.a.b"]
    assert names(records(tmp_path, "two"))[1:-1] == ["two.a.b", "two.c.d"]


def test_a_program_without_a_writer_does_not_end_later_for_it(tmp_path: Path) -> None:
    program = "import tracewriter\nfor at in range(12): tracewriter.recording('t', env={}, socket_path='/nowhere').note('a.b')\n"
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - begun
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tracewriter.tool"], check=True)
    assert done.stderr == ""
    assert took_s < 2.0 + 3 * (time.monotonic() - begun), "all of them together, and not each for itself"


@given(st.lists(st.tuples(nasty_text, any_value), max_size=5), st.lists(nasty_events, max_size=3))
def test_nothing_that_is_recorded_raises_or_is_lost(notes: list[tuple[str, object]], events: list[Event]) -> None:
    sender = ThreadSender("/nowhere", one_session=True)
    trace = sender.open("s", "/", tool="t")
    for name, value in notes:
        trace.note(name, realise(value), metadata=None)
        trace.record(realise(value))  # type: ignore[arg-type]
    for event in events:
        trace.record(event, run="\ud800", op="x" * 500)
    deltas = sum(type(event) is ToolOutputDelta or "Delta" in type(event).__name__ for event in events)
    status = sender.status(trace).wait(60)  # endless values keep its thread busy for a while
    assert status is not None
    assert status.emitted == 1 + 2 * len(notes) + len(events) - deltas
    assert status.dropped == 0
    trace.close(0)


# --- what a tool may not say, and what it may


def test_a_tools_own_ends_and_drops_are_its_own_and_nobody_elses(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path) as trace:
        trace.record(TraceDropObserved(1, 900, 900, "forged"))
        trace.record(SessionRecordFinished(2, {}, None, None))
        trace.note("run.execute.finished", {"outcome": "completed"})
        trace.record(object())  # type: ignore[arg-type]
    found = records(tmp_path, trace.session)
    assert names(found)[1:-1] == [
        "my-tool.trace.drop.observed",
        "my-tool.session.record.finished",
        "my-tool.run.execute.finished",
        "my-tool.value.observed",
    ]
    assert found[1]["data"]["reason"] == "forged"
    assert {KINDS["trace.drop.observed"], KINDS["session.record.started"]} <= RECORDERS


def test_runs_are_added_up_and_bodies_too_long_for_a_record_move_out(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path) as trace:
        trace.record(RunExecuteFinished("completed", Usage(5, 6), 0.25, (), (), (), 1.0), run="a" * 32)
        trace.record(ToolCallFinished("c", "n", "y" * 50_000, False, 1.0))
        trace.note("big.observed", {"text": "z" * 50_000, "n": 1})
    found = records(tmp_path, trace.session)
    assert found[-1]["data"]["usage"]["input_tokens"] == 5
    assert found[-1]["data"]["cost_usd"] == 0.25
    assert found[2]["data"]["output"]["chars"] == 50_000
    assert found[3]["data"]["text"]["chars"] == 50_000


def test_in_mode_metadata_nothing_of_a_value_is_there(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path, capture="metadata") as trace:
        trace.note("step.finished", {"text": "CANARY"})
        trace.note("step.finished", {"text": "CANARY"}, metadata={"ms": 5})
        trace.record(ToolCallFinished("c", "read", "CANARY", False, 1.0))
        trace.record(SessionRecordFinished(1, {"CANARY": 1}, None, None))
    found = records(tmp_path, trace.session)
    assert "CANARY" not in json.dumps(found)
    assert [record["data"] for record in found[1:3]] == [{}, {"ms": 5}]
    assert found[3]["data"]["chars"] == 6


def test_secrets_reach_no_disk_whichever_way_they_come(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path, secrets=(EXACT,)) as trace:
        trace.note("step.finished", {"key": ONE["GITHUB"], "odd": EXACT, f"name {EXACT}": 1})
        trace.record(ToolCallFinished("c", "read", f"{ONE['GITHUB']} {EXACT}", False, 1.0))
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert ONE["GITHUB"].encode() not in text
    assert EXACT.encode() not in text
    assert text.count(b"[redacted:") >= 5


@pytest.mark.parametrize(
    ("env", "capture", "reason"),
    [({"AGENTD_NO_TRACE": "1"}, "content", "AGENTD_NO_TRACE is set"), ({}, "off", "capture is off")],
)
def test_off_is_off_and_says_so(env: dict[str, str], capture: str, reason: str, tmp_path: Path) -> None:
    with tracewriter.recording("t", env=env, capture=capture, socket_path=str(tmp_path / "w.sock")) as trace:
        assert isinstance(trace, OffTrace)
        trace.note("a.b")
        trace.record(RESULT)
        assert trace.status() == trace.flush() == trace.close() == TraceStatus("off", reason)


def test_a_mode_that_does_not_exist_is_a_mistake_and_told_at_once() -> None:
    with pytest.raises(ValueError, match="capture is one of"):
        tracewriter.recording("t", capture="everything", env={})


def test_the_socket_is_where_agentds_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    os.symlink(tmp_path / "w.sock", run / "tracewriter.sock")
    with served(tmp_path), tracewriter.recording("t", env={"AGENTD_HOME": str(tmp_path)}) as trace:
        trace.note("a.b")
        assert trace.flush().state == "ok"


# --- event loops, ends of programs, forks


@pytest.mark.anyio
async def test_an_event_loop_is_never_held_up(tmp_path: Path) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(turn())
        trace = opened(str(tmp_path / "w.sock"), tmp_path)
        trace.note("a.b")
        status = await trace.aflush(0.2)  # nobody listens: all of it is waited for
        assert status.state == "degraded"
        assert turns > 5
        with served(tmp_path):
            assert (await trace.aflush(20)).state == "ok"
            async with trace:
                trace.note("c.d")
        ticking.cancel()
    assert names(records(tmp_path, trace.session))[-2:] == ["my-tool.c.d", "session.record.finished"]


PROGRAM = """
import sys, tracewriter
trace = tracewriter.recording("short", socket_path=sys.argv[1], env={}, session=None)
print(trace.session, flush=True)
for at in range(1000):
    trace.note("step.observed", {"at": at})
"""


def test_a_program_that_just_ends_hands_over_the_rest(sock: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, sock], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = records(tmp_path, done.stdout.strip())
    assert [r["data"]["at"] for r in found if r["event"] == "short.step.observed"] == list(range(1000))
    assert found[-1]["event"] == "session.record.finished"


FORKING = """
import json, os, sys, tracewriter
trace = tracewriter.recording("parent", socket_path=sys.argv[1], env={})
trace.note("said.observed", {"by": "parent"})
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    trace.note("said.observed", {"by": "child"})
    first = trace.status()
    trace.flush(5)
    trace.close(5)
    with tracewriter.recording("child", socket_path=sys.argv[1], env={}) as own:
        own.note("said.observed", {"by": "child of its own"})
    os.write(theirs, json.dumps([own.session, first.state, first.reason[:6], first.dropped]).encode())
    sys.exit(0)  # not _exit: what is registered for the end of a program runs here too
os.close(theirs)
_, status = os.waitpid(child, 0)
trace.note("said.observed", {"by": "parent again"})
print(json.dumps([trace.session, status, *json.loads(os.read(ours, 999))]))
"""


def test_a_forked_child_never_speaks_for_its_parent_and_may_record_itself(sock: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, sock], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    parent, status, child, state, reason, dropped = json.loads(done.stdout)
    assert (status, state, reason, dropped) == (0, "off", "forked", 1)

    def said(session: str) -> list[str]:
        return [record["data"]["by"] for record in records(tmp_path, session) if "by" in record["data"]]

    assert said(parent) == ["parent", "parent again"]
    assert said(child) == ["child of its own"]


def test_a_signal_handler_may_record_while_the_same_thread_records(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path) as trace:
        handled = 0

        def handle(number: int, frame: object) -> None:
            nonlocal handled
            handled += 1
            trace.note("handler.observed")

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        try:
            for _ in range(3000):
                trace.note("step.observed", {"a": 1})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        status = trace.flush(20)
    assert status.dropped == 0
    count = Counter(names(records(tmp_path, trace.session)))
    assert count["my-tool.step.observed"] == 3000
    assert count["my-tool.handler.observed"] == handled > 0


def test_a_thread_that_cannot_be_started_is_told_in_the_status() -> None:
    code = (
        "import resource, os; import tracewriter, tracewriter.tool\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "trace = tracewriter.recording('t', env={})\n"
        "trace.note('a.b')\n"
        "status = trace.status(); trace.close()\n"
        "assert status.state == 'off' and status.reason.startswith('no thread'), status\n"
        "assert (status.emitted, status.dropped) == (1, 1), status\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_failures_of_every_kind_of_event_are_recorded_with_their_kind(sock: str, tmp_path: Path) -> None:
    with opened(sock, tmp_path) as trace:
        trace.record(ModelRequestFailed("odd", "", "", (), None, None, 1.0))  # type: ignore[arg-type]
    assert names(records(tmp_path, trace.session))[1] == "model.request.failed"
