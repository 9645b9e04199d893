"""Where things are. Needs nothing but `os`: quick commands of the client import it before anything else.

The rule itself is the recorder's (`tracewriter.places`), so that any program finds it. Every function takes the
environment as a parameter and returns an absolute path; none of them touches the disk but `private_dir` and `Address`.
"""

from __future__ import annotations

import os

# isort: off
from tracewriter.places import (
    config_file as config_file,
    runtime_dir as runtime_dir,
    state_dir as state_dir,
    traces_dir as traces_dir,
    writer_socket as writer_socket,
)

# isort: on

TYPE_CHECKING = False  # typing's import alone would cost more than this module
if TYPE_CHECKING:
    from collections.abc import Mapping

# sockaddr_un.sun_path has 108 bytes, one of them the NUL.
MAX_SOCKET_PATH_BYTES = 107
PRIVATE_MODE = 0o700


def sessions_db(env: Mapping[str, str]) -> str:
    """The session store."""
    return os.path.join(state_dir(env), "sessions.db")


def models_dir(env: Mapping[str, str]) -> str:
    """Where local models are, NAME.gguf each: models/ in AGENTD_HOME, else in the XDG data directory."""
    if env.get("AGENTD_HOME"):
        return os.path.join(state_dir(env), "models")
    data, home = env.get("XDG_DATA_HOME", ""), env.get("HOME", "")
    if not os.path.isabs(data):
        data = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~"), ".local", "share")
    return os.path.join(data, "agentd", "models")


def agentd_socket(env: Mapping[str, str]) -> str:
    """The daemon's socket (PROTOCOL.md)."""
    return os.path.join(runtime_dir(env), "agentd.sock")


def state_lock(env: Mapping[str, str]) -> str:
    """The lock of whoever serves the state directory; beside sessions.db, and never the file of the runtime directory's lock."""
    return os.path.join(state_dir(env), "sessions.lock")


def workspace_hash(path: str) -> str:
    """The name of a workspace's directory under traces/: 24 hex of the SHA-256 of its canonical path."""
    import hashlib

    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:24]


def private_dir(path: str) -> str:
    """Make `path` and its missing parents, 0700 whatever the umask, and return it.

    An existing directory of ours is tightened to 0700. Raises PermissionError when the last component is a symlink, belongs
    to another user or may be written by everyone, and OSError as mkdir does.
    """
    path = os.path.abspath(path)
    missing = []
    level = path
    while not os.path.lexists(level):
        missing.append(level)
        level = os.path.dirname(level)
    for level in reversed(missing):
        # makedirs(mode) would leave the parents to the umask.
        try:
            os.mkdir(level, PRIVATE_MODE)
            os.chmod(level, PRIVATE_MODE)
        except FileExistsError:
            pass  # another process of ours was faster; checked below
    _check_private(path)
    return path


def _check_private(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as exc:
        what = "is a symbolic link" if os.path.islink(path) else "is not a directory"
        raise PermissionError(f"{path} {what}") from exc
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to user {found.st_uid}")
        if found.st_mode & 0o002:
            raise PermissionError(f"{path} may be written by everyone")
        if found.st_mode & 0o077:
            os.fchmod(fd, PRIVATE_MODE)
    finally:
        os.close(fd)


class Address:
    """A context manager that gives an address for bind or connect, whatever the length of the socket's path.

    A path over 107 bytes is named through a descriptor of its directory, which stays open inside the `with`.
    Raises OSError when the directory cannot be opened or the file name alone is too long.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= MAX_SOCKET_PATH_BYTES:
            return self._path
        directory, name = os.path.split(self._path)
        self._fd = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{name}"

    def __exit__(self, *exc: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def address(path: str) -> Address:
    """The address of a socket path, of any length: `with address(path) as name: sock.connect(name)`."""
    return Address(path)
