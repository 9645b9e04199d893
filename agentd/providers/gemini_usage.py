"""Usage of the gemini wire under one meaning: all-in input and output, the parts apart.

The wire counts thoughts apart from candidates, and what its own tools put into the prompt apart from the prompt: both are
paid for, so they belong to output and input. What was read from the cache is part of the prompt already.
"""

from __future__ import annotations

import msgspec

from agentd.providers.gemini_frame import UsageDelta
from tracewriter.events import MAX_TOKENS, Usage


class UsageMeter:
    """Takes every usageMetadata of a stream, gives one Usage. A later counter replaces an earlier one, also by a smaller.

    A count is a whole number that is not negative; one that is absent, or is none, leaves the earlier one as it was. This is
    done for every frame, so it is written out: one pass over five fields is what it costs.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = UsageDelta()

    def add(self, usage: UsageDelta) -> None:
        """Take one usage object, which becomes this meter's own."""
        last, self._last = self._last, usage
        if (count := usage.prompt_token_count) is None or count < 0:
            usage.prompt_token_count = last.prompt_token_count
        if (count := usage.candidates_token_count) is None or count < 0:
            usage.candidates_token_count = last.candidates_token_count
        if (count := usage.thoughts_token_count) is None or count < 0:
            usage.thoughts_token_count = last.thoughts_token_count
        if (count := usage.tool_use_prompt_token_count) is None or count < 0:
            usage.tool_use_prompt_token_count = last.tool_use_prompt_token_count
        if (count := usage.cached_content_token_count) is None or count < 0:
            usage.cached_content_token_count = last.cached_content_token_count

    def total(self) -> Usage | None:
        """The request's usage; None when no counter came."""
        prompt, tools, answer, thoughts, cached = (
            None if count is None else min(count, MAX_TOKENS) for count in msgspec.structs.astuple(self._last)
        )
        if prompt is tools is answer is thoughts is cached is None:
            return None
        given = min((prompt or 0) + (tools or 0), MAX_TOKENS)
        produced = min((answer or 0) + (thoughts or 0), MAX_TOKENS)
        return Usage(given, produced, cached, None, thoughts)
