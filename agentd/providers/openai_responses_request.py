"""The openai-responses wire, the other way: a conversation in, the body of a request out. Nothing is stored by the provider.

Because nothing is stored, everything goes along: messages and calls without the provider's ids (it would look them up, or
miss the reasoning that it knows they had), and encrypted reasoning as it came. That goes right before the item it led to,
or not at all: alone it is refused. Every call is answered right after its answer, every result has a call, nothing is empty.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.openai_chat_request import NO_RESULT
from agentd.providers.responses_kept import KeptItem, KeptOutput, find_kept
from agentd.providers.stream import ModelRequest, ToolSpec
from agentd.providers.tool_input import mend
from tracewriter.events import ToolCall

# OpenAI refuses longer call ids and names, and other characters in names: "string too long", "does not match pattern".
MAX_ID_CHARS: Final = 64
MAX_NAME_CHARS: Final = 64
_NO_NAME_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")
# "Encrypted content is not supported with this model": OpenAI's models that do not reason.
_NO_REASONING: Final = re.compile(r"(?:.*/)?(?:gpt-3|gpt-4|chatgpt-|gpt-[\d.]+-chat|ft:gpt-[34])")
# Who can read reasoning that these models encrypted; another vendor refuses the request for it.
_VENDORS: Final = {
    **dict.fromkeys(("gpt", "o", "codex", "chatgpt"), "openai"),
    **{name: name for name in ("grok", "deepseek", "claude", "gemini", "qwen", "mistral", "llama", "kimi", "glm")},
}
_FAMILY: Final = re.compile(r"(?:.*/)?([a-z]+)")


class _Message(Struct, frozen=True, tag_field="type", tag="message"):
    role: str
    content: str
    phase: str | UnsetType = UNSET


_NOTHING: Final = _Message("user", "[no message]")  # an empty input is refused


class _FunctionCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str


class _FunctionCallOutput(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str


class _Tool(Struct, frozen=True, tag_field="type", tag="function"):
    """`strict` is said, because the API's default is to rewrite the schema so that every field is required."""

    name: str
    description: str
    parameters: Raw
    strict: bool = False


_Item = _Message | _FunctionCall | _FunctionCallOutput | dict[str, Raw]


class _Body(Struct, frozen=True, omit_defaults=True):
    model: str
    input: list[_Item]
    stream: bool | UnsetType = UNSET
    store: bool | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    include: tuple[str, ...] = ()
    tools: tuple[_Tool, ...] = ()
    parallel_tool_calls: bool | UnsetType = UNSET
    max_output_tokens: int | None = None
    temperature: float | None = None


def build_request(request: ModelRequest) -> bytes:
    """The JSON body of a streamed response. Max tokens and temperature are sent only when they are set."""
    reasons = _NO_REASONING.match(request.model) is None
    body = _Body(
        model=mend(request.model),
        input=_conversation(request.messages, request.model if reasons else None) or [_NOTHING],
        stream=True,
        store=False,
        instructions=mend(request.system) if request.system.strip() else UNSET,
        include=("reasoning.encrypted_content",) if reasons else (),
        tools=tuple(_tool(tool) for tool in request.tools),
        parallel_tool_calls=True if request.tools else UNSET,
        max_output_tokens=request.max_tokens,
        temperature=request.temperature,
    )
    return msgspec.json.encode(body)


def _tool(tool: ToolSpec) -> _Tool:
    return _Tool(mend(tool.name), mend(tool.description), tool.schema)


def _conversation(messages: Sequence[Message], model: str | None) -> list[_Item]:
    out: list[_Item] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        match message:
            case UserMessage():
                _say(out, message.text)
            case ToolMessage():
                # A result whose call is gone (the conversation was cut there): still worth knowing, but not as a result.
                _say(out, f"[result of an earlier {message.name} call]\n{message.text}")
            case AssistantMessage():
                results: dict[str, str] = {}
                while message.tool_calls and place < len(messages) and isinstance(one := messages[place], ToolMessage):
                    results[one.call_id] = one.text
                    place += 1
                _answer(out, message, model)
                out.extend(_output(call, results) for call in message.tool_calls)
    return out


def _say(out: list[_Item], text: str) -> None:
    """The user's text, added to what the user said right before: chat templates behind other servers demand turns."""
    text = mend(text)
    if not text.strip():
        return
    last = out[-1] if out else None
    if isinstance(last, _Message) and last.role == "user":
        out[-1] = _Message("user", f"{last.content}\n\n{text}")
    else:
        out.append(_Message("user", text))


def _answer(out: list[_Item], message: AssistantMessage, model: str | None) -> None:
    """The items of an answer, in the order that they came in where that is known."""
    kept = find_kept(message.opaque) or KeptOutput(())
    readable = model is not None and _same_vendor(model, kept.model)
    texts = _texts(message.text, kept.items)
    calls = list(message.tool_calls)
    waiting: list[_Item] = []
    if not texts and message.text.strip():
        out.append(_Message("assistant", mend(message.text)))
    for item in kept.items:
        if item.reasoning is not UNSET:
            if readable and (reasoning := _reasoning(item.reasoning)):
                waiting.append(reasoning)
            continue
        follower: _Item | None = None
        if item.call and calls:
            follower = _call(calls.pop(0))
        elif item.text and (text := mend(texts.pop(0))).strip():
            follower = _Message("assistant", text, item.phase or UNSET)
        if follower is not None:
            out += [*waiting, follower]
        waiting.clear()
    out.extend(_call(call) for call in calls)


def _texts(text: str, items: tuple[KeptItem, ...]) -> list[str]:
    """The text of each message of an answer. A text that is not the one they had together (it was trimmed) is the first's."""
    lengths = [item.text for item in items if item.text]
    if sum(lengths) != len(text):
        return [text, *("" for _ in lengths[1:])] if lengths else []
    out, start = [], 0
    for length in lengths:
        out.append(text[start : start + length])
        start += length
    return out


def _reasoning(raw: Raw) -> dict[str, Raw] | None:
    """Reasoning as it came, without what only answers say (a status, nulls); None when it has nothing that is needed."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    empty = (b"null", b'""', b"[]")
    item = {name: value for name, value in fields.items() if name != "status" and bytes(value) not in empty}
    if bytes(item.get("type", b"")) != b'"reasoning"' or not {"encrypted_content", "content"} & set(item):
        return None
    return {"type": item["type"], "summary": Raw(b"[]")} | item  # the one field that it must have


def _same_vendor(model: str, other: str) -> bool:
    """Whether reasoning of the other model can go to this one; yes where a name says nothing of its vendor."""
    vendors = [_VENDORS.get(found.group(1)) if (found := _FAMILY.match(name)) else None for name in (model, other)]
    return None in vendors or vendors[0] == vendors[1]


def _call(call: ToolCall) -> _FunctionCall:
    name = _NO_NAME_CHARS.sub("_", call.name)[:MAX_NAME_CHARS] or "unknown"
    return _FunctionCall(_id(call.id), name, bytes(call.input).decode("utf-8", "replace"))


def _output(call: ToolCall, results: dict[str, str]) -> _FunctionCallOutput:
    return _FunctionCallOutput(_id(call.id), mend(results.get(call.id, NO_RESULT)))


def _id(call_id: str) -> str:
    """The call's id as the wire takes it: one of another provider that is too long has its own short one."""
    call_id = mend(call_id)
    if 0 < len(call_id) <= MAX_ID_CHARS:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:32]}"
