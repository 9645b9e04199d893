"""One session on the writer's side: which frames are taken, what is written, and what the producer is told (rules R4 to R16).

`take` classifies a frame by its numbers alone; `write` joins all that one receive brought, redacts it, appends it with one
write(2) and answers with what is whole on disk. Nothing here waits, and a failing disk is a state with a time to try again,
never an exception. A body too long for a record comes before it (`take_payload`) and keeps that place: what came earlier is
written first, then the body is stored, and only then what follows.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from tracewriter import jsonl
from tracewriter.clock import Clock
from tracewriter.config import MAX_LINE, MAX_SEQ, Limits
from tracewriter.errors import ProtocolError, SessionUnavailable, errno_name
from tracewriter.journal import Journal
from tracewriter.jsonl import Repairs
from tracewriter.manifest import Manifest
from tracewriter.payload_parts import BUSY_MS, Memory, Part, Parts, Whole, parse_part, redacted_whole
from tracewriter.protocol import Frame, Kind, Nack, SessionStatus, encode
from tracewriter.redact import CannotRedact, Redactor
from tracewriter.scan import parse_record
from tracewriter.segment import count_lines

OpenJournal = Callable[[int], Journal]  # given the last seq known to be recorded


class _Taken(Struct, frozen=True, gc=False):
    """A frame, or what is left of one, that goes into the next write."""

    kind: Kind
    first: int
    count: int  # seqs
    lines: int
    body: bytes | memoryview

    @property
    def end(self) -> int:
        return self.first + self.count - 1


class _Shown(Struct, frozen=True):
    data: tuple[str]


_BUSY: Final = "busy"
_LF: Final = 0x0A
_NO_DIRECTORY: Final = (errno.ENOENT, errno.ESTALE)


class Recording:
    """A session being recorded for one channel of one connection.

    It has less than 30 attributes: of objects with more, CPython 3.11 looks each one up in a dict of its own, and taking a frame
    takes a quarter longer.
    """

    def __init__(
        self,
        *,
        channel: int,
        journal: Journal,
        reopen: OpenJournal,
        redactor: Redactor,
        limits: Limits,
        clock: Clock,
        memory: Memory | None = None,
        limited: bool = False,
        let_go: Callable[[Journal], None] = Journal.close,
    ) -> None:
        self.channel = channel
        self.key = journal.key
        self.journal: Journal | None = journal
        self._reopen, self._let_go = reopen, let_go
        self._redactor, self._limits, self._clock = redactor, limits, clock
        self.next = journal.last + 1  # the first seq not on disk
        self._taken: list[_Taken] = []
        self._taken_next = self.next
        self._taken_bytes = 0
        self._parts = Parts(memory or Memory(limits.payload_memory, limits.half_frame_timeout_s))
        self._gap_told = False
        self._ack_due = False
        self._nacks: list[bytes] = []
        self._busy = False
        self._limited = limited  # its producer has been told, on this connection or an earlier one
        self.refused: SessionUnavailable | None = None  # for good: it could not be opened again
        self._retry_at = 0.0
        self._backoff_s = limits.retry_first_s
        self.reason = ""  # the errno name that holds this session up
        self.started_at: datetime | None = None
        self.active_at = clock.monotonic()
        self._sized = journal.size_bytes
        self._segments = journal.segments
        self._note = ""
        self._workspace: str | None = None  # as it may be shown
        self.dirty = False  # written since the last seal

    def __repr__(self) -> str:
        return f"<Recording {self.key.session} next {self.next} {self.state}>"

    @property
    def state(self) -> str:
        """ok, degraded (see reason) or limited."""
        return "degraded" if self.reason else "limited" if self._limited else "ok"

    def status(self) -> SessionStatus:
        """For STATUS."""
        if self.journal is not None:
            self._sized, self._segments = self.journal.size_bytes, self.journal.segments
            self._note = self.journal.note
        return SessionStatus(
            session=self.key.session,
            recorded=self.next - 1,
            bytes=self._sized,
            segments=self._segments,
            state=self.state,
            reason=self.reason or ("limit" if self._limited else self._note),
        )

    def manifest(self, journal: Journal, *, closed: bool) -> Manifest:
        """The session's manifest as of now. A path may hold a secret too: it passes the same funnel as any record."""
        if self._workspace is None:
            self._workspace = self._redacted(self.key.workspace)
        return journal.manifest(self._workspace, self.started_at, self._clock.now(), closed=closed)

    def _redacted(self, text: str) -> str:
        try:
            line = self._redactor.redact(
                b'{"seq":1,"data":%s}\n' % msgspec.json.encode([jsonl.safe_str(text, Repairs())])
            )
            return msgspec.json.decode(line, type=_Shown).data[0]
        except (CannotRedact, msgspec.DecodeError):
            return ""

    # --- what comes in

    def take(self, frame: Frame) -> None:
        """Take an EVENTS or DROP frame, or remember why not. Raises ProtocolError for numbers that cannot be."""
        first, end = frame.first, frame.first + frame.count - 1
        if not 1 <= first <= end < 2 * MAX_SEQ:
            raise ProtocolError("a frame whose sequence numbers cannot be")
        if self.refused is not None:
            return
        if self.reason and self._clock.monotonic() < self._retry_at:
            self._busy = True
            return
        if first > self._taken_next or (first == self._parts.waits_at and frame.kind is Kind.EVENTS):
            if not self._gap_told:
                self._gap_told = True
                self._nacks.append(self._nack("gap", 0, 0))
            return
        self._gap_told = False
        if end < self._taken_next:
            self._ack_due = True
            return
        if frame.kind is Kind.DROP:
            self._take_drop(frame, end)
        else:
            self._take_events(frame, end)

    def _take_drop(self, frame: Frame, end: int) -> None:
        if frame.first < self._taken_next:
            self._refuse("straddle", end)
            return
        body = bytes(frame.body)
        parsed = parse_record(body[:-1]) if body.endswith(b"\n") and count_lines(body) == 1 else None
        if parsed is None or (parsed[0].seq, parsed[1]) != (frame.first, end):
            self._refuse("malformed", end)
        elif self._would_be(len(body)) > self._limits.session_bytes + self._limits.drop_slack:
            self._refuse("limit", end)
        else:
            self._parts.forget()  # those of a record that is dropped
            self._accept(_Taken(Kind.DROP, frame.first, frame.count, 1, body))

    def _take_events(self, frame: Frame, end: int) -> None:
        body = frame.body
        head = b'{"seq":%d,' % frame.first
        if body[-1] != _LF or body[: len(head)] != head or _has_long_line(body):
            self._refuse("malformed", end)
            return
        if self._over_limit(len(body)):
            self._refuse("limit", end)
            return
        skip = self._taken_next - frame.first
        if skip:
            data = bytes(body)
            at = _after_lines(data, skip)
            if count_lines(data) != frame.count:
                self._refuse("malformed", end)
                return
            body = data[at:]
        count = frame.count - skip
        self._accept(_Taken(Kind.EVENTS, self._taken_next, count, count, body))

    def take_payload(self, frame: Frame) -> None:
        """Take a part of a body that a record to come names; remember to answer it. Raises ProtocolError for what cannot be."""
        part = parse_part(frame)
        if not 1 <= part.first < 2 * MAX_SEQ:
            raise ProtocolError("a PAYLOAD frame whose sequence number cannot be")
        if self.refused is not None:
            return
        if self.reason and self._clock.monotonic() < self._retry_at:
            self._busy = True
            return
        self._parts.came = True
        if part.first != self._taken_next or not self._parts.goes_on(part):
            return  # known, early (it comes again in its turn), or without what it would continue
        if part.number == 1:
            self._gap_told = False
        if self._payload_over_limit(part):
            self._parts.forget()
            self._refuse("limit", part.first)
            return
        code = self._parts.add(part, self._clock.monotonic())
        if code == _BUSY:
            self._nacks.append(self._nack(_BUSY, 0, BUSY_MS))
            self._gap_told = True  # what follows in flight is no news
        elif code:
            self._refuse(code, part.first)
        elif part.last:
            whole = self._parts.take_whole()
            self._parts.wholes.append((len(self._taken), whole))
            self._taken_bytes += 0 if self._is_stored(whole.payload) else len(whole.body)

    def _payload_over_limit(self, part: Part) -> bool:
        limited = self._limited
        full = self.journal is not None and self.journal.payloads >= self._limits.session_payloads
        if not self._over_limit(self._parts.size + len(part.piece)) and not full:
            return False
        again = self._is_stored(part.payload)
        self._limited = limited if again else True
        return not again

    def _is_stored(self, payload: str) -> bool:
        """Whether it was sent before: then it takes nothing more."""
        return self.journal is not None and self.journal.has_payload(payload)

    def forget_parts(self) -> None:
        """Give back the memory of a body that will not be completed: the channel is closed."""
        self._parts.forget()

    def _over_limit(self, coming: int) -> bool:
        """The first frame beyond the session's size less its reserve is refused; what the producer sends after that are the
        ends and errors that the reserve is kept for."""
        allowed = self._limits.session_bytes - (0 if self._limited else self._limits.session_reserve)
        if self._would_be(coming) <= allowed:
            return False
        self._limited = True
        return True

    def _would_be(self, coming: int) -> int:
        size = self.journal.size_bytes if self.journal is not None else self._sized
        return size + self._taken_bytes + coming

    def _accept(self, taken: _Taken) -> None:
        self._taken.append(taken)
        self._taken_next = taken.end + 1
        self._taken_bytes += len(taken.body)

    def _refuse(self, code: str, end: int) -> None:
        """For good: the producer replaces [next, end] by a drop record. What follows it in flight is not told as a gap."""
        self._nacks.append(self._nack(code, end - self._taken_next + 1, 0))
        self._gap_told = True

    def _nack(self, code: str, count: int, retry_ms: int) -> bytes:
        body = Nack(code, retry_ms)
        return encode(Kind.NACK, channel=self.channel, first=self._taken_next, count=count, body=body)

    # --- what goes out

    def write(self) -> bytes:
        """Write all that was taken since the last call. Gives the frames that tell the producer what is on disk now."""
        self.active_at = self._clock.monotonic()
        taken, self._taken, self._taken_bytes = self._taken, [], 0
        problem: OSError | None = None
        if self._parts.wholes:
            problem = self._write_and_store(taken)
            self._ack_due = True
        elif taken:
            problem = self._write(taken)
            self._ack_due = True
        if self.refused is not None:
            return refused(self.channel, self.refused)
        answers: list[bytes] = []
        if self._parts.came or (self._ack_due and self.next > 1):
            answers.append(encode(Kind.ACK, channel=self.channel, first=self.next - 1))
        self._ack_due = self._parts.came = False
        answers += self._nacks if problem is None else ()
        self._nacks.clear()
        if problem is not None or self._busy:
            wait_ms = max(1, math.ceil((self._retry_at - self._clock.monotonic()) * 1000))
            answers.append(self._nack(self.reason if problem is not None else _BUSY, 0, wait_ms))
        self._busy = False
        return b"".join(answers)

    def _write_and_store(self, taken: list[_Taken]) -> OSError | None:
        """Both in the order in which they came. What comes after a failure comes again."""
        wholes, self._parts.wholes = self._parts.wholes, []
        problem: OSError | None = None
        at = 0
        try:
            for before, whole in wholes:
                problem = self._write(taken[at:before]) if before > at else None
                at = before
                if problem is not None or self.next != whole.first:  # or a line before it was refused
                    return problem
                stored, problem = self._store(whole)
                if not stored:
                    return problem
        finally:
            self._parts.give_back([whole for _, whole in wholes])
        return self._write(taken[at:]) if at < len(taken) else None

    def _store(self, whole: Whole) -> tuple[bool, OSError | None]:
        """Whether it is in place, and what holds the session when it is not: nothing when its record was refused for good."""
        problem = self._put(whole.payload, redacted_whole(whole, self._redactor))
        if problem is None:
            self.dirty = True
            return True, None
        self._parts.wait(whole.first, whole.payload)
        if problem.errno == errno.EFBIG:  # a file size limit: this body never fits, so its record is refused for good
            self._taken_next = self.next
            self._nacks.clear()
            self._refuse("EFBIG", whole.first)
            return False, None
        return False, problem

    def _put(self, payload: str, data: bytes, *, again: bool = True) -> OSError | None:
        journal = self._opened()
        if isinstance(journal, OSError):
            return journal
        problem = journal.store_payload(payload, data)
        if problem is None or problem.errno == errno.EFBIG:
            return problem
        if again and self._led_away(journal, problem):
            return self._put(payload, data, again=False)
        return self._hold(errno_name(problem), problem)

    def _write(self, taken: list[_Taken]) -> OSError | None:
        block = b"".join(item.body for item in taken)
        lines = sum(item.lines for item in taken)
        try:
            redacted = self._redactor.redact(block)
        except CannotRedact:
            redacted = b""
        if count_lines(redacted) != lines:
            taken, redacted = self._line_by_line(taken)
            if not taken:
                return None
            lines = sum(item.lines for item in taken)
        return self._append(taken, redacted, lines)

    def _line_by_line(self, taken: list[_Taken]) -> tuple[list[_Taken], bytes]:
        """The frames up to the first line that must not be stored, which is refused for good."""
        good: list[_Taken] = []
        blocks: list[bytes] = []
        for item in taken:
            body = bytes(item.body)
            if count_lines(body) != item.lines:
                return self._stop_before(good, blocks, item.first, item.end, "malformed")
            for number, line in enumerate(body.split(b"\n")[:-1]):
                seq = item.first + number
                try:
                    redacted = self._redactor.redact(line + b"\n")
                except CannotRedact:
                    redacted = b""
                if count_lines(redacted) != 1:
                    return self._stop_before(good, blocks, seq, item.end if item.kind is Kind.DROP else seq, "redact")
                count = item.count if item.kind is Kind.DROP else 1
                good.append(_Taken(item.kind, seq, count, 1, b""))
                blocks.append(redacted)
        return good, b"".join(blocks)

    def _stop_before(
        self, good: list[_Taken], blocks: list[bytes], first: int, end: int, code: str
    ) -> tuple[list[_Taken], bytes]:
        self._taken_next = first
        self._nacks.clear()
        self._refuse(code, end)
        return good, b"".join(blocks)

    def _append(self, taken: list[_Taken], block: bytes, lines: int, *, again: bool = True) -> OSError | None:
        journal = self._opened()
        if isinstance(journal, OSError):
            return journal
        if self.started_at is None:
            self.started_at = self._clock.now()
        end = taken[-1].end
        outcome = journal.append(block, lines, end, lambda k: _seq_after(taken, k))
        if outcome.error is None:
            self.next = end + 1
            self.dirty = True
            self._recovered()
            return None
        if outcome.lines:
            self.next = _seq_after(taken, outcome.lines) + 1
            self.dirty = True
            self._recovered()
        elif again and self._led_away(journal, outcome.error):
            return self._append(taken, block, lines, again=False)
        return self._hold(errno_name(outcome.error), outcome.error)

    def _opened(self) -> Journal | OSError:
        """The journal, opened again if it was let go of; or why it cannot be, which holds the session."""
        if self.journal is None:
            try:
                self.journal = self._went_on(self._reopen(self.next - 1))
            except SessionUnavailable as exc:
                self.refused = exc if exc.retry_ms < 0 else None
                return self._hold(exc.code, OSError(exc.message))
        return self.journal

    def _led_away(self, journal: Journal, problem: OSError) -> bool:
        """Whether it failed because the directory is gone from where it was. Then the journal is let go of: where its name leads
        now there may be fewer records, and the new segment says what is lost."""
        if problem.errno not in _NO_DIRECTORY or not journal.misplaced():
            return False
        self.journal = None
        self._let_go(journal)
        return True

    def _went_on(self, journal: Journal) -> Journal:
        """The journal of a session whose directory was let go of, unless somebody else recorded it meanwhile."""
        if journal.last != self.next - 1:
            journal.close()
            raise SessionUnavailable("taken", "another process went on with this session")
        return journal

    def _hold(self, reason: str, problem: OSError) -> OSError:
        self.reason = reason
        self._taken_next = self.next
        self._gap_told = False
        self._retry_at = self._clock.monotonic() + self._wait_s(reason)
        self._backoff_s = min(self._backoff_s * 2, self._limits.retry_max_s)
        return problem

    def _wait_s(self, reason: str) -> float:
        if reason == "EROFS":
            return self._limits.retry_read_only_s
        if reason == "EFBIG" and self._backoff_s == self._limits.retry_first_s:
            return 0.0  # lines got through before it, or it is the first time: the next segment has room again
        return self._backoff_s

    def _recovered(self) -> None:
        self.reason = ""
        self._backoff_s = self._limits.retry_first_s


def _has_long_line(body: bytes | memoryview) -> bool:
    """A stored line stays under MAX_LINE. Only a body that is longer itself can hold one that does not."""
    return len(body) > MAX_LINE and max(map(len, bytes(body).split(b"\n"))) > MAX_LINE


def _after_lines(data: bytes, lines: int) -> int:
    """The offset after so many lines."""
    at = 0
    for _ in range(lines):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at


def _seq_after(taken: list[_Taken], lines: int) -> int:
    """The last seq that the first `lines` lines of these frames stand for."""
    last = taken[0].first - 1
    for item in taken:
        if item.kind is Kind.DROP:
            if lines < 1:
                break
            last, lines = item.end, lines - 1
        else:
            got = min(lines, item.count)
            last, lines = item.first + got - 1, lines - got
        if lines == 0:
            break
    return last


def closed(channel: int, last: int) -> bytes:
    """CLOSED: all of the session is on disk up to `last` and its lock is free."""
    return encode(Kind.CLOSED, channel=channel, first=last)


def refused(channel: int, problem: SessionUnavailable) -> bytes:
    """REFUSED, with the reason."""
    body = msgspec.json.encode({"code": problem.code, "message": problem.message, "retry_ms": problem.retry_ms})
    return encode(Kind.REFUSED, channel=channel, body=body)
