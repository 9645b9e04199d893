"""One session on the producer's side, without I/O: numbering, batching, keeping what is not acknowledged (rules R13 to R19, R25).

`record` is the hot path: one encode into the open batch. Everything unusual (a resumed session that has no numbers yet, a
full buffer, the session's limit, a value that cannot be encoded) leaves it by one flag test, so that it costs nothing when
all is well.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tracewriter import jsonl
from tracewriter.clock import Clock
from tracewriter.config import BATCH_BYTES, BATCH_EVENTS, HELD_EVENTS, KIB, MAX_BODY, MAX_LINE
from tracewriter.events import (
    KINDS,
    NAMES,
    Event,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelRequestStarted,
    Record,
    RunExecuteFinished,
    SessionRecordFinished,
    ToolCallStarted,
    TraceDropObserved,
    TraceLimitObserved,
    Usage,
)
from tracewriter.protocol import Kind
from tracewriter.sizing import sizer

SESSION_RESERVE: Final = 64 * KIB  # what a session may buffer although others have filled the process's buffer
_encode_into: Final = msgspec.json.Encoder().encode_into
# Recorded although the session's limit is reached: the ends, what failed, and the notice of the limit itself.
_ALWAYS: Final = frozenset({RunExecuteFinished, ModelRequestFailed, SessionRecordFinished, TraceLimitObserved})
_ALWAYS_NAMES: Final = tuple(b'"event":"%s"' % NAMES[cls].encode() for cls in _ALWAYS)
_DROP_NAME: Final = NAMES[TraceDropObserved]
_ID_CHARS: Final = 64  # of run, op and parent: ids have 16 or 32
_FOREIGN: Final = "foreign.value.observed"  # what is no event of ours


class _Line(Struct, frozen=True, gc=False):
    """A record as it is encoded: positional, since keywords cost a third of the call."""

    seq: int
    ts: datetime
    event: str
    session: str
    run: str | UnsetType
    op: str | UnsetType
    parent: str | UnsetType
    data: Event


# Kinds with JSON bodies, which a caller may hand over in several lines; the others' encoding has none.
_WITH_JSON: Final = frozenset({ToolCallStarted, ModelRequestStarted, ModelRequestFinished})
_RECORDED: Final = {
    cls: (name, sizer(cls), cls in _WITH_JSON)
    for name, cls in KINDS.items()
    if cls not in (RunExecuteFinished, TraceDropObserved)
}


class OutFrame:
    """A frame that is kept byte for byte until it is acknowledged."""

    __slots__ = ("body", "count", "first", "kind")

    def __init__(self, kind: Kind, first: int, count: int, body: bytes | bytearray) -> None:
        self.kind, self.first, self.count, self.body = kind, first, count, body

    @property
    def end(self) -> int:
        """The last seq it stands for."""
        return self.first + self.count - 1

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.first}..{self.end} {len(self.body)} bytes>"


class Held(Struct, frozen=True):
    """An event that waits for its number."""

    event: Event
    ts: datetime
    run: str
    op: str
    parent: str


class Budget:
    """The process's buffer: bytes kept over all sessions, and whether it is full (until it has drained to 3/4)."""

    __slots__ = ("bytes", "full", "limit", "resume")

    def __init__(self, limit: int, resume: int) -> None:
        self.bytes, self.full, self.limit, self.resume = 0, False, limit, resume


class Outbox:
    """The numbered records of one session that the writer has not acknowledged yet."""

    def __init__(
        self, session: str, clock: Clock, budget: Budget, *, resumed: bool, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.session = session
        self._wake = wake
        self._clock, self._budget = clock, budget
        self._batch = bytearray()
        self._batch_count = 0
        self.frames: deque[OutFrame] = deque()
        self.own_bytes = 0
        self.last = 0  # the last seq given out
        self.acked = 0
        self.started_after = 0  # the last seq of earlier lives
        self.dropped = 0  # seqs that drop records stand for, and events that never got a seq
        self.dropped_by: Counter[str] = Counter()  # the same by reason
        self._drop_first = 0  # the open drop range, 0: none
        self._drop_reason = ""
        self._held: list[Held] | None = [] if resumed else None
        self._held_over = 0
        self.limited = False
        self.unanswered = 0  # numbered and handed over, but never answered before the session was let go of
        self.stopped = ""  # why nothing is recorded any more
        self._closing = False
        self._fast = not resumed
        self._now = clock.now
        self._unnumbered = 0  # events that never got a seq: the recording was stopped, or failed inside
        self._kinds: list[str] = []
        self._counts: Counter[str] = Counter()
        self.usage: Usage | None = None
        self.cost_usd: float | None = 0.0

    def __repr__(self) -> str:
        return f"<Outbox {self.session} last {self.last} acked {self.acked} {len(self.frames)} frames>"

    @property
    def emitted(self) -> int:
        """Events of this life, recorded or not."""
        held = (len(self._held) + self._held_over) if self._held is not None else 0
        return self.last - self.started_after + held + self._unnumbered

    @property
    def queued_bytes(self) -> int:
        """Bytes that are encoded and not acknowledged."""
        return self.own_bytes + len(self._batch)

    @property
    def waiting(self) -> int:
        """Events that may still be recorded: neither acknowledged nor dropped."""
        drops = sum(frame.count for frame in self.frames if frame.kind is Kind.DROP)
        drops += self.last - self._drop_first + 1 if self._drop_first else 0
        return max(0, self.emitted - (self.acked - self.started_after) - drops - self._unnumbered)

    @property
    def has_numbers(self) -> bool:
        """Its records have seqs; a resumed session's have none before the writer has said where to go on."""
        return self._held is None and not self.stopped

    @property
    def idle(self) -> bool:
        """Nothing waits for the writer: all that was numbered is acknowledged."""
        return not self.frames and not self._batch_count and not self._drop_first and not self._held

    # --- recording

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Number and keep one event. Never waits, never does I/O, never raises."""
        batch = self._batch
        mark = len(batch)
        try:
            name, size_of, with_json = _RECORDED[type(event)]
            odd = ts is not None and ts.tzinfo is None  # a time without a zone is no time for anybody else
            if odd or not self._fast or self._budget.full or size_of(event) > MAX_LINE:
                self._slow(event, ts, run, op, parent)
                return
            seq = self.last + 1
            _encode_into(
                _Line(seq, ts or self._now(), name, self.session, run or UNSET, op or UNSET, parent or UNSET, event),
                batch,
                -1,
            )
        except Exception:  # noqa: BLE001 - the seam: whatever a value does while it is encoded, the run it belongs to goes on
            del batch[mark:]
            self._slow(event, ts, run, op, parent)
            return
        # one bad body would cost its whole frame: the writer refuses it, or the reader finds damage
        broken = with_json and (batch.find(b"\n", mark) >= 0 or not jsonl.is_json(bytes(batch[mark:])))
        batch += b"\n"
        size = len(batch)
        if broken or size - mark > MAX_LINE:
            del batch[mark:]
            self._slow(event, ts, run, op, parent)
            return
        self.last = seq
        self._kinds.append(name)
        count = self._batch_count = self._batch_count + 1
        if count == 1:
            self._wake()
        if count >= BATCH_EVENTS or size >= BATCH_BYTES:
            self.cut()

    def _slow(self, event: Event, ts: datetime | None, run: str, op: str, parent: str) -> None:
        """What the fast path does not take. The second and last seam: a bug in here costs a record, never the run."""
        try:
            if isinstance(event, RunExecuteFinished):
                self._tally(event)
            at = ts or self._now()
            self._record_slowly(event, at if at.tzinfo is not None else at.astimezone(UTC), run, op, parent)
        except Exception:  # noqa: BLE001 - see above
            self._unnumbered += 1
            self._count("internal", 1)

    def _tally(self, event: RunExecuteFinished) -> None:
        if event.usage is not None:
            self.usage = event.usage if self.usage is None else self.usage + event.usage
        self.cost_usd = None if self.cost_usd is None or event.cost_usd is None else self.cost_usd + event.cost_usd

    def counts(self) -> dict[str, int]:
        """How many events of each kind were recorded, by name."""
        self._count_kinds()
        return dict(self._counts)

    def _count_kinds(self) -> None:
        self._counts.update(self._kinds)
        self._kinds.clear()

    def _record_slowly(self, event: Event, ts: datetime, run: str, op: str, parent: str) -> None:
        if self.stopped:
            self._unnumbered += 1
            self._count(self._stop_code(), 1)
        elif self._held is not None:
            self._hold(Held(event, ts, run, op, parent))
        elif self._budget.full and self.own_bytes >= SESSION_RESERVE and type(event) is not SessionRecordFinished:
            self._drop("buffer_full")
        elif self.limited and type(event) not in _ALWAYS:
            self._drop("limit")
        else:
            self._close_drop()
            self._kinds.append(_name(event))
            self._append(self._safe_line(self.last + 1, event, ts, run, op, parent))
            if self.limited:
                self.cut()

    def _hold(self, held: Held) -> None:
        if self._held is not None and len(self._held) < HELD_EVENTS and not self._held_over:
            self._held.append(held)
        else:
            self._held_over += 1

    def _append(self, line: bytes) -> None:
        self._batch += line
        self.last += 1
        self._batch_count += 1
        if self._batch_count == 1:
            self._wake()
        if self._batch_count >= BATCH_EVENTS or len(self._batch) >= BATCH_BYTES:
            self.cut()

    def _safe_line(self, seq: int, event: Event, ts: datetime, run: str, op: str, parent: str) -> bytes:
        """The record as one line whatever its data is: repaired and cut where it must be."""
        repairs = jsonl.Repairs()
        head = {
            "seq": seq,
            "ts": ts,
            "event": _name(event),
            "session": self.session,
        }
        ids = {"run": run, "op": op, "parent": parent}
        head |= {
            name: jsonl.cut_text(jsonl.safe_str(value, repairs), _ID_CHARS) for name, value in ids.items() if value
        }
        data = Raw(jsonl.encode_safely(_cut_body(event), MAX_LINE - 2 * KIB))
        return jsonl.encoder.encode(head | {"data": data}) + b"\n"

    # --- what is not recorded

    def _drop(self, reason: str) -> None:
        """Count one event that is not recorded; it has a number, which the open drop range covers."""
        if not self._drop_first:
            self.cut()
            self._drop_first, self._drop_reason = self.last + 1, reason
        self.last += 1
        self._count(reason, 1)

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.dropped += count
            self.dropped_by[reason] += count

    def _stop_code(self) -> str:
        """`taken: another process …` is counted as taken."""
        return self.stopped.partition(":")[0]

    def _close_drop(self) -> None:
        if self._drop_first:
            first, self._drop_first = self._drop_first, 0
            self._put(self._drop_frame(first, self.last, self._drop_reason))

    def _drop_frame(self, first: int, last: int, reason: str) -> OutFrame:
        count = last - first + 1
        line = jsonl.encoder.encode(
            Record(
                seq=first,
                ts=self._clock.now(),
                event=_DROP_NAME,
                session=self.session,
                data=TraceDropObserved(first, last, count, reason),
            )
        )
        return OutFrame(Kind.DROP, first, count, line + b"\n")

    def _put(self, frame: OutFrame) -> None:
        self.frames.append(frame)
        self._grow(len(frame.body))
        self._wake()

    def _grow(self, size: int) -> None:
        self.own_bytes += size
        self._budget.bytes += size

    def room(self) -> None:
        """The process's buffer has room again: put the drop record for what did not fit."""
        if self._drop_reason == "buffer_full":
            self._close_drop()

    # --- what the writer says

    def cut(self) -> None:
        """Close the open batch: it becomes a frame."""
        if self._batch_count:
            self._count_kinds()
            first = self.last - self._batch_count + 1
            self.frames.append(OutFrame(Kind.EVENTS, first, self._batch_count, self._batch))
            self._grow(len(self._batch))
            self._batch, self._batch_count = bytearray(), 0
            if self._budget.bytes >= self._budget.limit:
                self._budget.full = True

    def numbered(self, next_seq: int) -> bool:
        """OPENED: the writer goes on at `next_seq`. False when this life's numbers contradict it (a conflict)."""
        if self._held is not None:
            held, over = self._held, self._held_over
            self._held, self._held_over, self._fast = None, 0, True
            self.last = self.acked = self.started_after = next_seq - 1
            for item in held:
                self.record(item.event, ts=item.ts, run=item.run, op=item.op, parent=item.parent)
            for _ in range(over):
                self._drop("buffer_full")
            self._close_drop()  # the next record has a number of its own
            return True
        if next_seq > self.last + 1:
            return False
        self.acknowledge(next_seq - 1)
        return True

    def acknowledge(self, seq: int) -> int:
        """All up to `seq` is on disk. Gives how many frames are done; one that is done in part is kept whole."""
        done = 0
        while self.frames and self.frames[0].end <= seq:
            self._grow(-len(self.frames.popleft().body))
            done += 1
        self.acked = max(self.acked, min(seq, self.last))
        return done

    def refuse(self, first: int, count: int, code: str) -> None:
        """The writer will never take [first, first + count): a drop record stands for them, the rest goes on."""
        if code == "limit":
            self._reach_limit(first)
            return
        self.cut()
        last = first + count - 1
        out: list[OutFrame] = []
        put = False
        for frame in self.frames:
            if frame.end < first or frame.first > last:
                if frame.first > last and not put:
                    out.append(self._drop_frame(first, last, code))
                    put = True
                out.append(frame)
                continue
            if not put:
                out.append(self._drop_frame(first, last, code))
                put = True
            if frame.kind is Kind.EVENTS and frame.end > last:
                rest = b"".join(line for seq, line in _lines(frame) if seq > last)
                out.append(OutFrame(Kind.EVENTS, last + 1, frame.end - last, rest))
        self._replace(out if put else [*out, self._drop_frame(first, last, code)], code)

    def _reach_limit(self, first: int) -> None:
        """The session is as large as it may get: what waits becomes drop records, but for ends and failures. When not even a
        drop record fits, nothing more is recorded: sent again for ever, it would be refused for ever."""
        if self.frames and self.frames[0].kind is Kind.DROP:
            self.stop("limit: the session's recording is as large as it may get")
            return
        again, self.limited, self._fast = self.limited, True, False
        self.cut()
        out: list[OutFrame] = []
        start = first
        end = first - 1
        for frame in self.frames:
            end = max(end, frame.end)
            if frame.end < first or frame.kind is Kind.DROP or again:
                continue
            for seq, line in _lines(frame):
                if seq >= first and any(name in line[:200] for name in _ALWAYS_NAMES):
                    if seq > start:
                        out.append(self._drop_frame(start, seq - 1, "limit"))
                    out.append(OutFrame(Kind.EVENTS, seq, 1, line))
                    start = seq + 1
        if end >= start:
            out.append(self._drop_frame(start, end, "limit"))
        self._replace(out, "limit")
        if not again and not self._closing:  # after a session's last record comes no other
            size = sum(len(frame.body) for frame in out)
            self.record(TraceLimitObserved("session_bytes", size))

    def _replace(self, frames: list[OutFrame], code: str) -> None:
        """Other frames instead of those that wait; what drop records stand for in addition is counted."""
        now, before = (sum(f.count for f in each if f.kind is Kind.DROP) for each in (frames, self.frames))
        self._count(code, max(0, now - before))
        self._grow(sum(len(f.body) for f in frames) - sum(len(f.body) for f in self.frames))
        self.frames = deque(frames)

    def prepare_close(self) -> None:
        """Everything that is known becomes frames: the open batch and the open drop range."""
        self._closing = True
        self._close_drop()
        self.cut()

    def stop(self, reason: str) -> None:
        """Record nothing more of this session; what waits is counted as not recorded. The first reason stays."""
        if self.stopped:
            return
        held = (len(self._held) + self._held_over) if self._held is not None else 0
        self.stopped, self._fast, self._held, self._held_over = reason, False, None, 0
        counted = sum(frame.count for frame in self.frames if frame.kind is Kind.DROP)
        counted += self.last - self._drop_first + 1 if self._drop_first else 0
        waiting = self.last - self.acked - counted
        # let go of with something unanswered: what the writer still makes of it is not known here
        self.unanswered = waiting if reason == "closed" else 0
        self._count(self._stop_code(), held + waiting - self.unanswered)
        self._unnumbered += held
        self._grow(-self.own_bytes)
        self.frames.clear()
        self._batch, self._batch_count, self._drop_first = bytearray(), 0, 0


def _lines(frame: OutFrame) -> Iterator[tuple[int, bytes]]:
    """(seq, line with LF) of an EVENTS frame."""
    for number, line in enumerate(bytes(frame.body).split(b"\n")[:-1]):
        yield frame.first + number, line + b"\n"


def _name(event: object) -> str:
    """Drop records stand for numbers and are made here only: a caller's would be no record, or hide others."""
    return _FOREIGN if isinstance(event, TraceDropObserved) else NAMES.get(type(event), _FOREIGN)


def _cut_body(event: object) -> object:
    """Cut strings beyond MAX_BODY before anything is made of them: encoding 64 MiB to keep 256 KiB would hold up the run."""
    if not isinstance(event, Struct):
        return event
    fields: dict[str, object] = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value is UNSET:
            continue
        if isinstance(value, str) and len(value) > MAX_BODY:
            value = jsonl.cut_text(value, MAX_BODY)
        elif isinstance(value, Raw) and len(bytes(value)) > MAX_BODY:
            value = f"[{len(bytes(value))} bytes of JSON, left out]"
        fields[name] = value
    return fields
