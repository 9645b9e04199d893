"""The content blocks of one answer on the anthropic wire: the calls in them, and what must go back with the conversation.

Blocks are keyed by index, because they may overlap (start 0, start 1, then the stops). Only `tool_use` is a call for us:
the provider runs `server_tool_use`, `mcp_tool_use` and their like itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agentd.providers.anthropic_event import Block
from agentd.providers.chat_chunk import ABSENT
from agentd.providers.tool_calls import MAX_ARGUMENTS_CHARS, MAX_CALLS, CutCall
from agentd.providers.tool_input import mend, tool_input
from tracewriter.events import ToolCall

_MAX_BLOCKS: Final = 4 * MAX_CALLS
_MAX_KEPT_CHARS: Final = 4 * 1024 * 1024  # of thinking: far above any model's; beyond it nothing is kept to send back


class Kept(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """A block of an answer whose thinking must go back: thinking as it was, of the others only their place."""


class KeptThinking(Kept, frozen=True, tag="thinking"):
    """Signed thinking, unmodified."""

    thinking: str
    signature: str


class KeptRedacted(Kept, frozen=True, tag="redacted_thinking"):
    """Encrypted thinking."""

    data: str


class KeptText(Kept, frozen=True, tag="text"):
    """So many characters of the message's text, in one block or several."""

    chars: int


class KeptCall(Kept, frozen=True, tag="tool_use"):
    """The call with this id."""

    id: str


KeptBlock = KeptThinking | KeptRedacted | KeptText | KeptCall


class KeptAnswer(Struct, frozen=True):
    """Whose thinking it is (signatures of one maker's models are refused by another's), and the blocks in their order."""

    model: str
    content: tuple[KeptBlock, ...]


class Envelope(Struct, frozen=True):
    """What goes into stream.Opaque: one key, which no other wire reads."""

    anthropic: KeptAnswer


class _Open:
    __slots__ = ("broken", "data", "id", "input", "kind", "name", "parts", "signature", "stopped", "text_before")

    def __init__(self, block: Block, text_before: int) -> None:
        self.kind = block.type or ""
        self.id = block.id or ""
        self.name = block.name or ""
        self.input = Raw(bytes(block.input))
        self.signature = block.signature or ""
        self.data = block.data or ""
        self.parts: list[str] = []  # pieces of arguments or of thinking
        self.text_before = text_before  # how many characters of text the answer had when the block began
        self.stopped = False
        self.broken = False  # a piece of it could not be read


class Blocks:
    """Collects one answer's blocks. `overflowed` says that a bound was passed, `lost` that a call's beginning never came."""

    __slots__ = ("_by_index", "_chars", "_kept_chars", "_new_id", "_order", "lost", "overflowed")

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.overflowed = False
        self.lost = False
        self._new_id = new_id
        self._order: list[_Open] = []
        self._by_index: dict[int | None, _Open] = {}
        self._chars = 0
        self._kept_chars = 0

    def __bool__(self) -> bool:
        return bool(self._order)

    @property
    def call_names(self) -> tuple[str, ...]:
        """The calls that were begun so far, for a report."""
        return tuple(mend(block.name or block.id) or "?" for block in self._order if block.kind == "tool_use")

    def start(self, index: int | None, block: Block, text_before: int) -> None:
        """A block begins, after so many characters of text. One still open under the same index is taken to be over."""
        if len(self._order) >= _MAX_BLOCKS:
            self.overflowed = True
            return
        self._by_index[index] = opened = _Open(block, text_before)
        self._order.append(opened)
        if opened.kind == "thinking":
            self._keep(opened, block.thinking or "")
        self._kept_chars += len(opened.data) + len(opened.signature)

    def stop(self, index: int | None) -> None:
        """A block is complete."""
        if (block := self._by_index.get(index)) is not None:
            block.stopped = True

    def thought(self, index: int | None, text: str) -> None:
        """A piece of thinking."""
        if (block := self._by_index.get(index)) is not None and block.kind == "thinking":
            self._keep(block, text)

    def sign(self, index: int | None, signature: str) -> None:
        """The signature of a thinking block, or a piece of it."""
        if (block := self._by_index.get(index)) is not None and self._kept_chars <= _MAX_KEPT_CHARS:
            block.signature += signature
            self._kept_chars += len(signature)

    def argue(self, index: int | None, piece: str | None) -> None:
        """A piece of a call's arguments; None for one that could not be read."""
        block = self._by_index.get(index)
        if block is None:
            self.lost = True
        elif block.kind != "tool_use":
            return
        elif piece is None:
            block.broken = True
        elif piece:
            block.parts.append(piece)
            self._chars += len(piece)
            self.overflowed = self.overflowed or self._chars > MAX_ARGUMENTS_CHARS

    def calls(self, *, whole: bool, limited: bool) -> list[ToolCall | CutCall]:
        """All calls in order, ids unique, made up where none came. `whole`: the message was ended; `limited`: by a limit."""
        taken: set[str] = set()
        last = self._order[-1] if self._order else None
        return [
            self._closed(block, taken, whole=(whole or block.stopped) and not (limited and block is last))
            for block in self._order
            if block.kind == "tool_use"
        ]

    def kept(self, model: str, calls: list[ToolCall | CutCall], text_chars: int) -> Raw | None:
        """What must be sent back with this answer, whose calls and length of text these are; None when nothing is signed."""
        if not 0 < self._kept_chars <= _MAX_KEPT_CHARS:
            return None
        ids = iter([call.id if isinstance(call, ToolCall) else None for call in calls])
        content: list[KeptBlock] = []
        placed = 0
        for block in self._order:
            if (kept := _kept(block, ids)) is not None:
                if block.text_before > placed:
                    content.append(KeptText(block.text_before - placed))
                    placed = block.text_before
                content.append(kept)
        if not any(isinstance(block, KeptThinking | KeptRedacted) for block in content):
            return None
        if text_chars > placed:
            content.append(KeptText(text_chars - placed))
        return Raw(msgspec.json.encode(Envelope(KeptAnswer(mend(model), tuple(content)))))

    def _keep(self, block: _Open, text: str) -> None:
        self._kept_chars += len(text)
        if text and self._kept_chars <= _MAX_KEPT_CHARS:
            block.parts.append(text)

    def _closed(self, block: _Open, taken: set[str], *, whole: bool) -> ToolCall | CutCall:
        call_id = mend(block.id)
        while not call_id or call_id in taken:
            call_id = self._new_id()
        taken.add(call_id)
        text = mend("".join(block.parts))
        if not text.strip() and block.input not in (ABSENT, b"null"):
            text = bytes(block.input).decode("utf-8", "replace")  # from servers that send arguments with the start
        # No arguments at all are fine in a call that was ended, and are what a cut leaves of any other.
        cut = block.broken or not block.name or (not whole and text.strip() in ("", "{}"))
        arguments = None if cut else tool_input(text)
        if arguments is None:
            return CutCall(call_id, mend(block.name), text)
        return ToolCall(call_id, mend(block.name), arguments)


def _kept(block: _Open, ids: Iterator[str | None]) -> KeptBlock | None:
    if block.kind == "thinking" and block.signature:
        return KeptThinking(mend("".join(block.parts)), mend(block.signature))
    if block.kind == "redacted_thinking" and block.data:
        return KeptRedacted(mend(block.data))
    if block.kind == "tool_use" and (call_id := next(ids, None)) is not None:
        return KeptCall(call_id)
    return None
