"""Keys: held so that nothing prints them, and read from files that nobody else can read."""

from __future__ import annotations

import os
import stat
from typing import Final

from tracewriter.events import Failure

_MAX_FILE_BYTES: Final = 16 * 1024  # no key is longer; a wrong path must not pull a large file into memory


class Secret:
    """A key. Its repr and str show nothing, and no encoder takes it; `reveal` is for the one header that carries it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not to be stored")


def usable(key: str) -> bool:
    """Whether a header can carry the key: printable ASCII without spaces."""
    return key.isascii() and key.isprintable() and " " not in key


def read_key_file(path: str) -> Secret | Failure:
    """The key in a file: its first line. The file must be the user's own and closed to everybody else (0600)."""
    shown = "".join(char if char.isprintable() else "?" for char in path[:200])
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "not a path"
        return Failure("config", f"the key file {shown} cannot be read: {why}", "check key_file in the configuration")
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return Failure("config", f"the key file {shown} is no file", "check key_file in the configuration")
        if info.st_mode & 0o077 or info.st_uid != os.geteuid():
            return Failure("config", f"the key file {shown} can be read by others", f"chmod 600 {shown}, and own it")
        data = os.read(descriptor, _MAX_FILE_BYTES)
    except OSError as exc:
        return Failure("config", f"the key file {shown} cannot be read: {exc.strerror}", "check key_file")
    finally:
        os.close(descriptor)
    lines = data.decode("utf-8", "replace").strip().split("\n")
    key = lines[0].strip()
    if not key or len(lines) > 1 or not usable(key):
        return Failure("config", f"the key file {shown} holds no key", "it should hold the key alone, on one line")
    return Secret(key)
