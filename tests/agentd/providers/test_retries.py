"""When a request is sent again: bounded in number and in time, with a floor the provider may set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.retries import Retries, RetryState, parse_retry_after

NOW = 1_800_000_000.0


def test_waits_double_with_jitter_between_half_and_whole() -> None:
    for uniform, expected in ((lambda: 0.0, [0.5, 1.0, 2.0]), (lambda: 1.0, [1.0, 2.0, 4.0])):
        state = RetryState(Retries(attempts=4, base_s=1.0), uniform)
        assert [state.next_delay(None) for _ in range(4)] == [*expected, None]
        assert state.attempt == 4


@given(st.integers(1, 8), st.lists(st.none() | st.floats(0, 1e9), max_size=12), st.floats(0, 1))
def test_no_header_makes_a_request_wait_longer_than_its_budget(
    attempts: int, headers: list[float | None], draw: float
) -> None:
    policy = Retries(attempts=attempts)
    state = RetryState(policy, lambda: draw)
    waits = [wait for header in headers if (wait := state.next_delay(header)) is not None]
    assert len(waits) < attempts
    assert sum(waits) <= policy.budget_s
    assert all(wait <= policy.retry_after_cap_s for wait in waits)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0), ({"retry-after": " 0.5 "}, 0.5), ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0), ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
        ({}, None), ({"retry-after": "soon"}, None), ({"retry-after": "-1"}, None), ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None), ({"retry-after": "Fri, 99 Jan 99999 08:00:30 GMT"}, None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_milliseconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, now=lambda: NOW) == seconds
