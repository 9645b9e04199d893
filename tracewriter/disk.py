"""The few file operations the writer needs, as a parameter, so that tests can make any of them fail, stop or be cut short.

All names are relative to a directory descriptor and never contain a slash: a planted link cannot lead out of the tree.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, Protocol

FILE_MODE: Final = 0o600
DIR_MODE: Final = 0o700
_CREATE: Final = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk(Protocol):
    """What the journal asks of the file system. Every call may raise OSError."""

    def open_dir(self, name: str, dir_fd: int, *, create: bool) -> int: ...
    def create(self, name: str, dir_fd: int) -> int: ...
    def append(self, name: str, dir_fd: int) -> int: ...
    def write(self, fd: int, data: bytes) -> int: ...
    def truncate(self, fd: int, size: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def stat(self, name: str, dir_fd: int) -> os.stat_result: ...
    def unlink(self, name: str, dir_fd: int) -> None: ...
    def replace(self, old: str, new: str, dir_fd: int) -> None: ...
    def sync(self, fd: int) -> None: ...
    def close(self, fd: int) -> None: ...
    def names(self, dir_fd: int) -> list[str]: ...


class RealDisk:
    """The machine's file system."""

    def open_dir(self, name: str, dir_fd: int, *, create: bool) -> int:
        """Open (after making, if asked) a directory of our own, 0700 whatever the umask, never through a link."""
        if create:
            try:
                os.mkdir(name, DIR_MODE, dir_fd=dir_fd)
            except FileExistsError:
                pass
        fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
        if stat.S_IMODE(os.fstat(fd).st_mode) != DIR_MODE:
            os.fchmod(fd, DIR_MODE)
        return fd

    def create(self, name: str, dir_fd: int) -> int:
        """A new file for appending, 0600; FileExistsError when anything, even a dangling link, has the name."""
        fd = os.open(name, _CREATE, FILE_MODE, dir_fd=dir_fd)
        os.fchmod(fd, FILE_MODE)  # a umask of 0777 would have made it unreadable for us too
        return fd

    def append(self, name: str, dir_fd: int) -> int:
        """An existing regular file with exactly one name, for appending: a planted hard link leads out of the tree too."""
        fd = os.open(name, os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            os.close(fd)
            raise OSError(errno.EMLINK if stat.S_ISREG(info.st_mode) else errno.EINVAL, "not a plain file of its own")
        return fd

    def write(self, fd: int, data: bytes) -> int:
        """write(2): may write less than all of it."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """ftruncate(2)."""
        os.ftruncate(fd, size)

    def fstat(self, fd: int) -> os.stat_result:
        """fstat(2)."""
        return os.fstat(fd)

    def stat(self, name: str, dir_fd: int) -> os.stat_result:
        """stat of the name itself, not of what a link points to."""
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def unlink(self, name: str, dir_fd: int) -> None:
        """unlinkat(2)."""
        os.unlink(name, dir_fd=dir_fd)

    def replace(self, old: str, new: str, dir_fd: int) -> None:
        """renameat(2) within one directory."""
        os.replace(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def sync(self, fd: int) -> None:
        """fdatasync(2)."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """close(2)."""
        os.close(fd)

    def names(self, dir_fd: int) -> list[str]:
        """The directory's entries, in no order."""
        return os.listdir(dir_fd)


REAL_DISK: Final = RealDisk()
