"""Bodies too long for a record: how they are named, what stands for them, and how their seals look.

A text (or a piece of JSON) over PAYLOAD_BYTES becomes a file of its own, `payloads/<id>`, in place before the record that
names it. In the record stands `PayloadRef`. The id is BLAKE2b with a random key per producer life over the bytes as they were
before redaction: the same body is stored once per life, and an id tells nothing to somebody who tries likely contents.

Seals: a slot of the segment's seal file with `offset` 0xFFFFFFFF, which no range can have (FORMAT.md).
"""

from __future__ import annotations

import re
from _blake2 import blake2b  # hashlib would bring OpenSSL along: 3 MiB for the writer, which never hashes this way
from struct import Struct as Layout
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from xxhash import xxh3_64_intdigest

from tracewriter.config import KIB, MIB

PAYLOADS: Final = "payloads"  # the directory's name
PAYLOAD_BYTES: Final = 16 * KIB  # fields longer than this are moved out
MAX_PAYLOAD: Final = 8 * MIB  # before and after redaction; a record's body is cut to MAX_BODY before that
HEAD_CHARS: Final = 200
ID_BYTES: Final = 16
ID: Final = re.compile(r"[0-9a-f]{32}\Z")
PART_SUFFIX: Final = ".part"  # of a file that is being written
# How a reference stands in a stored line. Inside a string its quotes would be escaped, so this is always structure.
REFERENCE: Final = re.compile(
    rb'\{"payload":"([0-9a-f]{32})","bytes":([0-9]{1,10}),"chars":([0-9]{1,10}),"head":"(?:[^"\\]|\\.){0,2400}+"(?:,"type":"json")?\}'
)
_SLOT: Final = Layout("<IIIIQQ")
_MARK: Final = 0xFFFFFFFF


class PayloadRef(Struct, frozen=True, gc=False, omit_defaults=True):
    """What stands in a record for a body that was moved out. bytes (UTF-8) and chars (code points) are those of the original;
    head: its beginning, up to 200 characters, cut at white space. type "json": the body is JSON, otherwise it is text.
    """

    payload: str
    bytes: int
    chars: int
    head: str
    type: str | UnsetType = UNSET


class PayloadSeal(Struct, frozen=True, gc=False):
    """What a seal slot says of a payload file: the first half of its id, its stored size and the hash of its stored bytes."""

    prefix: bytes
    size: int
    digest: int


def payload_id(key: bytes, data: bytes) -> str:
    """The id of a body under this life's key: 32 hex digits."""
    return blake2b(data, digest_size=ID_BYTES, key=key).hexdigest()


def head_of(text: str) -> str:
    """The beginning of a text, cut at white space so that no secret is cut in two; "" when there is none in reach."""
    if len(text) <= HEAD_CHARS:
        return text
    for at in range(HEAD_CHARS, 0, -1):
        if text[at].isspace() or text[at - 1].isspace():
            return text[:at].rstrip()
    return ""


def seal_of(payload: str, stored: bytes) -> PayloadSeal:
    """What is to be sealed of a payload file that holds `stored`."""
    return PayloadSeal(bytes.fromhex(payload[:16]), len(stored), xxh3_64_intdigest(stored))


def encode_seal(seal: PayloadSeal, segment_id: int) -> bytes:
    """The seal slot, bound to the segment's id as every slot is."""
    prefix = int.from_bytes(seal.prefix, "big")
    blank = _SLOT.pack(_MARK, seal.size, 0, 0, prefix, seal.digest)
    check = xxh3_64_intdigest(blank, seed=segment_id) & 0xFFFFFFFF
    return _SLOT.pack(_MARK, seal.size, 0, check, prefix, seal.digest)


def encode_payload_seal(payload: str, stored: bytes, segment_id: int) -> bytes:
    """The seal slot of a payload file that holds `stored`."""
    return encode_seal(seal_of(payload, stored), segment_id)


def decode_payload_seal(slot: bytes, segment_id: int) -> PayloadSeal | None:
    """The payload seal in a slot; None when it is none, or its check fails for this segment."""
    mark, size, records, check, prefix, digest = _SLOT.unpack(slot)
    blank = _SLOT.pack(mark, size, records, 0, prefix, digest)
    if mark != _MARK or records or xxh3_64_intdigest(blank, seed=segment_id) & 0xFFFFFFFF != check:
        return None
    return PayloadSeal(prefix.to_bytes(8, "big"), size, digest)
