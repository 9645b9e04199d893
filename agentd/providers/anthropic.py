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
from agentd.providers.chat_chunk import ABSENT, parse_json
from agentd.providers.halves import Halves
from agentd.providers.openai_chat import STOP_REASONS as CHAT_STOP_REASONS
from agentd.providers.openai_chat import new_call_id
from agentd.providers.sse import MAX_LINE_BYTES, Item, SSEDecoder, Stray
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
from agentd.providers.tool_calls import CutCall
from agentd.providers.tool_input import mend
from tracewriter.events import Failure, ToolCall

_MAX_STRAY_BYTES: Final = 1024 * 1024  # lines outside the format: an error, or a whole answer that was not streamed

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
_MANY_BYTES: Final = 1000  # of a piece for which the short way is worth its preparation
_TYPES: Final = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    "ping",
)  # fmt: skip
_NAMES: Final = {f"event: {name}".encode(): name for name in _TYPES}


class AnthropicDecoder:
    """One answer. `new_id` makes ids for calls that came without."""

    def __init__(self, *, new_id: Callable[[], str] = new_call_id) -> None:
        self.frames = (
            0  # events of the answer: what a stall is measured by, because pings keep coming from a stalled model
        )
        self.complete = False  # a terminal mark was seen
        self.ended = False  # the last event was given
        self.finish: str | None = None
        self.calls: list[ToolCall | CutCall] = []  # all calls in order, once the stream has ended
        self._sse = SSEDecoder(names=_NAMES)
        self._usage = UsageMeter()
        self._blocks = Blocks(new_id)
        self._model = ""
        self._chars = 0  # of text so far
        self._explanation = ""
        self._failure: tuple[Failure, bool] | None = None
        self._stray: list[bytes] = []
        self._stray_bytes = 0
        self._odd = False  # a frame needed the lenient reading: texts may hold halves of surrogate pairs
        self._halves: Halves[type[Text | Reasoning]] = Halves()

    @property
    def settled(self) -> bool:
        """Nothing that matters but usage can still come: the reason to finish, or an error, was seen."""
        return self.ended or self.finish is not None or self._failure is not None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that became complete with these bytes."""
        out: list[StreamEvent] = []
        if not self.ended:
            if len(data) >= _MANY_BYTES:
                data = self._many(data, out)
            self._items(self._sse.feed(data), out)
            if self._sse.overflowed and not self.ended:
                self._fail(f"a line of the stream is longer than {MAX_LINE_BYTES} bytes", retry=False)
                self._end(out)
        return out

    def end(self) -> list[StreamEvent]:
        """The body is over: what was still open, then usage and the end."""
        out: list[StreamEvent] = []
        if not self.ended:
            self._items(self._sse.end(), out)
            if not self.ended:
                self._end(out)
        return out

    def _many(self, data: bytes, out: list[StreamEvent]) -> bytes:
        """Take frames of the usual form, up to the first that is of another; returns what is to be fed as ever."""
        lines, taken = self._sse.regular(data), 0
        for line in lines:
            if not line.startswith(b"data: {"):
                break
            try:
                event = strict_event(line[6:])
            except (msgspec.DecodeError, RecursionError):
                break
            delta = event.delta
            if (  # the hot path: a piece of text and nothing else
                delta is not None
                and (text := delta.text)
                and delta.type == "text_delta"
                and event.type == "content_block_delta"
                and event.error is ABSENT
                and not self._odd
            ):
                self.frames += 1
                self._chars += len(text)
                out.append(Text(text))
            elif event.type in _TYPES:
                self._event(event, b"", "", out)
            else:  # its event line or its data matter
                break
            taken += 1
            if self.ended:
                break
        return data[data.rfind(b"\n\n") + 2 :] if lines and taken == len(lines) else _after(data, taken)

    def _items(self, items: list[Item], out: list[StreamEvent]) -> None:
        for item in items:
            if self.ended:
                return
            if isinstance(item, Stray):
                self._stray_line(item.line, out)
            else:
                try:
                    event = strict_event(item.data)
                except (msgspec.DecodeError, RecursionError):
                    self._second_reading(item.data, item.event, out)
                else:
                    self._event(event, item.data, item.event, out)

    def _second_reading(self, data: bytes, name: str, out: list[StreamEvent]) -> None:
        """A frame that the first reading refused. What is no JSON is skipped unless it began like some: text may be lost."""
        event = lenient_event(data)
        if event is not None:
            self._odd = True
            self._event(event, data, name, out)
            return
        lines = data.split(b"\n")
        if len(lines) > 1 and all(lenient_event(line) for line in lines):
            for line in lines:  # frames that were sent without the blank line between them
                if not self.ended:
                    self._event(lenient_event(line) or Event(), line, "", out)
        elif name == "error":
            self._error(errors.reason_of(data), out)
        elif data.lstrip()[:1] in (b"{", b"[") and not self.settled and data.strip() != b"[DONE]":
            shown = errors.one_line(data.decode("utf-8", "replace"), limit=80)
            self._fail(f"a frame of the stream could not be read: {shown}", retry=True)

    def _event(self, event: Event, data: bytes, name: str, out: list[StreamEvent]) -> None:
        kind = event.type or name
        if event.error is not ABSENT and (reason := errors.reason_of_raw(event.error)) is not None:
            self._error(reason, out)
            return
        if kind in _TYPES:
            self.frames += kind != "ping"
        if kind == "content_block_delta":
            self._delta(event.index, event.delta or Delta(), out)
        elif kind == "content_block_start":
            self._start(event.index, event.content_block or Block(), out)
        elif kind == "content_block_stop":
            self._blocks.stop(event.index)
        elif kind == "message_start":
            self._begin(event.message or Message(), out)
        elif kind == "message_delta":
            if event.usage is not None:
                self._usage.add(event.usage)
            if event.delta is not None:
                self._stop(event.delta.stop_reason, event.delta.stop_details)
        elif kind == "message_stop":
            self.complete = True
            self._end(out)
        elif kind == "message":
            self._whole(data, out)
        elif kind != "ping":
            self._unknown(data, kind, out)

    def _unknown(self, data: bytes, kind: str, out: list[StreamEvent]) -> None:
        """A type that is not the wire's: an error in one of the bare shapes, or nothing that concerns us."""
        try:
            value = parse_json(data)
        except ValueError:
            return
        bare = isinstance(value, dict) and (
            value.get("object") == "error"
            or "detail" in value
            or ("message" in value and ("code" in value or "status" in value))
        )
        if kind == "error" or bare:
            self._error(errors.reason_in(value), out)

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

    def _start(self, index: int | None, block: Block, out: list[StreamEvent]) -> None:
        self._blocks.start(index, block, self._chars)
        if self._blocks.overflowed:
            self._fail("the answer has more blocks than any turn needs", retry=False)
        if block.type == "thinking" and block.thinking:
            self._say(Reasoning, block.thinking, out)
        elif block.type == "text" and block.text:
            self._say(Text, block.text, out)

    def _delta(self, index: int | None, delta: Delta, out: list[StreamEvent]) -> None:
        kind = delta.type
        if kind == "text_delta":
            if delta.text:
                self._say(Text, delta.text, out)
        elif kind == "input_json_delta":
            piece = delta.partial_json
            self._blocks.argue(index, "" if piece is None and not self._odd else piece)
            if self._blocks.overflowed:
                self._fail("the answer's tool calls are larger than any turn needs", retry=False)
        elif kind == "thinking_delta":
            if delta.thinking:
                self._blocks.thought(index, delta.thinking)
                self._say(Reasoning, delta.thinking, out)
        elif kind == "signature_delta":
            self._blocks.sign(index, delta.signature or "")

    def _say(self, kind: type[Text | Reasoning], text: str, out: list[StreamEvent]) -> None:
        if self._odd and not (text := self._halves.whole(kind, text)):
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

    def _fail(self, message: str, *, retry: bool, kind: str = "protocol") -> None:
        if self._failure is None:
            hint = "try again; if it stays, the server is not what it says" * retry
            self._failure = Failure(kind, message, hint), retry

    def _stray_line(self, line: bytes, out: list[StreamEvent]) -> None:
        if line.startswith(b"error:"):
            self._error(errors.reason_of(line[6:].strip()), out)
        elif self._stray_bytes + len(line) <= _MAX_STRAY_BYTES:
            self._stray.append(line)
            self._stray_bytes += len(line) + 1

    def _bare_body(self, out: list[StreamEvent]) -> None:
        """What came without any framing: an error, or the whole answer of a server that does not stream."""
        body = b"\n".join(self._stray).strip()
        self._stray.clear()
        if body[:1] not in (b"{", b"["):
            return
        self._whole(body, out)
        if self.ended:
            return
        try:
            self._error(errors.reason_in(parse_json(body)), out)
        except ValueError:
            return

    def _end(self, out: list[StreamEvent]) -> None:
        if self._stray and self._failure is None and not self._blocks:
            self._bare_body(out)
            if self.ended:
                return
        self.ended = True
        for kind in self._halves.left():
            out.append(kind("\ufffd"))
        self.complete = self.complete or self.finish is not None
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
        run = [call for call in self.calls if isinstance(call, ToolCall) and not refused]
        cut = tuple(call.name or call.id for call in self.calls if refused or isinstance(call, CutCall))
        out += [*run, usage, Finished(_reason(said, whole=bool(run), cut=bool(cut)), self.finish, cut)]

    def _judge(self) -> None:
        """What an answer without an error of its own still fails for."""
        if self._failure is not None:
            return
        if not self.frames:
            self._fail("the answer was empty: not one event of a message came", retry=True, kind="truncated")
        elif not self.complete:
            self._fail("the stream ended before the answer was complete", retry=True, kind="truncated")
        elif self._blocks.lost:
            self._fail("a tool call came without its beginning", retry=True)
        elif self.finish and self.finish.lower() not in STOP_REASONS and _ERROR_WORDS.search(self.finish):
            self._failure = errors.stream_failure(errors.Reason(f"the model stopped with {self.finish}", 502))


def _after(data: bytes, frames: int) -> bytes:
    """What comes after so many regular frames."""
    place = 0
    for _ in range(frames):
        place = data.index(b"\n\n", place) + 2
    return data[place:]


def _reason(said: str, *, whole: bool, cut: bool) -> str:
    """Decided by what came where the label and the content disagree."""
    if said in ("length", "filter", "refusal"):
        return said
    if whole:
        return "tool_calls"
    return "error" if cut else "stop"
