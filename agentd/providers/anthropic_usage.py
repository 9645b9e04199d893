"""Usage of the anthropic wire under one meaning: all-in input and output, the parts apart.

The wire's input_tokens leave out what was read from and written to the cache; the three together are the input.
"""

from __future__ import annotations

from agentd.providers.anthropic_event import UsageDelta
from tracewriter.events import MAX_TOKENS, Usage


class UsageMeter:
    """Takes every usage object of a stream, gives one Usage. A later counter replaces an earlier one, also by a smaller.

    Sums would be wrong (message_delta repeats message_start's counters), and so would the largest: compaction, done by the
    provider before the answer, ends with smaller counters than it began with.
    """

    __slots__ = ("_input", "_output", "_read", "_reasoning", "_written")

    def __init__(self) -> None:
        self._input: int | None = None
        self._output: int | None = None
        self._read: int | None = None
        self._written: int | None = None
        self._reasoning: int | None = None

    def add(self, usage: UsageDelta) -> None:
        """Take one usage object."""
        details = usage.output_tokens_details
        self._input = _latest(usage.input_tokens, self._input)
        self._output = _latest(usage.output_tokens, self._output)
        self._read = _latest(usage.cache_read_input_tokens, self._read)
        self._written = _latest(usage.cache_creation_input_tokens, self._written)
        self._reasoning = _latest(None if details is None else details.thinking_tokens, self._reasoning)

    def total(self) -> Usage | None:
        """The request's usage; None when no counter came."""
        parts = (self._input, self._read, self._written)
        if self._output is None and all(part is None for part in parts):
            return None
        given = min(sum(part or 0 for part in parts), MAX_TOKENS)
        return Usage(given, self._output or 0, self._read, self._written, self._reasoning)


def _latest(new: int | None, old: int | None) -> int | None:
    """The new count if it is one (a whole number from 0 to what JSON carries exactly everywhere), else the old one."""
    return new if new is not None and 0 <= new <= MAX_TOKENS else old
