"""A writer without sockets: a session's Recording over a FaultyDisk in a real directory, and what it answers, decoded."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.fakes import FakeClock, FaultyDisk
from tests.strategies import SESSION
from tracewriter import reader
from tracewriter.config import Limits
from tracewriter.disk import Disk
from tracewriter.findings import Found, Note, Verdict
from tracewriter.journal import Journal, Key, Producer
from tracewriter.payload import REFERENCE, PayloadRef
from tracewriter.protocol import FLAG_JSON, FLAG_LAST, Frame, FrameDecoder, Kind, Nack, Refused, decode_body
from tracewriter.recorder import Recording
from tracewriter.redact import Redactor

KEY = Key(SESSION, "/work")
LIFE = "00000000000000a1"
OTHER_LIFE = "00000000000000b2"


class Answer(Struct, frozen=True):
    """An ACK (code ""), a NACK or a REFUSED."""

    kind: Kind
    first: int
    count: int = 0
    code: str = ""
    retry_ms: int = 0


def answers(data: bytes) -> list[Answer]:
    """What `Recording.write` said."""
    found: list[Answer] = []
    for frame in FrameDecoder().feed(data):
        if frame.kind is Kind.ACK:
            found.append(Answer(Kind.ACK, frame.first))
        elif frame.kind is Kind.REFUSED:
            found.append(Answer(Kind.REFUSED, 0, 0, decode_body(frame.body, Refused).code))
        else:
            nack = decode_body(frame.body, Nack)
            found.append(Answer(Kind.NACK, frame.first, frame.count, nack.code, nack.retry_ms))
    return found


class Writer:
    """One writer's life over a trace root."""

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        limits: Limits | None = None,
        producer: Producer | None = None,
        clock: FakeClock | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.root = root
        self.disk = disk if disk is not None else FaultyDisk()
        self.limits = limits or Limits()
        self.clock = clock or FakeClock()
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        life = producer or Producer(LIFE)
        try:
            journal = Journal.open(self.disk, self._root_fd, KEY, life, self.limits)
        except BaseException:
            os.close(self._root_fd)
            raise
        self.recording = Recording(
            channel=1,
            journal=journal,
            reopen=partial(self._reopen, life.life),
            redactor=Redactor(secrets),
            limits=self.limits,
            clock=self.clock,
        )

    def _reopen(self, life: str, last: int) -> Journal:
        return Journal.open(self.disk, self._root_fd, KEY, Producer(life, last), self.limits)

    @property
    def journal(self) -> Journal:
        assert self.recording.journal is not None
        return self.recording.journal

    @property
    def directory(self) -> Path:
        return self.root / KEY.workspace_hash / KEY.session

    def send(self, *frames: Frame) -> list[Answer]:
        """One receive: these frames are taken, then written and answered."""
        for frame in frames:
            take = self.recording.take_payload if frame.kind is Kind.PAYLOAD else self.recording.take
            take(frame)
        return answers(self.recording.write())

    def close(self, *, closed: bool = True) -> None:
        """As the server closes a recording: seals, digests, manifest, then the lock."""
        journal = self.recording.journal
        if journal is not None:
            if closed:
                journal.seal()
                journal.note_digests()
                journal.write_manifest(self.recording.manifest(journal, closed=True))
            journal.close()
            self.recording.journal = None
        os.close(self._root_fd)


def events(first: int, body: bytes) -> Frame:
    """An EVENTS frame of these lines."""
    return Frame(Kind.EVENTS, 1, body.count(b"\n"), first, body)


def drop(first: int, last: int, body: bytes) -> Frame:
    """A DROP frame."""
    return Frame(Kind.DROP, 1, last - first + 1, first, body)


def parts(first: int, payload: str, body: bytes, *, size: int = 400, json: bool = False) -> list[Frame]:
    """The PAYLOAD frames of a body, cut into pieces of `size`."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    kind = FLAG_JSON if json else 0
    return [
        Frame(
            Kind.PAYLOAD, 1, number, first, payload.encode() + piece, kind | (FLAG_LAST if number == len(pieces) else 0)
        )
        for number, piece in enumerate(pieces, 1)
    ]


def naming(seq: int, *payloads: str) -> bytes:
    """A record with these payloads in the place of texts."""
    refs = [PayloadRef(payload, 50_000, 50_000, "head") for payload in payloads]
    data = msgspec.json.encode({"id": "call", "name": "t", "output": refs})
    head = b'{"seq":%d,"ts":"2026-01-01T00:00:00Z","event":"tool.call.finished","session":"%s","data":'
    return head % (seq, SESSION.encode()) + data + b"}\n"


def broken_references(directory: Path) -> list[str]:
    """Payloads that a stored record names and that are not there."""
    named = {
        found[1].decode()
        for path in directory.glob("*.jsonl")
        for line in path.read_bytes().split(b"\n")[:-1]
        for found in REFERENCE.finditer(line)
    }
    return sorted(payload for payload in named if not (directory / "payloads" / payload).is_file())


def read_all(directory: Path) -> tuple[list[Found], list[Note]]:
    """The records and the notes of a session."""
    items = list(reader.read(directory))
    return [i for i in items if isinstance(i, Found)], [i for i in items if isinstance(i, Note)]


def covered(found: list[Found]) -> list[int]:
    """Every seq that the records stand for, in order."""
    return [seq for item in found for seq in range(item.record.seq, item.end + 1)]


def damage(verdict: Verdict) -> list[Note]:
    """The notes that make a verdict bad."""
    return [note for note in verdict.notes if note.damage]
