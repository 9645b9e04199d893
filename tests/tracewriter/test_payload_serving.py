"""Bodies over the socket: parts of many sessions mixed, connections that die among them, streams that never end."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path

import pytest

from tests.faults.clients import RawClient
from tests.tracewriter.harness import broken_references, damage, parts
from tests.tracewriter.served import served
from tracewriter import reader
from tracewriter.config import KIB, MIB, Limits
from tracewriter.journal import Key
from tracewriter.payload import MAX_PAYLOAD
from tracewriter.protocol import Frame, Kind, Nack, Open, decode_body, encode

WORKSPACE = "/w"


def wire(frame: Frame, channel: int = 1) -> bytes:
    return encode(
        frame.kind, channel=channel, count=frame.count, first=frame.first, body=bytes(frame.body), flags=frame.flags
    )


def record(seq: int, session: str, payload: str) -> bytes:
    line = (
        f'{{"seq":{seq},"ts":"2026-01-01T00:00:00Z","event":"a.b.c","session":"{session}",'
        f'"data":{{"text":{{"payload":"{payload}","bytes":50000,"chars":50000,"head":""}}}}}}\n'
    )
    return line.encode()


def naming_frame(seq: int, session: str, payload: str, channel: int = 1) -> bytes:
    return encode(Kind.EVENTS, channel=channel, count=1, first=seq, body=record(seq, session, payload))


def opened(client: RawClient, session: str, channel: int = 1) -> int:
    client.send(encode(Kind.OPEN, channel=channel, body=Open(session, WORKSPACE)))
    return client.expect(Kind.OPENED).first


def directory(base: Path, session: str) -> Path:
    return base / "traces" / Key(session, WORKSPACE).workspace_hash / session


def closed(client: RawClient, channel: int = 1) -> None:
    client.send(encode(Kind.CLOSE, channel=channel))
    client.expect(Kind.CLOSED)


def acked(client: RawClient, seq: int) -> None:
    while client.expect(Kind.ACK).first < seq:
        pass


def test_parts_of_many_sessions_on_one_connection_do_not_mix(tmp_path: Path) -> None:
    bodies = {f"s{n}": bytes(f"{n} says ", "ascii") * 20_000 for n in range(1, 6)}
    ids = {session: f"{n:x}" * 32 for n, session in enumerate(bodies, 1)}
    with served(tmp_path) as path, RawClient(path) as client:
        for channel, session in enumerate(bodies, 1):
            opened(client, session, channel)
        streams = [
            [wire(part, channel) for part in parts(1, ids[session], body, size=9000)]
            + [naming_frame(1, session, ids[session], channel)]
            for channel, (session, body) in enumerate(bodies.items(), 1)
        ]
        for row in itertools.zip_longest(*streams, fillvalue=b""):
            client.send(b"".join(row))
        for channel in range(1, 6):
            closed(client, channel)
    for session, body in bodies.items():
        there = directory(tmp_path, session)
        assert [(p.name, p.read_bytes()) for p in (there / "payloads").iterdir()] == [(ids[session], body)]
        assert damage(reader.verify(there)) == []


def test_parts_of_a_dead_connection_are_forgotten_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    body, payload = b"half of it " * 10_000, "ab" * 16
    frames = [wire(part) for part in parts(1, payload, body, size=20_000)]
    limits = Limits(payload_memory=len(body) + 1000)  # what the dead one held is needed
    with served(tmp_path, limits=limits) as path:
        old = RawClient(path, conn=1)
        opened(old, "s1")
        old.send(b"".join(frames[:4]))
        acked(old, 0)
        with RawClient(path, life=old.life, conn=2) as client:
            assert old.ended()
            old.close()
            client.expect(Kind.WELCOME)
            channel, kind = 0, Kind.REFUSED
            while kind is not Kind.OPENED:  # busy as long as the old connection's close is not done
                channel += 1
                client.send(encode(Kind.OPEN, channel=channel, body=Open("s1", WORKSPACE)))
                frame = client.frame()
                assert frame is not None
                kind = frame.kind
            client.send(b"".join(wire(part, channel) for part in parts(1, payload, body, size=20_000)[4:]))
            acked(client, 0)
            assert not list(directory(tmp_path, "s1").glob("payloads/*"))
            whole = [wire(part, channel) for part in parts(1, payload, body, size=20_000)]
            client.send(b"".join(whole) + naming_frame(1, "s1", payload, channel))
            acked(client, 1)
            closed(client, channel)
    there = directory(tmp_path, "s1")
    assert (there / "payloads" / payload).read_bytes() == body
    assert (broken_references(there), damage(reader.verify(there))) == ([], [])


@pytest.mark.parametrize("last", [False, True])
def test_streams_that_never_end_are_bounded_and_hold_up_nobody(tmp_path: Path, last: bool) -> None:
    """Each session sends 24 MiB of parts (or 24 bodies of 1 MiB, each anew): together far more than may be kept."""
    piece = b"x" * (MIB - 32)
    limits = Limits(payload_memory=4 * MIB, session_bytes=6 * MIB, session_reserve=MIB, half_frame_timeout_s=0.3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with served(tmp_path, limits=limits) as path, RawClient(path) as hostile, RawClient(path) as other:
        for channel in range(1, 7):
            opened(hostile, f"h{channel}", channel)
        opened(other, "s1")
        codes: set[str] = set()
        for number in range(1, 25):
            for channel in range(1, 7):
                payload = f"{channel:x}{number:x}".ljust(32, "0")[:32] if last else "f" * 32
                count = 1 if last else number
                frame = Frame(Kind.PAYLOAD, channel, count, 1, payload.encode() + piece, int(last))
                hostile.send(wire(frame, channel))
                codes |= codes_until_ack(hostile, channel)
        assert codes == ({"limit"} if last else {"busy"})
        said: set[Kind] = set()
        while Kind.ACK not in said:  # a part of it may be told to come again later: the others are silent by then
            other.send(wire(parts(1, "ee" * 16, b"small")[0]) + naming_frame(1, "s1", "ee" * 16))
            said |= {frame.kind for frame in answers_until_flushed(other) if frame.first == 1}
    for channel in range(1, 7):
        size = sum(p.stat().st_size for p in directory(tmp_path, f"h{channel}").glob("payloads/*"))
        assert size <= 6 * MIB if last else size == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * KIB, (
        f"{grown} KiB, of which the bodies may take 4 MiB and their redaction three times one of them"
    )


def test_the_memory_is_one_for_all_sessions_and_connections(tmp_path: Path) -> None:
    piece = b"x" * (MIB - 32)
    with (
        served(tmp_path, limits=Limits(payload_memory=2 * MIB)) as path,
        RawClient(path) as one,
        RawClient(path) as two,
    ):
        opened(one, "s1", 1)
        opened(one, "s2", 2)
        opened(two, "s3", 1)
        said = []
        for client, channel in ((one, 1), (one, 2), (two, 1)):
            client.send(wire(Frame(Kind.PAYLOAD, 1, 1, 1, b"a" * 32 + piece), channel))
            said.append({decode_body(f.body, Nack).code for f in answers_until_flushed(client) if f.kind is Kind.NACK})
        assert said == [set(), set(), {"busy"}]


def answers_until_flushed(client: RawClient) -> list[Frame]:
    """All that was said before the answer to a FLUSH."""
    client.send(encode(Kind.FLUSH, first=1))
    found: list[Frame] = []
    while not found or found[-1].kind is not Kind.FLUSHED:
        frame = client.frame()
        assert frame is not None
        found.append(frame)
    return found[:-1]


def codes_until_ack(client: RawClient, channel: int) -> set[str]:
    """Read up to the ACK of this part; NACKs before it were those of parts before."""
    codes: set[str] = set()
    while True:
        frame = client.frame()
        assert frame is not None
        if frame.kind is Kind.NACK:
            codes.add(decode_body(frame.body, Nack).code)
        if frame.kind is Kind.ACK and frame.channel == channel:
            return codes


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.PAYLOAD, 1, 1, 1, b"short"),
        Frame(Kind.PAYLOAD, 1, 0, 1, b"a" * 40),
        Frame(Kind.PAYLOAD, 1, 1, 0, b"a" * 40),
        Frame(Kind.PAYLOAD, 1, 1, 2**63, b"a" * 40),
        Frame(Kind.PAYLOAD, 1, 1, 1, b"../" * 12),
    ],
)
def test_what_is_no_part_ends_the_connection_and_nobody_else(tmp_path: Path, frame: Frame) -> None:
    with served(tmp_path) as path, RawClient(path) as hostile, RawClient(path) as other:
        opened(hostile, "s1")
        opened(other, "s2")
        hostile.send(wire(frame))
        assert hostile.ended()
        body = b"y" * MAX_PAYLOAD
        for part in parts(1, "cd" * 16, body, size=MIB - 32):
            other.send(wire(part))
        other.send(naming_frame(1, "s2", "cd" * 16))
        acked(other, 1)
    assert (directory(tmp_path, "s2") / "payloads" / ("cd" * 16)).stat().st_size == MAX_PAYLOAD


def test_parts_for_a_channel_that_is_not_open_mean_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as path, RawClient(path) as client:
        client.send(wire(parts(1, "ab" * 16, b"x")[0], 7))
        assert opened(client, "s1") == 1
        closed(client)
        client.send(wire(parts(1, "ab" * 16, b"x")[0]))
        client.send(encode(Kind.FLUSH, first=5))
        assert client.expect(Kind.FLUSHED).first == 5
    assert not (directory(tmp_path, "s1") / "payloads").exists()
