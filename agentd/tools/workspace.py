"""The one opener for every path a tool touches: nothing outside the root is read, written or created, whatever the path says.

A path is normalised by its text (so `..` never reaches the kernel except inside a symbolic link) and then resolved from a
directory descriptor of the root: by openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS), or, where the kernel or a seccomp filter
has no openat2, by `open_by_walk`, which keeps a descriptor per component and gives the same answers. Resolving a name with
realpath and checking the result was rejected: it falls back to the unresolved name for files that do not exist yet.

Reading follows links that stay beneath the root. Writing never follows one at the target: it makes a new file beside the
target and renames it over, so a reader sees the old contents or the new ones, and a hard link elsewhere keeps the old ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import stat
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agentd.tools.beneath import Opener, choose_opener

if TYPE_CHECKING:
    from types import TracebackType

# The kernel's own bounds (PATH_MAX with its NUL, NAME_MAX): refused here with a sentence rather than there with a number.
MAX_PATH_BYTES: Final = 4_095
MAX_NAME_BYTES: Final = 255

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK_BYTES: Final = 64 * 1024

_WORDS: Final = {
    errno.ENOENT: "there is no such file or directory; list_files shows what is there",
    errno.ENOTDIR: "a part of the path is not a directory; list_files shows what is there",
    errno.EISDIR: "it is a directory",
    errno.EXDEV: "it leads outside the workspace",
    errno.ELOOP: "too many symbolic links, or one that must not be followed",
    errno.EACCES: "permission denied",
    errno.EPERM: "the operation is not permitted",
    errno.EEXIST: "something else is there already",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be too large",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reported an input/output error",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
}


class PathError(Exception):
    """A path that a tool will not or cannot use: one readable line that names the path and says why.

    check: what did not hold, as in file.check.failed.
    """

    def __init__(self, path: str, reason: str, check: str = "path") -> None:
        super().__init__(f"{shown(path)}: {reason}")
        self.path = path
        self.reason = reason
        self.check = check


class Stopped(Exception):
    """A write was told to stop before it took effect; nothing changed."""


class Snapshot(Struct, frozen=True):
    """A file as it was when it was read for a change: its contents, mode, and what tells that it is still that file."""

    data: bytes
    mode: int
    identity: tuple[int, ...]


def in_words(error: OSError) -> str:
    """What an operating system error means, without the daemon's own paths."""
    return _WORDS.get(error.errno or 0) or os.strerror(error.errno or 0).lower()


def shown(name: str, max_chars: int = 500) -> str:
    """A file name as one bounded line of valid text: what is not UTF-8 is replaced, control characters are escaped."""
    text = name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:max_chars])
    return line if len(text) <= max_chars else line + "…"


class RegularFile:
    """An open regular file, positioned at its start. Close it (or use it as a context manager)."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def fileno(self) -> int:
        return self._fd

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """The contents in pieces, at most `max_bytes` in all, never the whole in memory."""
        left = max_bytes
        while left > 0 and (chunk := os.read(self._fd, min(_CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk

    def rewind(self) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)

    def __enter__(self) -> RegularFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


class Workspace:
    """The directory tree that tools are confined to. Raises OSError when `root` is not a directory that can be opened.

    Every method raises PathError, and nothing else, for a path or a disk that does not allow it. Methods block: call them in
    a thread. The descriptor of the root is closed by close(), or with the object.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        opener: Opener | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self._prefixes = tuple({posixpath.normpath(os.path.abspath(root)), str(self.root)})
        self._fd = os.open(self.root, _DIRECTORY)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        self._open_beneath = opener or choose_opener(self._fd)
        self._new_token = new_token

    def __repr__(self) -> str:
        return f"<Workspace {self.root}>"

    def close(self) -> None:
        """Let go of the root's descriptor. May be called again."""
        self._finalizer()

    def locate(self, path: str) -> str:
        """The path relative to the root, normalised ("." is the root). It decides by the text alone and touches no disk."""
        _check_text(path)
        clean = posixpath.normpath(path) if path else "."
        if clean.startswith("/"):
            clean = self._beneath_root(path, "/" + clean.lstrip("/"))
        if clean == ".." or clean.startswith("../"):
            raise PathError(path, "it is outside the workspace; use a path relative to the workspace's root")
        first = clean.split("/", 1)[0]
        if first == "~":
            raise PathError(path, "~ is not expanded; use a path relative to the workspace's root")
        if any(len(name.encode()) > MAX_NAME_BYTES for name in clean.split("/")):
            raise PathError(path, f"the name is too long (over {MAX_NAME_BYTES} bytes)")
        return clean

    def _beneath_root(self, path: str, absolute: str) -> str:
        for prefix in self._prefixes:
            if absolute == prefix:
                return "."
            if absolute.startswith(prefix.rstrip("/") + "/"):
                return absolute[len(prefix.rstrip("/")) + 1 :]
        raise PathError(path, "it is outside the workspace; use a path relative to the workspace's root")

    def open_file(self, path: str) -> RegularFile:
        """The regular file at `path`, for reading. FIFOs, sockets and devices are refused without being opened."""
        with _explained(path):
            clean = self.locate(path)
            # Looked at first without opening (O_PATH): opening a FIFO releases its writer, a device may act on it.
            probe = self._open_beneath(self._fd, clean, os.O_PATH | os.O_CLOEXEC)
            try:
                _check_regular(path, os.fstat(probe))
            finally:
                os.close(probe)
            fd = self._open_beneath(self._fd, clean, _READ)
            return _regular(path, fd)

    def open_directory(self, path: str) -> int:
        """A descriptor of the directory at `path`. The caller closes it."""
        with _explained(path):
            return self._open_beneath(self._fd, self.locate(path), _DIRECTORY)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory, links beneath the root followed."""
        with _explained(path):
            probe = self._open_beneath(self._fd, self.locate(path), os.O_PATH | os.O_CLOEXEC)
            try:
                return stat.S_ISDIR(os.fstat(probe).st_mode)
            finally:
                os.close(probe)

    def snapshot(self, path: str, max_bytes: int) -> Snapshot | None:
        """The file that a write to `path` would replace, or None when there is none. Refuses links and read-only files."""
        with _explained(path):
            clean = self.locate(path)
            _check_target(path, clean)
            try:
                parent = self._open_beneath(self._fd, posixpath.dirname(clean) or ".", _DIRECTORY)
            except FileNotFoundError:
                return None
            try:
                return _snapshot_at(path, parent, posixpath.basename(clean), max_bytes)
            finally:
                os.close(parent)

    def replace(self, path: str, data: bytes, before: Snapshot | None, may_commit: Callable[[], bool]) -> None:
        """Put `data` at `path` in one step, if what is there is still `before`; parents are created for a new file.

        `may_commit` is asked once, immediately before the step that takes effect; when it says no, Stopped is raised.
        A failure leaves the old file, no temporary file and no new directory.
        """
        with _explained(path):
            clean = self.locate(path)
            _check_target(path, clean)
            created: list[str] = []
            try:
                parent = self._make_parents(posixpath.dirname(clean), created)
                try:
                    self._replace_at(path, parent, posixpath.basename(clean), data, before, may_commit)
                finally:
                    os.close(parent)
            except BaseException:
                self._remove_empty(created)
                raise

    def _make_parents(self, directory: str, created: list[str]) -> int:
        """Open `directory`, creating what is missing. Each level is opened from the root, so that links beneath it still work."""
        fd = self._open_beneath(self._fd, ".", _DIRECTORY)
        done = ""
        for name in directory.split("/") if directory else []:
            done = posixpath.join(done, name)
            try:
                try:
                    below = self._open_beneath(self._fd, done, _DIRECTORY)
                except FileNotFoundError:
                    # A dangling link is "not found" above and "exists" here: nothing is made at its other end.
                    os.mkdir(name, 0o700, dir_fd=fd)
                    created.append(done)
                    below = self._open_beneath(self._fd, done, _DIRECTORY)
                    _set_new_mode(below, _inherited(fd) | 0o700)
            finally:
                os.close(fd)
            fd = below
        return fd

    def _remove_empty(self, created: list[str]) -> None:
        for directory in reversed(created):
            with contextlib.suppress(OSError):
                parent = self._open_beneath(self._fd, posixpath.dirname(directory) or ".", _DIRECTORY)
                try:
                    os.rmdir(posixpath.basename(directory), dir_fd=parent)
                finally:
                    os.close(parent)

    def _replace_at(
        self, path: str, parent: int, name: str, data: bytes, before: Snapshot | None, may_commit: Callable[[], bool]
    ) -> None:
        temp = f".agentd-{self._new_token()}.tmp"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            try:
                _write_all(fd, data)
                if before is None:
                    _set_new_mode(fd, _inherited(parent) & 0o666 | 0o600)
                else:
                    os.fchmod(fd, before.mode)
            finally:
                os.close(fd)
            if _identity_at(parent, name) != (None if before is None else before.identity):
                raise PathError(path, "it was changed by someone else just now; read it again", "changed")
            if not may_commit():
                raise Stopped
            os.rename(temp, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temp, dir_fd=parent)
            raise


def _check_text(path: str) -> None:
    if "\0" in path:
        raise PathError(path, "a path cannot contain a NUL character")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise PathError(path, "a path must be valid Unicode text") from None
    if size > MAX_PATH_BYTES:
        raise PathError(path, f"the path is too long (over {MAX_PATH_BYTES} bytes)")


def _check_target(path: str, clean: str) -> None:
    if clean == "." or path.endswith("/"):
        raise PathError(path, "it names a directory, not a file")


def _check_regular(path: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise PathError(path, "it is a directory; list_files shows what is in it")
    if not stat.S_ISREG(found.st_mode):
        raise PathError(path, f"it is a {_kind(found.st_mode)}, not a regular file")


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "FIFO"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "symbolic link" if stat.S_ISLNK(mode) else "device"


def _regular(path: str, fd: int) -> RegularFile:
    try:
        found = os.fstat(fd)
        _check_regular(path, found)
    except BaseException:
        os.close(fd)
        raise
    return RegularFile(fd, found.st_size)


def _snapshot_at(path: str, parent: int, name: str, max_bytes: int) -> Snapshot | None:
    try:
        there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(there.st_mode):
        target = shown(os.readlink(name, dir_fd=parent))
        raise PathError(path, f"it is a symbolic link to {target}; links are not written through, name the file itself")
    _check_regular(path, there)
    if not there.st_mode & stat.S_IWUSR:
        raise PathError(path, "it is read-only (its mode has no write permission)")
    with _regular(path, os.open(name, _READ | os.O_NOFOLLOW, dir_fd=parent)) as file:
        data = b"".join(file.chunks(max_bytes + 1))
        found = os.fstat(file.fileno())
    if len(data) > max_bytes:
        raise PathError(path, f"it is too large to be changed here (over {max_bytes:,} bytes)")
    return Snapshot(data, stat.S_IMODE(found.st_mode) & 0o777, _identity(found))


def _identity_at(parent: int, name: str) -> tuple[int, ...] | None:
    try:
        return _identity(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _inherited(directory: int) -> int:
    """The mode of what is new in a directory: open to those it is open to, never writable for all.

    Not by the umask: the daemon's own is 077, for its own files, and the user's is not known here.
    """
    return os.fstat(directory).st_mode & 0o775


def _set_new_mode(fd: int, mode: int) -> None:
    with contextlib.suppress(OSError):  # a file system without modes
        os.fchmod(fd, mode)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Operating system errors as PathError, which names the path as the caller wrote it."""
    try:
        yield
    except OSError as error:
        raise PathError(path, in_words(error)) from error
