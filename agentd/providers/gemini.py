"""The gemini wire, decoded: the bytes of a streamGenerateContent answer in, stream events out. Sans-IO, never raises.

There is no closing mark: the answer is complete when a finishReason came, and the end of the body ends it. Frames after
the finishReason still count (usage comes with every frame, and some servers name a reason in each). A blocked prompt, an
error in a frame or without framing, and a reason that says the answer went wrong are failures. Calls are given at the end,
when they are known to be complete. Of the parts that the provider made for itself (code that it ran, searches, files)
none becomes a call; they are kept to be sent back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from agentd.providers import errors
from agentd.providers.chat_chunk import ABSENT
from agentd.providers.gemini_bare import bare_frames
from agentd.providers.gemini_calls import GeminiCalls
from agentd.providers.gemini_frame import (
    Candidate,
    Frame,
    Part,
    PromptFeedback,
    lenient_frames,
    strict_frame,
)
from agentd.providers.gemini_kept import Keeper
from agentd.providers.gemini_usage import UsageMeter
from agentd.providers.openai_chat import new_call_id
from agentd.providers.stream import Failed, Finished, Opaque, Reasoning, StreamEvent, Text, UsageReported
from agentd.providers.tool_input import mend
from agentd.providers.wire_decoder import WireDecoder, is_bare_error, json_in, split_calls
from tracewriter.events import Failure

BLOCKED: Final = "PROMPT_BLOCKED"  # the finish of an answer that never began: the wire has no word for it

STOP_REASONS: Final[dict[str, str]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "JAILBREAK"),
        ),
        "filter",
    ),
}
"""All other reasons, those that do not exist yet included, are `error`: STOP is the only natural end of this wire."""

# Reasons that mean: what the model wrote was no answer. Asking again mostly helps, so they are failures and not ends.
_WENT_WRONG: Final = {
    "MALFORMED_FUNCTION_CALL": True,
    "MALFORMED_RESPONSE": True,
    "UNEXPECTED_TOOL_CALL": True,
    "TOO_MANY_TOOL_CALLS": False,
    "MISSING_THOUGHT_SIGNATURE": False,
}


class GeminiDecoder(WireDecoder[Frame]):
    """One answer. `new_id` makes ids for calls that came without."""

    _finish_message = ""
    _seen = False  # a frame of this wire came
    _index: int | None = None  # the candidate that is the answer

    def __init__(self, *, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__()
        self._keeper = Keeper()
        self._tools = GeminiCalls(new_id, self._keeper)
        self._usage = UsageMeter()

    def _take(self, frames: list[bytes], out: list[StreamEvent]) -> int:
        if self._odd:
            return 0
        chars = thought = 0  # given, and not told the keeper
        taken = 0
        for data in frames:
            try:
                frame = strict_frame(data)
            except (msgspec.DecodeError, RecursionError):
                break
            part = self._only_text(frame)
            if part is None:
                if frame.candidates is None and not frame.says_something:
                    break
                if chars or thought:
                    self._tell(chars, thought)
                    chars = thought = 0
                self._take_frame(frame, out)
            elif (text := part.text) and part.thought:
                thought += len(text)
                out.append(Reasoning(text))
            elif text:
                chars += len(text)
                out.append(Text(text))
            taken += 1
        if chars or thought:
            self._tell(chars, thought)
        self.frames += taken
        return taken

    def _tell(self, chars: int, thought: int) -> None:
        if chars:
            self._keeper.text(chars)
        if thought:
            self._keeper.thought(thought, None)

    def _frame(self, data: bytes, name: str, out: list[StreamEvent]) -> None:
        self.frames += data.strip() != b"[DONE]"
        super()._frame(data, name, out)

    def _strict(self, data: bytes) -> Frame:
        return strict_frame(data)

    def _lenient(self, data: bytes) -> list[Frame]:
        try:
            return [strict_frame(data)]  # one of several lines may be good
        except (msgspec.DecodeError, RecursionError):
            return lenient_frames(data) or []

    def _reread(self, data: bytes, name: str, out: list[StreamEvent]) -> bool:
        if super()._reread(data, name, out):
            return True
        # A frame that was cut off by the next one, glued to it on one line: the second of them.
        _, glue, rest = data.rpartition(b"data:")
        return bool(glue) and super()._reread(rest.lstrip(), name, out)

    def _event(self, event: Frame, data: bytes, name: str, out: list[StreamEvent]) -> None:
        if event.candidates is None and not event.says_something:
            self._other(data, name)
        else:
            self._take_frame(event, out)

    def _error(self, reason: errors.Reason, out: list[StreamEvent]) -> None:
        self._provider_error(reason)

    def _only_text(self, frame: Frame) -> Part | None:
        """The hot path: a piece of text or of reasoning, and nothing else but usage. None when the frame is anything more."""
        if (
            (candidates := frame.candidates)
            and len(candidates) == 1
            and (content := (candidate := candidates[0]).content) is not None
            and (parts := content.parts)
            and len(parts) == 1
            and (part := parts[0]).text
            and part.function_call is None
            and part.thought_signature is None
            and candidate.finish_reason is None
            and frame.prompt_feedback is None
            and (candidate.index or 0) == self._index
            and frame.error is ABSENT
        ):
            if frame.usage_metadata is not None:
                self._usage.add(frame.usage_metadata)
            return part
        return None

    def _other(self, data: bytes, name: str) -> None:
        """A JSON object without any field of this wire: an error in one of the bare shapes, or nothing that concerns us."""
        if name == "error":
            self._provider_error(errors.reason_of(data))
        elif is_bare_error(value := json_in(data)):
            self._provider_error(errors.reason_in(value))

    def _take_frame(self, frame: Frame, out: list[StreamEvent]) -> None:
        self._seen = True
        if frame.candidates:
            for candidate in frame.candidates:
                self._candidate(candidate, out)
        if frame.usage_metadata is not None:
            self._usage.add(frame.usage_metadata)
        if frame.prompt_feedback is not None and frame.prompt_feedback.block_reason:
            self._blocked(frame.prompt_feedback)
        if frame.error is not ABSENT:
            self._provider_error(errors.reason_of_raw(frame.error))

    def _candidate(self, candidate: Candidate, out: list[StreamEvent]) -> None:
        index = candidate.index or 0
        if self._index is None:
            self._index = index
        elif index != self._index:
            return  # one is asked for: others are not the answer
        content = candidate.content
        if content is not None and content.parts:
            for part in content.parts:
                if part.function_call is not None:
                    self._tools.add(part.function_call, part.thought_signature)
                    if self._tools.overflowed:
                        self._fail("the answer's tool calls are larger than any turn needs", retry=False)
                else:
                    self._part(part, out)
        if candidate.finish_reason:
            self.finish = mend(candidate.finish_reason)
            self._finish_message = candidate.finish_message or ""

    def _part(self, part: Part, out: list[StreamEvent]) -> None:
        text = part.text
        signature = part.thought_signature
        if text is None:
            own = _own_parts(part)
            if own and (signature or not _is_file(own)):
                self._keeper.whole(own, signature)
            elif not own and signature:
                self._keeper.text(0, signature)
            return
        kind: type[Text | Reasoning] = Reasoning if part.thought else Text
        if self._odd and text:
            text = self._joined(kind, text)
        if text:
            out.append(kind(text))
        if part.thought:
            self._keeper.thought(len(text), signature)
        else:
            self._keeper.text(len(text), signature)

    def _blocked(self, feedback: PromptFeedback) -> None:
        self.complete = True
        self.finish = BLOCKED
        said = f": {feedback.block_reason_message}" if feedback.block_reason_message else ""
        message = errors.one_line(f"the provider blocked the prompt: {feedback.block_reason}{said}")
        self._failure = (Failure("blocked", message, "ask in another way, or leave out what is not needed"), False)

    def _bare_body(self, out: list[StreamEvent]) -> None:
        frames, others = bare_frames(self._bare_json())
        for frame in frames:
            self._odd = True
            self._take_frame(frame, out)
        for value in others:
            if is_bare_error(value):
                self._provider_error(errors.reason_in(value))

    def _end(self, out: list[StreamEvent]) -> None:
        self.ended = True
        if self._stray:
            self._bare_body(out)
        for kind in self._halves_left(out):
            if kind is Text:
                self._keeper.text(1, None)
        self.complete = self.complete or self.finish is not None
        self.calls = self._tools.finish(limited=self.finish != "STOP")
        self._judge()
        usage = UsageReported(self._usage.total())
        if self._failure is not None:
            out += [usage, Failed(*self._failure, self._tools.names, self.finish)]
            return
        kept = self._keeper.opaque()
        if kept is not None:
            out.append(Opaque(kept))
        whole, cut = split_calls(self.calls)
        out += [*whole, usage, Finished(self._stop_reason(whole=bool(whole), cut=bool(cut)), self.finish, cut)]

    def _judge(self) -> None:
        """What an answer without an error of its own still fails for."""
        reason = self.finish or ""
        self._fail_unless_whole("frame of it", seen=self._seen)
        if self._failure is None and reason in _WENT_WRONG:
            said = f": {self._finish_message}" if self._finish_message else ""
            message = errors.one_line(f"the model stopped with {reason}{said}")
            retry = _WENT_WRONG[reason]
            self._failure = (Failure("provider", message, "try again, or another model (-m)"), retry)

    def _stop_reason(self, *, whole: bool, cut: bool) -> str:
        said = STOP_REASONS.get(self.finish or "", "error")
        if said != "stop":
            return said
        if whole:
            return "tool_calls"
        return "error" if cut else "stop"


_OWN: Final[dict[str, str]] = {
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "tool_call": "toolCall",
    "tool_response": "toolResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
}


def _own_parts(part: Part) -> dict[str, Raw]:
    """What the provider made for itself in a part, by the wire's field name."""
    fields = ((wire, getattr(part, name)) for name, wire in _OWN.items())
    return {wire: raw for wire, raw in fields if raw is not ABSENT and raw != b"null"}


def _is_file(own: dict[str, Raw]) -> bool:
    """Files are large, and nobody asked for them: without a signature they are not kept."""
    return "inlineData" in own or "fileData" in own
