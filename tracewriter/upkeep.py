"""What has to be done about open recordings besides writing: seal, sync, finish, close, and keep descriptors few.

Slow work goes to the background, in order; a session keeps its lock until all of it is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from tracewriter.background import Background
from tracewriter.clock import Clock
from tracewriter.config import Limits
from tracewriter.errors import errno_name
from tracewriter.journal import Journal, Key
from tracewriter.recorder import Recording
from tracewriter.root import follow
from tracewriter.segment import Segment

_SYNC_RETRY_S: Final = 30.0  # each failed sync ends a segment: a disk that never syncs must not make one a second


class Place(Struct, frozen=True):
    """The trace root: its path, and the descriptor that stays open on it (`root.follow` may turn it elsewhere)."""

    path: str
    fd: int


class Upkeep:
    """Looks after `held`, the recordings that this process has the locks of."""

    def __init__(
        self,
        held: dict[Key, Recording],
        background: Background,
        root: Place,
        *,
        clock: Clock,
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        self._held, self._background, self._root = held, background, root
        self._clock, self._limits, self._log = clock, limits, log
        self._hot: OrderedDict[Key, Recording] = OrderedDict()  # sessions with open segment descriptors, coldest first
        now = clock.monotonic()
        self._next_seal = now + limits.seal_interval_s
        self._next_sync = now + limits.sync_interval_s
        self._sync_again: dict[Key, float] = {}  # sessions whose sync failed: not before then
        self._root_found = ""

    def due(self, now: float) -> None:
        """Whatever its time has come for."""
        if now >= self._next_seal:
            self._next_seal = now + self._limits.seal_interval_s
            self._watch_root()
            self._seal_all(now)
        if now >= self._next_sync:
            self._next_sync = now + self._limits.sync_interval_s
            if self._limits.durability == "interval":
                self._sync_all(now)

    def warm(self, recording: Recording) -> None:
        """Keep at most so many segments open; the least recently written give their descriptors back."""
        self._hot[recording.key] = recording
        self._hot.move_to_end(recording.key)
        if len(self._hot) > self._limits.open_segments:
            _, cold = self._hot.popitem(last=False)
            if cold.journal is not None:
                cold.journal.seal()
                cold.dirty = False
                segment = cold.journal.segment
                if segment is not None and not segment.syncing:
                    segment.suspend()

    def close(self, recording: Recording, done: Callable[[], None]) -> None:
        """Seal, sync, digest, manifest, then free the lock; `done` is called after that."""
        self._hot.pop(recording.key, None)
        journal, recording.journal = recording.journal, None

        def finished(result: object) -> None:
            if journal is not None:
                self._told(journal, result)
                journal.close()
            self._sync_again.pop(recording.key, None)
            self._held.pop(recording.key, None)
            done()

        if journal is None:
            finished(None)
            return
        journal.seal()
        recording.dirty = False
        manifest = recording.manifest(journal, closed=True)
        wrote = recording.started_at is not None

        def job() -> OSError | None:
            problem = self._synced_at_close(journal)
            if wrote:
                journal.note_digests()
                journal.write_manifest(manifest)
            return problem

        self._background.submit(job, finished)

    def _synced_at_close(self, journal: Journal) -> OSError | None:
        segment = journal.segment
        if self._limits.durability == "none" or segment is None or not segment.unsynced:
            return None
        return segment.sync()

    def _watch_root(self) -> None:
        """Go on in the directory that the root's path leads to now; what was written into another one since is lost."""
        found, before = follow(self._root.path, self._root.fd), self._root_found
        self._root_found = found
        match found:
            case "replaced" | "made":
                how = "is another directory now (unmounted, or replaced)" if found == "replaced" else "was deleted"
                self._log(f"{self._root.path} {how}; recording goes on in the one that is there now")
                for recording in self._held.values():
                    self._sleep(recording)
            case "deleted" if before != found:
                self._log(f"{self._root.path} was deleted and cannot be made again; recording waits for it")
            case "gone" if before != found:
                self._log(f"{self._root.path} is gone; recording goes on in the directory it was")

    def _seal_all(self, now: float) -> None:
        for recording in self._held.values():
            journal = recording.journal
            if journal is None:
                continue
            if recording.dirty and journal.misplaced():
                self._log(
                    f"{recording.key.session}: its directory was deleted or replaced; recording goes on by its name"
                )
                recording.dirty = False
                self._sleep(recording)
            elif recording.dirty:
                recording.dirty = False
                journal.seal()
            elif now - recording.active_at > self._limits.session_idle_s and journal.segment is not None:
                self._rest(recording, journal)

    def _rest(self, recording: Recording, journal: Journal) -> None:
        """Finish an idle recording's files; the next record makes a new segment. The lock stays held: the session is open, and
        what is open is never taken by another process or by retention, however long it says nothing."""
        self._hot.pop(recording.key, None)
        journal.rest()
        manifest = recording.manifest(journal, closed=True)

        def job() -> None:
            journal.note_digests()
            journal.write_manifest(manifest)

        self._background.submit(job)

    def _sleep(self, recording: Recording) -> None:
        """Let go of a recording's directory, which is not where its path leads any more; the next record opens it anew."""
        self._hot.pop(recording.key, None)
        journal, recording.journal = recording.journal, None
        if journal is None:
            return
        journal.seal()
        manifest = recording.manifest(journal, closed=True)

        def job() -> OSError | None:
            problem = self._synced_at_close(journal)
            journal.note_digests()
            journal.write_manifest(manifest)
            return problem

        def finished(result: object) -> None:
            self._told(journal, result)
            journal.close()

        self._background.submit(job, finished)

    def let_go(self, journal: Journal) -> None:
        """Close a journal whose directory is gone, after whatever is under way with it in the background."""
        self._hot.pop(journal.key, None)
        self._background.submit(lambda: None, lambda _: journal.close())

    def _sync_all(self, now: float) -> None:
        for recording in self._held.values():
            journal = recording.journal
            segment = journal.segment if journal is not None else None
            if journal is None or segment is None or now < self._sync_again.get(recording.key, 0.0):
                continue
            if segment.unsynced and not segment.syncing:
                segment.syncing = True
                self._background.submit(segment.sync, partial(self._synced, recording, journal, segment))

    def _synced(self, recording: Recording, journal: Journal, segment: Segment, result: object) -> None:
        """Close what grew cold meanwhile. After a failed fdatasync nobody knows what of the file is on disk: it is never synced
        again, and left."""
        segment.syncing = False
        if journal.segment is segment and recording.key not in self._hot:
            segment.suspend()
        if isinstance(result, OSError):
            self.sync_failed(journal, segment, result)

    def sync_failed(self, journal: Journal, segment: Segment, problem: OSError) -> None:
        """An fdatasync in the background failed: said once in the log, and in the status; recording goes on in a new segment."""
        self._told(journal, problem)
        self._sync_again[journal.key] = self._clock.monotonic() + _SYNC_RETRY_S
        journal.leave_after_sync_error(segment, problem)

    def sync_found(self, journal: Journal) -> None:
        """Sync what an earlier life may have left to the kernel, before anything of this one is synced."""
        self._background.submit(journal.sync_found(), partial(self._told, journal))

    def _told(self, journal: Journal, result: object) -> None:
        note = f"sync:{errno_name(result)}" if isinstance(result, OSError) else journal.note
        if note != journal.note:
            journal.note = note
            self._log(
                f"{journal.key.session}: fdatasync failed ({note[5:]}): a power cut may lose what was recorded before it"
            )
