"""One session's directory as an append-only journal: lock, numbered segments, seals, digests, manifest.

Opening finds the first seq that is not on disk. Appending goes to the current segment; rotation, a write error or somebody
else's change to the file end it and the next append makes the next number. An older segment is never touched again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from msgspec import Struct

from tracewriter import lock
from tracewriter.background import Background
from tracewriter.config import MAX_SEQ, Limits
from tracewriter.disk import Disk
from tracewriter.errors import SessionUnavailable, errno_name
from tracewriter.events import FORMAT
from tracewriter.manifest import (
    DIGESTS_MAX,
    DIGESTS_NAME,
    Manifest,
    note_digests,
    parse_payload_digests,
    undigested,
    write_manifest,
)
from tracewriter.payload import PAYLOADS, PayloadSeal, encode_seal
from tracewriter.payload_store import PayloadStore
from tracewriter.recovery import Producer as Producer
from tracewriter.recovery import newest_end
from tracewriter.scan import read_small
from tracewriter.segment import Header, Mark, Outcome, Segment, sane_numbers, segment_name

_NUMBER_TRIES: Final = 64


class Key(Struct, frozen=True):
    """Which session: its id and the canonical path of its workspace."""

    session: str
    workspace: str

    @property
    def workspace_hash(self) -> str:
        """The workspace's directory name: first 24 hex of SHA-256 of its path."""
        return hashlib.sha256(self.workspace.encode("utf-8", "surrogateescape")).hexdigest()[:24]


class Journal:
    """The files of one session, held under its lock from `open` to `close`."""

    def __init__(
        self, disk: Disk, root_fd: int, key: Key, producer: Producer, limits: Limits, dir_fd: int, lock_fd: int
    ) -> None:
        self._disk, self._root_fd = disk, root_fd
        self.key, self._life = key, producer.life
        self._dir_fd, self._lock_fd = dir_fd, lock_fd
        self.segment: Segment | None = None
        self._why = "open"
        self._lost = 0
        self._number = 0  # the highest number in use
        self._older_bytes = 0  # of segments that are not the current one, and of payload files
        self.last = 0
        self.segments = 0
        self.note = (
            ""  # what people should know although recording works: "moved", "EFBIG" (segments end early), "sync:EIO"
        )
        self._segment_bytes = limits.segment_bytes
        self._durable = limits.durability == "batch"
        self._payloads = PayloadStore(disk, dir_fd, limits.durability)
        self._payload_seals: list[PayloadSeal] = []  # for the current segment's seal file, or the next one's
        self._owed: Callable[[], OSError | None] | None = None  # what could not be taken back after a failed fdatasync

    def __repr__(self) -> str:
        return f"<Journal {self.key.session} last {self.last} {self.segment!r}>"

    @classmethod
    def open(cls, disk: Disk, root_fd: int, key: Key, producer: Producer, limits: Limits) -> Journal:
        """Open or make the session's directory and take its lock. Raises SessionUnavailable, saying why and when to ask again."""
        try:
            dir_fd = _open_dirs(disk, root_fd, key, durable=limits.durability == "batch")
        except OSError as exc:
            message = f"the session's directory cannot be made: {exc.strerror}"
            raise SessionUnavailable(errno_name(exc), message, 1000) from exc
        lock_fd = -1
        try:
            if os.fstat(dir_fd).st_uid != os.geteuid():
                raise SessionUnavailable("foreign", "the session's directory belongs to another user")
            lock_fd = lock.acquire(dir_fd)
            journal = cls(disk, root_fd, key, producer, limits, dir_fd, lock_fd)
            if journal._moved():  # retention was faster: what is locked here lies in the trash already
                raise SessionUnavailable("locked", "the session's directory is being moved", 100)
            journal._recover(producer)
        except OSError as exc:
            _close_all(disk, lock_fd, dir_fd)
            raise SessionUnavailable(errno_name(exc), f"the session cannot be read: {exc.strerror}", 1000) from exc
        except BaseException:
            _close_all(disk, lock_fd, dir_fd)
            raise
        return journal

    def _recover(self, producer: Producer) -> None:
        if not (0 <= producer.acked <= MAX_SEQ and 0 <= producer.last <= MAX_SEQ):
            raise SessionUnavailable("malformed", "sequence numbers that cannot be")
        names = self._disk.names(self._dir_fd)
        found = sane_numbers(names)
        numbers = sorted({number for number, _ in found})
        self.segments = len(numbers)
        self._number = numbers[-1] if numbers else 0
        for number, kind in found:
            if kind == "jsonl":
                self._older_bytes += self._size(segment_name(number))
        if PAYLOADS in names:
            self._payloads.recover()
            self._older_bytes += self._payloads.size_bytes
        on_disk, life = newest_end(self._dir_fd, numbers, self.key.session, producer)
        # what this life gave out may never have got here: only records beyond what it knows of show that another went on
        if producer.last > 0 and life not in ("", producer.life) and on_disk > producer.acked:
            raise SessionUnavailable("taken", "another process went on with this session")
        problem = self.sync_found()() if self._durable else None
        if problem is not None:
            raise problem
        self.last = max(on_disk, producer.acked)
        self._lost = producer.acked if producer.acked > on_disk else 0

    def sync_found(self) -> Callable[[], OSError | None]:
        """A job: fdatasync of the segments that were not closed in order. Whoever wrote them may have been killed before it was
        done, and what is counted as recorded now must not be what a power cut takes away, nor leave a hole before what comes."""
        dir_fd = os.dup(self._dir_fd)  # the journal may be closed before the job runs

        def job() -> OSError | None:
            try:
                _sync_undigested(self._disk, dir_fd)
                return None
            except OSError as exc:
                return exc
            finally:
                os.close(dir_fd)

        return job

    @property
    def segments_bytes(self) -> int:
        """Size of all segments."""
        return self.size_bytes - self._payloads.size_bytes

    @property
    def size_bytes(self) -> int:
        """Size of all segments and payload files."""
        return self._older_bytes + (self.segment.size if self.segment else 0)

    @property
    def payloads(self) -> int:
        """How many payload files there are."""
        return self._payloads.files

    def has_payload(self, payload: str) -> bool:
        """Whether this body is stored already."""
        return self._payloads.has(payload)

    def store_payload(self, payload: str, data: bytes) -> OSError | None:
        """Put a body in place, as it may be shown, before the record that names it is appended."""
        stored = self._payloads.store(payload, data)
        if stored.seal is not None:
            self._payload_seals.append(stored.seal)
            self._older_bytes += stored.seal.size
        return stored.error

    def append(self, block: bytes, lines: int, last: int, seq_after: Callable[[int], int]) -> Outcome:
        """Append whole lines ending at seq `last`. After an error, `seq_after(k)` tells the seq of the k-th line."""
        owed = self._owed() if self._owed is not None else None
        if owed is not None:
            return Outcome(0, owed)
        self._owed = None
        segment = self._ready(len(block))
        mark, lost = segment.mark() if segment is not None else None, self._lost
        if segment is not None:
            outcome = segment.append(block, lines, last)
        else:
            segment, outcome = self._start(block, lines, last)
        if self._durable and (outcome.error is None or outcome.lines):
            outcome = self._make_durable(segment, mark, outcome)
            self._lost = self._lost if outcome.lines else lost
        if outcome.error is None:
            self.last = last
            return outcome
        if outcome.lines:
            self.last = seq_after(outcome.lines)
            segment.ends_at(self.last)
        if outcome.error.errno == errno.EFBIG and segment.size:
            self._segment_bytes, self.note = min(self._segment_bytes, segment.size), "EFBIG"
        self._leave(f"error:{errno_name(outcome.error)}", segment)
        return outcome

    def _make_durable(self, segment: Segment, mark: Mark | None, outcome: Outcome) -> Outcome:
        """fdatasync before anything is acknowledged, on the loop: with this durability the disk's time is part of the deal.

        After a failure nobody knows what is on disk, so the block is taken back and goes into a new segment.
        """
        error = segment.sync()
        if error is None and mark is None:
            try:
                self._disk.sync(self._dir_fd)  # the new file's name
            except OSError as exc:
                error = exc
        if error is None:
            return outcome
        if segment.take_back(mark) is not None:
            self._owed = partial(segment.take_back, mark)
        elif mark is None:  # the file is gone, its number free
            segment.suspend()
            self.segment, self._number, self.segments = None, self._number - 1, self.segments - 1
        return Outcome(0, error)

    def leave_after_sync_error(self, segment: Segment, problem: OSError) -> None:
        """The background fdatasync of the current segment failed: the next append makes another."""
        if self.segment is segment:
            self._leave(f"error:{errno_name(problem)}", segment)

    def _ready(self, coming: int) -> Segment | None:
        """The current segment if it can take the block."""
        segment = self.segment
        if segment is None:
            return None
        if segment.fd < 0 and not segment.resume():
            segment.forget_ranges()
            self._leave("foreign:changed", segment)
            return None
        change = segment.foreign_change(by_name=False)
        if change:
            segment.forget_ranges()
            self._leave(f"foreign:{change}", segment)
            return None
        if segment.size + coming > self._segment_bytes and segment.records:
            self._leave("size", segment)
            return None
        return segment

    def _start(self, block: bytes, lines: int, last: int) -> tuple[Segment, Outcome]:
        for _ in range(_NUMBER_TRIES):
            number = self._number + 1
            header = Header(
                segment=number,
                id=os.urandom(8).hex(),
                session=self.key.session,
                format=FORMAT,
                producer=self._life,
                after=self.last,
                why=self._why,
                lost=self._lost,
            )
            segment = Segment(self._disk, self._dir_fd, header, self._payloads.sync)
            outcome = segment.start(block, lines, last)
            if isinstance(outcome.error, FileExistsError):
                self._number = number  # something was put there; it is left alone
                continue
            if segment.fd >= 0:
                self._number, self.segment = number, segment
                self.segments += 1
                self._why, self._lost = "open", 0
            return segment, outcome
        return segment, outcome

    def _leave(self, why: str, segment: Segment) -> None:
        """End the current segment; the next append makes another, which says why."""
        self._why = why
        if segment.fd >= 0:
            self._seal(segment)
            self._retire(segment)
        if self.segment is segment:
            self._older_bytes += segment.size
            self.segment = None

    _retire_later: Callable[[Segment], None] | None = None

    def _retire(self, segment: Segment) -> None:
        if self._retire_later is not None:
            self._retire_later(segment)
        else:
            segment.suspend()

    def retire_with(self, retire: Callable[[Segment], None]) -> None:
        """Who syncs and closes the descriptors of segments that are done (the background thread)."""
        self._retire_later = retire

    def rest(self) -> None:
        """End the current segment in order; the next append makes another."""
        if self.segment is not None and (self.segment.fd >= 0 or self.segment.resume()):
            self._leave("open", self.segment)

    def check(self) -> str:
        """Look for somebody else's changes to the current segment, by name too; ends it and says what, or ""."""
        segment = self.segment
        if segment is None or segment.fd < 0:
            return ""
        if self._moved():
            self.note = "moved"
        change = segment.foreign_change(by_name=True)
        if change:
            segment.forget_ranges()
            self._leave(f"foreign:{change}", segment)
        return change

    def _moved(self) -> bool:
        """Whether the directory's name leads elsewhere now. Recording goes on in it, through the descriptor."""
        path = f"{self.key.workspace_hash}/{self.key.session}"
        try:
            return not os.path.samestat(self._disk.stat(path, self._root_fd), os.fstat(self._dir_fd))
        except OSError:
            return True

    def misplaced(self) -> bool:
        """Whether the directory is deleted, or its name leads to another one: records belong there then. A renamed one whose
        name leads nowhere is neither: recording goes on in it."""
        path = f"{self.key.workspace_hash}/{self.key.session}"
        try:
            held = os.fstat(self._dir_fd)
            if held.st_nlink == 0:
                return True
            named = self._disk.stat(path, self._root_fd)
        except OSError as exc:
            return exc.errno == errno.ESTALE
        return stat.S_ISDIR(named.st_mode) and named.st_uid == held.st_uid and not os.path.samestat(named, held)

    def seal(self) -> None:
        """Append the seals of what was written since the last call."""
        if self.segment is not None and (self.segment.fd >= 0 or self.segment.resume()) and not self.check():
            self._seal(self.segment)

    def _seal(self, segment: Segment) -> None:
        slots: list[bytes] = []
        if segment.seals:
            slots = [encode_seal(seal, segment.id) for seal in self._payload_seals]
            self._payload_seals.clear()
        segment.seal(slots)

    def manifest(self, workspace: str, started_at: datetime | None, last_at: datetime, *, closed: bool) -> Manifest:
        """The manifest as of now, with the workspace's path as it may be shown."""
        return Manifest(
            session=self.key.session,
            workspace=workspace,
            started_at=started_at,
            last_at=last_at,
            last=self.last,
            segments_bytes=self.segments_bytes,
            payloads_bytes=self._payloads.size_bytes,
            closed=closed,
        )

    def write_manifest(self, manifest: Manifest) -> OSError | None:
        """Replace the manifest (off the loop)."""
        return write_manifest(self._disk, self._dir_fd, manifest)

    def note_digests(self) -> OSError | None:
        """Append the SHA-256 of every segment and payload that has none yet to `digests` (off the loop, at close)."""
        return note_digests(self._disk, self._dir_fd)

    def close(self) -> None:
        """Close every descriptor, the lock's last."""
        if self.segment is not None:
            self.segment.suspend()
        _close_all(self._disk, self._dir_fd, self._lock_fd)

    def _size(self, name: str) -> int:
        try:
            return self._disk.stat(name, self._dir_fd).st_size
        except OSError:
            return 0


def _open_dirs(disk: Disk, root_fd: int, key: Key, *, durable: bool) -> int:
    """Open or make the session's directory in its workspace's; durable: their names are synced."""
    workspace_fd, dir_fd = disk.open_dir(key.workspace_hash, root_fd, create=True), -1
    try:
        dir_fd = disk.open_dir(key.session, workspace_fd, create=True)
        if durable:
            disk.sync(workspace_fd)
            disk.sync(root_fd)
    except OSError:
        _close_all(disk, dir_fd)
        raise
    finally:
        disk.close(workspace_fd)
    return dir_fd


def _sync_undigested(disk: Disk, dir_fd: int) -> None:
    noted = read_small(DIGESTS_NAME, dir_fd, DIGESTS_MAX)
    names = disk.names(dir_fd)
    if PAYLOADS in names:
        PayloadStore(disk, dir_fd, "batch").sync_all_but(set(parse_payload_digests(noted)))
    for number in undigested(names, noted):
        try:
            fd = disk.append(segment_name(number), dir_fd)
        except OSError:
            continue  # something planted: no records are counted from it either
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)


def _close_all(disk: Disk, *fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            try:
                disk.close(fd)
            except OSError:
                pass


def retire_in(background: Background, failed: Callable[[Segment, OSError], None]) -> Callable[[Segment], None]:
    """A retire function that syncs and closes segments in the background thread, and tells of a sync that failed."""

    def retire(segment: Segment) -> None:
        def job() -> OSError | None:
            problem = segment.sync() if segment.unsynced else None
            segment.suspend()
            return problem

        def done(result: object) -> None:
            if isinstance(result, OSError):
                failed(segment, result)

        background.submit(job, done)

    return retire
