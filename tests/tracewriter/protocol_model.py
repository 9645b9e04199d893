"""The recording protocol as a world that can be searched breadth first: real Producer and Outbox, real Recording, and between
them connections that break anywhere, a writer that is killed, a disk that takes part of a write, producers that live twice.

A state is the pickled world; what it stands for is its `fingerprint`. `World.check` holds in every state, `World.settle` must
bring every state to its end. Bugs are planted by handing in other classes or `Flaws`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.fakes import START, FakeClock
from tests.strategies import SESSION
from tests.tracewriter.protocol_parts import (
    LIMITS,
    POISON,
    ROUNDS,
    Budget,
    Connection,
    Files,
    Flaws,
    MemoryJournal,
    Passing,
    Violation,
    frames_of,
    never,
    nothing,
    shown,
)
from tracewriter.errors import ProtocolError, SessionUnavailable
from tracewriter.events import ToolOutputDelta
from tracewriter.outbox import Outbox
from tracewriter.payload import PAYLOAD_BYTES
from tracewriter.producer import Channel, Producer, SessionInfo
from tracewriter.protocol import Frame, FrameDecoder, Hello, Kind, Open, Welcome, decode_body, encode
from tracewriter.recorder import Recording, closed, refused
from tracewriter.scan import parse_record

BODY = "x " * (PAYLOAD_BYTES // 2 + 1)


class World:
    """One state."""

    def __init__(
        self,
        budget: Budget,
        flaws: Flaws,
        producer: type[Producer] = Producer,
        outbox: type[Outbox] = Outbox,
        recording: type[Recording] = Recording,
        *,
        second_is_new: bool = False,
    ) -> None:
        self.left = budget
        self.flaws = flaws
        self.kinds = (producer, outbox, recording)
        self.second_is_new = second_is_new
        self.clock = FakeClock()
        self.files = Files(flaws)
        self.connections: list[Connection] = []  # those the writer has not read to their end
        self.held: dict[str, Connection] = {}
        self.given = 0
        self.life = 0
        self.lives: list[list[str]] = []  # the texts that each life recorded, in order
        self.begin_life(resumed=False)

    # --- the producer's side

    def begin_life(self, *, resumed: bool) -> None:
        producer, outbox, _ = self.kinds
        self.life += 1
        self.lives.append([])
        self.current: Connection | None = None
        self.producer = producer(f"{self.life:016x}", self.clock, wake=nothing)
        box = outbox(SESSION, self.clock, self.producer.budget, resumed=resumed, wake=nothing)
        self.channel = Channel(SessionInfo(SESSION, "/w"), box)
        self.producer.attach(self.channel)

    def record(self, *, poison: bool = False, body: bool = False) -> None:
        text = f"{self.life}:{self.given}" + (POISON if poison else "")
        self.given += 1
        self.lives[-1].append(text)
        self.channel.outbox.record(ToolOutputDelta(0, f"{text} {BODY}" if body else text), ts=START)

    def connect(self) -> None:
        self.current = Connection(self.producer.life, self.producer.connected())
        self.connections.append(self.current)

    def send(self) -> None:
        assert self.current is not None
        pieces = b"".join(map(bytes, self.producer.outgoing()))
        if not self.current.writer_gone:
            self.current.up += frames_of(pieces)

    def receive(self) -> None:
        connection = self.current
        assert connection is not None
        if connection.down:
            self.producer.receive(connection.down.pop(0))
        else:
            self.lose()

    def lose(self) -> None:
        """The producer's end of the connection is gone; what it sent may still be read."""
        if self.current is not None:
            self.current.producer_gone = True
            self.producer.disconnected()
            self.current = None

    # --- the writer's side

    def serve(self, connection: Connection, count: int) -> None:
        """One receive of so many frames."""
        data, connection.up = connection.up[:count], connection.up[count:]
        touched: dict[int, Recording] = {}
        try:
            for frame in FrameDecoder().feed(b"".join(data)):
                if connection not in self.connections:
                    return
                self.frame(connection, frame, touched)
        except ProtocolError as exc:
            raise Violation(f"the writer had to end a connection: {exc}") from exc
        self.write(connection, touched)

    def write(self, connection: Connection, touched: dict[int, Recording]) -> None:
        for recording in touched.values():
            self.answer(connection, recording.write())
        touched.clear()

    def answer(self, connection: Connection, data: bytes) -> None:
        if not connection.producer_gone:
            connection.down += frames_of(data)

    def frame(self, connection: Connection, frame: Frame, touched: dict[int, Recording]) -> None:
        match frame.kind:
            case Kind.HELLO:
                self.hello(connection, decode_body(frame.body, Hello))
            case Kind.OPEN:
                if frame.channel <= connection.used:
                    raise ProtocolError("a channel number was used twice")
                connection.used = frame.channel
                self.open(connection, frame.channel, decode_body(frame.body, Open))
            case Kind.EVENTS | Kind.DROP | Kind.PAYLOAD:
                recording = connection.channels.get(frame.channel)
                if recording is not None:
                    take = recording.take_payload if frame.kind is Kind.PAYLOAD else recording.take
                    take(frame)
                    touched[frame.channel] = recording
            case Kind.CLOSE:
                self.write(connection, touched)
                found = connection.channels.pop(frame.channel, None)
                if found is not None:
                    self.held.pop(SESSION, None)
                self.answer(connection, closed(frame.channel, found.next - 1 if found else 0))
            case _:
                raise ProtocolError(f"a {frame.kind.name} frame")

    def hello(self, connection: Connection, hello: Hello) -> None:
        for other in list(self.connections):
            if other is connection or other.life != hello.producer:
                continue
            if hello.conn <= other.conn and not self.flaws.any_conn_takes_over:
                self.end(connection)
                return
            if not self.flaws.hello_ends_nobody:
                self.end(other)
        connection.life, connection.conn = hello.producer, hello.conn
        self.answer(connection, encode(Kind.WELCOME, body=Welcome(1)))

    def open(self, connection: Connection, channel: int, request: Open) -> None:
        try:
            holder = self.held.get(SESSION)
            if holder is not None:
                if holder.life == connection.life and holder is not connection and not self.flaws.hello_ends_nobody:
                    self.end(holder)
                if not self.flaws.hello_ends_nobody or holder.life != connection.life:
                    raise SessionUnavailable("busy", "held", 250)
                holder.channels.clear()
            foreign = self.files.life not in ("", connection.life) and (
                self.files.end > request.acked or self.flaws.taken_by_life_alone
            )
            if request.last and foreign and not self.flaws.lives_are_the_same:
                raise SessionUnavailable("taken", "another")
        except SessionUnavailable as exc:
            self.answer(connection, refused(channel, exc))
            return
        last = max(self.files.end, request.acked)
        if self.flaws.opened_says_received:
            last = max(last, request.last)
        journal: Any = MemoryJournal(self.files, connection.life, last)
        _, _, kind = self.kinds
        recording = kind(
            channel=channel, journal=journal, reopen=never, redactor=Passing(), limits=LIMITS, clock=self.clock
        )
        connection.channels[channel] = recording
        self.held[SESSION] = connection
        self.answer(connection, encode(Kind.OPENED, channel=channel, first=recording.next))

    def end(self, connection: Connection) -> None:
        """The writer is done with a connection, read or unread."""
        self.connections.remove(connection)
        connection.writer_gone = True
        for recording in connection.channels.values():
            recording.write()
        if self.held.get(SESSION) is connection or self.flaws.eof_frees_the_key:
            self.held.pop(SESSION, None)
        connection.channels.clear()
        connection.up.clear()

    def kill_writer(self) -> None:
        for connection in self.connections:
            connection.writer_gone = True
            connection.channels.clear()
            connection.up.clear()
        self.connections.clear()
        self.held.clear()

    # --- what may happen

    def actions(self) -> Iterator[tuple[str, int]]:
        left = self.left
        if left.records:
            yield "record", 0
        if self.current is None:
            yield "connect", 0
        else:
            yield "send", 0
            if self.current.down or self.current.writer_gone:
                yield "receive", 0
            if left.losses:
                yield "lose", 0
        for number, connection in enumerate(self.connections):
            if connection.up:
                yield "serve one", number
                if len(connection.up) > 1:
                    yield "serve all", number
            elif connection.producer_gone:
                yield "end", number
        if left.kills:
            yield "kill", 0
        if left.faults and self.files.short < 0:
            yield "short write", 0
            yield "short write", 1
        if left.lives > 1:
            yield "die", 0
        if self.channel.resend_at or self.channel.reopen_at:
            yield "time", 0

    def apply(self, name: str, number: int) -> None:
        left = self.left
        match name:
            case "record":
                self.record(poison=left.poison == self.given, body=left.body == self.given)
                self.left = msgspec.structs.replace(left, records=left.records - 1)
            case "connect":
                self.connect()
            case "send":
                self.send()
            case "receive":
                self.receive()
            case "lose":
                self.lose()
                self.left = msgspec.structs.replace(left, losses=left.losses - 1)
            case "serve one":
                self.serve(self.connections[number], 1)
            case "serve all":
                self.serve(self.connections[number], len(self.connections[number].up))
            case "end":
                self.end(self.connections[number])
            case "kill":
                self.kill_writer()
                self.left = msgspec.structs.replace(left, kills=left.kills - 1)
            case "short write":
                self.files.short = number
                self.left = msgspec.structs.replace(left, faults=left.faults - 1)
            case "die":
                self.lose()
                self.begin_life(resumed=not self.second_is_new)
                self.left = msgspec.structs.replace(left, lives=left.lives - 1)
            case "time":
                self.clock.advance(100)
            case _:
                raise AssertionError(name)

    # --- what holds

    def check(self) -> None:
        """In every state: lines in order and once, each life's events in the order given, nothing acknowledged missing."""
        expected = 1
        stored: list[tuple[int, int, str]] = []
        for line in self.files.lines:
            parsed = parse_record(line)
            if parsed is None:
                raise Violation(f"a damaged line: {line!r}")
            record, end = parsed
            if record.seq != expected:
                raise Violation(f"seq {record.seq} where {expected} should be")
            expected = end + 1
            text = msgspec.json.decode(record.data).get("text", "") if record.event == "tool.output.delta" else ""
            if isinstance(text, dict):
                if text["payload"] not in self.files.payloads:
                    raise Violation("a record names a body that is not there")
                text = text["head"].split(" ")[0]
            stored.append((record.seq, end, text))
        texts = [text for _, _, text in stored if text]
        if len(texts) != len(set(texts)):
            raise Violation("an event is there twice")
        for number, given in enumerate(self.lives, 1):
            mine = [text for text in texts if text.startswith(f"{number}:")]
            if mine != [text for text in given if text in mine]:
                raise Violation("events are out of order")
        outbox = self.channel.outbox
        if outbox.acked > expected - 1:
            raise Violation(f"{outbox.acked} are acknowledged, {expected - 1} are there")
        self.check_accounts(stored)

    def check_accounts(self, stored: list[tuple[int, int, str]]) -> None:
        outbox = self.channel.outbox
        if outbox.stopped and not outbox.stopped.startswith("closed"):
            raise Violation(f"stopped: {outbox.stopped}")
        mine = [item for item in stored if outbox.started_after < item[0] <= outbox.acked and outbox.has_numbers]
        if outbox.has_numbers and sum(end - seq + 1 for seq, end, _ in mine) < outbox.acked - outbox.started_after:
            raise Violation("something acknowledged is missing")
        there = {text for _, _, text in mine}
        dropped = sum(end - seq + 1 for seq, end, text in mine if end > seq or not text)
        newest = max((self.lives[-1].index(text) for text in there if text in self.lives[-1]), default=0)
        if sum(text not in there for text in self.lives[-1][:newest]) > dropped:
            raise Violation("an event was lost between others without a record of it")

    def settle(self) -> None:
        """Without further faults everything is recorded and the session closes."""
        self.files.short = -1
        self.record()
        for turn in range(ROUNDS):
            self.turn()
            self.check()
            if turn > 3 and self.channel.outbox.idle and not self.channel.close_asked:
                self.producer.ask_close(self.channel)
            if self.channel.phase == "gone":
                break
        else:
            raise Violation(f"stall: {self.channel!r}")
        stored = b"\n".join(self.files.lines).decode()
        recorded = sum(f'"{text}"' in stored or f'"{text} ' in stored for text in self.lives[-1])
        drops = sum("trace.drop.observed" in line.decode() for line in self.files.lines)
        if recorded + drops < len(self.lives[-1]):
            raise Violation("an event is neither recorded nor in a drop record")

    def turn(self) -> None:
        if self.current is None:
            self.connect()
        self.send()
        for connection in list(self.connections):
            if connection in self.connections and connection.up:
                self.serve(connection, len(connection.up))
            if connection in self.connections and connection.producer_gone:
                self.end(connection)
        while self.current is not None and (self.current.down or self.current.writer_gone):
            self.receive()
        self.clock.advance(100)

    # --- what a state is

    def __getstate__(self) -> dict[str, Any]:
        self.channel.outbox._forget_heads()  # made again when they are needed
        return vars(self)

    def fingerprint(self) -> object:
        now = self.clock.monotonic()
        numbers = {id(c): n for n, c in enumerate(self.connections)}
        p, c, o = self.producer, self.channel, self.channel.outbox

        def due(when: float | None) -> object:
            return None if when is None else when <= now

        channel = (
            c.number,
            c.phase,
            c.sent,
            due(c.resend_at),
            c.probing,
            due(c.reopen_at),
            c.close_asked,
            c.reason,
            c.held_up,
            c.queued,
        )
        frames = tuple((f.kind, f.first, f.count) for f in o.frames)
        box = (o.last, o.acked, o.started_after, frames, len(o._lines), o._drop_first, o.stopped, o.has_numbers)
        return (
            (
                p.life,
                p.ready,
                p._conn,
                p._numbers,
                tuple(p._control),
                channel,
                box,
                tuple(self.lives[-1]),
            ),
            None if self.current is None else shown(self.current, now),
            tuple(shown(connection, now) for connection in self.connections),
            None if self.current is None else numbers.get(id(self.current)),
            numbers.get(id(self.held.get(SESSION))),
            (
                tuple(line[:12] + line[-24:] for line in self.files.lines),
                self.files.torn,
                self.files.life,
                self.files.short,
                len(self.files.payloads),
            ),
            self.left,
            self.given,
        )


def search(world: World, *, settle_every: int = 1, most: int = 10**9) -> int:
    """Every state that can be reached (at most so many), each checked, every so-many-th brought to its end. Gives how many."""
    seen = {world.fingerprint()}
    frontier = [(pickle.dumps(world), "")]
    while frontier and len(seen) < most:
        coming: list[tuple[bytes, str]] = []
        for state, path in frontier:
            for name, number in list(pickle.loads(state).actions()):
                after: World = pickle.loads(state)
                there = f"{path}, {name} {number}" if number else f"{path}, {name}"
                try:
                    after.apply(name, number)
                    after.check()
                    key = after.fingerprint()
                    if key in seen:
                        continue
                    seen.add(key)
                    saved = pickle.dumps(after)
                    if len(seen) % settle_every == 0:
                        after.settle()
                except Violation as exc:
                    raise Violation(f"{exc} after{there}") from exc
                coming.append((saved, there))
        frontier = coming
    return len(seen)
