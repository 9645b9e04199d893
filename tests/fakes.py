"""Fakes that are held against the real thing by the same tests (test_fakes.py): a clock that is told, a disk that fails."""

from __future__ import annotations

import errno
import os
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from tracewriter.disk import REAL_DISK, Disk

START: Final = datetime(2026, 11, 29, 20, 45, 1, 123456, tzinfo=UTC)


class FakeClock:
    """Time that passes only when a test says so."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Both clocks go on."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._now += timedelta(seconds=seconds)


class Operation(Struct, frozen=True):
    """One change that a Disk made: kind is create, write, truncate, unlink, replace or sync."""

    kind: str
    name: str
    data: bytes = b""
    size: int = 0
    new: str = ""


class FaultyDisk:
    """A real directory through which any operation can be made to fail, to be cut short, or to run out of space.

    failing: operation name → errno, for as long as it is in there. once: (operation, errno) for the next call of it only.
    short: how many bytes at most each of the next writes takes. free: bytes that are left, None for enough. `log` is every
    change that was made, in order, for replaying it up to any point.
    """

    def __init__(self, inner: Disk = REAL_DISK) -> None:
        self._inner = inner
        self.failing: dict[str, int] = {}
        self.once: deque[tuple[str, int]] = deque()
        self.short: deque[int] = deque()
        self.free: int | None = None
        self.log: list[Operation] = []
        self._names: dict[int, str] = {}

    def _check(self, operation: str) -> None:
        code = self.failing.get(operation)
        if code is None and self.once and self.once[0][0] == operation:
            code = self.once.popleft()[1]
        if code is not None:
            raise OSError(code, os.strerror(code))

    @property
    def open_fds(self) -> list[str]:
        """What is open through this disk: a leak shows here."""
        return sorted(self._names.values())

    def open_dir(self, name: str, dir_fd: int, *, create: bool) -> int:
        self._check("open_dir")
        fd = self._inner.open_dir(name, dir_fd, create=create)
        self._names[fd] = name
        return fd

    def create(self, name: str, dir_fd: int) -> int:
        self._check("create")
        fd = self._inner.create(name, dir_fd)
        self._names[fd] = name
        self.log.append(Operation("create", name))
        return fd

    def append(self, name: str, dir_fd: int) -> int:
        self._check("append")
        fd = self._inner.append(name, dir_fd)
        self._names[fd] = name
        return fd

    def write(self, fd: int, data: bytes) -> int:
        self._check("write")
        if self.short:
            data = data[: self.short.popleft()]
        if self.free is not None:
            if self.free <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.free]
        if not data:
            return 0
        count = self._inner.write(fd, data)
        if self.free is not None:
            self.free -= count
        self.log.append(Operation("write", self._names[fd], bytes(data[:count])))
        return count

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate")
        if self.free is not None:
            self.free += max(0, self._inner.fstat(fd).st_size - size)
        self._inner.truncate(fd, size)
        self.log.append(Operation("truncate", self._names[fd], size=size))

    def fstat(self, fd: int) -> os.stat_result:
        self._check("fstat")
        return self._inner.fstat(fd)

    def stat(self, name: str, dir_fd: int) -> os.stat_result:
        self._check("stat")
        return self._inner.stat(name, dir_fd)

    def unlink(self, name: str, dir_fd: int) -> None:
        self._check("unlink")
        if self.free is not None:
            self.free += self._inner.stat(name, dir_fd).st_size
        self._inner.unlink(name, dir_fd)
        self.log.append(Operation("unlink", name))

    def replace(self, old: str, new: str, dir_fd: int) -> None:
        self._check("replace")
        self._inner.replace(old, new, dir_fd)
        self.log.append(Operation("replace", old, new=new))

    def sync(self, fd: int) -> None:
        self._check("sync")
        self._inner.sync(fd)
        self.log.append(Operation("sync", self._names.get(fd, "")))  # "": the trace root, which others opened

    def close(self, fd: int) -> None:
        self._inner.close(fd)
        self._names.pop(fd, None)

    def names(self, dir_fd: int) -> list[str]:
        self._check("names")
        return self._inner.names(dir_fd)
