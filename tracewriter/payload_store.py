"""A session's payloads/ directory: bodies stored whole, each under its id, in place before the record that names it.

`<id>.part` is made with O_EXCL, written, and renamed; so `<id>` is whole at every moment, and what a killed writer leaves is a
`.part` that the next one removes under the lock. Nothing here is opened through a link, and a name that something else than a
plain file has is replaced by the rename, which touches the name alone; a directory there is an error of the disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from typing import Final

from msgspec import Struct

from tracewriter.disk import Disk
from tracewriter.payload import ID, PART_SUFFIX, PAYLOADS, PayloadSeal, seal_of

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # no directory, or something else in its place


class Stored(Struct, frozen=True):
    """What became of a body: the seal of its bytes (None: it was there before), or the error."""

    seal: PayloadSeal | None = None
    error: OSError | None = None


class PayloadStore:
    """The payload files of one session, by its directory's descriptor. Names are opened anew each time: few descriptors."""

    def __init__(self, disk: Disk, dir_fd: int, durability: str) -> None:
        self._disk, self._dir_fd = disk, dir_fd
        self._batch, self._interval = durability == "batch", durability == "interval"
        self._unsynced: deque[str] = deque()  # appended by the loop, taken by the background
        self._again: set[str] = (
            set()
        )  # in place, but not surely on disk: a sync failed (batch), so they are written anew
        self._named_on_disk = False  # payloads/ itself (batch)
        self.size_bytes = 0
        self.files = 0

    def recover(self) -> None:
        """Count what earlier lives stored, and remove what they left half. Only under the session's lock. Raises OSError."""
        fd = self._open()
        if fd < 0:
            return
        try:
            for name in self._disk.names(fd):
                if ID.match(name):
                    info = self._named(name, fd)
                    if info is not None and stat.S_ISREG(info.st_mode):
                        self.size_bytes += info.st_size
                        self.files += 1
                elif name.endswith(PART_SUFFIX) and ID.match(name.removesuffix(PART_SUFFIX)):
                    self._remove(name, fd)
        finally:
            self._disk.close(fd)

    def _open(self) -> int:
        """The directory's descriptor; -1 when there is none, or something else in its place."""
        try:
            return self._disk.open_dir(PAYLOADS, self._dir_fd, create=False)
        except OSError as exc:
            if exc.errno in _ABSENT:
                return -1
            raise

    def has(self, payload: str) -> bool:
        """Whether it is stored already."""
        try:
            fd = self._disk.open_dir(PAYLOADS, self._dir_fd, create=False)
            try:
                return self._whole(payload, fd)
            finally:
                self._disk.close(fd)
        except OSError:
            return False

    def store(self, payload: str, data: bytes) -> Stored:
        """Put `data` in place under its id, unless it is there: the same id is the same body."""
        try:
            fd = self._disk.open_dir(PAYLOADS, self._dir_fd, create=True)
            try:
                if self._disk.fstat(fd).st_uid != os.geteuid():
                    raise OSError(errno.EPERM, "payloads/ belongs to another user")
                if payload not in self._again and self._whole(payload, fd):
                    return Stored()
                self._put(payload, data, fd)
            finally:
                self._disk.close(fd)
        except OSError as exc:
            return Stored(error=exc)
        self.size_bytes += len(data)
        self.files += 1
        if self._interval:
            self._unsynced.append(payload)
        return Stored(seal_of(payload, data))

    def _put(self, payload: str, data: bytes, fd: int) -> None:
        part = payload + PART_SUFFIX
        try:
            self._write(part, data, fd)
            self._disk.replace(part, payload, fd)
        except OSError:
            self._remove(part, fd)
            raise
        if self._batch:
            self._again.add(payload)
            self._disk.sync(fd)
            if not self._named_on_disk:
                self._disk.sync(self._dir_fd)
            self._named_on_disk = True
            self._again.discard(payload)

    def _write(self, part: str, data: bytes, fd: int) -> None:
        try:
            file = self._disk.create(part, fd)
        except FileExistsError:  # one that could not be removed when its write failed
            self._disk.unlink(part, fd)
            file = self._disk.create(part, fd)
        try:
            written = 0
            while written < len(data):
                try:
                    count = self._disk.write(file, data[written:] if written else data)
                except InterruptedError:
                    continue
                if count <= 0:
                    raise OSError(errno.EIO, "write(2) wrote nothing")
                written += count
            if self._batch:
                self._disk.sync(file)
        finally:
            self._disk.close(file)

    def _named(self, name: str, fd: int) -> os.stat_result | None:
        try:
            return self._disk.stat(name, fd)
        except FileNotFoundError:
            return None

    def _whole(self, payload: str, fd: int) -> bool:
        info = self._named(payload, fd)
        return info is not None and stat.S_ISREG(info.st_mode) and info.st_nlink == 1

    def _remove(self, name: str, fd: int) -> None:
        try:
            self._disk.unlink(name, fd)
        except OSError:
            pass  # a reader calls such a file a write that was never completed; the next life tries again

    def sync(self) -> None:
        """fdatasync of what was stored since the last call, then of the names. Off the loop. Raises OSError."""
        if not self._unsynced:
            return
        fd = self._open()
        if fd < 0:
            self._unsynced.clear()
            return
        try:
            while self._unsynced:
                self._sync_one(self._unsynced.popleft(), fd)
            self._disk.sync(fd)
            self._disk.sync(self._dir_fd)
        finally:
            self._disk.close(fd)

    def sync_all_but(self, noted: set[str]) -> None:
        """fdatasync of what an earlier life may have left to the kernel. Raises OSError."""
        fd = self._open()
        if fd < 0:
            return
        try:
            todo = [name for name in self._disk.names(fd) if ID.match(name) and name not in noted]
            for name in todo:
                self._sync_one(name, fd)
            if todo:
                self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _sync_one(self, name: str, fd: int) -> None:
        try:
            file = self._disk.append(name, fd)
        except OSError:
            return  # removed, or something planted
        try:
            self._disk.sync(file)
        finally:
            self._disk.close(file)
