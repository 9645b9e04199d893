"""The anthropic wire, the other way: a conversation in, the body of a request out.

What the wire demands and a conversation may lack is made up here: messages alternate and begin and end with the user, every
call is answered at the beginning of the next message, ids and names have the wire's characters, no text is blank. Signed
thinking goes back unmodified, in its place; where the answer around it was changed since (trimmed to the budget), in front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.anthropic_blocks import Envelope, KeptAnswer, KeptCall, KeptRedacted, KeptText, KeptThinking
from agentd.providers.openai_chat_request import NO_RESULT
from agentd.providers.stream import ModelRequest, ToolSpec
from agentd.providers.tool_input import mend
from tracewriter.events import ToolCall

BEGINNING: Final = "[the beginning of the conversation was left out]"
GO_ON: Final = "[go on]"
NO_OUTPUT: Final = "[no output]"

# max_tokens is required here, and too large a number is refused (400), so it is the least that a family's models all
# allow: 32,000 for Claude 4 and later (Opus 4 has no more), from the provider's model pages. A smaller number would cut
# the files that a model writes. Models of other makers on this wire mostly take 8192.
_MAX_TOKENS: Final = (
    (re.compile(r"claude-(?:instant|2|3-(?:opus|sonnet|haiku))"), 4096),
    (re.compile(r"claude-3-5"), 8192),
    (re.compile(r"claude"), 32_000),
)
_OTHER_MAX_TOKENS: Final = 8192

_CACHED_TURNS: Final = 2  # with system and tools the four breakpoints that the wire allows
_NO_NAME_CHAR: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME_CHARS: Final = 128
_THINKING: Final = ("thinking", "redacted_thinking")


class _CacheControl(Struct, frozen=True):
    type: str = "ephemeral"


_CACHE: Final = _CacheControl()


class _Block(Struct, frozen=True, kw_only=True):
    """A content block of any type, as sent."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    tool_use_id: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    cache_control: _CacheControl | UnsetType = UNSET


class _Turn(Struct):
    role: str
    content: list[_Block]


class _Tool(Struct, frozen=True):
    name: str
    description: str
    input_schema: Raw
    cache_control: _CacheControl | UnsetType = UNSET


class _ToolChoice(Struct, frozen=True):
    type: str


class _Body(Struct, frozen=True, kw_only=True):
    model: str
    max_tokens: int
    stream: bool = True
    temperature: float | UnsetType = UNSET
    system: tuple[_Block, ...] | UnsetType = UNSET
    tools: tuple[_Tool, ...] | UnsetType = UNSET
    tool_choice: _ToolChoice | UnsetType = UNSET
    messages: list[_Turn]


def build_request(request: ModelRequest) -> bytes:
    """The JSON body of a streamed message. Temperature is sent only when it is set; max_tokens is chosen when it is not."""
    turns = _Conversation(request.model).build(request.messages)
    tools, choice = _tools(request.tools, turns)
    system = mend(request.system)
    return msgspec.json.encode(
        _Body(
            model=mend(request.model),
            max_tokens=max_tokens_for(request.model) if request.max_tokens is None else request.max_tokens,
            temperature=UNSET if request.temperature is None else request.temperature,
            system=(_Block(type="text", text=system, cache_control=_CACHE),) if system.strip() else UNSET,
            tools=tools or UNSET,
            tool_choice=choice,
            messages=_cached(turns),
        )
    )


def max_tokens_for(model: str) -> int:
    """How many tokens an answer of this model may have when nobody said."""
    return next((limit for name, limit in _MAX_TOKENS if name.search(model.lower())), _OTHER_MAX_TOKENS)


def _tools(specs: Sequence[ToolSpec], turns: Sequence[_Turn]) -> tuple[tuple[_Tool, ...], _ToolChoice | UnsetType]:
    """The tools. A conversation with calls is refused without any: those it names are then declared, and not to be used."""
    if specs:
        named = {_name(spec.name): (spec.description, spec.schema) for spec in specs}
        choice: _ToolChoice | UnsetType = UNSET
    else:
        used = (block.name for turn in turns for block in turn.content if block.name is not UNSET)
        named = {name: ("", Raw(b"{}")) for name in used}
        choice = _ToolChoice("none") if named else UNSET
    tools = [_Tool(name, mend(text), _schema(schema)) for name, (text, schema) in named.items()]
    if tools:
        tools[-1] = msgspec.structs.replace(tools[-1], cache_control=_CACHE)
    return tuple(tools), choice


def _schema(schema: Raw) -> Raw:
    """A schema of an object: the wire takes no other, and wants it said."""
    fields = msgspec.json.decode(schema, type=dict[str, Raw])
    return schema if "type" in fields else Raw(msgspec.json.encode({"type": "object", **fields}))


def _cached(turns: list[_Turn]) -> list[_Turn]:
    """Mark what the next request begins with: the end of this one, and of the one before, where its cache entry ends."""
    for turn in [turn for turn in turns if turn.role == "user"][-_CACHED_TURNS:]:
        turn.content[-1] = msgspec.structs.replace(turn.content[-1], cache_control=_CACHE)
    return turns


class _Conversation:
    """Builds the turns of one request."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._turns: list[_Turn] = []
        self._ids: set[str] = set()

    def build(self, messages: Sequence[Message]) -> list[_Turn]:
        """All turns, at least one of the user's."""
        place = 0
        while place < len(messages):
            message = messages[place]
            place += 1
            match message:
                case UserMessage():
                    self._add("user", _texts(message.text))
                case ToolMessage():
                    # A result whose call is gone (the conversation was cut there): still worth knowing, but not as a result.
                    self._add("user", _texts(f"[result of an earlier {message.name} call]\n{message.text}"))
                case AssistantMessage():
                    results: dict[str, ToolMessage] = {}
                    while message.tool_calls and place < len(messages):
                        if not isinstance(result := messages[place], ToolMessage):
                            break
                        results[result.call_id] = result
                        place += 1
                    self._answer(message, results)
        if not self._turns or self._turns[-1].role == "assistant":
            # An answer at the end would be one to be continued, which newer models refuse.
            self._add("user", _texts(GO_ON))
        return self._turns

    def _add(self, role: str, blocks: list[_Block]) -> None:
        """One more turn, or more of the last one when it is of the same role."""
        if not blocks:
            return
        last = self._turns[-1] if self._turns else None
        if last is None and role == "assistant":
            self._add("user", _texts(BEGINNING))
        if last is None or last.role != role:
            self._turns.append(_Turn(role, blocks))
        elif last.content[0].type in _THINKING:
            last.content += blocks
        else:
            thinking = next((at for at, block in enumerate(blocks) if block.type not in _THINKING), 0)
            last.content = [*blocks[:thinking], *last.content, *blocks[thinking:]]

    def _answer(self, message: AssistantMessage, results: dict[str, ToolMessage]) -> None:
        ids = [self._id(call.id) for call in message.tool_calls]
        calls = [_call(call, call_id) for call, call_id in zip(message.tool_calls, ids, strict=True)]
        self._add("assistant", self._blocks(message, calls))
        self._add(
            "user",
            [_result(results.get(call.id), call_id) for call, call_id in zip(message.tool_calls, ids, strict=True)],
        )

    def _id(self, given: str) -> str:
        """The id in the wire's characters, and unique in the request, as the wire wants it."""
        call_id = wanted = _NO_NAME_CHAR.sub("_", given) or "call"
        number = 1
        while call_id in self._ids:
            number += 1
            call_id = f"{wanted}_{number}"
        self._ids.add(call_id)
        return call_id

    def _blocks(self, message: AssistantMessage, calls: list[_Block]) -> list[_Block]:
        kept = _kept(message)
        if kept is None or self._foreign(kept):
            return [*_texts(message.text), *calls]
        if not _fits(kept, message):
            thinking = [_thinking(block) for block in kept.content if isinstance(block, KeptThinking | KeptRedacted)]
            said = [*_texts(message.text), *calls]
            return thinking + said if said else []
        blocks: list[_Block] = []
        place, left = 0, iter(calls)
        for block in kept.content:
            match block:
                case KeptText():
                    blocks += _texts(message.text[place : place + block.chars])
                    place += block.chars
                case KeptCall():
                    blocks.append(next(left))
                case KeptThinking() | KeptRedacted():
                    blocks.append(_thinking(block))
        while blocks and blocks[-1].type in _THINKING:  # thinking that led to nothing: refused at the end of an answer
            blocks.pop()
        return blocks

    def _foreign(self, kept: KeptAnswer) -> bool:
        """Claude refuses thinking that another maker's model signed; others take anything."""
        return "claude" in self._model.lower() and bool(kept.model) and "claude" not in kept.model.lower()


def _kept(message: AssistantMessage) -> KeptAnswer | None:
    for item in message.opaque:
        try:
            return msgspec.json.decode(item, type=Envelope).anthropic
        except (msgspec.DecodeError, RecursionError):
            continue  # of another wire
    return None


def _fits(kept: KeptAnswer, message: AssistantMessage) -> bool:
    """Whether the answer's texts and calls are still those that the thinking stood between."""
    chars = sum(block.chars for block in kept.content if isinstance(block, KeptText))
    ids = [block.id for block in kept.content if isinstance(block, KeptCall)]
    return chars == len(message.text) and ids == [call.id for call in message.tool_calls]


def _texts(text: str) -> list[_Block]:
    """The text as a block; none when it is blank, which the wire refuses."""
    text = mend(text)
    return [_Block(type="text", text=text)] if text.strip() else []


def _thinking(block: KeptThinking | KeptRedacted) -> _Block:
    match block:
        case KeptThinking():
            return _Block(type="thinking", thinking=block.thinking, signature=block.signature)
        case KeptRedacted():
            return _Block(type="redacted_thinking", data=block.data)


def _call(call: ToolCall, call_id: str) -> _Block:
    arguments = call.input
    if not bytes(arguments).lstrip().startswith(b"{"):
        arguments = Raw(msgspec.json.encode({"_raw": arguments}))  # the wire takes nothing but objects
    return _Block(type="tool_use", id=call_id, name=_name(call.name), input=arguments)


def _result(result: ToolMessage | None, call_id: str) -> _Block:
    """A result that says something: an error may not be empty, and a model reads silence as a mistake of its own."""
    text = NO_RESULT if result is None else mend(result.text)
    failed = result is None or result.is_error
    return _Block(
        type="tool_result",
        tool_use_id=call_id,
        content=text if text.strip() else NO_OUTPUT,
        is_error=failed or UNSET,
    )


def _name(name: str) -> str:
    return _NO_NAME_CHAR.sub("_", name)[:_MAX_NAME_CHARS] or "tool"
