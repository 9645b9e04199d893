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
        """Take one usage object. A count is a whole number from 0 to what JSON carries exactly everywhere."""
        if (count := usage.input_tokens) is not None and 0 <= count <= MAX_TOKENS:
            self._input = count
        if (count := usage.output_tokens) is not None and 0 <= count <= MAX_TOKENS:
            self._output = count
        if (count := usage.cache_read_input_tokens) is not None and 0 <= count <= MAX_TOKENS:
            self._read = count
        if (count := usage.cache_creation_input_tokens) is not None and 0 <= count <= MAX_TOKENS:
            self._written = count
        details = usage.output_tokens_details
        if details is not None and (count := details.thinking_tokens) is not None and 0 <= count <= MAX_TOKENS:
            self._reasoning = count

    def total(self) -> Usage | None:
        """The request's usage; None when no counter came."""
        if self._input is self._output is self._read is self._written is None:
            return None
        given = min((self._input or 0) + (self._read or 0) + (self._written or 0), MAX_TOKENS)
        return Usage(given, self._output or 0, self._read, self._written, self._reasoning)
