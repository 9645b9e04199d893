"""One session on the producer's side, without I/O: numbering, batching, keeping what is not acknowledged (rules R13 to R19, R25).

`record` is the hot path: it numbers the event and puts it into the open batch, which is encoded in one call when it is cut
(`lines` says what may wait so long). Everything unusual (a resumed session that has no numbers yet, a full buffer, the
session's limit, a value that is not what it should be) leaves it by one test, so that it costs nothing when all is well.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from msgspec import Struct

from tracewriter.clock import Clock
from tracewriter.config import BATCH_BYTES, BATCH_EVENTS, HELD_EVENTS, KIB
from tracewriter.events import (
    NAMES,
    Event,
    ModelRequestFailed,
    RunExecuteFinished,
    SessionRecordFinished,
    TraceLimitObserved,
    Usage,
)
from tracewriter.lines import Entry, Line, careful_head, cut_data_of, data_of, encode_batch, name_of, size_of, zoned
from tracewriter.moving import KEY_BYTES, Data, Keys, keys_of
from tracewriter.outframes import OutFrame, Sent, bytes_of, drop_frame, only, payload_frames, payloads_of, without
from tracewriter.protocol import Kind
from tracewriter.sizing import MAY_WAIT, SHORT_LINE

SESSION_RESERVE: Final = 64 * KIB  # what a session may buffer although others have filled the process's buffer
# Recorded although the session's limit is reached: the ends, what failed, and the notice of the limit itself.
_ALWAYS: Final = frozenset({RunExecuteFinished, ModelRequestFailed, SessionRecordFinished, TraceLimitObserved})
_ALWAYS_NAMES: Final = tuple(b'"event":"%s"' % NAMES[cls].encode() for cls in _ALWAYS)
_LAST_OF_BATCH: Final = BATCH_EVENTS - 1
_NO_IDS: Final = ("", "", "")
_IDS_KEPT: Final = 64  # combinations of ids whose lines' heads are kept


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

    __slots__ = (
        "_all_heads",
        "_budget",
        "_clock",
        "_closing",
        "_counts",
        "_drop_first",
        "_drop_reason",
        "_fast",
        "_framed",
        "_head",
        "_heads",
        "_held",
        "_held_over",
        "_keys",
        "_lines",
        "_now",
        "_op",
        "_parent",
        "_run",
        "_sent",
        "_size",
        "_unnumbered",
        "acked",
        "cost_usd",
        "dropped",
        "dropped_by",
        "frames",
        "limited",
        "own_bytes",
        "session",
        "started_after",
        "stopped",
        "unanswered",
        "usage",
        "wake",
    )  # more than 30 attributes: without this each look-up would be a dict's

    def __init__(
        self,
        session: str,
        clock: Clock,
        budget: Budget,
        *,
        resumed: bool,
        keys: Keys | None = None,  # of this life; None: of this session only
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self.wake = wake  # called when there is something to send
        self._clock, self._budget = clock, budget
        self._keys = keys if keys is not None else keys_of(os.urandom(KEY_BYTES))
        self._sent = Sent()
        self._lines: list[Line] = []  # the open batch
        self._size = 0  # of it in bytes, about
        self._heads: dict[type, Entry] = {}  # of the kinds recorded under these ids
        self._head: Entry | None = None  # the one used last
        self._run, self._op, self._parent = _NO_IDS
        self._all_heads = {_NO_IDS: self._heads}  # of the ids used last: calls of several tools alternate
        self._framed = 0  # the last seq before the open batch
        self.frames: deque[OutFrame] = deque()
        self.own_bytes = 0
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
        self._counts: Counter[str] = Counter()
        self.usage: Usage | None = None
        self.cost_usd: float | None = 0.0

    def __repr__(self) -> str:
        return f"<Outbox {self.session} last {self.last} acked {self.acked} {len(self.frames)} frames>"

    @property
    def last(self) -> int:
        """The last seq given out."""
        return self._framed + len(self._lines)

    @property
    def emitted(self) -> int:
        """Events of this life, recorded or not."""
        held = (len(self._held) + self._held_over) if self._held is not None else 0
        return self.last - self.started_after + held + self._unnumbered

    @property
    def queued_bytes(self) -> int:
        """Bytes that are not acknowledged; of what is not encoded yet, about."""
        return self.own_bytes + self._size

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
    def batch_open(self) -> bool:
        """Something is numbered that is in no frame yet."""
        return bool(self._lines)

    @property
    def idle(self) -> bool:
        """Nothing waits for the writer: all that was numbered is acknowledged."""
        return not self.frames and not self._lines and not self._drop_first and not self._held

    # --- recording

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Number and keep one event. Never waits, never does I/O, never raises."""
        try:
            if run != self._run or op != self._op or parent != self._parent:
                self._other_ids(run, op, parent)
            entry = self._head
            if entry is None or entry.kind is not type(event):
                entry = self._entry(type(event))
            if ts is None:
                now = self._now  # called as `self._now()` it would be looked for as a method first
                ts = now()
            elif ts.tzinfo is not UTC:
                self._slow(event, ts, run, op, parent)
                return
            length_of = entry.length_of
            size = length_of(event) + entry.rest
            if (size > SHORT_LINE and (size > MAY_WAIT or entry.is_long(event))) or self._budget.full:
                self._slow(event, ts, run, op, parent)
                return
            lines = self._lines
            count = len(lines)
            # this numbers it, in one step that nothing can interrupt: there is no other account
            lines.append(Line(self._framed + count + 1, ts, entry.head, event))
        except Exception:  # noqa: BLE001 - the seam: whatever a value does while it is looked at, the run it belongs to goes on
            self._slow(event, ts, run, op, parent)
            return
        entry.count += 1
        self._size = size = self._size + size
        if size >= BATCH_BYTES or not count or count == _LAST_OF_BATCH:
            self._turn()

    def _other_ids(self, run: str, op: str, parent: str) -> None:
        if not type(run) is type(op) is type(parent) is str:
            raise TypeError("an id that is no text")
        if len(self._all_heads) >= _IDS_KEPT:
            self._forget_heads()
        self._head = None
        self._heads = self._all_heads.setdefault((run, op, parent), {})
        self._run, self._op, self._parent = run, op, parent

    def _forget_heads(self) -> None:
        self._count_kinds()
        self._heads, self._head = {}, None
        self._all_heads = {(self._run, self._op, self._parent): self._heads}

    def _go(self, *, fast: bool) -> None:
        """Whether the fast path is open: without it no event fits what its kind's entry says of it."""
        self._fast = fast
        self._forget_heads()

    def _entry(self, kind: type) -> Entry:
        entry = self._heads.get(kind)
        if entry is None:
            entry = Entry(kind, self.session, self._run, self._op, self._parent, fast=self._fast)
            if kind in NAMES:  # there is no end of foreign ones
                self._heads[kind] = entry
        self._head = entry
        return entry

    def _turn(self) -> None:
        """The open batch has its first line, or is as large as it may get."""
        if len(self._lines) == 1:
            self.wake()
        if len(self._lines) >= BATCH_EVENTS or self._size >= BATCH_BYTES:
            self.cut()

    def _slow(self, event: Event, ts: datetime | None, run: str, op: str, parent: str) -> None:
        """What the fast path does not take. The second and last seam: a bug in here costs a record, never the run."""
        try:
            if type(event) is RunExecuteFinished:
                self._tally(event)
            self._record_slowly(event, ts if ts is not None else self._now(), run, op, parent)
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
        for entry in chain.from_iterable(heads.values() for heads in self._all_heads.values()):
            if entry.count:
                self._counts[entry.name] += entry.count
                entry.count = 0

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
            head, ts = careful_head(self.session, event, (run, op, parent)), zoned(ts)
            data, frames = self._prepared(event)
            if not self._has_room(bytes_of(frames)):
                self._drop("buffer_full")
                if not self._budget.full:
                    self._close_drop()  # the next may fit, and nothing else would say that there is room
                return
            self._close_drop()
            if frames:
                self.cut()  # they stand before the frame that begins with this record
                self._put(*frames)
            line = Line(self.last + 1, ts, head, data.line)
            self._lines.append(line)
            self._sent.name(data.bodies, self._clock.monotonic())
            self._counts[name_of(event)] += 1
            self._size += size_of(line)
            self._turn()
            if self.limited:
                self.cut()

    def _prepared(self, event: Event) -> tuple[Data, list[OutFrame]]:
        """The data of the next record, and the frames of the bodies that have to be sent before it."""
        if self.limited:
            return cut_data_of(event), []
        data = data_of(event, self._keys)
        if not data.bodies:
            return data, []
        unsent = self._sent.unsent(data.bodies, self.frames, self._clock.monotonic())
        frames = [frame for body in unsent for frame in payload_frames(self.last + 1, body)]
        if type(event) in _ALWAYS and not self._has_room(bytes_of(frames)):
            return cut_data_of(event), []
        return data, frames

    def _has_room(self, size: int) -> bool:
        """For bodies of so many bytes."""
        if self._budget.full and size:
            return self.own_bytes + size <= SESSION_RESERVE
        return self._budget.bytes + size <= self._budget.limit or not size

    def _hold(self, held: Held) -> None:
        if self._held is not None and len(self._held) < HELD_EVENTS and not self._held_over:
            self._held.append(held)
        else:
            self._held_over += 1

    # --- what is not recorded

    def lose(self, count: int) -> None:
        """Count events that did not get so far: the queue before this was full."""
        if self.stopped:
            self._unnumbered += count
            self._count(self._stop_code(), count)
        elif self._held is not None:
            self._held_over += count
        else:
            self._drop("queue_full", count)
            self._close_drop()

    def _drop(self, reason: str, count: int = 1) -> None:
        """Count events that are not recorded; they have numbers, which the open drop range covers."""
        if not self._drop_first:
            self.cut()
            self._drop_first, self._drop_reason = self.last + 1, reason
        self._framed += count
        self._count(reason, count)

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
        return drop_frame(self.session, first, last, reason, self._clock.now())

    def _put(self, *frames: OutFrame) -> None:
        self.frames += frames
        self._grow(bytes_of(frames))
        self.wake()

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
        lines = self._lines
        if lines:
            self._lines, self._size = [], 0
            for count, body in encode_batch(lines):
                self.frames.append(OutFrame(Kind.EVENTS, self._framed + 1, count, body))
                self._framed += count
                self._grow(len(body))
            if self._budget.bytes >= self._budget.limit:
                self._budget.full = True

    def numbered(self, next_seq: int) -> bool:
        """OPENED: the writer goes on at `next_seq`. False when this life's numbers contradict it (a conflict)."""
        if self._held is not None:
            held, over = self._held, self._held_over
            self._held, self._held_over = None, 0
            self._go(fast=True)
            self._framed = self.acked = self.started_after = next_seq - 1
            for item in held:
                self.record(item.event, ts=item.ts, run=item.run, op=item.op, parent=item.parent)
            if over:
                self._drop("buffer_full", over)
            self._close_drop()  # the next record has a number of its own
            return True
        if next_seq > self.last + 1:
            return False
        self.acknowledge(next_seq - 1)
        # Whether the session's directory is still the same cannot be seen from the number: what was acknowledged counts in it.
        self._sent.forget_all_but(self.frames)
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
        self._replace(without(self.frames, first, last, self._drop_frame(first, last, code)), code)

    def _reach_limit(self, first: int) -> None:
        """The session is as large as it may get: what waits becomes drop records, but for ends and failures. When not even a
        drop record fits, nothing more is recorded: sent again for ever, it would be refused for ever."""
        if self.frames and self.frames[0].kind is Kind.DROP:
            self.stop("limit: the session's recording is as large as it may get")
            return
        again, self.limited = self.limited, True
        self._go(fast=False)
        self.cut()
        out = only(
            self.frames,
            first,
            lambda line: not again and any(name in line[:200] for name in _ALWAYS_NAMES),
            lambda start, end: self._drop_frame(start, end, "limit"),
        )
        self._replace(out, "limit")
        if not again and not self._closing:  # after a session's last record comes no other
            self.record(TraceLimitObserved("session_bytes", bytes_of(out)))

    def _replace(self, frames: list[OutFrame], code: str) -> None:
        """Other frames instead of those that wait; what drop records stand for in addition is counted."""
        now, before = (sum(f.count for f in each if f.kind is Kind.DROP) for each in (frames, self.frames))
        self._count(code, max(0, now - before))
        self._grow(bytes_of(frames) - bytes_of(self.frames))
        self._sent.forget(payloads_of(self.frames) - payloads_of(frames))
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
        self.stopped, self._held, self._held_over = reason, None, 0
        self._go(fast=False)
        counted = sum(frame.count for frame in self.frames if frame.kind is Kind.DROP)
        counted += self.last - self._drop_first + 1 if self._drop_first else 0
        waiting = self.last - self.acked - counted
        # let go of with something unanswered: what the writer still makes of it is not known here
        self.unanswered = waiting if reason == "closed" else 0
        self._count(self._stop_code(), held + waiting - self.unanswered)
        self._unnumbered += held
        self._grow(-self.own_bytes)
        self.frames.clear()
        self._framed, self._drop_first = self.last, 0
        self._lines, self._size = [], 0
