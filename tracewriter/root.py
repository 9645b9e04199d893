"""The trace root: a descriptor, and the path it was opened by. They can come apart, and writes go on without an error.

After a lazy unmount (`umount -l`) every descriptor keeps working on a file system that no name leads to any more; fstat and
stat through those descriptors agree with each other, so only the path from the outside can tell.
"""

from __future__ import annotations

import os
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def follow(path: str, fd: int) -> str:
    """Look whether `path` still leads to the directory that `fd` is open on.

    "": it does. "replaced": another directory of our own is there, and `fd` is open on that one now. "gone": nothing that
    could be recorded in is there; `fd` is as it was.
    """
    try:
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            return ""
        new = os.open(path, _DIRECTORY)
    except OSError:
        return "gone"
    try:
        if os.fstat(new).st_uid != os.geteuid():
            return "gone"
        os.dup2(new, fd, inheritable=False)
    finally:
        os.close(new)
    return "replaced"
