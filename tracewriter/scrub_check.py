"""Holds a trace that was written anew against the one it was made from: the same records, and nothing left to find."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracewriter.events import RawRecord, TraceDropObserved, name_of_class
from tracewriter.findings import Found, Note, Verdict
from tracewriter.reader import read, verify

_DROP: Final = name_of_class(TraceDropObserved)
# What may be missing after damaged lines were left out; without damage before, none of it may be there.
_CARRIED: Final = frozenset({"gap", "missing", "payload_missing", "payload_damaged"})


def difference(old: Path, new: Path, own: int) -> str:
    """How the new records differ from the old ones, but for redacted text and `own` records at the end; "" when they do not.

    Streams both. An old record that was a duplicate is passed over.
    """
    after = _found(new)
    last = 0
    for before in _found(old):
        if before.end <= last:
            continue
        last = before.end
        now = next(after, None)
        if now is None or (now.line != before.line and not _same(before, now)):
            return f"seq {before.record.seq} would not be what it was"
    rest = list(itertools.islice(after, own + 1))
    return "" if len(rest) == own else f"{len(rest)} records would follow in place of {own}"


def _found(path: Path) -> Iterator[Found]:
    return (item for item in read(path) if isinstance(item, Found))


def _same(before: Found, now: Found) -> bool:
    if (before.record.seq, before.end, before.record.ts) != (now.record.seq, now.end, now.record.ts):
        return False
    redacted_away = now.record.event == _DROP and before.record.event != _DROP
    return redacted_away or _identity(before.record) == _identity(now.record)


def _identity(record: RawRecord) -> tuple[object, ...]:
    return (record.event, record.session, record.run, record.op, record.parent)


def new_damage(old: Verdict, new: Path) -> tuple[str, Verdict]:
    """(what the reader finds wrong with the new files, its verdict on them). What was damaged before may show as a hole."""
    verdict = verify(new)
    allowed = _CARRIED if old.damaged else frozenset()
    wrong = [note.message for note in verdict.notes if note.damage and note.kind not in allowed]
    unproven = [note.message for note in verdict.notes if _is_unproven(note)]
    return "; ".join((wrong or unproven)[:3]), verdict


def _is_unproven(note: Note) -> bool:
    """What a writer may leave after a crash, and a scrub must not."""
    return note.kind in ("unsealed", "unfinished", "active")
