"""What events are made of: their common base, and the values that several of them carry."""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

# Every JSON reader has whole numbers up to here exactly; no program of any size will ever use so many tokens.
MAX_TOKENS: Final = 2**53


class EventBase(Struct, frozen=True, gc=False, omit_defaults=False):
    """What all events share: immutable, never tracked by the garbage collector (recording 10^6 of them must not start it)."""


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one or more model requests, 2**53 at most. Input and output are all-in; a part that is None was not said."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __add__(self, other: Usage) -> Usage:
        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None and b is None else min((a or 0) + (b or 0), MAX_TOKENS)

        return Usage(
            min(self.input_tokens + other.input_tokens, MAX_TOKENS),
            min(self.output_tokens + other.output_tokens, MAX_TOKENS),
            both(self.cache_read_tokens, other.cache_read_tokens),
            both(self.cache_write_tokens, other.cache_write_tokens),
            both(self.reasoning_tokens, other.reasoning_tokens),
        )


class ToolCall(Struct, frozen=True, gc=False):
    """A complete tool call as the model made it. `input` is its JSON; what a cut stream left is never one of these."""

    id: str
    name: str
    input: Raw


class Failure(Struct, frozen=True, gc=False):
    """A failure of the world, for people: what kind, one readable line, and what to do next."""

    kind: str
    message: str
    hint: str = ""
    status: int | None = None


class Attachment(Struct, frozen=True, gc=False):
    """What was added to a prompt besides its text. kind: file, image, instructions (AGENTS.md), skill. sha256 is null where the
    contents must not be derived from.
    """

    kind: str
    name: str
    media_type: str
    bytes: int
    sha256: str | None
