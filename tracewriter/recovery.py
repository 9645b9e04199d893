"""Where a session goes on: the last seq that its newest segments vouch for, found in bounded time whatever is in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from tracewriter.chain import Bulk, Chain
from tracewriter.config import MAX_FRAME, MAX_SEQ, MIB
from tracewriter.findings import Found, Note
from tracewriter.scan import MAX_SEALS, Block, Line, open_plain, parse_header, read_small, scan_segment
from tracewriter.segment import SEAL_SLOT, Header, decode_entry, decode_slot0, seal_name, segment_name

READ_MAX: Final = (
    64 * MIB
)  # of a segment larger than this only so many bytes at its end are read (the default is 8 MiB)
_SLOTS: Final = 2048 * SEAL_SLOT  # bytes of seals that are looked at together
_RECORD: Final = b'{"seq":'


class Producer(Struct, frozen=True):
    """Who records: its life's id, and the highest seqs acknowledged to it and given out by it (0: a new life here)."""

    life: str
    acked: int = 0
    last: int = 0


def newest_end(dir_fd: int, numbers: list[int], session: str, producer: Producer) -> tuple[int, str]:
    """(the last seq that data or seals of the newest segments vouch for, the life that wrote the newest one or "").

    Raises OSError when a segment cannot be read: going on with numbers that are on disk already would be a lie.
    With a producer that says what it gave out (`last`), its own lines that claim more are passed over: their digits are damaged.
    """
    life = ""
    for number in reversed(numbers):
        end, header, records = _segment_end(dir_fd, number, session, producer)
        if header is not None:
            life = life or header.producer
        if records or end:
            return end, life
    return 0, life


def _segment_end(dir_fd: int, number: int, session: str, producer: Producer) -> tuple[int, Header | None, int]:
    first = read_small(segment_name(number), dir_fd, 4096)
    header = parse_header((first or b"").partition(b"\n")[0])
    # the header's own number counts only as far as records or seals go on from it: one changed digit must not skip a range
    start = header.after if header is not None else None
    records, end = _records_end(dir_fd, number, Chain(session, start=start), header, producer)
    if not records and start is not None:
        records, end = _records_end(dir_fd, number, Chain(session, start=None), header, producer)
    return max(end, _sealed_end(dir_fd, number, header)), header, records


def _sealed_end(dir_fd: int, number: int, header: Header | None) -> int:
    """The highest seq that a segment's own seals vouch for, as far as readers read them; 0 without any."""
    try:
        fd = open_plain(seal_name(number), dir_fd)
    except OSError:
        return 0
    try:
        first = os.pread(fd, SEAL_SLOT, 0)
        head = decode_slot0(first) if len(first) == SEAL_SLOT else None
        if head is None or head[0] != number or (header is not None and head[1] != int(header.id, 16)):
            return 0
        end = 0
        for at in range(SEAL_SLOT, MAX_SEALS, _SLOTS):
            slots = os.pread(fd, min(_SLOTS, MAX_SEALS - at), at)
            for start in range(0, len(slots) - SEAL_SLOT + 1, SEAL_SLOT):
                entry = decode_entry(slots[start : start + SEAL_SLOT], head[1])
                if entry is not None and entry.records and entry.last <= MAX_SEQ:  # without records: a payload's slot
                    end = max(end, entry.last)
            if len(slots) < SEAL_SLOT:
                break
        return end
    except OSError:
        return 0
    finally:
        os.close(fd)


def _records_end(dir_fd: int, number: int, chain: Chain, header: Header | None, producer: Producer) -> tuple[int, int]:
    ours = header is not None and header.producer == producer.life and producer.last > 0
    bound = producer.last if ours else MAX_SEQ
    records = end = 0
    for item in itertools.chain(chain.feed_blocks(_items(dir_fd, number)), chain.finish()):
        if isinstance(item, Bulk) and item.first <= bound:
            records += item.last - item.first + 1
            end = max(end, min(item.last, bound))
        elif isinstance(item, Found) and item.end <= bound:
            records += 1
            end = max(end, item.end)
    return records, end


def _items(dir_fd: int, number: int) -> Iterator[Header | Line | Block | Note]:
    """A segment's items; of one that is far larger than any writer makes, only the lines at its end that may be records."""
    try:
        fd = open_plain(segment_name(number), dir_fd)
    except OSError:
        fd = -1  # scan_segment says what that is
    try:
        size = os.fstat(fd).st_size if fd >= 0 else 0
        if size > READ_MAX:
            yield from _last_lines(fd, number, size)
            return
    finally:
        if fd >= 0:
            os.close(fd)
    yield from scan_segment(dir_fd, number, blocks=True, raising=True)


def _last_lines(fd: int, number: int, size: int) -> Iterator[Line]:
    at = size - READ_MAX
    start, rest, begun = at, b"", False  # what comes before the first LF began before: it is no whole line
    while at < size and (chunk := os.pread(fd, min(MIB, size - at), at)):
        at += len(chunk)
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if begun and _RECORD in line:
                yield Line(number, start, line, "unsealed")
            begun = True
            start += len(line) + 1
        if len(rest) > 2 * MAX_FRAME:
            start, rest, begun = start + len(rest), b"", False
