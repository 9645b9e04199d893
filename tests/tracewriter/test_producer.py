"""A producer's side of the socket: what it says when, and what an answer makes of what waits."""

from __future__ import annotations

import msgspec
import pytest

from tests.fakes import FakeClock
from tests.strategies import SESSION
from tracewriter.errors import ProtocolError
from tracewriter.events import ToolOutputDelta
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.protocol import (
    Flushed,
    Frame,
    FrameDecoder,
    Hello,
    Kind,
    Nack,
    Open,
    Refused,
    Welcome,
    decode_body,
    encode,
)


class Talk:
    """A producer with one session, and what it sends, decoded."""

    def __init__(self, *, resumed: bool = False) -> None:
        self.clock = FakeClock()
        self.producer = Producer("00000000000000a1", self.clock)
        self.channel = self.producer.add(SessionInfo(SESSION, "/w"), resumed=resumed)

    def record(self, count: int = 1) -> None:
        for _ in range(count):
            self.channel.outbox.record(ToolOutputDelta(0, "x"))

    def sent(self) -> list[Frame]:
        return FrameDecoder().feed(b"".join(map(bytes, self.producer.outgoing())))

    def shown(self) -> list[tuple[str, int, int]]:
        return [(frame.kind.name, frame.first, frame.count) for frame in self.sent()]

    def told(self, kind: Kind, first: int = 0, count: int = 0, body: bytes | msgspec.Struct = b"") -> None:
        channel = 0 if kind is Kind.WELCOME else self.channel.number
        self.producer.receive(encode(kind, channel=channel, first=first, count=count, body=body))

    def open(self, next_seq: int = 1) -> Open:
        self.producer.connected()
        self.told(Kind.WELCOME, body=Welcome(1))
        (frame,) = self.sent()
        self.told(Kind.OPENED, next_seq)
        return decode_body(frame.body, Open)


def test_hello_then_open_after_welcome_then_events_after_opened() -> None:
    talk = Talk()
    talk.record()
    hello = decode_body(FrameDecoder().feed(talk.producer.connected())[0].body, Hello)
    assert (hello.producer, hello.conn) == ("00000000000000a1", 1)
    assert talk.sent() == []
    talk.told(Kind.WELCOME, body=Welcome(1))
    assert [frame.kind for frame in talk.sent()] == [Kind.OPEN]
    assert talk.sent() == []
    talk.told(Kind.OPENED, 1)
    assert talk.shown() == [("EVENTS", 1, 1)]
    assert talk.sent() == []


def test_a_lost_connection_opens_again_with_what_is_known_and_sends_the_rest_again() -> None:
    talk = Talk()
    talk.record(2)
    talk.open()
    assert talk.shown() == [("EVENTS", 1, 2)]
    talk.record()
    assert talk.shown() == [("EVENTS", 3, 1)]
    talk.told(Kind.ACK, 2)
    talk.producer.disconnected()
    request = talk.open(3)
    assert (request.acked, request.last) == (2, 4)  # the loss itself was recorded
    assert talk.shown()[0][:2] == ("EVENTS", 3)


@pytest.mark.parametrize("connected", [True, False])
def test_a_flush_whose_answer_went_with_the_connection_is_asked_again(connected: bool) -> None:
    talk = Talk()
    if connected:
        talk.open()
    token = talk.producer.ask_flush()
    talk.producer.say_flush(token)
    talk.producer.disconnected()
    talk.producer.connected()
    talk.told(Kind.WELCOME, body=Welcome(1))
    assert ("FLUSH", token, 0) in talk.shown()
    talk.producer.receive(encode(Kind.FLUSHED, first=token, body=Flushed(True, "")))
    assert talk.producer.flushed == token
    talk.producer.disconnected()
    talk.producer.connected()
    talk.told(Kind.WELCOME, body=Welcome(1))
    assert [frame.kind for frame in talk.sent()] == [Kind.OPEN]


def test_a_nack_with_a_wait_sends_one_frame_after_it_and_the_rest_when_that_is_acknowledged() -> None:
    talk = Talk()
    talk.open()
    for _ in range(3):
        talk.record()
        talk.sent()
    talk.told(Kind.NACK, 1, body=Nack("ENOSPC", 250))
    assert talk.sent() == []
    assert talk.producer.problem() == "ENOSPC"
    talk.clock.advance(0.25)
    assert talk.producer.next_time() is not None
    assert talk.shown() == [("EVENTS", 1, 1)]
    assert talk.sent() == []
    talk.told(Kind.ACK, 1)
    assert [first for _, first, _ in talk.shown()][:2] == [2, 3]
    assert talk.producer.problem() == ""


def test_a_nack_without_a_wait_goes_back_at_once() -> None:
    talk = Talk()
    talk.open()
    for _ in range(3):
        talk.record()
        talk.sent()
    talk.told(Kind.NACK, 2, body=Nack("gap"))
    assert talk.shown() == [("EVENTS", 2, 1), ("EVENTS", 3, 1)]


def test_what_is_refused_for_good_is_replaced_by_a_drop_of_the_same_range() -> None:
    talk = Talk()
    talk.open()
    for count in (1, 3, 1):
        talk.record(count)
        talk.sent()
    talk.told(Kind.NACK, 2, 3, Nack("malformed"))
    assert talk.shown() == [("DROP", 2, 3), ("EVENTS", 5, 1)]


@pytest.mark.parametrize(("retry_ms", "again"), [(250, True), (0, True), (-1, False)])
def test_a_refused_session_is_asked_for_again_under_another_number_or_never(retry_ms: int, again: bool) -> None:
    talk = Talk()
    talk.record()
    talk.producer.connected()
    talk.told(Kind.WELCOME, body=Welcome(1))
    talk.sent()
    talk.told(Kind.REFUSED, body=Refused("busy", "held", retry_ms))
    talk.clock.advance(1)
    frames = talk.sent()
    assert [(frame.kind, frame.channel) for frame in frames] == ([(Kind.OPEN, 2)] if again else [])
    assert bool(talk.channel.outbox.stopped) != again
    assert talk.channel.outbox.dropped == (0 if again else talk.channel.outbox.emitted)


def test_close_is_said_when_all_is_acknowledged() -> None:
    talk = Talk()
    talk.open()
    talk.record()
    talk.producer.ask_close(talk.channel)
    assert talk.shown() == [("EVENTS", 1, 1)]
    talk.told(Kind.ACK, 1)
    assert [frame.kind for frame in talk.sent()] == [Kind.CLOSE]
    talk.told(Kind.CLOSED, 1)
    assert (talk.channel.phase, talk.producer.channels) == ("gone", [])


def test_a_session_whose_drop_record_does_not_fit_stops_instead_of_asking_for_ever() -> None:
    talk = Talk()
    talk.open()
    talk.record()
    rounds = 0
    while (frames := [f for f in talk.sent() if f.kind in (Kind.EVENTS, Kind.DROP)]) and rounds < 50:
        rounds += 1
        talk.told(Kind.NACK, frames[0].first, frames[0].count, Nack("limit"))
    assert rounds < 5
    assert talk.channel.outbox.stopped.startswith("limit")
    assert talk.producer.problem().startswith("limit")


def test_answers_about_a_session_that_is_no_more_mean_nothing() -> None:
    talk = Talk()
    talk.open()
    for kind in (Kind.ACK, Kind.OPENED, Kind.CLOSED):
        talk.producer.receive(encode(kind, channel=99, first=5))
    assert isinstance(talk.channel, Channel)
    assert talk.channel.phase == "open"


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.OPEN, Kind.DROP, Kind.CLOSE, Kind.FLUSH])
def test_what_no_writer_says_ends_the_connection(kind: Kind) -> None:
    talk = Talk()
    talk.open()
    with pytest.raises(ProtocolError):
        talk.told(kind)


def test_a_buffer_that_drained_puts_one_drop_for_what_did_not_fit() -> None:
    talk = Talk()
    talk.producer.budget.limit, talk.producer.budget.resume = 80_000, 60_000
    talk.open()
    talk.record(2000)
    box = talk.channel.outbox
    assert box.dropped > 0
    recorded = box.last - box.dropped
    while talk.sent():
        pass
    talk.told(Kind.ACK, recorded)
    assert talk.shown() == [("DROP", recorded + 1, box.dropped)]
    talk.told(Kind.ACK, box.last)
    assert (box.idle, talk.producer.budget.bytes, talk.producer.budget.full) == (True, 0, False)


def test_a_wall_clock_that_jumps_is_recorded_once_and_a_slow_one_is_not() -> None:
    talk = Talk()
    talk.open()
    talk.clock.advance(3600)
    talk.record()
    talk.clock.jump(2.0)
    talk.sent()
    talk.clock.jump(-86_400.0)
    talk.clock.advance(10)
    talk.sent()
    talk.sent()
    bodies = b"".join(bytes(frame.body) for frame in talk.channel.outbox.frames).split(b"\n")[:-1]
    kinds = [msgspec.json.decode(line)["event"] for line in bodies]
    assert kinds == ["tool.output.delta", "trace.clock.observed"]
    assert msgspec.json.decode(bodies[-1])["data"] == {"jump_s": -86400.0}
