"""A session recorded through a thread, as a program holds it: for plain threads and for event loops, with the same methods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final

from tracewriter.capture import metadata_of
from tracewriter.clock import Clock
from tracewriter.events import (
    DELTAS,
    KINDS,
    NAMES,
    Event,
    SessionRecordFinished,
    SessionRecordStarted,
)
from tracewriter.foreign import event_of
from tracewriter.handover import Tally, weight
from tracewriter.producer import Channel
from tracewriter.sizing import TOO_LONG, is_flat, sizer
from tracewriter.standing import TraceStatus

if TYPE_CHECKING:
    from tracewriter.threaded import ThreadSender

CAPTURES: Final = ("metadata", "content", "off")
CLOSE_S: Final = 2.0
_GRACE_S: Final = 0.5  # for the thread to tell that the time is over
_STATUS_S: Final = 0.25
# What only the recorder says of a session: a program's own events of these kinds are recorded under its own names.
RECORDERS: Final = frozenset(cls for name, cls in KINDS.items() if name.startswith("trace.")) | {
    SessionRecordStarted,
    SessionRecordFinished,
}
_WEIGHED: Final[dict[type, Callable[[Event], int]]] = {
    cls: sizer(cls) if is_flat(cls) else weight for cls in NAMES if cls not in RECORDERS and cls not in DELTAS
}


class Reply:
    """An answer that comes from the sender's thread, for a thread or an event loop to wait for."""

    def __init__(self) -> None:
        self.status: TraceStatus | None = None
        self._came = threading.Event()
        self._then: Callable[[], None] = lambda: None

    def set(self, status: TraceStatus) -> None:
        """Give it. The first one stays."""
        if self.status is None:
            self.status = status
            self._came.set()
            self._then()

    def wait(self, timeout_s: float) -> TraceStatus | None:
        """Block until it is there; None when it does not come in time."""
        self._came.wait(timeout_s)
        return self.status

    async def arrive(self, timeout_s: float) -> TraceStatus | None:
        """The same without blocking the event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(came.set)
            except RuntimeError:
                pass  # the loop was closed: nobody waits any more

        self._then = wake
        if not self._came.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await came.wait()
            except TimeoutError:
                pass
        return self.status


class ThreadTrace:
    """Records one session, from any thread. A context manager, also an asynchronous one: its end closes the recording."""

    def __init__(self, sender: ThreadSender, session: str, tool: str, capture: str, clock: Clock) -> None:
        self.session, self.tool, self.capture = session, tool, capture
        self._sender, self._queue, self._now = sender, sender.queue, clock.now
        self._weighed = _WEIGHED if capture != "metadata" else {}
        self._lost = Tally()
        self._ends: dict[Callable[[], None], None] = {}
        # of the sender's thread
        self.channel: Channel | None = None
        self.unfinished = False  # the close ran out of time: what waited then is not recorded
        self.closing = False
        self.stood = TraceStatus("degraded", "not opened yet")
        self._known_lost = 0
        self.lossy = False  # there are losses that are not accounted for

    def __repr__(self) -> str:
        return f"<ThreadTrace {self.tool} {self.session}>"

    # --- recording

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Record one event of `tracewriter.events`. Never raises, never waits, does no I/O.

        Anything else is recorded as a note. Deltas are not: a secret that is split over two would not be recognised.
        """
        try:
            weigh = self._weighed.get(type(event))
            if weigh is None:
                self._unusual(event, ts, run, op, parent)
                return
            try:
                size = weigh(event)
            except TypeError:
                size = TOO_LONG
            if not self._queue.put(self, event, size, ts or self._now(), run, op, parent):
                self.lose()
        except Exception:  # noqa: BLE001 - the seam: whatever a value does while it is looked at, the program goes on
            self.lose()

    def note(
        self,
        name: str,
        value: object = None,
        *,
        metadata: Mapping[str, object] | None = None,
        ts: datetime | None = None,
        run: str = "",
        op: str = "",
        parent: str = "",
    ) -> None:
        """Record an event of the program's own: any name, which gets the tool's prefix, and any Python value.

        Never raises, never waits, does no I/O. The value is encoded at once: change it afterwards as you like. In capture mode
        metadata only `metadata` is recorded, nothing when it is not given.
        """
        try:
            kept = value if self.capture != "metadata" else metadata
            event = event_of(self.tool, name, {} if kept is None else kept)
            if not self._queue.put(self, event, len(event.data), ts or self._now(), run, op, parent):
                self.lose()
        except Exception:  # noqa: BLE001 - the seam, as above
            self.lose()

    def _unusual(self, event: Event, ts: datetime | None, run: str, op: str, parent: str) -> None:
        kind = type(event)
        if kind in DELTAS:
            return
        if kind in RECORDERS or kind not in NAMES:
            self.note(NAMES.get(kind, "value.observed"), event, ts=ts, run=run, op=op, parent=parent)
            return
        left = metadata_of(event)
        if left is not None and not self._queue.put(self, left, weight(left), ts or self._now(), run, op, parent):
            self.lose()

    # --- how things stand

    def status(self) -> TraceStatus:
        """How things stand, as the sender's thread says within a quarter of a second, else as it was known last."""
        return self._sender.status(self).wait(_STATUS_S) or self.last_standing("")

    def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Wait until all that was recorded so far is on disk, at most so long; then say how things stand."""
        return self._sender.flush(self, timeout_s).wait(timeout_s + _GRACE_S) or self.last_standing("")

    async def aflush(self, timeout_s: float = 2.0) -> TraceStatus:
        """As `flush`, for event loops."""
        return await self._sender.flush(self, timeout_s).arrive(timeout_s + _GRACE_S) or self.last_standing("")

    def close(self, timeout_s: float | None = None) -> TraceStatus:
        """End the recording in order: its last record, everything acknowledged, the session's lock free. Once is enough.

        It takes 2 s at most, where no writer was ever there a quarter of a second; or `timeout_s`.
        """
        self.end_streams()
        wait_s = (CLOSE_S if timeout_s is None else timeout_s) + _GRACE_S
        return self._sender.close_session(self, timeout_s).wait(wait_s) or self.last_standing("")

    async def aclose(self, timeout_s: float | None = None) -> TraceStatus:
        """As `close`, for event loops."""
        self.end_streams()
        wait_s = (CLOSE_S if timeout_s is None else timeout_s) + _GRACE_S
        return await self._sender.close_session(self, timeout_s).arrive(wait_s) or self.last_standing("")

    def at_close(self, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` before the recording is closed. Gives what takes that back."""
        self._ends[end] = None
        return lambda: self._ends.pop(end, None)

    def __enter__(self) -> ThreadTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> ThreadTrace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- for the sender

    def end_streams(self) -> None:
        """The streams that are recorded into it end with it: each gets its end mark."""
        for end in list(self._ends):
            end()

    def lose(self) -> None:
        """An event came to nothing."""
        self._lost.add()
        self.lossy = True

    def new_losses(self) -> int:
        """Events that did not fit into the queue since the last look. Of the sender's thread only."""
        self.lossy = False
        lost = self._lost.value
        new, self._known_lost = lost - self._known_lost, lost
        return new

    def last_standing(self, over: str) -> TraceStatus:
        """What was known last, and what was recorded for nothing since. `over`: why nothing is recorded any more."""
        new = self._lost.value - self._known_lost
        stood = self.stood
        if over == "closed" and not new and (self.closing or stood.state == "off"):
            return stood
        emitted, dropped = stood.emitted + new, stood.dropped + new
        if over:
            return TraceStatus("off", over, emitted, stood.recorded, dropped)
        return TraceStatus("degraded", "the sender's thread does not answer", emitted, stood.recorded, dropped)
