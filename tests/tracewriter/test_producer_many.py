"""Many sessions over one connection: each gets its turn, and those with nothing to say cost nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeClock
from tracewriter.events import ToolOutputDelta
from tracewriter.outbox import Outbox
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.protocol import Frame, FrameDecoder, Kind, Nack, Refused, Welcome, encode


class Looked(Outbox):
    """Counts how often it is asked for what it has."""

    looks = 0

    def cut(self) -> None:
        self.looks += 1
        super().cut()


def opened(count: int, outbox: type[Outbox] = Outbox) -> Producer:
    clock: Any = FakeClock()
    producer = Producer("00000000000000a1", clock)
    for number in range(count):
        box = outbox(f"s{number}", clock, producer.budget, resumed=False)
        producer.attach(Channel(SessionInfo(f"s{number}", "/w"), box))
    producer.connected()
    producer.receive(encode(Kind.WELCOME, body=Welcome(1)))
    sent(producer)
    for channel in producer.channels:
        producer.receive(encode(Kind.OPENED, channel=channel.number, first=1))
    assert sent(producer) == []
    return producer


def sent(producer: Producer) -> list[Frame]:
    return FrameDecoder().feed(b"".join(producer.outgoing()))


def test_a_session_that_always_has_more_starves_none() -> None:
    producer = opened(40)
    first, *others = producer.channels
    served: set[int] = set()
    for _ in range(4):
        for _ in range(60):
            first.outbox.record(ToolOutputDelta(0, "x" * 60_000))
        for channel in others:
            channel.outbox.record(ToolOutputDelta(0, "x"))
        served |= {frame.channel for frame in sent(producer)}
    assert served == {channel.number for channel in producer.channels}


def test_several_that_always_have_more_get_the_same_share() -> None:
    producer = opened(5)
    shares = dict.fromkeys((channel.number for channel in producer.channels), 0)
    for channel in producer.channels:
        for _ in range(40):
            channel.outbox.record(ToolOutputDelta(0, "x" * 65_000))
    for _ in range(8):
        for frame in sent(producer):
            shares[frame.channel] += len(frame.body)
    assert max(shares.values()) - min(shares.values()) <= 5 * 1024 * 1024 // 4  # a round and its last frame


def test_only_sessions_that_recorded_something_are_looked_at() -> None:
    producer = opened(1000, Looked)
    boxes = [channel.outbox for channel in producer.channels]
    before = sum(box.looks for box in boxes if isinstance(box, Looked))
    for _ in range(10):
        boxes[7].record(ToolOutputDelta(0, "x"))
        boxes[700].record(ToolOutputDelta(0, "x"))
        assert [frame.channel for frame in sent(producer)] == [8, 701]
    assert sum(box.looks for box in boxes if isinstance(box, Looked)) - before == 20


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["record", "pump", "ack", "later", "lose"])), max_size=60))
def test_whatever_the_order_everything_is_sent(steps: list[tuple[int, str]]) -> None:
    producer = opened(6)
    channels = producer.channels
    got: dict[int, int] = dict.fromkeys(range(6), 0)  # the last seq that arrived, by session

    def pump() -> None:
        for frame in sent(producer):
            if frame.kind is Kind.OPEN:
                number = next(n for n, c in enumerate(channels) if c.number == frame.channel)
                producer.receive(encode(Kind.OPENED, channel=frame.channel, first=got[number] + 1))
            else:
                number = next(n for n, c in enumerate(channels) if c.number == frame.channel)
                assert frame.first <= got[number] + 1
                got[number] = max(got[number], frame.first + frame.count - 1)

    for number, what in steps:
        channel = channels[number]
        if what == "record":
            channel.outbox.record(ToolOutputDelta(0, "x"))
        elif what == "pump":
            pump()
        elif what == "ack" and got[number] > channel.outbox.acked:
            producer.receive(encode(Kind.ACK, channel=channel.number, first=got[number]))
        elif what == "later":
            refused = encode(Kind.NACK, channel=channel.number, first=got[number] + 1, body=Nack("ENOSPC", 250))
            producer.receive(refused)
        elif what == "lose":
            producer.disconnected()
            producer.connected()
            producer.receive(encode(Kind.WELCOME, body=Welcome(1)))
            pump()
            pump()
    for _ in range(6):
        producer._clock.advance(1)  # type: ignore[attr-defined]
        pump()
        for number, channel in enumerate(channels):
            if got[number] > channel.outbox.acked:
                producer.receive(encode(Kind.ACK, channel=channel.number, first=got[number]))
    pump()
    assert [got[number] for number in range(6)] == [channel.outbox.last for channel in channels]


@pytest.mark.parametrize("answer", [Kind.REFUSED, Kind.NACK])
def test_the_next_time_is_the_earliest_that_is_left(answer: Kind) -> None:
    producer = opened(3)
    clock: Any = producer._clock
    start = clock.monotonic()
    for channel, wait_ms in zip(producer.channels, (3000, 1000, 2000), strict=True):
        channel.outbox.record(ToolOutputDelta(0, "x"))
        sent(producer)
        body: Any = Refused("busy", "held", wait_ms) if answer is Kind.REFUSED else Nack("ENOSPC", wait_ms)
        producer.receive(encode(answer, channel=channel.number, first=1, body=body))
        sent(producer)
    for wait_s in (1.0, 2.0, 3.0):
        assert producer.next_time() == start + wait_s
        clock.advance(0.5)
        assert sent(producer) == []
        clock.advance(0.5)
        assert len(sent(producer)) == 1
    assert producer.next_time() is None
