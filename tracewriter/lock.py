"""The writer lock: flock(2) on a session's `lock` file. Held means alive; a dead process holds nothing, so nothing is ever stale.

flock and not fcntl: POSIX record locks are lost when any other descriptor of the same file is closed. No pid is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import Final

from tracewriter.disk import FILE_MODE
from tracewriter.errors import SessionUnavailable, errno_name

LOCK_NAME: Final = "lock"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
RETRY_MS: Final = 1000
_HELD: Final = (errno.EWOULDBLOCK, errno.EACCES)
_TRIES: Final = 4


def acquire(dir_fd: int, name: str = LOCK_NAME) -> int:
    """Take the lock of an open session directory; gives the descriptor that holds it until it is closed.

    Raises SessionUnavailable: `locked` (another process has it, ask again), `foreign` (something else has the lock's name),
    or an errno name (ENOLCK, EOPNOTSUPP: no locks on this file system, so nothing may be recorded there).
    """
    try:
        fd = os.open(name, _FLAGS, FILE_MODE, dir_fd=dir_fd)
    except OSError as exc:
        raise SessionUnavailable(errno_name(exc), f"the lock file cannot be opened: {exc.strerror}", RETRY_MS) from exc
    try:
        _take(fd, dir_fd, name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _flock(fd: int) -> None:
    """Take it, once more if need be: whoever only asks whether it is held (`is_held`) holds it for microseconds."""
    for _ in range(_TRIES - 1):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno not in _HELD:
                raise
            os.sched_yield()
        else:
            return
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _take(fd: int, dir_fd: int, name: str) -> None:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        raise SessionUnavailable("foreign", "the session's lock is not a plain file of its own; move it away", RETRY_MS)
    if stat.S_IMODE(info.st_mode) != FILE_MODE:
        os.fchmod(fd, FILE_MODE)
    try:
        _flock(fd)
    except OSError as exc:
        if exc.errno in _HELD:
            raise SessionUnavailable("locked", "another writer process records this session", RETRY_MS) from exc
        message = f"this file system gives no locks ({exc.strerror}); use another trace directory"
        raise SessionUnavailable(errno_name(exc), message, 30_000) from exc
    try:
        same = os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        same = False
    if not same:  # retention moved the directory between open and flock
        raise SessionUnavailable("locked", "the session's directory is being moved", 100)


def is_held(path: str) -> bool:
    """Whether somebody records this session now, asked without disturbing them. False when there is no lock file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as exc:
        return exc.errno in _HELD
    finally:
        os.close(fd)
    return False
