"""Numbers, cuts and styles as people see them."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl import format as fmt
from agentctl import wire
from agentctl.output import Output, fit
from agentctl.render import LiveRun
from tests.agentctl.fake_daemon import Screen, Terminal


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "cost unknown"),
        (math.nan, "cost unknown"),
        (0.0, "$0"),
        (5e-7, "$0.0000005"),
        (0.00012345, "$0.000123"),
        (0.0123, "$0.0123"),
        (1234.5, "$1,234.50"),
    ],
)
def test_costs_have_no_exponent_and_unknown_is_not_free(usd: float | None, text: str) -> None:
    assert fmt.cost(usd) == text


@given(st.floats(1e-12, 1e9))
def test_a_cost_is_never_shown_as_free_or_with_an_exponent(usd: float) -> None:
    text = fmt.cost(usd).removeprefix("$").replace(",", "")
    assert "e" not in text
    assert float(text) == pytest.approx(usd, rel=0.01, abs=1e-12)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "?"), (0.4, "0 ms"), (999, "999 ms"), (2300, "2.3 s"), (61_000, "1 min 01 s"), (3_660_000, "1 h 01 min")],
)
def test_durations(ms: float | None, text: str) -> None:
    assert fmt.duration(ms) == text


def test_sizes_and_counts() -> None:
    assert [fmt.size(n) for n in (0, 1023, 1536, 2**31)] == ["0 B", "1023 B", "1.5 KiB", "2.0 GiB"]
    assert fmt.count(1, "record") == "1 record"
    assert fmt.count(1200, "record") == "1,200 records"
    assert fmt.usage(10, 2, 8) == "10 in (8 cached) / 2 out tokens"


@given(st.text(), st.integers(1, 40))
def test_what_fits_is_whole_and_what_does_not_says_so(text: str, columns: int) -> None:
    cut = fit(text, columns)
    assert cut == text or (cut.endswith("…") and text.startswith(cut[:-1]))
    assert len(cut) <= len(text) + 1
    if text.isascii():
        assert len(cut) <= columns


def test_wide_characters_count_two() -> None:
    assert fit("漢字漢字", 8) == "漢字漢字"
    assert fit("漢字漢字", 7) == "漢字漢…"
    assert fit("漢字漢字", 6) == "漢字…"
    assert fit("abcdef", 5) == "abcd…"


def terminal(env: dict[str, str]) -> tuple[Terminal, Output]:
    both = Terminal()
    return both, Output(both, both, env)


def test_on_a_terminal_a_note_never_lands_in_the_middle_of_a_line() -> None:
    both, out = terminal({"NO_COLOR": "1"})
    out.text("half")
    out.note("note")
    out.text("rest")
    out.end_line()
    out.end_line()
    assert both.getvalue() == "half\nnote\nrest\n"


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals_that_want_it(env: dict[str, str], coloured: bool) -> None:
    both, out = terminal(env)
    out.note("x", "red")
    assert both.getvalue() == ("\x1b[31mx\x1b[0m\n" if coloured else "x\n")
    plain = io.StringIO()
    Output(plain, plain, {}).note("x", "red")
    assert plain.getvalue() == "x\n"


def test_tool_lines_are_cut_to_the_terminal_and_answers_are_not() -> None:
    both, out = terminal({"NO_COLOR": "1", "COLUMNS": "30"})
    live = LiveRun(out)
    live.event("t", wire.ToolStarted("read_file", "a/" * 50 + "\nb"))
    live.event("t", wire.ToolFinished("read_file", False, "", 12.0))
    live.delta(wire.Delta("s", "r", "m", "text", 0, "y" * 100))
    tool, answer = both.getvalue().split("\n")
    assert (tool, len(tool)) == ("✓ read_file a/a/a/a/a/…  12 ms", 30)
    assert answer == "y" * 100


@given(st.text(max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_whatever_deltas_come_the_answer_is_shown_once_and_whole(text: str, pieces: list[tuple[int, int]]) -> None:
    screen = Screen({})
    live = LiveRun(screen.world.out)
    for offset, length in pieces:
        live.delta(wire.Delta("s", "r", "m", "text", offset, text[offset : offset + length]))
    live.event("m", wire.RequestFinished(text, ""))
    whole = Screen({})
    whole.world.out.text(text)
    whole.world.out.end_line()
    assert screen.out == whole.out


def test_a_refusal_reaches_the_user_and_reasoning_is_not_the_answer() -> None:
    screen = Screen({})
    live = LiveRun(screen.world.out, quiet=True)
    live.delta(wire.Delta("s", "r", "m", "reasoning", 0, "hm"))
    live.event("m", wire.RequestFinished("", "I will not"))
    assert screen.out == "I will not\n"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"path": "a.py", "limit": 3}, "a.py"),
        ({"path": ".", "pattern": "TODO"}, "TODO"),
        ({"n": 1, "text": "first"}, "first"),
        ({"payload": "ab12", "head": "a long"}, "a long"),
        ({}, ""),
        ("text", "text"),
        (None, ""),
        ([1], ""),
    ],
)
def test_the_telling_argument_is_shown(arguments: object, shown: str) -> None:
    assert wire.main_argument(arguments) == shown
