"""From one segment's bytes and seals to lines with a state. Streaming, read-only, and it survives anything it finds.

The file is taken apart into regions: ranges that a valid seal entry covers, and what lies between and after them. A sealed
region is read whole and hashed; lines never run over a region's edge, since seals cover whole blocks of whole lines.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC
from typing import Final

import msgspec
from msgspec import Struct, structs
from xxhash import xxh3_64_intdigest

from tracewriter import jsonl
from tracewriter.config import MAX_FRAME, MIB
from tracewriter.errors import errno_name
from tracewriter.events import RawRecord
from tracewriter.findings import Note
from tracewriter.segment import (
    SEAL_SLOT,
    Header,
    SealEntry,
    decode_entry,
    decode_slot0,
    insane_names,
    new_hash,
    seal_name,
    segment_name,
)

_CHUNK: Final = MIB
_LONGEST_LINE: Final = (
    2 * MAX_FRAME
)  # no writer of ours makes longer ones; beyond it a "line" is damage, read past in chunks
MAX_SEALS: Final = 100_000 * SEAL_SLOT  # a segment of 8 MiB holds fewer records than that; what comes after is not read
_MAX_RANGE: Final = 8 * MIB  # a longer one is some file's claim: it is hashed and taken apart in chunks
PAYLOAD_OFFSET: Final = 0xFFFFFFFF  # of a slot that is about a payload file; no segment is that long
DROP: Final = "trace.drop.observed"
_SEGMENT_ID: Final = re.compile(r"[0-9a-f]{16}\Z")
_HEADER_ID: Final = re.compile(rb'\A(\{"segment":[0-9]{1,9},"id":")[0-9a-f]{16}')
_FOREIGN: Final = (errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.ENXIO)  # a link, a pipe, … at a segment's place
_RECORD_HEAD: Final = b'{"seq":'

_header_decoder: Final = msgspec.json.Decoder(Header)
_record_decoder: Final = msgspec.json.Decoder(RawRecord)


class Line(Struct, frozen=True):
    """One line (without LF) and what is known of the bytes it stands in. `whole` is False for a last one without LF."""

    segment: int
    offset: int
    data: bytes
    state: str
    whole: bool = True


class Block(Struct, frozen=True):
    """A sealed range whose hash is right, whole: for readers that need not look at each line."""

    segment: int
    offset: int
    data: bytes
    entry: SealEntry

    def lines(self) -> Iterator[Line]:
        """Its lines."""
        return _split(self.data, self.segment, self.offset)


class _DropRange(Struct, frozen=True):
    first: int
    last: int
    count: int


class Region(Struct, frozen=True):
    """A piece of a segment: sealed (entry) or not (None)."""

    offset: int
    length: int
    entry: SealEntry | None


def plan(entries: list[SealEntry], size: int) -> tuple[list[Region], list[SealEntry]]:
    """Pure: the regions of a file of `size` bytes, and the entries that claim bytes beyond its end."""
    regions: list[Region] = []
    lost: list[SealEntry] = []
    at = 0
    for entry in sorted(entries, key=lambda e: e.offset):
        if entry.offset + entry.length > size:
            lost.append(entry)
            continue
        if entry.offset < at or entry.length == 0:
            continue
        if entry.offset > at:
            regions.append(Region(at, entry.offset - at, None))
        regions.append(Region(entry.offset, entry.length, entry))
        at = entry.offset + entry.length
    if at < size:
        regions.append(Region(at, size - at, None))
    return regions, lost


def open_plain(name: str, dir_fd: int) -> int:
    """Open a regular file with exactly one name, never through a link, never waiting on a FIFO. Raises OSError."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        os.close(fd)
        raise OSError(errno.EMLINK if stat.S_ISREG(info.st_mode) else errno.EINVAL, "not a plain file of its own")
    return fd


def read_small(name: str, dir_fd: int, limit: int) -> bytes | None:
    """A small file's bytes, at most `limit`; None when it is not there or cannot be read."""
    try:
        fd = open_plain(name, dir_fd)
    except OSError:
        return None
    try:
        pieces: list[bytes] = []
        while (piece := os.read(fd, min(limit, _CHUNK))) and limit > 0:
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    except OSError:
        return None
    finally:
        os.close(fd)


class Seals(Struct, frozen=True):
    """A seal file, decoded: its segment id, the ranges that it covers, and how many slots were no good. Slots of payloads are
    no ranges (`payload_files.payload_seals`)."""

    segment_id: int | None
    entries: list[SealEntry]
    bad_slots: int


def decode_seals(data: bytes | None, number: int) -> Seals:
    """Pure: what a seal file says. A slot whose check fails is skipped: its range is unsealed, never accused."""
    if not data or len(data) < SEAL_SLOT:
        return Seals(None, [], 0)
    head = decode_slot0(data[:SEAL_SLOT])
    slots = len(data) // SEAL_SLOT - 1
    if head is None or head[0] != number:
        return Seals(None, [], slots + 1)
    good = [
        decode_entry(data[at : at + SEAL_SLOT], head[1]) for at in range(SEAL_SLOT, (slots + 1) * SEAL_SLOT, SEAL_SLOT)
    ]
    entries = [entry for entry in good if entry is not None and entry.offset != PAYLOAD_OFFSET]
    return Seals(head[1], entries, good.count(None))


def parse_header(line: bytes) -> Header | None:
    """The header line of a segment, or None."""
    if not line.startswith(b'{"segment":'):
        return None
    try:
        header = _header_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return header if _SEGMENT_ID.match(header.id) and header.after >= 0 else None


def parse_record(line: bytes) -> tuple[RawRecord, int] | None:
    """(record, last seq it covers), or None when the line is no record. A drop record must cover just what it says (R2)."""
    if not line.startswith(b"{"):
        return None
    try:
        record = _record_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        fallback = _parse_leniently(line)
        if fallback is None:
            return None
        record = fallback
    if record.seq < 1:
        return None
    if record.ts.tzinfo is None:  # another tool's: one without a zone cannot be compared with the others
        record = structs.replace(record, ts=record.ts.replace(tzinfo=UTC))
    if record.event != DROP:
        return record, record.seq
    try:
        dropped = msgspec.json.decode(record.data, type=_DropRange)
    except (msgspec.DecodeError, RecursionError):
        return None
    if dropped.first != record.seq or dropped.count != dropped.last - dropped.first + 1 or dropped.count < 1:
        return None
    return record, dropped.last


def _parse_leniently(line: bytes) -> RawRecord | None:
    """Lines of other tools may hold lone surrogate escapes, which strict decoders refuse."""
    if b"\\ud" not in line.lower():
        return None
    value = jsonl.loads(line)
    if not isinstance(value, dict):
        return None
    try:
        return msgspec.convert({**value, "data": jsonl.raw(value.get("data"))}, RawRecord)
    except (msgspec.ValidationError, TypeError):
        return None


def salvage(line: bytes) -> int:
    """Where a whole record begins inside a line whose start is torn (a stub glued to the next append, a run of NULs); else -1."""
    at = line.rfind(_RECORD_HEAD)
    return at if at > 0 and parse_record(line[at:]) is not None else -1


def missing(first: int, last: int) -> Note:
    """One hole in the sequence of segments, however wide it is."""
    text = f"segment {first} is missing" if first == last else f"segments {first} to {last} are missing"
    return Note("missing", text, first)


def foreign_names(names: Iterable[str]) -> Iterator[Note]:
    """One note when there are files with segment numbers that no writer gives."""
    planted = insane_names(names)
    if planted:
        more = f" and {len(planted) - 1} more" if len(planted) > 1 else ""
        yield Note("foreign", f"{planted[0]}{more}: no writer gives such a number; it is not read")


def scan_segment(
    dir_fd: int, number: int, *, blocks: bool = False, raising: bool = False
) -> Iterator[Header | Line | Block | Note]:
    """Everything in one segment, in order. The header comes first when its line is intact. Never raises for what is on disk.

    blocks: give sealed ranges that are as they were sealed as one Block each, not line by line. raising: an I/O error is an
    OSError and not a note, for who must not take what cannot be read for what is not there.
    """
    try:
        fd = open_plain(segment_name(number), dir_fd)
    except FileNotFoundError:
        yield missing(number, number)
        return
    except OSError as exc:
        if raising and exc.errno not in _FOREIGN:
            raise
        yield Note("foreign", f"segment {number} cannot be opened: {exc.strerror}", number)
        return
    try:
        yield from _scan_open(fd, dir_fd, number, blocks)
    except OSError as exc:
        if raising:
            raise
        yield Note("damaged", f"segment {number} cannot be read: {errno_name(exc)}; going on with the next", number)
    finally:
        os.close(fd)


def _scan_open(fd: int, dir_fd: int, number: int, blocks: bool) -> Iterator[Header | Line | Block | Note]:
    size = os.fstat(fd).st_size
    first = os.pread(fd, 4096, 0).partition(b"\n")[0]
    header = parse_header(first)
    seals = decode_seals(read_small(seal_name(number), dir_fd, MAX_SEALS), number)
    stranger = header is not None and seals.segment_id not in (None, int(header.id, 16))
    regions, lost = plan(seals.entries, size)
    if stranger and not any(_matches(fd, region) or _matches_but_for_id(fd, region, seals) for region in regions):
        regions, lost = plan([], size)
        yield Note("unsealed", f"segment {number}: its seals belong to another segment", number)
    if header is not None:
        yield header
    for item in _regions(fd, number, regions, "unverified" if lost else "unsealed"):
        if isinstance(item, Block) and not blocks:
            yield from item.lines()
        else:
            yield item
    if lost:
        start, end = min(e.offset for e in lost), max(e.offset + e.length for e in lost)
        missing = end - max(start, min(size, end))
        text = f"segment {number}: {missing} sealed bytes from {size} on are lost (up to seq {lost[-1].last})"
        yield Note("lost", text, number, size, missing, None, lost[-1].last)


def _matches(fd: int, region: Region) -> bool:
    return region.entry is not None and _fingerprint(fd, region)[0] == region.entry.digest


def _fingerprint(fd: int, region: Region) -> tuple[int, int]:
    """(the hash of a range's bytes as they are now, the offset after its last line end or its own), in constant memory."""
    digest = new_hash()
    at, end, ended = region.offset, region.offset + region.length, region.offset
    while at < end and (chunk := os.pread(fd, min(_CHUNK, end - at), at)):
        digest.update(chunk)
        line_end = chunk.rfind(b"\n") + 1
        ended = at + line_end if line_end else ended
        at += len(chunk)
    return digest.intdigest(), ended


def _matches_but_for_id(fd: int, region: Region, seals: Seals) -> bool:
    """Whether only the id in the header line was changed: then the seals are this segment's, and the range is damaged."""
    entry = region.entry
    if entry is None or entry.offset or entry.length > _MAX_RANGE or seals.segment_id is None:
        return False
    data = os.pread(fd, entry.length, 0)
    return xxh3_64_intdigest(_HEADER_ID.sub(rb"\g<1>%016x" % seals.segment_id, data, count=1)) == entry.digest


def _regions(fd: int, number: int, regions: list[Region], unsealed: str) -> Iterator[Line | Block | Note]:
    """The lines of all regions. Where bytes were added or taken out, lines run over the edges of the ranges after that place:
    what a changed range does not end is read on into the next, so that the damage stays one line's."""
    begun: int | None = None  # where a line begins that the changed range before did not end
    for region in regions:
        start, end = region.offset if begun is None else begun, region.offset + region.length
        state, begun = unsealed if begun is None else "unverified", None
        if region.entry is None:
            yield from _unsealed(fd, number, Region(start, end - start, None), state)
            continue
        data = os.pread(fd, region.length, region.offset) if region.length <= _MAX_RANGE else None
        if data is None:
            digest, ended = _fingerprint(fd, region)
        else:
            digest, ended = xxh3_64_intdigest(data), region.offset + data.rfind(b"\n") + 1
        if digest == region.entry.digest:
            if start < region.offset:
                yield from _unsealed(fd, number, Region(start, region.offset - start, None), "unverified")
            if data is None:
                yield from _unsealed(fd, number, region, "verified")
            else:
                yield Block(number, region.offset, data, region.entry)
            continue
        text = f"segment {number}: bytes {region.offset} to {end} are not as they were sealed"
        yield Note("damaged", text, number, region.offset, region.length, None, region.entry.last)
        ended = start if ended == region.offset else ended
        yield from _unsealed(fd, number, Region(start, ended - start, None), "unverified")
        begun = ended if ended < end else None
    if begun is not None:
        yield from _unsealed(fd, number, Region(begun, end - begun, None), "unverified")


def _split(data: bytes, number: int, offset: int) -> Iterator[Line]:
    """The lines of a range that is as it was sealed."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        whole = end >= 0
        end = end if whole else len(data)
        yield Line(number, offset + at, data[at:end], "verified", whole)
        at = end + 1


def _unsealed(fd: int, number: int, region: Region, state: str) -> Iterator[Line | Note]:
    at, end = region.offset, region.offset + region.length
    rest = b""
    start = at
    while at < end:
        chunk = os.pread(fd, min(_CHUNK, end - at), at)
        if not chunk:
            break
        at += len(chunk)
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield Line(number, start, line, state)
            start += len(line) + 1
        if len(rest) > _LONGEST_LINE:
            yield Note("damaged", f"segment {number}: {len(rest)} bytes without a line end", number, start, len(rest))
            start += len(rest)
            rest = b""
    if rest:
        yield Line(number, start, rest, state, whole=False)
