"""The gemini wire, the other way: a conversation in, the body of a request out.

What the wire demands and a conversation may lack is made up here: contents begin and end with the user and alternate, every
call is answered in the content right after it and in its order, nothing is empty, and the first call of an answer has a
signature where the model insists on one, also when the conversation was cut or comes from another provider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.gemini_kept import KeptPart, kept_parts
from agentd.providers.gemini_models import GeminiModel, gemini_model
from agentd.providers.gemini_schema import parameters_of
from agentd.providers.openai_chat_request import NO_RESULT
from agentd.providers.stream import ModelRequest, ToolSpec
from agentd.providers.tool_input import mend
from tracewriter.events import ToolCall

# Google's word for calls that the model did not make itself; models that insist on a signature take it.
NO_SIGNATURE: Final = "skip_thought_signature_validator"
_BEGINNING: Final = "[the beginning of the conversation was left out]"
_GO_ON: Final = "[go on]"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")
_NO_NAME_CHARS: Final = re.compile(r"[^A-Za-z0-9_.:-]")


class _Call(Struct, frozen=True):
    name: str
    args: Raw
    id: str


class _Result(Struct, frozen=True):
    name: str
    response: dict[str, str]
    id: str


class _Part(Struct, frozen=True, rename="camel"):
    """A part as sent. `own` are the fields of a part that the provider made for itself."""

    text: str | UnsetType = UNSET
    thought: bool | UnsetType = UNSET
    function_call: _Call | UnsetType = UNSET
    function_response: _Result | UnsetType = UNSET
    thought_signature: str | UnsetType = UNSET


class _Content(Struct, frozen=True):
    role: str
    parts: list[_Part | dict[str, Raw]]


def build_request(request: ModelRequest) -> bytes:
    """The JSON body of streamGenerateContent. Settings are sent only when they are set; the model is named in the URL."""
    model = gemini_model(request.model)
    body: dict[str, object] = {"contents": _conversation(request.messages, model)}
    if request.system.strip():
        body["systemInstruction"] = {"parts": [{"text": mend(request.system)}]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in request.tools]}]
    config = _config(request, model)
    if config:
        body["generationConfig"] = config
    return msgspec.json.encode(body)


def _config(request: ModelRequest, model: GeminiModel) -> dict[str, object]:
    config: dict[str, object] = {}
    if request.max_tokens is not None:
        config["maxOutputTokens"] = request.max_tokens
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if model.thinks:
        config["thinkingConfig"] = {"includeThoughts": True}
    return config


def _declaration(tool: ToolSpec) -> dict[str, object]:
    declared: dict[str, object] = {"name": _name(tool.name), "description": mend(tool.description)}
    parameters = parameters_of(tool.schema)
    return declared if parameters is None else {**declared, "parametersJsonSchema": parameters}


def _conversation(messages: Sequence[Message], model: GeminiModel) -> list[_Content]:
    out: list[_Content] = []
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
                _add(out, "model", _answer(message, model))
                results: list[ToolMessage] = []
                while (
                    message.tool_calls and place < len(messages) and isinstance(found := messages[place], ToolMessage)
                ):
                    results.append(found)
                    place += 1
                _add(out, "user", _results(message.tool_calls, results))
    if out and out[0].role == "model":
        out.insert(0, _Content("user", [_Part(text=_BEGINNING)]))
    if not out or out[-1].role == "model":
        _say(out, _GO_ON)
    return out


def _say(out: list[_Content], text: str) -> None:
    """Add text of the user. Empty text is left out."""
    text = mend(text)
    if text.strip():
        _add(out, "user", [_Part(text=text)])


def _add(out: list[_Content], role: str, parts: Sequence[_Part | dict[str, Raw]]) -> None:
    """Add parts, to the last content if it has the same role."""
    if not parts:
        return
    if out and out[-1].role == role:
        out[-1].parts.extend(parts)
    else:
        out.append(_Content(role, list(parts)))


def _answer(message: AssistantMessage, model: GeminiModel) -> list[_Part | dict[str, Raw]]:
    """The model's parts as they came, as far as the conversation still holds them."""
    if not message.tool_calls and not message.text.strip():
        return []
    kept = kept_parts(message.opaque)
    text, calls = message.text, message.tool_calls
    untouched = sum(part.text or 0 for part in kept) == len(text)
    out: list[_Part | dict[str, Raw]] = []
    if not untouched and text.strip():
        out.append(_Part(text=mend(text)))
    at = used = 0
    for part in kept:
        if part.text is not None:
            if untouched:
                out += _text(text[at : at + part.text], part)
                at += part.text
        elif part.call is not None:
            if used < len(calls):
                same = mend(calls[used].name) == part.call
                out.append(_call(calls[used], part.signature if same else ""))
                used += 1
        else:
            out += _kept(part, message.reasoning)
    out += [_call(call, "") for call in calls[used:]]
    return _signed(out) if model.signed else out


def _text(text: str, part: KeptPart) -> list[_Part]:
    """A text may be empty only where it carries a signature: that is how the wire itself sends those."""
    if not text and not part.signature:
        return []
    return [_Part(text=mend(text), thought_signature=part.signature or UNSET)]


def _kept(part: KeptPart, reasoning: str) -> list[_Part | dict[str, Raw]]:
    """A thought, if the reasoning that it was part of is still there, or a part that the provider made for itself."""
    if part.whole is not UNSET:
        return _whole(part.whole, part.signature)
    end = part.start + (part.thought or 0)
    if part.thought is None or part.start < 0 or end > len(reasoning) or not part.signature:
        return []
    text = mend(reasoning[part.start : end])
    return [_Part(text=text, thought=True, thought_signature=part.signature)]


def _whole(whole: Raw, signature: str) -> list[_Part | dict[str, Raw]]:
    try:
        fields = msgspec.json.decode(whole, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return []
    signed = {"thoughtSignature": Raw(msgspec.json.encode(signature))} if signature else {}
    return [{**fields, **signed}] if fields else []


def _call(call: ToolCall, signature: str) -> _Part:
    given = bytes(call.input).strip() or b"{}"
    args = Raw(given if given.startswith(b"{") else b'{"input":%b}' % given)  # the wire takes only objects
    return _Part(function_call=_Call(_name(call.name), args, mend(call.id)), thought_signature=mend(signature) or UNSET)


def _signed(parts: list[_Part | dict[str, Raw]]) -> list[_Part | dict[str, Raw]]:
    """The first call of an answer gets a signature if it has none; the others never need one."""
    for place, part in enumerate(parts):
        if isinstance(part, _Part) and part.function_call is not UNSET:
            if part.thought_signature is UNSET:
                parts[place] = msgspec.structs.replace(part, thought_signature=NO_SIGNATURE)
            break
    return parts


def _results(calls: Iterable[ToolCall], results: list[ToolMessage]) -> list[_Part]:
    """One result per call, in the order of the calls; results that answer none of them are left out."""
    given = {result.call_id: result for result in results}
    out: list[_Part] = []
    for call in calls:
        result = given.get(call.id)
        text = NO_RESULT if result is None else mend(result.text)
        key = "error" if result is None or result.is_error else "output"
        out.append(_Part(function_response=_Result(_name(call.name), {key: text}, mend(call.id))))
    return out


def _name(name: str) -> str:
    """A function's name as the wire takes it: models make up others at times, and a refused history could not go on."""
    if _NAME.match(name):
        return name
    plain = _NO_NAME_CHARS.sub("_", name)[:63]
    return plain if _NAME.match(plain) else f"_{plain}"
