"""The payload files of a session, read safely: what is planted in their place is looked at, and never opened.

Everything is opened through the session's directory descriptor, no link is followed, no pipe waited for. A payload file is a
regular file with one name that belongs to whom the session's directory belongs to, of at most MAX_PAYLOAD bytes.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from tracewriter.config import MIB
from tracewriter.errors import errno_name
from tracewriter.findings import Note
from tracewriter.payload import ID, MAX_PAYLOAD, PAYLOADS, PayloadRef, PayloadSeal, decode_payload_seal
from tracewriter.scan import MAX_SEALS, read_small
from tracewriter.segment import SEAL_SLOT, decode_slot0, sane_numbers, seal_name

Seals = dict[bytes, tuple[PayloadSeal, ...]]  # by the first half of the id

MAX_PAYLOADS: Final = 1_000_000  # ids and slots that a reader keeps: a session of 128 MiB has some thousands
_SAME_ID: Final = 8  # slots kept of one id: a writer makes one
_PAYLOAD_SLOT: Final = b"\xff\xff\xff\xff"
_CHUNK: Final = MIB
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class NoPayloadError(OSError):
    """At a payload's place is something else. Its text says what."""


def oddity(info: os.stat_result, owner: int) -> str:
    """Why this is no file of the recorder's; "" when it may be one."""
    if not stat.S_ISREG(info.st_mode):
        return "it is no regular file"
    if info.st_nlink != 1:
        return "it has more than one name"
    if info.st_uid != owner:
        return "it belongs to another user"
    return ""


def open_directory(dir_fd: int) -> int:
    """The descriptor of a session's payload directory. Raises OSError."""
    return os.open(PAYLOADS, _DIRECTORY, dir_fd=dir_fd)


def open_payload(payload: str, payloads_fd: int, owner: int) -> int:
    """A payload file, open for reading. Raises OSError; NoPayloadError for what was not opened because it is none."""
    odd = oddity(os.stat(payload, dir_fd=payloads_fd, follow_symlinks=False), owner)
    if odd:
        raise NoPayloadError(odd)
    fd = os.open(payload, _PLAIN, dir_fd=payloads_fd)
    odd = oddity(os.fstat(fd), owner)  # it may have been exchanged in between
    if odd:
        os.close(fd)
        raise NoPayloadError(odd)
    return fd


def payloads_bytes(dir_fd: int) -> int:
    """The size of a session's payload files, from a look at their names: for lists, at most MAX_PAYLOADS of them."""
    try:
        fd = open_directory(dir_fd)
    except OSError:
        return 0
    try:
        with os.scandir(fd) as entries:
            named = (entry for entry in itertools.islice(entries, MAX_PAYLOADS) if ID.match(entry.name))
            return sum(entry.stat(follow_symlinks=False).st_size for entry in named)
    except OSError:
        return 0
    finally:
        os.close(fd)


def payload_seals(dir_fd: int, wanted: Callable[[bytes], bool] | None = None) -> Seals:
    """What all seal files of a session say of payloads, by the first half of the id; of those wanted only. A slot whose check
    fails says nothing."""
    try:
        numbers = sorted(number for number, kind in sane_numbers(os.listdir(dir_fd)) if kind == "seal")
    except OSError:
        return {}
    found: Seals = {}
    for number in numbers:
        for seal in _seals_in(read_small(seal_name(number), dir_fd, MAX_SEALS), number):
            if wanted is not None and not wanted(seal.prefix):
                continue
            known = found.get(seal.prefix, ())
            if seal not in known and len(known) < _SAME_ID and (known or len(found) < MAX_PAYLOADS):
                found[seal.prefix] = (*known, seal)
    return found


def _seals_in(data: bytes | None, number: int) -> Iterator[PayloadSeal]:
    head = decode_slot0(data[:SEAL_SLOT]) if data and len(data) >= SEAL_SLOT else None
    if data is None or head is None or head[0] != number:
        return
    for at in range(SEAL_SLOT, len(data) - SEAL_SLOT + 1, SEAL_SLOT):
        if data[at : at + 4] == _PAYLOAD_SLOT:
            seal = decode_payload_seal(data[at : at + SEAL_SLOT], head[1])
            if seal is not None:
                yield seal


class Digested(Struct, frozen=True):
    """A payload file's size and hash as they are now."""

    size: int
    digest: int

    def matches(self, seals: tuple[PayloadSeal, ...]) -> bool:
        """Whether one of the seals is of just these bytes."""
        return any((seal.size, seal.digest) == (self.size, self.digest) for seal in seals)


class PayloadFiles:
    """Loads payloads of the session whose directory is open at `dir_fd` (the caller's). Close it. Never raises for the files."""

    def __init__(self, dir_fd: int) -> None:
        self._dir_fd = dir_fd
        self._fd = -1
        self._seals: Seals | None = None

    def close(self) -> None:
        """Let the descriptor go."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def find(self, ref: PayloadRef) -> bytes | Note:
        """The stored bytes of a payload, or what is wrong with it. A seal that is there must match; a missing one is no fault."""
        try:
            data = self._read(ref.payload)
        except FileNotFoundError:
            return Note("payload_missing", f"payload {ref.payload} is missing", payload=ref.payload)
        except NoPayloadError as exc:
            return Note("foreign", f"payload {ref.payload} is not read: {exc}", payload=ref.payload)
        except OSError as exc:
            text = f"payload {ref.payload} cannot be read: {errno_name(exc)}"
            return Note("payload_damaged", text, payload=ref.payload)
        if self._seals is None:
            self._seals = payload_seals(self._dir_fd)
        seals = self._seals.get(bytes.fromhex(ref.payload[:16]), ())
        if len(data) > MAX_PAYLOAD or (seals and not Digested(len(data), xxh3_64_intdigest(data)).matches(seals)):
            text = f"payload {ref.payload} is not as it was sealed"
            return Note("payload_damaged", text, payload=ref.payload)
        return data

    def _read(self, payload: str) -> bytes:
        """At most one byte more than a payload can have."""
        if self._fd < 0:
            self._fd = open_directory(self._dir_fd)
        fd = open_payload(payload, self._fd, os.fstat(self._dir_fd).st_uid)
        try:
            pieces: list[bytes] = []
            left = MAX_PAYLOAD + 1
            while left and (piece := os.read(fd, min(left, _CHUNK))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)


class SessionPayloads(PayloadFiles):
    """The payloads of the session in a directory. Raises OSError when that is not there. A context manager."""

    def __init__(self, directory: Path) -> None:
        super().__init__(os.open(directory, _DIRECTORY))

    def __enter__(self) -> SessionPayloads:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        os.close(self._dir_fd)
