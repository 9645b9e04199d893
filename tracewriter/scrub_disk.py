"""Where a scrub works: `.scrub/<workspace>/<session>` under the trace root, and the one system call that makes it the session.

renameat2(RENAME_EXCHANGE) gives the new directory the old one's name and the old one the new one's, at once: a kill before it
leaves the old trace and a working directory, a kill after it the new trace and a working directory. Either way that directory
is nothing a reader, a list, retention's choice or a writer looks at (its path begins with a dot), and whoever finds it without a
holder of its lock removes it. Two renames would leave a moment without a trace, so a file system without the exchange is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from tracewriter import lock
from tracewriter.disk import RealDisk
from tracewriter.errors import SessionUnavailable

SCRUB: Final = ".scrub"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EXCHANGE: Final = 2  # RENAME_EXCHANGE
_DEPTH: Final = 8  # of directories in directories; the writer makes one level


class ScrubDisk(RealDisk):
    """The machine's file system, with what only a scrub needs of it. Every call may raise OSError."""

    def exchange(self, one: str, one_fd: int, other: str, other_fd: int) -> None:
        """Two names change their directories, atomically. ENOSYS or EINVAL where that cannot be done."""
        import ctypes  # only a scrub that found something comes here

        libc = ctypes.CDLL(None, use_errno=True)
        try:
            rename = libc.renameat2
        except AttributeError as exc:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from exc
        if rename(one_fd, os.fsencode(one), other_fd, os.fsencode(other), _EXCHANGE) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def rmdir(self, name: str, dir_fd: int) -> None:
        """unlinkat(2) of an empty directory."""
        os.rmdir(name, dir_fd=dir_fd)


SCRUB_DISK: Final = ScrubDisk()


def remove_tree(disk: ScrubDisk, name: str, dir_fd: int, depth: int = _DEPTH) -> None:
    """Remove a directory and all names in it, the lock's last. No link is followed, and somebody else may remove it at the same
    time. Raises OSError."""
    fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    try:
        for entry in sorted(disk.names(fd), key=lambda entry: (entry == lock.LOCK_NAME, entry)):
            with suppress(FileNotFoundError):
                if depth and stat.S_ISDIR(disk.stat(entry, fd).st_mode):
                    remove_tree(disk, entry, fd, depth - 1)
                else:
                    disk.unlink(entry, fd)
    finally:
        disk.close(fd)
    with suppress(FileNotFoundError):
        disk.rmdir(name, dir_fd)


def remove_leftovers(root_fd: int, before: float, disk: ScrubDisk = SCRUB_DISK) -> int:
    """Remove what killed scrubs left: working directories that nobody holds and that were last changed before that time (seconds
    since 1970; a younger one may be locked, or filled, in a moment). How many; what cannot be removed is left for the next time."""
    removed = 0
    scrub_fd = _open(SCRUB, root_fd)
    if scrub_fd < 0:
        return 0
    try:
        for workspace in disk.names(scrub_fd):
            workspace_fd = _open(workspace, scrub_fd)
            if workspace_fd < 0:
                continue
            try:
                young = os.fstat(workspace_fd).st_mtime >= before
                for session in disk.names(workspace_fd):
                    removed += _remove_one(disk, session, workspace_fd, before)
            finally:
                disk.close(workspace_fd)
            if not young:
                _rmdir_if_empty(disk, workspace, scrub_fd)
        young = os.fstat(scrub_fd).st_mtime >= before
    finally:
        disk.close(scrub_fd)
    if not young:
        _rmdir_if_empty(disk, SCRUB, root_fd)
    return removed


def _remove_one(disk: ScrubDisk, session: str, workspace_fd: int, before: float) -> bool:
    fd = _open(session, workspace_fd)
    if fd < 0:
        return False
    try:
        if os.fstat(fd).st_mtime >= before:
            return False
        try:
            lock_fd = lock.acquire(fd)
        except SessionUnavailable:
            return False
        try:
            remove_tree(disk, session, workspace_fd)
        except OSError:
            return False
        finally:
            disk.close(lock_fd)
    finally:
        disk.close(fd)
    return True


def _open(name: str, dir_fd: int) -> int:
    """A directory's descriptor; -1 when there is none of that name, or something else."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except OSError:
        return -1


def _rmdir_if_empty(disk: ScrubDisk, name: str, dir_fd: int) -> None:
    try:
        disk.rmdir(name, dir_fd)
    except OSError:
        pass  # another scrub works in it


def clear(disk: ScrubDisk, session: str, parent_fd: int) -> None:
    """Remove what a killed scrub of this session left. Only under the session's lock. Raises OSError, SessionUnavailable."""
    old = _open(session, parent_fd)
    if old < 0:
        return
    try:
        lock_fd = lock.acquire(old)
    finally:
        disk.close(old)
    try:
        remove_tree(disk, session, parent_fd)
    finally:
        disk.close(lock_fd)


def clear_leftover(disk: ScrubDisk, root_fd: int, workspace: str, session: str) -> None:
    """The same, where it may be that nothing is there at all."""
    scrub_fd = _open(SCRUB, root_fd)
    if scrub_fd < 0:
        return
    parent_fd = -1
    try:
        parent_fd = _open(workspace, scrub_fd)
        if parent_fd >= 0:
            clear(disk, session, parent_fd)
            _rmdir_if_empty(disk, workspace, scrub_fd)
    finally:
        for fd in (parent_fd, scrub_fd):
            if fd >= 0:
                disk.close(fd)
    _rmdir_if_empty(disk, SCRUB, root_fd)


class Workplace:
    """A new, locked directory beside the traces, with the session's name. `close` removes what is in it by then: the new files
    of a scrub that failed, or the old ones of one that did not."""

    def __init__(self, disk: ScrubDisk, root_fd: int, workspace: str, session: str) -> None:
        """Only under the session's lock: then what another scrub left here is nobody's. Raises OSError, SessionUnavailable."""
        self._disk, self._root_fd = disk, root_fd
        self.workspace, self.session = workspace, session
        self.took_place = False
        self.parent_fd = self.fd = self._lock_fd = -1
        scrub_fd = disk.open_dir(SCRUB, root_fd, create=True)
        try:
            self.parent_fd = disk.open_dir(workspace, scrub_fd, create=True)
        finally:
            disk.close(scrub_fd)
        try:
            clear(disk, session, self.parent_fd)
            self.fd = disk.open_dir(session, self.parent_fd, create=True)
            self._lock_fd = lock.acquire(self.fd)
        except BaseException:
            self.let_go()
            raise

    def take_place(self, workspace_fd: int) -> None:
        """The new directory becomes the session; this is the only step that changes what readers see. Raises OSError."""
        self._disk.sync(self.fd)
        try:
            self._disk.exchange(self.session, workspace_fd, self.session, self.parent_fd)
        except OSError as exc:
            if exc.errno in (errno.ENOSYS, errno.EINVAL):
                raise OSError(exc.errno, "this file system cannot exchange two directories in one step") from exc
            raise
        self.took_place = True
        self._disk.sync(workspace_fd)
        self._disk.sync(self.parent_fd)

    def remove(self) -> None:
        """Remove what lies here, and the directories above if they are empty then. Raises OSError."""
        remove_tree(self._disk, self.session, self.parent_fd)
        self._disk.sync(self.parent_fd)

    def let_go(self) -> None:
        """Close the descriptors, the lock's last."""
        for fd in (self.fd, self.parent_fd, self._lock_fd):
            if fd >= 0:
                self._disk.close(fd)
        self.parent_fd = self.fd = self._lock_fd = -1
        scrub_fd = _open(SCRUB, self._root_fd)
        if scrub_fd >= 0:
            _rmdir_if_empty(self._disk, self.workspace, scrub_fd)
            self._disk.close(scrub_fd)
            _rmdir_if_empty(self._disk, SCRUB, self._root_fd)
