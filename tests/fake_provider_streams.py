"""One answer, written as each wire would stream it: what tests/fake_provider_server.py sends.

The events, their order and their fields are those of the providers' own documentation; the official SDKs judge them
(tests/agentd/providers/test_sdk_judges.py). Nothing here is taken from a recording.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

Json = dict[str, Any]


class Call(Struct, frozen=True):
    """A tool call; `arguments` is its JSON as text."""

    id: str
    name: str
    arguments: str


class Answer(Struct, frozen=True):
    """What the model answers, wire-neutral. `given` and `produced` are all-in tokens, of which `cached` and `thought`.

    `stop`: stop, length, tool_calls, refusal or filter. `error` ends the stream with the provider's error event after what came
    before; `cut` ends it without any end. `status` other than 200 is an error answer with the text of `error`.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    given: int = 20
    cached: int = 0
    produced: int = 10
    thought: int = 0
    stop: str = "stop"
    error: str | None = None
    cut: bool = False
    status: int = 200
    piece_chars: int = 5

    def pieces(self, text: str) -> list[str]:
        """A text as it is streamed."""
        return [text[at : at + self.piece_chars] for at in range(0, len(text), self.piece_chars)]


def _compact(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _data(value: Json) -> bytes:
    return b"data: " + _compact(value) + b"\n\n"


def _event(value: Json) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + _data(value)


# --- openai-chat

_CHAT_STOPS: Final = {"refusal": "stop", "filter": "content_filter"}


def openai_chat(answer: Answer, model: str, *, usage: bool) -> Iterator[bytes]:
    """chat.completion.chunk objects; usage only when `stream_options.include_usage` asked for it."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": model}

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**head, "choices": [choice], **({"usage": None} if usage else {})})

    yield chunk({"role": "assistant", "content": None if answer.calls else "", "refusal": None})
    for name, text in (("reasoning_content", answer.reasoning), ("content", answer.text), ("refusal", answer.refusal)):
        yield from (chunk({name: piece}) for piece in answer.pieces(text))
    for index, call in enumerate(answer.calls):
        function = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        for piece in answer.pieces(call.arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if answer.error is not None:
        yield _data({"error": {"message": answer.error, "type": "server_error", "param": None, "code": None}})
    if answer.error is not None or answer.cut:
        return
    yield chunk({}, _CHAT_STOPS.get(answer.stop, answer.stop))
    if usage:
        yield _data({**head, "choices": [], "usage": _chat_usage(answer)})
    yield b"data: [DONE]\n\n"


def _chat_usage(answer: Answer) -> Json:
    return {
        "prompt_tokens": answer.given,
        "completion_tokens": answer.produced,
        "total_tokens": answer.given + answer.produced,
        "prompt_tokens_details": {"cached_tokens": answer.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": answer.thought, "audio_tokens": 0},
    }


# --- openai-responses


class _Responses:
    """The events of one response: counts them, and collects the items of its output."""

    def __init__(self, answer: Answer, model: str) -> None:
        self.answer = answer
        self.output: list[Json] = []
        self.head: Json = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_790_000_000,
            "model": model,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
        }
        self._sequence = -1

    def event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return _event({"type": f"response.{kind}", "sequence_number": self._sequence, **fields})

    def state(self, kind: str, **changes: Any) -> bytes:
        status = "in_progress" if kind == "created" else kind
        response = {**self.head, "status": status, "output": self.output, "usage": None, **changes}
        return self.event(kind, response=response)

    def item(self, begun: Json, ended: Json, middle: Callable[[Json], Iterator[bytes]]) -> Iterator[bytes]:
        where = {"output_index": len(self.output)}
        yield self.event("output_item.added", **where, item=begun)
        yield from middle({**where, "item_id": begun["id"]})
        self.output.append(ended)
        yield self.event("output_item.done", **where, item=ended)

    def reasoning(self, text: str) -> Iterator[bytes]:
        part = {"type": "summary_text", "text": text}

        def middle(where: Json) -> Iterator[bytes]:
            place = {**where, "summary_index": 0}
            yield self.event("reasoning_summary_part.added", **place, part={**part, "text": ""})
            for piece in self.answer.pieces(text):
                yield self.event("reasoning_summary_text.delta", **place, delta=piece)
            yield self.event("reasoning_summary_text.done", **place, text=text)
            yield self.event("reasoning_summary_part.done", **place, part=part)

        item = {"id": "rs_1", "type": "reasoning", "summary": []}
        return self.item(item, {**item, "summary": [part]}, middle)

    def message(self) -> Iterator[bytes]:
        answer = self.answer
        parts = [("output_text", "text", answer.text), ("refusal", "refusal", answer.refusal)]
        content: list[Json] = []

        def middle(where: Json) -> Iterator[bytes]:
            for kind, field, text in parts:
                if not text:
                    continue
                extra: Json = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
                place = {**where, "content_index": len(content)}
                yield self.event("content_part.added", **place, part={"type": kind, field: "", **extra})
                logprobs: Json = {"logprobs": []} if kind == "output_text" else {}
                for piece in answer.pieces(text):
                    yield self.event(f"{kind}.delta", **place, delta=piece, **logprobs)
                yield self.event(f"{kind}.done", **place, **{field: text}, **logprobs)
                content.append({"type": kind, field: text, **extra})
                yield self.event("content_part.done", **place, part=content[-1])

        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return self.item(item, {**item, "status": "completed", "content": content}, middle)

    def call(self, call: Call) -> Iterator[bytes]:
        def middle(where: Json) -> Iterator[bytes]:
            for piece in self.answer.pieces(call.arguments):
                yield self.event("function_call_arguments.delta", **where, delta=piece)
            yield self.event("function_call_arguments.done", **where, name=call.name, arguments=call.arguments)

        item = {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, "name": call.name}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return self.item(begun, {**item, "arguments": call.arguments, "status": "completed"}, middle)

    def usage(self) -> Json:
        answer = self.answer
        return {
            "input_tokens": answer.given,
            "input_tokens_details": {"cached_tokens": answer.cached},
            "output_tokens": answer.produced,
            "output_tokens_details": {"reasoning_tokens": answer.thought},
            "total_tokens": answer.given + answer.produced,
        }


_INCOMPLETE: Final = {"length": "max_output_tokens", "filter": "content_filter"}


def openai_responses(answer: Answer, model: str) -> Iterator[bytes]:
    """The typed events of a response."""
    stream = _Responses(answer, model)
    yield stream.state("created")
    yield stream.state("in_progress")
    if answer.reasoning:
        yield from stream.reasoning(answer.reasoning)
    if answer.text or answer.refusal:
        yield from stream.message()
    for call in answer.calls:
        yield from stream.call(call)
    if answer.error is not None:
        yield stream.state("failed", error={"code": "server_error", "message": answer.error})
    elif answer.stop in _INCOMPLETE and not answer.cut:
        reason = {"reason": _INCOMPLETE[answer.stop]}
        yield stream.state("incomplete", incomplete_details=reason, usage=stream.usage())
    elif not answer.cut:
        yield stream.state("completed", usage=stream.usage())


# --- anthropic

_ANTHROPIC_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "filter": "refusal"}


def anthropic(answer: Answer, model: str) -> Iterator[bytes]:
    """message_start, content blocks, message_delta, message_stop."""
    usage = {
        "input_tokens": answer.given - answer.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached,
        "output_tokens": 1,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
    yield _event(
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    )
    yield _event({"type": "ping"})
    for index, (block, deltas) in enumerate(_blocks(answer)):
        yield _event({"type": "content_block_start", "index": index, "content_block": block})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    if answer.error is not None:
        yield _event({"type": "error", "error": {"type": "overloaded_error", "message": answer.error}})
    if answer.error is not None or answer.cut:
        return
    delta = {"stop_reason": _ANTHROPIC_STOPS.get(answer.stop, answer.stop), "stop_sequence": None}
    if answer.refusal:
        delta["stop_details"] = {"type": "refusal", "category": None, "explanation": answer.refusal}
    yield _event({"type": "message_delta", "delta": delta, "usage": {**usage, "output_tokens": answer.produced}})
    yield _event({"type": "message_stop"})


def _blocks(answer: Answer) -> Iterator[tuple[Json, list[Json]]]:
    if answer.reasoning:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in answer.pieces(answer.reasoning)]
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]
    if answer.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in answer.pieces(answer.text)],
        )
    for call in answer.calls:
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *answer.pieces(call.arguments)]]
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, pieces


# --- gemini

_GEMINI_STOPS: Final = {"length": "MAX_TOKENS", "filter": "SAFETY"}


def gemini(answer: Answer, model: str) -> Iterator[bytes]:
    """generateContent responses, CRLF between them as Google sends it; calls come whole, usage in every chunk."""
    usage: Json = {
        "promptTokenCount": answer.given,
        "candidatesTokenCount": answer.produced - answer.thought,
        "totalTokenCount": answer.given + answer.produced,
        **({"thoughtsTokenCount": answer.thought} if answer.thought else {}),
        **({"cachedContentTokenCount": answer.cached} if answer.cached else {}),
    }

    def chunk(parts: list[Json], finish: str | None = None) -> bytes:
        candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": "r-1"}
        return b"data: " + _compact(whole) + b"\r\n\r\n"

    if answer.refusal:
        feedback = {
            "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
            "usageMetadata": usage,
            "modelVersion": model,
        }
        yield b"data: " + _compact(feedback) + b"\r\n\r\n"
        return
    yield from (chunk([{"text": piece, "thought": True}]) for piece in answer.pieces(answer.reasoning))
    yield from (chunk([{"text": piece}]) for piece in answer.pieces(answer.text))
    for call in answer.calls:
        called = {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}
        yield chunk([{"functionCall": called, "thoughtSignature": "c2lnbmVk"}])
    if answer.error is not None:
        yield (
            b"data: "
            + _compact({"error": {"code": 503, "message": answer.error, "status": "UNAVAILABLE"}})
            + b"\r\n\r\n"
        )
    elif not answer.cut:
        yield chunk([{"text": ""}], _GEMINI_STOPS.get(answer.stop, "STOP"))
