"""The files of a scrub: what the rules find in a session, and the same session written anew without it.

Everything is read as readers read it (`Chain` over `scan_segment`), so that exactly what they call a record is carried over: in
the same segment, with the same seq, time and ids, one line for one. What never was a record (the rest of a write that was not
completed, `<id>.part`) is not. Memory: a range of 64 KiB at a time, one payload, and the ids of payloads.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from tracewriter.chain import Bulk, Chain, Item
from tracewriter.config import KIB, MIB
from tracewriter.disk import Disk
from tracewriter.events import FORMAT
from tracewriter.expand import names_payloads
from tracewriter.findings import Found, Note
from tracewriter.ids import Random
from tracewriter.payload import ID, MAX_PAYLOAD, PART_SUFFIX, PAYLOADS, REFERENCE, PayloadSeal, encode_seal, seal_of
from tracewriter.payload_files import MAX_PAYLOADS, open_directory, open_payload
from tracewriter.reader import recorded_as
from tracewriter.redact import Redactor
from tracewriter.scan import open_plain, parse_header, read_small, scan_segment
from tracewriter.scrub_lines import scrub_body, scrub_lines, scrub_text
from tracewriter.segment import Header, Outcome, Segment, sane_numbers, segment_name

_BATCH: Final = 64 * KIB
_LONGEST_TAIL: Final = 4 * MIB  # of bytes that are no record, looked at together
_JSON: Final = b'"type":"json"}'


class Begin(Struct, frozen=True):
    """A segment begins; its header line, when it has one."""

    number: int
    header: Header | None


class Batch(Struct, frozen=True):
    """Whole lines, each a record; the last one ends at seq `last`."""

    data: bytes
    lines: int
    last: int


class Counts(Struct, frozen=True):
    """What the rules found, by rule, in how many records and payloads. json_ids: the payloads that a record calls JSON."""

    hits: Mapping[str, int]
    records: int
    payloads: int
    json_ids: frozenset[str]


def walk(dir_fd: int, session: str) -> Iterator[Begin | Batch | Note]:
    """All records of a session in batches, as they are, and the reader's notes. Raises OSError for what cannot be read."""
    numbers = sorted(number for number, kind in sane_numbers(os.listdir(dir_fd)) if kind == "jsonl")
    chain = Chain(recorded_as(dir_fd, numbers, session))
    end = 0
    for number in numbers:
        first = read_small(segment_name(number), dir_fd, 4096) or b""
        yield Begin(number, parse_header(first.partition(b"\n")[0]))
        for item in _batched(chain.feed_blocks(scan_segment(dir_fd, number, blocks=True, raising=True)), end):
            end = item.last if isinstance(item, Batch) else end
            yield item
    yield from _batched(chain.finish(), end)


def _batched(items: Iterator[Item | Bulk], end: int) -> Iterator[Batch | Note]:
    lines: list[bytes] = []
    size = 0
    for item in items:
        if isinstance(item, Found):
            if item.end > end:  # one that was there before is not carried over
                lines.append(item.line)
                size += len(item.line) + 1
                end = item.end
            if size < _BATCH:
                continue
        elif isinstance(item, Note):
            yield item
            continue
        if lines:
            yield Batch(b"\n".join((*lines, b"")), len(lines), end)
            lines, size = [], 0
        if isinstance(item, Bulk):
            end = item.last
            yield Batch(item.data[item.start :], item.last - item.first + 1, end)
    if lines:
        yield Batch(b"\n".join((*lines, b"")), len(lines), end)


# --- counting


def count(dir_fd: int, session: str, redactor: Redactor) -> Counts:
    """What the rules find in a session's files. Touches nothing. Raises OSError."""
    hits: Counter[str] = Counter()
    json_ids: set[str] = set()
    records = payloads = 0
    for item in walk(dir_fd, session):
        if isinstance(item, Batch):
            json_ids.update(_json_ids(item.data, MAX_PAYLOADS - len(json_ids)))
            lines = scrub_lines(item.data, redactor)
            hits.update(lines.hits)
            records += lines.changed
        elif isinstance(item, Note) and _is_no_record(item):
            hits.update(_in_bytes(dir_fd, item, redactor))
    for name, body in bodies(dir_fd, parts=True):
        found = scrub_body(body, redactor, is_json=name in json_ids)[1]
        hits.update(found)
        payloads += bool(found)
    return Counts(hits, records, payloads, frozenset(json_ids))


def _is_no_record(note: Note) -> bool:
    """Whether it is about bytes of a segment that are not carried over (a damaged range has a `last`: its lines follow)."""
    return note.kind in ("unfinished", "damaged") and note.offset is not None and note.last is None


def _json_ids(data: bytes, room: int) -> Iterator[str]:
    if names_payloads(data):
        for match in REFERENCE.finditer(data):
            if match[0].endswith(_JSON) and room > 0:
                yield match[1].decode()


def _in_bytes(dir_fd: int, note: Note, redactor: Redactor) -> Mapping[str, int]:
    """In bytes of a segment that are no records."""
    hits: Counter[str] = Counter()
    at, left = note.offset or 0, note.length or 0
    fd = open_plain(segment_name(note.segment or 0), dir_fd)
    try:
        while left > 0 and (piece := os.pread(fd, min(left, _LONGEST_TAIL), at)):
            hits.update(scrub_text(piece, redactor))
            at, left = at + len(piece), left - len(piece)
    finally:
        os.close(fd)
    return hits


def bodies(dir_fd: int, *, parts: bool = False) -> Iterator[tuple[str, bytes]]:
    """Every payload file's name and bytes, one after the other; with the unfinished ones if asked. Raises OSError."""
    try:
        fd = open_directory(dir_fd)
    except FileNotFoundError:
        return
    try:
        owner = os.fstat(dir_fd).st_uid
        for name in sorted(os.listdir(fd)):
            if ID.match(name) or (parts and ID.match(name.removesuffix(PART_SUFFIX))):
                yield name, _read(open_payload(name, fd, owner))
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read(MAX_PAYLOAD + 1)


# --- writing


class Writing:
    """Writes a session anew into an empty directory. Raises OSError for whatever the disk refuses: nothing is tried again."""

    def __init__(self, disk: Disk, dir_fd: int, redactor: Redactor, random: Random) -> None:
        self._disk, self._dir_fd, self._redactor = disk, dir_fd, redactor
        self._life, self._random = random(8).hex(), random
        self._slots: list[PayloadSeal] = []
        self._begun: Header | None = None  # of a segment whose file is not made yet
        self._segment: Segment | None = None
        self.number = self.last = self.records = self.payloads = 0

    def bodies(self, source_fd: int, json_ids: frozenset[str]) -> None:
        """All payload files, redacted whole, each under its old id; synced."""
        fd = -1
        try:
            for name, body in bodies(source_fd):
                fd = self._disk.open_dir(PAYLOADS, self._dir_fd, create=True) if fd < 0 else fd
                new, hits = scrub_body(body, self._redactor, is_json=name in json_ids)
                write_file(self._disk, name, new, fd)
                self._slots.append(seal_of(name, new))
                self.payloads += bool(hits)
            if fd >= 0:
                self._disk.sync(fd)
        finally:
            if fd >= 0:
                self._disk.close(fd)

    def segments(self, source_fd: int, session: str) -> None:
        """All segments, record for record; sealed and synced."""
        try:
            for item in walk(source_fd, session):
                if isinstance(item, Begin):
                    self._finish()
                    self._begin(item, session)
                elif isinstance(item, Batch):
                    lines = scrub_lines(item.data, self._redactor)
                    self.records += lines.changed
                    self._append(lines.data, item.lines, item.last)
            self._finish()
        finally:
            self._let_go()

    def own(self, session: str, lines: list[bytes], why: str) -> None:
        """A segment of the scrub's own records, after all others."""
        try:
            self._begun = self._header(self.number + 1, session, why)
            self._append(b"".join(lines), len(lines), self.last + len(lines))
            self._finish()
        finally:
            self._let_go()

    def _header(self, number: int, session: str, why: str) -> Header:
        return Header(number, self._random(8).hex(), session, FORMAT, self._life, self.last, why)

    def _begin(self, item: Begin, session: str) -> None:
        old = item.header
        new = self._header(item.number, session, "open")
        if old is not None:
            new = Header(item.number, new.id, old.session, old.format, old.producer, old.after, old.why, old.lost)
        self._begun = new
        self.number = item.number

    def _append(self, data: bytes, lines: int, last: int) -> None:
        if self._begun is not None:
            self._segment, self._begun = Segment(self._disk, self._dir_fd, self._begun), None
            _checked(self._segment.start(data, lines, last))
            self.number = self._segment.number
        elif self._segment is not None:
            _checked(self._segment.append(data, lines, last))
        self.last = last

    def _finish(self) -> None:
        """End the current segment: all of it sealed, and on disk."""
        if self._begun is not None:  # one without records: its number must not be missing
            self._append(b"", 0, self.last)
        segment = self._segment
        if segment is None:
            return
        segment.seal([encode_seal(slot, segment.id) for slot in self._slots])
        self._slots.clear()
        if not segment.seals:
            raise OSError(errno.EIO, "the seals could not be written")
        problem = segment.sync()
        if problem is not None:
            raise problem
        self._let_go()

    def _let_go(self) -> None:
        if self._segment is not None:
            self._segment.suspend()
        self._segment = None


def _checked(outcome: Outcome) -> None:
    if outcome.error is not None:
        raise outcome.error


def write_file(disk: Disk, name: str, data: bytes, dir_fd: int) -> None:
    """A new file, whole and synced. Raises OSError."""
    fd = disk.create(name, dir_fd)
    try:
        written = 0
        while written < len(data):
            count = disk.write(fd, data[written:] if written else data)
            if count <= 0:
                raise OSError(errno.EIO, "write(2) wrote nothing")
            written += count
        disk.sync(fd)
    finally:
        disk.close(fd)
