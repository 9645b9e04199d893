"""The writer's log stays bounded, and says what it left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeClock
from tracewriter.quiet import QuietLog


def test_lines_beyond_the_bound_are_counted_and_said_once_when_the_period_is_over() -> None:
    said: list[str] = []
    clock = FakeClock()
    log = QuietLog(said.append, clock, lines=3, period_s=10.0)
    for number in range(7):
        log(str(number))
    assert said == ["0", "1", "2"]
    clock.advance(10.0)
    log("next")
    assert said == ["0", "1", "2", "4 more lines left out", "next"]
    log.close()
    assert len(said) == 5


@given(st.lists(st.floats(0, 30), max_size=200))
def test_every_line_is_said_or_counted_and_no_period_says_more_than_its_lines(steps: list[float]) -> None:
    said: list[str] = []
    clock = FakeClock()
    log = QuietLog(said.append, clock, lines=2, period_s=10.0)
    for step in steps:
        clock.advance(step)
        log("x")
    log.close()
    left_out = sum(int(line.split()[0]) for line in said if line != "x")
    assert said.count("x") + left_out == len(steps)
    assert len(said) <= 3 * (1 + sum(steps) // 10.0)
