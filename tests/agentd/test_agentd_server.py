from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import cast

import pytest

from agentd import paths, protocol
from agentd.config import Config
from agentd.errors import StartError
from agentd.lines import MAX_LINE_BYTES
from agentd.listener import InstanceLock, adopt, listen
from agentd.providers.stream import Finished, StreamEvent, Text, UsageReported
from agentd.server import MAX_CONNECTIONS, MAX_OUTBOX_BYTES, Connection, Outbox
from tests.agentd.daemon_fakes import Hang, ScriptedProvider, say
from tests.agentd.daemon_harness import MODEL, running
from tracewriter.events import Usage

pytestmark = pytest.mark.anyio


async def test_a_session_from_its_creation_to_its_end(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        created = await client.result("session/create", cwd=str(tmp_path), mode="build", **MODEL)
        session = created["session"]
        assert created == {
            "session": session,
            "workspace": str(tmp_path),
            "mode": "build",
            "provider": "fake",
            "model": "m",
            "resumed": False,
            "notes": [],
            "trace": f"{tmp_path}/home/traces/{paths.workspace_hash(str(tmp_path))}/{session}",
            "local": False,
        }
        end = await client.ask(session, "hi")
        assert (end["outcome"], end["usage"]["input_tokens"]) == ("completed", 10)
        (trace,) = daemon.sender.traces
        assert trace.secrets == ("sk-test-0123456789",)
        assert trace.names()[0] == "session.lifecycle.observed"
        assert await client.result("trace/flush", session=session) == {"ok": True, "state": "ok", "reason": ""}
        (row,) = (await client.result("session/list"))["sessions"]
        assert (row["session"], row["title"], row["state"], row["model"]) == (session, "hi", "idle", "fake/m")
        status = await client.result("daemon/status")
        assert (status["sessions"], status["running"], status["clients"]) == (1, 0, 1)
        traced = await client.result("trace/status")
        assert traced["recording"]["state"] == "ok"
        (figures,) = traced["sessions"]
        assert (figures["session"], figures["emitted"], figures["dropped_by"]) == (session, 3, {"buffer_full": 1})


async def test_the_first_request_must_be_initialize(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect(initialize=False)
        assert await client.kind("daemon/status") == "not_initialized"
        hello = await client.result("initialize", protocol=99, client="newer")
        assert hello["protocol"] == 1
        assert {"OPENAI_API_KEY", "AGENTD_NO_TRACE", "HTTPS_PROXY"} <= set(hello["env"])
        assert hello["recording"]["root"] == str(tmp_path / "home" / "traces")
        assert await client.kind("initialize", protocol=0) == "protocol"
        await client.result("daemon/status")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\x00\xff nonsense", -32700),
        (b"[1,2]", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"session/fly","params":{}}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{}}', -32602),
        (b"x" * (MAX_LINE_BYTES + 10), -32700),
    ],
)
async def test_a_bad_line_gets_an_error_and_the_connection_goes_on(tmp_path: Path, line: bytes, code: int) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        client.send(line + b"\n")
        error = (await client.answer())["error"]
        assert error["code"] == code
        assert len(error["message"]) < 200
        assert (await client.result("daemon/status"))["clients"] == 1


async def test_half_a_line_and_a_vanished_client_disturb_nobody(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        rude, polite = await daemon.connect(), await daemon.connect()
        rude.send(b'{"jsonrpc":"2.0","id":1,"meth')
        await rude.close()
        assert (await polite.call("daemon/status"))["result"]
        slow = await daemon.connect()
        for byte in b'{"jsonrpc":"2.0","id":1,"method":"daemon/status"}\n':
            slow.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await slow.answer())["result"]["agentd"]


async def test_a_notification_gets_no_answer(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        client.send(b'{"jsonrpc":"2.0","method":"daemon/status"}\n{"jsonrpc":"2.0","method":"session/prompt"}\n')
        await client.result("daemon/status")


async def test_a_hundred_connections_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        clients = [await daemon.connect() for _ in range(100)]
        sessions = [await client.create(tmp_path) for client in clients[:8]]
        ends = []
        async with asyncio.TaskGroup() as group:
            for client, session in zip(clients, sessions, strict=False):
                ends.append(group.create_task(client.ask(session, "hi")))
        assert [end.result()["outcome"] for end in ends] == ["completed"] * 8
        assert (await clients[99].result("daemon/status"))["clients"] == 100


async def test_connections_over_the_bound_are_told_so(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        clients = [await daemon.connect() for _ in range(MAX_CONNECTIONS)]
        late = await daemon.connect(initialize=False)
        assert (await late.receive())["error"]["code"] == -32001
        await clients[0].close()
        await clients[1].result("daemon/status")
        await (await daemon.connect()).result("daemon/status")


async def test_refusals_have_a_kind_and_a_hint(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        here = str(tmp_path)
        assert await client.kind("session/create", cwd="relative", **MODEL) == "bad_cwd"
        assert await client.kind("session/create", cwd=f"{here}/none", **MODEL) == "bad_cwd"
        assert await client.kind("session/create", cwd="/\0", **MODEL) == "bad_cwd"
        assert await client.kind("session/create", cwd=here, mode="fast", **MODEL) == "bad_mode"
        assert await client.kind("session/create", cwd=here) == "no_model"
        assert await client.kind("session/create", cwd=here, model="openai/m") == "no_key"
        assert await client.kind("session/create", cwd=here, model="nobody/m") == "unknown_provider"
        assert await client.kind("session/create", cwd=here, resume_last=True, **MODEL) == "no_session"
        assert await client.kind("session/create", cwd=here, session="gone", **MODEL) == "unknown_session"
        assert await client.kind("session/create", cwd=here, session="../x", **MODEL) == "unknown_session"
        assert await client.kind("session/create", cwd=here, capture="all", **MODEL) == "config"
        assert await client.kind("session/prompt", session="gone", text="x") == "unknown_session"
        assert (await client.result("daemon/status"))["sessions"] == 0


async def test_a_run_goes_on_when_its_client_goes_and_another_follows_from_the_start(tmp_path: Path) -> None:
    hang = Hang()
    async with running(tmp_path / "home", lambda: ScriptedProvider([hang, *say("done")])) as daemon:
        first = await daemon.connect()
        session = await first.create(tmp_path)
        await first.result("session/prompt", session=session, text="go")
        await hang.reached.wait()
        await first.close()
        second = await daemon.connect()
        await second.result("session/subscribe", session=session, after="")
        hang.released.set()
        end = await second.until_end()
        assert end["outcome"] == "completed"


async def test_an_answer_comes_before_what_it_causes(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        await client.ask(session, "hi")
        cursor = (await client.result("session/subscribe", session=session, after=""))["cursor"]
        seen = [note["params"]["record"]["event"] for note in client.notes]
        assert seen in ([], ["session.save.finished"])  # of the run before
        replayed = await client.receive()
        assert replayed["params"]["cursor"].endswith(":1")
        assert not cursor.endswith(":1")
        await client.result("session/unsubscribe", session=session)


async def test_cancel_reaches_a_running_model(tmp_path: Path) -> None:
    hang = Hang()
    async with running(tmp_path / "home", lambda: ScriptedProvider([Text("half"), hang])) as daemon:
        client, other = await daemon.connect(), await daemon.connect()
        session = await client.create(tmp_path)
        await client.result("session/subscribe", session=session)
        await client.result("session/prompt", session=session, text="go")
        await hang.reached.wait()
        assert await other.result("session/cancel", session=session) == {"cancelled": True}
        assert (await client.until_end())["outcome"] == "cancelled"
        assert await other.result("session/cancel", session=session) == {"cancelled": False}


async def test_a_client_that_never_reads_is_bounded_and_the_run_is_not_held_up(tmp_path: Path) -> None:
    flood: list[StreamEvent] = [Text("x" * 5_000)] * 190
    reply = [*flood, UsageReported(Usage(1, 1)), Finished("stop", "stop")]
    async with running(tmp_path / "home", lambda: ScriptedProvider(reply)) as daemon:
        deaf, other = await daemon.connect(), await daemon.connect()
        session = await other.create(tmp_path)
        await deaf.result("session/subscribe", session=session)
        transport = cast(asyncio.Transport, deaf.writer.transport)
        transport.pause_reading()
        for _ in range(7):
            assert (await other.ask(session, "go"))["outcome"] == "completed"
        held = [connection.outbox for connection in daemon.connections()]
        assert all(box.held_bytes <= MAX_OUTBOX_BYTES for box in held)
        assert max(box.held_bytes for box in held) > MAX_OUTBOX_BYTES / 2
        transport.resume_reading()
        while (await deaf.receive())["method"] != "session/lagged":
            pass


async def test_a_client_that_takes_nothing_for_too_long_is_cut(tmp_path: Path) -> None:
    class Flood:
        async def handle(self, connection: Connection, params: protocol.Params) -> None:
            connection.initialized = True
            for _ in range(100):
                connection.outbox.put(b"x" * 100_000 + b"\n")

    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    with theirs:
        theirs.sendall(protocol.encode_request(1, "initialize", protocol.Initialize(1)))
        async with asyncio.timeout(10):
            await Connection(Flood(), reader, writer, write_s=0.05).serve()


async def test_stop_ends_runs_as_cancelled_and_answers_first(tmp_path: Path) -> None:
    hang = Hang()
    async with running(tmp_path / "home", lambda: ScriptedProvider([hang])) as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        await client.result("session/prompt", session=session, text="go")
        await hang.reached.wait()
        assert await client.result("daemon/stop") == {"stopping": True}
        assert await client.reader.read() == b""  # and then the connection ends
        (trace,) = daemon.sender.traces
        assert trace.names()[-2:] == ["run.execute.finished", "session.save.finished"]
        assert trace.closed == 1


async def test_stop_when_idle_waits_for_the_run_and_refuses_new_work(tmp_path: Path) -> None:
    hang = Hang()
    async with running(tmp_path / "home", lambda: ScriptedProvider([hang, *say("done")])) as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        await client.result("session/subscribe", session=session)
        await client.result("session/prompt", session=session, text="go")
        await hang.reached.wait()
        await client.result("daemon/stop", when_idle=True)
        assert await client.kind("session/prompt", session=session, text="more") == "stopping"
        hang.released.set()
        assert (await client.until_end())["outcome"] == "completed"


async def test_a_session_goes_on_after_a_restart_with_a_repaired_conversation(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home) as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path, mode="build")
        await client.ask(session, "first")
    provider = ScriptedProvider(say("again"))
    async with running(home, lambda: provider) as daemon:
        client = await daemon.connect()
        (row,) = (await client.result("session/list"))["sessions"]
        assert (row["session"], row["state"]) == (session, "stored")
        created = await client.result("session/create", cwd=str(tmp_path), resume_last=True, **MODEL)
        assert (created["session"], created["resumed"], created["mode"]) == (session, True, "build")
        await client.ask(session, "second")
        assert [m.text for m in provider.requests[0].messages] == ["first", "hello", "second"]


async def test_a_session_in_memory_is_resumed_as_it_is_with_the_new_key_known_to_the_recorder(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        one, two = await daemon.connect(), await daemon.connect()
        session = await one.create(tmp_path)
        await one.ask(session, "hi")
        key = {"OPENAI_API_KEY": "sk-another-key-987"}
        assert await two.create(tmp_path, session=session, env=key, mode="build") == session
        first, second = daemon.sender.traces
        assert (first.closed, second.secrets) == (1, ("sk-test-0123456789", "sk-another-key-987"))
        assert "config.change.applied" in second.names()
        await one.ask(session, "again")
        assert "run.execute.finished" in second.names()


async def test_nothing_is_kept_of_an_ephemeral_session_and_nothing_recorded_without_trace(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        for params in ({"ephemeral": True}, {"env": MODEL["env"] | {"AGENTD_NO_TRACE": "1"}}, {"capture": "off"}):  # type: ignore[operator]
            created = await client.result("session/create", **{"cwd": str(tmp_path)} | MODEL | params)
            assert created["trace"] == ""
            assert len(created["notes"]) == 1
            await client.ask(created["session"], "a secret prompt")
        assert daemon.sender.traces == []
        flushed = await client.result("trace/flush", session=created["session"])
        assert flushed["state"] == "off"


async def test_the_environment_of_a_session_is_only_what_was_asked_for_and_is_not_stored(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        await client.ask(await client.create(tmp_path), "hi")
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file():
            assert b"sk-test-0123456789" not in path.read_bytes()


async def test_idle_sessions_that_nobody_follows_are_closed_and_can_be_resumed(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        await client.ask(session, "hi")
        assert daemon.daemon._api is not None
        registry = daemon.daemon._api._registry
        await registry.close_idle(0.0)
        assert len(registry) == 1  # it is followed
        await client.result("session/unsubscribe", session=session)
        await registry.close_idle(0.0)
        assert (len(registry), daemon.sender.traces[0].closed) == (0, 1)
        assert await client.create(tmp_path, session=session) == session


async def test_capture_off_in_the_configuration_is_said(tmp_path: Path) -> None:
    async with running(tmp_path / "home", config=Config(capture="off")) as daemon:
        client = await daemon.connect(initialize=False)
        hello = await client.result("initialize", protocol=1)
        assert hello["recording"]["state"] == "off"
        assert (await client.result("session/create", cwd=str(tmp_path), **MODEL))["trace"] == ""


async def test_a_client_that_wants_no_trace_ends_the_recording_of_the_session_it_joins(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        session = await client.create(tmp_path)
        env = {"OPENAI_API_KEY": "sk-test-0123456789", "AGENTD_NO_TRACE": "1"}
        for params in (MODEL | {"env": env}, MODEL):  # and who comes later does not begin it again unasked
            created = await client.result("session/create", cwd=str(tmp_path), session=session, **params)
            assert created["trace"] == ""
            assert "recording is off" in created["notes"][0]
        await client.ask(session, "not to be recorded")
        (trace,) = daemon.sender.traces
        assert (trace.closed, "run.execute.started" in trace.names()) == (1, False)


async def test_capture_stream_records_what_came_before_it_records_the_end(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        client = await daemon.connect()
        created = await client.result("session/create", cwd=str(tmp_path), capture="stream", **MODEL)
        assert created["notes"] == []
        await client.ask(created["session"], "hi")
        names = daemon.sender.traces[0].names()
        assert names.index("model.request.finished") == names.index("model.stream.delta") + 1


def test_a_second_daemon_is_refused_and_the_first_ones_socket_lives(tmp_path: Path) -> None:
    lock = InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    listener = listen(str(tmp_path / "run" / "agentd.sock"), lock)
    with pytest.raises(StartError, match="another agentd"):
        InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "run" / "agentd.sock"))
    listener.close()
    lock.close()
    assert not (tmp_path / "run" / "agentd.sock").exists()


def test_a_stale_socket_is_replaced_and_has_no_permissions_for_others(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agentd.sock"
    lock = InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    listener = listen(str(path), lock)
    assert path.stat().st_mode & 0o177 == 0
    listener.close()
    lock.close()


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    lock = InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    (tmp_path / "run" / "agentd.sock").write_text("precious")
    with pytest.raises(StartError, match="no socket"):
        listen(str(tmp_path / "run" / "agentd.sock"), lock)
    assert (tmp_path / "run" / "agentd.sock").read_text() == "precious"
    lock.close()


def test_another_daemons_socket_at_our_place_is_left_alone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agentd.sock"
    lock = InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    listener = listen(str(path), lock)
    path.unlink()
    path.write_text("someone else's")
    listener.close()
    lock.close()
    assert path.exists()


def test_a_replaced_lock_file_is_noticed(tmp_path: Path) -> None:
    first = InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    (tmp_path / "run" / "agentd.lock").unlink()
    second = InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    with pytest.raises(StartError):
        InstanceLock(str(tmp_path / "run" / "agentd.lock"))
    first.close()
    second.close()


def test_only_a_listening_unix_socket_is_adopted() -> None:
    read, write = os.pipe()
    with pytest.raises(StartError):
        adopt(read)
    os.close(read)
    os.close(write)
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(StartError, match="listening"):
        adopt(os.dup(sock.fileno()))


async def test_an_outbox_refuses_notifications_over_its_bound_and_never_answers() -> None:
    box = Outbox(max_bytes=10, max_lines=3)
    assert box.offer(b"x" * 8)
    assert not box.offer(b"x" * 8)
    box.put(b"an answer")
    async with asyncio.timeout(5):
        assert await box.take() == b"x" * 8 + b"an answer"
        assert box.offer(b"y" * 100)  # larger than the bound, but alone
        await box.take()
        box.close()
        assert await box.take() == b""
    assert not box.offer(b"z")
