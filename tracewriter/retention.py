"""Which traces go, and when: pure decisions over what a scan found (30 days, 1 GiB, and never on doubt).

Order: trash that has lain for a day; sessions over age; then, while the whole is over its budget, the oldest trash and the
sessions with the oldest last record. What is being recorded or pinned counts, but is never chosen; neither is the newest
record, nor anything odd. Age counts only while the clock is trusted: an hour of uptime in which wall and monotonic time
agree within a minute (a clock that jumped would make everything look old). A sweep takes a fifth of the sessions at most.
`trash` does what is decided here.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Sequence
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
EARLIEST_S: Final = 946_684_800.0  # 2000-01-01; an older record was made by a clock that nobody had set yet
MAX_CONFIG_BYTES: Final = 1024 * 1024


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
        data = _read(path)
        policy = (
            Policy() if data is None else msgspec.convert(tomllib.loads(data.decode()).get("retention", {}), Policy)
        )
    except OSError as exc:
        raise PolicyError(f"{path} cannot be read: {exc.strerror or exc}; {_UNTIL}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise PolicyError(f"{path} is not valid TOML: {exc}; {_UNTIL}") from exc
    except msgspec.ValidationError as exc:
        raise PolicyError(f"{path}: [retention]: {exc}; {_UNTIL}") from exc
    return checked(policy, str(path))


_UNTIL: Final = "nothing is deleted until it is mended"


def checked(policy: Policy, where: str) -> Policy:
    """The policy, if its numbers make sense. Raises PolicyError."""
    if not policy.max_age_days > 0 or policy.max_bytes <= 0:  # `not >`: nan is no age
        raise PolicyError(f"{where}: max_age_days and max_bytes must be above 0; {_UNTIL}")
    return policy


def _read(path: Path) -> bytes | None:
    """The file's bytes; None when nothing has its name. A link that leads nowhere is not "no file": its target is away."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_CONFIG_BYTES:
        raise OSError(errno.EFBIG, "it is over 1 MiB")
    return data


class Candidate(Struct, frozen=True):
    """A session directory as the scan found it. doubt: why it is left alone, whatever its age.

    last_at: seconds since 1970 of the last record; of an empty one, of the directory's last change.
    """

    workspace: str  # the hash
    session: str
    last_at: float
    bytes: int
    active: bool = False
    pinned: bool = False
    doubt: str = ""
    empty: bool = False


class Trashed(Struct, frozen=True):
    """A session in the trash. doomed: its removal has begun, and nothing brings it back."""

    name: str
    moved_at: float
    bytes: int
    doomed: bool = False


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


def plan(
    candidates: Sequence[Candidate],
    trash: Sequence[Trashed],
    policy: Policy,
    now: float,
    *,
    clock_trusted: bool,
    moved: int = 0,
) -> Plan:
    """Decide. Pure: the same input gives the same plan. moved: sessions that this sweep has taken already."""
    total = sum(c.bytes for c in candidates) + sum(t.bytes for t in trash)
    by_age = sorted(trash, key=_moved)
    purge = [t for t in by_age if t.doomed or (clock_trusted and now - t.moved_at > TRASH_S)]
    excess = total - sum(t.bytes for t in purge) - policy.max_bytes
    allowed = max(0, _share(len(candidates) + moved) - moved)
    choosable = _choosable(candidates, now)
    aged = [c for c in choosable if now - c.last_at > policy.max_age_days * DAY_S]  # the first of them: oldest first
    taken = len(aged[:allowed]) if clock_trusted else 0
    moves = [Move(c, "age") for c in aged[:taken]]
    excess -= sum(c.bytes for c in aged[:taken])
    going = {t.name for t in purge}
    for trashed in by_age:
        if excess > 0 and trashed.name not in going:
            purge.append(trashed)
            excess -= trashed.bytes
    for candidate in choosable[taken:]:
        if excess <= 0 or len(moves) >= allowed:
            break
        moves.append(Move(candidate, "budget"))
        excess -= candidate.bytes
    held_back = max(0, len(aged) - len(moves))
    return Plan(tuple(purge), tuple(moves), total, max(0, excess), held_back)


def _share(sessions: int) -> int:
    """A fifth of the sessions, but one where there are any."""
    return max(1, int(sessions * SHARE)) if sessions else 0


def _choosable(candidates: Sequence[Candidate], now: float) -> list[Candidate]:
    """The sessions that may go, oldest first; never the one with the newest record, never one that is in use, kept or odd."""
    plausible = [c for c in candidates if not c.doubt and EARLIEST_S <= c.last_at <= now + FUTURE_S]
    newest = max((c for c in plausible if not c.empty), key=_age, default=None)
    return sorted((c for c in plausible if not (c.active or c.pinned) and c is not newest), key=_age)


def _age(candidate: Candidate) -> tuple[float, str, str]:
    return (candidate.last_at, candidate.session, candidate.workspace)


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
    """What goes next, for people: which session, when (seconds since 1970) and why (age, budget)."""

    session: str
    at: float
    reason: str


def forecast(candidates: Sequence[Candidate], trash: Sequence[Trashed], policy: Policy, now: float) -> Forecast | None:
    """The session that retention will take next; None when nothing may be taken."""
    oldest = next(iter(_choosable(candidates, now)), None)
    if oldest is None or not policy.enabled:
        return None
    decided = plan(candidates, trash, policy, now, clock_trusted=True)
    if decided.moves:
        return Forecast(oldest.session, now, decided.moves[0].reason)
    return Forecast(oldest.session, oldest.last_at + policy.max_age_days * DAY_S, "age")
