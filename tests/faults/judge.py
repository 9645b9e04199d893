"""The one set of checks that every fault is held against: `check` judges a session's directory by the reader alone, then
holds the producer's own figures against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from tests.faults.produce import SessionReport
from tracewriter.events import PromptQueueObserved, SessionRecordFinished, TraceDropObserved, event_of
from tracewriter.findings import Found, Note, Verdict
from tracewriter.reader import read, verify


class Tally(Struct, frozen=True):
    """What is on disk, as the reader gives it."""

    records: int
    dropped: int
    lost: int  # acknowledged, and neither recorded nor dropped
    duplicates: int
    gaps: int  # seqs that nothing explains
    damaged: int
    segments: int
    first: int
    last: int
    closed: bool
    verdict: Verdict

    def __str__(self) -> str:
        return (
            f"records {self.records} dropped {self.dropped} lost {self.lost} duplicates {self.duplicates} "
            f"gaps {self.gaps} damaged {self.damaged} segments {self.segments} exit {5 if self.verdict.damaged else 0}"
        )


def tally(directory: Path, acked: int = 0) -> Tally:
    """Count everything by the reader alone."""
    verdict = verify(directory)
    records = dropped = duplicates = gaps = damaged = lost = first = last = 0
    numbers: set[int] = set()
    closed = False
    for item in read(directory):
        if isinstance(item, Note):
            damaged += item.kind == "damaged"
            continue
        first = first or item.record.seq
        if item.record.seq <= last:
            duplicates += 1
        missing = range(last + 1, item.record.seq)
        gaps += len(missing)
        lost += len(range(last + 1, min(item.record.seq, acked + 1)))
        last = max(last, item.end)
        event = event_of(item.record.event, item.record.data)
        closed = isinstance(event, SessionRecordFinished)
        if isinstance(event, TraceDropObserved):
            dropped += event.count
            continue
        records += 1
        if isinstance(event, PromptQueueObserved):
            duplicates += int(event.prompt) in numbers
            numbers.add(int(event.prompt))
    lost += max(0, acked - last)
    return Tally(records, dropped, lost, duplicates, gaps, damaged, verdict.segments, first, last, closed, verdict)


def check(
    directory: Path,
    report: SessionReport,
    *,
    closed: bool = True,
    allow: Iterable[str] = (),
    may_lose: int = 0,
    started_after: int = 0,
) -> Tally:
    """The set that holds for every fault. Gives the figures.

    acknowledged and lost: at most `may_lose` (0) · duplicates 0 · unexplained gaps: at most `may_lose` · no damage of a
    kind outside `allow` · numbers go up with seq, so nothing was swapped · when closed in order: the reader's emitted ==
    recorded + dropped == what the producer counted.
    """
    result = tally(directory, report.acked)
    told = f"{result} | producer {report}"
    kinds = {note.kind for note in result.verdict.notes if note.damage} - set(allow)
    assert not kinds, f"{kinds}: {[n.message for n in result.verdict.notes if n.damage][:5]} | {told}"
    assert result.duplicates == 0, told
    assert result.lost <= may_lose, told
    assert result.gaps <= may_lose, told
    _in_order(directory, started_after)
    if closed:
        assert result.closed, f"no session.record.finished at the end | {told}"
        assert result.verdict.emitted == result.last, told
        assert result.records + result.dropped + result.gaps == result.last, told
        assert report.emitted == result.last - started_after, told
        assert report.dropped == result.dropped, told
    return result


def _in_order(directory: Path, new_life_after: int) -> None:
    """Every numbered event is in its place: numbers only go up, and never by more than the seqs in between allow."""
    seq = number = 0
    for item in read(directory):
        if not isinstance(item, Found):
            continue
        event = event_of(item.record.event, item.record.data)
        if isinstance(event, PromptQueueObserved):
            now = int(event.prompt)
            if seq <= new_life_after < item.record.seq:
                number = 0
            assert number == 0 or 0 < now - number <= item.record.seq - seq, f"event {now} at seq {item.record.seq}"
            seq, number = item.record.seq, now
