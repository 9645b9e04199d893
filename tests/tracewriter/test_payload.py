"""Payload ids, heads and seal slots, as values."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tracewriter.payload import (
    HEAD_CHARS,
    ID,
    REFERENCE,
    PayloadRef,
    PayloadSeal,
    decode_payload_seal,
    encode_payload_seal,
    head_of,
    payload_id,
)
from tracewriter.segment import SealEntry, decode_entry, encode_entry


@given(st.text(max_size=600))
def test_a_head_is_a_beginning_that_ends_between_words(text: str) -> None:
    head = head_of(text)
    assert text.startswith(head)
    assert len(head) <= HEAD_CHARS
    rest = text[len(head) :]
    assert not rest or not head or rest[0].isspace()


def test_a_text_without_white_space_has_no_head() -> None:
    assert head_of("x" * 500) == ""


def test_the_same_body_has_the_same_id_under_one_key_and_another_under_another() -> None:
    assert payload_id(b"k" * 32, b"body") == payload_id(b"k" * 32, b"body")
    assert payload_id(b"k" * 32, b"body") != payload_id(b"j" * 32, b"body")
    assert ID.match(payload_id(b"k" * 32, b""))


@given(st.text(max_size=300), st.booleans())
def test_every_reference_is_found_in_its_line_and_its_text_is_not(head: str, json: bool) -> None:
    ref = PayloadRef("ab" * 16, 70_000, 69_000, head_of(head), "json" if json else msgspec.UNSET)
    line = msgspec.json.encode({"data": {"output": ref}})
    assert [found[1] for found in REFERENCE.finditer(line)] == [b"ab" * 16]
    quoted = msgspec.json.encode({"data": {"output": line.decode()}})
    assert not REFERENCE.search(quoted)


@given(st.binary(max_size=100), st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_a_flipped_bit_in_a_slot_is_noticed(stored: bytes, segment_id: int, bit: int) -> None:
    slot = encode_payload_seal("0123456789abcdef" * 2, stored, segment_id)
    seal = decode_payload_seal(slot, segment_id)
    assert isinstance(seal, PayloadSeal)
    assert (seal.prefix.hex(), seal.size) == ("0123456789abcdef", len(stored))
    flipped = (int.from_bytes(slot, "little") ^ (1 << bit)).to_bytes(32, "little")
    assert decode_payload_seal(flipped, segment_id) is None
    assert decode_payload_seal(slot, segment_id ^ 1) is None


def test_a_range_is_no_payload() -> None:
    slot = encode_entry(SealEntry(0, 10, 1, 1, 7), 42)
    assert decode_payload_seal(slot, 42) is None
    assert decode_entry(slot, 42) is not None
