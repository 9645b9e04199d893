"""A session's directory as a scrub finds it: opened through descriptors, looked over for what no writer made, never followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tracewriter import lock
from tracewriter.errors import TraceError
from tracewriter.manifest import (
    DIGESTS_MAX,
    DIGESTS_NAME,
    MANIFEST_NAME,
    Manifest,
    chain,
    decode_manifest,
    digests_head,
    file_digest,
    parse_payload_digests,
    segment_digest,
    undigested,
)
from tracewriter.payload import ID, PART_SUFFIX, PAYLOADS
from tracewriter.payload_files import open_directory
from tracewriter.reader import quick_manifest, segment_numbers
from tracewriter.scan import read_small
from tracewriter.segment import sane_numbers, segment_number

PINNED: Final = "pinned"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PINNED_MAX: Final = 64 * 1024
_MANIFEST_MAX: Final = 4 * 1024 * 1024
_FILES: Final = frozenset({MANIFEST_NAME, MANIFEST_NAME + ".new", DIGESTS_NAME, lock.LOCK_NAME, PINNED})


class Problem(TraceError):
    """Why a session is left as it is. state: active or failed."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


class Place:
    """A session's directory under a trace root. Raises OSError, and Problem when it is not ours to change."""

    def __init__(self, root: Path, workspace: str, session: str) -> None:
        self.workspace, self.session = workspace, session
        self.path = root / workspace / session
        self.root_fd = self.workspace_fd = self.fd = -1
        try:
            self.root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.workspace_fd = os.open(workspace, _DIRECTORY, dir_fd=self.root_fd)
            self.fd = os.open(session, _DIRECTORY, dir_fd=self.workspace_fd)
            if os.fstat(self.fd).st_uid != os.geteuid():
                raise Problem("failed", "it belongs to another user")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the descriptors go."""
        for fd in (self.fd, self.workspace_fd, self.root_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.workspace_fd = self.root_fd = -1

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pinned(self) -> bool:
        """Whether retention leaves it alone."""
        return PINNED in os.listdir(self.fd)

    def pin_note(self) -> bytes:
        """What somebody wrote into `pinned`."""
        return read_small(PINNED, self.fd, _PINNED_MAX) or b""

    def refuse_moved(self) -> None:
        """Raises Problem when the session's name leads elsewhere now."""
        try:
            named = os.stat(self.session, dir_fd=self.workspace_fd, follow_symlinks=False)
        except FileNotFoundError:
            named = None
        if named is None or not os.path.samestat(named, os.fstat(self.fd)):
            raise Problem("active", "its directory is being moved")

    def refuse_foreign(self) -> None:
        """Raises Problem when anything is there that no writer made: it would neither be scrubbed nor stay where it is."""
        odd = next(self._foreign(), None)
        if odd is not None:
            raise Problem("failed", f"it holds {odd[:80]!r}, which no writer made; move it away")

    def _foreign(self) -> Iterator[str]:
        names = os.listdir(self.fd)
        sane = {number for number, _ in sane_numbers(names)}
        for name in sorted(names):
            info = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if name == PAYLOADS and stat.S_ISDIR(info.st_mode):
                yield from self._foreign_payloads()
                continue
            parsed = segment_number(name)
            known = name in _FILES or (parsed is not None and parsed[0] in sane)
            too_long = name == PINNED and info.st_size > _PINNED_MAX
            if not known or too_long or not _is_plain(info):
                yield name

    def _foreign_payloads(self) -> Iterator[str]:
        fd = open_directory(self.fd)
        try:
            for name in sorted(os.listdir(fd)):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not ID.match(name.removesuffix(PART_SUFFIX)) or not _is_plain(info):
                    yield f"{PAYLOADS}/{name}"
        finally:
            os.close(fd)

    def manifest(self) -> Manifest:
        """What is known of it: of the manifest, and of the records where that is missing or of another time."""
        known = decode_manifest(read_small(MANIFEST_NAME, self.fd, _MANIFEST_MAX))
        return quick_manifest(self.fd, self.session, segment_numbers(self.fd), known)


def segments_bytes(dir_fd: int) -> int:
    """The size of all segments."""
    names = (name for name in os.listdir(dir_fd) if (parsed := segment_number(name)) and parsed[1] == "jsonl")
    return sum(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_size for name in names)


def _is_plain(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.geteuid()


def head_now(dir_fd: int) -> str:
    """The head digest that a session would have if its recording were closed now: what `digests` has, and what it lacks."""
    noted = read_small(DIGESTS_NAME, dir_fd, DIGESTS_MAX) or b""
    head = digests_head(noted) or ""
    for digest in _undigested(dir_fd, noted):
        head = chain(head, digest)
    return head


def _undigested(dir_fd: int, noted: bytes) -> Iterator[str]:
    for number in undigested(os.listdir(dir_fd), noted):
        yield segment_digest(dir_fd, number) or ""
    try:
        fd = open_directory(dir_fd)
    except FileNotFoundError:
        return
    try:
        for name in sorted(_fresh(os.listdir(fd), parse_payload_digests(noted))):
            yield file_digest(fd, name) or ""
    finally:
        os.close(fd)


def _fresh(names: Iterable[str], noted: dict[str, str]) -> set[str]:
    return {name for name in names if ID.match(name)} - set(noted)
