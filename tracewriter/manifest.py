"""Two small files beside the segments. manifest.json is a cache for lists, replaced atomically and rebuilt when missing or wrong;
`digests` is the memory of what each segment was when its recording was closed: appended, never rebuilt.

A digest line is `<segment> <SHA-256 of the file> <chain>`, where chain is the SHA-256 of the previous line's chain and this
line's digest, in hex: who keeps the last chain value elsewhere can prove that nothing before it was rewritten.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct, structs

from tracewriter.config import MIB
from tracewriter.disk import Disk
from tracewriter.scan import open_plain
from tracewriter.segment import segment_name

MANIFEST_NAME: Final = "manifest.json"
DIGESTS_NAME: Final = "digests"
_TEMPORARY: Final = "manifest.json.new"
_LINE: Final = re.compile(rb"([0-9]{1,9}) ([0-9a-f]{64}) ([0-9a-f]{64})\Z")
_CHUNK: Final = MIB


class Manifest(Struct, frozen=True, kw_only=True):
    """What lists need to know of a session. `last` is the last seq accounted for, segments_bytes the size of all segments."""

    session: str
    workspace: str
    started_at: datetime | None
    last_at: datetime | None
    last: int
    segments_bytes: int
    format: str = "agentd.manifest/1"
    closed: bool = False


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
    digests: dict[int, str] = {}
    for line in (data or b"").split(b"\n"):
        match = _LINE.match(line)
        if match:
            digests[int(match[1])] = match[2].decode()
    return digests


def chained_head(digests: Mapping[int, str]) -> str | None:
    """The head of the chain over these digests in segment order; None when there are none."""
    if not digests:
        return None
    head = ""
    for number in sorted(digests):
        head = chain(head, digests[number])
    return head


def chain(previous: str, digest: str) -> str:
    """The next chain value."""
    return hashlib.sha256(f"{previous}{digest}".encode()).hexdigest()


def segment_digest(dir_fd: int, number: int) -> str | None:
    """SHA-256 of a segment's file in hex; None when it cannot be read."""
    try:
        fd = open_plain(segment_name(number), dir_fd)
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


def digest_lines(known: Mapping[int, str], fresh: Iterable[tuple[int, str]]) -> bytes:
    """The lines to append for segments that were closed since, given those already noted."""
    head = chained_head(known) or ""
    lines: list[str] = []
    for number, digest in fresh:
        head = chain(head, digest)
        lines.append(f"{number} {digest} {head}\n")
    return "".join(lines).encode()
