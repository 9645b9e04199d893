"""Events of other tools: a legal name under the tool's own prefix, never one of ours, and any value as a JSON object. Pure.

Names are lower-case words, digits, `_` and `-`, joined by dots. What a tool calls `PreToolUse` is recorded as
`<tool>.pre_tool_use`, and the original stays in the data. No foreign name begins like one of ours: `run.execute.finished`
said by `my-tool` is `my-tool.run.execute.finished`, and readers never take it for the end of a run.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from tracewriter import jsonl
from tracewriter.config import MAX_BODY
from tracewriter.events import KINDS, Foreign

TOOL_CHARS: Final = 32
NAME_CHARS: Final = 120  # of an event's name, its prefix included
ORIGINAL: Final = "original_event"  # the key under which a name is kept that had to change
_LOOKED_AT: Final = 400  # characters of a name from outside
_LEGAL: Final = re.compile(r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)*\Z")
_TOOL: Final = re.compile(r"[a-z][a-z0-9_-]*\Z")
_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DOTS: Final = re.compile(r"[./:]+")
_OTHERS: Final = re.compile(r"[^a-z0-9._-]+")
# First words of our own kinds, and those who make them: no tool is called so.
RESERVED: Final = frozenset(name.partition(".")[0] for name in KINDS) | {"agentd", "agentctl", "tracewriter"}


def is_tool_name(text: str) -> bool:
    """Whether it may stand before the names of a tool's events."""
    return len(text) <= TOOL_CHARS and _TOOL.match(text) is not None and text not in RESERVED


def tool_name(text: str) -> str:
    """The nearest legal name of a tool: itself, when it is one."""
    if is_tool_name(text):
        return text
    made = _legal(text).replace(".", "-")[:TOOL_CHARS].rstrip("-_")
    if not made or not made[0].isalpha() or made in RESERVED:
        made = f"x-{made or 'tool'}"[:TOOL_CHARS]
    return made


def event_name(tool: str, name: str) -> tuple[str, bool]:
    """The name under which a tool's event is recorded, and whether it had to change beyond getting its prefix."""
    prefix = f"{tool}."
    room = NAME_CHARS - len(prefix)
    bare = name[len(prefix) :] if name.startswith(prefix) else name
    if len(bare) <= room and _LEGAL.match(bare):
        return prefix + bare, False
    return prefix + (_legal(bare)[:room].rstrip("._-") or "event"), True


def _legal(text: str) -> str:
    words = _OTHERS.sub("_", _DOTS.sub(".", _HUMPS.sub("_", text[:_LOOKED_AT])).lower())
    return ".".join(filter(None, (word.strip("_-") for word in words.split("."))))


def event_of(tool: str, name: str, value: object) -> Foreign:
    """An event of a tool. Never raises, whatever the value is: what cannot be recorded as it is, is repaired and marked."""
    name = str.__str__(name) if issubclass(type(name), str) else "value"
    legal, changed = event_name(tool, name)
    if changed:
        value = _with_original(value, name)
    return Foreign(legal, body_of(value))


def _with_original(value: object, name: str) -> dict[object, object]:
    name = name[:_LOOKED_AT]
    if type(value) is dict and ORIGINAL not in value:
        return {ORIGINAL: name, **value}
    return {ORIGINAL: name, "value": value}


def body_of(value: object) -> Raw:
    """Any value as one line of JSON, an object: what is none is the `value` of one. Never raises; MAX_BODY bytes at most."""
    if type(value) is dict:
        # a copy first, which is one step: another thread may change the original
        value = {name: _cut(item) for name, item in dict(value).items()}
    encoded = _as_it_is(_cut(value))
    if encoded is None:
        return Raw(jsonl.encode_safely(value, MAX_BODY))
    return Raw(encoded if encoded[:1] == b"{" else b'{"value":%s}' % encoded)


def _cut(value: object) -> object:
    return jsonl.cut_text(value, MAX_BODY // 2) if type(value) is str and len(value) > MAX_BODY // 2 else value


def _as_it_is(value: object) -> bytes | None:
    """The value's JSON when nothing in it has to be repaired: no look at each part, so that large values cost little."""
    try:
        encoded = jsonl.encoder.encode(value)
        if len(encoded) > MAX_BODY or jsonl.too_deep(encoded) or not jsonl.is_json(encoded):
            return None
        # NaN is written as null, without a mark; and it equals nothing
        if b"null" in encoded and jsonl.decoder.decode(encoded) != msgspec.to_builtins(value, str_keys=True):
            return None
    except Exception:  # noqa: BLE001 - encoding and comparing run foreign code, which may raise anything
        return None
    return encoded
