"""Recorded streams with our tools in place of theirs: the same chunks, cut in the same places, with the same oddities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tests import wire_corpus

_Json = dict[str, Any]


class Called(Struct, frozen=True):
    """What a recorded call becomes. `arguments` as text need not be JSON; None leaves the recorded ones as they are."""

    name: str
    arguments: dict[str, object] | str | None = None


def tool_streams() -> list[str]:
    """The recorded streams in which tools are called; one stand-in without the corpus."""
    cases = wire_corpus.names("streams/openai-chat", ".expected.json")
    if not wire_corpus.PRESENT:
        return cases
    return [name for name in cases if wire_corpus.stream("openai-chat", name)[1]["tool_calls"]]


def retarget(recorded: bytes, calls: Sequence[Called]) -> bytes:
    """The stream with its tool calls, in order, made into these; framing, fragments, ids and indexes stay, or stay away.

    New arguments are cut into as many fragments as the recorded ones had; a call without any gets them where it would have had
    them. Raises AssertionError when the number of calls is not that of the stream.
    """
    lines = recorded.split(b"\n")
    chunks = {number: chunk for number, line in enumerate(lines) if (chunk := _chunk(line))}
    grouped = _by_call([entry for chunk in chunks.values() for entry in _entries(chunk)])
    assert len(grouped) == len(calls), f"the stream has {len(grouped)} calls, not {len(calls)}"
    for pieces, called in zip(grouped, calls, strict=True):
        _become(pieces, called)
    for number, chunk in chunks.items():
        _mirror(chunk)
        if _entries(chunk):
            head, _, old = lines[number].partition(b"{")
            tail = b"\r" if old.endswith(b"\r") else b""
            spaced = b'": ' in old[:40]
            text = json.dumps(chunk, ensure_ascii=False, separators=None if spaced else (",", ":"))
            lines[number] = head + text.encode() + tail
    return b"\n".join(lines)


def _chunk(line: bytes) -> _Json | None:
    if not line.startswith(b"data:") or b'"tool_calls"' not in line:
        return None
    chunk: _Json = json.loads(line[5:])
    return chunk


def _entries(chunk: _Json) -> list[_Json]:
    return [
        entry for choice in chunk.get("choices") or [] for entry in (choice.get("delta") or {}).get("tool_calls") or []
    ]


def _by_call(entries: list[_Json]) -> list[list[_Json]]:
    """The pieces of each call. An index goes on with its call unless another id begins a new one; without one each is new."""
    calls: list[list[_Json]] = []
    current: dict[object, tuple[list[_Json], str]] = {}
    for entry in entries:
        index, new_id = entry.get("index"), entry.get("id") or ""
        known = current.get(index) if index is not None else None
        if known is None or (new_id and known[1] and new_id != known[1]):
            known = ([], new_id)
            calls.append(known[0])
            current[index] = known
        known[0].append(entry)
    return calls


def _become(pieces: list[_Json], called: Called) -> None:
    functions = [function for entry in pieces if (function := entry.get("function"))]
    for function in functions:
        if function.get("name"):
            function["name"] = called.name
    if called.arguments is None:
        return
    given = [function for function in functions if function.get("arguments")]
    given = given or [function for function in functions if "arguments" in function][:1]
    lengths = [len(function["arguments"] or "") or 1 for function in given]
    whole = called.arguments if isinstance(called.arguments, str) else json.dumps(called.arguments)
    done = 0
    for function, length in zip(given, lengths, strict=True):
        start, done = len(whole) * done // sum(lengths), done + length
        function["arguments"] = whole[start : len(whole) * done // sum(lengths)]
    assert "".join(function["arguments"] for function in given) == whole


def _mirror(chunk: _Json) -> None:
    """One server says everything twice, in `delta` and in `message`."""
    for choice in chunk.get("choices") or []:
        if (choice.get("message") or {}).get("tool_calls"):
            choice["message"]["tool_calls"] = choice["delta"]["tool_calls"]
