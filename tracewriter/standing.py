"""How the recording of a session stands, from what its outbox knows. Pure; senders with a loop and with a thread say it so."""

from __future__ import annotations

from msgspec import Struct

from tracewriter.outbox import Outbox


class TraceStatus(Struct, frozen=True):
    """Whether recording works. state: ok, degraded (it will go on by itself; reason says what holds it up), off.

    emitted: events given to record(); recorded: on disk; dropped: not recorded and never will be (each a counted drop).
    """

    state: str
    reason: str = ""
    emitted: int = 0
    recorded: int = 0
    dropped: int = 0


def standing(outbox: Outbox, trouble: str, *, closing: bool, unfinished: bool) -> TraceStatus:
    """`trouble` holds the session up ("": nothing does). unfinished: its close ran out of time."""
    waiting = outbox.unanswered if outbox.stopped else outbox.waiting
    recorded = max(0, outbox.emitted - outbox.dropped - waiting)
    if outbox.stopped and outbox.stopped != "closed":
        return TraceStatus("off", outbox.stopped, outbox.emitted, recorded, outbox.dropped)
    reason = trouble
    if unfinished or waiting:
        reason = reason or ("not all of it was acknowledged" if outbox.stopped else "")
    state = "degraded" if reason and (unfinished or not closing) else "ok"
    return TraceStatus(state, reason if state != "ok" else "", outbox.emitted, recorded, outbox.dropped)
