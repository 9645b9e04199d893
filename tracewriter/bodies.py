"""Records with the bodies that were moved out of them put back: for whoever shows, summarises or exports a trace.

A body that cannot be had is told in a note right after its record. Memory: one record at a time, at most MAX_EXPANDED of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from msgspec import Raw, structs

from tracewriter.events import KINDS, RawRecord, UnknownEvent, event_of
from tracewriter.expand import expand, head, heads, is_body, names_payloads, replace, whole
from tracewriter.findings import Found, Note
from tracewriter.payload import PayloadRef

Find: TypeAlias = Callable[[PayloadRef], bytes | Note]  # PayloadFiles.find, Follower.find_payload
Wanted: TypeAlias = Callable[[RawRecord], bool]


def with_bodies(items: Iterable[Found | Note], find: Find, wanted: Wanted) -> Iterator[Found | Note]:
    """The same findings, the data of the wanted records whole. The others stay as they are, but for those which heads would make
    unreadable, since a part of their structure is in a payload: that is put back. Lines stay as they are stored."""
    for item in items:
        if isinstance(item, Note) or not names_payloads(item.line):
            yield item
            continue
        source = _Source(find, item.record.seq)
        if wanted(item.record):
            yield _with_data(item, expand(item.record.data, source.load))
        elif _is_cut_up(item.record):
            yield _with_data(item, replace(item.record.data, source.structure))
        else:
            yield item
        yield from source.notes


def with_whole_lines(items: Iterable[Found | Note], find: Find, wanted: Wanted) -> Iterator[Found | Note]:
    """The same findings, the lines of the wanted records whole."""
    for item in items:
        if isinstance(item, Note) or not names_payloads(item.line) or not wanted(item.record):
            yield item
            continue
        source = _Source(find, item.record.seq)
        yield structs.replace(item, line=bytes(expand(item.line, source.load)))
        yield from source.notes


class _Source:
    """Where the bodies of one record come from, and what was wrong with them."""

    def __init__(self, find: Find, seq: int) -> None:
        self._find, self._seq = find, seq
        self.notes: list[Note] = []

    def load(self, ref: PayloadRef) -> bytes | None:
        found = self._find(ref)
        if not isinstance(found, Note):
            if is_body(ref, found):
                return found
            what = "JSON" if ref.type == "json" else "text"
            found = Note("payload_damaged", f"payload {ref.payload} is no {what}", payload=ref.payload)
        text = f"{found.message}; seq {self._seq} names it"
        self.notes.append(structs.replace(found, message=text, first=self._seq, last=self._seq))
        return None

    def structure(self, ref: PayloadRef) -> bytes:
        return whole(ref, self.load(ref)) if ref.type == "json" else head(ref)


def _with_data(found: Found, data: Raw) -> Found:
    return structs.replace(found, record=structs.replace(found.record, data=data))


def _is_cut_up(record: RawRecord) -> bool:
    """Whether a record of a known kind is not one any more with heads in the places of its bodies."""
    return record.event in KINDS and isinstance(event_of(record.event, heads(record.data)), UnknownEvent)
