"""Reads traces: records in order, with a note at every place where something is missing, damaged or unfinished.

Streaming and read-only: memory does not grow with the trace, nothing on disk is touched, and what is found on disk never
raises. Segments are the truth; the manifest is only a cache, used for lists. Verdicts: FORMAT.md, "Reading".
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracewriter import lock
from tracewriter.chain import Bulk, Chain, Item
from tracewriter.events import (
    RawRecord,
    SessionRecordFinished,
    SessionRecordStarted,
    TraceDropObserved,
    event_of,
    name_of_class,
)
from tracewriter.findings import Found, Note, SessionEntry, Verdict
from tracewriter.manifest import (
    DIGESTS_MAX,
    DIGESTS_NAME,
    MANIFEST_NAME,
    Manifest,
    decode_manifest,
    digests_head,
    parse_digests,
    segment_digest,
)
from tracewriter.payload_check import References, check_payloads
from tracewriter.payload_files import payloads_bytes
from tracewriter.scan import foreign_names, missing, open_plain, parse_header, parse_record, read_small, scan_segment
from tracewriter.segment import sane_numbers, segment_name, segment_number

__all__ = ["Found", "Item", "Note", "SessionEntry", "Verdict", "list_sessions", "read", "verify"]

_STARTED: Final = name_of_class(SessionRecordStarted)
_FINISHED: Final = name_of_class(SessionRecordFinished)
_DROP: Final = name_of_class(TraceDropObserved)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SMALL: Final = 4 * 1024 * 1024


def segment_numbers(dir_fd: int) -> list[int]:
    """The numbers that segments or their seals have, ascending. A seal alone shows that its segment is missing."""
    return sorted({number for number, _ in sane_numbers(os.listdir(dir_fd))})


def read(directory: Path) -> Iterator[Found | Note]:
    """Every record of a session, and a note wherever one is due, in order. Raises OSError only when the directory is not there."""
    dir_fd = os.open(directory, _DIRECTORY)
    try:
        for item in _read(dir_fd, directory.name, blocks=False):
            if not isinstance(item, Bulk):
                yield item
    finally:
        os.close(dir_fd)


def _read(dir_fd: int, session: str, *, blocks: bool) -> Iterator[Item | Bulk]:
    names = os.listdir(dir_fd)
    found = sane_numbers(names)
    numbers = sorted(number for number, kind in found if kind == "jsonl")
    chain = Chain(recorded_as(dir_fd, numbers, session))
    lives = _Lives()
    done = min((number for number, _ in found), default=1) - 1
    for number in numbers:
        if number > done + 1:
            yield missing(done + 1, number - 1)
        done = number
        for item in chain.feed_blocks(scan_segment(dir_fd, number, blocks=blocks)):
            yield from lives.pass_on(item)
    for item in chain.finish():
        yield from lives.pass_on(item)
    highest = max((number for number, _ in found), default=0)
    if highest > done:
        yield missing(done + 1, highest)
    yield from foreign_names(names)
    if lives.open:
        if lock.is_held(f"/proc/self/fd/{dir_fd}/{lock.LOCK_NAME}"):
            yield Note("active", f"the session is being recorded; {chain.end} records so far", last=chain.end)
        else:
            yield _end_missing(chain.end, "the recording")


def recorded_as(dir_fd: int, numbers: list[int], name: str) -> str:
    """The session's id: the directory's name, unless it was renamed and no segment begins with that id any more."""
    ids: Counter[str] = Counter()
    for number in numbers:
        lines = (read_small(segment_name(number), dir_fd, 4096) or b"").split(b"\n")
        header = parse_header(lines[0])
        record = parse_record(lines[1]) if len(lines) > 2 else None
        ids.update([header.session] if header is not None else [])
        ids.update([record[0].session] if record is not None else [])
        if name in ids:
            return name
    return ids.most_common(1)[0][0] if ids else name


class _Lives:
    """Watches recordings begin and end, and says where one has no end."""

    def __init__(self) -> None:
        self.open = False

    def pass_on(self, item: Item | Bulk) -> Iterator[Item | Bulk]:
        """The item, with the notes that belong around it."""
        if isinstance(item, Bulk):
            self.open = True
        elif isinstance(item, Found):
            if item.record.event == _STARTED and self.open:
                yield _end_missing(item.record.seq - 1, "an earlier recording")
            self.open = item.record.event != _FINISHED
        yield item
        if isinstance(item, Found) and item.record.event == _DROP:
            yield _dropped(item)


def _end_missing(last: int, what: str) -> Note:
    return Note("end_missing", f"end missing: {what} was not closed in order; unknown after seq {last}", last=last)


def _dropped(found: Found) -> Note:
    event = event_of(found.record.event, found.record.data)
    reason = event.reason if isinstance(event, TraceDropObserved) else "unknown"
    count = found.end - found.record.seq + 1
    text = f"seq {found.record.seq} to {found.end} were not recorded: {count} dropped ({reason})"
    return Note("dropped", text, found.segment, found.offset, None, found.record.seq, found.end)


def verify(directory: Path) -> Verdict:
    """Read all of a session and judge it. Raises OSError only when the directory is not there."""
    dir_fd = os.open(directory, _DIRECTORY)
    try:
        return _verify(dir_fd, directory.name)
    finally:
        os.close(dir_fd)


class _Tally:
    """Adds up what a verdict needs."""

    def __init__(self) -> None:
        self.records = self.dropped = self.verified = self.unsealed = self.first = self.last = 0
        self.emitted: int | None = None
        self.notes: list[Note] = []
        self.references = References()

    def add(self, item: Item | Bulk) -> None:
        """Count one item."""
        self.references.take(item)
        match item:
            case Note():
                self.notes.append(item)
            case Bulk():
                count = item.last - item.first + 1
                self.first = self.first or item.first
                self.last, self.emitted = item.last, None
                self.records += count
                self.verified += count
            case Found():
                self._record(item)

    def _record(self, found: Found) -> None:
        self.first = self.first or found.record.seq
        self.last, self.emitted = found.end, None
        self.unsealed += found.state == "unsealed"
        self.verified += found.state == "verified" and found.record.event != _DROP
        if found.record.event == _DROP:
            self.dropped += found.end - found.record.seq + 1
            return
        self.records += 1
        if found.record.event == _FINISHED:
            event = event_of(found.record.event, found.record.data)
            self.emitted = event.emitted if isinstance(event, SessionRecordFinished) else None


def _verify(dir_fd: int, session: str) -> Verdict:
    tally = _Tally()
    for item in _read(dir_fd, session, blocks=True):
        tally.add(item)
    notes = tally.notes
    digests = read_small(DIGESTS_NAME, dir_fd, DIGESTS_MAX)
    notes += _check_digests(dir_fd, digests)
    active = any(note.kind == "active" for note in notes)
    payloads = check_payloads(dir_fd, tally.references, digests, active=active)
    if tally.unsealed and not active:
        notes.append(Note("unsealed", f"{tally.unsealed} records are covered by no seal"))
    accounted = tally.records + tally.dropped
    if tally.emitted is not None and tally.emitted != accounted and not any(note.damage for note in notes):
        text = (
            f"{tally.emitted} events were emitted, but {tally.records} recorded and {tally.dropped} dropped are on disk"
        )
        notes.append(Note("gap", text))
    notes += payloads.notes
    numbers = segment_numbers(dir_fd)
    return Verdict(
        records=tally.records,
        dropped=tally.dropped,
        emitted=tally.emitted,
        first=tally.first,
        last=tally.last,
        segments=len(numbers),
        bytes=sum(_size(dir_fd, segment_name(number)) for number in numbers),
        notes=tuple(notes),
        damaged=any(note.damage for note in notes),
        head=digests_head(digests),
        active=active,
        verified=tally.verified,
        payloads=payloads.files,
        payload_bytes=payloads.bytes,
        payloads_verified=payloads.verified,
    )


def _check_digests(dir_fd: int, noted: bytes | None) -> Iterator[Note]:
    """Segments whose SHA-256 is not the one noted when the recording was closed, and those that are gone with all their traces."""
    there = {parsed[0] for parsed in map(segment_number, os.listdir(dir_fd)) if parsed}
    for number, digest in parse_digests(noted).items():
        now = segment_digest(dir_fd, number)
        if number not in there:
            yield Note("missing", f"segment {number} is missing: it was there when the recording was closed", number)
        elif now is not None and now != digest:
            yield Note("digest", f"segment {number} is not as it was when the recording was closed (SHA-256)", number)


def _size(dir_fd: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_size
    except OSError:
        return 0


def list_sessions(root: Path) -> list[SessionEntry]:
    """All sessions under a trace root, newest record first. Reads manifests, and segments where one is missing."""
    entries: list[SessionEntry] = []
    for workspace_dir in _subdirectories(root):
        for session_dir in _subdirectories(workspace_dir):
            try:
                entry = _entry(session_dir)
            except (OSError, ValueError, ArithmeticError):  # one that cannot be looked at never hides the others
                entry = SessionEntry(session_dir.name, "", session_dir, None, None, 0, 0, active=False)
            if entry is not None:
                entries.append(entry)
    entries.sort(key=lambda e: (e.last_at is not None, e.last_at, e.session), reverse=True)
    return entries


def _subdirectories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as found:
            return [Path(e.path) for e in found if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _entry(path: Path) -> SessionEntry | None:
    try:
        dir_fd = os.open(path, _DIRECTORY)
    except OSError:
        return None
    try:
        active = lock.is_held(str(path / lock.LOCK_NAME))
        manifest = _manifest(dir_fd)
        numbers = segment_numbers(dir_fd)
        if not numbers:
            return None
        size = sum(_size(dir_fd, segment_name(number)) for number in numbers)
        if manifest is None or active or manifest.segments_bytes != size:
            manifest = quick_manifest(dir_fd, path.name, numbers, manifest)
            size += payloads_bytes(dir_fd)
        else:
            size += manifest.payloads_bytes
    finally:
        os.close(dir_fd)
    return SessionEntry(
        session=path.name,
        workspace=manifest.workspace,
        path=path,
        started_at=manifest.started_at,
        last_at=manifest.last_at,
        records=manifest.last,
        bytes=size,
        active=active,
    )


def _manifest(dir_fd: int) -> Manifest | None:
    return decode_manifest(read_small(MANIFEST_NAME, dir_fd, _SMALL))


def quick_manifest(dir_fd: int, session: str, numbers: list[int], known: Manifest | None = None) -> Manifest:
    """What a list shows, from the first and last records alone: constant time, whatever the size."""
    first = _edge(dir_fd, numbers, last=False)
    final = _edge(dir_fd, numbers, last=True)
    workspace = known.workspace if known else ""
    if not workspace and first is not None:
        event = event_of(first[0].event, first[0].data)
        workspace = event.workspace if isinstance(event, SessionRecordStarted) else ""
    return Manifest(
        session=session,
        workspace=workspace,
        started_at=first[0].ts if first else None,
        last_at=final[0].ts if final else None,
        last=final[1] if final else 0,
        segments_bytes=sum(_size(dir_fd, segment_name(number)) for number in numbers),
    )


_EDGE: Final = 64 * 1024
_EDGE_MAX: Final = 4 * 1024 * 1024


def _edge(dir_fd: int, numbers: list[int], *, last: bool) -> tuple[RawRecord, int] | None:
    """The first or the last record of a session, read from the edges of its segments."""
    for number in reversed(numbers) if last else numbers:
        try:
            fd = open_plain(segment_name(number), dir_fd)
        except OSError:
            continue
        try:
            found = _edge_record(fd, os.fstat(fd).st_size, last=last)
        except OSError:
            found = None
        finally:
            os.close(fd)
        if found is not None:
            return found
    return None


def _edge_record(fd: int, size: int, *, last: bool) -> tuple[RawRecord, int] | None:
    window = _EDGE
    while True:
        lines = os.pread(fd, window, max(0, size - window) if last else 0).split(b"\n")
        for line in reversed(lines) if last else lines:
            parsed = parse_record(line)
            if parsed is not None:
                return parsed
        if window >= min(size, _EDGE_MAX):
            return None
        window *= 8
