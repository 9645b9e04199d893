"""When a failed request is sent again: pure decisions, with randomness and time given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from msgspec import Struct


class Retries(Struct, frozen=True):
    """How often, and after what wait in seconds.

    The wait before attempt n is drawn from [half, whole] of base_s · 2^(n-2), at most cap_s. A provider's Retry-After is a
    floor; one over retry_after_cap_s is cut to it (a hostile header must not park the client). All waits of a request
    together stay under budget_s: past it the failure is shown, because a person is waiting.
    """

    attempts: int = 4
    base_s: float = 1.0
    cap_s: float = 20.0
    retry_after_cap_s: float = 60.0
    budget_s: float = 120.0


class RetryState:
    """The attempts of one request."""

    def __init__(self, retries: Retries, uniform: Callable[[], float]) -> None:
        self.attempt = 1
        self._retries = retries
        self._uniform = uniform
        self._waited_s = 0.0

    def next_delay(self, retry_after_s: float | None) -> float | None:
        """How long to wait before the next attempt, in seconds, which is then counted; None when there is none."""
        policy = self._retries
        if self.attempt >= policy.attempts:
            return None
        whole = min(policy.cap_s, policy.base_s * 2.0 ** (self.attempt - 1))
        delay = whole * (0.5 + 0.5 * self._uniform())
        if retry_after_s is not None:
            delay = max(delay, min(retry_after_s, policy.retry_after_cap_s))
        if self._waited_s + delay > policy.budget_s:
            return None
        self._waited_s += delay
        self.attempt += 1
        return delay


def parse_retry_after(headers: Mapping[str, str], *, now: Callable[[], float]) -> float | None:
    """What a provider asks to wait, in seconds, from retry-after-ms or Retry-After (seconds or a date); None if nothing sane."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now())


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
