"""The openai-chat wire, the other way: a conversation in, the body of a request out.

What the wire demands and a conversation may lack is made up here: every call is answered (a run that was killed leaves
calls without results), every result has a call, neighbours of one role are one message, and nothing is empty.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.stream import ModelRequest, ToolSpec
from agentd.providers.tool_input import mend
from tracewriter.events import ToolCall

NO_RESULT: Final = "[no result: the run was interrupted before the tool ended]"


_MAX_ID_CHARS: Final = 40  # OpenAI's; no other is known to be lower
_MAX_NAME_CHARS: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")


class ChatQuirks(Struct, frozen=True):
    """Where servers of this wire differ. The defaults are what most accept.

    `reasoning_field` is where reasoning of earlier tool-calling turns goes back ("" = nowhere: most refuse or ignore it;
    deepseek demands it). `send_back` names the opaque keys that the server takes back, those it sent itself. `nine_ids`: ids
    of calls must be nine letters and digits, as mistral's are; another provider's are refused.
    """

    include_usage: bool = True
    max_tokens_field: str = "max_tokens"
    reasoning_field: str = ""
    send_back: tuple[str, ...] = ("reasoning_details", "reasoning_opaque", "extra_content")
    think_split: bool = False
    nine_ids: bool = False


class _Function(Struct, frozen=True):
    name: str
    arguments: str


class _Call(Struct, frozen=True):
    id: str
    type: str
    function: _Function
    extra_content: Raw | UnsetType = UNSET


class _Wire(Struct, frozen=True):
    """A message as sent. `content` is null only beside tool calls."""

    role: str
    content: str | None
    tool_calls: tuple[_Call, ...] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    extra: tuple[tuple[str, Raw], ...] = ()


class _Opaque(Struct, frozen=True):
    reasoning_details: Raw | UnsetType = UNSET
    reasoning_opaque: Raw | UnsetType = UNSET
    extra_content: dict[str, Raw] | UnsetType = UNSET


def build_request(request: ModelRequest, quirks: ChatQuirks = ChatQuirks()) -> bytes:  # noqa: B008 - frozen
    """The JSON body of a streamed chat completion. max tokens and temperature are sent only when they are set."""
    wires = [_Wire("system", mend(request.system))] if request.system else []
    wires += _conversation(request.messages, quirks)
    body: dict[str, object] = {
        "model": mend(request.model),
        "messages": [_message(wire) for wire in wires],
        "stream": True,
    }
    if quirks.include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.max_tokens is not None:
        body[quirks.max_tokens_field] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return msgspec.json.encode(body)


def _message(wire: _Wire) -> dict[str, object]:
    fields = {name: getattr(wire, name) for name in ("role", "content", "tool_calls", "tool_call_id")}
    return {name: value for name, value in fields.items() if value is not UNSET} | dict(wire.extra)


def _tool(tool: ToolSpec) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _conversation(messages: Sequence[Message], quirks: ChatQuirks) -> list[_Wire]:
    out: list[_Wire] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        match message:
            case UserMessage():
                _say(out, "user", message.text)
            case ToolMessage():
                # A result whose call is gone (the conversation was cut there): still worth knowing, but not as a result.
                _say(out, "user", f"[result of an earlier {message.name} call]\n{message.text}")
            case AssistantMessage() if message.tool_calls:
                results: list[ToolMessage] = []
                while place < len(messages) and isinstance(result := messages[place], ToolMessage):
                    results.append(result)
                    place += 1
                out.append(_assistant(message, quirks))
                out.extend(_results(message.tool_calls, results, quirks))
            case AssistantMessage():
                _say(out, "assistant", message.text)
    return out


def _say(out: list[_Wire], role: str, text: str) -> None:
    """Add text as a message, or to the last one when that is plain text of the same role. Empty text is left out."""
    text = mend(text)
    if not text.strip():
        return
    last = out[-1] if out else None
    if last is not None and last.role == role and last.tool_calls is UNSET and last.content:
        out[-1] = _Wire(role, f"{last.content}\n\n{text}", extra=last.extra)
    else:
        out.append(_Wire(role, text))


def _assistant(message: AssistantMessage, quirks: ChatQuirks) -> _Wire:
    opaque = _opaque(message.opaque)
    extra: list[tuple[str, Raw]] = []
    for key in ("reasoning_details", "reasoning_opaque"):
        value = getattr(opaque, key)
        if value is not UNSET and key in quirks.send_back:
            extra.append((key, value))
    if quirks.reasoning_field and message.reasoning:
        extra.append((quirks.reasoning_field, Raw(msgspec.json.encode(mend(message.reasoning)))))
    signed = opaque.extra_content if "extra_content" in quirks.send_back else UNSET
    calls = tuple(
        _Call(
            _id(call.id, quirks),
            "function",
            _Function(_name(call.name), bytes(call.input).decode()),
            UNSET if signed is UNSET else signed.get(call.id, UNSET),
        )
        for call in message.tool_calls
    )
    return _Wire("assistant", mend(message.text) or None, calls, extra=tuple(extra))


def _name(name: str) -> str:
    """A name that the wire takes: one that a model made up must not make every later request an invalid one."""
    return _NOT_IN_NAMES.sub("_", mend(name))[:_MAX_NAME_CHARS] or "unknown"


def _id(call_id: str, quirks: ChatQuirks) -> str:
    """The call's id as the server takes it: another provider's that it would refuse has one of its own, always the same."""
    call_id = mend(call_id)
    if _NINE.fullmatch(call_id) if quirks.nine_ids else 0 < len(call_id) <= _MAX_ID_CHARS:
        return call_id
    digest = hashlib.sha256(call_id.encode()).hexdigest()
    return digest[:9] if quirks.nine_ids else f"call_{digest[:32]}"


def _results(calls: Iterable[ToolCall], results: list[ToolMessage], quirks: ChatQuirks) -> list[_Wire]:
    """One result per call, in the order of the calls; results that answer none of them are left out."""
    texts = {result.call_id: mend(result.text) for result in results}
    return [_Wire("tool", texts.get(call.id, NO_RESULT), tool_call_id=_id(call.id, quirks)) for call in calls]


def _opaque(items: tuple[Raw, ...]) -> _Opaque:
    merged = _Opaque()
    for item in items:
        try:
            one = msgspec.json.decode(item, type=_Opaque)
        except (msgspec.DecodeError, RecursionError):
            continue  # of another wire
        merged = _Opaque(
            one.reasoning_details if merged.reasoning_details is UNSET else merged.reasoning_details,
            one.reasoning_opaque if merged.reasoning_opaque is UNSET else merged.reasoning_opaque,
            one.extra_content if merged.extra_content is UNSET else merged.extra_content,
        )
    return merged
