"""A forked child never speaks on its parent's connection: what it records through what it inherited is counted and goes nowhere."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tracewriter.events import ToolOutputDelta
from tracewriter.protocol import Frame, FrameDecoder, Kind, Welcome, encode
from tracewriter.sender import Sender, SessionTrace

IN_PARENT, IN_CHILD = "said by the parent", "said by the child"


class Recorded:
    """A writer that keeps what it is sent, acknowledges it, and counts who connects."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        decoder = FrameDecoder()
        try:
            while data := await reader.read(65536):
                for frame in decoder.feed(data):
                    self.frames.append(frame)
                    writer.write(self.answer(frame))
        finally:
            writer.close()

    def answer(self, frame: Frame) -> bytes:
        match frame.kind:
            case Kind.HELLO:
                return encode(Kind.WELCOME, body=Welcome(1))
            case Kind.OPEN:
                return encode(Kind.OPENED, channel=frame.channel, first=1)
            case Kind.EVENTS:
                return encode(Kind.ACK, channel=frame.channel, first=frame.first + frame.count - 1)
            case Kind.FLUSH:
                return encode(Kind.FLUSHED, first=frame.first, body=b'{"ok":true}')
            case _:
                return b""


def in_child(sender: Sender, trace: SessionTrace) -> bytes:
    """Everything a child may try with what it inherited; gives its account."""
    for _ in range(300):
        trace.record(ToolOutputDelta(0, IN_CHILD))
    late = sender.open("late", "/w", agentd="0", mode="plan", capture="content")
    late.record(ToolOutputDelta(0, IN_CHILD))
    sender._pump()
    sender._readable()
    sender._can_write()
    status, after = trace.status(), late.status()
    right = status.state == after.state == "off" and status.reason.startswith("forked: ") and sender._connect() is None
    return struct.pack("<?QQQ", right, status.emitted, status.recorded, status.dropped + after.dropped)


def forked(work: Callable[[], bytes]) -> bytes:
    """What `work` gives in a real fork of this process."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, work())
        finally:
            os._exit(0)
    os.close(theirs)
    said = os.read(ours, 1000)
    os.close(ours)
    os.waitpid(child, 0)
    return said


@pytest.mark.anyio
async def test_a_forked_child_counts_what_it_records_and_sends_nothing(tmp_path: Path) -> None:
    recorded = Recorded()
    server = await asyncio.start_unix_server(recorded.serve, tmp_path / "w.sock")
    sender = Sender(str(tmp_path / "w.sock"))
    async with server, asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        trace = sender.open("s1", "/w", agentd="0", mode="plan", capture="content")
        trace.record(ToolOutputDelta(0, IN_PARENT))
        assert (await trace.flush()).recorded == 2
        trace.record(ToolOutputDelta(0, IN_PARENT))  # waits in the buffer while the process is forked
        account = forked(lambda: in_child(sender, trace))
        # 2 recorded by the parent before; 1 that waited and 300 more are not the child's to send, 2 of the late session
        assert struct.unpack("<?QQQ", account) == (True, 303, 2, 303)
        trace.record(ToolOutputDelta(0, IN_PARENT))
        status = await trace.flush()
        assert (status.state, status.emitted, status.recorded, status.dropped) == ("ok", 4, 4, 0)
        task.cancel()
    bodies = b"".join(frame.body for frame in recorded.frames if frame.kind is Kind.EVENTS)
    assert (bodies.count(IN_PARENT.encode()), bodies.count(IN_CHILD.encode())) == (3, 0)
    assert recorded.connections == 1


def test_a_sender_that_a_child_makes_itself_is_its_own(tmp_path: Path) -> None:
    parent = Sender(str(tmp_path / "w.sock"))

    def in_child() -> bytes:
        made = Sender(str(tmp_path / "w.sock"))
        trace = made.open("s1", "/w", agentd="0", mode="plan", capture="content")
        return b"own" if made.producer.life != parent.producer.life and trace.status().state != "off" else b"shared"

    assert forked(in_child) == b"own"
    assert not parent._disowned
