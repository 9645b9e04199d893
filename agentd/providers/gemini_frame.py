"""The gemini wire's frames (GenerateContentResponse) as typed structs, decoded in one pass; unknown fields are skipped.

A part is one flat struct, not a union: its kind is the field that is there, and a part of a
kind that does not exist yet decodes like any other.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from agentd.providers.chat_chunk import ABSENT, parse_json
from agentd.providers.lenient import lenient


class PartialArg(Struct, gc=False, rename="camel"):
    """A piece of one argument: where it belongs (a JSON path), its value or a part of it, whether more of it comes."""

    json_path: str | None = None
    string_value: str | None = None
    number_value: Raw = ABSENT
    bool_value: Raw = ABSENT
    null_value: Raw = ABSENT
    will_continue: bool | None = None


class FunctionCall(Struct, gc=False, rename="camel"):
    """A call, whole (`args`), or a piece of one whose arguments are streamed (`partialArgs`, `willContinue`)."""

    name: str | None = None
    id: str | None = None
    args: Raw = ABSENT
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class Part(Struct, gc=False, rename="camel"):
    """A part of the answer. All but text and functionCall are what the provider did itself, or files."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    executable_code: Raw = ABSENT
    code_execution_result: Raw = ABSENT
    tool_call: Raw = ABSENT
    tool_response: Raw = ABSENT
    inline_data: Raw = ABSENT
    file_data: Raw = ABSENT


class Content(Struct, gc=False, rename="camel"):
    """What a frame adds to a candidate."""

    parts: list[Part] | None = None


class Candidate(Struct, gc=False, rename="camel"):
    """One candidate; one is asked for."""

    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = None


class PromptFeedback(Struct, gc=False, rename="camel"):
    """What the provider thinks of the prompt. With a blockReason there is no answer."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class UsageDelta(Struct, gc=False, rename="camel"):
    """Counters, cumulative over the stream; absent ones say nothing."""

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class Frame(Struct, gc=False, rename="camel"):
    """One frame's data."""

    candidates: list[Candidate] | None = None
    usage_metadata: UsageDelta | None = None
    prompt_feedback: PromptFeedback | None = None
    error: Raw = ABSENT

    @property
    def says_something(self) -> bool:
        """Whether it is a frame of this wire at all, and not just any JSON object."""
        told = (self.candidates, self.usage_metadata, self.prompt_feedback)
        return any(field is not None for field in told) or self.error is not ABSENT


# Raises msgspec.DecodeError or RecursionError for what only `lenient_frames` can read.
strict_frame: Final = msgspec.json.Decoder(Frame).decode


def lenient_frames(data: bytes) -> list[Frame] | None:
    """The frames in the data: an object is one, an array holds several; None when it is neither. Never raises."""
    try:
        value = parse_json(data)
    except ValueError:
        return None
    if isinstance(value, dict | list):
        return frames_in(value)
    return None


def frames_in(value: object) -> list[Frame]:
    """The frames in decoded JSON. Texts may hold lone surrogates."""
    values = value if isinstance(value, list) else [value]
    return [frame for one in values if (frame := lenient(Frame, one)) is not None]
