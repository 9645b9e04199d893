"""Applies today's rules of redaction to a trace that was recorded with yesterday's, or with none.

Under the session's lock: verify, look what the rules find, write the session anew in a directory beside the traces (`scrub_files`),
verify that with the reader itself and compare it record by record (`scrub_check`), and only then have the two directories change
their names in one system call (`scrub_disk`). A kill, a full disk or an error at any point leaves the old trace or the new one,
whole. The old files are then unlinked, not overwritten: free blocks, snapshots and backups may hold them on.

The change is in the record itself: the new trace ends with a recording of its own (session.record.started, trace.scrub.applied,
session.record.finished) that says what the rules found, how often, and the head digest before and after. Its `ts` is that of the
record before it, so that a scrub makes no session younger for retention and lists; `at` is when it was done.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from tracewriter import __version__, lock
from tracewriter.clock import SYSTEM_CLOCK, Clock
from tracewriter.errors import SessionUnavailable, errno_name
from tracewriter.events import (
    FORMAT,
    Event,
    Record,
    SessionRecordFinished,
    SessionRecordStarted,
    TraceScrubApplied,
    name_of,
)
from tracewriter.findings import Verdict
from tracewriter.ids import Random
from tracewriter.manifest import DIGESTS_NAME, MANIFEST_NAME, note_digests, write_manifest
from tracewriter.payload_files import payloads_bytes
from tracewriter.reader import recorded_as, segment_numbers, verify
from tracewriter.redact import MIN_EXACT, Redactor
from tracewriter.redact_names import NAMES
from tracewriter.redact_rules import SECRETS
from tracewriter.scrub_check import difference, new_damage
from tracewriter.scrub_disk import SCRUB, SCRUB_DISK, ScrubDisk, Workplace, clear_leftover, remove_leftovers
from tracewriter.scrub_files import Counts, Writing, count, write_file
from tracewriter.scrub_lines import scrub_body
from tracewriter.scrub_place import PINNED, Place, Problem, head_now, segments_bytes

__all__ = ["MIN_EXACT", "Redactor", "Scrub", "Scrubbed"]

RETURN_S: Final = (
    600.0  # a producer whose recording was not closed in order may go on with it: so long it is waited for
)
_WHY: Final = "scrub"
_SETTLED_S: Final = 60.0  # a working directory younger than this may be somebody's who is about to lock it
_BUSY: Final = "it is being recorded, or scrubbed, right now"
_DAMAGED: Final = "it is damaged; nothing was changed"
_OWN: Final = 3  # records
_NAMED: Final = 5  # damage that is told in full


class Scrubbed(Struct, frozen=True):
    """What became of one session.

    state: clean (the rules find nothing: nothing was written), found (a dry run), scrubbed, left (scrubbed, but the old files could
    not all be removed), active (somebody records or scrubs it), damaged (it does not verify), failed; in the last three nothing
    was changed, and `reason` says why. hits: how often each rule found something, in so many records and payloads.
    """

    session: str
    workspace: str
    state: str
    hits: Mapping[str, int] = {}
    records: int = 0
    payloads: int = 0
    reason: str = ""
    pinned: bool = False
    damage: tuple[str, ...] = ()
    old_head: str = ""
    new_head: str = ""
    bytes: int = 0


class Scrub:
    """Scrubs sessions under one trace root. force: also those that are damaged, without what is no record, and those that were
    not closed in order just now."""

    def __init__(
        self,
        root: Path,
        redactor: Redactor,
        *,
        force: bool = False,
        disk: ScrubDisk = SCRUB_DISK,
        clock: Clock = SYSTEM_CLOCK,
        random: Random = os.urandom,
    ) -> None:
        self._root, self._redactor, self._force = root, redactor, force
        self._disk, self._clock, self._random = disk, clock, random

    def look(self, workspace: str, session: str) -> Scrubbed:
        """What `apply` would find. Touches nothing, takes no lock. Never raises for what is on disk."""
        return self._guarded(workspace, session, self._look)

    def apply(self, workspace: str, session: str) -> Scrubbed:
        """Scrub one session. Never raises for what is on disk or what the disk does."""
        return self._guarded(workspace, session, self._apply)

    def tidy(self) -> int:
        """Remove what killed scrubs left of sessions that may not be there any more. How many working directories that were."""
        root_fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return remove_leftovers(root_fd, self._clock.now().timestamp() - _SETTLED_S, self._disk)
        finally:
            os.close(root_fd)

    def _guarded(self, workspace: str, session: str, work: Callable[[Place], Scrubbed]) -> Scrubbed:
        place: Place | None = None
        try:
            place = Place(self._root, workspace, session)
            return work(place)
        except Problem as problem:
            return Scrubbed(session, workspace, problem.state, reason=problem.reason)
        except SessionUnavailable as problem:
            active = problem.code == "locked"
            return Scrubbed(
                session, workspace, "active" if active else "failed", reason=_BUSY if active else str(problem)
            )
        except OSError as problem:
            text = f"{errno_name(problem)}: {problem.strerror or problem}; nothing was changed"
            return Scrubbed(session, workspace, "failed", reason=text)
        finally:
            if place is not None:
                place.close()

    # --- looking

    def _look(self, place: Place) -> Scrubbed:
        if lock.is_held(f"/proc/self/fd/{place.fd}/{lock.LOCK_NAME}"):
            raise Problem("active", _BUSY)
        place.refuse_foreign()
        verdict = verify(place.path)
        self._refuse_unclosed(place, verdict)
        found = _found(place, self._count(place))
        return self._damaged(found, verdict) or found

    def _damaged(self, found: Scrubbed, verdict: Verdict) -> Scrubbed | None:
        if not verdict.damaged or self._force:
            return None
        return structs.replace(found, state="damaged", damage=_damage(verdict), reason=_DAMAGED)

    def _refuse_unclosed(self, place: Place, verdict: Verdict) -> None:
        if verdict.emitted is not None or self._force:
            return
        last_at = place.manifest().last_at
        if last_at is not None and timedelta(0) <= self._clock.now() - last_at < timedelta(seconds=RETURN_S):
            text = "its recording was not closed in order, just now: its producer may go on with it"
            raise Problem("active", f"{text}; try again in {RETURN_S / 60:.0f} minutes")

    def _count(self, place: Place) -> Counts:
        """What the rules find, also in the path of the workspace and in what somebody wrote into `pinned`."""
        counts = count(place.fd, place.session, self._redactor)
        hits = Counter(counts.hits)
        for text in (place.manifest().workspace.encode(errors="replace"), place.pin_note()):
            hits.update(scrub_body(text, self._redactor, is_json=False)[1])
        return structs.replace(counts, hits=dict(sorted(hits.items())))

    # --- doing

    def _apply(self, place: Place) -> Scrubbed:
        lock_fd = lock.acquire(place.fd)
        try:
            place.refuse_moved()
            clear_leftover(self._disk, place.root_fd, place.workspace, place.session)
            place.refuse_foreign()
            verdict = verify(place.path)
            self._refuse_unclosed(place, verdict)
            counts = self._count(place)
            found = _found(place, counts)
            damaged = self._damaged(found, verdict)
            if damaged is not None or not counts.hits:
                return damaged or found
            return self._rewrite(place, verdict, counts, found)
        finally:
            os.close(lock_fd)

    def _rewrite(self, place: Place, verdict: Verdict, counts: Counts, found: Scrubbed) -> Scrubbed:
        work = Workplace(self._disk, place.root_fd, place.workspace, place.session)
        try:
            try:
                done = self._write(place, work, verdict, counts, found)
                place.refuse_moved()
                work.take_place(place.workspace_fd)
            except (OSError, Problem):
                if not work.took_place:
                    _remove_quietly(work)
                    raise
                return structs.replace(
                    found, state="left", reason="the change of names may not survive a power cut; scrub again"
                )
            try:
                work.remove()
            except OSError as problem:
                reason = f"not all old files are removed ({errno_name(problem)}); the next scrub tries again"
                return structs.replace(done, state="left", reason=reason)
            return done
        finally:
            work.let_go()

    def _write(self, place: Place, work: Workplace, verdict: Verdict, counts: Counts, found: Scrubbed) -> Scrubbed:
        writing = Writing(self._disk, work.fd, self._redactor, self._random)
        writing.bodies(place.fd, counts.json_ids)
        writing.segments(place.fd, place.session)
        _raise(note_digests(self._disk, work.fd))
        was = place.manifest()
        workspace = scrub_body(was.workspace.encode(errors="replace"), self._redactor, is_json=False)[0].decode()
        at = self._clock.now()
        change = TraceScrubApplied(
            at=at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            rules=rules_version(),
            hits=dict(counts.hits),
            records=writing.records,
            payloads=writing.payloads,
            damage=sum(note.damage for note in verdict.notes),
            old_head=head_now(place.fd),
            new_head=head_now(work.fd),
        )
        session = recorded_as(place.fd, segment_numbers(place.fd), place.session)
        writing.own(session, _own_records(session, writing.last, was.last_at or at, workspace, change), _WHY)
        _raise(note_digests(self._disk, work.fd))
        pin = scrub_body(place.pin_note(), self._redactor, is_json=False)[0] if place.pinned else None
        manifest = structs.replace(
            was,
            workspace=workspace,
            last_at=was.last_at or at,
            last=writing.last,
            segments_bytes=segments_bytes(work.fd),
            payloads_bytes=payloads_bytes(work.fd),
            closed=True,
        )
        _raise(write_manifest(self._disk, work.fd, manifest))
        if pin is not None:
            write_file(self._disk, PINNED, pin, work.fd)
        now = self._check(place, verdict)
        _sync_small(self._disk, work.fd)
        return structs.replace(
            found,
            state="scrubbed",
            records=writing.records,
            payloads=writing.payloads,
            old_head=change.old_head,
            new_head=now.head or "",
            bytes=now.bytes + now.payload_bytes,
        )

    def _check(self, place: Place, old: Verdict) -> Verdict:
        """The new files, as the reader sees them. Raises Problem when they are not what they should be."""
        path = self._root / SCRUB / place.workspace / place.session
        wrong, verdict = new_damage(old, path)
        wrong = wrong or difference(place.path, path, _OWN)
        if not wrong:
            with Place(self._root / SCRUB, place.workspace, place.session) as written:
                left = count(written.fd, written.session, self._redactor).hits
            wrong = f"the rules still find something: {', '.join(left)}" if left else ""
        if wrong:
            raise Problem("failed", f"the new files are not what they should be ({wrong}); nothing was changed")
        return verdict


def rules_version() -> str:
    """Which rules these are: the recorder's version, and a digest of all patterns, which change within one."""
    digest = hashlib.sha256()
    for rule in (*SECRETS, *NAMES):
        digest.update(rule.name.encode() + b"\0" + rule.pattern.pattern + b"\0")
    return f"tracewriter {__version__} {digest.hexdigest()[:12]}"


def _found(place: Place, counts: Counts) -> Scrubbed:
    state = "found" if counts.hits else "clean"
    return Scrubbed(
        place.session, place.workspace, state, counts.hits, counts.records, counts.payloads, pinned=place.pinned
    )


def _damage(verdict: Verdict) -> tuple[str, ...]:
    """The first few things that are wrong, for people."""
    return tuple(note.message for note in verdict.notes if note.damage)[:_NAMED]


def _own_records(session: str, last: int, ts: datetime, workspace: str, change: TraceScrubApplied) -> list[bytes]:
    """A recording of its own, begun and closed in order: whatever came before it is not made to look closed."""
    events: tuple[Event, ...] = (
        SessionRecordStarted(FORMAT, __version__, workspace, _WHY, "metadata"),
        change,
        SessionRecordFinished(last + _OWN, {name_of(change): 1}, None, None),
    )
    return [
        msgspec.json.encode(Record(seq=seq, ts=ts, event=name_of(event), session=session, data=event)) + b"\n"
        for seq, event in enumerate(events, last + 1)
    ]


def _raise(problem: OSError | None) -> None:
    if problem is not None:
        raise problem


def _sync_small(disk: ScrubDisk, dir_fd: int) -> None:
    for name in (DIGESTS_NAME, MANIFEST_NAME):
        fd = disk.append(name, dir_fd)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)


def _remove_quietly(work: Workplace) -> None:
    try:
        work.remove()
    except OSError:
        pass  # the next scrub, or retention, tries again
