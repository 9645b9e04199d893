"""The openai-responses wire, decoded: the bytes of a streamed response in, stream events out. Sans-IO, never raises.

What counts as the end: `response.completed`, `response.incomplete`, `response.failed` or `response.cancelled`; the stream is
over with it, because usage is in it. `[DONE]` and the end of the body say nothing: without one of the four the answer is cut.
An `error` event is a failure, but the stream is read on, as the end may come after it. Texts come up to four times (in
deltas, with the end of the part, of the item and of the response); each is given once, and what an end adds to its deltas
is given then. Calls are given at the end, when they are known to be complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from agentd.providers import errors
from agentd.providers.chat_chunk import ABSENT, parse_json
from agentd.providers.chat_usage import UsageMeter
from agentd.providers.halves import Halves
from agentd.providers.openai_chat import STOP_REASONS as CHAT_STOP_REASONS
from agentd.providers.openai_chat import new_call_id
from agentd.providers.responses_event import (
    Event,
    Item,
    Response,
    lenient_event,
    raw_item,
    raw_output,
    strict_event,
)
from agentd.providers.responses_items import OURS, Items, OpenItem, Said
from agentd.providers.responses_kept import KeptOutput, encode_kept
from agentd.providers.sse import MAX_LINE_BYTES, SSEDecoder, Stray
from agentd.providers.sse import Item as SSEItem
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
from agentd.providers.tool_calls import CutCall
from agentd.providers.tool_input import mend
from tracewriter.events import Failure, ToolCall

_MAX_STRAY_BYTES: Final = 1024 * 1024  # lines outside the format: an error, or a whole answer that was not streamed

_STATUS: Final = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
    "response.canceled": "cancelled",
}
_ERRORS: Final = ("error", "response.error")
# Sent to keep a connection open while nothing happens: no progress.
_IDLE: Final = frozenset(
    ("ping", "keepalive", "heartbeat", "response.ping", "response.keepalive", "response.heartbeat")
)
# Progress, and nothing of it is for us: the commonest, so that they cost nothing.
_SILENT: Final = frozenset(
    (
        "response.content_part.added",
        "response.reasoning_summary_part.added",
        "response.output_text.annotation.added",
        "response.code_interpreter_call_code.delta",
        "response.mcp_call_arguments.delta",
    )
)
_KINDS: Final[dict[str, type[Text | Reasoning | Refusal]]] = {
    "text": Text,
    "refusal": Refusal,
    "summary": Reasoning,
    "thought": Reasoning,
}
_PARTS: Final = {
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "summary",
    "reasoning_text": "thought",
}
_DELTAS: Final = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "thought",
    "response.reasoning.delta": "thought",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_summary.delta": "summary",
}
_ENDS: Final = {name.replace(".delta", ".done"): part for name, part in _DELTAS.items()}


class OpenAIResponsesDecoder:
    """One answer. `think_split` tells inline <think> apart from text; `new_id` makes ids for calls that came without."""

    def __init__(self, *, think_split: bool = False, new_id: Callable[[], str] = new_call_id) -> None:
        self.frames = 0  # events seen: what a stall is measured by; those that keep a connection open are not counted
        self.complete = False  # a terminal mark was seen
        self.ended = False  # the last event was given
        self.finish: str | None = None
        self.calls: list[ToolCall | CutCall] = []  # all calls in order, once the stream has ended
        self._sse = SSEDecoder(names=_NAMES)
        self._think = ThinkSplitter() if think_split else None
        self._items = Items(new_id)
        self._usage = UsageMeter()
        self._model = ""
        self._reason = ""
        self._said: Said | None = None  # the part that the last event was a piece of, and how it was named
        self._said_id: str | None = None
        self._said_type: str | None = None
        self._said_kind: type[Text | Reasoning | Refusal] = Text
        self._said_content: int | None = None
        self._said_summary: int | None = None
        self._refused = False
        self._failure: tuple[Failure, bool] | None = None
        self._stray: list[bytes] = []
        self._stray_bytes = 0
        self._plain = self._think is None  # text is passed on as it comes
        self._odd = False  # an event needed the lenient reading: texts may hold halves of surrogate pairs
        self._halves: Halves[type[Text | Reasoning | Refusal]] = Halves()

    @property
    def settled(self) -> bool:
        """Nothing that matters but usage can still come."""
        return self.ended or self._failure is not None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that became complete with these bytes."""
        out: list[StreamEvent] = []
        if not self.ended:
            self._frames(self._sse.feed(data), out)
            if self._sse.overflowed and not self.ended:
                self._fail(f"a line of the stream is longer than {MAX_LINE_BYTES} bytes", retry=False)
                self._end(out)
        return out

    def end(self) -> list[StreamEvent]:
        """The body is over: what was still open, then usage and the end."""
        out: list[StreamEvent] = []
        if not self.ended:
            self._frames(self._sse.end(), out)
            if self._stray and self._failure is None and not self.ended:
                self._bare_body(out)
            if not self.ended:
                self._end(out)
        return out

    def _frames(self, frames: list[SSEItem], out: list[StreamEvent]) -> None:
        said = self._said
        for frame in frames:
            if isinstance(frame, Stray):
                self._stray_line(frame.line)
                continue
            try:
                event = strict_event(frame.data)
            except (msgspec.DecodeError, RecursionError):
                self._second_reading(frame.data, frame.event, out)
            else:
                if (  # the hot path: one more piece of the same text
                    said is not None
                    and (delta := event.delta)
                    and event.item_id == self._said_id
                    and event.type == self._said_type
                    and event.content_index == self._said_content
                    and event.summary_index == self._said_summary
                ):
                    self.frames += 1
                    said.chars += len(delta)
                    said.last = delta
                    out.append(self._said_kind(delta))
                    continue
                self._said = said = None
                if event.type in _SILENT:
                    self.frames += 1
                    continue
                self._event(event, frame.data, frame.event, out)
            if self.ended:
                return
            said = self._said

    def _second_reading(self, data: bytes, name: str, out: list[StreamEvent]) -> None:
        """A frame that the first reading refused. What is no JSON is skipped unless it began like some: text may be lost."""
        self._said = None
        event = lenient_event(data)
        lines = data.split(b"\n")
        if event is not None:
            self._odd, self._plain = True, False
            self._event(event, data, name, out)
        elif len(lines) > 1 and all(lenient_event(line) for line in lines):
            for line in lines:  # frames that were sent without the blank line between them
                if not self.ended:
                    self._event(lenient_event(line) or Event(), line, "", out)
        elif data.strip() == b"[DONE]":
            return
        elif name == "error":
            self._provider_error(errors.reason_of(data))
        elif data.lstrip()[:1] in (b"{", b"[") and not self.settled:
            shown = errors.one_line(data.decode("utf-8", "replace"), limit=80)
            self._fail(f"a frame of the stream could not be read: {shown}", retry=True)

    def _event(self, event: Event, data: bytes, name: str, out: list[StreamEvent]) -> None:
        kind = event.type or name
        handle = _HANDLERS.get(kind)
        if handle is not None:
            self.frames += 1
            handle(self, event, kind, data, out)
            if self._items.overflowed:
                self._fail("the answer has more or larger items than any turn needs", retry=False)
        elif not kind.startswith("response.") or kind == "response.error":
            self._no_event(event, kind, data, out)
        elif kind not in _IDLE:
            self.frames += 1

    def _begun(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.response is not None and event.response.model:
            self._model = event.response.model

    def _piece(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if not event.delta:
            return
        part = _DELTAS[kind]
        index = event.summary_index if part == "summary" else event.content_index
        said = self._items.part(self._items.of_event(event, _types_of(part)), part, index)
        said.add(event.delta)
        if self._plain and event.item_id:
            self._said, self._said_id, self._said_type, self._said_kind = said, event.item_id, kind, _KINDS[part]
            self._said_content, self._said_summary = event.content_index, event.summary_index
        self._say(_KINDS[part], event.delta, out)

    def _text_done(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        part = _ENDS[kind]
        index = event.summary_index if part == "summary" else event.content_index
        self._rest(part, event, index, event.refusal if part == "refusal" else event.text, out)

    def _part_done(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.part is not None and (part := _PARTS.get(event.part.type or "")):
            index = event.summary_index if part == "summary" else event.content_index
            self._rest(part, event, index, event.part.refusal if part == "refusal" else event.part.text, out)

    def _rest(self, part: str, event: Event, index: int | None, whole: str | None, out: list[StreamEvent]) -> None:
        """A text is whole: what its deltas left out of it, if they left out anything."""
        if whole:
            item = self._items.of_event(event, _types_of(part))
            self._say(_KINDS[part], self._items.part(item, part, index).rest(whole), out)

    def _arguments(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if kind.endswith(".delta"):
            self._items.argue(event, _types_of(kind), event.delta, None)
        else:
            whole = event.arguments if "function" in kind else event.input
            self._items.argue(event, _types_of(kind), None, whole or "")

    def _item_added(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.item is not None:
            self._items.begin(event.item, event.output_index)

    def _item_done(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.item is None:
            return
        known = self._items.end(event.item, event.output_index)
        self._item(known, event.item, out)
        if event.item.type == "reasoning" and _worth(event.item):
            known.raw = raw_item(data)

    def _response_done(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        self._begun(event, kind, data, out)
        self._finish(_STATUS[kind], event.response or Response(error=event.error), data, out)

    def _no_event(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        """JSON that is no event: an error in one of its shapes, a whole response, or nothing that concerns us."""
        if event.object == "response":
            self._whole(data, out)
            return
        if event.error is not ABSENT and kind not in _ERRORS:
            self._provider_error(errors.reason_of_raw(event.error))
            return
        try:
            value = parse_json(data)
        except ValueError:
            return
        bare = isinstance(value, dict) and (
            event.object == "error"
            or "detail" in value
            or ("message" in value and ("code" in value or "status" in value))
        )
        if kind in _ERRORS or (bare and not kind):
            self._provider_error(errors.reason_in(value))

    def _whole(self, body: bytes, out: list[StreamEvent]) -> None:
        """A response in one piece, from a server that does not stream."""
        wrapped = b'{"response":' + body + b"}"
        event = lenient_event(wrapped)
        if event is None or event.response is None:
            return
        self.frames += 1
        self._odd, self._plain = True, False
        self._model = event.response.model or ""
        self._finish("completed", event.response, wrapped, out)

    def _item(self, known: OpenItem, item: Item, out: list[StreamEvent]) -> None:
        """An item is whole: what was not given of its texts yet."""
        if item.type not in ("message", "reasoning"):
            return
        own = "text" if item.type == "message" else "thought"
        for parts, default in ((item.summary, "summary"), (item.content, own)):
            texts: dict[str, list[tuple[int, str]]] = {}
            for index, part in enumerate(parts or ()):
                kind = _PARTS.get(part.type or default, "")
                kind = own if kind == "text" else kind
                text = part.refusal if kind == "refusal" else part.text
                if kind and text:
                    texts.setdefault(kind, []).append((index, text))
            for kind, found in texts.items():
                if (kind, None) in known.parts:  # its deltas did not say which part they were of
                    found = [(-1, "".join(text for _, text in found))]
                for index, text in found:
                    self._say(_KINDS[kind], self._items.part(known, kind, index).rest(text), out)

    def _finish(self, status: str, response: Response, data: bytes, out: list[StreamEvent]) -> None:
        """The response's end. Its status counts where it is one that ends."""
        said = (response.status or "").replace("canceled", "cancelled")
        status = said if said in _STATUS.values() else status
        details = response.incomplete_details
        self._reason = mend(details.reason) if status == "incomplete" and details and details.reason else ""
        self.finish = f"{status}:{self._reason}" if self._reason else status
        self.complete = True
        if response.usage is not None:
            self._usage.add(response.usage.delta())
        self._provider_error(errors.reason_of_raw(response.error) if response.error is not ABSENT else None)
        if status in ("failed", "cancelled") and self._failure is None:
            self._failure = errors.stream_failure(errors.Reason(f"the response was {status} by the provider", 502))
        if response.output and self._failure is None:
            self._output(response.output, data, out, whole=status == "completed")
        self._end(out)

    def _output(self, output: list[Item], data: bytes, out: list[StreamEvent], *, whole: bool) -> None:
        raws: list[Raw | None] | None = None
        for place, (known, item) in enumerate(self._items.end_all(output, whole=whole)):
            self._item(known, item, out)
            if item.type == "reasoning" and known.raw is None and _worth(item):
                raws = raw_output(data) if raws is None else raws
                known.raw = raws[place] if len(raws) == len(output) else None

    def _say(self, kind: type[Text | Reasoning | Refusal], text: str, out: list[StreamEvent]) -> None:
        if kind is Refusal and text:
            self._refused = True
        if self._odd and text:
            text = self._halves.whole(kind, text)
        if not text:
            return
        if self._think is not None and kind is Text:
            out.extend(self._think.feed(text))
        else:
            out.append(kind(text))

    def _provider_error(self, reason: errors.Reason | None) -> None:
        if reason is not None and (self._failure is None or self._failure[0].kind == "protocol"):
            text = reason.text or "an error without a reason"
            self._failure = errors.stream_failure(errors.Reason(text, reason.status, reason.code))

    def _fail(self, message: str, *, retry: bool, kind: str = "protocol") -> None:
        if self._failure is None:
            hint = "try again; if it stays, the server is not what it says" * retry
            self._failure = Failure(kind, message, hint), retry

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
        event = lenient_event(body)
        if event is not None and event.object == "response" and not self._items:
            self._whole(body, out)
        elif body[:1] in (b"{", b"["):
            try:
                self._provider_error(errors.reason_in(parse_json(body)))
            except ValueError:
                return

    def _end(self, out: list[StreamEvent]) -> None:
        self.ended = True
        for kind in self._halves.left():
            out.append(kind("\ufffd"))
        if self._think is not None:
            out.extend(self._think.end())
        if self._failure is None and not self.frames:
            self._fail("the answer was empty: not one event of a response came", retry=True, kind="truncated")
        elif not self.complete:
            self._fail("the stream ended before the answer was complete", retry=True, kind="truncated")
        usage = UsageReported(self._usage.total())
        if self._failure is not None:
            out += [usage, Failed(*self._failure, self._items.call_names, self.finish)]
            return
        self.calls = self._items.calls(completed=self.finish == "completed")
        if kept := self._items.kept(self.calls):
            out.append(Opaque(encode_kept(KeptOutput(kept, mend(self._model)))))
        run = [call for call in self.calls if isinstance(call, ToolCall)]
        cut = tuple(call.name or call.id for call in self.calls if isinstance(call, CutCall))
        out += [*run, usage, Finished(self._stop_reason(whole=bool(run), cut=bool(cut)), self.finish, cut)]

    def _stop_reason(self, *, whole: bool, cut: bool) -> str:
        """An answer that is not whole says why; else what came decides: this wire has no reason for calls and refusals."""
        if self.finish != "completed":
            said = CHAT_STOP_REASONS.get(self._reason.lower(), "length")
            return said if said in ("filter", "refusal") else "length"
        if whole:
            return "tool_calls"
        if cut:
            return "error"
        return "refusal" if self._refused else "stop"


_Handler = Callable[[OpenAIResponsesDecoder, Event, str, bytes, list[StreamEvent]], None]
_HANDLERS: Final[dict[str, _Handler]] = {
    "response.created": OpenAIResponsesDecoder._begun,
    "response.in_progress": OpenAIResponsesDecoder._begun,
    **dict.fromkeys(_DELTAS, OpenAIResponsesDecoder._piece),
    **dict.fromkeys(_ENDS, OpenAIResponsesDecoder._text_done),
    **{
        f"response.{name}.{end}": OpenAIResponsesDecoder._arguments
        for name in ("function_call_arguments", "custom_tool_call_input")
        for end in ("delta", "done")
    },
    "response.content_part.done": OpenAIResponsesDecoder._part_done,
    "response.reasoning_summary_part.done": OpenAIResponsesDecoder._part_done,
    "response.output_item.added": OpenAIResponsesDecoder._item_added,
    "response.output_item.done": OpenAIResponsesDecoder._item_done,
    **dict.fromkeys(_STATUS, OpenAIResponsesDecoder._response_done),
}
_NAMES: Final = {f"event: {name}".encode(): name for name in (*_HANDLERS, *_SILENT)}


def _types_of(kind: str) -> tuple[str, ...]:
    """The types of item that a part of this kind, or an event with this name, can belong to; the likeliest first."""
    if kind in ("text", "refusal"):
        return ("message",)
    if kind in ("thought", "summary"):
        return ("reasoning",)
    return OURS if "function" in kind else OURS[::-1]


def _worth(item: Item) -> bool:
    """Reasoning goes back when the server needs it to know it again: encrypted, or the model's own words."""
    return bool(item.encrypted_content) or any(part.text for part in item.content or ())
