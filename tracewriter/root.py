"""The trace root: a descriptor, and the path it was opened by. They can come apart, and writes go on without an error.

After a lazy unmount (`umount -l`) every descriptor keeps working on a file system that no name leads to any more; fstat and
stat through those descriptors agree with each other, so only the path from the outside can tell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tracewriter.errors import StartError
from tracewriter.listen import private_dir

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def follow(path: str, fd: int) -> str:
    """Look whether `path` still leads to the directory that `fd` is open on; one that was deleted is made again.

    "": it does. "replaced": another directory of our own is there, and `fd` is open on that one now. "made": it had been deleted
    and nothing had its name; a new one is there, as at start (0700, its parents too), and `fd` is open on it. "deleted": the
    same, but none could be made. "gone": nothing that could be recorded in is there, and `fd` is as it was.
    """
    try:
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            return ""
        return "replaced" if _turn(path, fd) else "gone"
    except OSError:
        if os.path.lexists(path) or not _deleted(fd):
            return "gone"  # it was moved, or unmounted: what is recorded in it is not lost
    try:
        private_dir(Path(path))
        return "made" if _turn(path, fd, os.O_NOFOLLOW) else "deleted"  # a link would be somebody else's
    except (OSError, StartError):
        return "deleted"


def _deleted(fd: int) -> bool:
    try:
        return os.fstat(fd).st_nlink == 0
    except OSError:
        return False


def _turn(path: str, fd: int, flags: int = 0) -> bool:
    """Have `fd` open on what `path` leads to, if that is ours. Raises OSError."""
    new = os.open(path, _DIRECTORY | flags)
    try:
        if os.fstat(new).st_uid != os.geteuid():
            return False
        os.dup2(new, fd, inheritable=False)
    finally:
        os.close(new)
    return True
