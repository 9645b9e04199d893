"""The file that a daemon started by a client writes its errors to, wherever it is and whatever lies there."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

MAX_LOG_BYTES: Final = 1024 * 1024
_TAIL_BYTES: Final = 4096
# Never waits for a reader of a FIFO, never goes where a link leads.
_CAREFULLY: Final = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# What opening says of things that are no plain file of ours; a full or read-only disk is another matter.
_NO_LOG: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENODEV})


def open_log(path: str) -> tuple[int, str]:
    """A descriptor to append to, private and bounded, and "". /dev/null and why, when no plain file of ours can be there.

    Raises OSError when a file could be there but cannot be written. The caller closes the descriptor.
    """
    try:
        return _opened(path), ""
    except OSError as problem:
        if problem.errno not in _NO_LOG:
            raise
        why = _other_than_file(path) or f"cannot be written ({problem.strerror})"
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), f"{path} {why}"


def last_line(path: str, start: int) -> str:
    """The last line that says something, of what was written after `start`; "" when there is none to be read."""
    try:
        log = os.open(path, os.O_RDONLY | _CAREFULLY)
        try:
            size = os.fstat(log).st_size if _is_plain(log) else 0
            text = os.pread(log, _TAIL_BYTES, max(start, size - _TAIL_BYTES)) if size else b""
        finally:
            os.close(log)
    except OSError:
        return ""
    lines = text.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def where_it_says_more(path: str) -> str:
    """A hint: where the log is, or that none can be there."""
    why = _other_than_file(path)
    return f"{path} {why}, so there is no log: remove it and try again" if why else f"its log: {path}"


def _opened(path: str) -> int:
    whole = _is_over(path) and not _moved_away(path)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _CAREFULLY, 0o600)
    try:
        if not _is_plain(log):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), path)
        os.fchmod(log, 0o600)
        if whole:
            os.ftruncate(log, 0)
    except BaseException:
        os.close(log)
        raise
    return log


def _is_over(path: str) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > MAX_LOG_BYTES


def _moved_away(path: str) -> bool:
    try:
        os.replace(path, path + ".1")
    except OSError:
        return False  # something else has that name
    return True


def _is_plain(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _other_than_file(path: str) -> str:
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return ""
    if stat.S_ISREG(mode):
        return ""
    kinds = {stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO", stat.S_IFDIR: "directory", stat.S_IFSOCK: "socket"}
    return f"is a {kinds.get(stat.S_IFMT(mode), 'device')}"
