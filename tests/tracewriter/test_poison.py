"""One odd value, one odd session or one odd answer never silences the others: what a producer sends always fits a frame."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.fakes import FakeClock
from tests.strategies import SESSION
from tracewriter.config import MAX_FRAME, MAX_LINE, MAX_SEQ
from tracewriter.errors import ProtocolError
from tracewriter.events import ToolOutputDelta
from tracewriter.producer import Producer, SessionInfo
from tracewriter.protocol import Frame, FrameDecoder, Kind, Nack, Open, Welcome, decode_body, encode
from tracewriter.sender import Sender

HUGE = "k" * 2_000_000
SURROGATE = "/w/\udcff"


def sent(producer: Producer) -> list[Frame]:
    return FrameDecoder().feed(b"".join(map(bytes, producer.outgoing())))


def greeted(*infos: SessionInfo) -> Producer:
    producer = Producer("00000000000000a1", FakeClock())
    for info in infos:
        producer.add(info, resumed=False)
    producer.connected()
    producer.receive(encode(Kind.WELCOME, body=Welcome(1)))
    return producer


@pytest.mark.parametrize(
    "odd",
    [
        SessionInfo("odd", HUGE),
        SessionInfo(HUGE, "/w"),
        SessionInfo("odd", "/w", HUGE),
        SessionInfo("odd", "/w", "content", (HUGE,)),
        SessionInfo("odd", "/w", "content", ("k" * 40_000, "l" * 40_000)),
        SessionInfo("odd", SURROGATE),
        SessionInfo("odd", "/w", "content", (SURROGATE,)),
        SessionInfo("odd", "/w", "\ud800"),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("later", [False, True])
def test_a_session_that_cannot_be_named_stops_itself_alone(odd: SessionInfo, later: bool) -> None:
    good = SessionInfo("good", "/w")
    producer = greeted(good) if later else greeted(odd, good)
    if later:
        producer.add(odd, resumed=False)
    frames = sent(producer)
    assert all(frame.kind is Kind.OPEN and len(frame.body) < MAX_FRAME for frame in frames)
    named = [decode_body(frame.body, Open).session for frame in frames]
    assert "good" in named
    held = next(channel for channel in producer.channels if channel.info.session != "good")
    if any(len(secret) > 1000 for secret in odd.secrets):
        assert "too long to be kept out" in held.outbox.stopped
        assert "odd" not in named


@pytest.mark.parametrize("name", ["run", "op", "parent"])
@pytest.mark.parametrize("value", ["z" * 1_100_000, "\ud800", "z" * MAX_LINE])
def test_an_id_of_any_length_leaves_a_line_within_its_bound(name: str, value: str) -> None:
    producer = greeted(SessionInfo(SESSION, "/w"))
    (channel,) = producer.channels
    channel.outbox.record(ToolOutputDelta(0, "x"), **{name: value})  # type: ignore[arg-type]
    channel.outbox.record(ToolOutputDelta(0, "x"))
    channel.outbox.cut()
    lines = bytes(channel.outbox.frames[0].body).split(b"\n")[:-1]
    assert [msgspec.json.decode(line)["seq"] for line in lines] == [1, 2]
    assert all(len(line) < MAX_LINE for line in lines)


def test_a_time_without_a_zone_is_stored_with_one() -> None:
    producer = greeted(SessionInfo(SESSION, "/w"))
    (channel,) = producer.channels
    naive = datetime(2026, 1, 1, 12, 0, 0)
    channel.outbox.record(ToolOutputDelta(0, "x"), ts=naive)
    channel.outbox.cut()
    line = msgspec.json.decode(bytes(channel.outbox.frames[0].body))
    assert datetime.fromisoformat(line["ts"]) == naive.astimezone(UTC)


@pytest.mark.parametrize(
    "answer",
    [
        encode(Kind.NACK, channel=1, first=0, count=2**32 - 1, body=Nack("malformed")),
        encode(Kind.NACK, channel=1, first=1, count=2**32 - 1, body=Nack("malformed")),
        encode(Kind.NACK, channel=1, first=2**63, count=0, body=Nack("EIO", 10)),
        encode(Kind.ACK, channel=1, first=2**64 - 1),
        encode(Kind.OPENED, channel=1, first=0),
        encode(Kind.OPENED, channel=1, first=MAX_SEQ + 2),
    ],
    ids=range(6),
)
def test_an_answer_about_what_was_never_sent_ends_the_connection_and_changes_nothing(answer: bytes) -> None:
    producer = greeted(SessionInfo(SESSION, "/w"))
    (channel,) = producer.channels
    sent(producer)
    if answer[4] != Kind.OPENED:
        producer.receive(encode(Kind.OPENED, channel=1, first=1))
    for _ in range(3):
        channel.outbox.record(ToolOutputDelta(0, "x"))
    with pytest.raises(ProtocolError):
        producer.receive(answer)
    producer.disconnected()
    box = channel.outbox
    assert (box.last >= 3, box.acked, box.dropped, box.stopped) == (True, 0, 0, "")


class Deaf:
    """A writer that takes HELLO and OPEN, and then says no more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        try:
            while data := await reader.read(65536):
                for frame in decoder.feed(data):
                    if frame.kind is Kind.HELLO:
                        writer.write(encode(Kind.WELCOME, body=Welcome(1)))
                    elif frame.kind is Kind.OPEN:
                        writer.write(encode(Kind.OPENED, channel=frame.channel, first=1))
        finally:
            writer.close()


@pytest.mark.anyio
async def test_a_writer_that_says_nothing_more_is_told_and_nothing_is_called_lost_or_recorded(tmp_path: Path) -> None:
    deaf = Deaf(tmp_path / "w.sock")
    server = await asyncio.start_unix_server(deaf.serve, deaf.path)
    sender = Sender(str(deaf.path))
    async with server, asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        trace = sender.open("s1", "/w", agentd="0", mode="plan", capture="content")
        for _ in range(50):
            trace.record(ToolOutputDelta(0, "x"))
        status = await trace.flush(1.5)
        assert (status.state, status.reason) == ("degraded", "the writer does not answer")
        assert sender.status().state == "degraded"
        assert (status.emitted, status.recorded, status.dropped) == (51, 0, 0)
        first, second = await asyncio.gather(trace.close(0.2), trace.close(0.2))
        assert first == second
        assert (first.state, first.emitted, first.recorded, first.dropped) == ("degraded", 52, 0, 0)
        task.cancel()


def test_what_is_dropped_and_not_acknowledged_yet_is_not_taken_off_the_recorded_twice() -> None:
    sender = Sender("/nowhere")
    trace = sender.open("s1", "/w", agentd="0", mode="plan", capture="content")
    (channel,) = sender.producer.channels
    for _ in range(9):
        trace.record(ToolOutputDelta(0, "x"))
    channel.outbox.cut()
    channel.outbox.acknowledge(6)
    channel.outbox.refuse(7, 2, "malformed")
    assert (trace.status().emitted, trace.status().recorded, trace.status().dropped) == (10, 6, 2)
    channel.outbox.refuse(9, 2, "limit")
    trace.record(ToolOutputDelta(0, "x"))
    assert trace.status().recorded == 6
