"""What today's rules make of stored lines and bodies, and how often each rule had something to replace. Pure.

A line in which no rule finds anything stays byte for byte as it is, also where redaction would only write it in another way. One
that cannot be redacted is never kept: in its place comes a drop record, as the writer's would have been.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from tracewriter.events import Record, TraceDropObserved, name_of_class
from tracewriter.payload_parts import UNDECODABLE as UNDECODABLE_BODY
from tracewriter.payload_parts import Whole, redacted_whole
from tracewriter.redact import CannotRedact, Redactor
from tracewriter.scan import parse_record
from tracewriter.segment import count_lines

UNDECODABLE: Final = "undecodable"  # counted like a rule: what had to go because it could not be looked into
_DROP: Final = name_of_class(TraceDropObserved)


class Lines(Struct, frozen=True):
    """Whole lines after redaction: as many as before. changed: how many are not as they were."""

    data: bytes
    hits: Mapping[str, int] = {}
    changed: int = 0


class _Counting(Redactor):
    """Counts what it replaces. One per thing that is redacted: its tables are those of the redactor it is made from."""

    def __init__(self, like: Redactor) -> None:
        self.__dict__.update(like.__dict__)
        self.hits: Counter[str] = Counter()

    def redact(self, block: bytes) -> bytes:
        new, hits = self.redact_counted(block)
        self.hits.update(hits)
        return new


def scrub_lines(block: bytes, redactor: Redactor) -> Lines:
    """Stored records, one per line."""
    lines = block.split(b"\n")
    try:
        redacted = redactor.redact(block)
        if redacted == block:
            return Lines(block)
        looked = redacted.split(b"\n")
    except CannotRedact:
        looked = []
    if len(looked) != len(lines):
        looked = [b""] * len(lines)  # each line is looked at by itself
    hits: Counter[str] = Counter()
    changed = 0
    for number, line in enumerate(lines[:-1]):
        if looked[number] == line:
            continue
        new, found = _line(line + b"\n", redactor)
        hits.update(found)
        changed += bool(found)
        lines[number] = new[:-1]
    return Lines(b"\n".join(lines), hits, changed)


def _line(line: bytes, redactor: Redactor) -> tuple[bytes, Mapping[str, int]]:
    try:
        new, hits = redactor.redact_counted(line)
    except CannotRedact:
        return _dropped(line), {UNDECODABLE: 1}
    if not hits:
        return line, hits
    return (new, hits) if _is_the_same_record(line, new) else (_dropped(line), hits)


def _is_the_same_record(line: bytes, new: bytes) -> bool:
    before, after = parse_record(line[:-1]), parse_record(new[:-1])
    if before is None or after is None or count_lines(new) != 1 or new[-1:] != b"\n":
        return False
    return before[1] == after[1] and before[0].seq == after[0].seq and before[0].event == after[0].event


def _dropped(line: bytes) -> bytes:
    parsed = parse_record(line[:-1])
    if parsed is None:
        raise ValueError("only records are scrubbed")
    record, end = parsed
    drop = TraceDropObserved(record.seq, end, end - record.seq + 1, "redact")
    return (
        msgspec.json.encode(Record(seq=record.seq, ts=record.ts, event=_DROP, session=record.session, data=drop))
        + b"\n"
    )


def scrub_text(text: bytes, redactor: Redactor) -> Mapping[str, int]:
    """What the rules find in bytes that are no records (the rest of a write that was never completed)."""
    hits: Counter[str] = Counter()
    for line in text.split(b"\n"):
        try:
            hits.update(redactor.redact_counted(line + b"\n")[1])
        except CannotRedact:
            hits[UNDECODABLE] += 1
    return hits


def scrub_body(body: bytes, redactor: Redactor, *, is_json: bool) -> tuple[bytes, Mapping[str, int]]:
    """The body of a payload, redacted whole. The same object when the rules find nothing in it."""
    counting = _Counting(redactor)
    new = redacted_whole(Whole(1, "", is_json, bytearray(body)), counting)
    if new in (UNDECODABLE_BODY, b'"' + UNDECODABLE_BODY + b'"') and new != body:
        return new, {UNDECODABLE: 1}
    return (new, counting.hits) if counting.hits else (body, {})
