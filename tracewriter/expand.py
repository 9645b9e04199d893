"""Puts back what was moved out of a record: whole bodies where they are needed, heads with a visible note for display. Pure.

References are replaced in the JSON itself, before a record is decoded, so that every event type has its plain `str` and `Raw`
fields. One pass: what a body contains is content, also when it looks like a reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from msgspec import Raw

from tracewriter import jsonl
from tracewriter.config import MIB
from tracewriter.payload import REFERENCE, PayloadRef

Load: TypeAlias = Callable[[PayloadRef], bytes | None]

# A line of a hostile trace may name the same large file thousands of times. No producer's record is a quarter as long.
MAX_EXPANDED: Final = 64 * MIB

find_marks: Final[Callable[[bytes], list[tuple[int, int, int]]]] = BytesAhoCorasick(
    [b'{"payload":"'], matchkind=MatchKind.LeftmostFirst
).find_matches_as_indexes  # at 30 GB/s, bytes.find at 2
_HEAD_NOTE: Final = re.compile(r"…\[payload: ([0-9,]{1,13}) characters\]\Z")
_NOTE_CHARS: Final = 50  # a note is shorter

_encoder: Final = msgspec.json.Encoder()
_ref_decoder: Final = msgspec.json.Decoder(PayloadRef)


def names_payloads(data: bytes) -> bool:
    """Whether a reference may be in this JSON. False is certain, and costs next to nothing."""
    return bool(find_marks(data))


def expand(data: Raw | bytes, load: Load, *, limit: int = MAX_EXPANDED) -> Raw:
    """The JSON with whole bodies in the places of their references: a string for a text, the JSON itself for JSON.

    `load` gives the stored bytes, None when they cannot be had; then, as for bytes that are not what the reference says, the
    head and `[payload missing]` stand there. Bodies beyond `limit` bytes in all stay heads with their note.
    """
    left = limit

    def body(ref: PayloadRef) -> bytes:
        nonlocal left
        if left <= 0:
            return head(ref)
        stored = load(ref)
        left -= len(stored or b"")
        return head(ref) if left < 0 else whole(ref, stored)

    return replace(data, body)


def heads(data: Raw | bytes) -> Raw:
    """The JSON with, in the place of each reference, a string: its head and how much there is."""
    return replace(data, head)


def replace(data: Raw | bytes, body: Callable[[PayloadRef], bytes]) -> Raw:
    """The JSON with what `body` makes of each reference in its place. What only looks like one is left as it is."""
    text = bytes(data)
    if not names_payloads(text):
        return Raw(text)

    def put(match: re.Match[bytes]) -> bytes:
        try:
            ref = _ref_decoder.decode(match[0])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return match[0]
        return body(ref)

    return Raw(REFERENCE.sub(put, text))


def head(ref: PayloadRef) -> bytes:
    """The JSON string that stands for a body when it is shown."""
    return _encoder.encode(f"{ref.head}…[payload: {ref.chars:,} characters]")


def whole(ref: PayloadRef, stored: bytes | None) -> bytes:
    """The JSON of a whole body from its file's bytes."""
    if stored is not None and is_body(ref, stored):
        return stored if ref.type == "json" else _encoder.encode(stored.decode())
    return _encoder.encode(f"{ref.head}…[payload missing]")


def is_body(ref: PayloadRef, stored: bytes) -> bool:
    """Whether stored bytes are what the reference says: one line of JSON, or UTF-8 text."""
    if ref.type == "json":
        return jsonl.is_json(stored)
    try:
        stored.decode()
    except UnicodeDecodeError:
        return False
    return True


def shown_chars(text: str) -> int | None:
    """How long the body is of which only the head is shown here; None for a text that is all there."""
    match = _HEAD_NOTE.search(text, max(0, len(text) - _NOTE_CHARS))
    return int(match[1].replace(",", "")) if match else None
