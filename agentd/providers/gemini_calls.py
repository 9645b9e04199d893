"""Tool calls out of gemini parts: mostly whole ones, sometimes streamed in pieces that belong to the call before them.

A piece without a name goes on with the open call; the piece without `willContinue` ends it. A call that was not ended, or
whose arguments were promised more of, is cut: reported, never run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agentd.providers.chat_chunk import ABSENT, parse_json
from agentd.providers.gemini_args import PartialArgs
from agentd.providers.gemini_frame import FunctionCall
from agentd.providers.gemini_kept import Keeper, KeptPart
from agentd.providers.tool_calls import MAX_ARGUMENTS_CHARS, MAX_CALLS, CutCall
from agentd.providers.tool_input import mend, tool_input
from tracewriter.events import ToolCall

_NO_RAW: Final = (ABSENT, b"null")


class _Call:
    __slots__ = ("args", "ended", "id", "kept", "name", "streamed")

    def __init__(self, name: str, kept: KeptPart) -> None:
        self.name = name
        self.kept = kept
        self.id = ""
        self.args = ""  # whole arguments, as JSON
        self.streamed: PartialArgs | None = None
        self.ended = False

    def text(self) -> str:
        return self.streamed.text() if self.streamed is not None else self.args


class GeminiCalls:
    """Collects one answer's calls in the order they began; `overflowed` says that a bound was passed."""

    __slots__ = ("_chars", "_keeper", "_new_id", "_open", "_order", "overflowed")

    def __init__(self, new_id: Callable[[], str], keeper: Keeper) -> None:
        self.overflowed = False
        self._new_id = new_id
        self._keeper = keeper
        self._order: list[_Call] = []
        self._open: _Call | None = None
        self._chars = 0

    def __bool__(self) -> bool:
        return bool(self._order)

    @property
    def names(self) -> tuple[str, ...]:
        """What was begun so far, for a report."""
        return tuple(mend(call.name) or mend(call.id) or "?" for call in self._order)

    def add(self, piece: FunctionCall, signature: str | None) -> None:
        """Take one functionCall part."""
        if self.overflowed:
            return
        call = self._call_of(piece, signature)
        if call is None:
            return
        if piece.id and not call.id:
            call.id = piece.id
        if piece.args not in _NO_RAW:
            self._whole(call, bytes(piece.args).decode("utf-8", "replace"))
        for part in piece.partial_args or ():
            call.streamed = call.streamed or _begun(call.args)
            self._chars += call.streamed.add(part)
        call.ended = not piece.will_continue
        self._open = None if call.ended else call
        self.overflowed = self._chars > MAX_ARGUMENTS_CHARS

    def finish(self, *, limited: bool) -> list[ToolCall | CutCall]:
        """All calls in order, ids unique. `limited`: the answer was stopped, so a value that was promised more of is cut."""
        taken: set[str] = set()
        return [self._closed(call, taken, limited=limited) for call in self._order]

    def _call_of(self, piece: FunctionCall, signature: str | None) -> _Call | None:
        known = self._open
        repeated = known is not None and piece.name == known.name and (not piece.id or piece.id == known.id)
        if known is not None and (not piece.name or repeated):
            if signature:
                self._keeper.sign(known.kept, signature)
            return known
        if not (piece.name or piece.id or piece.args not in _NO_RAW or piece.partial_args):
            return None  # the end of a call that had ended already
        if len(self._order) >= MAX_CALLS:
            self.overflowed = True
            return None
        call = _Call(piece.name or "", self._keeper.call(signature))
        self._order.append(call)
        return call

    def _whole(self, call: _Call, text: str) -> None:
        self._chars += len(text)
        if call.streamed is None:
            call.args = text
            return
        merged = _object(text)
        if merged is None:
            call.streamed.broken = True
        else:
            call.streamed.merge(merged)

    def _closed(self, call: _Call, taken: set[str], *, limited: bool) -> ToolCall | CutCall:
        call_id = mend(call.id)
        while not call_id or call_id in taken:
            call_id = self._new_id()
        taken.add(call_id)
        name, text = mend(call.name), call.text()
        streamed = call.streamed
        cut = not call.ended or (streamed is not None and (streamed.broken or (limited and streamed.open)))
        arguments = None if cut or not name else tool_input(text)
        if arguments is None:
            return CutCall(call_id, name, mend(text))
        call.kept.call = name
        return ToolCall(call_id, name, arguments)


def _object(text: str) -> dict[str, object] | None:
    try:
        value = parse_json(text.encode("utf-8", "replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _begun(args: str) -> PartialArgs:
    streamed = PartialArgs()
    if args:
        found = _object(args)
        if found is None:
            streamed.broken = True
        else:
            streamed.merge(found)
    return streamed
