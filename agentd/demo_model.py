"""A scripted model: the demo runs on it, without key or network. demo_server.py puts it behind a real HTTP endpoint.

`answer` is the model: a pure function from the conversation to the next reply. It reads what the tools really gave, and
says so when they failed. `chunks` makes the stream of openai-chat of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

MODEL: Final = "scripted-debugger"
_encoder: Final = msgspec.json.Encoder()

# --- the wire, as much of it as the script needs


class _Function(Struct):
    name: str = ""
    arguments: str = ""


class _Call(Struct):
    id: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


class _Part(Struct):
    text: str = ""


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""


class _StreamOptions(Struct):
    include_usage: bool = False


class _Tool(Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class Chat(Struct):
    """A request to /chat/completions."""

    messages: list[_Message]
    model: str = MODEL
    stream: bool = False
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = None


class Call(Struct, frozen=True):
    """A tool call of the script."""

    name: str
    input: dict[str, str]


class Answer(Struct, frozen=True):
    """The script's next reply."""

    text: str
    calls: tuple[Call, ...] = ()


class Result(Struct, frozen=True):
    """What a tool gave for a call of the script."""

    name: str
    input: dict[str, str]
    text: str


# --- the script


def answer(chat: Chat) -> Answer:
    """The next reply of a debugger that knows one kind of bug: the median of an even number of values."""
    done = _results(chat)
    if not done:
        tools = {tool.function.name for tool in chat.tools or []}
        if "edit_file" not in tools:
            return Answer(
                "I can only look in this mode: start me in build mode, and I will look for the bug and fix it."
            )
        return Answer("I'll start by looking at what is in this workspace.", (Call("list_files", {}),))
    last = done[-1]
    step = _STEPS.get(last.name)
    if step is None:
        return Answer(f"I did not expect a result of {last.name}; I am a scripted model and stop here.")
    return step(done)


def _after_list(done: list[Result]) -> Answer:
    names = [
        name for name in ("stats.py", "test_stats.py") if re.search(rf"(?<![\w.-]){re.escape(name)}\b", done[-1].text)
    ]
    if "stats.py" not in names:
        return _stop("list_files", done[-1].text, "there is no stats.py here, and this script knows no other program")
    text = "There is a small module, and perhaps its test. I'll read both."
    return Answer(text, tuple(Call("read_file", {"path": name}) for name in names))


def _after_read(done: list[Result]) -> Answer:
    source = next((r.text for r in reversed(done) if r.name == "read_file" and r.input.get("path") == "stats.py"), "")
    if "def median" not in source:
        return _stop("read_file", source, "stats.py has no function median")
    if _buggy_line(source) is None:
        return Answer("median() in stats.py already treats an even number of values apart. There is nothing to fix.")
    text = (
        "`median` sorts the values and returns the one at `len // 2`. That is right for an odd number of values; for an even "
        "number it must be the mean of the two in the middle. Before I change it, who else uses it?"
    )
    return Answer(text, (Call("search", {"pattern": r"median\("}),))


def _after_search(done: list[Result]) -> Answer:
    if "median" not in done[-1].text:
        return _stop("search", done[-1].text, "the search did not find median, although it was in stats.py")
    source = next(r.text for r in reversed(done) if r.name == "read_file" and r.input.get("path") == "stats.py")
    line = _buggy_line(source)
    if line is None:
        return _stop("read_file", source, "the line to change is gone")
    indent = line[: len(line) - len(line.lstrip())]
    new = (
        f"{indent}if len(ordered) % 2 == 0:\n"
        f"{indent}    return (ordered[middle - 1] + ordered[middle]) / 2\n"
        f"{indent}return ordered[middle]"
    )
    files = sorted({line.split(":", 1)[0] for line in done[-1].text.split("\n") if ":" in line})
    text = f"`median` occurs in {', '.join(files)}. The change belongs into the function itself, in stats.py."
    return Answer(text, (Call("edit_file", {"path": "stats.py", "old": line, "new": new}),))


def _after_edit(done: list[Result]) -> Answer:
    if not done[-1].text.startswith("Edited "):
        return _stop("edit_file", done[-1].text, "the file was not changed")
    text = (
        "Fixed. `median` in stats.py returned the upper of the two middle values when their number was even; it now returns their "
        "mean. Lists of odd length behave as before, and only that function was changed."
    )
    return Answer(text)


_STEPS: Final[dict[str, Callable[[list[Result]], Answer]]] = {
    "list_files": _after_list,
    "read_file": _after_read,
    "search": _after_search,
    "edit_file": _after_edit,
}


def _stop(tool: str, text: str, why: str) -> Answer:
    first = next((line.strip() for line in text.split("\n") if line.strip()), "(nothing)")
    return Answer(f"I stop here: {why}. {tool} gave: {first[:200]}")


def _buggy_line(source: str) -> str | None:
    """The line `return ordered[middle]` of median, as it is in the file; None when another branch deals with even lengths."""
    body = source[source.index("def median") :]
    found = re.search(r"^(?:\s*\d+\s*[\t|:│→]\s?)?([ \t]+return ordered\[middle\])[ \t]*$", body, re.MULTILINE)
    return None if found is None or "% 2" in body[: found.start()] else found[1]


def _results(chat: Chat) -> list[Result]:
    """What the tools gave since the newest request of the user, in order, each with its call."""
    calls: dict[str, _Function] = {}
    done: list[Result] = []
    for message in chat.messages:
        if message.role == "user":
            done.clear()
        for call in message.tool_calls or []:
            calls[call.id] = call.function
        if message.role == "tool" and message.tool_call_id in calls:
            function = calls[message.tool_call_id]
            done.append(Result(function.name, _arguments(function.arguments), _text(message)))
    return done


def _arguments(text: str) -> dict[str, str]:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.DecodeError:
        return {}
    return {name: value for name, raw in fields.items() if isinstance(value := msgspec.json.decode(raw), str)}


def _text(message: _Message) -> str:
    if isinstance(message.content, list):
        return "".join(part.text for part in message.content)
    return message.content or ""


# --- the answer as a stream of chunks


class _FunctionPiece(Struct, omit_defaults=True):
    arguments: str
    name: str = ""


class _CallPiece(Struct, omit_defaults=True):
    index: int
    function: _FunctionPiece
    id: str = ""
    type: str = ""


class _Delta(Struct, omit_defaults=True):
    role: str = ""
    content: str = ""
    tool_calls: tuple[_CallPiece, ...] = ()


class _Choice(Struct):
    delta: _Delta
    index: int = 0
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Chunk(Struct, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[_Choice]
    usage: _Usage | None = None


def chunks(chat: Chat, reply: Answer) -> list[bytes]:
    """The reply as the data of server-sent events, [DONE] included; usage when it was asked for."""
    parts = [_Choice(_Delta(role="assistant"))]
    parts += [_Choice(_Delta(content=piece)) for piece in re.findall(r"\S+\s*|\s+", reply.text)]
    for index, call in enumerate(reply.calls):
        call_id = f"call_{len(chat.messages)}_{index}"
        head = _CallPiece(index, _FunctionPiece("", call.name), call_id, "function")
        parts.append(_Choice(_Delta(tool_calls=(head,))))
        text = _encoder.encode(call.input).decode()
        for at in range(0, len(text), 24):
            more = _CallPiece(index, _FunctionPiece(text[at : at + 24]))
            parts.append(_Choice(_Delta(tool_calls=(more,))))
    parts.append(_Choice(_Delta(), finish_reason="tool_calls" if reply.calls else "stop"))
    out = [_encoder.encode(_chunk(chat, [part])) for part in parts]
    if chat.stream_options is not None and chat.stream_options.include_usage:
        used = _usage(chat, reply)
        out.append(_encoder.encode(_chunk(chat, [], used)))
    return [*out, b"[DONE]"]


def _chunk(chat: Chat, choices: list[_Choice], usage: _Usage | None = None) -> _Chunk:
    return _Chunk(f"chatcmpl-demo-{len(chat.messages)}", "chat.completion.chunk", 0, chat.model, choices, usage)


def _usage(chat: Chat, reply: Answer) -> _Usage:
    # Four characters a token: a scripted model has no tokens, and says so by its name.
    prompt = sum(len(_text(message)) for message in chat.messages) // 4 + 1
    completion = (len(reply.text) + sum(len(_encoder.encode(call.input)) for call in reply.calls)) // 4 + 1
    return _Usage(prompt, completion, prompt + completion)
