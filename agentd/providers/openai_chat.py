"""The openai-chat wire, decoded: the bytes of a streamed chat completion in, stream events out. Sans-IO, never raises.

What counts as the end: `[DONE]`, or the end of the body after a finish_reason. Everything is read up to there, because
usage comes after the finish_reason, and sometimes after an error. An end without either mark is a failure, and so is any
error in the stream (a field `error` in a chunk or in a choice, an `error` event or field, bare JSON without framing).
Calls are given at the end, when they are known to be complete. A frame that cannot be read is a failure too (text may
have been in it), but one that never was JSON, such as a comment in a data field, is skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from agentd.providers import errors
from agentd.providers.chat_chunk import (
    ABSENT,
    Choice,
    Chunk,
    Delta,
    Detail,
    Part,
    lenient_chunk,
    parse_json,
    strict_chunk,
)
from agentd.providers.chat_usage import UsageMeter
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
from agentd.providers.think import ThinkSplitter
from agentd.providers.tool_calls import CutCall, ToolCalls
from agentd.providers.tool_input import mend, tool_input
from tracewriter.events import Failure, ToolCall, Usage

_MAX_STRAY_BYTES: Final = (
    1024 * 1024
)  # lines outside the format: an error, or a whole answer of a server that cannot stream
_MANY_BYTES: Final = 1000  # of a piece for which the short way is worth its preparation
_MAX_WAITING: Final = 4096  # chunks of another choice kept until it is clear that choice 0 exists
_TRY_AGAIN: Final = "try again; if it stays, the server is not what it says"
_ANOTHER: Final = "ask for less at once, or ask another model"
_MAX_DETAIL_CHARS: Final = 4 * 1024 * 1024

STOP_REASONS: Final[dict[str, str]] = {
    **dict.fromkeys(("stop", "end_turn", "eos", "eos_token", "stop_sequence", "completed", "complete", "done"), "stop"),
    **dict.fromkeys(
        ("length", "max_tokens", "model_length", "max_output_tokens", "model_context_window_exceeded"), "length"
    ),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call", "tool_call"), "tool_calls"),
    **dict.fromkeys(
        ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "sensitive"), "filter"
    ),
    "refusal": "refusal",
}
# Reasons that say the answer failed, whatever the provider calls it; unknown ones of other words count as a plain stop.
_ERROR_WORDS: Final = (
    "error", "fail", "abort", "insufficient", "unavailable", "overload", "timeout", "cancel", "malformed",
)  # fmt: skip


def new_call_id() -> str:
    """An id for a call that came without one: 64 random bits, so unique over a session."""
    return f"call_{secrets.token_hex(8)}"


class OpenAIChatDecoder:
    """One answer. `think_split` tells inline <think> apart from text; `new_id` makes ids for calls that came without."""

    def __init__(self, *, think_split: bool = False, new_id: Callable[[], str] = new_call_id) -> None:
        self.frames = (
            0  # data frames seen: what a stall is measured by, because comments keep coming from a stalled model
        )
        self.complete = False  # a terminal mark was seen
        self.finish: str | None = None
        self.calls: list[ToolCall | CutCall] = []  # all calls in order, once the stream has ended
        self._sse = SSEDecoder()
        self._think = ThinkSplitter() if think_split else None
        self._tools = ToolCalls(new_id)
        self._usage = UsageMeter()
        self.ended = False  # the last event was given
        self._seen_chunk = False
        self._said = False  # text, reasoning or a refusal came
        self._refused = False
        self._native = ""
        self._failure: tuple[Failure, bool] | None = None
        self._stray: list[bytes] = []
        self._stray_bytes = 0
        self._choice: int | None = None  # the choice that is the answer
        self._waiting: list[Choice] = []
        self._details: list[Detail] = []
        self._details_chars = 0
        self._opaque_text = ""
        self._plain = self._think is None  # text is passed on as it comes
        self._odd = False  # a chunk needed the lenient reading: texts may hold halves of surrogate pairs
        self._halves: dict[type[Text | Reasoning | Refusal], str] = {}

    @property
    def settled(self) -> bool:
        """Nothing that matters but usage can still come: the reason to finish, or an error, was seen."""
        return self.ended or self.finish is not None or self._failure is not None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that became complete with these bytes."""
        out: list[StreamEvent] = []
        if not self.ended:
            only = self._sse.single(data)
            if only is not None:
                self._data(only, "", out)
                return out
            if len(data) >= _MANY_BYTES:
                if not self._sse.between:
                    begun = data.find(b"\n\n") + 2
                    self._items(self._sse.feed(data[:begun]), out)
                    data = data[begun:]
                data = self._many(data, out)
            self._items(self._sse.feed(data), out)
            if self._sse.overflowed and not self.ended:
                self._fail("protocol", f"a line of the stream is longer than {MAX_LINE_BYTES} bytes", retry=False)
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
        """Take the frames of the usual form that the bytes begin with; returns what is to be fed as ever."""
        taken = 0
        for line in self._sse.several(data):
            if self.ended or not line.startswith(b"data: {"):
                break
            self._data(line[6:], "", out)
            taken += len(line) + 2
        return data[taken:] if taken else data

    def _items(self, items: list[Item], out: list[StreamEvent]) -> None:
        for item in items:
            if self.ended:
                return
            if isinstance(item, Stray):
                self._stray_line(item.line)
            else:
                self._data(item.data, item.event, out)

    def _data(self, data: bytes, event: str, out: list[StreamEvent]) -> None:
        """One frame."""
        try:
            chunk = strict_chunk(data)
        except (msgspec.DecodeError, RecursionError):
            self._odd_frame(data, event, out)
            return
        self.frames += 1
        choices = chunk.choices
        if (
            choices
            and len(choices) == 1
            and (index := self._choice) is not None
            and index == (choice := choices[0]).index
            and chunk.usage is None
            and chunk.error is ABSENT
            and chunk.x_groq is None
        ):
            delta = choice.delta
            if (  # the hot path: a piece of the reasoning or of the answer, and nothing else
                delta is not None
                and self._plain
                and choice.error is ABSENT
                and not (
                    choice.finish_reason
                    or choice.native_finish_reason
                    or choice.usage
                    or delta.tool_calls
                    or delta.refusal
                    or delta.function_call
                    or delta.reasoning_text
                    or delta.reasoning_details
                    or delta.reasoning_opaque
                )
                and not isinstance(content := delta.content, list)
            ):
                if thought := delta.reasoning_content or delta.reasoning:
                    out.append(Reasoning(thought))
                    self._said = True
                if content:
                    out.append(Text(content))
                    self._said = True
                return
            self._answer(choice, out)
        else:
            self._chunk(chunk, data, event, out)

    def _odd_frame(self, data: bytes, event: str, out: list[StreamEvent]) -> None:
        """A frame that is no chunk at first sight: the end of the stream, or one to be read again."""
        if data.strip() == b"[DONE]":
            self.complete = True
            self._end(out)
            return
        self.frames += 1
        chunk = self._second_reading(data, event, out)
        if chunk is not None:
            self._chunk(chunk, data, event, out)

    def _second_reading(self, data: bytes, event: str, out: list[StreamEvent]) -> Chunk | None:
        chunk = lenient_chunk(data)
        if chunk is not None:
            self._odd, self._plain = True, False
            return chunk
        lines = data.split(b"\n")
        if len(lines) > 1 and all(lenient_chunk(line) for line in lines):
            for line in lines:  # frames that were sent without the blank line between them
                self._chunk(lenient_chunk(line) or Chunk(), line, "", out)
            return None
        _, glue, rest = data.rpartition(b"data:")
        if glue and (chunk := lenient_chunk(rest.lstrip())) is not None:
            return chunk  # a frame that was cut off by the next one, glued to it on one line
        if event == "error":
            self._provider_error(errors.reason_of(data))
        elif data.lstrip()[:1] in (b"{", b"[") and self.finish is None and self._failure is None:
            shown = errors.one_line(data.decode("utf-8", "replace"), limit=80)
            self._fail("protocol", f"a frame of the stream could not be read: {shown}", retry=True)
        return None

    def _chunk(self, chunk: Chunk, data: bytes, event: str, out: list[StreamEvent]) -> None:
        if chunk.error is not ABSENT:
            self._provider_error(errors.reason_of_raw(chunk.error))
        if chunk.usage is not None:
            self._usage.add(chunk.usage)
        if chunk.x_groq is not None:
            self._groq(chunk)
        if chunk.choices:
            self._seen_chunk = True
            for choice in chunk.choices:
                if (not choice.index and self._choice == 0) or self._is_ours(choice):
                    self._answer(choice, out)
        elif chunk.choices is None and chunk.usage is None and self._failure is None:
            self._no_chunk(data, event)
        else:
            self._seen_chunk = True

    def _groq(self, chunk: Chunk) -> None:
        if chunk.x_groq is not None:
            if chunk.x_groq.usage is not None:
                self._usage.add(chunk.x_groq.usage)
            if chunk.x_groq.error is not ABSENT:
                self._provider_error(errors.reason_of_raw(chunk.x_groq.error))

    def _no_chunk(self, data: bytes, event: str) -> None:
        """JSON without choices, usage or error: an error in one of the bare shapes, or nothing that concerns us."""
        try:
            value = parse_json(data)
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        bare = value.get("object") == "error" or value.get("type") == "error" or "detail" in value
        if event == "error" or bare or ("message" in value and ("code" in value or "status" in value)):
            self._provider_error(errors.reason_in(value))

    def _is_ours(self, choice: Choice) -> bool:
        """One choice is asked for. Where several come, 0 is the answer; another one alone is taken when no 0 comes."""
        if not choice.index:
            self._choice = 0
            self._waiting.clear()
            return True
        if self._choice is None and len(self._waiting) < _MAX_WAITING:
            self._waiting.append(choice)
        return False

    def _answer(self, choice: Choice, out: list[StreamEvent]) -> None:
        if choice.error is not ABSENT:
            self._provider_error(errors.reason_of_raw(choice.error))
        if choice.usage is not None:
            self._usage.add(choice.usage)
        delta = choice.delta or choice.message
        if delta is not None:
            thought = delta.reasoning_content or delta.reasoning or delta.reasoning_text
            if delta.reasoning_details:
                self._reasoning_details(delta.reasoning_details, bool(thought), out)
            if thought:
                self._say(Reasoning, thought, out)
            content = delta.content
            if content:
                if self._plain and isinstance(content, str):
                    out.append(Text(content))
                    self._said = True
                elif isinstance(content, str):
                    self._say(Text, content, out)
                else:
                    self._parts(content, Text, out)
            if delta.tool_calls:
                for tool in delta.tool_calls:
                    self._tools.add(tool)
            if delta.refusal or delta.function_call or delta.reasoning_opaque or self._tools.overflowed:
                self._rare(delta, out)
        if choice.finish_reason and choice.finish_reason != "null":
            self.finish = mend(choice.finish_reason)
        if choice.native_finish_reason:
            self._native = mend(choice.native_finish_reason)

    def _rare(self, delta: Delta, out: list[StreamEvent]) -> None:
        if delta.refusal:
            self._refused = True
            self._say(Refusal, delta.refusal, out)
        if delta.function_call is not None:
            self._tools.add_function(delta.function_call)
        if delta.reasoning_opaque:
            self._opaque_text = mend(delta.reasoning_opaque)
        if self._tools.overflowed:
            self._fail("protocol", "the answer's tool calls are larger than any turn needs", retry=False)

    def _parts(self, parts: list[Part], kind: type[Text | Reasoning], out: list[StreamEvent]) -> None:
        for part in parts:
            if isinstance(part.thinking, str):
                self._say(Reasoning, part.thinking, out)
            elif part.thinking:
                self._parts(part.thinking, Reasoning, out)
            if part.text:
                self._say(Reasoning if part.type in ("thinking", "reasoning") else kind, part.text, out)
            if part.refusal:
                self._refused = True
                self._say(Refusal, part.refusal, out)

    def _reasoning_details(self, details: list[Detail], said: bool, out: list[StreamEvent]) -> None:
        """Their text is shown unless the chunk says it elsewhere too; all of them are kept, to be sent back if they are signed."""
        for detail in details:
            text = detail.text or detail.summary
            if text and not said:
                self._say(Reasoning, text, out)
            self._details_chars += len(text or "") + len(detail.data or "") + len(detail.signature or "")
            if self._details_chars <= _MAX_DETAIL_CHARS:
                self._keep_detail(detail)

    def _keep_detail(self, detail: Detail) -> None:
        last = self._details[-1] if self._details else None
        if last is not None and last.type == detail.type and last.index == detail.index and not detail.data:
            last.text = _joined(last.text, detail.text)
            last.summary = _joined(last.summary, detail.summary)
            last.signature = detail.signature or last.signature
            last.id = last.id or detail.id
        else:
            self._details.append(detail)

    def _say(self, kind: type[Text | Reasoning | Refusal], text: str, out: list[StreamEvent]) -> None:
        self._said = True
        if self._odd:
            text = self._whole(kind, text)
            if not text:
                return
        if self._think is not None and kind is Text:
            out.extend(self._think.feed(text))
        else:
            out.append(kind(text))

    def _whole(self, kind: type[Text | Reasoning | Refusal], text: str) -> str:
        """Surrogate halves that two deltas carry are one character: the first half waits for the second."""
        text = self._halves.pop(kind, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[kind] = text[-1]
            text = text[:-1]
        return mend(text)

    def _provider_error(self, reason: errors.Reason | None) -> None:
        if reason is not None and (self._failure is None or self._failure[0].kind == "protocol"):
            self._failure = errors.stream_failure(reason)

    def _fail(self, kind: str, message: str, *, retry: bool) -> None:
        if self._failure is None:
            self._failure = (
                Failure(kind, message, _TRY_AGAIN if retry else _ANOTHER),
                retry,
            )

    def _stray_line(self, line: bytes) -> None:
        if line.startswith(b"error:"):
            self._provider_error(errors.reason_of(line[6:].strip()))
        elif self._stray_bytes + len(line) <= _MAX_STRAY_BYTES:
            self._stray.append(line)
            self._stray_bytes += len(line) + 1

    def _bare_body(self, out: list[StreamEvent]) -> None:
        """What came without any framing: an error, or the whole answer of a server that does not stream."""
        body = b"\n".join(self._stray).strip()
        self._stray.clear()
        if body[:1] not in (b"{", b"["):
            return
        chunk = lenient_chunk(body)
        if chunk is not None and chunk.choices is not None:
            self._odd, self._plain = True, False
            self._chunk(chunk, body, "", out)
            return
        try:
            value = parse_json(body)
        except ValueError:
            return
        self._provider_error(errors.reason_in(value))

    def _end(self, out: list[StreamEvent]) -> None:
        self.ended = True
        if self._stray and self._failure is None:
            self._bare_body(out)
        for choice in self._waiting if self._choice is None else ():
            if choice.index == self._waiting[0].index:
                self._answer(choice, out)
        for kind in tuple(self._halves):
            out.append(kind("\ufffd"))
        if self._think is not None:
            out.extend(self._think.end())
        self.complete = self.complete or self.finish is not None
        closed = self._tools.finish()
        self.calls = [call for call, _ in closed]
        usage = self._usage.total()
        self._judge(usage)
        cut = tuple(call.name or call.id for call in self.calls if isinstance(call, CutCall))
        if self._failure is not None:
            failure, retry = self._failure
            out.append(UsageReported(usage))
            out.append(Failed(failure, retry, self._tools.names, self.finish))
            return
        self._opaque([(call.id, extra) for call, extra in closed], out)
        whole = [call for call in self.calls if isinstance(call, ToolCall)]
        out.extend(whole)
        out.append(UsageReported(usage))
        out.append(Finished(self._stop_reason(whole=bool(whole), cut=bool(cut)), self.finish, cut))

    def _judge(self, usage: Usage | None) -> None:
        """What an answer without an error of its own still fails for."""
        if self._failure is not None:
            return
        if not self._seen_chunk:
            self._fail("truncated", "the answer was empty: not one chunk of a chat completion came", retry=True)
        elif not self.complete:
            self._fail("truncated", "the stream ended before the answer was complete", retry=True)
        elif self.finish is not None and self.finish.lower() not in STOP_REASONS and _is_error_word(self.finish):
            self._failure = errors.stream_failure(errors.Reason(f"the model stopped with {self.finish}", 502))
        elif not (self._said or self._tools or usage) and _is_error_word(self._native):
            self._failure = errors.stream_failure(errors.Reason(f"the model stopped with {self._native}", 502))

    def _stop_reason(self, *, whole: bool, cut: bool) -> str:
        """Decided by what came where the label and the content disagree: servers say `stop` with calls, and the reverse."""
        said = STOP_REASONS.get((self.finish or "stop").lower(), "stop")
        if said in ("length", "filter", "refusal"):
            return said
        if whole:
            return "tool_calls"
        if cut:
            return "error"
        if self._refused:
            return "refusal"
        return "stop"

    def _opaque(self, extras: list[tuple[str, Raw]], out: list[StreamEvent]) -> None:
        """What must go back with the conversation, each as a JSON object whose keys belong into the assistant message."""
        signed = any(detail.data or detail.signature for detail in self._details)
        if signed and self._details_chars <= _MAX_DETAIL_CHARS:
            out.append(_opaque_of({"reasoning_details": [_mended(detail) for detail in self._details]}))
        if self._opaque_text:
            out.append(_opaque_of({"reasoning_opaque": self._opaque_text}))
        given = {
            call_id: tool_input(bytes(raw).decode("utf-8", "replace")) for call_id, raw in extras if raw is not ABSENT
        }
        if extra := {call_id: raw for call_id, raw in given.items() if raw is not None}:
            out.append(_opaque_of({"extra_content": extra}))


def _opaque_of(value: dict[str, object]) -> Opaque:
    return Opaque(Raw(msgspec.json.encode(value)))


def _mended(detail: Detail) -> Detail:
    texts = {name: value for name, value in msgspec.structs.asdict(detail).items() if isinstance(value, str)}
    return msgspec.structs.replace(detail, **{name: mend(value) for name, value in texts.items()})


def _is_error_word(reason: str) -> bool:
    return any(word in reason.lower() for word in _ERROR_WORDS)


def _joined(first: str | None, second: str | None) -> str | None:
    return first + second if first and second else first or second
