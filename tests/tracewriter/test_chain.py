"""The numbers of a session as pure decisions: what is believed, and what a number that stands alone is worth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import SESSION, drop_line_of, line_of
from tracewriter.chain import Chain
from tracewriter.findings import Found, Note
from tracewriter.scan import Line
from tracewriter.segment import Header


def fed(*items: Header | Line | Note) -> tuple[list[int], list[tuple[str, int | None, int | None]]]:
    chain = Chain(SESSION)
    out = [*chain.feed(items), *chain.finish()]
    found = [item.record.seq for item in out if isinstance(item, Found)]
    return found, [(note.kind, note.first, note.last) for note in out if isinstance(note, Note)]


def lines(*seqs: int, state: str = "unsealed", segment: int = 1) -> list[Line]:
    return [Line(segment, 100 * (at + 1), line_of(seq)[:-1], state) for at, seq in enumerate(seqs)]


def header(after: int, segment: int = 2, lost: int = 0) -> Header:
    return Header(segment, "0" * 16, SESSION, "agentd.trace/1", "0" * 16, after, "open", lost)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=30), st.sampled_from(["verified", "unsealed"]))
def test_records_and_drops_that_continue_are_believed_without_a_word(steps: list[tuple[bool, int]], state: str) -> None:
    seq = 1
    items: list[Line] = []
    expected: list[int] = []
    for is_drop, count in steps:
        data = drop_line_of(seq, seq + count - 1) if is_drop else line_of(seq)
        items.append(Line(1, 100 * (len(items) + 1), data[:-1], state))
        expected.append(seq)
        seq += count if is_drop else 1
    assert fed(*items) == (expected, [])


@given(st.integers(2, 30), st.integers(1, 60), st.integers(3, 30))
def test_one_wrong_number_is_one_damaged_line_and_nobody_else_is_accused(at: int, claims: int, total: int) -> None:
    seqs = list(range(1, total + 1))
    at = min(at, total - 1)
    if claims in (at, at + 1):
        claims = total + 40
    seqs[at - 1] = claims
    found, notes = fed(*lines(*seqs))
    assert found == [seq for seq in range(1, total + 1) if seq != at]
    assert [kind for kind, _, _ in notes] == ["damaged"]


def test_a_gap_is_believed_when_the_next_record_or_a_header_or_a_seal_confirms_it() -> None:
    gap = ("gap", 3, 5)
    assert fed(*lines(1, 2, 6, 7)) == ([1, 2, 6, 7], [gap])
    assert fed(*lines(1, 2), header(5), *lines(6, segment=2)) == ([1, 2, 6], [gap])
    assert fed(*lines(1, 2), *lines(6, state="verified")) == ([1, 2, 6], [gap])
    assert fed(*lines(1, 2, 6)) == ([1, 2], [("damaged", None, None)])


def test_a_gap_that_the_writer_knew_of_says_so() -> None:
    chain = Chain(SESSION)
    out = [*chain.feed([*lines(1, 2), header(5, lost=5), *lines(6, segment=2)]), *chain.finish()]
    notes = [item for item in out if isinstance(item, Note)]
    assert [note.kind for note in notes] == ["gap"]
    assert "the writer knew" in notes[0].message


def test_damaged_lines_explain_as_many_numbers_and_no_more() -> None:
    bad = Line(1, 900, b"\0\0\0", "unverified")
    assert fed(*lines(1, 2), bad, *lines(4, 5))[1] == [("damaged", None, None)]
    assert fed(*lines(1, 2), bad, bad, *lines(5, 6))[1] == [("damaged", None, None)] * 2
    assert fed(*lines(1, 2), bad, *lines(7, 8))[1] == [("damaged", None, None), ("gap", 3, 6)]


def test_an_unfinished_tail_is_no_damage_and_the_same_before_a_record_is() -> None:
    torn = Line(1, 900, b'{"seq":3,"ts', "unsealed", whole=False)
    assert fed(*lines(1, 2), torn) == ([1, 2], [("unfinished", None, None)])
    assert fed(*lines(1, 2), torn, header(2), *lines(3, segment=2)) == ([1, 2, 3], [("unfinished", None, None)])
    whole = Line(1, 900, b"\0\0\0\0", "unsealed")
    assert [kind for kind, _, _ in fed(*lines(1, 2), whole, *lines(3))[1]] == ["damaged"]


def test_a_record_glued_to_a_stub_is_saved() -> None:
    glued = Line(1, 900, b'{"seq":2,"ts":"20' + line_of(2)[:-1], "unsealed")
    assert fed(*lines(1), glued, *lines(3)) == ([1, 2, 3], [("damaged", None, None)])


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["verified", "unsealed", "unverified"])), max_size=15))
def test_whatever_the_numbers_are_each_record_comes_once_or_is_named(claims: list[tuple[int, str]]) -> None:
    items = [Line(1, 100 * (at + 1), line_of(seq)[:-1], state) for at, (seq, state) in enumerate(claims)]
    chain = Chain(SESSION)
    out = [*chain.feed(items), *chain.finish()]
    offsets = {item.offset for item in out if isinstance(item, Found)}
    notes = [(n.offset or 0, n.length or 0) for n in out if isinstance(n, Note)]  # one note may name several lines
    named = {item.offset for item in items if any(at <= item.offset < at + length for at, length in notes)}
    assert {item.offset for item in items} <= offsets | named
    assert len([item for item in out if isinstance(item, Found)]) == len(offsets)
