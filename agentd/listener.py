"""The daemon's one place: a lock that says who is the daemon of a runtime directory, and the socket it listens on.

The lock decides, not the socket: flock ends with its process, whatever happened, so there is never a stale one. A socket
file that is there while we hold the lock is a dead daemon's and is replaced; without the lock nothing is touched. (asyncio's
start_unix_server(path) would unlink a living daemon's socket.)
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
    """Held by the daemon of a runtime directory from before its socket is made until after it is gone."""

    def __init__(self, path: str) -> None:
        """Raises StartError at once when another daemon holds it or the directory cannot be used."""
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
            raise StartError(f"cannot use the runtime directory: {_words(exc)}", hint) from exc

    def __repr__(self) -> str:
        return f"<InstanceLock {self.path} held={self._fd >= 0}>"

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
            held, named = os.fstat(fd), _stat(path)
            # Someone may have replaced the file in between: then this is the lock of nothing.
            if named is not None and (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                os.fchmod(fd, 0o600)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


class Listener:
    """The listening socket. `close` removes the file if it is still the one that was made here."""

    def __init__(self, sock: socket.socket, path: str = "") -> None:
        self.sock = sock
        self._path = path
        found = _stat(path) if path else None
        self._identity = None if found is None else (found.st_dev, found.st_ino)
        sock.setblocking(False)

    def __repr__(self) -> str:
        return f"<Listener {self._path or 'passed by the service manager'}>"

    def close(self) -> None:
        """Stop listening. Only while the instance lock is held."""
        self.sock.close()
        found = _stat(self._path) if self._path else None
        if found is not None and (found.st_dev, found.st_ino) == self._identity:
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
    return Listener(sock)


def _words(exc: OSError) -> str:
    if exc.errno is None:
        return str(exc)
    text = (
        "the name of the socket is too long"
        if exc.errno == errno.ENAMETOOLONG
        else (exc.strerror or "unknown error").lower()
    )
    return f"{exc.filename}: {text}" if exc.filename else text
