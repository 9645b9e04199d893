"""The numbers: each record stands for [seq, end], and the next one must begin at end + 1, over all segments and lives.

A number that does not continue the chain is believed only when something else confirms it: the next record goes on from
it, the segment's header says so, or the bytes are sealed and intact. Otherwise that line is damaged and the chain goes on
with its neighbours, so that one changed digit never makes twenty good records look like duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ahocorasick_rs import BytesAhoCorasick, MatchKind
from msgspec import Struct

from tracewriter.findings import Found, Note
from tracewriter.scan import Block, Line, parse_record, salvage
from tracewriter.segment import Header, count_lines

Item = Found | Note

# Lines that a reader has to see one by one: drops stand for more than one number, the others begin and end a recording.
# One automaton each: a single pattern is looked for at 40 GB/s, these two together at 0.4.
_SPECIAL: Final = tuple(
    BytesAhoCorasick([name], matchkind=MatchKind.LeftmostFirst).find_matches_as_indexes
    for name in (b"trace.drop.observed", b"session.record.")
)


class Bulk(Struct, frozen=True):
    """Records first … last of a sealed range: one line each, none of them special. Their lines stand in `data` from `start` on."""

    first: int
    last: int
    data: bytes
    start: int


class Chain:
    """Feed it a session's headers, lines and notes in order; it gives records and notes in order. Pure."""

    def __init__(self, session: str | None = None, *, start: int | None = 0) -> None:
        self._session = session
        self._end = start or 0  # the last seq accounted for
        self._anywhere = start is None  # reading begins in the middle: the first record is believed
        self._doubt: Found | None = None
        self._after: int | None = None  # what the current segment's header says, until its first record
        self._lost = 0
        self._bad_lines = 0  # damaged lines since the last believed record: each may stand for a missing number
        self._maybe_tail: list[Line] = []

    @property
    def end(self) -> int:
        """The last seq accounted for so far."""
        return self._end

    def feed(self, items: Iterable[Header | Line | Block | Note]) -> Iterator[Item]:
        """The records and notes that are certain after these items."""
        for item in self.feed_blocks(items):
            if not isinstance(item, Bulk):
                yield item

    def feed_blocks(self, items: Iterable[Header | Line | Block | Note]) -> Iterator[Item | Bulk]:
        """The same, with the records of a Block in which all is plain as one Bulk."""
        for item in items:
            match item:
                case Header():
                    yield from self._segment_end()
                    self._after, self._lost = item.after, max(self._lost, item.lost)
                case Note():
                    yield item
                case Line():
                    yield from self._line(item)
                case Block():
                    yield from self._block(item)

    def finish(self) -> Iterator[Item]:
        """What was still open at the end of the session."""
        yield from self._segment_end()
        if self._doubt is not None:
            yield self._disbelieve(self._doubt)
            self._doubt = None

    def _block(self, block: Block) -> Iterator[Item | Bulk]:
        bulk = self._as_bulk(block)
        if bulk is None:
            for line in block.lines():
                yield from self._line(line)
            return
        self._after, self._end = None, bulk.last
        yield bulk

    def _as_bulk(self, block: Block) -> Bulk | None:
        """The whole range at once, when its ends and its count continue the chain and nothing in it is special."""
        if (
            self._doubt is not None
            or self._maybe_tail
            or self._bad_lines
            or self._anywhere
            or any(find(block.data) for find in _SPECIAL)
        ):
            return None
        start = block.data.find(b"\n") + 1 if block.offset == 0 else 0
        count = count_lines(block.data) - (block.offset == 0)
        last = block.entry.last
        if count < 1 or block.data[-1:] != b"\n" or self._end + count != last:
            return None
        edges = (block.data[start : block.data.find(b"\n", start)], block.data[block.data.rfind(b"\n", 0, -1) + 1 : -1])
        for line, seq in zip(edges, (self._end + 1, last), strict=True):
            parsed = parse_record(line)
            if parsed is None or parsed[0].seq != seq or self._session not in (None, parsed[0].session):
                return None
        return Bulk(self._end + 1, last, block.data, start)

    def _line(self, line: Line) -> Iterator[Item]:
        data, offset = line.data, line.offset
        if line.offset == 0 and data.startswith(b'{"segment":'):
            return
        parsed = parse_record(data) if line.whole or line.state == "verified" else None
        if parsed is None and line.whole:
            at = salvage(data)
            if at > 0:
                yield from self._bad(Line(line.segment, offset, data[:at], line.state))
                data, offset = data[at:], offset + at
                parsed = parse_record(data)
        if parsed is not None and self._session is not None and parsed[0].session != self._session:
            parsed = None
        if parsed is None:
            if line.state == "unsealed":
                self._maybe_tail.append(line)
            else:
                yield from self._bad(line)
            return
        yield from self._tail_is_damage()
        yield from self._record(Found(parsed[0], data, line.segment, offset, line.state, parsed[1]))

    def _bad(self, line: Line) -> Iterator[Note]:
        self._bad_lines += 1
        length = len(line.data) + 1
        text = f"segment {line.segment}: a line of {length} bytes at offset {line.offset} is no record"
        yield Note("damaged", text, line.segment, line.offset, length)

    def _tail_is_damage(self) -> Iterator[Note]:
        for line in self._maybe_tail:
            yield from self._bad(line)
        self._maybe_tail.clear()

    def _segment_end(self) -> Iterator[Item]:
        """What no record followed in an unsealed place was never finished: not damage."""
        if self._maybe_tail:
            first, last = self._maybe_tail[0], self._maybe_tail[-1]
            length = last.offset + len(last.data) + last.whole - first.offset
            self._maybe_tail.clear()
            text = f"segment {first.segment}: {length} bytes at offset {first.offset} were never finished"
            yield Note("unfinished", text, first.segment, first.offset, length)
        self._after = None

    def _record(self, found: Found) -> Iterator[Item]:
        seq = found.record.seq
        after, self._after = self._after, None
        if self._anywhere:
            self._anywhere, self._end = False, seq - 1
        believed = found.state == "verified" or (after is not None and seq == after + 1)
        doubt, self._doubt = self._doubt, None
        if doubt is not None:
            if seq == doubt.end + 1:
                yield from self._believe(doubt)
            else:
                yield self._disbelieve(doubt)
        if self._continues(seq) or believed:
            yield from self._believe(found)
        else:
            self._doubt = found

    def _continues(self, seq: int) -> bool:
        """seq follows, perhaps after exactly the lines that are damaged and already named."""
        return seq == self._end + 1 or (self._bad_lines > 0 and seq == self._end + 1 + self._bad_lines)

    def _disbelieve(self, found: Found) -> Note:
        self._bad_lines += 1
        text = (
            f"segment {found.segment}: the line at offset {found.offset} says seq {found.record.seq}, "
            f"where {self._end + 1} should be, and nothing confirms it"
        )
        return Note("damaged", text, found.segment, found.offset, len(found.line) + 1)

    def _believe(self, found: Found) -> Iterator[Item]:
        seq = found.record.seq
        expected = self._end + 1
        if found.end < expected or seq < expected:
            text = f"segment {found.segment}: seq {seq} at offset {found.offset} was there before"
            yield Note("duplicate", text, found.segment, found.offset, len(found.line) + 1, seq, found.end)
        elif seq > expected and seq - expected != self._bad_lines:
            why = "; the writer knew of it when it went on" if seq - 1 <= self._lost else ""
            text = (
                f"seq {expected} to {seq - 1} are missing before offset {found.offset} of segment {found.segment}{why}"
            )
            yield Note("gap", text, found.segment, found.offset, None, expected, seq - 1)
        self._bad_lines = 0
        self._end = max(self._end, found.end)
        yield found
