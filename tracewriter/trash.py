"""Does what `retention` decides: move to .trash under the session's lock, purge, bring back, pin. One line of retention.jsonl
per deed. Everything goes through directory descriptors: no link is followed, nothing outside the root is touched.

`python -m tracewriter.trash --root DIR` is one sweep: the writer runs it as a process of its own, so that a hundred thousand
directories never hold up recording. What a sweep may take is looked at again under the lock, from the records themselves.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tracewriter import lock
from tracewriter.disk import DIR_MODE, FILE_MODE, REAL_DISK
from tracewriter.errors import RetentionHeld, SessionUnavailable, TraceError, errno_name
from tracewriter.retention import TRUST_WITHIN_S, Candidate, Move, Plan, Policy, PolicyError, Trashed, load_policy, plan
from tracewriter.scrub_disk import remove_leftovers
from tracewriter.survey import (
    DIRECTORY,
    DOOMED,
    PINNED,
    TRASH,
    TRASHED_NAME,
    WORKSPACE_NAME,
    candidate,
    exists,
    names,
    open_dir,
    sessions,
    trashed,
)

__all__ = ["Deed", "Report", "SessionUnavailable", "Skipped", "TraceError", "Traces"]

LOG: Final = "retention.jsonl"
_LOG_BEFORE: Final = LOG + ".1"
_LOG_MAX: Final = 4 * 1024 * 1024
_ROUNDS: Final = 3  # plans of one sweep: what would not go is left alone, and the next oldest take its place
_SETTLED_S: Final = 60.0  # an empty workspace directory younger than this may be somebody's who is about to record
_MANIFEST_SLACK_S: Final = 60.0  # the manifest's time is that of closing: never before the last record
_ODD_MAX: Final = 100
_SUMMARY_MAX: Final = 1000


class Deed(Struct, frozen=True, omit_defaults=True):
    """A line of retention.jsonl. action: moved, purged, restored, scrubbed. reason: age, budget, trash, asked."""

    ts: datetime
    action: str
    session: str
    workspace: str
    bytes: int
    reason: str
    trash: str = ""


class Skipped(Struct, frozen=True):
    """What would not go. name: the session, or its name in the trash."""

    name: str
    workspace: str
    reason: str


class Report(Struct, frozen=True):
    """What a sweep did, what it left alone with the reason, and what had been decided first.

    skipped: would have gone, and would not go. odd: is never taken; at most 100 of them.
    """

    deeds: tuple[Deed, ...]
    skipped: tuple[Skipped, ...]
    plan: Plan
    odd: tuple[Skipped, ...] = ()

    def summary(self) -> str:
        """One line, bounded."""
        moved = sum(deed.action == "moved" for deed in self.deeds)
        text = f"{moved} moved to the trash, {len(self.deeds) - moved} removed from it"
        if self.plan.over:
            text += f", {self.plan.over} bytes over the budget"
        alone = (*self.skipped, *self.odd)
        if alone:
            text += "; left alone: " + "; ".join(f"{one.name}: {one.reason}" for one in alone[:5])
        return text[:_SUMMARY_MAX]


class Traces:
    """A trace root, held by a directory descriptor. Raises OSError when there is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let the descriptor go."""
        os.close(self._fd)

    def __enter__(self) -> Traces:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- looking

    def scan(self) -> tuple[list[Candidate], list[Trashed]]:
        """Every session and everything in the trash. What cannot be understood is a candidate with a doubt, or left out."""
        return list(sessions(self._fd)), list(trashed(self._fd))

    # --- sweeping

    def enforce(self, policy: Policy, now: float, *, clock_trusted: bool) -> Report:
        """One sweep: scan, decide, do. Raises RetentionHeld when nothing may be deleted here now."""
        self._check()
        candidates, trash = self.scan()
        odd = tuple(Skipped(c.session, c.workspace, c.doubt) for c in candidates if c.doubt)[:_ODD_MAX]
        first = decided = plan(candidates, trash, policy, now, clock_trusted=clock_trusted)
        deeds: list[Deed] = []
        skipped: list[Skipped] = []
        for _ in range(_ROUNDS):
            report = self.sweep(decided)
            deeds += report.deeds
            skipped += report.skipped
            if not report.skipped:
                break
            candidates, trash = _left(candidates, trash, report)
            moved = sum(deed.action == "moved" for deed in deeds)
            decided = plan(candidates, trash, policy, now, clock_trusted=clock_trusted, moved=moved)
        self._tidy_workspaces()
        remove_leftovers(self._fd, time.time() - _SETTLED_S)
        return Report(tuple(deeds), tuple(skipped), first, odd)

    def sweep(self, decided: Plan) -> Report:
        """Do what was decided. What has changed since (a session in use again, pinned, gone) is left alone."""
        deeds: list[Deed] = []
        skipped: list[Skipped] = []

        def attempt(name: str, workspace: str, work: Callable[[], Deed]) -> None:
            try:
                deeds.append(work())
            except SessionUnavailable as exc:
                skipped.append(Skipped(name, workspace, str(exc)))
            except OSError as exc:
                skipped.append(Skipped(name, workspace, f"{errno_name(exc)}: {_why(exc)}"))
            except RecursionError:
                skipped.append(Skipped(name, workspace, "it is nested too deeply"))

        for one in decided.purge:
            attempt(one.name, "", lambda t=one: self._purge(t))  # type: ignore[misc]
        for move in decided.moves:
            session = move.candidate
            attempt(session.session, session.workspace, lambda m=move: self._move(m))  # type: ignore[misc]
        return Report(tuple(deeds), tuple(skipped), decided)

    def _check(self) -> None:
        """Each deletion has its line. Where the log is something else than a file of ours, or cannot be put aside when it is
        full, nothing is deleted."""
        try:
            if not stat.S_ISREG(os.stat(_LOG_BEFORE, dir_fd=self._fd, follow_symlinks=False).st_mode):
                raise RetentionHeld(f"{self.root / _LOG_BEFORE} is not a plain file; move it away")
        except FileNotFoundError:
            pass
        try:
            info = os.stat(LOG, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or info.st_uid != os.geteuid():
            raise RetentionHeld(f"{self.root / LOG} is not a plain file of its own; move it away")

    def _move(self, move: Move) -> Deed:
        workspace_fd = os.open(move.candidate.workspace, DIRECTORY, dir_fd=self._fd)
        try:
            session_fd = os.open(move.candidate.session, DIRECTORY, dir_fd=workspace_fd)
            try:
                lock_fd = lock.acquire(session_fd)
                try:
                    return self._move_locked(move, workspace_fd, session_fd)
                finally:
                    os.close(lock_fd)
            finally:
                os.close(session_fd)
        finally:
            os.close(workspace_fd)
            self._remove_if_empty(move.candidate.workspace)

    def _move_locked(self, move: Move, workspace_fd: int, session_fd: int) -> Deed:
        was = move.candidate
        now = candidate(was.workspace, was.session, workspace_fd, thorough=True)
        if now.pinned:
            raise SessionUnavailable("pinned", "it has been pinned meanwhile")
        if now.doubt:
            raise SessionUnavailable("doubt", now.doubt)
        if now.empty != was.empty or (not now.empty and now.last_at > was.last_at + _MANIFEST_SLACK_S):
            raise SessionUnavailable("changed", "its records are newer than they seemed")
        named = os.stat(was.session, dir_fd=workspace_fd, follow_symlinks=False)
        if not os.path.samestat(named, os.fstat(session_fd)):
            raise SessionUnavailable("changed", "its directory has been replaced meanwhile")
        trash_fd = self._trash_fd()
        try:
            name = f"{int(time.time() * 1000)}-{was.workspace}-{was.session}"
            os.rename(was.session, name, src_dir_fd=workspace_fd, dst_dir_fd=trash_fd)
        finally:
            os.close(trash_fd)
        return self._log("moved", was.session, was.workspace, now.bytes, move.reason, name)

    def _remove_if_empty(self, workspace: str) -> None:
        """An empty workspace directory is nothing anybody looks for; who was about to use it makes it anew."""
        try:
            os.rmdir(workspace, dir_fd=self._fd)
        except OSError:
            pass

    def _tidy_workspaces(self) -> None:
        before = time.time() - _SETTLED_S
        for name in names(self._fd):
            if not WORKSPACE_NAME.match(name):
                continue
            try:
                info = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode) and info.st_mtime < before:
                self._remove_if_empty(name)

    def _purge(self, one: Trashed) -> Deed:
        """Remove for good. The name is taken away first: what is being removed cannot be brought back half. One sweep at a time:
        two that remove the same directory take files from under each other, and none has a deed to log in the end."""
        trash_fd = self._trash_fd()
        try:
            fcntl.flock(trash_fd, fcntl.LOCK_EX)  # released with the descriptor
            doomed = one.name if one.doomed else DOOMED + one.name
            if not one.doomed:
                os.rename(one.name, doomed, src_dir_fd=trash_fd, dst_dir_fd=trash_fd)
            shutil.rmtree(doomed, dir_fd=trash_fd)
        finally:
            os.close(trash_fd)
        name = one.name.removeprefix(DOOMED)
        match = TRASHED_NAME.match(name)
        workspace, session = (match[2], match[3]) if match else ("", name)
        return self._log("purged", session, workspace, one.bytes, "trash", name)

    # --- what people ask for

    def restore(self, name: str) -> Deed:
        """Bring a session back from the trash, pinned, or the next sweep would take it again.

        Raises FileNotFoundError for what is not there, FileExistsError when a session of its id is there again, OSError.
        """
        match = TRASHED_NAME.match(name)
        trash_fd = open_dir(TRASH, self._fd) if match else None
        if match is None or trash_fd is None:
            raise FileNotFoundError(errno.ENOENT, "no such session in the trash", name)
        try:
            workspace_fd = _make_dir(match[2], self._fd)
            try:
                if exists(match[3], workspace_fd):
                    raise FileExistsError(errno.EEXIST, "a session of this id is there already", match[3])
                _set_pin(name, trash_fd, pinned=True)
                os.rename(name, match[3], src_dir_fd=trash_fd, dst_dir_fd=workspace_fd)
                size = candidate(match[2], match[3], workspace_fd).bytes
            finally:
                os.close(workspace_fd)
                self._remove_if_empty(match[2])
        finally:
            os.close(trash_fd)
        return self._log("restored", match[3], match[2], size, "asked", name)

    def discard(self, wanted: Candidate) -> Deed:
        """Move a session to the trash because somebody asked for it. Raises SessionUnavailable while it is being recorded."""
        self._check()
        return self._move(Move(wanted, "asked"))

    def pin(self, workspace: str, session: str, *, pinned: bool) -> None:
        """Keep a session whatever its age, or no longer. Raises FileNotFoundError when it is not there (any more), OSError."""
        workspace_fd = os.open(workspace, DIRECTORY, dir_fd=self._fd)
        try:
            _set_pin(session, workspace_fd, pinned=pinned)
        finally:
            os.close(workspace_fd)

    def log_scrub(self, workspace: str, session: str, size: int) -> Deed:
        """Note that a session was scrubbed: its old files are deleted."""
        return self._log("scrubbed", session, workspace, size, "asked", "")

    def _trash_fd(self) -> int:
        return _make_dir(TRASH, self._fd)

    def _log(self, action: str, session: str, workspace: str, size: int, reason: str, trash: str) -> Deed:
        """One line per deed. On a full disk the deed stands without it: freeing space must not need space."""
        deed = Deed(datetime.now(UTC), action, session, workspace, size, reason, trash)
        try:
            self._rotate_log()
            try:
                fd = REAL_DISK.append(LOG, self._fd)
            except FileNotFoundError:
                fd = REAL_DISK.create(LOG, self._fd)
            try:
                os.write(fd, msgspec.json.encode(deed) + b"\n")
            finally:
                os.close(fd)
        except OSError:
            pass
        return deed

    def _rotate_log(self) -> None:
        try:
            if os.stat(LOG, dir_fd=self._fd, follow_symlinks=False).st_size > _LOG_MAX:
                os.replace(LOG, _LOG_BEFORE, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            pass  # a line in a log that is too long is better than no line


def _left(candidates: list[Candidate], trash: list[Trashed], report: Report) -> tuple[list[Candidate], list[Trashed]]:
    """What the next plan is made of: without what went (it counts as freed), with a doubt about what would not go."""
    refused = {(one.workspace, one.name): one.reason for one in report.skipped}
    moved = {(deed.workspace, deed.session) for deed in report.deeds if deed.action == "moved"}
    purged = {deed.trash for deed in report.deeds if deed.action == "purged"}
    left = [
        msgspec.structs.replace(c, doubt=refused.get((c.workspace, c.session), c.doubt))
        for c in candidates
        if (c.workspace, c.session) not in moved
    ]
    kept = [t for t in trash if t.name.removeprefix(DOOMED) not in purged and ("", t.name) not in refused]
    return left, kept


def _why(exc: OSError) -> str:
    if exc.errno in (errno.EPERM, errno.EACCES):
        return f"{exc.strerror} (append-only, immutable, or not ours to change)"
    return exc.strerror or str(exc)


def _make_dir(name: str, dir_fd: int) -> int:
    try:
        os.mkdir(name, DIR_MODE, dir_fd=dir_fd)
    except FileExistsError:
        pass
    return os.open(name, DIRECTORY, dir_fd=dir_fd)


def _set_pin(name: str, dir_fd: int, *, pinned: bool) -> None:
    fd = os.open(name, DIRECTORY, dir_fd=dir_fd)
    try:
        if not pinned:
            if exists(PINNED, fd):
                os.unlink(PINNED, dir_fd=fd)
            return
        if not exists(PINNED, fd):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                os.close(os.open(PINNED, flags, FILE_MODE, dir_fd=fd))
            except FileExistsError:
                pass  # another one pins it too
        # A sweep may have been moving it just now: a pin in the trash keeps nothing.
        if not os.path.samestat(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), os.fstat(fd)):
            raise FileNotFoundError(errno.ENOENT, "it is not there any more", name)
    finally:
        os.close(fd)


def main(argv: list[str] | None = None) -> int:
    """One sweep; a line on stdout says what it did. Exit codes: 0 done, 1 nothing may be deleted now (the line says why)."""
    parser = argparse.ArgumentParser(prog="tracewriter.trash", description="One retention sweep.")
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument(
        "--trusted-now", type=float, default=None, metavar="SECONDS", help="the wall time, if it is sure"
    )
    arguments = parser.parse_args(argv)
    os.nice(10)
    now = time.time()
    trusted = arguments.trusted_now is not None and abs(now - arguments.trusted_now) <= TRUST_WITHIN_S
    try:
        policy = load_policy(arguments.config)
        if not policy.enabled:
            return 0
        with Traces(arguments.root) as traces:
            report = traces.enforce(policy, arguments.trusted_now if trusted else now, clock_trusted=trusted)
    except (PolicyError, TraceError) as exc:
        print(str(exc)[:_SUMMARY_MAX])
        return 1
    except OSError as exc:
        print(f"{arguments.root}: {exc.strerror or exc}"[:_SUMMARY_MAX])
        return 1
    print(report.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
