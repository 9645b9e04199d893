"""Two small files beside the segments. manifest.json is a cache for lists, replaced atomically and rebuilt when missing or wrong;
`digests` is the memory of what each segment was when its recording was closed: appended, never rebuilt.

A digest line is `<segment> <SHA-256 of the file> <chain>`, or a payload's id in the segment's place, where chain is the SHA-256
of the previous line's chain and this line's digest, in hex: who keeps the last chain value elsewhere can prove that nothing
before it was rewritten. Lines are in the order in which they were appended: of one closing the segments, then the payloads.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct, structs

from tracewriter.config import MIB
from tracewriter.disk import Disk
from tracewriter.payload import ID, PAYLOADS
from tracewriter.scan import open_plain, read_small
from tracewriter.segment import segment_name, segment_number

MANIFEST_NAME: Final = "manifest.json"
DIGESTS_NAME: Final = "digests"
_TEMPORARY: Final = "manifest.json.new"
DIGESTS_MAX: Final = 64 * MIB  # read of the file; a session's segments and payloads make a sixth of that at most
_LINE: Final = re.compile(rb"([0-9]{1,9}|[0-9a-f]{32}) ([0-9a-f]{64}) ([0-9a-f]{64})\Z")
_CHUNK: Final = MIB
_PAYLOAD_NAME: Final = 32  # characters; a segment's number has 9 at most


class Manifest(Struct, frozen=True, kw_only=True):
    """What lists need to know of a session. `last` is the last seq accounted for; segments_bytes and payloads_bytes are the
    sizes of all segments and of all payload files."""

    session: str
    workspace: str
    started_at: datetime | None
    last_at: datetime | None
    last: int
    segments_bytes: int
    format: str = "agentd.manifest/1"
    closed: bool = False
    payloads_bytes: int = 0


def decode_manifest(data: bytes | None) -> Manifest | None:
    """What a manifest's bytes say; None when they are none. Times without a zone are taken as UTC."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if manifest is None:
        return None
    return structs.replace(manifest, started_at=_zoned(manifest.started_at), last_at=_zoned(manifest.last_at))


def _zoned(at: datetime | None) -> datetime | None:
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


def write_manifest(disk: Disk, dir_fd: int, manifest: Manifest) -> OSError | None:
    """Replace the manifest atomically. A failure is told, and harmless: it is a cache."""
    try:
        try:
            disk.unlink(_TEMPORARY, dir_fd)
        except FileNotFoundError:
            pass
        fd = disk.create(_TEMPORARY, dir_fd)
        try:
            data = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
            if disk.write(fd, data) != len(data):
                raise OSError(28, "the manifest was cut short")
        finally:
            disk.close(fd)
        disk.replace(_TEMPORARY, MANIFEST_NAME, dir_fd)
    except OSError as exc:
        return exc
    return None


def parse_digests(data: bytes | None) -> dict[int, str]:
    """Segment number → SHA-256 hex, of every line that is whole; the newest line of a segment counts."""
    return {int(name): digest for name, digest in _lines(data) if len(name) < _PAYLOAD_NAME}


def parse_payload_digests(data: bytes | None) -> dict[str, str]:
    """Payload id → SHA-256 hex, the same way."""
    return {name: digest for name, digest in _lines(data) if len(name) == _PAYLOAD_NAME}


def digests_head(data: bytes | None) -> str | None:
    """The head of the chain over all whole lines, computed anew; None when there are none."""
    head: str | None = None
    for _, digest in _lines(data):
        head = chain(head or "", digest)
    return head


def _lines(data: bytes | None) -> Iterator[tuple[str, str]]:
    for line in (data or b"").split(b"\n"):
        match = _LINE.match(line)
        if match:
            yield match[1].decode(), match[2].decode()


def chain(previous: str, digest: str) -> str:
    """The next chain value."""
    return hashlib.sha256(f"{previous}{digest}".encode()).hexdigest()


def segment_digest(dir_fd: int, number: int) -> str | None:
    """SHA-256 of a segment's file in hex; None when it cannot be read."""
    return file_digest(dir_fd, segment_name(number))


def file_digest(dir_fd: int, name: str) -> str | None:
    """SHA-256 of a plain file in hex; None when it is none, or cannot be read."""
    try:
        fd = open_plain(name, dir_fd)
    except OSError:
        return None
    try:
        digest = hashlib.sha256()
        while chunk := os.read(fd, _CHUNK):
            digest.update(chunk)
        return digest.hexdigest()
    except OSError:
        return None
    finally:
        os.close(fd)


def digest_lines(head: str | None, fresh: Iterable[tuple[str, str]]) -> bytes:
    """The lines to append for (segment number or payload id, digest), after a file whose chain ends in `head`."""
    lines: list[str] = []
    for name, digest in fresh:
        head = chain(head or "", digest)
        lines.append(f"{name} {digest} {head}\n")
    return "".join(lines).encode()


def note_digests(disk: Disk, dir_fd: int) -> OSError | None:
    """Append the SHA-256 of every segment, then of every payload, that has none yet (off the loop, when a recording closes)."""
    noted = read_small(DIGESTS_NAME, dir_fd, DIGESTS_MAX) or b""
    try:
        names = disk.names(dir_fd)
        fresh = list(_fresh_segments(names, dir_fd, noted))
        if PAYLOADS in names:
            fresh += _fresh_payloads(disk, dir_fd, noted)
        if not fresh:
            return None
        try:
            fd = disk.create(DIGESTS_NAME, dir_fd)
        except FileExistsError:
            fd = disk.append(DIGESTS_NAME, dir_fd)
        try:
            torn = b"" if noted.endswith(b"\n") or not noted else b"\n"  # a line cut by a full disk stays one line
            disk.write(fd, torn + digest_lines(digests_head(noted), fresh))
        finally:
            disk.close(fd)
    except OSError as exc:
        return exc
    return None


def undigested(names: Iterable[str], noted: bytes | None) -> list[int]:
    """The segments among a directory's names that have no digest yet, ascending."""
    found = [parsed for parsed in map(segment_number, names) if parsed]
    return sorted({number for number, kind in found if kind == "jsonl"} - set(parse_digests(noted)))


def _fresh_segments(names: Iterable[str], dir_fd: int, noted: bytes) -> Iterator[tuple[str, str]]:
    for number in undigested(names, noted):
        digest = segment_digest(dir_fd, number)
        if digest:
            yield str(number), digest


def _fresh_payloads(disk: Disk, dir_fd: int, noted: bytes) -> Iterator[tuple[str, str]]:
    try:
        fd = disk.open_dir(PAYLOADS, dir_fd, create=False)
    except OSError:
        return  # something else in its place
    try:
        for name in sorted(set(filter(ID.match, disk.names(fd))) - set(parse_payload_digests(noted))):
            digest = file_digest(fd, name)
            if digest:
                yield name, digest
    finally:
        disk.close(fd)
