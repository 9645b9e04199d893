"""What of a stream may be recorded now, and what is held back, so that a secret meets the redactor in one record, whole.

A record is redacted by itself: a secret that is split over two of them is recognised in neither. So a stream is recorded up
to its last line end (the last white space is not enough: `Authorization: Bearer` and what follows belong together). A line that
does not end is cut at white space. No cut is made on trust: the redactor itself is asked whether any rule could reach over it,
with what follows there and with everything that might (`CutJudge`). Private keys in PEM are kept whole.

Everything is bounded: when more than MAX_HELD_CHARS have no place to cut, they and the rest up to the end of the key or of the
line become a mark with their number, and are not recorded here; the finished request or call has them, redacted as a whole.
What is recorded is said once, in order, with exact offsets: no piece repeats what an earlier one had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import product
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from tracewriter.events import (
    Event,
    ModelRequestFailed,
    ModelRequestFinished,
    ModelStreamDelta,
    RunExecuteFinished,
    ToolCallFinished,
    ToolOutputDelta,
)

# A longer line is cut inside; no secret that a rule knows is so long but a key in PEM.
MAX_LINE_CHARS: Final = 4 * 1024
MAX_HELD_CHARS: Final = 64 * 1024
MARK: Final = "[not recorded: {:,} characters without a place to cut]"
# How far a rule looks back from a value to what names it; bounded in all of them.
_REACH_CHARS: Final = 512
_TRIED: Final = 4
_BEGIN: Final = "-----BEGIN "
_PEM_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,60}(?:PRIVATE KEY|\Z)")
_PEM_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_SPACE: Final = re.compile(r"[ \t](?=[^ \t\n])")  # others may be part of a password

# What may come after a cut and be a secret because of what stood before it.
_LEADS: Final = ("", "= ", ": ", "=> ", '"', "'", '": "', '=\\"')
_VALUES: Final = (
    "hunter2xQ9",
    "Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1AbCdEf12x",
    "5f4dcc3b5aa765d61d8327deb882cf99",
    "0d6f1c3e-7b5a-4c2d-9e8f-1a2b3c4d5e6f",
    "dXNlcjpwYXNzd29yZDEyMw==",
    "Bearer Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1A",
    "Basic dXNlcjpwYXNzd29yZDEyMw==",
    "root:Pa55word9x@db.example",
)
_KEYS: Final = (
    "RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n",
    "PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n",
    "MIIEpAIBAAKCAQEA7\n",
)
_PROBES: Final = (*(lead + value for lead, value in product(_LEADS, _VALUES)), *_KEYS)

# Of the rules that do reach over the end of a line: a block of YAML goes on, and after `login bob` comes the password.
_NEXT_LINES: Final = (" " * 16 + _VALUES[0], f"password {_VALUES[0]}")
_FEW_PROBES: Final = (*_KEYS, *_NEXT_LINES, *_VALUES[:2], f"= {_VALUES[1]}", f": {_VALUES[1]}", _VALUES[5])

# Whether a text may be cut between these two pieces of it.
MayCut: TypeAlias = Callable[[str, str], bool]


class CutJudge:
    """Answers with the rules of the redactor and the session's exact secrets."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        # Here and not above: only sessions that record streams need the rules in this process.
        from tracewriter.redact import CannotRedact, Redactor

        self._cannot = CannotRedact
        self._redactor = Redactor(secrets)
        self._broken = tuple(secret for secret in secrets if len(secret.split()) > 1)

    def __repr__(self) -> str:
        return f"<CutJudge broken={len(self._broken)}>"

    def __call__(self, left: str, right: str) -> bool:
        """Whether each side is redacted as it is in the whole, and nothing on the left waits for something on the right."""
        if any(_begun(left, secret) for secret in self._broken):
            return False
        # What a rule may take without a bound: the rest of a line, and of a private key.
        line = left if _BEGIN in left else left[left.rfind("\n", 0, -1) + 1 :]
        near = left[-_REACH_CHARS:]
        if not self._splits(near, right, _FEW_PROBES):
            return False
        # Hardly any rule reaches over the end of a line: the few find out, and lines end often.
        if not left.endswith("\n") and not self._splits(near, right, _PROBES):
            return False
        # A rule without a bound takes anything, so one probe finds it.
        return len(line) <= _REACH_CHARS or self._splits(line, right, _VALUES[1:2])

    def _splits(self, left: str, right: str, probes: Sequence[str]) -> bool:
        rights = [right[:_REACH_CHARS], *probes]
        redacted = self._redact([left, *rights, *(left + text for text in rights)])
        if redacted is None:
            return False
        alone, rest = redacted[0], redacted[1:]
        return all(whole == alone + part for part, whole in zip(rest, rest[len(rights) :], strict=False))

    def _redact(self, texts: list[str]) -> list[str] | None:
        block = b"".join(msgspec.json.encode(text) + b"\n" for text in texts)
        try:
            lines = self._redactor.redact(block).split(b"\n")[:-1]
            done = [msgspec.json.decode(line, type=str) for line in lines]
        except (self._cannot, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return done if len(done) == len(texts) else None


def _begun(left: str, secret: str) -> bool:
    """Whether the text ends inside this secret, which has white space in it."""
    return any(left.endswith(secret[:length]) for length in range(1, len(secret)))


class Piece(Struct, frozen=True):
    """Text to record; `offset` counts the code points of the stream before it."""

    offset: int
    text: str


class HoldBack:
    """One stream: takes it as it comes, gives it in pieces that may be recorded, each once and in order."""

    def __init__(self, may_cut: MayCut, offset: int = 0) -> None:
        self._may_cut = may_cut
        self._offset = offset
        self._held: list[str] = []
        self._chars = 0
        self._try_at = MAX_LINE_CHARS
        self._skipping: _Skip | None = None

    def __repr__(self) -> str:
        return f"<HoldBack offset={self._offset} held={self._chars} skipping={self._skipping is not None}>"

    @property
    def next_offset(self) -> int:
        """How many code points have come."""
        return self._offset + self._chars + (self._skipping.chars if self._skipping is not None else 0)

    def feed(self, text: str) -> list[Piece]:
        """More of the stream."""
        pieces: list[Piece] = []
        if self._skipping is not None:
            text = self._skip(self._skipping, text, pieces)
        self._held.append(text)
        self._chars += len(text)
        if "\n" in text or self._chars >= self._try_at:
            self._release(pieces)
        return pieces

    def end(self) -> list[Piece]:
        """The stream is over, however it ended: what was held back, and the mark of what is not recorded."""
        pieces: list[Piece] = []
        if self._skipping is not None:
            self._mark(self._skipping, pieces)
        self._give(self._chars, "".join(self._held), pieces)
        return pieces

    def _release(self, pieces: list[Piece]) -> None:
        held = "".join(self._held)
        self._held = [held]
        cut = self._cut(held)
        if cut:
            held = self._give(cut, held, pieces)
        # Again when as much has come: what cannot be cut is not looked at over and over.
        self._try_at = max(MAX_LINE_CHARS, min(2 * self._chars, MAX_HELD_CHARS + 1))
        if self._chars > MAX_HELD_CHARS:
            self._skipping = _Skip(held)
            self._held, self._chars = [], 0

    def _give(self, cut: int, held: str, pieces: list[Piece]) -> str:
        """Record the first `cut` characters; what is left."""
        if cut:
            pieces.append(Piece(self._offset, held[:cut]))
        self._offset += cut
        self._held, self._chars = [held[cut:]], len(held) - cut
        return held[cut:]

    def _cut(self, held: str) -> int:
        """Where it may be cut, as late as possible; 0 for nowhere."""
        limit = _whole_until(held)
        place = self._line_end(held, limit)
        if limit - place > MAX_LINE_CHARS:
            spaces = [found.end() for found in _SPACE.finditer(held, max(place, limit - 2 * MAX_LINE_CHARS), limit)]
            # The latest, and then some before it: what must not be cut may have begun a while ago.
            latest, earlier = spaces[:-3:-1], spaces[:: -max(1, len(spaces) // _TRIED)][1:]
            tried = (at for at in (*latest, *earlier) if self._may_cut(held[:at], held[at:]))
            place = next(tried, place)
        return place

    def _line_end(self, held: str, limit: int) -> int:
        for _ in range(_TRIED):
            place = held.rfind("\n", 0, limit) + 1
            if not place or self._may_cut(held[:place], held[place:]):
                return place
            limit = place - 1
        return 0

    def _skip(self, skip: _Skip, text: str, pieces: list[Piece]) -> str:
        """What of the text comes after what is not recorded."""
        rest = skip.feed(text, self._may_cut)
        if rest is None:
            return ""
        self._mark(skip, pieces)
        return rest

    def _mark(self, skip: _Skip, pieces: list[Piece]) -> None:
        pieces.append(Piece(self._offset, MARK.format(skip.chars)))
        self._offset += skip.chars
        self._skipping = None


class _Skip:
    """What is not recorded: up to the end of a private key, or else of a line."""

    def __init__(self, text: str) -> None:
        self.chars = len(text)
        self._tail = text[-_REACH_CHARS:]
        self._in_key = _open_key(text) >= 0

    def feed(self, text: str, may_cut: MayCut) -> str | None:
        """What comes after it; None while it goes on."""
        seen = self._tail + text
        at = len(self._tail)
        while (end := self._end(seen, at)) is not None:
            at = end
            if not self._in_key and may_cut(seen[:at], seen[at:]):
                self.chars += at - len(self._tail)
                return seen[at:]
        self.chars += len(text)
        self._in_key = self._in_key or _open_key(seen) >= 0
        self._tail = seen[-_REACH_CHARS:]
        return None

    def _end(self, seen: str, at: int) -> int | None:
        """The next place after `at` where a key or a line ends; keys that begin before it are noted."""
        if self._in_key:
            # An end that was there already would have been found then.
            found = next((m for m in _PEM_END.finditer(seen) if m.end() > at), None)
            if found is None:
                return None
            self._in_key = False
            return found.end()
        newline = seen.find("\n", at)
        if newline < 0:
            return None
        self._in_key = _open_key(seen[: newline + 1]) >= 0
        return newline + 1


def _open_key(text: str) -> int:
    """Where a private key begins that does not end, or what may become one; -1 for nowhere."""
    if _BEGIN not in text:
        return -1
    at = 0
    while (begin := _PEM_BEGIN.search(text, at)) is not None:
        end = _PEM_END.search(text, begin.end())
        if end is None:
            return begin.start()
        at = end.end()
    return -1


def _whole_until(held: str) -> int:
    """How much of it has no open key in it."""
    begin = _open_key(held)
    return len(held) if begin < 0 else begin


# --- the streams of a session


class Recorder(Protocol):
    """Trace.record."""

    def __call__(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None: ...


class _Stream(Struct, frozen=True):
    hold: HoldBack
    run: str
    parent: str


class Streams:
    """The streams that are going on in a session, by operation and kind."""

    def __init__(self, may_cut: MayCut) -> None:
        self._may_cut = may_cut
        self._open: dict[tuple[str, str], _Stream] = {}

    def __repr__(self) -> str:
        return f"<Streams {len(self._open)}>"

    def feed(
        self,
        delta: ModelStreamDelta | ToolOutputDelta,
        record: Recorder,
        *,
        ts: datetime,
        run: str,
        op: str,
        parent: str,
    ) -> None:
        """A piece came: record what may be."""
        key = (op, delta.kind if isinstance(delta, ModelStreamDelta) else "")
        stream = self._open.get(key)
        if stream is None:
            stream = self._open[key] = _Stream(HoldBack(self._may_cut, delta.offset), run, parent)
        self._record(stream.hold.feed(delta.text), key, stream, record, ts)

    def before(self, event: Event, record: Recorder, *, ts: datetime, run: str, op: str) -> None:
        """This event is about to be recorded: what it ends is recorded first."""
        match event:
            case ModelRequestFinished() | ModelRequestFailed() | ToolCallFinished():
                self._end([key for key in self._open if key[0] == op], record, ts)
            case RunExecuteFinished():
                self._end([key for key, stream in self._open.items() if stream.run == run], record, ts)
            case _:
                pass

    def end(self, record: Recorder, ts: datetime) -> None:
        """The recording is about to end: record what is held back."""
        self._end(list(self._open), record, ts)

    def _end(self, keys: list[tuple[str, str]], record: Recorder, ts: datetime) -> None:
        for key in keys:
            stream = self._open.pop(key)
            self._record(stream.hold.end(), key, stream, record, ts)

    def _record(
        self, pieces: list[Piece], key: tuple[str, str], stream: _Stream, record: Recorder, ts: datetime
    ) -> None:
        op, kind = key
        for piece in pieces:
            delta = (
                ModelStreamDelta(kind, piece.offset, piece.text) if kind else ToolOutputDelta(piece.offset, piece.text)
            )
            record(delta, ts=ts, run=stream.run, op=op, parent=stream.parent)
