"""What a reader finds in a session's directory: records, notes about what is wrong or missing, and the verdict over all."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from tracewriter.events import RawRecord

# Kinds of notes that mean that bytes or records which were there are not there any more, as they were written (exit 5).
DAMAGE_KINDS: Final = frozenset(
    {"damaged", "lost", "gap", "duplicate", "missing", "digest", "foreign", "payload_damaged", "payload_missing"}
)


class Found(Struct, frozen=True):
    """One record: typed head, its line as stored (without LF), where it is, and how sure it is.

    state: verified (its sealed range hashes right), unsealed (no seal covers it), unverified (its range's hash is wrong).
    """

    record: RawRecord
    line: bytes
    segment: int
    offset: int
    state: str
    end: int  # the last seq it stands for: its own, or data.last of a drop record


class Note(Struct, frozen=True):
    """One thing a reader must say, in its place. `message` is a line for people; offsets are bytes in the segment's file.

    kind: one of DAMAGE_KINDS, or unsealed, unreferenced, unchecked, unfinished, end_missing, dropped, active: those are no damage.
    payload: the id of the one it is about.
    """

    kind: str
    message: str
    segment: int | None = None
    offset: int | None = None
    length: int | None = None
    first: int | None = None
    last: int | None = None
    payload: str | None = None

    @property
    def damage(self) -> bool:
        """Whether it makes the verdict "damaged"."""
        return self.kind in DAMAGE_KINDS


class Verdict(Struct, frozen=True):
    """What `verify` says of a session. emitted is None when the recording did not end in order: then it is unknown after `last`.

    records counts lines that are records but no drops, verified those in ranges that are as they were sealed; dropped is how many
    seqs the drop records stand for. payloads counts payload files, payloads_verified those that are as they were sealed; bytes is
    that of segments, payload_bytes that of payload files. head: SHA-256 over the chained digests of segments and payloads, to
    be kept elsewhere by whoever wants proof against a rewrite.
    """

    records: int
    dropped: int
    emitted: int | None
    first: int
    last: int
    segments: int
    bytes: int
    notes: tuple[Note, ...]
    damaged: bool
    head: str | None
    active: bool
    verified: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    payloads_verified: int = 0


class SessionEntry(Struct, frozen=True):
    """A session as a list shows it, from its manifest or a quick look at its segments."""

    session: str
    workspace: str
    path: Path
    started_at: datetime | None
    last_at: datetime | None
    records: int
    bytes: int
    active: bool
