"""The parts of the protocol model: flaws to plant, how much may happen, files in memory, a connection as two queues."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from tests.strategies import SESSION
from tracewriter.config import Limits
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Journal, Key
from tracewriter.recorder import Recording
from tracewriter.redact import CannotRedact, Redactor
from tracewriter.scan import parse_record
from tracewriter.segment import Outcome

KEY: Final = Key(SESSION, "/w")
LIMITS: Final = Limits()
POISON: Final = "poison"  # a line that the writer refuses for good
ROUNDS: Final = 60


class Violation(AssertionError):
    """A promise of the protocol that a state breaks."""


class Flaws(Struct, frozen=True):
    """Bugs of the writer's loop and of its files that can be planted."""

    hello_ends_nobody: bool = False
    any_conn_takes_over: bool = False
    eof_frees_the_key: bool = False
    opened_says_received: bool = False
    no_cut_back: bool = False
    short_write_counts_for_nothing: bool = False
    lives_are_the_same: bool = False
    taken_by_life_alone: bool = False


class Budget(Struct, frozen=True):
    """How much may happen."""

    records: int = 2
    losses: int = 1
    kills: int = 1
    faults: int = 0
    lives: int = 1
    poison: int = -1  # which record is one
    body: int = -1  # which record has a text that is too long for it


class Passing(Redactor):
    """Redacts nothing, and cannot redact poison."""

    def __init__(self) -> None:
        pass

    def redact(self, block: bytes) -> bytes:
        if POISON.encode() in block:
            raise CannotRedact("poison")
        return block


class MemoryJournal:
    """What Recording asks of a Journal, over a list of lines."""

    def __init__(self, disk: Files, life: str, last: int) -> None:
        self.key, self.disk, self._life, self.last = KEY, disk, life, last
        self.size_bytes, self.segments, self.payloads = 0, 1, 0

    def has_payload(self, payload: str) -> bool:
        return payload in self.disk.payloads

    def store_payload(self, payload: str, data: bytes) -> OSError | None:
        if self.disk.short >= 0:
            self.disk.short = -1
            return OSError(errno.ENOSPC, "full")
        self.disk.payloads.add(payload)
        return None

    def append(self, block: bytes, lines: int, last: int, seq_after: Callable[[int], int]) -> Outcome:
        got = block.split(b"\n")[:-1]
        if self.disk.lines or got:
            self.disk.life = self._life
        if self.disk.short < 0:
            self.disk.take(got)
            self.last = last
            return Outcome(lines)
        whole, self.disk.short = min(self.disk.short, lines - 1), -1
        self.disk.take(got[:whole])
        if self.disk.flaws.no_cut_back:
            self.disk.torn = got[whole][: len(got[whole]) // 2]
        if self.disk.flaws.short_write_counts_for_nothing:
            whole = 0
        if whole:
            self.last = seq_after(whole)
        return Outcome(whole, OSError(errno.ENOSPC, "full"))

    def close(self) -> None:
        """Nothing is open."""


class Files:
    """What is on disk. It outlives writers."""

    def __init__(self, flaws: Flaws) -> None:
        self.flaws = flaws
        self.lines: list[bytes] = []
        self.payloads: set[str] = set()
        self.torn = b""
        self.life = ""
        self.short = -1  # lines that the next write takes before it fails; -1: all
        self.received = 0

    def take(self, lines: list[bytes]) -> None:
        if lines and self.torn:
            lines, self.torn = [self.torn + lines[0], *lines[1:]], b""
        self.lines += lines

    @property
    def end(self) -> int:
        for line in reversed(self.lines):
            parsed = parse_record(line)
            if parsed is not None:
                return parsed[1]
        return 0


class Connection:
    """Two queues of frames between a producer's life and the writer."""

    def __init__(self, life: str, hello: bytes) -> None:
        self.up: list[bytes] = [hello]  # to the writer
        self.down: list[bytes] = []
        self.producer_gone = False
        self.writer_gone = False
        self.life = ""  # set by HELLO
        self.conn = 0
        self.channels: dict[int, Recording] = {}
        self.used = 0


def shown(connection: Connection, now: float) -> object:
    recordings = tuple(
        (n, r.next, r._taken_next, r._gap_told, r.reason, r._retry_at <= now, repr(r._parts), r._parts._next)
        for n, r in connection.channels.items()
    )
    up, down = (tuple(short(frame) for frame in queue) for queue in (connection.up, connection.down))
    return (
        connection.life,
        connection.conn,
        connection.used,
        connection.producer_gone,
        connection.writer_gone,
        recordings,
        up,
        down,
    )


def short(frame: bytes) -> bytes:
    return frame if len(frame) < 100 else frame[:24]


def frames_of(data: bytes) -> list[bytes]:
    out: list[bytes] = []
    while data:
        size = 24 + int.from_bytes(data[:4], "little")
        out.append(data[:size])
        data = data[size:]
    return out


def nothing() -> None:
    """Nobody has to be woken: the search decides when things are sent."""


def never(last: int) -> Journal:
    raise SessionUnavailable("EIO", os.strerror(errno.EIO), 250)
