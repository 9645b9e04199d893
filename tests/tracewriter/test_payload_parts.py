"""Bodies put together from parts and redacted whole: any cut, any loss, bounded memory, never a secret in what is stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import clean_text
from tests.tracewriter.harness import parts
from tracewriter.config import KIB, MIB
from tracewriter.errors import ProtocolError
from tracewriter.payload import MAX_PAYLOAD
from tracewriter.payload_parts import UNDECODABLE, Memory, Parts, Whole, parse_part, redacted_whole
from tracewriter.protocol import Frame, Kind
from tracewriter.redact import Redactor

P, Q = "0123456789abcdef" * 2, "fedcba9876543210" * 2
SECRET = "sk-live0123456789abcdefghij"


def memory(limit: int = 32 * MIB) -> Memory:
    return Memory(limit, 30.0)


def collect(held: Parts, frames: list[Frame]) -> Whole | None:
    """The body, when these frames complete it."""
    for frame in frames:
        part = parse_part(frame)
        if held.goes_on(part) and not held.add(part, 0.0) and part.last:
            return held.take_whole()
    return None


def redacted(body: bytes, *, json: bool = False, secrets: tuple[str, ...] = ()) -> bytes:
    return redacted_whole(Whole(1, P, json, bytearray(body)), Redactor(secrets))


@given(st.binary(max_size=300), st.integers(1, 100))
def test_any_cut_into_parts_gives_the_body_again(body: bytes, size: int) -> None:
    room = memory()
    whole = collect(Parts(room), parts(1, P, body, size=size, json=True))
    assert whole is not None
    assert (bytes(whole.body), whole.payload, whole.json) == (body, P, True)
    assert room.used == len(body)


@given(st.lists(st.integers(0, 5), max_size=12))
def test_parts_in_any_order_make_a_body_only_when_they_come_in_theirs(order: list[int]) -> None:
    frames = parts(1, P, bytes(range(60)), size=10)
    held = Parts(memory())
    found = [whole for at in order if (whole := collect(held, [frames[at]])) is not None]
    assert all(bytes(whole.body) == bytes(range(60)) for whole in found)
    text = "".join(map(str, order))
    assert len(found) == text.count("012345")


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.PAYLOAD, 1, 1, 1, b""),
        Frame(Kind.PAYLOAD, 1, 1, 1, P[:-1].encode()),
        Frame(Kind.PAYLOAD, 1, 1, 1, b"../../../../../../../../etc/passwd"),
        Frame(Kind.PAYLOAD, 1, 1, 1, P.upper().encode()),
        Frame(Kind.PAYLOAD, 1, 1, 1, b"\xff" * 40),
        Frame(Kind.PAYLOAD, 1, 0, 1, P.encode()),
    ],
)
def test_a_part_without_an_id_or_number_ends_the_connection(frame: Frame) -> None:
    with pytest.raises(ProtocolError):
        parse_part(frame)


# --- memory


def test_a_stream_of_parts_that_never_ends_stops_at_the_longest_body() -> None:
    room = memory()
    held = Parts(room)
    said = []
    for number in range(1, 40):
        part = parse_part(Frame(Kind.PAYLOAD, 1, number, 1, P.encode() + bytes(MIB)))
        said.append(held.add(part, 0.0) if held.goes_on(part) else "-")
        assert room.used <= MAX_PAYLOAD
    assert said == [""] * 8 + ["malformed"] + ["-"] * 30
    assert (room.used, held.size) == (0, 0)
    assert held.waits_at == 1


def test_the_bound_is_over_all_sessions_and_who_went_silent_makes_room() -> None:
    room = memory(10 * KIB)
    sessions = [Parts(room) for _ in range(6)]
    for second, held in enumerate(sessions):
        part = parse_part(Frame(Kind.PAYLOAD, 1, 1, 1, P.encode() + bytes(2 * KIB)))
        assert held.goes_on(part)
        assert held.add(part, float(second)) == ("" if second < 5 else "busy")
    assert room.used == 10 * KIB
    late = parse_part(Frame(Kind.PAYLOAD, 1, 1, 1, P.encode() + bytes(2 * KIB)))
    assert sessions[5].goes_on(late)
    assert sessions[5].add(late, 31.5) == ""  # the first two had nothing for 30 s
    assert [held.size for held in sessions] == [0, 0, 2 * KIB, 2 * KIB, 2 * KIB, 2 * KIB]
    assert room.used == 8 * KIB
    for held in sessions:
        held.forget()
    assert room.used == 0


def test_who_was_silent_long_and_goes_on_when_there_is_no_room_loses_all_of_its_body_not_its_beginning() -> None:
    room = memory(100)
    slow, other = Parts(room), Parts(room)
    first, last = parts(1, P, bytes(60), size=30)
    for held, frame, at in ((slow, first, 0.0), (other, parts(1, Q, bytes(60), size=60)[0], 40.0)):
        part = parse_part(frame)
        assert held.goes_on(part)
        assert held.add(part, at) == ""
    part = parse_part(last)
    assert slow.goes_on(part)
    assert slow.add(part, 40.0) == "busy"
    assert not slow.goes_on(part)
    assert (slow.size, room.used) == (0, 60)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([P, Q]), st.integers(1, 3), st.booleans(), st.integers(0, 900)),
        max_size=40,
    )
)
def test_memory_is_what_is_held_and_within_its_bound_whatever_comes(
    moves: list[tuple[int, str, int, bool, int]],
) -> None:
    room = memory(2000)
    sessions = [Parts(room) for _ in range(3)]
    for which, payload, number, last, size in moves:
        held = sessions[which]
        part = parse_part(Frame(Kind.PAYLOAD, 1, number, 1, payload.encode() + bytes(size), last))
        if held.goes_on(part) and not held.add(part, 0.0) and last:
            held.give_back([held.take_whole()])
        assert room.used == sum(one.size for one in sessions) <= 2000


def test_the_first_body_that_failed_must_come_again_whatever_comes_whole_after_it() -> None:
    held = Parts(memory())
    first, second = parts(9, P, b"a" * 20, size=10), parts(9, Q, b"b" * 20, size=10)
    assert collect(held, [first[0], *second]) is not None
    assert held.waits_at == 9
    assert collect(held, first) is not None
    assert held.waits_at == 0


# --- redaction


@given(st.integers(1, len(SECRET) - 1), st.booleans(), st.integers(0, 40))
def test_a_secret_that_two_parts_share_is_redacted(cut: int, json: bool, before: int) -> None:
    text = "x" * before + " " + SECRET + " tail"
    body = msgspec.json.encode({"key": text}) if json else text.encode()
    at = body.index(SECRET.encode()) + cut
    whole = collect(Parts(memory()), parts(1, P, body, size=at, json=json))
    assert whole is not None
    stored = redacted_whole(whole, Redactor())
    assert b"sk-live" not in stored
    assert stored == body.replace(SECRET.encode(), b"[redacted:sk-key]")


@given(clean_text)
def test_a_text_without_a_secret_is_stored_as_it_is(text: str) -> None:
    assert redacted(text.encode()) == text.encode()


def test_exact_values_are_found_also_over_lines_and_beside_quotes() -> None:
    body = 'a "hunter2\nhunter2" b\n'
    assert redacted(body.encode(), secrets=("hunter2\nhunter2",)) == b'a "[redacted:exact]" b\n'


def test_json_is_stored_as_one_line_and_stays_json() -> None:
    body = b'{\n "a": [1, 2.50],\n "b": "' + SECRET.encode() + b'"\n}\n'
    assert redacted(body, json=True) == b'{"a":[1,2.50],"b":"[redacted:sk-key]"}'


@pytest.mark.parametrize(
    ("body", "json"),
    [
        (b"\xff\xfe " + SECRET.encode(), False),
        (b'"\xff ' + SECRET.encode() + b'"', True),
        (b'{"a":' + SECRET.encode(), True),
        (b"", True),
        (b"[1] [2]", True),
        (b"[" * 100_000 + b"]" * 100_000, True),
        (b'{"n":NaN,"a":"\\u0073k-live0123456789abcdefghij"}', True),
        (b'{"a":"\\u0073k-live0123456789abcdefghij","a":1e999999}', True),
    ],
)
def test_what_cannot_be_redacted_is_the_marker_alone(body: bytes, json: bool) -> None:
    stored = redacted(body, json=json)
    assert stored == (b'"' + UNDECODABLE + b'"' if json else UNDECODABLE)


def test_a_body_that_redaction_makes_too_long_is_the_marker_alone() -> None:
    body = b"hunter " * (MAX_PAYLOAD // 7)
    assert redacted(body, secrets=("hunter",)) == UNDECODABLE


def test_a_text_that_talks_about_escapes_is_no_secret() -> None:
    body = b'print("\\u0041\\u006b") # \\u0073k-'
    assert redacted(body) == body
