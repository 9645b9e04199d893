"""Does what `retention` decides: scan, move to .trash under the session's lock, purge, bring back, pin. One line of
retention.jsonl per deed. Everything goes through directory descriptors: no link is followed, nothing outside the root is touched.

`python -m tracewriter.trash --root DIR` is one sweep: the writer runs it as a process of its own, so that a hundred thousand
directories never hold up recording.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tracewriter import lock
from tracewriter.disk import DIR_MODE, FILE_MODE
from tracewriter.errors import SessionUnavailable, StartError, errno_name
from tracewriter.manifest import MANIFEST_NAME, Manifest
from tracewriter.reader import quick_manifest, segment_numbers
from tracewriter.retention import Candidate, Move, Plan, PolicyError, Trashed, load_policy, plan
from tracewriter.scan import read_small

TRASH: Final = ".trash"
LOG: Final = "retention.jsonl"
PINNED: Final = "pinned"
_LOG_MAX: Final = 4 * 1024 * 1024
_WORKSPACE: Final = re.compile(r"[0-9a-f]{24}\Z")
_SESSION: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_TRASHED: Final = re.compile(r"([0-9]{1,20})-([0-9a-f]{24})-([a-z0-9][a-z0-9_-]{0,63})\Z")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Deed(Struct, frozen=True, omit_defaults=True):
    """A line of retention.jsonl. action: moved, purged, restored. reason: age, budget, trash, asked."""

    ts: datetime
    action: str
    session: str
    workspace: str
    bytes: int
    reason: str
    trash: str = ""


class Report(Struct, frozen=True):
    """What a sweep did, and what it left alone with the reason."""

    deeds: tuple[Deed, ...]
    skipped: tuple[str, ...]
    plan: Plan


class Traces:
    """A trace root, held by a directory descriptor."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fd = os.open(root, _DIRECTORY)

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
        return list(self._sessions()), list(self._trashed())

    def _sessions(self) -> Iterator[Candidate]:
        for workspace in _names(self._fd):
            if not _WORKSPACE.match(workspace):
                continue
            workspace_fd = _open_dir(workspace, self._fd)
            if workspace_fd is None:
                continue
            try:
                for session in _names(workspace_fd):
                    if _SESSION.match(session):
                        yield _candidate(workspace, session, workspace_fd)
            finally:
                os.close(workspace_fd)

    def _trashed(self) -> Iterator[Trashed]:
        trash_fd = _open_dir(TRASH, self._fd)
        if trash_fd is None:
            return
        try:
            for name in _names(trash_fd):
                match = _TRASHED.match(name)
                if match:
                    yield Trashed(name, int(match[1]) / 1000, _blocks(name, trash_fd))
        finally:
            os.close(trash_fd)

    # --- doing

    def sweep(self, decided: Plan) -> Report:
        """Do what was decided. What has changed since (a session in use again, pinned, gone) is left alone."""
        deeds: list[Deed] = []
        skipped: list[str] = []
        for trashed in decided.purge:
            self._try(deeds, skipped, trashed.name, lambda t=trashed: self._purge(t))
        for move in decided.moves:
            self._try(deeds, skipped, move.candidate.session, lambda m=move: self._move(m))
        return Report(tuple(deeds), tuple(skipped), decided)

    def _try(self, deeds: list[Deed], skipped: list[str], name: str, work: object) -> None:
        try:
            deed = work()  # type: ignore[operator]
        except SessionUnavailable as exc:
            skipped.append(f"{name}: {exc.message}")
        except OSError as exc:
            skipped.append(f"{name}: {errno_name(exc)}, {exc.strerror}")
        else:
            deeds.append(deed)

    def _move(self, move: Move) -> Deed:
        candidate = move.candidate
        workspace_fd = os.open(candidate.workspace, _DIRECTORY, dir_fd=self._fd)
        try:
            session_fd = os.open(candidate.session, _DIRECTORY, dir_fd=workspace_fd)
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
            self._tidy(candidate.workspace)

    def _move_locked(self, move: Move, workspace_fd: int, session_fd: int) -> Deed:
        candidate = move.candidate
        if _exists(PINNED, session_fd):
            raise SessionUnavailable("pinned", "it has been pinned meanwhile")
        now = _candidate(candidate.workspace, candidate.session, workspace_fd)
        if now.last_at != candidate.last_at:
            raise SessionUnavailable("changed", "it has been recorded meanwhile")
        named = os.stat(candidate.session, dir_fd=workspace_fd, follow_symlinks=False)
        if not os.path.samestat(named, os.fstat(session_fd)):
            raise SessionUnavailable("changed", "its directory has been replaced meanwhile")
        trash_fd = self._trash_fd()
        try:
            name = f"{int(time.time() * 1000)}-{candidate.workspace}-{candidate.session}"
            os.rename(candidate.session, name, src_dir_fd=workspace_fd, dst_dir_fd=trash_fd)
        finally:
            os.close(trash_fd)
        return self._log("moved", candidate.session, candidate.workspace, candidate.bytes, move.reason, name)

    def _tidy(self, workspace: str) -> None:
        """An empty workspace directory is nothing anybody looks for."""
        try:
            os.rmdir(workspace, dir_fd=self._fd)
        except OSError:
            pass

    def _purge(self, trashed: Trashed) -> Deed:
        trash_fd = self._trash_fd()
        try:
            shutil.rmtree(trashed.name, dir_fd=trash_fd)
        finally:
            os.close(trash_fd)
        match = _TRASHED.match(trashed.name)
        workspace, session = (match[2], match[3]) if match else ("", trashed.name)
        return self._log("purged", session, workspace, trashed.bytes, "trash", trashed.name)

    def restore(self, name: str) -> Deed:
        """Bring a session back from the trash. Raises OSError (ENOTEMPTY, EEXIST) when one of its name is there again."""
        match = _TRASHED.match(name)
        if match is None:
            raise FileNotFoundError(2, "no such session in the trash", name)
        workspace_fd = _make_dir(match[2], self._fd)
        trash_fd = self._trash_fd()
        try:
            size = _blocks(name, trash_fd)
            if _exists(match[3], workspace_fd):
                raise FileExistsError(17, "a session of this id is there already", match[3])
            os.rename(name, match[3], src_dir_fd=trash_fd, dst_dir_fd=workspace_fd)
        finally:
            os.close(trash_fd)
            os.close(workspace_fd)
        return self._log("restored", match[3], match[2], size, "asked", name)

    def discard(self, candidate: Candidate) -> Deed:
        """Move a session to the trash because somebody asked for it. Raises SessionUnavailable while it is being recorded."""
        return self._move(Move(candidate, "asked"))

    def pin(self, workspace: str, session: str, *, pinned: bool) -> None:
        """Keep a session whatever its age, or no longer. Raises OSError."""
        workspace_fd = os.open(workspace, _DIRECTORY, dir_fd=self._fd)
        try:
            session_fd = os.open(session, _DIRECTORY, dir_fd=workspace_fd)
            try:
                if pinned:
                    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                    os.close(os.open(PINNED, flags, FILE_MODE, dir_fd=session_fd))
                elif _exists(PINNED, session_fd):
                    os.unlink(PINNED, dir_fd=session_fd)
            finally:
                os.close(session_fd)
        finally:
            os.close(workspace_fd)

    def _trash_fd(self) -> int:
        return _make_dir(TRASH, self._fd)

    def _log(self, action: str, session: str, workspace: str, size: int, reason: str, trash: str) -> Deed:
        """One line per deed. On a full disk the deed stands without it: freeing space must not need space."""
        deed = Deed(datetime.now(UTC), action, session, workspace, size, reason, trash)
        try:
            self._rotate_log()
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(LOG, flags, FILE_MODE, dir_fd=self._fd)
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
                os.replace(LOG, LOG + ".1", src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except FileNotFoundError:
            pass


def _names(dir_fd: int) -> list[str]:
    try:
        return sorted(os.listdir(dir_fd))
    except OSError:
        return []


def _open_dir(name: str, dir_fd: int) -> int | None:
    try:
        return os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except OSError:
        return None


def _make_dir(name: str, dir_fd: int) -> int:
    try:
        os.mkdir(name, DIR_MODE, dir_fd=dir_fd)
    except FileExistsError:
        pass
    return os.open(name, _DIRECTORY, dir_fd=dir_fd)


def _exists(name: str, dir_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _candidate(workspace: str, session: str, workspace_fd: int) -> Candidate:
    try:
        fd = os.open(session, _DIRECTORY, dir_fd=workspace_fd)
    except OSError as exc:
        return Candidate(workspace, session, 0.0, 0, doubt=errno_name(exc))
    try:
        return _look(workspace, session, fd)
    except OSError as exc:
        return Candidate(workspace, session, 0.0, 0, doubt=errno_name(exc))
    finally:
        os.close(fd)


def _look(workspace: str, session: str, fd: int) -> Candidate:
    info = os.fstat(fd)
    doubt = "" if info.st_uid == os.geteuid() else "it belongs to another user"
    numbers = segment_numbers(fd)
    last_at = info.st_mtime  # an empty directory has no record to be dated by
    if numbers:
        manifest = _known(fd)
        if manifest is None or manifest.last_at is None:
            manifest = quick_manifest(fd, session, numbers)
        if manifest.last_at is None:
            doubt = doubt or "none of its records can be read"
        else:
            last_at = manifest.last_at.timestamp()
    return Candidate(
        workspace=workspace,
        session=session,
        last_at=last_at,
        bytes=_blocks_of(fd),
        active=lock.is_held(f"/proc/self/fd/{fd}/{lock.LOCK_NAME}"),
        pinned=_exists(PINNED, fd),
        doubt=doubt,
    )


def _known(fd: int) -> Manifest | None:
    """The manifest, when the newest segment has not been written since."""
    data = read_small(MANIFEST_NAME, fd, 64 * 1024)
    try:
        manifest = msgspec.json.decode(data, type=Manifest) if data else None
    except msgspec.DecodeError:
        return None
    return manifest if manifest is not None and manifest.closed else None


def _blocks(name: str, dir_fd: int) -> int:
    fd = _open_dir(name, dir_fd)
    if fd is None:
        return 0
    try:
        return _blocks_of(fd)
    finally:
        os.close(fd)


def _blocks_of(fd: int) -> int:
    """Disk blocks of a directory and all below it, in bytes: what `du` says, which is what deleting it gives back."""
    total = os.fstat(fd).st_blocks * 512
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode):
                total += _blocks(entry.name, fd)
            else:
                total += info.st_blocks * 512
    return total


def main(argv: list[str] | None = None) -> int:
    """One sweep. Exit codes: 0 done, 1 nothing may be deleted now (the reason is on stderr)."""
    parser = argparse.ArgumentParser(prog="tracewriter.trash", description="One retention sweep.")
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument("--clock-trusted", action="store_true")
    arguments = parser.parse_args(argv)
    os.nice(10)
    try:
        policy = load_policy(arguments.config)
        if not policy.enabled:
            return 0
        with Traces(arguments.root) as traces:
            candidates, trash = traces.scan()
            decided = plan(candidates, trash, policy, time.time(), clock_trusted=arguments.clock_trusted)
            report = traces.sweep(decided)
    except (PolicyError, StartError, OSError) as exc:
        print(f"retention: {exc}", file=sys.stderr)
        return 1
    for line in report.skipped:
        print(f"retention: left alone: {line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
