"""How events get from any thread to the one that sends: a queue without a lock, bounded in number and in bytes, that counts.

`append` of a deque and `next` of a counter are one step each under the interpreter's lock, so that nothing here can be held
by a thread that sleeps, by a signal handler that came in between, or by the parent of a forked child. The same thread takes
everything out again, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import count
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec import Raw, Struct

from tracewriter.config import BUFFER_BYTES, KIB

QUEUE_EVENTS: Final = 16_384  # 8 ms at two million a second; each of them is small or has allowance
SMALL: Final = KIB  # what is not longer needs no allowance
_GRAIN: Final = 4 * KIB  # an allowance is counted in these
_DEEPEST: Final = 6  # levels of an event that are weighed
_DEEPER: Final = KIB  # what is below counts as so much

T = TypeVar("T")
Entry: TypeAlias = "tuple[T, object, datetime, str, str, str, int]"  # owner, event, ts, run, op, parent, grains
Order: TypeAlias = Callable[[], None]


class Tally:
    """A count that any thread adds to and any thread reads, exact without a lock."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = count()

    def add(self) -> None:
        """One more."""
        next(self._next)

    @property
    def value(self) -> int:
        """How many."""
        return int(repr(self._next)[len("count(") : -1])  # no other look at it leaves it as it is


class Handover(Generic[T]):
    """The queue. `orders` are called in their place among the events by whoever takes them out."""

    def __init__(self, events: int = QUEUE_EVENTS, size_bytes: int = BUFFER_BYTES) -> None:
        self._items: deque[Entry[T] | Order] = deque()
        self._events = events
        self._grains = size_bytes // _GRAIN
        self._free = deque(range(self._grains))
        self.closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, owner: T, event: object, size: int, ts: datetime, run: str, op: str, parent: str) -> bool:
        """False: there is no room, or nobody takes anything out any more."""
        if len(self._items) >= self._events or self.closed:
            return False
        grains = 0
        if size > SMALL:
            grains = min(size // _GRAIN + 1, self._grains)
            if not self._take(grains):
                return False
        entry = (owner, event, ts, run, op, parent, grains)
        self._items.append(entry)
        return self._is_taken_over(entry)

    def _is_taken_over(self, entry: Entry[T]) -> bool:
        """When it was closed in between: whether whoever empties it has this one (and counts it)."""
        if not self.closed:
            return True
        try:
            self._items.remove(entry)
        except ValueError:
            return True
        return False

    def _take(self, grains: int) -> bool:
        taken = 0
        try:
            for _ in range(grains):
                self._free.pop()
                taken += 1
        except IndexError:
            self.free(taken)
            return False
        return True

    def free(self, grains: int) -> None:
        """An event was taken over: there is room for others."""
        self._free.extend(range(grains))

    def order(self, order: Order) -> None:
        """Have something done after everything that was put in so far."""
        self._items.append(order)

    def take(self) -> Entry[T] | Order | None:
        """The next one, None when there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def clear(self) -> None:
        """Take nothing more, and forget what is there."""
        self.closed = True
        self._items.clear()


def weight(value: object, depth: int = 0) -> int:
    """About how many bytes an event holds on to."""
    kind = type(value)
    if kind is str or kind is Raw or kind is bytes:
        return len(value)  # type: ignore[arg-type]
    if depth >= _DEEPEST:
        return _DEEPER
    if kind is tuple:
        parts: Iterable[object] = value  # type: ignore[assignment]
    elif issubclass(kind, Struct):
        parts = (getattr(value, name) for name in kind.__struct_fields__)
    else:
        return 8
    return 8 + sum(weight(part, depth + 1) for part in parts)
