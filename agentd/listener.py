"""The daemon's one place: locks that say who is the daemon of a runtime and of a state directory, and the socket it listens on.

The lock decides, not the socket: flock ends with its process, whatever happened, so there is never a stale one. A socket
file that is there while we hold the lock is a dead daemon's and is replaced; without the lock nothing is touched. (asyncio's
start_unix_server(path) would unlink a living daemon's socket.)

Runtime directories are removed under living daemons (by a clean-up of /tmp, by a person). The lock of the state directory then
still keeps a second daemon off the same sessions.db, and the first one sees that its place is `lost` and takes it anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from typing import Final

from agentd.errors import AlreadyRuns, StartError
from agentd.paths import address, private_dir

BACKLOG: Final = 128


class InstanceLock:
    """Held by the daemon of a directory from before its socket is made until after it is gone."""

    def __init__(self, path: str, what: str = "runtime") -> None:
        """Raises StartError at once when another daemon holds it or the directory cannot be used; `what` is for the message."""
        self.path = path
        self._fd = -1
        try:
            private_dir(os.path.dirname(path))
            self._fd = _locked(path)
        except BlockingIOError as exc:
            raise AlreadyRuns(
                f"another agentd runs already ({path} is locked)", "use it, or end it with `agentctl stop`"
            ) from exc
        except OSError as exc:
            hint = "set AGENTD_HOME to a directory that you may write, or mend its permissions"
            raise StartError(f"cannot use the {what} directory: {_words(exc)}", hint) from exc

    def __repr__(self) -> str:
        return f"<InstanceLock {self.path} held={self._fd >= 0}>"

    @property
    def lost(self) -> bool:
        """Whether its path no longer leads to the file that is locked: another daemon could lock that name."""
        return not _same(os.fstat(self._fd), self.path)

    def close(self) -> None:
        """Let the next daemon have it. The file stays: unlinking it would make two locks of one name possible."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _locked(path: str) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Someone may have replaced the file in between: then this is the lock of nothing.
            if _same(os.fstat(fd), path):
                os.fchmod(fd, 0o600)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _same(held: os.stat_result, path: str) -> bool:
    named = _stat(path)
    return named is not None and (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


class Listener:
    """The listening socket. `close` removes the file if it is still the one that was made here (`owned`)."""

    def __init__(self, sock: socket.socket, path: str = "", *, owned: bool = True) -> None:
        self.sock = sock
        self._path = path
        self._owned = owned
        self._file = _stat(path) if path else None
        sock.setblocking(False)

    def __repr__(self) -> str:
        return f"<Listener {self._path if self._owned else 'passed by the service manager'}>"

    @property
    def lost(self) -> bool:
        """Whether its path no longer leads to this socket. What had no file from the start cannot lose it."""
        return self._file is not None and not _same(self._file, self._path)

    def close(self) -> None:
        """Stop listening. Only while the instance lock is held."""
        self.sock.close()
        if self._owned and self._file is not None and not self.lost:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def listen(path: str, lock: InstanceLock) -> Listener:
    """Listen at `path`, of any length. The caller holds the lock. Raises StartError when the socket cannot be made."""
    assert lock.path
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        found = _stat(path)
        if found is not None and not stat.S_ISSOCK(found.st_mode):
            raise StartError(f"{path} is there and is no socket", "move it away")
        if found is not None:
            os.unlink(path)
        with address(path) as name:
            sock.bind(name)
        sock.listen(BACKLOG)
        return Listener(sock, path)
    except OSError as exc:
        sock.close()
        raise StartError(f"cannot listen on {path}: {_words(exc)}", "set AGENTD_HOME to another directory") from exc
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)


def adopt(fd: int) -> Listener:
    """A socket that the service manager passed. Raises StartError when it is no listening Unix stream socket."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as exc:
        raise StartError(f"descriptor {fd} is no socket: {_words(exc)}", "see systemd/agentd.socket") from exc
    fits = sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM
    if not fits or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        raise StartError("the socket passed is not a listening Unix stream socket", "see systemd/agentd.socket")
    path = sock.getsockname()
    return Listener(sock, path if isinstance(path, str) and os.path.isabs(path) else "", owned=False)


def _words(exc: OSError) -> str:
    if exc.errno is None:
        return str(exc)
    text = (
        "the name of the socket is too long"
        if exc.errno == errno.ENAMETOOLONG
        else (exc.strerror or "unknown error").lower()
    )
    return f"{exc.filename}: {text}" if exc.filename else text
