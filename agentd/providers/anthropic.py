"""The anthropic wire, decoded: the bytes of a streamed message in, stream events out. Sans-IO, never raises.

What counts as the end: `message_stop`, or the end of the body after a stop_reason. An `error` event ends the stream at once:
the wire sends nothing after it. So does a second message_start after content began: two answers were spliced, and what would
follow belongs to neither. Calls are given at the end, when they are known to be complete, and none after a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from agentd.providers import errors
from agentd.providers.anthropic_blocks import Blocks
from agentd.providers.anthropic_event import (
    Block,
    Delta,
    Event,
    Message,
    StopDetails,
    lenient_event,
    strict_event,
    whole_message,
)
from agentd.providers.anthropic_usage import UsageMeter
from agentd.providers.chat_chunk import ABSENT
from agentd.providers.openai_chat import STOP_REASONS as CHAT_STOP_REASONS
from agentd.providers.openai_chat import new_call_id
from agentd.providers.stream import (
    Failed,
    Finished,
    Opaque,
    Reasoning,
    Refusal,
    StreamEvent,
    Text,
    UsageReported,
)
from agentd.providers.tool_input import mend
from agentd.providers.wire_decoder import WireDecoder, is_bare_error, json_in, split_calls

# Other servers of this wire also say the words of openai-chat. A paused turn is one that a limit cut: the provider stops a
# long run of its own tools, and another request goes on with it.
STOP_REASONS: Final = {**CHAT_STOP_REASONS, "pause_turn": "length"}
_ERROR_WORDS: Final = re.compile("error|fail|abort|unavailable|overload|timeout|cancel|malformed", re.IGNORECASE)

# An error inside a stream has a type but no status; these are the statuses that the same errors have outside of one.
_STATUS: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_TYPES: Final = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    "ping",
)  # fmt: skip


class AnthropicDecoder(WireDecoder[Event]):
    """One answer. `new_id` makes ids for calls that came without. `frames` leaves out pings: a stalled model sends them."""

    _heads = frozenset(f"event: {name}".encode() for name in _TYPES)
    _model = ""
    _explanation = ""

    def __init__(self, *, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__()
        self._usage = UsageMeter()
        self._blocks = Blocks(new_id)
        self._chars = 0  # of text so far

    def _take(self, frames: list[bytes], out: list[StreamEvent]) -> int:
        if self._odd:
            return 0
        taken = 0
        for taken, data in enumerate(frames):
            try:
                event = strict_event(data)
            except (msgspec.DecodeError, RecursionError):
                return taken
            if event.error is not ABSENT:
                return taken
            kind = event.type
            if kind == "content_block_delta" and (delta := event.delta) is not None:
                self.frames += 1
                if delta.type == "text_delta" and (text := delta.text):
                    self._chars += len(text)
                    out.append(Text(text))
                else:
                    self._delta(event.index, delta, out)
            elif kind in _HANDLERS:
                self.frames += 1
                _HANDLERS[kind](self, event, out)
                if self.ended:
                    break
            elif kind != "ping":  # its event line or its data matter
                return taken
        return len(frames)

    def _strict(self, data: bytes) -> Event:
        return strict_event(data)

    def _lenient(self, data: bytes) -> list[Event]:
        event = lenient_event(data)
        return [] if event is None else [event]

    def _event(self, event: Event, data: bytes, name: str, out: list[StreamEvent]) -> None:
        kind = event.type or name
        if event.error is not ABSENT and (reason := errors.reason_of_raw(event.error)) is not None:
            self._error(reason, out)
        elif kind in _HANDLERS:
            self.frames += 1
            _HANDLERS[kind](self, event, out)
        elif kind == "message":
            self._whole(data, out)
        elif (
            kind != "ping"
        ):  # a type that is not the wire's: an error in one of the bare shapes, or nothing that concerns us
            value = json_in(data)
            if kind == "error" or is_bare_error(value):
                self._error(errors.reason_in(value), out)

    def _message_start(self, event: Event, out: list[StreamEvent]) -> None:
        self._begin(event.message or Message(), out)

    def _begin(self, message: Message, out: list[StreamEvent]) -> None:
        if self._blocks or self.finish is not None:
            self._fail("a second answer began inside the first (message_start twice)", retry=True)
            self._end(out)
            return
        self._model = message.model or self._model
        if message.usage is not None:
            self._usage.add(message.usage)
        for index, block in enumerate(message.content or ()):
            self._start(index, block, out)

    def _whole(self, data: bytes, out: list[StreamEvent]) -> None:
        """A message in one piece, from a server that does not stream."""
        message = whole_message(data)
        if message is None or self._blocks:
            return
        self.frames += 1
        self._odd = True
        self._begin(message, out)
        for index in range(len(message.content or ())):
            self._blocks.stop(index)
        self._stop(message.stop_reason, message.stop_details)
        self.complete = True
        self._end(out)

    def _block_start(self, event: Event, out: list[StreamEvent]) -> None:
        self._start(event.index, event.content_block or Block(), out)

    def _start(self, index: int | None, block: Block, out: list[StreamEvent]) -> None:
        self._blocks.start(index, block, self._chars)
        if self._blocks.overflowed:
            self._fail("the answer has more blocks than any turn needs", retry=False)
        if block.type == "thinking" and block.thinking:
            self._say(Reasoning, block.thinking, out)
        elif block.type == "text" and block.text:
            self._say(Text, block.text, out)

    def _block_delta(self, event: Event, out: list[StreamEvent]) -> None:
        if event.delta is not None:
            self._delta(event.index, event.delta, out)

    def _delta(self, index: int | None, delta: Delta, out: list[StreamEvent]) -> None:
        kind = delta.type
        if kind == "input_json_delta":
            piece = delta.partial_json
            self._blocks.argue(index, "" if piece is None and not self._odd else piece)
            if self._blocks.overflowed:
                self._fail("the answer's tool calls are larger than any turn needs", retry=False)
        elif kind == "text_delta":
            if delta.text:
                self._say(Text, delta.text, out)
        elif kind == "thinking_delta":
            if delta.thinking:
                self._blocks.thought(index, delta.thinking)
                self._say(Reasoning, delta.thinking, out)
        elif kind == "signature_delta":
            self._blocks.sign(index, delta.signature or "")

    def _block_stop(self, event: Event, out: list[StreamEvent]) -> None:
        self._blocks.stop(event.index)

    def _message_delta(self, event: Event, out: list[StreamEvent]) -> None:
        if event.usage is not None:
            self._usage.add(event.usage)
        if event.delta is not None:
            self._stop(event.delta.stop_reason, event.delta.stop_details)

    def _message_stop(self, event: Event, out: list[StreamEvent]) -> None:
        self.complete = True
        self._end(out)

    def _say(self, kind: type[Text | Reasoning], text: str, out: list[StreamEvent]) -> None:
        if self._odd and not (text := self._joined(kind, text)):
            return
        if kind is Text:
            self._chars += len(text)
        out.append(kind(text))

    def _stop(self, reason: str | None, details: StopDetails | None) -> None:
        if reason:
            self.finish = mend(reason)
        if details is not None and details.explanation:
            self._explanation = mend(details.explanation)

    def _error(self, reason: errors.Reason, out: list[StreamEvent]) -> None:
        known = next((_STATUS[word] for word in reason.code.split() if word in _STATUS), None)
        self._failure = errors.stream_failure(errors.Reason(reason.text, reason.status or known, reason.code))
        self._end(out)

    def _bare_body(self, out: list[StreamEvent]) -> None:
        if body := self._bare_json():
            self._whole(body, out)
            if not self.ended and (value := json_in(body)) is not None:
                self._error(errors.reason_in(value), out)

    def _end(self, out: list[StreamEvent]) -> None:
        if self._stray and self._failure is None and not self._blocks:
            self._bare_body(out)
            if self.ended:
                return
        self.ended = True
        self._halves_left(out)
        self.complete = self.complete or self.finish is not None
        if not (self.complete and self.frames and self.finish in STOP_REASONS) or self._blocks.lost:
            self._judge()
        said = STOP_REASONS.get((self.finish or "stop").lower(), "stop")
        usage = UsageReported(self._usage.total())
        if self._failure is not None:
            out += [usage, Failed(*self._failure, self._blocks.call_names, self.finish)]
            return
        self.calls = self._blocks.calls(whole=self.complete, limited=said == "length")
        refused = said in ("refusal", "filter")
        if refused and self._explanation:
            out.append(Refusal(self._explanation))
        if not refused and (kept := self._blocks.kept(self._model, self.calls, self._chars)) is not None:
            out.append(Opaque(kept))
        run, cut = split_calls(self.calls)
        if refused:
            run, cut = [], tuple(call.name or call.id for call in self.calls)
        out += [*run, usage, Finished(_reason(said, whole=bool(run), cut=bool(cut)), self.finish, cut)]

    def _judge(self) -> None:
        """What an answer without an error of its own still fails for."""
        self._fail_unless_whole("event of a message", seen=self.frames > 0)
        if self._failure is not None:
            return
        if self._blocks.lost:
            self._fail("a tool call came without its beginning", retry=True)
        elif self.finish and self.finish.lower() not in STOP_REASONS and _ERROR_WORDS.search(self.finish):
            self._failure = errors.stream_failure(errors.Reason(f"the model stopped with {self.finish}", 502))


def _reason(said: str, *, whole: bool, cut: bool) -> str:
    """Decided by what came where the label and the content disagree."""
    if said in ("length", "filter", "refusal"):
        return said
    if whole:
        return "tool_calls"
    return "error" if cut else "stop"


_HANDLERS: Final[dict[str | None, Callable[[AnthropicDecoder, Event, list[StreamEvent]], None]]] = {
    "content_block_delta": AnthropicDecoder._block_delta,
    "content_block_start": AnthropicDecoder._block_start,
    "content_block_stop": AnthropicDecoder._block_stop,
    "message_start": AnthropicDecoder._message_start,
    "message_delta": AnthropicDecoder._message_delta,
    "message_stop": AnthropicDecoder._message_stop,
}
