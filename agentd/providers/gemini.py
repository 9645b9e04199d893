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
from agentd.providers.chat_chunk import ABSENT, parse_json
from agentd.providers.gemini_bare import BareJson
from agentd.providers.gemini_calls import GeminiCalls
from agentd.providers.gemini_frame import (
    Candidate,
    Frame,
    Part,
    PromptFeedback,
    frame_end,
    lenient_frames,
    regular_frames,
    strict_frame,
)
from agentd.providers.gemini_kept import Keeper
from agentd.providers.gemini_usage import UsageMeter
from agentd.providers.halves import Halves
from agentd.providers.openai_chat import new_call_id
from agentd.providers.sse import MAX_LINE_BYTES, Item, SSEDecoder, Stray
from agentd.providers.sse import Frame as Data
from agentd.providers.stream import Failed, Finished, Opaque, Reasoning, StreamEvent, Text, UsageReported
from agentd.providers.tool_calls import CutCall
from agentd.providers.tool_input import mend
from tracewriter.events import Failure, ToolCall

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
_MAX_REST_BYTES: Final = (
    4096  # it is copied with every piece that comes: longer lines are left to the framing, which does not
)
_TRY_AGAIN: Final = "try again; if it stays, the server is not what it says"


class GeminiDecoder:
    """One answer. `new_id` makes ids for calls that came without."""

    def __init__(self, *, new_id: Callable[[], str] = new_call_id) -> None:
        self.frames = 0  # data frames seen: what a stall is measured by
        self.ended = False  # the last event was given
        self.complete = False  # a terminal mark was seen
        self.finish: str | None = None
        self.calls: list[ToolCall | CutCall] = []  # all calls in order, once the stream has ended
        self._finish_message = ""
        self._sse = SSEDecoder()
        self._rest = b""  # the beginning of a line that the framing has not been given yet
        self._keeper = Keeper()
        self._tools = GeminiCalls(new_id, self._keeper)
        self._usage = UsageMeter()
        self._bare = BareJson()
        self._halves: Halves[type[Text | Reasoning]] = Halves()
        self._odd = False  # a frame needed the lenient reading: texts may hold halves of surrogate pairs
        self._seen = False  # a frame of this wire came
        self._index: int | None = None  # the candidate that is the answer
        self._failure: tuple[Failure, bool] | None = None

    @property
    def settled(self) -> bool:
        """Nothing that matters but usage can still come: the reason to finish, or an error, was seen."""
        return self.ended or self.finish is not None or self._failure is not None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that became complete with these bytes."""
        out: list[StreamEvent] = []
        if not self.ended:
            if self._rest:
                data, self._rest = self._rest + data, b""
            idle = self._sse.idle
            if not idle and (end := frame_end(data)):
                self._items(self._sse.feed(data[:end]), out)
                data = data[end:]
                idle = self._sse.idle
            if idle:
                data = self._regular(data, out)
            if data:
                self._items(self._sse.feed(data), out)
            if self._sse.overflowed:
                self._fail("protocol", f"a line of the stream is longer than {MAX_LINE_BYTES} bytes", retry=False)
                self._end(out)
        return out

    def end(self) -> list[StreamEvent]:
        """The body is over: what was still open, then usage and the end."""
        out: list[StreamEvent] = []
        if not self.ended:
            self._items(self._sse.feed(self._rest) + self._sse.end(), out)
            self._end(out)
        return out

    def _regular(self, data: bytes, out: list[StreamEvent]) -> bytes:
        """Takes what can be decoded at once, and the beginning of a line after it; gives what is left for the framing."""
        found = regular_frames(data)
        if found is not None:
            frames, taken = found
            self.frames += len(frames)
            for frame in frames:
                if not self._plain_text(frame, out):
                    self._frame(frame, out)
            data = data[taken:]
        if len(data) <= _MAX_REST_BYTES and b"\n" not in data and b"\r" not in data:
            self._rest, data = data, b""
        return data

    def _items(self, items: list[Item], out: list[StreamEvent]) -> None:
        for item in items:
            if isinstance(item, Stray):
                self._stray(item.line)
                continue
            try:
                frame = strict_frame(item.data)
            except (msgspec.DecodeError, RecursionError):
                self._odd_data(item, out)
                continue
            self.frames += 1
            if frame.candidates is None and not frame.says_something:
                self._other(item.data, item.event)
            elif not self._plain_text(frame, out):
                self._frame(frame, out)

    def _plain_text(self, frame: Frame, out: list[StreamEvent]) -> bool:
        """The hot path: a piece of text or of reasoning and nothing else. False when the frame is anything more."""
        candidates = frame.candidates
        if candidates is None or len(candidates) != 1 or self._odd:
            return False
        candidate = candidates[0]
        content = candidate.content
        if content is None or candidate.finish_reason is not None or (candidate.index or 0) != self._index:
            return False
        parts = content.parts
        if parts is None or len(parts) != 1 or frame.error is not ABSENT or frame.prompt_feedback is not None:
            return False
        part = parts[0]
        text = part.text
        if not text or part.thought_signature is not None or part.function_call is not None:
            return False
        if part.thought:
            out.append(Reasoning(text))
            self._keeper.thought(len(text), None)
        else:
            out.append(Text(text))
            self._keeper.text(len(text))
        if frame.usage_metadata is not None:
            self._usage.add(frame.usage_metadata)
        return True

    def _odd_data(self, item: Data, out: list[StreamEvent]) -> None:
        """Data that is no frame at first sight."""
        data = item.data
        if data.strip() == b"[DONE]":
            return  # some proxies say so; the answer is complete when it has a reason to be
        self.frames += 1
        frames = lenient_frames(data) or _lines(data) or _glued(data)
        if frames:
            self._odd = True
            for frame in frames:
                self._frame(frame, out)
        elif item.event == "error":
            self._provider_error(errors.reason_of(data))
        elif data.lstrip()[:1] in (b"{", b"[") and self.finish is None:
            shown = errors.one_line(data.decode("utf-8", "replace"), limit=80)
            self._fail("protocol", f"a frame of the stream could not be read: {shown}", retry=True)

    def _other(self, data: bytes, event: str) -> None:
        """A JSON object without any field of this wire: an error in one of the bare shapes, or nothing that concerns us."""
        if event == "error":
            self._provider_error(errors.reason_of(data))
            return
        try:
            value = parse_json(data)
        except ValueError:
            return
        if isinstance(value, dict):
            self._maybe_error(value)

    def _maybe_error(self, value: dict[str, object]) -> None:
        if (
            value.get("type") == "error"
            or "detail" in value
            or ("message" in value and value.keys() & {"code", "status"})
        ):
            self._provider_error(errors.reason_in(value))

    def _stray(self, line: bytes) -> None:
        if line.startswith(b"error:"):
            self._provider_error(errors.reason_of(line[6:].strip()))
        else:
            self._bare.add(line)

    def _frame(self, frame: Frame, out: list[StreamEvent]) -> None:
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
                        self._fail("protocol", "the answer's tool calls are larger than any turn needs", retry=False)
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
            text = self._halves.whole(kind, text)
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

    def _provider_error(self, reason: errors.Reason | None) -> None:
        if reason is not None and (self._failure is None or self._failure[0].kind == "protocol"):
            said = reason.text or "an error without a reason"
            self._failure = errors.stream_failure(msgspec.structs.replace(reason, text=said))

    def _fail(self, kind: str, message: str, *, retry: bool) -> None:
        if self._failure is None:
            self._failure = (Failure(kind, message, _TRY_AGAIN * retry), retry)

    def _bare_body(self, out: list[StreamEvent]) -> None:
        """What came without any framing."""
        frames, others = self._bare.frames()
        for frame in frames:
            self._odd = True
            self._frame(frame, out)
        for value in others:
            self._maybe_error(value)
        if self._bare.overflowed:
            self._fail("protocol", "the answer is no event stream, and too long to be read as one piece", retry=False)

    def _end(self, out: list[StreamEvent]) -> None:
        self.ended = True
        self._bare_body(out)
        for kind in self._halves.left():
            out.append(kind("\ufffd"))
            if kind is Text:
                self._keeper.text(1, None)
        self.complete = self.complete or self.finish is not None
        self.calls = self._tools.finish(limited=self.finish != "STOP")
        self._judge()
        usage = UsageReported(self._usage.total())
        if self._failure is not None:
            failure, retry = self._failure
            out += [usage, Failed(failure, retry, self._tools.names, self.finish)]
            return
        kept = self._keeper.opaque()
        if kept is not None:
            out.append(Opaque(kept))
        whole = [call for call in self.calls if isinstance(call, ToolCall)]
        cut = tuple(call.name or call.id for call in self.calls if isinstance(call, CutCall))
        out += [*whole, usage, Finished(self._stop_reason(whole=bool(whole), cut=bool(cut)), self.finish, cut)]

    def _judge(self) -> None:
        """What an answer without an error of its own still fails for."""
        reason = self.finish or ""
        if not self._seen:
            self._fail("truncated", "the answer was empty: not one frame of it came", retry=True)
        elif not self.complete:
            self._fail("truncated", "the stream ended before the answer was complete", retry=True)
        elif self._failure is None and reason in _WENT_WRONG:
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


def _lines(data: bytes) -> list[Frame]:
    """Frames that were sent without the blank line between them; empty when a line is none."""
    frames: list[Frame] = []
    for line in data.split(b"\n"):
        try:
            frames.append(strict_frame(line))
        except (msgspec.DecodeError, RecursionError):
            found = lenient_frames(line)
            if not found:
                return []
            frames += found
    return frames


def _glued(data: bytes) -> list[Frame]:
    """A frame that was cut off by the next one, glued to it on one line: the second of them."""
    _, glue, rest = data.rpartition(b"data:")
    return (lenient_frames(rest.lstrip()) or []) if glue else []
