"""Usage of the openai-chat wire under one meaning: all-in input and output, the parts apart.

A count is a whole number from 0 to 2**53 (what JSON numbers carry exactly everywhere), as a number or in digits. Anything else
(negative, beyond, a fraction, NaN, a boolean, words) was not said: None. Totals of requests, runs and sessions stop at 2**53 too.
"""

from __future__ import annotations

from agentd.providers.chat_chunk import Tokens, UsageDelta
from tracewriter.events import MAX_TOKENS, Usage

_NONE = Tokens()


class UsageMeter:
    """Takes every usage object of a stream (they are cumulative: a later counter replaces an earlier one), gives one Usage."""

    __slots__ = ("_cached", "_input", "_output", "_reasoning", "_total", "_written")

    def __init__(self) -> None:
        self._input: int | None = None
        self._output: int | None = None
        self._total: int | None = None
        self._cached: int | None = None
        self._written: int | None = None
        self._reasoning: int | None = None

    def add(self, usage: UsageDelta) -> None:
        """Take one usage object. One whose counters are all zero or absent says nothing after one that said something."""
        given = _first(usage.prompt_tokens, usage.input_tokens)
        produced = _first(usage.completion_tokens, usage.output_tokens)
        if (given is None and produced is None) or (not given and not produced and self._input is not None):
            return
        details, produced_details = usage.prompt_tokens_details or _NONE, usage.completion_tokens_details or _NONE
        cached = _first(
            details.cached_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens, usage.cache_read_input_tokens
        )
        self._input = _latest(given, self._input)
        self._output = _latest(produced, self._output)
        self._total = _latest(_first(usage.total_tokens), self._total)
        self._cached = _latest(cached, self._cached)
        self._written = _latest(_first(details.cache_write_tokens, usage.cache_creation_input_tokens), self._written)
        self._reasoning = _latest(_first(produced_details.reasoning_tokens, usage.reasoning_tokens), self._reasoning)

    def total(self) -> Usage | None:
        """The request's usage; None when no usage object came."""
        if self._input is None and self._output is None:
            return None
        given, produced = self._input or 0, self._output or 0
        # xAI leaves reasoning out of completion_tokens; its own total shows it.
        if self._reasoning and given + produced + self._reasoning == self._total:
            produced = min(produced + self._reasoning, MAX_TOKENS)
        return Usage(given, produced, self._cached, self._written, self._reasoning)


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None and 0 <= count <= MAX_TOKENS), None)


def _latest(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
