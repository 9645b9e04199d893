"""When a request is sent again: bounded in number and in time, with a floor the provider may set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.retries import (
    Retries,
    RetryState,
    asked_wait,
    parse_retry_after,
    told_to_retry,
    wait_in_body,
)

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


@pytest.mark.parametrize(
    ("body", "wait_s"),
    [
        ('{"error":{"details":[{"@type":"x"},{"retryDelay":"34.07s"}]}}', 34.07),
        ('[{"error":{"details":[{"retryDelay":"5s"}]}}]', 5.0),
        ('{"error":{"message":"Please try again in 1m30.5s."}}', 90.5),
        ('{"error":{"message":"Please try again in 250ms."}}', 0.25),
        ('{"error":{"message":"try again in 2h5m"}}', 7500.0),
        ("Try again in 8s", 8.0),
        ('{"error":{"message":"try again in a moment"}}', None),
        ('{"error":{"details":[{"retryDelay":"soon"}]}}', None),
        ('{"error":{"details":[{"retryDelay":5}]}}', None),
        ('{"retryDelay":"-3s"}', None),
        ("", None),
    ],
)
def test_the_wait_is_found_in_bodies(body: str, wait_s: float | None) -> None:
    assert wait_in_body(body.encode()) == (None if wait_s is None else pytest.approx(wait_s))


def test_headers_come_before_bodies() -> None:
    body = b'{"error":{"details":[{"retryDelay":"34s"}]}}'
    assert asked_wait({"retry-after": "2"}, body, now=lambda: 0.0) == 2.0
    assert asked_wait({"retry-after": "never"}, body, now=lambda: 0.0) == 34.0


def test_a_date_is_counted_from_the_answers_own_date() -> None:
    headers = {"retry-after": "Mon, 30 Nov 2026 12:00:40 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}
    assert parse_retry_after(headers, now=lambda: 0.0) == 40.0
    assert parse_retry_after({**headers, "date": "Mon, 30 Nov 2026 13:00:00 GMT"}, now=lambda: 0.0) == 0.0


@pytest.mark.parametrize(("value", "told"), [("true", True), ("False ", False), ("", None), ("maybe", None)])
def test_a_provider_may_say_whether_to_try_again(value: str, told: bool | None) -> None:
    assert told_to_retry({"x-should-retry": value}) is told


@given(st.binary(max_size=300), st.text(max_size=30), st.text(max_size=30))
def test_whatever_is_asked_is_a_sane_number_or_none(body: bytes, header: str, date: str) -> None:
    found = asked_wait({"retry-after": header, "date": date, "retry-after-ms": date}, body, now=lambda: 0.0)
    assert found is None or 0 <= found < float("inf")
