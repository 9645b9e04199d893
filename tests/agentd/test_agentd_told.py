"""What a session's record tells besides the run's own work: input, policy, saves, settings, refused changes, capture modes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentd.config import Config
from agentd.store import SessionStore
from tests.agentd.daemon_fakes import FakeTrace, Hang, ScriptedProvider, call, say
from tests.agentd.daemon_harness import MODEL, Client, Harness, running
from tracewriter.events import (
    ConfigChangeApplied,
    ConfigChangeFailed,
    ConfigChangeRequested,
    FileCheckFailed,
    InputPrepareFinished,
    ModelStreamDelta,
    PolicyPresetObserved,
    SessionSaveFinished,
    SessionSaveStarted,
    WorkspaceChangeObserved,
)

pytestmark = pytest.mark.anyio


def of(kind: type, trace: FakeTrace) -> list[Any]:
    return [event for event in trace.events if isinstance(event, kind)]


async def flushed(daemon: Harness) -> None:
    """Wait until what was posted to the store has been told."""
    api = daemon.daemon._api
    assert api is not None
    store = api._registry._services.store
    assert store is not None
    await store.call(lambda: None)


async def test_a_runs_record_tells_its_input_its_policy_and_that_it_was_saved(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path, mode="build")
        for prompt in ("hi", "and again"):
            await client.ask(session, prompt)
        await flushed(daemon)
        (trace,) = daemon.sender.traces
        names = trace.names()
        first = names.index("run.execute.finished") + 1
        assert names[1:first] == [
            "prompt.queue.observed",  # added
            "prompt.queue.observed",  # consumed
            "input.prepare.started",
            "input.prepare.finished",
            "session.save.started",
            "run.execute.started",
            "policy.preset.observed",
            "model.request.started",
            "model.request.finished",
            "run.execute.finished",
        ]
        sizes = [(e.prompt_chars, e.history_messages, e.history_chars) for e in of(InputPrepareFinished, trace)]
        assert sizes == [(2, 0, 0), (9, 2, len("hi" + "hello"))]
        policy = of(PolicyPresetObserved, trace)[0]
        assert (policy.preset, policy.scope, policy.iterations, policy.context_chars) == (
            "build",
            "workspace",
            25,
            200_000,
        )
        assert {"write_file", "edit_file"} == set(policy.writes) < set(policy.tools)
        assert [(e.prompt, e.first) for e in of(SessionSaveStarted, trace)] == [
            (e.prompt, first) for e, first in zip(of(SessionSaveFinished, trace), (0, 2), strict=True)
        ]
        assert [e.messages for e in of(SessionSaveFinished, trace)] == [2, 2]


async def test_a_plan_run_may_write_nothing_and_its_policy_says_so(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        await client.ask(await client.create(tmp_path), "hi")
        (policy,) = of(PolicyPresetObserved, daemon.sender.traces[0])
        assert (policy.preset, policy.writes, policy.scope, policy.budget_usd) == ("plan", (), "none", None)


async def test_a_refused_change_is_told_and_who_else_changed_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    hang = Hang()
    write = call("write_file", '{"path":"a.txt","content":"new\\n"}')
    provider = ScriptedProvider(
        say("", write), say("", call("read_file", '{"path":"a.txt"}')), [hang, *say("", write)], say("done")
    )
    async with running(tmp_path / "home", lambda: provider) as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path, mode="build")
        await client.result("session/subscribe", session=session)
        await client.result("session/prompt", session=session, text="go")
        await hang.reached.wait()
        (tmp_path / "a.txt").write_text("somebody else's\n")
        hang.released.set()
        await client.until_end()
        (trace,) = daemon.sender.traces
        assert [(e.path, e.check) for e in of(FileCheckFailed, trace)] == [("a.txt", "unread"), ("a.txt", "changed")]
        assert of(WorkspaceChangeObserved, trace) == [WorkspaceChangeObserved("a.txt", "changed", "edit")]
        assert (tmp_path / "a.txt").read_text() == "somebody else's\n"


# --- settings


async def test_a_setting_is_asked_for_then_applied_or_refused_with_the_reason(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        configured = await client.result(
            "session/configure", session=session, mode="build", **{**MODEL, "model": "openai/other"}
        )
        assert (configured["mode"], configured["model"]) == ("build", "other")
        assert await client.kind("session/configure", session=session, mode="fast") == "bad_mode"
        assert await client.kind("session/configure", session=session, capture="all") == "config"
        assert await client.kind("session/configure", session="0" * 32) == "unknown_session"
        (trace,) = daemon.sender.traces
        changes = [
            e for e in trace.events if isinstance(e, (ConfigChangeRequested, ConfigChangeApplied, ConfigChangeFailed))
        ]
        assert [(type(e).__name__.removeprefix("ConfigChange"), e.setting, e.value) for e in changes] == [
            ("Requested", "mode", "build"),
            ("Requested", "model", "openai/other"),
            ("Applied", "mode", "build"),
            ("Applied", "model", "fake/other"),  # the name that its provider has here
            ("Requested", "mode", "fast"),
            ("Failed", "mode", "fast"),
            ("Requested", "capture", "all"),
            ("Failed", "capture", "all"),
        ]


async def test_while_a_run_goes_on_nothing_is_changed_and_less_recording_is_no_silent_wish(tmp_path: Path) -> None:
    hang = Hang()
    async with running(tmp_path / "home", lambda: ScriptedProvider([hang, *say("done")])) as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        await client.result("session/subscribe", session=session)
        await client.result("session/prompt", session=session, text="go")
        await hang.reached.wait()
        assert await client.kind("session/configure", session=session, mode="build") == "busy"
        join = {"cwd": str(tmp_path), "session": session, "env": MODEL["env"]}
        no_trace = {**MODEL["env"], "AGENTD_NO_TRACE": "1"}  # type: ignore[dict-item]
        for less in ({"capture": "off"}, {"capture": "metadata"}, {"env": no_trace}):
            assert await client.kind("session/create", **{**join, **less}) == "busy"
        joined = await client.result("session/create", **join, capture="stream", mode="build")
        assert joined["notes"] == ["a run is going on: mode, model, capture and keys stay as they are"]
        hang.released.set()
        await client.until_end()
        (trace,) = daemon.sender.traces
        failed = [(e.setting, e.value, e.error.kind) for e in of(ConfigChangeFailed, trace)]
        off, rest = ("capture", "off", "busy"), [("mode", "build", "busy"), ("capture", "stream", "busy")]
        assert failed == [("mode", "build", "busy"), off, ("capture", "metadata", "busy"), off, *rest]


# --- capture modes


async def modes(daemon: Harness) -> list[str]:
    return [capture for _, capture in daemon.sender.opened]


async def test_another_mode_is_another_recording_which_names_it_and_the_old_one_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        await client.ask(session, "a first canary")
        await client.result("session/configure", session=session, capture="metadata")
        await client.ask(session, "a second canary")
        assert await modes(daemon) == ["content", "metadata"]
        first, second = daemon.sender.traces
        assert (first.closed, second.closed) == (1, 0)
        assert of(ConfigChangeRequested, first) == [ConfigChangeRequested("capture", "metadata")]
        assert second.events[0] == ConfigChangeApplied("capture", "metadata")
        assert b"canary" not in msgspec.json.encode(second.events)
        await client.result("session/configure", session=session, capture="stream")
        await client.ask(session, "third")
        assert of(ModelStreamDelta, daemon.sender.traces[2]) == [ModelStreamDelta("text", 0, "hello")]


async def test_off_closes_the_recording_and_nothing_begins_one_again(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        configured = await client.result("session/configure", session=session, capture="off")
        assert (configured["trace"], configured["notes"]) == ("", ["recording is off: capture is off"])
        await client.ask(session, "not to be recorded")
        assert await client.kind("session/configure", session=session, capture="content") == "config"
        (trace,) = daemon.sender.traces
        assert (trace.closed, "run.execute.started" in trace.names()) == (1, False)
        await told_as_unrecorded(client, session, "capture is off")


async def told_as_unrecorded(client: Client, session: str, reason: str) -> None:
    status = await client.result("trace/status")
    rows = [row for row in status["sessions"] if row["state"] == "off"]
    assert [(row["session"], row["reason"], row["emitted"]) for row in rows] == [(session, reason, 0)]
    assert (await client.result("daemon/status"))["unrecorded"] == 1


@pytest.mark.parametrize(
    ("begun", "resumed", "reason"),
    [
        ({"capture": "metadata"}, "metadata", ""),
        ({"capture": "stream"}, "stream", ""),
        ({"capture": "off"}, "", "the session was begun without a record and stays so"),
        (
            {"env": {"OPENAI_API_KEY": "sk-test-0123456789", "AGENTD_NO_TRACE": "1"}},
            "",
            "the session was begun without",
        ),
        ({}, "content", ""),
    ],
)
async def test_a_session_that_is_resumed_is_recorded_as_it_was_begun(
    tmp_path: Path, begun: Mapping[str, object], resumed: str, reason: str
) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path, **begun)
        await client.ask(session, "hi")
    # Another daemon, which is configured to record more.
    async with running(tmp_path / "home", config=Config(capture="content")) as daemon:
        client = await daemon.connect()
        created = await client.result("session/create", cwd=str(tmp_path), session=session, **MODEL)
        assert await modes(daemon) == ([resumed] if resumed else [])
        assert reason in "".join(created["notes"])
        if reason:
            await told_as_unrecorded(client, session, created["notes"][0].removeprefix("recording is off: "))


async def test_a_store_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    import sqlite3

    path = str(tmp_path / "sessions.db")
    with sqlite3.connect(path) as db:
        columns = "id TEXT PRIMARY KEY, cwd TEXT NOT NULL, title TEXT NOT NULL, mode TEXT NOT NULL, model TEXT NOT NULL"
        db.execute(
            f"CREATE TABLE sessions ({columns}, updated_at TEXT NOT NULL, base_url TEXT NOT NULL, uds TEXT NOT NULL)"
        )
        db.execute("INSERT INTO sessions VALUES ('s', '/w', 't', 'plan', 'm', '2026-11-29', '', '')")
        db.execute("PRAGMA user_version=1")
    db.close()
    store = SessionStore(path)
    (row,) = await store.call(store.db.newest, 5)
    assert (row.id, row.capture) == ("s", "")
    await store.call(store.db.save_session, msgspec.structs.replace(row, capture="metadata"))
    await store.aclose()
    again = SessionStore(path)
    assert [row.capture for row in await again.call(again.db.newest, 5)] == ["metadata"]
    await again.aclose()
