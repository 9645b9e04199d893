"""Compressed bodies: the same bytes at any cut, a cut off end noticed, a bomb never held."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.inflate import BadEncodingError, BodyDecoder, body_decoder


def inflated(decoder: BodyDecoder, pieces: list[bytes]) -> bytes:
    return b"".join(piece for data in pieces for piece in decoder.feed(data))


@given(st.binary(max_size=2000), st.integers(1, 50), st.sampled_from(["gzip", "members", "zlib"]))
def test_any_cut_gives_the_same_bytes_and_every_shorter_body_is_not_whole(body: bytes, size: int, kind: str) -> None:
    packed = {
        "gzip": gzip.compress(body),
        "members": gzip.compress(body) + gzip.compress(b"!"),
        "zlib": zlib.compress(body),
    }[kind]
    decoder = body_decoder("deflate" if kind == "zlib" else "gzip")
    assert inflated(decoder, [packed[i : i + size] for i in range(0, len(packed), size)]) == body + b"!" * (
        kind == "members"
    )
    assert decoder.whole
    short = body_decoder("gzip")
    inflated(short, [packed[:-1]])
    assert not short.whole


def test_padding_after_the_last_member_is_nothing() -> None:
    decoder = body_decoder("x-gzip")
    assert inflated(decoder, [gzip.compress(b"a"), b"\0\0"]) == b"a"
    assert decoder.whole


def test_a_bomb_comes_in_pieces() -> None:
    packed = gzip.compress(bytes(50 * 1024 * 1024))
    assert max(len(piece) for piece in body_decoder("gzip").feed(packed)) <= 256 * 1024


def test_damage_and_unknown_encodings_are_errors() -> None:
    with pytest.raises(BadEncodingError, match="damaged"):
        list(body_decoder("gzip").feed(b"no gzip at all"))
    with pytest.raises(BadEncodingError, match="'br'"):
        body_decoder("br")
    assert inflated(body_decoder("identity"), [b"a", b"b"]) == b"ab"
