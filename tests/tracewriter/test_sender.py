"""The sender beside what is not there: no writer, no descriptors, a socket of somebody else's making; and its null twin."""

from __future__ import annotations

import asyncio
import inspect
import os
import resource
import socket
from pathlib import Path

import pytest

from tracewriter.events import ToolOutputDelta
from tracewriter.sender import NullTrace, Sender, SessionTrace, Trace


def opened(sender: Sender, session: str = "s1") -> SessionTrace:
    return sender.open(session, "/w", agentd="0", mode="plan", capture="content")


@pytest.mark.anyio
async def test_without_a_writer_recording_waits_says_why_and_never_fails(tmp_path: Path) -> None:
    sender = Sender(str(tmp_path / "none.sock"))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        trace = opened(sender)
        for _ in range(300):
            trace.record(ToolOutputDelta(0, "x"))
        status = await trace.flush(0.05)
        assert (status.state, status.emitted, status.recorded, status.dropped) == ("degraded", 301, 0, 0)
        assert "no writer" in status.reason
        assert (await trace.close(0.05)).state != "ok"
        task.cancel()


@pytest.mark.anyio
async def test_without_descriptors_the_task_goes_on_and_says_so(tmp_path: Path) -> None:
    sender = Sender(str(tmp_path / "none.sock"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        await asyncio.sleep(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            sender.try_now()
            for _ in range(50):
                await asyncio.sleep(0.01)
            assert not task.done()
            assert "Too many open files" in sender.problem
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        task.cancel()


@pytest.mark.anyio
async def test_what_answers_without_being_a_writer_is_left_and_the_record_waits(tmp_path: Path) -> None:
    path = tmp_path / "odd.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.setblocking(False)
        sender = Sender(str(path))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sender.run())
            trace = opened(sender)
            client, _ = await asyncio.get_running_loop().sock_accept(server)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\nwhat is this?")
            status = await trace.flush(0.2)
            assert (status.state, status.recorded) == ("degraded", 0)
            assert "no writer" in status.reason
            task.cancel()
        client.close()


@pytest.mark.anyio
async def test_a_socket_path_over_107_bytes_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    dir_fd = os.open(deep, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{dir_fd}/w.sock")
        os.close(dir_fd)
        server.listen()
        server.setblocking(False)
        sender = Sender(str(deep / "w.sock"))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sender.run())
            async with asyncio.timeout(5):
                client, _ = await asyncio.get_running_loop().sock_accept(server)
            client.close()
            task.cancel()


def test_the_null_twin_has_the_same_methods_with_the_same_parameters() -> None:
    wanted = {name for name in vars(Trace) if not name.startswith("_")}
    sender = Sender("/nowhere")
    for trace in (NullTrace("s1"), opened(sender)):
        assert all(hasattr(trace, name) for name in wanted)
    for name in ("record", "flush", "close", "status"):
        null, real = inspect.signature(getattr(NullTrace("s1"), name)), inspect.signature(getattr(opened(sender), name))
        assert list(null.parameters) == list(real.parameters)


@pytest.mark.anyio
async def test_the_null_twin_records_nothing_and_says_why() -> None:
    trace = NullTrace("s1", "AGENTD_NO_TRACE is set")
    trace.record(ToolOutputDelta(0, "x"))
    assert await trace.flush() == await trace.close() == trace.status()
    assert (trace.status().state, trace.status().reason) == ("off", "AGENTD_NO_TRACE is set")
