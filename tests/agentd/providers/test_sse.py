"""The SSE decoder: frames do not depend on cuts, line ends or a tidy end, and memory is bounded."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.sse import Frame, Item, SSEDecoder, Stray


def frames(body: bytes, cuts: list[int], max_line_bytes: int = 8 * 1024 * 1024) -> tuple[list[Item], bool]:
    decoder = SSEDecoder(max_line_bytes)
    items: list[Item] = []
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(edges):
        items += decoder.feed(body[start:end])
    return items + decoder.end(), decoder.overflowed


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_gives_the_same_frames(end: str) -> None:
    body = end.join(
        ["event: ping", "data: a", "data:b", "", ": comment", "id: 7", "retry: 1", "data: c", "", ""]
    ).encode()
    assert frames(body, [])[0] == [Frame("ping", b"a\nb"), Frame("", b"c")]
    assert frames(body, list(range(len(body))))[0] == [Frame("ping", b"a\nb"), Frame("", b"c")]


def test_unicode_separators_are_content() -> None:
    data = "a\u2028b\u2029c\u0085d\x0be\x0cf".encode()
    assert frames(b"data: " + data + b"\n\n", [])[0] == [Frame("", data)]


def test_at_most_one_space_is_stripped() -> None:
    assert frames(b"data:  x\n\ndata:y\n\n", [])[0] == [Frame("", b" x"), Frame("", b"y")]


def test_a_frame_counts_without_its_blank_line() -> None:
    assert frames(b"data: a\n\ndata: b", [])[0] == [Frame("", b"a"), Frame("", b"b")]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    body = b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n"
    assert frames(body, [1, 2, 3])[0] == [Frame("", b"a"), Frame("", b"\xef\xbb\xbfb")]


def test_frames_without_data_are_not_given_and_their_event_name_does_not_stick() -> None:
    assert frames(b"event: ping\n\ndata:\n\nevent: x\ndata: \n\ndata: a\n\n", [])[0] == [Frame("", b"a")]


def test_lines_outside_the_format_are_handed_on() -> None:
    body = b'error: {"message":"x"}\n\n{"error":1}'
    assert frames(body, [])[0] == [Stray(b'error: {"message":"x"}'), Stray(b'{"error":1}')]


def test_a_frame_is_given_as_soon_as_its_blank_line_is_there_with_cr_alone() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\r") == [Frame("", b"a")]
    assert decoder.feed(b"\ndata: b\r\n\r") == [Frame("", b"b")]
    assert decoder.feed(b"\n") == []


@pytest.mark.parametrize(
    "body", [b"data: " + b"x" * 200, b"data: " + b"x" * 200 + b"\n\n", b"junk" * 60 + b"\n", b"data: xxxxxxxxx\n" * 30]
)
def test_a_line_or_frame_over_the_bound_stops_the_decoder_wherever_it_is_cut(body: bytes) -> None:
    body = b"data: before\n\n" + body + b"\n\ndata: after\n\n"
    whole = frames(body, [], 100)
    assert whole == ([Frame("", b"before")], True)
    assert frames(body, list(range(len(body))), 100) == whole


def test_an_endless_line_is_not_held() -> None:
    decoder = SSEDecoder(1000)
    for _ in range(100):
        decoder.feed(b"x" * 100)
    assert decoder.overflowed
    assert decoder.feed(b"data: a\n\n") + decoder.end() == []


PIECES = [
    b"data: ",
    b"data:",
    b"event: e",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b": c",
    b"{",
    "é🦀".encode(),
    b"\xef\xbb\xbf",
    b"error: x",
    b"\x00",
]


@given(
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=5), max_size=40).map(b"".join), st.lists(st.integers(0, 300))
)
def test_any_cut_of_any_bytes_gives_the_same_frames(body: bytes, cuts: list[int]) -> None:
    assert frames(body, cuts, 30) == frames(body, [], 30)
    assert frames(body, cuts) == frames(body, [])


def taken_shortly(pieces: list[bytes], max_line_bytes: int) -> tuple[list[Item], bool]:
    """The frames as a wire takes them that uses the short ways where it can."""
    decoder = SSEDecoder(max_line_bytes)
    items: list[Item] = []
    for piece in pieces:
        only = decoder.single(piece)
        if only is not None:
            items.append(Frame("", only))
            continue
        for line in decoder.several(piece):
            if not line.startswith(b"data: {"):
                break
            items.append(Frame("", line[6:]))
            piece = piece[len(line) + 2 :]
        items += decoder.feed(piece)
    return items + decoder.end(), decoder.overflowed


USUAL = [
    b'data: {"a":1}\n\n',
    b'data: {"a":1}\r\n\r\n',
    b"data: {}\n\ndata: {}\n\n",
    b"data: {}\n\ndata: [DONE]\n\n",
    b"data: {",
]


@given(
    st.lists(
        st.lists(st.sampled_from(USUAL) | st.sampled_from(PIECES), max_size=5).map(b"".join) | st.sampled_from(USUAL),
        max_size=12,
    ),
    st.sampled_from([12, 30, 1000]),
)
def test_the_short_ways_give_the_same_frames(pieces: list[bytes], max_line_bytes: int) -> None:
    assert taken_shortly(pieces, max_line_bytes) == frames(b"".join(pieces), [], max_line_bytes)


def test_the_short_ways_are_taken_between_frames_only() -> None:
    decoder = SSEDecoder()
    usual = b'data: {"a":1}\n\n'
    assert decoder.single(usual) is None  # a body may begin with a BOM: the first frame goes the long way
    assert decoder.feed(usual) == [Frame("", b'{"a":1}')]
    assert decoder.single(usual) == decoder.single(b'data: {"a":1}\r\n\r\n') == b'{"a":1}'
    assert decoder.several(usual * 2 + b"data") == [b'data: {"a":1}'] * 2
    for odd in (
        b"data: {}\n",
        b"data: {}\r\r\n",
        b"data: {\r}\n\n",
        b"data: []\n\n",
        b"event: x\ndata: {}\n\n",
        b"data: {}\n\n\n",
        b"",
    ):
        assert decoder.single(odd) is None
    assert decoder.feed(b"event: x\n") == []
    assert decoder.single(usual) is None
    assert decoder.several(usual) == []
