"""Opening a session in the background: nobody waits for somebody else's, and what comes meanwhile is answered in order."""

from __future__ import annotations

import pytest

from tests.faults.clients import line
from tests.faults.harness import WORKSPACE, Lab, RawClient, events
from tracewriter.protocol import Frame, Kind, Open, Refused, decode_body, encode


def _open(channel: int, session: str) -> bytes:
    return encode(Kind.OPEN, channel=channel, body=Open(session, WORKSPACE))


def test_a_close_that_overtakes_its_open_is_served_after_it_and_frees_the_session(lab: Lab) -> None:
    lab.writer()
    with RawClient(lab.socket) as client:
        client.send(_open(1, "s1") + encode(Kind.CLOSE, channel=1))
        assert client.expect(Kind.OPENED).channel == 1
        frame = client.expect(Kind.CLOSED)
        assert (frame.channel, frame.first) == (1, 0)
        client.send(_open(2, "s1"))
        assert client.expect(Kind.OPENED).first == 1


def test_a_close_that_overtakes_an_open_that_is_refused_is_answered_too(lab: Lab) -> None:
    lab.writer()
    with RawClient(lab.socket) as holder, RawClient(lab.socket) as client:
        holder.send(_open(1, "s1"))
        holder.expect(Kind.OPENED)
        client.send(_open(1, "s1") + encode(Kind.CLOSE, channel=1))
        assert decode_body(client.expect(Kind.REFUSED).body, Refused).code == "busy"
        assert client.expect(Kind.CLOSED).channel == 1


def test_two_opens_of_one_session_at_once_give_it_to_the_first(lab: Lab) -> None:
    lab.writer()
    with RawClient(lab.socket) as client:
        client.send(_open(1, "s1") + _open(2, "s1"))
        answers: dict[int, Frame] = {}
        while len(answers) < 2:
            frame = client.frame()
            assert frame is not None
            if frame.kind in (Kind.OPENED, Kind.REFUSED):
                answers[frame.channel] = frame
        assert answers[1].kind is Kind.OPENED
        assert decode_body(answers[2].body, Refused).code == "busy"


@pytest.mark.parametrize("sessions", [1, 40])
def test_who_leaves_while_its_sessions_are_opened_leaves_them_free(lab: Lab, sessions: int) -> None:
    writer = lab.writer(limits={"opens_per_turn": 2})
    names = [f"s{number}" for number in range(sessions)]
    with RawClient(lab.socket) as client:
        client.send(b"".join(_open(number, name) for number, name in enumerate(names, 1)))
    with RawClient(lab.socket) as client:
        channel = 0
        for name in names:
            answer = Kind.REFUSED
            while answer is Kind.REFUSED:  # busy, until what the first one asked for is let go of
                channel += 1
                client.send(_open(channel, name))
                frame = client.frame()
                while frame is not None and frame.kind not in (Kind.OPENED, Kind.REFUSED):
                    frame = client.frame()
                assert frame is not None
                answer = frame.kind
            client.send(encode(Kind.EVENTS, channel=channel, count=1, first=1, body=line(1, name)))
            assert client.expect(Kind.ACK).first == 1
    assert writer.stop() == 0


def test_another_session_costs_the_writer_little_memory(lab: Lab) -> None:
    writer = lab.writer()
    with RawClient(lab.socket) as client:

        def record_in(channels: range) -> int:
            for channel in channels:
                client.send(_open(channel, f"s{channel}"))
                client.expect(Kind.OPENED)
                client.send(events(range(1, 101), f"s{channel}", channel=channel))
                client.expect(Kind.ACK)
            return writer.rss_kib()

        few, many = record_in(range(1, 17)), record_in(range(17, 257))
    assert (many - few) / 240 < 24  # KiB; two automata of its own would be 60
    assert writer.stop() == 0
