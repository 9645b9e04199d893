"""Which traces go, and when: pure decisions over what a scan found (30 days, 1 GiB, and never on doubt).

Order: trash that has lain for a day; sessions over age; then, while the whole is over its budget, the oldest trash and the
sessions with the oldest last record. What is being recorded or pinned counts, but is never chosen; neither is the newest
session, nor anything odd. Age counts only while the clock is trusted: an hour of uptime in which wall and monotonic time
agree within a minute (a clock that jumped would make everything look old). A sweep takes a fifth of the sessions at most.
`trash` does what is decided here.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tracewriter.config import GIB

DAY_S: Final = 86_400.0
TRASH_S: Final = DAY_S
TRUST_AFTER_S: Final = 3600.0
TRUST_WITHIN_S: Final = 60.0
SHARE: Final = 0.2
FUTURE_S: Final = DAY_S  # a last record further ahead than this is a doubt


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """[retention] in config.toml. max_age_days: since the last record. max_bytes: disk blocks of traces and trash together."""

    max_age_days: float = 30.0
    max_bytes: int = GIB
    enabled: bool = True


class PolicyError(ValueError):
    """The policy cannot be read. Then nothing is deleted."""


def load_policy(path: Path | None) -> Policy:
    """The [retention] table of a TOML file; the defaults when there is no file or no table. Raises PolicyError for anything odd."""
    if path is None:
        return Policy()
    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("retention", {})
        policy = msgspec.convert(table, Policy)
    except FileNotFoundError:
        return Policy()
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as exc:
        raise PolicyError(f"retention in {path} cannot be read: {exc}; nothing is deleted until it can") from exc
    if policy.max_age_days <= 0 or policy.max_bytes <= 0:
        raise PolicyError(f"retention in {path}: max_age_days and max_bytes must be above 0; nothing is deleted")
    return policy


class Candidate(Struct, frozen=True):
    """A session directory as the scan found it. last_at: seconds since 1970 of the last record. doubt: why it is left alone."""

    workspace: str  # the hash
    session: str
    last_at: float
    bytes: int
    active: bool = False
    pinned: bool = False
    doubt: str = ""


class Trashed(Struct, frozen=True):
    """A session in the trash."""

    name: str
    moved_at: float
    bytes: int


class Move(Struct, frozen=True):
    """A session that goes to the trash, and why."""

    candidate: Candidate
    reason: str


class Plan(Struct, frozen=True):
    """What a sweep is to do, in order: purge trash, then move sessions. over: bytes above the budget that must stay."""

    purge: tuple[Trashed, ...]
    moves: tuple[Move, ...]
    total_bytes: int
    over: int
    held_back: int  # sessions over age that the clock or the share keeps for a later sweep


def plan(candidates: list[Candidate], trash: list[Trashed], policy: Policy, now: float, *, clock_trusted: bool) -> Plan:
    """Decide. Pure: the same input gives the same plan."""
    total = sum(c.bytes for c in candidates) + sum(t.bytes for t in trash)
    purge = [t for t in sorted(trash, key=_moved) if clock_trusted and now - t.moved_at > TRASH_S]
    excess = total - sum(t.bytes for t in purge) - policy.max_bytes
    allowed = _share(len(candidates))
    choosable = _choosable(candidates, now)
    aged = [c for c in choosable if now - c.last_at > policy.max_age_days * DAY_S]
    taken = aged[:allowed] if clock_trusted else []
    moves = [Move(c, "age") for c in taken]
    excess -= sum(c.bytes for c in taken)
    for trashed in sorted(trash, key=_moved):
        if excess <= 0:
            break
        if trashed not in purge:
            purge.append(trashed)
            excess -= trashed.bytes
    for candidate in choosable:
        if excess <= 0 or len(moves) >= allowed:
            break
        if candidate not in taken:
            moves.append(Move(candidate, "budget"))
            excess -= candidate.bytes
    return Plan(tuple(purge), tuple(moves), total, max(0, excess), len(aged) - len(taken))


def _share(sessions: int) -> int:
    """A fifth of the sessions, but one where there are any."""
    return max(1, int(sessions * SHARE)) if sessions else 0


def _choosable(candidates: list[Candidate], now: float) -> list[Candidate]:
    """The sessions that may go, oldest first; never the newest of all, never one that is in use, kept or odd."""
    newest = max(candidates, key=lambda c: (c.last_at, c.session), default=None)
    return sorted(
        (
            c
            for c in candidates
            if not (c.active or c.pinned or c.doubt) and c is not newest and c.last_at <= now + FUTURE_S
        ),
        key=lambda c: (c.last_at, c.session),
    )


def _moved(trashed: Trashed) -> tuple[float, str]:
    return (trashed.moved_at, trashed.name)


class ClockTrust:
    """Whether wall time may be believed: it has gone along with monotonic time since the start, for an hour at least.

    One jump ends the trust for another hour from then on.
    """

    def __init__(self, wall: float, monotonic: float) -> None:
        self._wall, self._monotonic = wall, monotonic

    def trusted(self, wall: float, monotonic: float) -> bool:
        """Look at both clocks now (seconds). Call it often: a jump there and back between two looks goes unseen."""
        drift = abs((wall - self._wall) - (monotonic - self._monotonic))
        if drift > TRUST_WITHIN_S:
            self._wall, self._monotonic = wall, monotonic
            return False
        return monotonic - self._monotonic >= TRUST_AFTER_S


class Forecast(Struct, frozen=True):
    """What goes next by age, for people: the session and when (seconds since 1970), None when nothing is waiting."""

    session: str
    at: float


def forecast(candidates: list[Candidate], policy: Policy, now: float) -> Forecast | None:
    """The session that age will take next."""
    oldest = next(iter(_choosable(candidates, now)), None)
    if oldest is None or not policy.enabled:
        return None
    return Forecast(oldest.session, max(now, oldest.last_at + policy.max_age_days * DAY_S))
