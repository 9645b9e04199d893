"""agentctl trace prune, pin, unpin, undelete, status: what is said, what is done, and the exit code."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from agentctl.__main__ import run
from agentd.paths import config_file, private_dir, runtime_dir, traces_dir, writer_socket
from tests.agentctl.fake_daemon import FakeDaemon, Screen
from tests.tracewriter.old_sessions import WORKSPACE, in_trash, live, make

Env = dict[str, str]


@pytest.fixture
def root(env: Env) -> Path:
    """Ten young sessions and two old ones."""
    root = Path(traces_dir(env))
    for number in range(10):
        make(root, f"new{number}", 1 + number / 10)
    make(root, "old1", 40)
    make(root, "old2", 50)
    return root


def trace(env: Env, *words: str, code: int = 0) -> Screen:
    screen = Screen(env)
    assert run(["trace", *words], screen.world) == code, screen.err
    return screen


def test_a_dry_run_says_what_and_why_and_changes_nothing(env: Env, root: Path) -> None:
    (make(root, "odd", 60) / "notes.txt").write_text("mine\x1b[2J")
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    out = trace(env, "prune", "--dry-run").out
    assert [line.split()[5] for line in out.splitlines() if line.startswith("would move")] == ["old2", "old1"]
    assert out.count("older than max_age_days") == 2
    assert "odd: it holds 'notes.txt', which no writer made" in out
    document = json.loads(trace(env, "prune", "--dry-run", "--json").out)
    assert [(m["candidate"]["session"], m["reason"]) for m in document["moves"]] == [("old2", "age"), ("old1", "age")]
    assert (document["dry_run"], document["kept"]["sessions"]) == (True, 13)
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_prune_does_just_what_the_dry_run_said(env: Env, root: Path) -> None:
    said = [line.split()[5] for line in trace(env, "prune", "--dry-run").out.splitlines()]
    done = trace(env, "prune")
    assert [line.split()[4] for line in done.out.splitlines()] == said == ["old2", "old1"]
    assert in_trash(root) == {"old1", "old2"}
    assert trace(env, "prune").out == "nothing was deleted\n"
    assert {deed["session"] for deed in map(json.loads, (root / "retention.jsonl").read_text().splitlines())} == {
        "old1",
        "old2",
    }


def test_numbers_may_be_given_and_a_fifth_at_most_goes(env: Env, root: Path) -> None:
    document = json.loads(trace(env, "prune", "--days", "0.5", "--json").out)
    assert [deed["session"] for deed in document["deeds"]] == ["old2", "old1"]
    assert document["held_back"] == 9  # all but the newest
    document = json.loads(trace(env, "prune", "--max-bytes", "30K", "--json").out)
    assert {(deed["action"], deed["session"]) for deed in document["deeds"][:2]} == {
        ("purged", "old1"),
        ("purged", "old2"),
    }
    assert document["policy"]["max_bytes"] == 30 * 1024


@pytest.mark.parametrize(
    "words", [["--days", "0"], ["--days", "x"], ["--max-bytes", "-1"], ["--max-bytes", "1T"], ["--days", "nan"]]
)
def test_numbers_that_are_none_delete_nothing(env: Env, root: Path, words: list[str]) -> None:
    assert "is a number above 0" in trace(env, "prune", *words, code=2).err
    assert {"old1", "old2"} <= live(root)


def test_a_config_that_cannot_be_read_deletes_nothing_and_is_one_line(env: Env, root: Path) -> None:
    """Complaint 56: 1825 days configured, still deleted."""
    Path(config_file(env)).write_text("[retention]\nmax_days = 1825\n")
    for words in (["prune"], ["prune", "--dry-run"], ["prune", "--days", "1"]):
        screen = trace(env, *words, code=2)
        assert "max_days" in screen.err.splitlines()[0]
        assert screen.out == ""
    assert {"old1", "old2"} <= live(root)
    status = trace(env, "status")
    assert "nothing is deleted until it is mended" in status.out


def test_the_policy_is_config_tomls(env: Env, root: Path) -> None:
    Path(config_file(env)).write_text("[retention]\nmax_age_days = 45\nenabled = false\n")
    screen = trace(env, "prune")
    assert in_trash(root) == {"old2"}
    assert "enabled = false" in screen.err


def test_pinned_sessions_stay_and_unpinned_go(env: Env, root: Path) -> None:
    trace(env, "pin", "old1")
    trace(env, "pin", str(root / WORKSPACE / "old2"))
    trace(env, "unpin", "old2")
    trace(env, "prune")
    assert in_trash(root) == {"old2"}
    assert "1 pinned" in trace(env, "status").out
    assert "no session 'nobody'" in trace(env, "pin", "nobody", code=2).err
    outside = Path(env["HOME"], "x", "y")
    outside.mkdir(parents=True)
    assert "is no session under" in trace(env, "pin", str(outside), code=2).err
    assert list(outside.iterdir()) == []


def test_undelete_brings_back_the_newest_of_that_id(env: Env, root: Path) -> None:
    trace(env, "prune")
    rows = json.loads(trace(env, "undelete", "--list", "--json").out)["trash"]
    assert {row["session"] for row in rows} == {"old1", "old2"}
    assert len(trace(env, "undelete", "--list").out.splitlines()) == 2
    assert "ambiguous: old1, old2" in trace(env, "undelete", "old", code=2).err
    assert trace(env, "undelete", "old1").out == f"{root / WORKSPACE / 'old1'}\n"
    assert (in_trash(root), "old1" in live(root)) == ({"old2"}, True)
    make(root, "old2", 0)
    assert "is there again already" in trace(env, "undelete", "old2", code=2).err
    assert "no session 'nobody' is in the trash" in trace(env, "undelete", "nobody", code=2).err
    assert "ID is missing" in trace(env, "undelete", code=2).err


def test_without_any_record_each_says_so(env: Env) -> None:
    for words in (["prune"], ["pin", "last"], ["undelete", "--list"]):
        assert "nothing is recorded" in trace(env, *words, code=2).err


# --- status


def test_status_needs_neither_daemon_nor_recorder(env: Env, root: Path) -> None:
    out = trace(env, "status").out
    assert "recorder: no recorder runs" in out
    assert "daemon: not running" in out
    assert "kept: 12 sessions, 0 active, 0 pinned" in out
    assert "next to go: old2, with the next sweep, by age" in out
    document = json.loads(trace(env, "status", "--json").out)
    assert (document["writer"], document["daemon"], document["sessions"]) == (None, None, [])
    assert document["retention"]["next"]["session"] == "old2"
    assert document["retention"]["total_bytes"] > 0


def test_status_of_nothing_at_all(env: Env) -> None:
    assert "kept: 0 sessions" in trace(env, "status").out


def test_status_says_that_recording_is_off(env: Env) -> None:
    assert trace({**env, "AGENTD_NO_TRACE": "1"}, "status").out.startswith("recording: off, AGENTD_NO_TRACE")


def test_status_over_the_budget_says_why(env: Env, root: Path) -> None:
    Path(config_file(env)).write_text("[retention]\nmax_bytes = 9000\n")
    for path in (root / WORKSPACE).iterdir():
        (path / "pinned").touch()
    out = trace(env, "status").out
    assert "over the budget by" in out
    assert "pinned" in out.split("over the budget by")[1]
    assert json.loads(trace(env, "status", "--json").out)["retention"]["over_bytes"] > 0


def test_status_tells_the_daemons_side(env: Env, daemon: FakeDaemon) -> None:
    session = {
        "session": "s1",
        "state": "degraded",
        "reason": "ENOSPC\x1b[31m",
        "emitted": 50,
        "recorded": 40,
        "dropped": 7,
    }
    rest = {"dropped_by": {"buffer_full": 7}, "queued_bytes": 2048}
    recording = {"state": "degraded", "reason": "ENOSPC", "root": "/t"}
    daemon.replies["trace/status"] = {"recording": recording, "sessions": [{**session, **rest}]}
    out = trace(env, "status").out
    assert "daemon: recording degraded (ENOSPC)" in out
    assert "s1  degraded (ENOSPC␛[31m): emitted 50, acknowledged 40, dropped 7 (buffer_full 7), queued 2.0 KiB" in out
    document = json.loads(trace(env, "status", "--json").out)
    assert document["sessions"][0]["dropped_by"] == {"buffer_full": 7}
    assert (document["total"]["emitted"], document["total"]["dropped"]) == (50, 7)


def test_a_daemon_that_knows_no_trace_status_and_a_recorder_that_does_not_answer_are_said(
    env: Env, daemon: FakeDaemon
) -> None:
    assert "no method trace/status" in trace(env, "status", code=3).out
    private_dir(runtime_dir(env))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(writer_socket(env))
        sock.listen()
        sock.close()
    assert "recorder: no recorder runs" in trace(env, "status", code=3).out
