"""Breadth-first search of the protocol: no acknowledged record lost, none twice, no stall; and it finds what is planted.

Harmless when planted, each for its reason (`HARMLESS`): a HELLO with an older conn that is let in (it can hold no session, OPEN
comes after WELCOME; the newer connection is ended and made again); a gap told for every early frame (the producer goes back each
time: more traffic, same end); frames not sent again after OPENED (the next record is early, and the NACK goes back for them).
"""

from __future__ import annotations

import os

import pytest

from tests.tracewriter.protocol_model import World, search
from tests.tracewriter.protocol_parts import Budget, Flaws, Violation
from tracewriter.outbox import Outbox
from tracewriter.producer import Channel, Producer
from tracewriter.protocol import Frame, Kind, Nack, encode
from tracewriter.recorder import Recording

FULL = bool(os.environ.get("AGENTD_NIGHTLY"))
BOUNDS = {
    "losses and old bytes": Budget(records=2, losses=2, kills=0),
    "losses and kills": Budget(records=2, losses=1, kills=1),
    "part of a write": Budget(records=3, losses=0, kills=1, faults=1),
    "part of a write, and a loss": Budget(records=2, losses=1, kills=0, faults=1),
    "a record refused for good": Budget(records=2, losses=1, kills=0, poison=1),
    "a body": Budget(records=2, losses=1, kills=1, body=0),
    "a body, and part of a write": Budget(records=2, losses=0, kills=1, faults=1, body=0),
    "two lives": Budget(records=2, losses=0, kills=1, lives=2),
    "two lives and a loss": Budget(records=2, losses=1, kills=0, lives=2),
}
# Searched to the end every time; of the others the first states, and 30 times as many in nightly runs.
WHOLE = {"losses and old bytes": 3140, "losses and kills": 3000, "a record refused for good": 490}
MOST = 120_000 if FULL else 4000


@pytest.mark.parametrize("name", BOUNDS)
def test_no_order_of_events_loses_doubles_or_stalls(name: str) -> None:
    found = search(World(BOUNDS[name], Flaws()), settle_every=5, most=10**9 if name in WHOLE else MOST)
    assert found >= WHOLE.get(name, MOST)


# --- planted bugs


class AckOnReceive(Recording):
    """Acknowledges what it took, written or not."""

    def write(self) -> bytes:
        taken = self._taken_next
        said = super().write()
        self.next = self._taken_next = max(self.next, taken)
        return said if not self.reason else said + encode(Kind.ACK, channel=self.channel, first=taken - 1)


class NoDeduplication(Recording):
    """Takes what it knows already."""

    def take(self, frame: Frame) -> None:
        if frame.first < self._taken_next:
            self._taken_next = frame.first
        super().take(frame)


class TakesWhatIsEarly(Recording):
    """Does not look for gaps."""

    def take(self, frame: Frame) -> None:
        if frame.first > self._taken_next:
            self._taken_next = frame.first
        super().take(frame)


class NeverWaitsForABody(Recording):
    """Takes a record whether its body came whole or not."""

    def take(self, frame: Frame) -> None:
        self._parts.waits_at = 0
        super().take(frame)


class DropsUnrecorded(Outbox):
    """What is refused for good is just left out."""

    def refuse(self, first: int, count: int, code: str) -> None:
        super().refuse(first, count, code)
        self._replace([frame for frame in self.frames if frame.kind is not Kind.DROP], code)


class PartlyAcknowledged(Outbox):
    """A frame is done when its first record is acknowledged."""

    def acknowledge(self, seq: int) -> int:
        done = 0
        while self.frames and self.frames[0].first <= seq:
            self._grow(-len(self.frames.popleft().body))
            done += 1
        self.acked = max(self.acked, min(seq, self.last))
        return done


class NackIgnored(Producer):
    """Goes on as if nothing had been said."""

    def _nacked(self, channel: Channel, frame: Frame, nack: Nack) -> None: ...


class NothingSentAgain(Producer):
    """On a new connection goes on where the old one ended."""

    def _about(self, channel: Channel, frame: Frame) -> None:
        sent = getattr(channel, "carried", 0)
        super()._about(channel, frame)
        if frame.kind is Kind.OPENED:
            channel.sent = min(sent, len(channel.outbox.frames))

    def disconnected(self) -> None:
        for channel in self.channels:
            channel.carried = channel.sent  # type: ignore[attr-defined]
        super().disconnected()


class GapToldAlways(Recording):
    """Says so again for each frame that is early."""

    def take(self, frame: Frame) -> None:
        self._gap_told = False
        super().take(frame)


class ChannelUsedAgain(Producer):
    """After REFUSED the same channel number is opened again."""

    def _open(self, channel: Channel) -> None:
        self._numbers = 0
        super()._open(channel)


class NeverTriesAgain(Producer):
    """REFUSED is final."""

    def outgoing(self) -> list[bytes]:
        for channel in self.channels:
            channel.reopen_at = None
        return super().outgoing()


class SendsBeforeOpened(Outbox):
    """A resumed session numbers from 1 at once."""

    def numbered(self, next_seq: int) -> bool:
        self.acknowledge(next_seq - 1)
        return True


LOSSES = BOUNDS["losses and old bytes"]
FAULT = BOUNDS["part of a write, and a loss"]
LIVES = BOUNDS["two lives"]
BODY = BOUNDS["a body, and part of a write"]
PLANTED: dict[str, World] = {
    "acknowledged when received": World(FAULT, Flaws(), recording=AckOnReceive),
    "no de-duplication": World(BOUNDS["part of a write"], Flaws(), recording=NoDeduplication),
    "taken whenever the newest file is another life's": World(LIVES, Flaws(taken_by_life_alone=True)),
    "early frames taken": World(FAULT, Flaws(), recording=TakesWhatIsEarly),
    "records before their bodies": World(BODY, Flaws(), recording=NeverWaitsForABody),
    "drops not recorded": World(BOUNDS["a record refused for good"], Flaws(), outbox=DropsUnrecorded),
    "frames done in part forgotten": World(FAULT, Flaws(), outbox=PartlyAcknowledged),
    "NACK ignored": World(FAULT, Flaws(), producer=NackIgnored),
    "channel number used again": World(BOUNDS["two lives and a loss"], Flaws(), producer=ChannelUsedAgain),
    "refused for ever": World(BOUNDS["two lives and a loss"], Flaws(), producer=NeverTriesAgain),
    "numbers before OPENED": World(LIVES, Flaws(), outbox=SendsBeforeOpened, second_is_new=True),
    "not cut back": World(FAULT, Flaws(no_cut_back=True)),
    "whole lines of a short write forgotten": World(FAULT, Flaws(short_write_counts_for_nothing=True)),
    "OPENED says what was received": World(LOSSES, Flaws(opened_says_received=True)),
    "HELLO ends nobody": World(LOSSES, Flaws(hello_ends_nobody=True, eof_frees_the_key=True)),
}


HARMLESS: dict[str, World] = {
    "an older connection is let in": World(LOSSES, Flaws(any_conn_takes_over=True)),
    "a gap told for every early frame": World(FAULT, Flaws(), recording=GapToldAlways),
    "nothing sent again": World(LOSSES, Flaws(), producer=NothingSentAgain),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_stays_harmless(name: str) -> None:
    search(HARMLESS[name], settle_every=3, most=2500)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.raises(Violation):
        search(PLANTED[name], settle_every=1, most=10_000)
