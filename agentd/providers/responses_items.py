"""The output items of one response, put together from events that name them by id, by place, or not at all.

Known dialects: ids that differ in every event of one item (the place is right), no places (the ids are right), neither; items
that only begin, or only end; call ids in the place of item ids. A call is told from another by its call_id before all else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Raw

from agentd.providers.responses_event import Event, Item
from agentd.providers.responses_kept import KeptItem
from agentd.providers.tool_calls import MAX_ARGUMENTS_CHARS, MAX_CALLS, CutCall
from agentd.providers.tool_input import mend, tool_input
from tracewriter.events import ToolCall

_MAX_PARTS: Final = 4096
_MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
# Types that mean "you run it". All other *_call items are tools that the provider runs itself, and never ours.
OURS: Final = ("function_call", "custom_tool_call")
PartKey = tuple[str, int | None]


class Said:
    """How much of a part was given so far: its length and the last piece, enough to tell what a whole text adds."""

    __slots__ = ("chars", "last")

    def __init__(self) -> None:
        self.chars = 0
        self.last = ""

    def add(self, piece: str) -> None:
        """A piece was given."""
        self.chars += len(piece)
        self.last = piece

    def rest(self, whole: str) -> str:
        """What the whole text has beyond what was given; "" where the two disagree, because what was shown stays shown."""
        if len(whole) <= self.chars or whole[self.chars - len(self.last) : self.chars] != self.last:
            return ""
        piece = whole[self.chars :]
        self.add(piece)
        return piece


class OpenItem:
    """One item in the making."""

    __slots__ = ("call_id", "cut", "done", "given", "id", "index", "name", "parts", "phase", "pieces", "raw", "type")

    def __init__(self, kind: str, index: int | None) -> None:
        self.type = kind
        self.index = index
        self.id = self.call_id = self.name = self.phase = ""
        self.pieces: list[str] = []  # of the arguments
        self.given = ""  # the arguments whole
        self.done = False
        self.cut = False  # it ended before it was whole, and says so
        self.parts: dict[PartKey, Said] = {}
        self.raw: Raw | None = None  # reasoning, as it came

    def part(self, kind: str, index: int | None) -> Said:
        """The part of a kind at a place; events without a place mean the only one."""
        known = self.parts.get((kind, index)) or self.parts.get((kind, None))
        if known is None and index is None:
            of_kind = [said for key, said in self.parts.items() if key[0] == kind]
            known = of_kind[0] if len(of_kind) == 1 else None
        if known is None:
            known = self.parts[kind, index] = Said()
        return known

    @property
    def text_chars(self) -> int:
        """The length of what a message said."""
        return sum(said.chars for (kind, _), said in self.parts.items() if kind == "text")

    def call(self, call_id: str, *, completed: bool) -> ToolCall | CutCall:
        """The call that the item is: whole when its own end or that of the whole response was seen, and it is JSON."""
        streamed, name = mend("".join(self.pieces)), mend(self.name)
        given = mend(self.given)
        if (self.done or completed) and not self.cut and name:
            if self.type == "custom_tool_call":
                return ToolCall(call_id, name, Raw(msgspec.json.encode({"input": given or streamed})))
            for text in [text for text in (given, streamed) if text] or [""]:
                if (arguments := tool_input(text)) is not None:
                    return ToolCall(call_id, name, arguments)
        return CutCall(call_id, name, given or streamed)


class Items:
    """All items of a response in the order they began. `overflowed` says that a bound was passed."""

    __slots__ = ("_by_id", "_by_index", "_chars", "_new_id", "_order", "_parts", "overflowed")

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.overflowed = False
        self._new_id = new_id
        self._order: list[OpenItem] = []
        self._by_id: dict[str, OpenItem] = {}
        self._by_index: dict[int, OpenItem] = {}
        self._chars = 0
        self._parts = 0

    def __bool__(self) -> bool:
        return bool(self._order)

    @property
    def call_names(self) -> tuple[str, ...]:
        """What was begun so far, for a report."""
        return tuple(mend(item.name) or mend(item.call_id) or "?" for item in self._calls())

    def part(self, item: OpenItem, kind: str, index: int | None) -> Said:
        """A part of an item, counted."""
        if self.overflowed:
            return Said()
        before = len(item.parts)
        said = item.part(kind, index)
        self._parts += len(item.parts) - before
        if self._parts > _MAX_PARTS:
            self.overflowed = True
        return said

    def of_event(self, event: Event, types: tuple[str, ...]) -> OpenItem:
        """The item that an event about a part belongs to, begun now if it never began. `types`: what it can be."""
        item = self._by_id.get(event.item_id) if event.item_id else None
        if item is None and event.output_index is not None:
            item = self._by_index.get(event.output_index)
            if item is not None and item.type not in types:
                item = None
        if item is None and event.output_index is None:
            # Nothing, or only an id that no item has: the last one that may still go on.
            item = next((one for one in reversed(self._order) if one.type in types and not one.done), None)
            if item is not None and item.id and event.item_id:
                item = None
        return item or self._open(Item(types[0], event.item_id), event.output_index)

    def begin(self, item: Item, index: int | None) -> OpenItem:
        """An item begins; the same one again when its beginning is repeated."""
        known = self._known(item)
        if known is not None and not known.done:
            return self._fill(known, item, index)
        return self._open(item, index)

    def end(self, item: Item, index: int | None) -> OpenItem:
        """An item is whole. Its texts are the caller's matter."""
        known = self._known(item)
        if known is not None and known.done and known.id and item.id and known.id != item.id:
            known = None  # two calls with one call id
        if known is None and index is not None:
            known = self._fitting(item, [self._by_index[index]] if index in self._by_index else [])
        if known is None and index is None:
            known = self._fitting(item, self._order)
        known = self._fill(known, item, index) if known else self._open(item, index)
        self._close(known, item)
        return known

    def end_all(self, output: list[Item], *, whole: bool) -> Iterator[tuple[OpenItem, Item]]:
        """The response ended: its items, each with the one that was open for it. Not `whole`: each says for itself if it is."""
        matched: set[int] = set()
        for place, item in enumerate(output):
            at = self._by_index.get(place)
            candidates = [one for one in (*([at] if at else []), *self._order) if id(one) not in matched]
            known = self._known(item)
            if known is None or id(known) in matched:
                known = next((one for one in candidates if one.type == item.type and not _other(one, item)), None)
            known = self._fill(known, item, place) if known else self._open(item, place)
            matched.add(id(known))
            if whole or known.done or item.status == "completed":
                self._close(known, item)
            else:
                known.cut = True
            yield known, item

    def argue(self, event: Event, types: tuple[str, ...], piece: str | None, whole: str | None) -> None:
        """A piece of a call's arguments, or all of them."""
        item = self.of_event(event, types)
        if item.type not in OURS or self.overflowed:
            return
        item.name = item.name or event.name or ""
        if piece:
            item.pieces.append(piece)
            self._count(piece)
        if whole is not None:
            item.given = whole or item.given
            item.done = True
            self._count(whole)

    def calls(self, *, completed: bool) -> list[ToolCall | CutCall]:
        """All calls in order; ids unique, made up where the provider sent none of its own."""
        taken: set[str] = set()
        out = []
        for item in self._calls():
            call_id = mend(item.call_id or item.id)
            while not call_id or call_id in taken:
                call_id = self._new_id()
            taken.add(call_id)
            out.append(item.call(call_id, completed=completed))
        return out

    def kept(self, calls: list[ToolCall | CutCall]) -> tuple[KeptItem, ...]:
        """What can go back: reasoning only before an item that goes back too. () when there is nothing worth it."""
        whole = [isinstance(call, ToolCall) for call in calls]
        out: list[KeptItem] = []
        waiting: list[KeptItem] = []
        size = 0
        for item in self._in_order():
            if item.type == "reasoning":
                if item.raw is not None:
                    waiting.append(KeptItem(reasoning=item.raw))
                    size += len(item.raw)
                continue
            follower: KeptItem | None = None
            if item.type == "message" and (chars := item.text_chars):
                follower = KeptItem(text=chars, phase=mend(item.phase))
            elif item.type in OURS and whole.pop(0):
                follower = KeptItem(call=True)
            if follower is not None:
                out += [*waiting, follower]
            waiting.clear()
        worth = any(item.phase or item.reasoning for item in out)
        return tuple(out) if worth and size <= _MAX_KEPT_BYTES else ()

    def _in_order(self) -> list[OpenItem]:
        """By place where every item has one of its own, else as they began."""
        places = {item.index for item in self._order}
        if None in places or len(places) != len(self._order):
            return self._order
        return sorted(self._order, key=lambda item: item.index or 0)

    def _calls(self) -> list[OpenItem]:
        return [item for item in self._in_order() if item.type in OURS]

    def _known(self, item: Item) -> OpenItem | None:
        for name in (item.call_id, item.id):
            known = self._by_id.get(name) if name else None
            if known is not None and known.type == item.type and not _other(known, item):
                return known
        return None

    def _fitting(self, item: Item, among: list[OpenItem]) -> OpenItem | None:
        fits = (one for one in among if one.type == item.type and not one.done and not _other(one, item))
        return next(fits, None)

    def _open(self, item: Item, index: int | None) -> OpenItem:
        known = OpenItem(item.type or "", index)
        if len(self._order) >= MAX_CALLS:
            self.overflowed = True
            return known
        self._order.append(known)
        self._parts += 1
        return self._fill(known, item, index)

    def _fill(self, known: OpenItem, item: Item, index: int | None) -> OpenItem:
        known.id = known.id or item.id or ""
        known.call_id = known.call_id or item.call_id or ""
        known.name = item.name or known.name
        known.phase = item.phase or known.phase
        known.index = index if known.index is None else known.index
        for name in (known.id, known.call_id):
            if name and not self.overflowed:
                self._by_id[name] = known
        if known.index is not None and not self.overflowed:
            self._by_index[known.index] = known
        return known

    def _close(self, known: OpenItem, item: Item) -> None:
        given = item.input if known.type == "custom_tool_call" else item.arguments
        if given and given != known.given:
            known.given = given
            self._count(given)
        known.done = True
        known.cut = known.cut or item.status in ("incomplete", "failed", "cancelled")

    def _count(self, piece: str) -> None:
        self._chars += len(piece)
        if self._chars > 3 * MAX_ARGUMENTS_CHARS:  # in pieces, whole, and whole again
            self.overflowed = True


def _other(known: OpenItem, item: Item) -> bool:
    """Whether the two are different calls for sure."""
    return bool(known.call_id and item.call_id and known.call_id != item.call_id)
