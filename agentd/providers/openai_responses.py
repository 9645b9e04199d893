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
from agentd.providers.chat_chunk import ABSENT
from agentd.providers.chat_usage import UsageMeter
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
from agentd.providers.tool_input import mend
from agentd.providers.wire_decoder import WireDecoder, is_bare_error, json_in, split_calls

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


class OpenAIResponsesDecoder(WireDecoder[Event]):
    """One answer. `think_split` tells inline <think> apart from text; `new_id` makes ids for calls that came without.

    `frames` leaves out events that only keep a connection open.
    """

    _model = ""
    _reason = ""
    _refused = False
    _said: Said | None = None  # the part that the last event was a piece of, and how it was named
    _said_kind: type[Text | Reasoning | Refusal] = Text
    _said_key: tuple[str, str, int | None, int | None] = ("", "", None, None)  # type, item, content and summary index

    def __init__(self, *, think_split: bool = False, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__()
        self._think = ThinkSplitter() if think_split else None
        self._plain = not think_split  # text is passed on as it comes
        self._output_items = Items(new_id)
        self._usage = UsageMeter()

    def _take(self, frames: list[bytes], out: list[StreamEvent]) -> int:
        if self._odd:
            return 0
        said, kind_said = self._said, self._said_kind
        type_said, item_said, content_said, summary_said = self._said_key
        for taken, data in enumerate(frames):
            try:
                event = strict_event(data)
            except (msgspec.DecodeError, RecursionError):
                return taken
            kind = event.type
            if (  # the hot path: one more piece of the same text
                said is not None
                and kind == type_said
                and (delta := event.delta)
                and event.item_id == item_said
                and event.content_index == content_said
                and event.summary_index == summary_said
            ):
                said.chars += len(delta)
                said.last = delta
                out.append(kind_said(delta))
                self.frames += 1
            elif kind in _SILENT:
                self._said = said = None
                self.frames += 1
            elif kind in _HANDLERS:
                self._handle(event, kind, data, out)
                if self.ended:
                    break
                if (said := self._said) is not None:
                    kind_said = self._said_kind
                    type_said, item_said, content_said, summary_said = self._said_key
            elif kind and kind.startswith("response.") and kind not in _IDLE and kind != "response.error":
                self._said = said = None
                self.frames += 1
            else:  # its event line or its data matter
                return taken
        return len(frames)

    def _strict(self, data: bytes) -> Event:
        return strict_event(data)

    def _lenient(self, data: bytes) -> list[Event]:
        event = lenient_event(data)
        return [] if event is None else [event]

    def _event(self, event: Event, data: bytes, name: str, out: list[StreamEvent]) -> None:
        kind = event.type or name
        if kind in _HANDLERS:
            self._handle(event, kind, data, out)
        elif not kind.startswith("response.") or kind == "response.error":
            self._no_event(event, kind, data, out)
        elif kind not in _IDLE:
            self.frames += 1

    def _handle(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        self._said = None
        self.frames += 1
        _HANDLERS[kind](self, event, kind, data, out)
        if self._output_items.overflowed:
            self._fail("the answer has more or larger items than any turn needs", retry=False)

    def _begun(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.response is not None and event.response.model:
            self._model = event.response.model

    def _piece(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if not event.delta:
            return
        part = _DELTAS[kind]
        index = event.summary_index if part == "summary" else event.content_index
        said = self._output_items.part(self._output_items.of_event(event, _types_of(part)), part, index)
        said.add(event.delta)
        if self._plain and event.item_id:
            self._said, self._said_kind = said, _KINDS[part]
            self._said_key = (kind, event.item_id, event.content_index, event.summary_index)
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
            item = self._output_items.of_event(event, _types_of(part))
            self._say(_KINDS[part], self._output_items.part(item, part, index).rest(whole), out)

    def _arguments(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if kind.endswith(".delta"):
            self._output_items.argue(event, _types_of(kind), event.delta, None)
        else:
            whole = event.arguments if "function" in kind else event.input
            self._output_items.argue(event, _types_of(kind), None, whole or "")

    def _item_added(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.item is not None:
            self._output_items.begin(event.item, event.output_index)

    def _item_done(self, event: Event, kind: str, data: bytes, out: list[StreamEvent]) -> None:
        if event.item is None:
            return
        known = self._output_items.end(event.item, event.output_index)
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
        value = json_in(data)
        if kind in _ERRORS or (is_bare_error(value) and not kind):
            self._provider_error(errors.reason_in(value))

    def _whole(self, body: bytes, out: list[StreamEvent]) -> None:
        """A response in one piece, from a server that does not stream."""
        wrapped = b'{"response":' + body + b"}"
        event = lenient_event(wrapped)
        if event is None or event.response is None:
            return
        self.frames += 1
        self._odd = True
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
                    self._say(_KINDS[kind], self._output_items.part(known, kind, index).rest(text), out)

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
        for place, (known, item) in enumerate(self._output_items.end_all(output, whole=whole)):
            self._item(known, item, out)
            if item.type == "reasoning" and known.raw is None and _worth(item):
                raws = raw_output(data) if raws is None else raws
                known.raw = raws[place] if len(raws) == len(output) else None

    def _say(self, kind: type[Text | Reasoning | Refusal], text: str, out: list[StreamEvent]) -> None:
        if kind is Refusal and text:
            self._refused = True
        if self._odd and text:
            text = self._joined(kind, text)
        if not text:
            return
        if self._think is not None and kind is Text:
            out.extend(self._think.feed(text))
        else:
            out.append(kind(text))

    def _error(self, reason: errors.Reason, out: list[StreamEvent]) -> None:
        self._provider_error(reason)

    def _bare_body(self, out: list[StreamEvent]) -> None:
        body = self._bare_json()
        event = lenient_event(body) if body else None
        if event is not None and event.object == "response" and not self._output_items:
            self._whole(body, out)
        elif (value := json_in(body)) is not None:
            self._provider_error(errors.reason_in(value))

    def _end(self, out: list[StreamEvent]) -> None:
        if self._stray and self._failure is None and not self.complete:
            self._bare_body(out)
            if self.ended:
                return
        self.ended = True
        self._halves_left(out)
        if self._think is not None:
            out.extend(self._think.end())
        self._fail_unless_whole("event of a response", seen=self.frames > 0 or self._failure is not None)
        usage = UsageReported(self._usage.total())
        if self._failure is not None:
            out += [usage, Failed(*self._failure, self._output_items.call_names, self.finish)]
            return
        self.calls = self._output_items.calls(completed=self.finish == "completed")
        if kept := self._output_items.kept(self.calls):
            out.append(Opaque(encode_kept(KeptOutput(kept, mend(self._model)))))
        run, cut = split_calls(self.calls)
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
OpenAIResponsesDecoder._heads = frozenset(f"event: {name}".encode() for name in (*_HANDLERS, *_SILENT))


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
