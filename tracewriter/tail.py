"""Follows a session's files as they grow: records as soon as their lines are whole, notes in their places. Read-only.

Polling, not inotify: it works on every file system, needs no descriptor per file and survives whatever happens to the
directory. A segment is left only when a higher number was there before its end was read, since a writer never appends to
an older one; and only for a number that is a writer's, or has one above it: a file with a higher number that does not begin
with this session's header line (planted, damaged, or being made) leads nobody away from where the writer is. It is told once,
and read in its turn. What is shown live is not sealed yet; `reader.verify` judges afterwards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from tracewriter import lock
from tracewriter.chain import Chain, Item
from tracewriter.config import MAX_FRAME, MIB
from tracewriter.events import (
    FORMAT,
    SessionRecordFinished,
    SessionRecordStarted,
    TraceDropObserved,
    event_of,
    name_of_class,
)
from tracewriter.findings import Found, Note
from tracewriter.payload import PayloadRef
from tracewriter.payload_files import PayloadFiles
from tracewriter.reader import quick_manifest, recorded_as
from tracewriter.scan import Line, foreign_names, missing, open_plain, parse_header, parse_record
from tracewriter.segment import Header, sane_numbers, segment_name

_CHUNK: Final = MIB
_LONGEST_LINE: Final = 2 * MAX_FRAME  # no writer of ours makes longer ones
_BACK: Final = 256 * 1024  # a stored line is shorter
_LOOKS: Final = (
    32  # at so many of the lowest and of the highest numbers ahead: the writer's next is the one or the other
)
_HEAD: Final = 4096  # a header line is shorter
_LOCK_EVERY: Final = 10  # polls that found nothing, between two looks at the lock: a look is a lock of its own
_CURSOR: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})\Z")
_SEQ: Final = re.compile(r"[0-9]{1,18}\Z")
_STARTED: Final = name_of_class(SessionRecordStarted)
_FINISHED: Final = name_of_class(SessionRecordFinished)
_DROP: Final = name_of_class(TraceDropObserved)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Cursor(Struct, frozen=True):
    """Where to go on. With a segment: at that byte of it. Without: after the record of that seq; seq 0 is the beginning."""

    segment: int = 0
    offset: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}" if self.segment else str(self.seq)


def parse_cursor(text: str) -> Cursor:
    """`segment:offset`, as a Follower gives it, or a seq. Raises ValueError."""
    place = _CURSOR.match(text)
    if place:
        return Cursor(int(place[1]), int(place[2]))
    if _SEQ.match(text):
        return Cursor(seq=int(text))
    raise ValueError(f"{text[:40]!r} is no cursor: it is a record's number, or segment:offset as tail tells it")


def before_last(directory: Path, count: int) -> Cursor:
    """The cursor after which the last `count` records come. Constant time."""
    try:
        dir_fd = os.open(directory, _DIRECTORY)
    except OSError:
        return Cursor()
    try:
        numbers = _numbers(dir_fd)
        last = quick_manifest(dir_fd, directory.name, numbers).last if numbers else 0
    finally:
        os.close(dir_fd)
    return Cursor(seq=max(0, last - count))


class Follower:
    """One session, from a cursor on. Constant memory; the directory need not be there yet. Close it."""

    def __init__(self, directory: Path, since: Cursor = Cursor()) -> None:  # noqa: B008 - frozen
        self._path = directory
        self._since = since
        self._dir_fd = -1
        self._fd = -1
        self._number = 0
        self._at = 0  # the next byte of the segment that was not read as part of a whole line
        self._chain = Chain(directory.name)
        self._skip_to = since.seq
        self._open_life = False
        self._idle = 0
        self._told_missing = False
        self._session = directory.name  # of a copy or a moved directory: as its files say
        self._told_foreign: set[int] = set()  # numbers ahead that are no writer's
        self._pending: list[Note] = []
        self._payloads: PayloadFiles | None = None
        self.cursor = since
        self.finished = False  # the last record shown ended the recording in order
        self.gone = False  # the directory was moved or removed: nothing will come any more

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the descriptors go."""
        if self._payloads is not None:
            self._payloads.close()
        for fd in (self._fd, self._dir_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._dir_fd = -1

    def poll(self) -> Iterator[Item]:
        """Everything that is whole now and was not given yet. Gives nothing when nothing is new; never raises for the files."""
        if self.gone or not self._open_directory():
            return
        yield from self._pending
        self._pending.clear()
        before = self.cursor
        while True:
            numbers = _numbers(self._dir_fd)  # before reading: see the module
            yield from self._read_on()
            higher = [number for number in numbers if number > self._number]
            foreign = self._all_foreign(higher)
            if foreign is not None:
                yield from foreign
                break
            yield from self._leave(higher[0])
        self._idle = self._idle + 1 if self.cursor == before else 0
        yield from self._watch()

    def find_payload(self, ref: PayloadRef) -> bytes | Note:
        """The body that a record which was given names, or what is wrong with it. Never raises for the files."""
        if self._dir_fd < 0:
            return Note("payload_missing", f"payload {ref.payload} is missing", payload=ref.payload)
        if self._payloads is None:
            self._payloads = PayloadFiles(self._dir_fd)
        return self._payloads.find(ref)

    def end(self) -> Iterator[Item]:
        """Nothing more is awaited: what was still held back, and how the recording stands."""
        if self._dir_fd < 0:
            return
        for number in [number for number in _numbers(self._dir_fd) if number > self._number]:
            yield from self._leave(number)
            yield from self._read_on()
        yield from self._take([self._rest()] if self._fd >= 0 and self._rest().data else [])
        yield from self._pass_on(self._chain.finish())
        if self._open_life and not self._told_missing:
            yield self._active() if self._held() else self._end_missing("the recording")

    # --- where

    def _open_directory(self) -> bool:
        if self._dir_fd >= 0:
            return True
        try:
            self._dir_fd = os.open(self._path, _DIRECTORY)
        except OSError:
            return False
        try:
            self._pending += foreign_names(os.listdir(self._dir_fd))
        except OSError:
            pass
        self._start()
        return True

    def _start(self) -> None:
        """Find whose segments these are, and the one that the cursor is in."""
        since, numbers = self._since, _numbers(self._dir_fd)
        self._session = recorded_as(self._dir_fd, numbers, self._path.name)
        self._chain = Chain(self._session)
        if since.segment:
            self._number, self._at = since.segment, since.offset
            self._chain = Chain(self._session, start=None)
            problem = self._open_segment()
            if problem is None:
                self._look_back()
            else:
                text = f"segment {since.segment}, where reading was to go on, cannot be opened: {problem.strerror}"
                self._pending.append(Note("missing", text, since.segment))
            return
        for number in reversed(numbers) if since.seq else []:
            header = _header_in(self._head(number), number)
            if header is not None and header.session == self._session and header.after <= since.seq:
                self._number = number
                self._chain = Chain(self._session, start=header.after)
                self._open_segment()
                return

    def _look_back(self) -> None:
        """What stands just before the cursor: the record to go on from. A cursor inside a line goes to the next one."""
        try:
            before = os.pread(self._fd, min(self._at, _BACK), max(0, self._at - _BACK))
            if before and not before.endswith(b"\n"):
                self._at += os.pread(self._fd, _LONGEST_LINE, self._at).find(b"\n") + 1
                return
        except OSError:
            return
        parsed = parse_record(before[:-1].rpartition(b"\n")[2])
        if parsed is not None:
            self._chain = Chain(self._session, start=parsed[1])
            self.finished = parsed[0].event == _FINISHED
            self._open_life = not self.finished

    def _head(self, number: int) -> bytes | None:
        """What a segment begins with; None when it is no plain file, or cannot be read."""
        try:
            fd = open_plain(segment_name(number), self._dir_fd)
        except OSError:
            return None
        try:
            return os.pread(fd, _HEAD, 0)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _all_foreign(self, higher: list[int]) -> list[Note] | None:
        """None when one of these numbers, ascending, is a writer's. Else what is to be told of them, once."""
        self._told_foreign.intersection_update(higher)
        notes: list[Note] = []
        for number in _looked_at(higher):
            head = self._head(number)
            header = _header_in(head, number)
            if header is not None and header.session == self._session:
                return None
            making = head is not None and len(head) < _HEAD and b"\n" not in head
            if not making and number not in self._told_foreign:
                text = f"segment {number} does not begin with a header line of this session; the writer is awaited elsewhere"
                notes.append(Note("foreign", text, number))
        self._told_foreign.update(note.segment for note in notes if note.segment is not None)
        return notes

    def _open_segment(self) -> OSError | None:
        try:
            self._fd = open_plain(segment_name(self._number), self._dir_fd)
        except OSError as exc:
            return exc
        return None

    def _leave(self, number: int) -> Iterator[Item]:
        """Go to a higher segment; what is unfinished in the one before stays unfinished."""
        if self._fd >= 0:
            rest = self._rest()
            if rest.data:
                yield from self._take([rest])
            os.close(self._fd)
            self._fd = -1
        if self._number and number > self._number + 1:
            yield missing(self._number + 1, number - 1)
        self._number, self._at = number, 0
        problem = self._open_segment()
        if problem is not None and number not in self._told_foreign:
            yield Note("foreign", f"segment {number} cannot be opened: {problem.strerror}", number)

    # --- reading

    def _read_on(self) -> Iterator[Item]:
        """The whole lines from here to the end of the segment, chunk by chunk."""
        if self._fd < 0:
            return
        try:
            yield from self._taken_back()
            while data := self._chunk():
                end = data.rfind(b"\n") + 1
                if not end:
                    if len(data) <= _LONGEST_LINE:
                        return
                    text = f"segment {self._number}: {len(data)} bytes without a line end"
                    yield Note("damaged", text, self._number, self._at, len(data))
                    end = len(data)
                    self._at += end
                    continue
                start, self._at = self._at, self._at + end
                yield from self._take(_lines(data[:end], self._number, start))
        except OSError as exc:
            os.close(self._fd)
            self._fd = -1
            yield Note("damaged", f"segment {self._number} cannot be read: {exc.strerror}", self._number)

    def _chunk(self) -> bytes:
        """The next bytes; more of them when a chunk holds no whole line."""
        data = os.pread(self._fd, _CHUNK, self._at)
        while data and b"\n" not in data and len(data) <= _LONGEST_LINE:
            more = os.pread(self._fd, _CHUNK, self._at + len(data))
            if not more:
                break
            data += more
        return data

    def _taken_back(self) -> Iterator[Note]:
        """Lines, or the file, were taken back: a writer does so when it could not make them durable, or could not write one
        record after the header, and writes them again elsewhere, or in a new file of this number."""
        info, at = os.fstat(self._fd), self._at
        if info.st_nlink == 0:
            new = self._opened_again()
            if new < 0:
                return
            os.close(self._fd)
            self._fd, self._at = new, 0
        elif info.st_size < at:
            self._at = info.st_size
        else:
            return
        if info.st_nlink or self.cursor.segment == self._number:
            text = f"segment {self._number}: its last {at - self._at} bytes, which were there, have been taken back"
            yield Note("lost", text, self._number, self._at, at - self._at)
            self._chain = Chain(self._session, start=None)

    def _opened_again(self) -> int:
        try:
            return open_plain(segment_name(self._number), self._dir_fd)
        except OSError:
            return -1

    def _rest(self) -> Line:
        """What stands after the last whole line."""
        try:
            data = os.pread(self._fd, _LONGEST_LINE, self._at)
        except OSError:
            data = b""
        return Line(self._number, self._at, data, "unsealed", whole=False)

    def _take(self, lines: Iterable[Line]) -> Iterator[Item]:
        yield from self._pass_on(self._chain.feed(_with_header(lines)))

    def _pass_on(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Note):
                yield item
                continue
            name = item.record.event
            wanted = item.end > self._skip_to
            if name == _STARTED and self._open_life and wanted and not self._told_missing:
                yield self._end_missing("an earlier recording", item.record.seq - 1)
            self._open_life, self.finished = name != _FINISHED, name == _FINISHED
            self._told_missing = False
            self.cursor = Cursor(item.segment, item.offset + len(item.line) + 1)
            if wanted:
                yield item
                if name == _DROP:
                    yield _dropped(item)

    # --- who records

    def _watch(self) -> Iterator[Note]:
        """Tell once when nobody records any more, and when the directory is not where it was."""
        if self._idle % _LOCK_EVERY:
            return
        try:
            moved = not os.path.samestat(os.stat(self._path), os.fstat(self._dir_fd))
        except OSError:
            moved = True
        if moved:
            self.gone = True
            yield Note("missing", "the session's directory is not there any more: it was moved or removed")
        elif self._idle and self._open_life and not self._told_missing and not self._held():
            self._told_missing = True
            yield self._end_missing("the recording")

    def _held(self) -> bool:
        return lock.is_held(f"/proc/self/fd/{self._dir_fd}/{lock.LOCK_NAME}")

    def _active(self) -> Note:
        return Note("active", f"the session is being recorded; {self._chain.end} records so far", last=self._chain.end)

    def _end_missing(self, what: str, last: int = 0) -> Note:
        last = last or self._chain.end
        text = f"end missing: {what} was not closed in order; unknown after seq {last}"
        return Note("end_missing", text, last=last)


def _numbers(dir_fd: int) -> list[int]:
    """The numbers of the segments that are there, ascending."""
    try:
        found = sane_numbers(os.listdir(dir_fd))
    except OSError:
        return []
    return sorted(number for number, kind in found if kind == "jsonl")


def _looked_at(numbers: list[int]) -> Iterable[int]:
    """Those of these ascending numbers that are worth a look: the first and the last, each once."""
    return dict.fromkeys(numbers[:_LOOKS] + numbers[-_LOOKS:])


def _header_in(head: bytes | None, number: int) -> Header | None:
    """The header line that a segment of this number begins with, if it is all there."""
    line, end, _ = (head or b"").partition(b"\n")
    header = parse_header(line) if end else None
    return header if header is not None and (header.segment, header.format) == (number, FORMAT) else None


def _lines(data: bytes, number: int, start: int) -> Iterator[Line]:
    for text in data.split(b"\n")[:-1]:
        yield Line(number, start, text, "unsealed")
        start += len(text) + 1


def _with_header(lines: Iterable[Line]) -> Iterator[Header | Line]:
    for line in lines:
        header = parse_header(line.data) if line.offset == 0 else None
        if header is not None:
            yield header
        yield line


def _dropped(found: Found) -> Note:
    event = event_of(found.record.event, found.record.data)
    reason = event.reason if isinstance(event, TraceDropObserved) else "unknown"
    count = found.end - found.record.seq + 1
    text = f"seq {found.record.seq} to {found.end} were not recorded: {count} dropped ({reason})"
    return Note("dropped", text, found.segment, found.offset, None, found.record.seq, found.end)
