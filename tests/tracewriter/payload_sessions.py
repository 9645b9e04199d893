"""Sessions with payload files, written by hand as FORMAT.md says: no writer of ours has a part in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct
from xxhash import xxh3_64_intdigest

from tests.strategies import SESSION
from tracewriter.manifest import chain
from tracewriter.payload import PAYLOADS, PayloadRef, encode_payload_seal, head_of, payload_id
from tracewriter.segment import Header, SealEntry, encode_entry, encode_slot0

KEY = b"k" * 32
_TIME = "2026-11-29T20:45:01.123456Z"


class Body(Struct, frozen=True):
    """A body that is in a payload file."""

    data: bytes
    is_json: bool = False

    @property
    def id(self) -> str:
        return payload_id(KEY, self.data)

    @property
    def ref(self) -> PayloadRef:
        text = self.data.decode()
        return PayloadRef(self.id, len(self.data), len(text), head_of(text), "json" if self.is_json else UNSET)


def record(seq: int, data: object, name: str = "some.tool.observed") -> bytes:
    """One stored line."""
    fields = {"seq": seq, "ts": _TIME, "event": name, "session": SESSION, "data": data}
    return msgspec.json.encode(fields) + b"\n"


def put(directory: Path, body: Body) -> Path:
    """Store a body's file."""
    place = directory / PAYLOADS
    place.mkdir(mode=0o700, exist_ok=True)
    path = place / body.id
    path.write_bytes(body.data)
    return path


def put_segment(directory: Path, number: int, first: int, lines: Sequence[bytes], slots: Sequence[Body] = ()) -> None:
    """A segment whose two ranges (the header with the first line, the rest) and these payloads are sealed."""
    segment_id = 0xABCD00 + number
    header = Header(number, f"{segment_id:016x}", SESSION, "agentd.trace/1", "4a6ea9920d2bec6c", first - 1, "open")
    head = msgspec.json.encode(header) + b"\n" + lines[0]
    rest = b"".join(lines[1:])
    (directory / f"{number:06d}.jsonl").write_bytes(head + rest)
    seals = [
        encode_slot0(number, segment_id),
        encode_entry(SealEntry(0, len(head), 1, first, xxh3_64_intdigest(head)), segment_id),
        *(encode_payload_seal(body.id, body.data, segment_id) for body in slots),
    ]
    if rest:
        entry = SealEntry(len(head), len(rest), len(lines) - 1, first + len(lines) - 1, xxh3_64_intdigest(rest))
        seals.append(encode_entry(entry, segment_id))
    (directory / f"{number:06d}.seal").write_bytes(b"".join(seals))


def put_digests(directory: Path) -> str:
    """A `digests` file of all that is there; its head."""
    head, lines = "", []
    segments = [(str(int(path.stem)), path) for path in sorted(directory.glob("*.jsonl"))]
    for name, path in [*segments, *((path.name, path) for path in sorted((directory / PAYLOADS).iterdir()))]:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        head = chain(head, digest)
        lines.append(f"{name} {digest} {head}\n")
    (directory / "digests").write_text("".join(lines))
    return head


ONE = Body(b"the first body")
TWO = Body(b'{"the":["second",2]}', is_json=True)


def a_session(root: Path, *, digests: bool = False) -> Path:
    """Two segments of three records; the first names ONE twice, the second TWO, and each seals the other's."""
    directory = root / SESSION
    directory.mkdir(parents=True)
    first = [record(1, {"n": 1}), record(2, {"output": ONE.ref}), record(3, {"again": [ONE.ref]})]
    put_segment(directory, 1, 1, first, [TWO])
    put_segment(directory, 2, 4, [record(4, {"n": 4}), record(5, {"n": 5}), record(6, {"input": TWO.ref})], [ONE])
    put(directory, ONE)
    put(directory, TWO)
    if digests:
        put_digests(directory)
    return directory


def flips(path: Path) -> range:
    """Every bit of a file, by number."""
    return range(path.stat().st_size * 8)


def flip(path: Path, data: bytes, bit: int) -> None:
    """Write the bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)


def plant(kind: str, path: Path, outside: Path) -> None:
    """Something that is no payload file, in its place."""
    outside.write_bytes(b"a secret")
    match kind:
        case "hard link":
            path.hardlink_to(outside)
        case "symlink":
            path.symlink_to(outside)
        case "dangling symlink":
            path.symlink_to(outside / "nothing")
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()


PLANTED = ("hard link", "symlink", "dangling symlink", "fifo", "directory")
