"""What the clients of one session are shown: recent events in memory, each with a cursor, and subscribers that may be slow.

An event is encoded once, however many follow. A subscriber without room misses events and is told which (session/lagged);
it resumes by cursor. Deltas have no cursor and are not kept: their offsets show a hole, and the finished event has it all.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from msgspec import Raw

from agentd.protocol import SessionDelta, SessionEvent, SessionLagged, encode_notification

MAX_RING_EVENTS: Final = 2_000
MAX_RING_BYTES: Final = 4 * 1024 * 1024
# All sessions together; beyond it each keeps little, so that a thousand sessions do not take four gigabytes.
MAX_ALL_RINGS_BYTES: Final = 256 * 1024 * 1024
SMALL_RING_BYTES: Final = 128 * 1024


class Sink(Protocol):
    """Where a subscriber's lines go."""

    def offer(self, line: bytes) -> bool:
        """Take one line, or say at once that there is no room for it."""


class RingBudget:
    """What the rings of all sessions hold together."""

    def __init__(self, limit_bytes: int = MAX_ALL_RINGS_BYTES) -> None:
        self._limit = limit_bytes
        self.held_bytes = 0

    def ring_bytes(self) -> int:
        """How much one ring may hold now."""
        return MAX_RING_BYTES if self.held_bytes < self._limit else SMALL_RING_BYTES


class Subscription:
    """One subscriber of one session."""

    def __init__(self, feed: Feed, sink: Sink) -> None:
        self._feed = feed
        self._sink = sink
        self._missing_from = 0  # the first event missed; 0 when none is

    def __repr__(self) -> str:
        return f"<Subscription {self._feed} missing_from={self._missing_from}>"

    def deliver(self, number: int, line: bytes) -> None:
        """Hand over an event, or note that it is missing."""
        self.resume(number - 1)
        if self._missing_from == 0 and not self._sink.offer(line):
            self._missing_from = number

    def deliver_delta(self, line: bytes) -> None:
        """Hand over a delta if there is room."""
        if self._missing_from == 0:
            self._sink.offer(line)

    def resume(self, last_missing: int | None = None) -> None:
        """There may be room again: say what is missing, up to `last_missing` (absent: the newest)."""
        last = self._feed.newest if last_missing is None else last_missing
        if self._missing_from and self._sink.offer(self._feed.lagged(self._missing_from, last)):
            self._missing_from = 0

    def close(self) -> None:
        """No more events."""
        self._feed.subscriptions.discard(self)


class Feed:
    """One session's live events."""

    def __init__(self, session: str, life: str, budget: RingBudget) -> None:
        self._session = session
        self._life = life
        self._budget = budget
        self._ring: deque[tuple[int, bytes]] = deque()
        self._ring_bytes = 0
        self.newest = 0
        self.subscriptions: set[Subscription] = set()

    def __repr__(self) -> str:
        return (
            f"<Feed {self._session} newest={self.newest} held={len(self._ring)} subscribers={len(self.subscriptions)}>"
        )

    def cursor(self, number: int | None = None) -> str:
        """The cursor of an event, or of the newest."""
        return f"{self._life}:{self.newest if number is None else number}"

    def publish(self, record: Raw) -> None:
        """An event happened; `record` is its JSON."""
        self.newest += 1
        line = encode_notification(SessionEvent(self._session, self.cursor(), record))
        self._keep(line)
        for subscription in tuple(self.subscriptions):
            subscription.deliver(self.newest, line)

    def publish_delta(self, delta: SessionDelta) -> None:
        """A piece of text came."""
        if self.subscriptions:
            line = encode_notification(delta)
            for subscription in tuple(self.subscriptions):
                subscription.deliver_delta(line)

    def subscribe(self, sink: Sink, after: str | None) -> Subscription:
        """Events after a cursor ("" for all in memory, None for new ones only), then those to come."""
        subscription = Subscription(self, sink)
        if after is not None:
            self._replay(subscription, sink, self._number(after))
        self.subscriptions.add(subscription)
        return subscription

    def lagged(self, first: int, last: int) -> bytes:
        """The notice that events first … last are missing."""
        return encode_notification(SessionLagged(self._session, self.cursor(first), self.cursor(last)))

    def close(self) -> None:
        """Forget everything."""
        self._budget.held_bytes -= self._ring_bytes
        self._ring.clear()
        self._ring_bytes = 0
        self.subscriptions.clear()

    def _number(self, cursor: str) -> int:
        life, _, number = cursor.partition(":")
        # A cursor of an earlier daemon says nothing about this one's numbers: all of this life's events are after it.
        return int(number) if life == self._life and number.isascii() and number.isdigit() and len(number) < 19 else 0

    def _replay(self, subscription: Subscription, sink: Sink, after: int) -> None:
        oldest = self._ring[0][0] if self._ring else self.newest + 1
        if after + 1 < oldest:
            sink.offer(self.lagged(after + 1, oldest - 1))
        for number, line in self._ring:
            if number > after:
                subscription.deliver(number, line)

    def _keep(self, line: bytes) -> None:
        self._ring.append((self.newest, line))
        self._grow(len(line))
        limit = self._budget.ring_bytes()
        while self._ring and (len(self._ring) > MAX_RING_EVENTS or self._ring_bytes > limit):
            self._grow(-len(self._ring.popleft()[1]))

    def _grow(self, size: int) -> None:
        self._ring_bytes += size
        self._budget.held_bytes += size
