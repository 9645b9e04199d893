"""What retention may judge by: every session directory under a trace root, looked at without being touched.

What is not as the writer makes it (a foreign file or directory, a link, another owner, a directory that cannot be renamed)
is a doubt, and a doubt is never deleted. Everything goes through directory descriptors; no link is followed.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from tracewriter import lock
from tracewriter.errors import errno_name
from tracewriter.manifest import DIGESTS_NAME, MANIFEST_NAME, Manifest, decode_manifest
from tracewriter.payload import ID, PART_SUFFIX, PAYLOADS
from tracewriter.reader import quick_manifest
from tracewriter.retention import Candidate, Trashed
from tracewriter.scan import read_small
from tracewriter.segment import MAX_NUMBER, segment_number

TRASH: Final = ".trash"
PINNED: Final = "pinned"
DOOMED: Final = "removing-"
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WORKSPACE_NAME: Final = re.compile(r"[0-9a-f]{24}\Z")
SESSION_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
TRASHED_NAME: Final = re.compile(r"([0-9]{1,15})-([0-9a-f]{24})-([a-z0-9][a-z0-9_-]{0,63})\Z")
_FILES: Final = frozenset({MANIFEST_NAME, MANIFEST_NAME + ".new", DIGESTS_NAME, lock.LOCK_NAME})
_DEPTH: Final = 8  # of directories in directories; the writer makes one level
_MANIFEST_MAX: Final = 64 * 1024
_GETFLAGS: Final = 0x80006601 | (struct.calcsize("l") << 16)  # FS_IOC_GETFLAGS
_FLAGS: Final = ((0x10, "it is immutable (chattr +i)"), (0x20, "it is append-only (chattr +a)"))


def sessions(root_fd: int) -> Iterator[Candidate]:
    """Every session directory, with a doubt where one is due."""
    for workspace in names(root_fd):
        if not WORKSPACE_NAME.match(workspace):
            continue
        workspace_fd = open_dir(workspace, root_fd)
        if workspace_fd is None:
            continue
        try:
            held = _unmovable(workspace_fd)
            for session in names(workspace_fd):
                if SESSION_NAME.match(session):
                    yield candidate(
                        workspace, session, workspace_fd, f"its workspace's directory: {held}" if held else ""
                    )
        finally:
            os.close(workspace_fd)


def trashed(root_fd: int) -> Iterator[Trashed]:
    """Every session in the trash."""
    trash_fd = open_dir(TRASH, root_fd)
    if trash_fd is None:
        return
    try:
        for name in names(trash_fd):
            match = TRASHED_NAME.match(name.removeprefix(DOOMED))
            fd = open_dir(name, trash_fd) if match else None
            if match and fd is not None:
                try:
                    size = _disk_bytes(fd, _DEPTH)
                finally:
                    os.close(fd)
                yield Trashed(name, int(match[1]) / 1000, size, name.startswith(DOOMED))
    finally:
        os.close(trash_fd)


def candidate(workspace: str, session: str, workspace_fd: int, doubt: str = "", *, thorough: bool = False) -> Candidate:
    """One session as it is now. thorough: its last record is read, whatever the manifest says."""
    try:
        fd = os.open(session, DIRECTORY, dir_fd=workspace_fd)
    except OSError as exc:
        return Candidate(workspace, session, 0.0, 0, doubt=doubt or f"{errno_name(exc)}: {exc.strerror}")
    try:
        contents = _contents(fd)
        info = os.fstat(fd)
        at = _last_at(fd, session, contents, thorough=thorough) if contents.numbers else info.st_mtime
        return Candidate(
            workspace=workspace,
            session=session,
            last_at=at or 0.0,
            bytes=contents.disk_bytes,
            active=lock.is_held(f"/proc/self/fd/{fd}/{lock.LOCK_NAME}"),
            pinned=contents.pinned,
            doubt=doubt or _doubt(fd, info, contents, at),
            empty=not contents.numbers,
        )
    except OSError as exc:
        return Candidate(workspace, session, 0.0, 0, doubt=doubt or f"{errno_name(exc)}: {exc.strerror}")
    finally:
        os.close(fd)


class _Contents(Struct):
    disk_bytes: int
    numbers: list[int] = []
    segments_bytes: int = 0
    pinned: bool = False
    odd: str = ""


def _contents(fd: int) -> _Contents:
    """A session's directory in one pass. disk_bytes: its blocks, which is what `du` says and what removing it gives back."""
    found = _Contents(os.fstat(fd).st_blocks * 512)
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            name, plain = entry.name, stat.S_ISREG(info.st_mode)
            found.disk_bytes += info.st_blocks * 512
            segment = segment_number(name)
            segment = segment if segment is not None and segment[0] <= MAX_NUMBER else None
            if name == PINNED:
                found.pinned = True
            elif segment is not None and segment[1] == "jsonl" and plain:
                found.numbers.append(segment[0])
                found.segments_bytes += info.st_size
            elif name == PAYLOADS and stat.S_ISDIR(info.st_mode):
                found.disk_bytes += _payloads(name, fd, found)
            elif not plain or (segment is None and name not in _FILES):
                found.odd = found.odd or f"it holds {name[:80]!r}, which no writer made"
    found.numbers.sort()
    return found


def _payloads(name: str, dir_fd: int, found: _Contents) -> int:
    fd = os.open(name, DIRECTORY, dir_fd=dir_fd)
    total = 0
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                total += info.st_blocks * 512
                if not stat.S_ISREG(info.st_mode) or not ID.match(entry.name.removesuffix(PART_SUFFIX)):
                    found.odd = found.odd or f"it holds {PAYLOADS}/{entry.name[:80]!r}, which no writer made"
    finally:
        os.close(fd)
    return total


def _doubt(fd: int, info: os.stat_result, contents: _Contents, last_at: float | None) -> str:
    if info.st_uid != os.geteuid():
        return "it belongs to another user"
    if last_at is None:
        return "none of its records can be read"
    return contents.odd or _unmovable(fd)


def _unmovable(fd: int) -> str:
    """Why a directory cannot be renamed, or nothing in it, where the file system tells beforehand."""
    try:
        answer = fcntl.ioctl(fd, _GETFLAGS, bytes(struct.calcsize("l")))
    except OSError:
        return ""
    flags = struct.unpack_from("i", answer)[0]
    return next((why for bit, why in _FLAGS if flags & bit), "")


def _last_at(fd: int, session: str, contents: _Contents, *, thorough: bool) -> float | None:
    """When the last record was made; None when that cannot be told.

    The manifest is believed when it is about just these segments: after a crash it is older than they are.
    """
    manifest = None if thorough else _manifest(fd)
    if manifest is None or manifest.last_at is None or manifest.segments_bytes != contents.segments_bytes:
        manifest = quick_manifest(fd, session, contents.numbers)
    try:
        return manifest.last_at.timestamp() if manifest.last_at is not None else None
    except (ValueError, OverflowError):
        return None


def _manifest(fd: int) -> Manifest | None:
    return decode_manifest(read_small(MANIFEST_NAME, fd, _MANIFEST_MAX))


def _disk_bytes(fd: int, depth: int) -> int:
    """Disk blocks of a directory and of what is in it, in bytes; not deeper than `depth`."""
    total = os.fstat(fd).st_blocks * 512
    try:
        entries = list(os.scandir(fd))
    except OSError:
        return total
    for entry in entries:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        inner = open_dir(entry.name, fd) if stat.S_ISDIR(info.st_mode) and depth > 0 else None
        if inner is None:
            total += info.st_blocks * 512
            continue
        try:
            total += _disk_bytes(inner, depth - 1)
        finally:
            os.close(inner)
    return total


def names(dir_fd: int) -> list[str]:
    """The entries of a directory in order; nothing when it cannot be read."""
    try:
        return sorted(os.listdir(dir_fd))
    except OSError:
        return []


def open_dir(name: str, dir_fd: int) -> int | None:
    """A directory's descriptor, never through a link; None when there is no such directory."""
    try:
        return os.open(name, DIRECTORY, dir_fd=dir_fd)
    except OSError:
        return None


def exists(name: str, dir_fd: int) -> bool:
    """Whether anything has this name, a link that leads nowhere included. Raises OSError when that cannot be told."""
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
