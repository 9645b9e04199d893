"""No code point of a model, a tool or a trace reaches a terminal if it could do something there, whichever view shows it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentctl import wire
from agentctl.commands import status, trace_show, trace_summary, trace_verify
from agentctl.errors import UsageProblem
from agentctl.ids import Recorded, choose
from agentctl.render import LiveRun, run_line
from agentctl.safe_text import safe_json, safe_line, safe_text
from agentctl.summary import summarise
from agentctl.trace_events import typed
from tests.agentctl.fake_daemon import SESSION, Json, Screen, delta, event, finished
from tracewriter.events import KINDS, RawRecord, UnknownEvent
from tracewriter.findings import Found, Note, Verdict

BIDI = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
UNSAFE = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *BIDI, *range(0xD800, 0xE000)} - {0x0A, 0x09}
HOSTILE = "".join(map(chr, sorted(UNSAFE)))


def unsafe_in(text: str) -> set[int]:
    return UNSAFE & set(map(ord, text))


def test_every_code_point_is_unchanged_or_made_visible() -> None:
    for code in range(sys.maxunicode + 1):
        shown = safe_text(chr(code))
        if code in UNSAFE:
            assert shown
            assert not unsafe_in(shown)
            assert shown.isprintable()
        else:
            assert shown == chr(code)


def test_a_line_stays_a_line() -> None:
    assert safe_line("a\nb\r\nc\td\x1b") == "a␤b␤c d␛"
    assert not unsafe_in(safe_line(HOSTILE))


@given(st.text(st.characters() | st.sampled_from(HOSTILE)), st.integers(0, 50))
def test_where_the_text_is_cut_does_not_matter(text: str, cut: int) -> None:
    assert safe_text(text[:cut]) + safe_text(text[cut:]) == safe_text(text)


@given(st.recursive(st.text(st.characters() | st.sampled_from(HOSTILE)) | st.integers(), st.lists, max_leaves=5))
def test_json_made_safe_is_the_same_value(value: object) -> None:
    line = safe_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert not unsafe_in(line)


def test_live_views_are_safe(env: dict[str, str]) -> None:
    screen = Screen(env)
    live = LiveRun(screen.world.out)
    messages: list[Json] = [
        delta(HOSTILE, 0),
        event("model.request.finished", {"text": HOSTILE + "x", "refusal": HOSTILE}, op="m1"),
        event("model.request.failed", {"error": {"message": HOSTILE, "hint": HOSTILE}, "text": ""}, op="m2"),
        event("model.retry.observed", {"attempt": 2, "wait_ms": 1, "error": {"message": HOSTILE}}, op="m3"),
        event("tool.call.started", {"name": HOSTILE, "input": {"path": HOSTILE}}, op="t1"),
        event("tool.call.finished", {"name": HOSTILE, "output": HOSTILE, "is_error": True}, op="t1"),
        finished(HOSTILE, files=[HOSTILE], errors=[HOSTILE]),
    ]
    for message in messages:
        notice = wire.notice(message)
        if isinstance(notice, wire.Delta):
            live.delta(notice)
        assert notice is not None
        if isinstance(notice, wire.Event):
            screen.world.out.json(notice.record)
            live.event(notice.op, notice.fact)
            if isinstance(notice.fact, wire.RunFinished):
                screen.world.out.note(run_line(HOSTILE, notice.fact))
    for line in status.lines({"agentd": HOSTILE, "recording": {"state": HOSTILE, "reason": HOSTILE, "root": HOSTILE}}):
        screen.world.out.line(line)
    assert not unsafe_in(screen.out + screen.err)
    assert "␛" in screen.out
    assert "␛" in screen.err


def every_kind() -> Iterator[Found | Note]:
    """A record of each kind with hostile text in every field, one of an unknown kind, and a note."""
    unknown = Raw(msgspec.json.encode({"text": HOSTILE_UTF8}))
    bodies = {name: Raw(msgspec.json.encode(example(kind))) for name, kind in KINDS.items()}
    for seq, (name, body) in enumerate({**bodies, "some.new.observed": unknown}.items(), 1):
        record = RawRecord(seq=seq, ts=datetime.now(UTC), event=name, session=SESSION, run="r", op=str(seq), data=body)
        assert isinstance(typed(record), UnknownEvent) == (name == "some.new.observed")
        yield Found(record, msgspec.json.encode(record), 1, 0, "unverified", seq)
    yield Note("damaged", HOSTILE, 1, 2, 3)


HOSTILE_UTF8 = "".join(char for char in HOSTILE if not 0xD800 <= ord(char) < 0xE000)


def example(kind: object) -> object:
    """A value of the type, with hostile text wherever text may stand."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{name: example(hint) for name, hint in get_type_hints(kind).items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(example(argument) for argument in arguments if argument is not Ellipsis)
    if origin is dict:
        return {HOSTILE_UTF8: 1}
    if arguments:  # a union: its first member is the telling one
        return example(arguments[0])
    values: dict[object, object] = {str: HOSTILE_UTF8, int: 1, float: 0.5, bool: True}
    return Raw(msgspec.json.encode({"path": HOSTILE_UTF8})) if kind is Raw else values[kind]


@pytest.mark.parametrize("as_json", [False, True])
def test_trace_views_are_safe(env: dict[str, str], as_json: bool) -> None:
    screen = Screen(env)
    assert trace_show.show(every_kind(), screen.world.out, as_json=as_json) == 5
    path = Path("/" + HOSTILE.replace("\0", ""))
    summary = summarise(every_kind())
    verdict = Verdict(1, 0, None, 1, 1, 1, 1, (Note("lost", HOSTILE),), True, HOSTILE, False)
    if as_json:
        screen.world.out.json(trace_summary.as_json(path, summary))
        screen.world.out.json(trace_verify.as_json(path, verdict))
    else:
        trace_summary.show(path, summary, screen.world.out)
        trace_verify.show(path, verdict, screen.world)
    assert not unsafe_in(screen.out + screen.err)
    assert len(screen.out) > 1000


def test_error_messages_are_safe(env: dict[str, str]) -> None:
    from agentctl.__main__ import run

    screen = Screen(env, cwd="/")
    for words in (
        ["trace", "show", HOSTILE],
        [HOSTILE],
        ["ask", "--" + HOSTILE],
        ["trace", "verify", "/" + HOSTILE.replace("\0", "")],
    ):
        assert run(words, screen.world) == 2
    with pytest.raises(UsageProblem) as ambiguous:
        choose("a", [Recorded("a" + HOSTILE, ""), Recorded("ab", "")])
    screen.world.out.note(ambiguous.value.message)
    assert not unsafe_in(screen.out + screen.err)
