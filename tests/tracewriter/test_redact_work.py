"""How much redaction does for a text: counted in calls, not in time, and little even for texts made to be slow."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import FrameType

import pytest

from tests.tracewriter.hostile_texts import hostile
from tracewriter.redact import CannotRedact, Redactor
from tracewriter.redact_anchors import AUTOMATA
from tracewriter.redact_hidden import ANCHOR

MIB = 1024 * 1024
TOKEN = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v"
HEAD = {"seq": 1, "ts": "2026-11-29T20:45:01.123456Z", "event": "tool.call.finished", "session": "0" * 32}
SLOW = (
    "all anchors",
    "all anchors, apart",
    "words and anchors",
    "'AGE-SECRET-KEY-1' repeated",
    "'--password ab1c '",
    "'login x password y1z2 '",
    "'login x password y1z2 ' in JSON in JSON",
    "'api_key: a1b2c3d4 '",
    "\"privateKey: 'a1b2c3d4', \"",
    "'password: \"\\\\\"'",
    "'a_live_Zq8vTn3Lw0Rk5Yb2 '",
    "'Authorization: ' in JSON in JSON",
    "'\\\\u0041'",
    "'-----BEGIN PRIVATE KEY-----'",
    "'-END ' repeated",
)


def record(text: object) -> bytes:
    return json.dumps(HEAD | {"data": text}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, those written in C too."""
    count = 0

    def called(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def outcome(redactor: Redactor, line: bytes) -> bytes | None:
    try:
        return redactor.redact(line)
    except CannotRedact:
        return None


@pytest.mark.parametrize("name", SLOW)
def test_a_hostile_mebibyte_costs_no_more_calls_than_its_length_allows(name: str) -> None:
    text = dict(hostile())[name]
    length = MIB * len(text) // (len(record(text)) - len(record("")))
    line = record((text * (1 + length // len(text)))[:length])
    assert 0.9 * MIB < len(line) < 1.1 * MIB
    redactor = Redactor(("aaaaaa", "123456", "hunter2"))
    redactor.redact(record("first"))  # the automata are made once
    assert calls(lambda: outcome(redactor, line)) < len(line) // 3


def test_nothing_can_begin_in_an_escape_but_what_escapes_hide() -> None:
    anchors = [anchor for group in AUTOMATA for anchor in group if anchor != ANCHOR]
    assert not [
        a for a in anchors for at in range(len(ANCHOR)) if a.startswith(ANCHOR[at:]) or ANCHOR[at:].startswith(a)
    ]


def cpu(redactor: Redactor, text: str) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        assert redactor.redact_text(text) is text
        best = min(best, time.process_time() - started)
    return best


def test_four_times_as_many_control_characters_cost_about_four_times_as_much() -> None:
    redactor = Redactor()
    short, long = (cpu(redactor, "\0" * size) for size in (200_000, 800_000))
    assert long < 9 * short  # not sixteen times


@pytest.mark.parametrize("char", ["\0", "\x1b", "é", "\x7f", "\\"])
def test_a_body_of_nothing_but_escapes_is_kept(char: str) -> None:
    text = char * 20_000
    assert Redactor(("hunter2",)).redact_text(text) == text
    line = json.dumps(text).encode() + b"\n"
    assert Redactor().redact(line) == line


def test_a_secret_among_many_escapes_is_found_and_the_rest_kept() -> None:
    text = "\0" * 20_000 + f" ghp_{TOKEN} " + "é\x01" * 20_000
    for line in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        shown = json.loads(Redactor().redact(line.encode() + b"\n"))
        assert shown == text.replace(f"ghp_{TOKEN}", "[redacted:github]")


def test_a_body_written_in_escapes_alone_is_decoded() -> None:
    text = f"a text of words, then ghp_{TOKEN} and more. " * 500
    line = b'"' + "".join(f"\\u{ord(char):04x}" for char in text).encode() + b'"\n'
    assert json.loads(Redactor().redact(line)) == text.replace(f"ghp_{TOKEN}", "[redacted:github]")


@pytest.mark.parametrize("item", [{"token": "x"}, {"token": "while"}, {"token": "identifier"}, {"type": "token"}])
def test_a_mebibyte_of_a_lexers_output_is_kept(item: dict[str, object]) -> None:
    item |= {"at": 100_000}
    line = record([item] * (MIB // (len(json.dumps(item, separators=(",", ":"))) + 1)))
    assert len(line) > 0.95 * MIB
    assert Redactor().redact(line) is line


def test_a_mebibyte_of_accounts_loses_every_password() -> None:
    users = [
        {
            "id": at,
            "name": f"user{at}",
            "mail": f"user{at}@example.org",
            "about": "likes to walk in the hills and to read a book",
            "password": f"hunter{at}x",
        }
        for at in range(8000)
    ]
    line = record(users)
    assert len(line) > MIB
    shown = json.loads(Redactor().redact(line))["data"]
    assert {user["password"] for user in shown} == {"[redacted:password]"}
    assert [user["mail"] for user in shown] == [user["mail"] for user in users]


@pytest.mark.parametrize("marker", ["[redacted:token]", "[redacted:sk-key]", "password=[redacted:password] "])
def test_a_line_of_nothing_but_markers_is_kept(marker: str) -> None:
    line = record(marker * (500_000 // len(marker)))
    assert Redactor().redact(line) is line
