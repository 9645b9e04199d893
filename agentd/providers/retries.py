"""When a failed request is sent again: pure decisions, with randomness and time given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

_MAX_DEPTH: Final = 6
# protobuf's Duration as JSON ("34.07s"), and what OpenAI and groq write into their text ("try again in 1m30.5s", "… 250ms").
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_IN_WORDS: Final = re.compile(
    r"try again in (?:(\d{1,4})h)?(?:(\d{1,4})m(?!s))?(?:(\d{1,6}(?:\.\d{1,9})?)(ms|s)\b)?", re.IGNORECASE
)


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


def asked_wait(headers: Mapping[str, str], body: bytes, *, now: Callable[[], float]) -> float | None:
    """What a provider asks to wait, in seconds, in its headers or else in the error's body; None if nothing sane."""
    found = parse_retry_after(headers, now=now)
    return wait_in_body(body) if found is None else found


def parse_retry_after(headers: Mapping[str, str], *, now: Callable[[], float]) -> float | None:
    """What a provider asks to wait, in seconds, from retry-after-ms or Retry-After (seconds or a date); None if nothing sane.

    A date is counted from the answer's own Date where it has one: this machine's clock may be wrong. `now`: seconds since 1970.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    until, sent = _date(value), _date(headers.get("date", ""))
    if until is None:
        return None
    return max(0.0, until - (now() if sent is None else sent))


def wait_in_body(body: bytes) -> float | None:
    """The wait that an error's body asks for, in seconds: Google's RetryInfo, or the words of OpenAI and groq."""
    text = body.decode("utf-8", "replace")
    try:
        found = _retry_info(json.loads(text), 0)
    except (ValueError, RecursionError):
        found = None
    return _in_words(text) if found is None else found


def told_to_retry(headers: Mapping[str, str]) -> bool | None:
    """What x-should-retry says (OpenAI and Anthropic send it when the status alone would mislead); None without it."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def _retry_info(value: object, depth: int) -> float | None:
    if depth > _MAX_DEPTH:
        return None
    inner: list[object] = []
    if isinstance(value, list):
        inner = value[:20]
    elif isinstance(value, dict):
        delay = value.get("retryDelay")
        if isinstance(delay, str) and (match := _DURATION.fullmatch(delay)):
            return float(match[1])
        inner = [value.get("error"), value.get("details")]
    return next((found for item in inner if (found := _retry_info(item, depth + 1)) is not None), None)


def _in_words(text: str) -> float | None:
    match = _IN_WORDS.search(text)
    if match is None or not any(match.groups()):
        return None
    hours, minutes, number, unit = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(number or 0) / (1000 if unit in ("ms", "MS") else 1)


def _date(value: str) -> float | None:
    try:
        date = parsedate_to_datetime(value)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, IndexError, TypeError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
