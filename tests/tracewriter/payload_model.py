"""A writer made of the contract alone: it takes frames in order, keeps bodies and lines, and finds what no producer may send."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.fakes import FakeClock
from tests.strategies import SESSION
from tracewriter.config import MAX_FRAME, MAX_LINE
from tracewriter.events import Event
from tracewriter.expand import expand
from tracewriter.outbox import Outbox
from tracewriter.payload import MAX_PAYLOAD, REFERENCE, PayloadRef, head_of
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.protocol import (
    FLAG_JSON,
    FLAG_LAST,
    Frame,
    FrameDecoder,
    Kind,
    Nack,
    Open,
    Welcome,
    decode_body,
    encode,
)
from tracewriter.scan import parse_record


class Files:
    """What is on disk."""

    def __init__(self) -> None:
        self.lines: dict[int, bytes] = {}
        self.drops: dict[int, int] = {}  # first and last
        self.bodies: dict[str, tuple[bytes, bool]] = {}
        self.next = 1

    def load(self, ref: PayloadRef) -> bytes | None:
        data, is_json = self.bodies[ref.payload]
        text = data.decode()
        assert (ref.bytes, ref.chars, ref.head) == (len(data), len(text), head_of(text))
        assert is_json == (ref.type == "json")
        return data

    def whole(self, seq: int) -> bytes:
        """The data of a record with its bodies in it."""
        parsed = parse_record(self.lines[seq])
        assert parsed is not None
        return bytes(expand(parsed[0].data, self.load))

    @property
    def dropped(self) -> int:
        return sum(last - first + 1 for first, last in self.drops.items())


class ModelWriter:
    """One connection's end for one session. `verdict` says of each frame what becomes of it: "" taken, or a NACK's code."""

    def __init__(self, files: Files, verdict: Callable[[Frame], str]) -> None:
        self.files, self.verdict = files, verdict
        self.decoder = FrameDecoder()
        self.channel = 0
        self.parts: list[Frame] = []
        self.waits = b""  # a body that is not whole: the next record is not taken without it
        self.deaf = False  # after a NACK, until the producer has gone back
        self.payload_frames = 0

    def receive(self, data: bytes) -> bytes:
        return b"".join(map(self.frame, self.decoder.feed(data)))

    def frame(self, frame: Frame) -> bytes:
        match frame.kind:
            case Kind.HELLO:
                return encode(Kind.WELCOME, body=Welcome(1))
            case Kind.OPEN:
                self.channel = frame.channel
                self.files.next = max(self.files.next, decode_body(frame.body, Open).acked + 1)
                return encode(Kind.OPENED, channel=self.channel, first=self.files.next)
            case Kind.CLOSE:
                return encode(Kind.CLOSED, channel=self.channel, first=self.files.next - 1)
            case Kind.PAYLOAD:
                self.payload_frames += 1
                return self.payload(frame)
            case _:
                return self.record(frame)

    def ack(self) -> bytes:
        return encode(Kind.ACK, channel=self.channel, first=self.files.next - 1)

    def nack(self, code: str, count: int) -> bytes:
        self.parts.clear()
        body = Nack(code, 0 if count else 250 if code == "ENOSPC" else 0)
        return encode(Kind.NACK, channel=self.channel, first=self.files.next, count=count, body=body)

    def payload(self, frame: Frame) -> bytes:
        assert len(frame.body) <= MAX_FRAME
        assert frame.first >= 1
        if frame.first != self.files.next:
            return self.ack()
        if frame.count == 1:
            self.parts.clear()
            self.waits = self.waits or bytes(frame.body[:32])
        elif len(self.parts) != frame.count - 1 or self.parts[0].body[:32] != frame.body[:32]:
            return self.ack()
        code = self.verdict(frame)
        if code:
            return self.nack(code, 1 if code in ("limit", "malformed") else 0)
        self.parts.append(frame)
        if frame.flags & FLAG_LAST:
            whole = b"".join(bytes(part.body[32:]) for part in self.parts)
            assert len(whole) <= MAX_PAYLOAD
            assert len({part.flags & FLAG_JSON for part in self.parts}) == 1
            is_json = bool(frame.flags & FLAG_JSON)
            payload = bytes(frame.body[:32]).decode()
            assert self.files.bodies.setdefault(payload, (whole, is_json)) == (whole, is_json)
            self.parts.clear()
            self.waits = b"" if self.waits == frame.body[:32] else self.waits
        return self.ack()

    def record(self, frame: Frame) -> bytes:
        files = self.files
        end = frame.first + frame.count - 1
        if end < files.next:
            return self.ack()
        if frame.first > files.next or (self.waits and frame.kind is Kind.EVENTS):
            return b"" if self.deaf else self.gap()
        self.deaf = False
        code = self.verdict(frame)
        if code in ("limit", "malformed") and frame.kind is Kind.EVENTS:
            self.deaf = True
            return self.nack(code, end - files.next + 1)
        if code == "ENOSPC":
            self.deaf = True
            return self.nack(code, 0)
        self.waits = b""
        self.parts.clear()
        self.store(frame, end)
        return self.ack()

    def gap(self) -> bytes:
        self.deaf = True
        return self.nack("gap", 0)

    def store(self, frame: Frame, end: int) -> None:
        files = self.files
        if frame.kind is Kind.DROP:
            assert frame.first == files.next
            files.drops[frame.first] = end
            files.next = end + 1
            return
        lines = bytes(frame.body).split(b"\n")[:-1]
        assert len(lines) == frame.count
        for seq, line in enumerate(lines, frame.first):
            if seq < files.next:
                continue
            assert len(line) < MAX_LINE
            assert msgspec.json.decode(line)["seq"] == seq
            for match in REFERENCE.finditer(line):
                assert match[1].decode() in files.bodies, f"{seq} names a body that is not there"
            files.lines[seq] = line
            files.next = seq + 1


class Talk:
    """A producer with one session, its writer, and a connection that may break at any byte."""

    def __init__(self, *, buffer_bytes: int = 2**24, outbox: type[Outbox] = Outbox) -> None:
        self.clock = FakeClock()
        self.producer = Producer("00000000000000a1", self.clock, buffer_bytes=buffer_bytes, secret=b"s" * 32)
        box = outbox(SESSION, self.clock, self.producer.budget, resumed=False, keys=self.producer._keys)
        self.channel = Channel(SessionInfo(SESSION, "/w"), box)
        self.producer.attach(self.channel)
        self.files = Files()
        self.codes: list[str] = []  # verdicts to come
        self.events: dict[int, Event] = {}
        self.connect()
        self.pump()

    @property
    def box(self) -> Outbox:
        return self.channel.outbox

    def _verdict(self, _: Frame) -> str:
        return self.codes.pop(0) if self.codes else ""

    def connect(self) -> None:
        self.writer = ModelWriter(self.files, self._verdict)
        self._answer(self.writer.receive(self.producer.connected()))

    def _answer(self, data: bytes) -> None:
        if data:
            self.producer.receive(data)

    def record(self, event: Event, run: str = "") -> None:
        before = self.box.last
        self.box.record(event, run=run)
        if self.box.last == before + 1:
            self.events[self.box.last] = event

    def pump(self, most: int = 10**9) -> int:
        """Send what there is, a few rounds; after `most` bytes the connection breaks. Gives how many bytes were sent."""
        sent = 0
        while data := b"".join(map(bytes, self.producer.outgoing())):
            cut = data[: most - sent]
            sent += len(cut)
            answers = self.writer.receive(cut)
            if len(cut) < len(data) or sent >= most:
                self.producer.disconnected()
                self.connect()
                break
            self._answer(answers)
            self.check()
        return sent

    def settle(self) -> None:
        """Without further trouble everything arrives."""
        self.codes.clear()
        for _ in range(30):
            self.pump()
            self.clock.advance(1)
            if self.box.idle or self.box.stopped:
                break
            self.box.prepare_close()
        assert self.box.idle or self.box.stopped
        self.check()

    def check(self) -> None:
        box = self.box
        assert box.own_bytes == sum(len(frame.body) for frame in box.frames)
        assert self.producer.budget.bytes == box.own_bytes
