"""Opens the files of sessions, in the background where somebody can wait, and arranges what opening them obliges to."""

from __future__ import annotations

from functools import partial

from tracewriter.background import Background, Done
from tracewriter.config import Limits
from tracewriter.disk import Disk
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Journal, Key, Producer, retire_in
from tracewriter.upkeep import Upkeep


class Opener:
    """Opens journals under one trace root (`root_fd` may be turned elsewhere meanwhile)."""

    def __init__(self, disk: Disk, root_fd: int, limits: Limits, background: Background, upkeep: Upkeep) -> None:
        self._disk, self._root_fd, self._limits = disk, root_fd, limits
        self._background, self._upkeep = background, upkeep

    def open(self, key: Key, producer: Producer, done: Done) -> None:
        """Open in the background: a big segment must not hold up the others. `done` gets a Journal, to be given to `keep`, or
        SessionUnavailable; anything else is a bug."""

        def job() -> Journal | SessionUnavailable:
            try:
                return self._open(key, producer)
            except SessionUnavailable as exc:
                return exc

        self._background.submit_open(job, done)

    def again(self, key: Key, life: str, last: int) -> Journal:
        """A session whose directory was deleted or replaced while live (`Upkeep`); a merely idle one keeps its journal. On the
        loop: the frames that are to be written now may be a dead producer's last (R22), and nobody would send them again. It
        claims no numbers of its own: whether somebody else went on shows in where the files end."""
        return self.keep(self._open(key, Producer(life, last)))

    def _open(self, key: Key, producer: Producer) -> Journal:
        return Journal.open(self._disk, self._root_fd, key, producer, self._limits)

    def keep(self, journal: Journal) -> Journal:
        """From now on it is recorded in: have its files synced, those that an earlier life left too."""
        if self._limits.durability != "none":
            journal.retire_with(retire_in(self._background, partial(self._upkeep.sync_failed, journal)))
        if self._limits.durability == "interval":  # with batch it is done by now
            self._upkeep.sync_found(journal)
        return journal
