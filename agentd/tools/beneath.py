"""Opening a path beneath a directory descriptor, never outside it, in two ways that give the same answers.

`open_by_kernel` is openat2(2) (Linux 5.6): the kernel refuses what leaves the tree while it resolves, so no race can. Python
has no binding, hence ctypes. `open_by_walk` is for kernels and seccomp filters without it: it opens one component at a time
with O_NOFOLLOW, holds a descriptor of each directory on the way, and resolves symbolic links itself; `..` goes back to a
descriptor it already holds, so a directory that is moved meanwhile cannot lead it out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from typing import Final, TypeAlias

# (descriptor of the root, relative path, open flags) to a descriptor. Raises OSError; EXDEV is "leads outside".
Opener: TypeAlias = Callable[[int, str, int], int]

_OPENAT2: Final = 437  # one number on every architecture: it was added after the tables were unified
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_BENEATH: Final = 0x08
_MAX_LINKS: Final = 40  # the kernel's MAXSYMLINKS
_MAX_TRIES: Final = 100  # EAGAIN: something was renamed meanwhile, and a `..` could not be proved safe

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_by_kernel(root: int, path: str, flags: int) -> int:
    """openat2 with RESOLVE_BENEATH. ENOSYS or EPERM where there is none."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    name = ctypes.c_char_p(os.fsencode(path))
    for _ in range(_MAX_TRIES):
        fd: int = _libc.syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_long(root), name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


def open_by_walk(root: int, path: str, flags: int) -> int:
    """The same without openat2: component by component, links resolved here."""
    return _Walk(root).open(path, flags)


def choose_opener(root: int, kernel: Opener = open_by_kernel, walk: Opener = open_by_walk) -> Opener:
    """`kernel` where it works on this root, `walk` where the system has no openat2 or forbids it."""
    try:
        os.close(kernel(root, ".", os.O_PATH | os.O_DIRECTORY))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        return walk
    return kernel


class _Walk:
    """One resolution: the directories from the root down to the present one, and the components still to go (last first)."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._held: list[int] = []
        self._links = 0

    def open(self, path: str, flags: int) -> int:
        todo = _components(path)
        try:
            while todo:
                name = todo.pop()
                if name == ".":
                    continue
                if name == "..":
                    self._up()
                elif target := self._link_target(name):
                    todo += self._follow(target)
                elif todo:
                    self._held.append(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._here))
                else:
                    return os.open(name, flags | os.O_NOFOLLOW, dir_fd=self._here)
            return os.open(".", flags, dir_fd=self._here)
        finally:
            for fd in self._held:
                os.close(fd)

    @property
    def _here(self) -> int:
        return self._held[-1] if self._held else self._root

    def _up(self) -> None:
        if not self._held:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.close(self._held.pop())

    def _link_target(self, name: str) -> str:
        """What a symbolic link says, read from the link that was looked at; "" for anything else."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._here)
        try:
            return os.readlink("", dir_fd=fd) if stat.S_ISLNK(os.fstat(fd).st_mode) else ""
        finally:
            os.close(fd)

    def _follow(self, target: str) -> list[str]:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return _components(target)


def _components(path: str) -> list[str]:
    """Last first. A trailing slash stays as ".", because what is before it must be a directory."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.endswith(("/", "/.")):
        names.append(".")
    return names[::-1]
