"""Tool calls out of the pieces that openai-chat servers send, which agree on little but that pieces are appended.

Known dialects, all seen: the name once, in fragments, or again in every delta; the id first, late, empty, twice or never;
parallel calls under their own index, all under index 0, or under none; arguments as text, null, or a whole object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agentd.providers.chat_chunk import ABSENT, Function, ToolDelta
from agentd.providers.tool_input import mend, tool_input
from tracewriter.events import ToolCall

# Far above what a turn needs; a server that sends more is not answering the request.
MAX_CALLS: Final = 1024
MAX_ARGUMENTS_CHARS: Final = 16 * 1024 * 1024
# Types that mean "you run it". Anything else names a tool that the provider runs itself, and is never ours.
_OURS: Final = frozenset({None, "", "function", "null", "tool", "tool_call", "tool_use", "function_call"})


class CutCall(Struct, frozen=True, gc=False):
    """A call whose arguments are no JSON: cut by a limit, or broken. Reported, never run."""

    id: str
    name: str
    arguments: str


class _Open:
    __slots__ = ("arguments", "extra", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra = ABSENT

    @property
    def looks_whole(self) -> bool:
        return bool(self.arguments) and self.arguments[-1].rstrip().endswith("}")


class ToolCalls:
    """Collects one answer's calls in the order they began. `finish` gives them; `overflowed` says that a bound was passed."""

    __slots__ = ("_by_index", "_chars", "_new_id", "_order", "overflowed")

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.overflowed = False
        self._new_id = new_id
        self._order: list[_Open] = []
        self._by_index: dict[int, _Open] = {}
        self._chars = 0

    def __bool__(self) -> bool:
        return bool(self._order)

    @property
    def names(self) -> tuple[str, ...]:
        """What was begun so far, for a report."""
        return tuple(mend(call.name) or call.id or "?" for call in self._order)

    def add(self, delta: ToolDelta) -> None:
        """Take one piece."""
        function = delta.function
        if delta.type not in _OURS or self.overflowed:
            return
        call = self._call_of(delta, function or Function())
        if delta.id and not call.id:
            call.id = delta.id
        if delta.extra_content not in (ABSENT, b"null"):
            call.extra = Raw(bytes(delta.extra_content))
        if function is not None:
            self._append(call, function)

    def add_function(self, function: Function) -> None:
        """Take a piece of the one call of the older dialect, `function_call`."""
        self.add(ToolDelta(index=0, function=function))

    def finish(self) -> list[tuple[ToolCall | CutCall, Raw]]:
        """All calls in order, each with its extra content; ids unique, made up where the provider sent none of its own."""
        taken: set[str] = set()
        return [(self._closed(call, taken), call.extra) for call in self._order]

    def _append(self, call: _Open, function: Function) -> None:
        # A name that repeats the one so far is a repeat; a different one before any arguments is a fragment.
        if function.name and function.name != call.name and not call.arguments:
            call.name += function.name
        arguments = function.arguments
        if isinstance(arguments, dict):
            call.arguments = [msgspec.json.encode(arguments).decode()]
        elif arguments:
            call.arguments.append(arguments)
        else:
            return
        self._chars += len(call.arguments[-1])
        self.overflowed = self._chars > MAX_ARGUMENTS_CHARS

    def _call_of(self, delta: ToolDelta, function: Function) -> _Open:
        known = self._order[-1] if self._order else None
        if delta.index is not None:
            known = self._by_index.get(delta.index)
        elif delta.id:
            known = next((call for call in self._order if call.id == delta.id), known)
        if known is None or self._is_another(known, delta, function):
            return self._open(delta.index)
        return known

    def _is_another(self, known: _Open, delta: ToolDelta, function: Function) -> bool:
        if not function.name:
            return delta.index is None and bool(delta.id and known.id) and delta.id != known.id
        if delta.id and known.id:
            return delta.id != known.id
        if known.arguments and function.arguments and known.looks_whole:
            # No ids to tell: a name with arguments of its own, after arguments that are complete, begins a new call.
            return tool_input("".join(known.arguments)) is not None
        return delta.index is None and bool(known.name) and function.name != known.name

    def _open(self, index: int | None) -> _Open:
        call = _Open(index)
        if len(self._order) >= MAX_CALLS:
            self.overflowed = True
            return call
        self._order.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _closed(self, call: _Open, taken: set[str]) -> ToolCall | CutCall:
        call_id = mend(call.id)
        while not call_id or call_id in taken:
            call_id = self._new_id()
        taken.add(call_id)
        text = mend("".join(call.arguments))
        arguments = tool_input(text) if call.name else None
        if arguments is None:
            return CutCall(call_id, mend(call.name), text)
        return ToolCall(call_id, mend(call.name), arguments)
