"""What the tests of payloads on disk share: bodies, the frames that carry them, and what has to be there afterwards."""

from __future__ import annotations

import msgspec

from tests.fakes import FaultyDisk
from tests.tracewriter.harness import (
    Answer,
    Writer,
    broken_references,
    covered,
    damage,
    events,
    naming,
    parts,
    read_all,
)
from tracewriter import reader
from tracewriter.manifest import Manifest, decode_manifest
from tracewriter.payload import decode_payload_seal
from tracewriter.protocol import Frame, Kind

P, Q = "0123456789abcdef" * 2, "fedcba9876543210" * 2
BODY, OTHER = b"words of a body, " * 100, b"another one; " * 90
ACK_2 = [Answer(Kind.ACK, 2)]


def disk_of(writer: Writer) -> FaultyDisk:
    assert isinstance(writer.disk, FaultyDisk)
    return writer.disk


def stored(writer: Writer) -> dict[str, bytes]:
    """What is in payloads/."""
    directory = writer.directory / "payloads"
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.is_dir() else {}


def with_body(first: int, payload: str = P, body: bytes = BODY) -> list[Frame]:
    return [*parts(first, payload, body), events(first, naming(first, payload))]


def slots(writer: Writer, number: int = 1) -> list[tuple[str, int]]:
    """(beginning of the id, size) of the payload slots of a segment's seal file."""
    header = msgspec.json.decode((writer.directory / f"{number:06d}.jsonl").read_bytes().partition(b"\n")[0])
    data = (writer.directory / f"{number:06d}.seal").read_bytes()
    found = [decode_payload_seal(data[at : at + 32], int(header["id"], 16)) for at in range(32, len(data), 32)]
    return [(seal.prefix.hex(), seal.size) for seal in found if seal is not None]


def manifest_of(writer: Writer) -> Manifest:
    manifest = decode_manifest((writer.directory / "manifest.json").read_bytes())
    assert manifest is not None
    return manifest


def files_bytes(writer: Writer) -> int:
    """Of segments and payloads."""
    return sum(
        path.stat().st_size for path in [*writer.directory.glob("*.jsonl"), *writer.directory.glob("payloads/*")]
    )


def whole(writer: Writer, last: int) -> None:
    """1 to last are there once, nothing looks damaged, no record names what is not there."""
    found, _ = read_all(writer.directory)
    assert covered(found) == list(range(1, last + 1))
    assert damage(reader.verify(writer.directory)) == []
    assert broken_references(writer.directory) == []
