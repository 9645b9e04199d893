"""Numbers, times and ids as people read them. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

# Session ids are UUIDv7: the first 12 digits are the millisecond, so 8 digits would name all sessions of a minute.
SHORT_ID_CHARS: Final = 16


def short_id(session: str) -> str:
    """As much of a session id as tells it from others in practice; commands accept any unambiguous beginning."""
    return session[:SHORT_ID_CHARS]


def cost(usd: float | None) -> str:
    """Dollars without exponents (sums by text tools stay right); None is unknown, which is not the same as free."""
    if usd is None or not math.isfinite(usd) or usd < 0:
        return "cost unknown"
    if usd == 0:
        return "$0"
    if usd >= 0.01:
        return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"
    digits = min(12, 2 - math.floor(math.log10(usd)))
    return f"${usd:.{digits}f}".rstrip("0").rstrip(".")


def usage(input_tokens: int | None, output_tokens: int, cache_read_tokens: int | None = None) -> str:
    """Tokens in and out; the part of the input that came from the provider's cache is named when known. None: nothing is."""
    if input_tokens is None:
        return "usage unknown"
    cached = f" ({cache_read_tokens:,} cached)" if cache_read_tokens else ""
    return f"{input_tokens:,} in{cached} / {output_tokens:,} out tokens"


def duration(ms: float | None) -> str:
    """Milliseconds as people say them."""
    if ms is None:
        return "?"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(count: int) -> str:
    """Bytes, with a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes all")


def count(number: int, noun: str) -> str:
    """1 record, 2 records."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def local_time(at: datetime | None) -> str:
    """A moment in the reader's own time zone, to the second."""
    return "?" if at is None else local(at).strftime("%Y-%m-%d %H:%M:%S")


def local(at: datetime) -> datetime:
    """The moment in the reader's own time zone; as it is (UTC, in our traces) where the local calendar does not reach."""
    try:
        return at.astimezone()
    except (OverflowError, OSError, ValueError):
        return at


def first_line(text: str, limit: int = 200) -> str:
    """The first line of a text that says something, cut at `limit` code points."""
    line = next((line for line in text[:10_000].split("\n") if line.strip()), "").strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"
