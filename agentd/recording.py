"""What of a session is recorded, and into which recording: the capture mode at work.

The mode is a property of the recording: its first record names it. Another mode is another recording, in the same directory:
the old one is closed in order, and nothing that happens meanwhile is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from agentd.capture import metadata_of
from agentd.deltas import CutJudge, Streams
from tracewriter.events import Event, ModelStreamDelta, PolicyPresetObserved, ToolOutputDelta
from tracewriter.sender import Trace, TraceStatus


class HeldTrace:
    """Keeps records while a session's recording is changed for another, and gives them to that one."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._held: list[tuple[Event, datetime | None, str, str, str]] = []

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Keep it. The change takes two seconds at most: what is held is bounded by that."""
        self._held.append((event, ts, run, op, parent))

    async def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing is on disk yet."""
        return self.status()

    async def close(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing to close."""
        return self.status()

    def status(self) -> TraceStatus:
        """Between two recordings."""
        return TraceStatus("degraded", "the recording is being reopened", len(self._held))

    def replay(self, trace: Trace) -> None:
        """Hand over."""
        for event, ts, run, op, parent in self._held:
            trace.record(event, ts=ts, run=run, op=op, parent=parent)


class Captured(Struct, frozen=True):
    """How a session is recorded: the mode, and the exact values that must reach no disk."""

    mode: str
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Captured({self.mode!r}, secrets={len(self.secrets)})"


class Recording:
    """A session's recording, changed for another when its mode changes or a new key must be known first."""

    def __init__(self, trace: Trace, captured: Captured) -> None:
        self.trace = trace
        self._captured = captured
        self._streams: Streams | None = None
        self._tools: frozenset[str] = (
            frozenset()
        )  # those of the run in progress: no other name is the model's to record
        self._closed = False

    def __repr__(self) -> str:
        return f"<Recording {self._captured!r} {self._streams!r}>"

    @property
    def mode(self) -> str:
        """metadata, content, stream or off."""
        return self._captured.mode

    def record(self, event: Event, *, ts: datetime, run: str = "", op: str = "", parent: str = "") -> None:
        """Record an event as far as the mode goes. Without effect once closed."""
        if self._closed:
            return
        if self._streams is not None:
            self._streams.before(event, self.trace.record, ts=ts, run=run, op=op)
        if isinstance(event, PolicyPresetObserved):
            self._tools = frozenset(event.tools)
        captured = metadata_of(event, self._tools) if self.mode == "metadata" else event
        if captured is not None:
            self.trace.record(captured, ts=ts, run=run, op=op, parent=parent)

    def delta(
        self, delta: ModelStreamDelta | ToolOutputDelta, *, ts: datetime, run: str, op: str, parent: str = ""
    ) -> None:
        """A piece of a stream came; recorded in mode `stream` only, and then not before it is safe to."""
        if self.mode != "stream" or self._closed:
            return
        if self._streams is None:
            self._streams = Streams(CutJudge(self._captured.secrets))
        self._streams.feed(delta, self.trace.record, ts=ts, run=run, op=op, parent=parent)

    async def change(self, captured: Captured, open_trace: Callable[[], Trace], now: datetime) -> None:
        """Close the recording and go on in a new one; what happens meanwhile is in the new one."""
        self._finish_streams(now)
        old, held = self.trace, HeldTrace(self.trace.session)
        self.trace, self._captured = held, captured
        await old.close()
        self.trace = open_trace()
        held.replay(self.trace)

    async def aclose(self, now: datetime) -> None:
        """End it in order."""
        self._finish_streams(now)
        self._closed = True
        await self.trace.close()

    def _finish_streams(self, now: datetime) -> None:
        if self._streams is not None:
            self._streams.end(self.trace.record, now)
            self._streams = None
