"""Listening on a Unix socket with exactly one owner: flock first, then bind; a live socket is never stolen.

Paths over 107 bytes (the size of sun_path) go through /proc/self/fd/<directory>/name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Final

from tracewriter.errors import StartError

MAX_SUN_PATH: Final = 107
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Listener:
    """A listening socket, the lock that makes it ours, and how to leave both behind cleanly."""

    def __init__(self, sock: socket.socket, lock_fd: int, path: Path | None) -> None:
        self.sock = sock
        self._lock_fd = lock_fd
        self._path = path

    def close(self) -> None:
        """Unlink the socket (under the lock), then let the lock go."""
        if self._path is not None:
            try:
                self._path.unlink()
            except OSError:
                pass
        self.sock.close()
        os.close(self._lock_fd)


def private_dir(path: Path) -> None:
    """Make a directory 0700, level by level (os.makedirs leaves the parents to the umask). Raises StartError."""
    missing: list[Path] = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    try:
        for level in reversed(missing):
            try:
                level.mkdir(0o700)
                level.chmod(0o700)
            except FileExistsError:
                pass
        info = path.stat()
    except OSError as exc:
        raise StartError(
            f"the directory {path} cannot be made: {exc.strerror}; choose another place or its owner"
        ) from exc
    if not stat.S_ISDIR(info.st_mode):
        raise StartError(f"{path} is not a directory")
    if info.st_uid != os.geteuid():
        raise StartError(f"{path} belongs to another user; choose a directory of your own")


def listen(path: Path, inherited: list[int]) -> Listener:
    """Listen on `path`, or on the socket the service manager passed. Raises StartError when somebody else does already."""
    lock_fd = _lock(path)
    try:
        if inherited:
            return Listener(socket.socket(fileno=inherited[0]), lock_fd, None)
        return Listener(_bind(path), lock_fd, path)
    except BaseException:
        os.close(lock_fd)
        raise


def _lock(path: Path) -> int:
    private_dir(path.parent)
    lock_path = path.with_name(path.name + ".lock")
    try:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StartError(f"{lock_path} cannot be opened: {exc.strerror}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(fd)
        if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            text = f"{lock_path} cannot be locked: {exc.strerror}; choose a socket path on a local file system"
            raise StartError(text) from exc
        raise StartError(f"another tracewriter serves {path}") from exc
    return fd


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    dir_fd = -1
    umask = os.umask(0o177)
    try:
        try:
            path.unlink()  # we hold the lock, so whoever made it is dead
        except FileNotFoundError:
            pass
        address = str(path)
        if len(os.fsencode(address)) > MAX_SUN_PATH:
            dir_fd = os.open(path.parent, _DIRECTORY)
            address = f"/proc/self/fd/{dir_fd}/{path.name}"
        sock.bind(address)
        sock.listen(128)
    except OSError as exc:
        sock.close()
        raise StartError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
    finally:
        os.umask(umask)
        if dir_fd >= 0:
            os.close(dir_fd)
    return sock
