"""Judges the payloads of a session: each file against its seal and its digest, each reference against the files.

What is kept in memory is ids, at most MAX_PAYLOADS of them; files are read in pieces, one after the other. Segments are read before
the directory is listed: a payload is in place before the record that names it, so also of a session that is being recorded
nothing is missed that is there.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from tracewriter.chain import Bulk, Item
from tracewriter.config import MIB
from tracewriter.errors import errno_name
from tracewriter.expand import find_marks
from tracewriter.findings import Found, Note
from tracewriter.manifest import parse_payload_digests
from tracewriter.payload import ID, MAX_PAYLOAD, PART_SUFFIX, PAYLOADS, REFERENCE
from tracewriter.payload_files import (
    MAX_PAYLOADS,
    Digested,
    NoPayloadError,
    Seals,
    oddity,
    open_directory,
    open_payload,
    payload_seals,
)
from tracewriter.segment import count_lines, new_hash

_CHUNK: Final = MIB
_NAMED: Final = 100  # notes of a kind that name their payload; the others are counted


class References:
    """The payloads that a session's records name, each with the first record that does. Feed it what a reader gives."""

    def __init__(self, most: int = MAX_PAYLOADS) -> None:
        self._most = most
        self.first: dict[bytes, int] = {}  # id → seq
        self.over = False

    def take(self, item: Item | Bulk) -> None:
        """Note what one item names."""
        if isinstance(item, Found):
            if find_marks(item.line):
                self._line(item.line, 0, len(item.line), item.record.seq)
        elif isinstance(item, Bulk):
            self._bulk(item)

    def _bulk(self, bulk: Bulk) -> None:
        data, done, seq = bulk.data, bulk.start, bulk.first
        for start, _, _ in ((start, end, which) for which, start, end in find_marks(data)):
            if start < done:
                continue  # in a line that was looked at
            begin = data.rfind(b"\n", done, start) + 1 or done
            end = data.find(b"\n", start)
            seq += count_lines(data[done:begin])
            self._line(data, begin, end, seq)
            done, seq = end + 1, seq + 1

    def _line(self, data: bytes, begin: int, end: int, seq: int) -> None:
        for match in REFERENCE.finditer(data, begin, end):
            payload = match[1]
            if payload in self.first:
                continue
            if len(self.first) >= self._most:
                self.over = True
                return
            self.first[payload] = seq


class Payloads(Struct, frozen=True):
    """What was found of a session's payload files. verified: those that are as their seals say."""

    files: int = 0
    bytes: int = 0
    verified: int = 0
    notes: tuple[Note, ...] = ()


def check_payloads(dir_fd: int, references: References, digests: bytes | None, *, active: bool) -> Payloads:
    """Check all payloads of the session that is open at `dir_fd`. Never raises for what is on disk.

    active: it is being recorded, so what is not sealed, not named or not finished yet is nothing to be told.
    """
    check = _Check(dir_fd, references, parse_payload_digests(digests))
    notes = tuple(_bounded(check.run(active=active)))
    return Payloads(check.files, check.bytes, check.verified, notes)


def _bounded(notes: Iterable[Note]) -> Iterator[Note]:
    """The notes, of a kind only the first _NAMED, then how many more there are."""
    counts: Counter[str] = Counter()
    for note in notes:
        counts[note.kind] += 1
        if counts[note.kind] <= _NAMED:
            yield note
    for kind, count in counts.items():
        if count > _NAMED:
            yield Note(kind, f"and {count - _NAMED} more payloads like those")


class _Check:
    def __init__(self, dir_fd: int, references: References, digests: dict[str, str]) -> None:
        self._dir_fd = dir_fd
        self._owner = os.fstat(dir_fd).st_uid
        self._references = references
        self._digests = digests
        self._seals: Seals = {}
        self._ids: set[str] = set()
        self._parts: list[str] = []
        self._over = references.over
        self._unsealed: list[str] = []
        self.files = self.bytes = self.verified = 0

    def run(self, *, active: bool) -> Iterator[Note]:
        try:
            fd = open_directory(self._dir_fd)
        except FileNotFoundError:
            fd = -1
        except OSError as exc:
            fd = -1
            yield Note("foreign", f"{PAYLOADS} is no directory of the recorder's ({errno_name(exc)}); it is not read")
        try:
            if fd >= 0:
                yield from self._files(fd)
            yield from self._missing(fd)
        finally:
            if fd >= 0:
                os.close(fd)
        if not active:
            yield from self._remarks()
        if self._over:
            yield Note("unchecked", f"there are more than {MAX_PAYLOADS:,} payloads: those beyond were not looked at")

    def _files(self, fd: int) -> Iterator[Note]:
        try:
            yield from self._names(fd)
        except OSError as exc:
            yield Note("payload_damaged", f"{PAYLOADS} cannot be read: {errno_name(exc)}")
        halves = {bytes.fromhex(payload[:16]) for payload in self._ids}
        self._seals = payload_seals(self._dir_fd, halves.__contains__) if halves else {}
        for payload in sorted(self._ids):
            yield from self._file(fd, payload)

    def _names(self, fd: int) -> Iterator[Note]:
        """Take down what is there, and tell of what should not be."""
        with os.scandir(fd) as entries:
            for seen, entry in enumerate(entries):
                if seen >= MAX_PAYLOADS:
                    self._over = True
                    break
                name = entry.name
                if ID.match(name):
                    self._ids.add(name)
                    continue
                odd = "it is no payload's name"
                if name.endswith(PART_SUFFIX) and ID.match(name.removesuffix(PART_SUFFIX)):
                    try:
                        odd = oddity(entry.stat(follow_symlinks=False), self._owner)
                    except FileNotFoundError:
                        continue
                if odd:
                    yield Note("foreign", f"{PAYLOADS}/{name}: {odd}; it is not read")
                else:
                    self._parts.append(name)

    def _file(self, fd: int, payload: str) -> Iterator[Note]:
        wanted = self._digests.get(payload)
        try:
            now, sha256 = self._read(fd, payload, digest=wanted is not None)
        except FileNotFoundError:
            self._ids.discard(payload)  # gone since it was listed: missing if a record names it
            return
        except NoPayloadError as exc:
            yield Note("foreign", f"{PAYLOADS}/{payload}: {exc}; it is not read", payload=payload)
            return
        except OSError as exc:
            text = f"payload {payload} cannot be read: {errno_name(exc)}"
            yield Note("payload_damaged", text, first=self._named_by(payload), payload=payload)
            return
        self.files += 1
        self.bytes += now.size
        seals = self._seals.get(bytes.fromhex(payload[:16]), ())
        if now.size > MAX_PAYLOAD or (seals and not now.matches(seals)):
            text = f"payload {payload} is not as it was sealed" if seals else f"payload {payload} is longer than any"
            yield Note("payload_damaged", text, first=self._named_by(payload), payload=payload)
        elif seals:
            self.verified += 1
        else:
            self._unsealed.append(payload)
        if wanted is not None and sha256 != wanted:
            text = f"payload {payload} is not as it was when the recording was closed (SHA-256)"
            yield Note("digest", text, first=self._named_by(payload), payload=payload)

    def _read(self, fd: int, payload: str, *, digest: bool) -> tuple[Digested, str]:
        """Size, hash and SHA-256 (if asked for) of a payload file, in constant memory; read until it is too long to be one.
        Raises OSError."""
        file = open_payload(payload, fd, self._owner)
        try:
            size, sealed, noted = 0, new_hash(), hashlib.sha256()
            while size <= MAX_PAYLOAD and (chunk := os.read(file, _CHUNK)):
                size += len(chunk)
                sealed.update(chunk)
                if digest:
                    noted.update(chunk)
            return Digested(size, sealed.intdigest()), noted.hexdigest()
        finally:
            os.close(file)

    def _missing(self, fd: int) -> Iterator[Note]:
        """What a record names, or the digests do, and is not there."""
        for named, seq in self._references.first.items():
            payload = named.decode()
            if payload not in self._ids and not (self._over and self._is_there(fd, payload)):
                text = f"payload {payload}, which seq {seq} names, is missing"
                yield Note("payload_missing", text, first=seq, last=seq, payload=payload)
        for payload in self._digests:
            if payload not in self._ids and payload.encode() not in self._references.first:
                text = f"payload {payload} is missing: it was there when the recording was closed"
                yield Note("payload_missing", text, payload=payload)

    def _is_there(self, fd: int, payload: str) -> bool:
        try:
            os.stat(payload, dir_fd=fd, follow_symlinks=False)
        except (OSError, ValueError):
            return False
        return True

    def _remarks(self) -> Iterator[Note]:
        """What is no damage."""
        if self._unsealed:
            yield _some("unsealed", self._unsealed, "covered by no seal")
        unnamed = sorted(payload for payload in self._ids if payload.encode() not in self._references.first)
        if unnamed and not self._over:
            yield _some("unreferenced", unnamed, "named by no record")
        if self._parts:
            yield _some("unfinished", sorted(self._parts), "never finished")

    def _named_by(self, payload: str) -> int | None:
        return self._references.first.get(payload.encode())


def _some(kind: str, payloads: list[str], what: str) -> Note:
    """One note about one or more payloads."""
    if len(payloads) == 1:
        return Note(kind, f"payload {payloads[0]} is {what}", payload=payloads[0].removesuffix(PART_SUFFIX))
    return Note(kind, f"{len(payloads)} payloads are {what} ({payloads[0]}, …)")
