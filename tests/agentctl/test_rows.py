"""What is shown as one row is one row, whatever its fields hold: a name with a line break in it forges no other row."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from agentctl.__main__ import run
from agentctl.commands import status, trace_status, trace_summary, trace_verify
from agentctl.render import LiveRun, run_line
from agentctl.summary import RunSummary, Summary, ToolUse
from agentctl.trace_lines import record_lines
from agentctl.wire import RequestFailed, Retry, RunFinished, ToolFinished, ToolStarted
from tests.agentctl import traces
from tests.agentctl.fake_daemon import CREATED, SESSION, FakeDaemon, Json, Screen, finished, refusal, started
from tests.agentctl.test_safe_text import example
from tracewriter.events import KINDS, RawRecord, Usage
from tracewriter.findings import Found, Note, Verdict

Env = dict[str, str]
BREAKS = ("\n", "\r", "\r\n", "\t", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")
# A field that would forge a row: whatever stands after the break must stay behind what stands before it.
FORGED = "FORGED"


def field(line_break: str) -> str:
    return f"a{line_break}{FORGED}"


def one_row_each(text: str) -> None:
    """No row begins with what stood after a break, and nothing that breaks a row anywhere is left."""
    assert FORGED in text
    for row in text.split("\n"):
        assert row.splitlines() == ([row] if row else [])
        assert "\t" not in row
        assert not row.lstrip().startswith(FORGED)


Show = Callable[[Screen, str], None]


def live(screen: Screen, bad: str) -> None:
    run = LiveRun(screen.world.out)
    run.event("1", ToolStarted(bad, bad))
    run.event("1", ToolFinished(bad, True, bad, 1.0))
    run.event("2", RequestFailed(bad, bad, ""))
    run.event("3", Retry(1, 1.0, bad))
    screen.world.out.note(run_line(bad, RunFinished(bad, 1, 1, 1, None, 1, (bad,), (bad,), 1.0)))


def daemon_status(screen: Screen, bad: str) -> None:
    for line in status.lines({"agentd": bad, "recording": {"state": bad, "reason": bad, "root": bad}}):
        screen.world.out.line(line)


def verdict(screen: Screen, bad: str) -> None:
    found = Verdict(1, 0, None, 1, 1, 1, 1, (Note("lost", bad), Note("unsealed", bad)), True, bad, False)
    trace_verify.show(Path("/" + bad), found, screen.world)


def summary(screen: Screen, bad: str) -> None:
    tool = ToolUse(bad, bad, False, 1.0, bad)
    at = datetime(2026, 11, 29, tzinfo=UTC)
    used = Usage(input_tokens=1, output_tokens=1)
    one = RunSummary(bad, at, "p", bad, bad, bad, 1, (tool,), (bad,), (bad,), bad, used, None, 1.0)
    trace_summary.show(Path("/" + bad), Summary(bad, (one,), (Note("lost", bad),), True), screen.world.out)


@pytest.mark.parametrize("show", [live, daemon_status, verdict, summary])
@pytest.mark.parametrize("line_break", BREAKS)
def test_every_field_of_a_view_stays_in_its_row(env: Env, show: Show, line_break: str) -> None:
    screen = Screen(env)
    show(screen, field(line_break))
    one_row_each(screen.out + screen.err)


@pytest.mark.parametrize("line_break", BREAKS)
@pytest.mark.parametrize("name", [*KINDS, "some.new.observed"])
def test_every_record_is_one_row_above_its_diff(env: Env, name: str, line_break: str) -> None:
    screen = Screen(env)
    bad = field(line_break)
    data = msgspec.json.encode(filled(KINDS[name], bad)) if name in KINDS else msgspec.json.encode(bad)
    record = RawRecord(seq=1, ts=datetime.now(UTC), event=name, session=SESSION, data=msgspec.Raw(data))
    found = Found(record, b"", 1, 0, "verified", 1)
    row, *diff = record_lines(found)
    screen.world.out.lines(row)
    assert len(screen.out.splitlines()) == 1
    assert "\t" not in screen.out
    assert bool(diff) == (name == "file.change.applied")
    assert not any("\n" in line for line in diff)
    screen = Screen(env)
    screen.world.out.lines(record_lines(Found(msgspec.structs.replace(record, event=bad), b"", 1, 0, "", 1))[0])
    one_row_each(screen.out)


def filled(kind: type[msgspec.Struct], text: str) -> object:
    """An event of this kind with the text in every field that is text."""

    def put(value: object) -> object:
        if isinstance(value, dict):
            return {name: put(one) for name, one in value.items()}
        if isinstance(value, list):
            return [put(one) for one in value]
        return text if isinstance(value, str) else value

    return put(json.loads(msgspec.json.encode(example(kind))))


@pytest.mark.parametrize("line_break", BREAKS)
def test_lists_of_traces_have_a_row_each(env: Env, line_break: str) -> None:
    bad = field(line_break)
    line = json.dumps(
        {**json.loads(traces.opened(1)), "data": {**json.loads(traces.opened(1))["data"], "workspace": bad}}
    )
    traces.write_session(env, [line, traces.started(2, text=bad)], SESSION)
    screen = Screen(env)
    assert run(["trace", "ls"], screen.world) == 0
    one_row_each(screen.out)
    assert len(screen.out.splitlines()) == 1
    for words in (["summary"], ["show"], ["verify"], ["tail"]):
        screen = Screen(env)
        assert run(["trace", *words, SESSION], screen.world) == 0
        rows = screen.out.split("\n")
        assert not any(row.startswith(FORGED) for row in rows)
        assert all(row.splitlines() in ([row], []) for row in rows)


@pytest.mark.parametrize("line_break", BREAKS)
def test_names_of_directories_make_no_rows(env: Env, line_break: str) -> None:
    bad = field(line_break)
    path = traces.write_session(env, [traces.opened(1), traces.closed(2)])
    path.rename(path.with_name(bad))
    for words in (
        ["trace", "ls"],
        ["trace", "verify", "--all"],
        ["trace", "show", "b" + bad],
        ["trace", "verify", "./" + bad],
        ["trace", "pin", bad],
        ["trace", "status"],
        ["trace", "prune", "--days", "1"],
        ["trace", "undelete", bad],
        ["trace", "undelete", "--list"],
        ["ask", "--session", bad, "--" + bad],
        [bad],
    ):
        screen = Screen(env, cwd=env["HOME"])
        run(words, screen.world)
        for row in (screen.out + screen.err).split("\n"):
            assert row.splitlines() in ([row], [])
            assert not row.lstrip().startswith(FORGED)
            assert "\t" not in row


@pytest.mark.parametrize("line_break", BREAKS)
def test_open_recordings_have_a_row_each(env: Env, line_break: str) -> None:
    bad = field(line_break)
    side: Json = {"session": bad, "state": bad, "reason": bad, "dropped_by": {bad: 1}}
    screen = Screen(env)
    for row in trace_status._rows(None, {"sessions": [side]}):
        screen.world.out.line(trace_status._row_line(row))
    assert len(screen.out.splitlines()) == 1
    one_row_each(screen.out)


@pytest.mark.parametrize("line_break", BREAKS)
def test_what_the_daemon_says_is_one_line_each(daemon: FakeDaemon, env: Env, line_break: str) -> None:
    bad = field(line_break)
    daemon.replies["session/create"] = {**CREATED, "session": bad, "provider": bad, "model": bad, "notes": [bad]}
    daemon.replies["session/create"] |= {"mode": bad, "session": SESSION}
    daemon.replies["trace/flush"] = {"ok": True, "state": "degraded", "reason": bad}
    daemon.script = [started(), finished(bad, errors=[bad])]
    screen = Screen(env, cwd="/w")
    run(["ask", "hi"], screen.world)
    one_row_each(screen.err)
    daemon.replies["session/create"] = refusal("no_key", bad, bad)
    screen = Screen(env, cwd="/w")
    assert run(["ask", "hi"], screen.world) == 2
    one_row_each(screen.err)
    assert len(screen.err.splitlines()) == 2
