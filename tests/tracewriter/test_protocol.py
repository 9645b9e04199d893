"""Frames: where the stream is cut does not matter, every wrong header is found, memory is bounded."""

from __future__ import annotations

import itertools
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewriter.config import MAX_FRAME
from tracewriter.errors import ProtocolError
from tracewriter.protocol import (
    FLAG_LAST,
    HEADER,
    HEADER_BYTES,
    Flushed,
    Frame,
    FrameDecoder,
    Hello,
    Kind,
    Nack,
    Open,
    Refused,
    Status,
    Welcome,
    decode_body,
    encode,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
frames = st.builds(
    lambda kind, channel, count, first, body, flags: Frame(
        kind,
        channel,
        count or (kind is Kind.EVENTS),
        first,
        body or (b"x" if kind is Kind.EVENTS else b""),
        flags if kind is Kind.PAYLOAD else 0,
    ),
    st.sampled_from(Kind),
    uint32,
    uint32,
    uint64,
    st.binary(max_size=60),
    st.integers(0, FLAG_LAST),
)


def wire(frame: Frame) -> bytes:
    return encode(
        frame.kind,
        channel=frame.channel,
        count=frame.count,
        first=frame.first,
        body=bytes(frame.body),
        flags=frame.flags,
    )


def header(
    length: int = 0, kind: int = 9, flags: int = 0, zero: int = 0, channel: int = 1, count: int = 1, first: int = 1
) -> bytes:
    return struct.pack("<IBBHIIQ", length, kind, flags, zero, channel, count, first)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 600), max_size=8))
def test_any_cut_of_any_stream_gives_the_same_frames(sent: list[Frame], places: list[int]) -> None:
    data = b"".join(map(wire, sent))
    decoder = FrameDecoder()
    assert [frame for piece in cut(data, places) for frame in decoder.feed(piece)] == sent
    assert decoder.rest == b""
    bytewise = FrameDecoder()
    assert [frame for at in range(len(data)) for frame in bytewise.feed(data[at : at + 1])] == sent


@given(st.lists(frames, max_size=4), st.integers(0, 400))
def test_parsing_a_shared_buffer_gives_the_same_frames_as_views(sent: list[Frame], place: int) -> None:
    data = b"".join(map(wire, sent))
    decoder = FrameDecoder()
    got: list[Frame] = []
    for piece in cut(data, [place]):
        buffer = memoryview(bytearray(decoder.rest + piece))
        got += [msgspec.structs.replace(frame, body=bytes(frame.body)) for frame in decoder.parse(buffer)]
    assert got == sent


WRONG = {
    "a kind that does not exist": header(kind=18),
    "kind zero": header(kind=0),
    "flags": header(flags=1),
    "flags of a payload": header(kind=8, flags=4),
    "reserved bytes": header(zero=1),
    "too long": header(length=MAX_FRAME + 1),
    "far too long": header(length=2**32 - 1, kind=6),
    "EVENTS without a line": header(kind=6, count=0, length=1) + b"\n",
    "EVENTS without a body": header(kind=6, count=1, length=0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_header_is_refused_wherever_it_is_cut_and_what_came_before_it_is_kept(name: str) -> None:
    good = Frame(Kind.EVENTS, 1, 1, 1, b"line\n")
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(WRONG[name])
    for place in range(len(wire(good)) + HEADER_BYTES):
        decoder = FrameDecoder()
        got: list[Frame] = []

        def feed_all(decoder: FrameDecoder = decoder, got: list[Frame] = got, place: int = place) -> None:
            for piece in [*cut(wire(good) + WRONG[name], [place]), b""]:
                got += decoder.feed(piece)

        with pytest.raises(ProtocolError):
            feed_all()
        assert got == [good]


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_give_frames_or_a_protocol_error(data: bytes) -> None:
    decoder = FrameDecoder()
    try:
        frames = decoder.feed(data)
    except ProtocolError:
        return
    assert b"".join(map(wire, frames)) + decoder.rest == data


def test_the_longest_frame_passes_and_no_more_than_one_is_ever_kept() -> None:
    longest = Frame(Kind.EVENTS, 1, 1, 1, b"x" * (MAX_FRAME - 1) + b"\n")
    data = wire(longest)
    decoder = FrameDecoder()
    got: list[Frame] = []
    for at in range(0, len(data) * 2, 100_000):
        got += decoder.feed((data * 2)[at : at + 100_000])
        assert len(decoder.rest) < HEADER_BYTES + MAX_FRAME
    assert got == [longest, longest]


def test_the_header_is_24_bytes_little_endian_in_the_documented_order() -> None:
    data = encode(Kind.EVENTS, channel=3, count=2, first=18, body=b"a\nb\n")
    assert data == bytes.fromhex("04000000 06 00 0000 03000000 02000000 1200000000000000") + b"a\nb\n"
    assert HEADER.size == 24


BODIES = (
    Hello("0123456789abcdef", 1),
    Welcome(1),
    Open("s", "/w", 3, 4, "stream", ("secret",), {"a": "b"}),
    Open("s", "/w"),
    Refused("busy", "held", 250),
    Nack("ENOSPC", 250),
    Flushed(True),
    Status("1", 2, "/r", "ok", "", 0.5, 1, "interval", ()),
)


@pytest.mark.parametrize("body", BODIES)
def test_a_control_body_comes_back_as_it_was_and_unknown_fields_are_ignored(body: msgspec.Struct) -> None:
    frame = FrameDecoder().feed(encode(Kind.STATUS, body=body))[0]
    assert decode_body(frame.body, type(body)) == body
    newer = msgspec.json.encode(msgspec.to_builtins(body) | {"added_later": [1]})
    assert decode_body(newer, type(body)) == body


@given(
    st.binary(max_size=60) | st.sampled_from([b"", b"[" * 100_000, b'{"producer":1}', b"null", b"\xff", b'"\\ud800"'])
)
def test_a_control_body_that_cannot_be_read_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(data, Hello)
