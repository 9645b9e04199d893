"""A secret that is split over deltas, at any cut, is in no stored line; and what is stored is the text that came."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentd.deltas import MARK, MAX_HELD_CHARS, MAX_LINE_CHARS, CutJudge, HoldBack, Piece, Streams
from tracewriter.events import (
    Event,
    Failure,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelStreamDelta,
    RunExecuteFinished,
    ToolCallFinished,
    ToolOutputDelta,
    Usage,
)
from tracewriter.redact import Redactor

EXACT: Final = "correct horse battery 9staple"
REDACTOR: Final = Redactor((EXACT,))
JUDGE: Final = CutJudge((EXACT,))

BODY: Final = "\n".join(["MIIEpAIBAAKCAQEA7Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1AbCdEfGhIjKlMn"] * 4)
KEY: Final = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"
TOKEN: Final = "Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1A"

# Secrets as they stand in text, and what of them must be nowhere. Those that the rules do not know (yet) are passed over.
SHAPES: Final = {
    "bearer": (f"Authorization: Bearer {TOKEN}", TOKEN),
    "bearer alone": (f"curl -H 'X: y' with Bearer {TOKEN} in it", TOKEN),
    "basic": ("authorization: Basic dXNlcjpwYXNzd29yZDEyMw==", "dXNlcjpwYXNzd29yZDEyMw"),
    "header in JSON": ('{"Authorization": "Bearer ' + TOKEN + '"}', TOKEN),
    "header in JSON in text": ('{\\"authorization\\":\\"' + TOKEN + '\\"}', TOKEN),
    "sk": (f"key sk-proj-{TOKEN} end", TOKEN),
    "pem": (KEY, BODY[:40]),
    "pem in a line": (KEY.replace("\n", "\\n"), BODY[:40]),
    "pem of openssh": (KEY.replace("RSA", "OPENSSH"), BODY[:40]),
    "exact": (f"it is {EXACT}, you see", "battery 9staple"),
    "password": ("password = hunter2xQ9zzLong", "hunter2xQ9zzLong"),
    "env": (f"DB_PASSWORD={TOKEN}", TOKEN),
    "yaml": (f"api_key: {TOKEN}", TOKEN),
    "json": ('{"client_secret" : "' + TOKEN + '"}', TOKEN),
    "quoted with spaces": ("password: 'blue zebra 7 on tuesday'", "7 on tuesday"),
    "in JSON with spaces": ('{\\"password\\": \\"blue zebra 7 on tuesday\\"}', "7 on tuesday"),
    "cookie": ("Cookie: session=Zq8vTn3Lw0Rk5Yb2Hd7J; last=abcdef1; x=1", "Zq8vTn3Lw0Rk5Yb2Hd7J"),
    "option": (f"mysql --password {TOKEN} db", TOKEN),
    "curl": ("curl -u admin:hunter2xQ9zz https://x.example", "hunter2xQ9zz"),
    "xml": (f"<password>{TOKEN}</password>", TOKEN),
    "url": ("postgres://root:Pa55word9x@db.example/x", "Pa55word9x"),
    "github": ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7e42F292c6912E7710c838347Ae178B4a"),
    "aws": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQ8vTn3Lw0", "wJalrXUtnFEMI"),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "dozjgNryP4J3jVmNHl0w5N"),
}


def redact(text: str) -> str:
    block = REDACTOR.redact(msgspec.json.encode(text) + b"\n")
    return msgspec.json.decode(block, type=str)


KNOWN: Final = [name for name, (text, canary) in SHAPES.items() if canary not in redact(text)]


def pieces_of(parts: list[str]) -> list[Piece]:
    hold = HoldBack(JUDGE)
    return [piece for part in parts for piece in hold.feed(part)] + hold.end()


def check(text: str, parts: list[str], canaries: list[str]) -> list[Piece]:
    """The three promises: no canary in a stored line, the whole text and no more, offsets that are exact."""
    assert "".join(parts) == text
    pieces = pieces_of(parts)
    assert "".join(piece.text for piece in pieces) == text
    at = 0
    for piece in pieces:
        assert (piece.offset, bool(piece.text)) == (at, True)
        at += len(piece.text)
    stored = [redact(piece.text) for piece in pieces]
    for canary in canaries:
        assert all(canary not in line for line in stored), (canary, pieces)
    assert "".join(stored) == redact(text)
    return pieces


def test_the_rules_know_most_of_the_shapes() -> None:
    assert {"bearer", "basic", "sk", "pem", "pem in a line", "exact", "header in JSON"} <= set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("frame", ["{}", "before\n{}\nafter\n", "word {} word", "x" * 30 + "\n  {}\n\n"])
def test_no_secret_survives_a_cut_wherever_it_is(name: str, frame: str) -> None:
    secret, canary = SHAPES[name]
    text = frame.format(secret)
    for cut in range(len(text) + 1):
        check(text, [text[:cut], text[cut:]], [canary])
    check(text, list(text), [canary])


# In a long line the cuts are made at white space: there each shape meets them.
@pytest.mark.parametrize("name", KNOWN)
def test_no_secret_survives_the_cuts_in_a_line_that_does_not_end(name: str) -> None:
    secret, canary = SHAPES[name]
    filler = "lorem ipsum dolor sit amet "
    for shift in range(0, 60, 3):
        text = (filler * 400)[: MAX_LINE_CHARS - len(secret) // 2 - shift] + f" {secret} " + filler * 200
        pieces = check(text, [text[at : at + 7] for at in range(0, len(text), 7)], [canary])
        assert len(pieces) > 1  # it was cut at all


words = st.sampled_from(
    ["a", "def f(x):", "\n", "\n\n", " ", "é\u2028", '"', "\\", "\\n", "=", ":", "-----", "BEGIN ", "\t"]
)
planted = st.sampled_from(KNOWN).map(lambda name: SHAPES[name][0])


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = "".join(draw(st.lists(words | planted.map(lambda secret: f"\n{secret}\n"), max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=20)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cut_texts())
@example((f"a\n{KEY}\nb", ["a\n" + KEY[:-3], KEY[-3:] + "\nb"]))
def test_any_text_with_secrets_cut_anywhere_is_stored_whole_and_without_them(cut: tuple[str, list[str]]) -> None:
    text, parts = cut
    assume(redact(redact(text)) == redact(text))  # that is tested where the rules are
    # In what hypothesis puts around them a shape may be no secret any more: then the whole text says so.
    canaries = [canary for _, canary in SHAPES.values() if canary in text and canary not in redact(text)]
    check(text, parts, canaries)


def test_lines_are_recorded_as_they_end_and_nothing_twice() -> None:
    hold = HoldBack(JUDGE)
    assert hold.feed("one\ntw") == [Piece(0, "one\n")]
    assert hold.feed("o") == []
    assert hold.feed("\n\nthree\nfo") == [Piece(4, "two\n\nthree\n")]
    assert (hold.next_offset, hold.end()) == (17, [Piece(15, "fo")])


def test_a_key_that_does_not_end_is_a_mark_and_what_follows_it_is_recorded() -> None:
    head = "-----BEGIN RSA PRIVATE KEY-----\n"
    line = "MIIEpAIBAAKCAQEA7Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1AbCdEfGhIjKlMnO\n"
    key = head + line * 3_000 + "-----END RSA PRIVATE KEY-----"
    assert len(key) > 2 * MAX_HELD_CHARS
    for size in (1_000, 50_000, len(key)):
        parts = [key[at : at + size] for at in range(0, len(key), size)]
        pieces = pieces_of(["before\n", *parts, "\nafter\n", "end"])
        told = [redact(piece.text) for piece in pieces]
        assert all(line.strip() not in text for text in told)
        assert told[0] == "before\n"
        assert "".join(told).endswith("after\nend")
        assert all(len(piece.text) <= MAX_HELD_CHARS + size for piece in pieces)
        if size < len(key):
            assert Piece(7, MARK.format(len(key) + 1)) in pieces  # up to the end of its last line
    unended = pieces_of(["before\n", *[line if at else head for at in range(3_000)]])
    assert [piece.text for piece in unended] == ["before\n", MARK.format(len(head) + 2_999 * len(line))]


@pytest.mark.parametrize("inside", ["", "-----BEGIN PRIVATE KEY-----"])
def test_a_line_without_a_place_to_cut_is_a_mark_and_a_key_that_begins_in_it_too(inside: str) -> None:
    line = "x1" * MAX_HELD_CHARS + inside
    rest = "\nMIIEpAIBAAKCAQEA7Zq8vTn3\n-----END PRIVATE KEY-----\ngoes on\n" if inside else "\ngoes on\n"
    text = line + rest
    pieces = pieces_of([text[at : at + 500] for at in range(0, len(text), 500)])
    assert "MIIEpAIBAAKCAQEA7Zq8vTn3" not in "".join(piece.text for piece in pieces)
    assert pieces[-1].text.endswith("goes on\n")
    assert pieces[0].text.startswith("[not recorded: ")
    skipped = len(text) - sum(len(piece.text) for piece in pieces[1:])
    assert pieces[0] == Piece(0, MARK.format(skipped))
    assert pieces[1].offset == skipped


def test_what_is_held_is_bounded_and_what_is_recorded_is_no_more_than_came() -> None:
    hold, recorded = HoldBack(JUDGE), 0
    for at in range(40_000):
        recorded += sum(len(piece.text) for piece in hold.feed(f"w{at}x" + (" " if at % 7 == 0 else "")))
        assert hold._chars <= MAX_HELD_CHARS + 10
    recorded += sum(len(piece.text) for piece in hold.end())
    assert recorded == hold.next_offset


# --- the streams of a session

NOW: Final = datetime(2026, 11, 29, tzinfo=UTC)


class Records:
    def __init__(self) -> None:
        self.events: list[tuple[Event, str, str]] = []

    def __call__(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        self.events.append((event, op, parent))


ENDS: Final[dict[str, Event]] = {
    "finished": ModelRequestFinished("", "", (), "stop", None, Usage(), None, None, 1.0),
    "failed": ModelRequestFailed(Failure("x", "x"), "", "", (), None, None, 1.0),
    "called": ToolCallFinished("c", "t", "", False, 1.0),
    "run": RunExecuteFinished("cancelled", None, None, (), (), (), 1.0),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_held_is_recorded_before_whatever_ends_it(end: str) -> None:
    streams, records = Streams(JUDGE), Records()
    for delta in (ModelStreamDelta("text", 0, "a\nb"), ModelStreamDelta("reasoning", 0, "c"), ToolOutputDelta(0, "d")):
        streams.feed(delta, records, ts=NOW, run="r", op="o", parent="p")
    streams.feed(ModelStreamDelta("text", 0, "other"), records, ts=NOW, run="r", op="o2", parent="")
    streams.before(ENDS[end], records, ts=NOW, run="r", op="o")
    whole = [
        (ModelStreamDelta("text", 0, "a\n"), "o", "p"),
        (ModelStreamDelta("text", 2, "b"), "o", "p"),
        (ModelStreamDelta("reasoning", 0, "c"), "o", "p"),
        (ToolOutputDelta(0, "d"), "o", "p"),
    ]
    other = (ModelStreamDelta("text", 0, "other"), "o2", "")
    assert records.events == [*whole, other] if end == "run" else whole
    streams.end(records, NOW)
    assert records.events == [*whole, other]
