"""Power loss, on a loop-mounted ext4 image: the backing file is copied while it is recorded into, and the copy is mounted.

What the file system holds in memory (ext4 allocates and writes data up to 30 s late) is not in the backing file, so a copy of
it is what a power cut leaves. It is a copy of one moment: the writer is stopped and the file read until two reads are equal;
the kernel's own late writes go on meanwhile. Not cut away is what a device's own volatile cache would lose: to order its
flushes is the file system's part of fdatasync.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from msgspec import Struct

from tests.faults.harness import START_S, Lab, Recorder, Writer, require_root, require_tool
from tracewriter.config import KIB, MIB
from tracewriter.findings import Found, Note
from tracewriter.reader import read, verify

PACE = 300.0
INTERVAL_S = 1.2  # what durability "interval" may lose
SLACK_S = 1.0  # of a machine that is busy: the loop's turn and the fdatasync itself
IMAGE_MIB = 24


class Kind(Struct, frozen=True):
    """A writer. Short segments last a third of a second: every cut has some that are done, and one that is on its way."""

    durability: str
    segment_bytes: int = 48 * KIB
    plant: str = ""


NONE, INTERVAL, BATCH = Kind("none"), Kind("interval"), Kind("batch")
INTERVAL_LONG = Kind("interval", 8 * MIB)


class Cut(Struct, frozen=True):
    """What one power cut left. acked: what its producer had been told before. lost_s: by the records' own times."""

    durability: str
    acked: int
    last: int
    lost: int
    lost_s: float
    notes: tuple[Note, ...]
    records: dict[int, tuple[bytes, str]]

    def __str__(self) -> str:
        kinds = sorted({note.kind for note in self.notes})
        return f"{self.durability}: acked {self.acked} last {self.last} lost {self.lost} ({self.lost_s:.2f} s) {kinds}"

    @property
    def holes(self) -> list[int]:
        """Seqs that are missing although a later one is there."""
        return [seq for seq in range(1, self.last) if seq not in self.records]

    def untrue(self, truth: dict[int, bytes]) -> list[int]:
        """Records that are not what was recorded."""
        return [seq for seq, (line, _) in self.records.items() if line != truth.get(seq)]


class Plugged:
    """A writer and its producer on a file system of their own, whose power can be cut as often as one likes."""

    def __init__(self, lab: Lab, kind: Kind) -> None:
        self.lab, self.kind = lab, kind
        self.image = lab.base / "ext4.img"
        lab.ext4(lab.root, IMAGE_MIB)
        self.writer = self._start()
        self.recorder: Recorder = lab.recorder(pace=PACE, size=150)
        self._copies: list[tuple[int, bytes]] = []

    def _start(self) -> Writer:
        limits: dict[str, float | str] = {
            "durability": self.kind.durability,
            "segment_bytes": self.kind.segment_bytes,
            "retry_first_s": 0.05,
        }
        return self.lab.writer(limits=limits, plant=self.kind.plant)

    def restart(self) -> None:
        """The writer alone dies: what it wrote is in the kernel's hands."""
        self.writer.kill()
        self.writer = self._start()

    def cut(self) -> None:
        """Keep the image as it is at this moment."""
        acked = self.recorder.acked()
        self.writer.signal(signal.SIGSTOP)
        try:
            before, now = b"", self.image.read_bytes()
            for _ in range(50):
                if before == now:
                    break
                before, now = now, self.image.read_bytes()
            assert before == now, "the image never held still"
        finally:
            self.writer.signal(signal.SIGCONT)
        self._copies.append((acked, now))

    def end(self) -> tuple[dict[int, bytes], list[Cut]]:
        """What was recorded, and what every cut left of it."""
        self.recorder.settle()
        found = [item for item in read(self.lab.directory()) if isinstance(item, Found)]
        times = {item.record.seq: item.record.ts for item in found}
        return {item.record.seq: item.line for item in found}, [self._after(*copy, times) for copy in self._copies]

    def _after(self, acked: int, image: bytes, times: dict[int, datetime]) -> Cut:
        with _mounted(self.lab, image) as root:
            directory = root / self.lab.directory().relative_to(self.lab.root)
            items = list(read(directory)) if directory.exists() else []
            notes = verify(directory).notes if directory.exists() else ()
        records = {item.record.seq: (item.line, item.state) for item in items if isinstance(item, Found)}
        last = max(records, default=0)
        missing = [seq for seq in range(1, acked + 1) if seq not in records]
        lost_s = (times[acked] - times[max(last, 1)]).total_seconds() if acked > last else 0.0
        return Cut(self.kind.durability, acked, last, len(missing), lost_s, notes, records)


@contextmanager
def _mounted(lab: Lab, image: bytes) -> Iterator[Path]:
    """The file system as the next boot finds it: its journal is replayed by mounting it."""
    copy, at = lab.base / "copy.img", lab.base / "copy"
    copy.write_bytes(image)
    at.mkdir(exist_ok=True)
    subprocess.run([require_tool("mount"), "-o", "loop", str(copy), str(at)], check=True, timeout=START_S)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True, timeout=START_S)
        copy.unlink()


@contextmanager
def plugged(base: Path, *kinds: Kind) -> Iterator[list[Plugged]]:
    """Writers, each with its own file system, all running at once."""
    require_root()
    require_tool("mkfs.ext4")
    labs = [Lab(base / f"{number}") for number in range(len(kinds))]
    try:
        for lab in labs:
            lab.base.mkdir()
        machines = [Plugged(lab, kind) for lab, kind in zip(labs, kinds, strict=True)]
        for machine in machines:
            machine.recorder.wait_acked(100)
        yield machines
    finally:
        for lab in labs:
            lab.end()


def hold(machine: Plugged) -> list[Cut]:
    """What every power cut must leave, by durability. Gives the cuts."""
    truth, cuts = machine.end()
    for cut in cuts:
        assert cut.untrue(truth) == [], f"{cut}: no record is changed, sealed or not"
        sealed = [
            note.message for note in cut.notes if note.kind == "duplicate" or "as they were sealed" in note.message
        ]
        assert sealed == [], f"{cut}: what was never written is no damage of what was"
        told = [note for note in cut.notes if note.kind in ("gap", "lost", "missing", "end_missing")]
        assert told or not cut.records, f"{cut}: the end is missing, and that is said"
        if machine.kind.durability == "none":
            assert not cut.holes or any(note.damage for note in cut.notes), f"{cut}: a hole that nobody names"
            continue
        assert cut.holes == [], f"{cut}: a hole in the middle"
        if machine.kind.durability == "batch":
            assert cut.lost == 0, f"{cut}: acknowledged and lost"
        # half a line at the end of a segment that others follow is damage: where all is synced in order, there is none
        damage = [note.message for note in cut.notes if note.kind in ("damaged", "digest", "foreign")]
        assert damage == [], f"{cut}: a torn line in the middle"
        assert cut.lost_s <= INTERVAL_S + SLACK_S, str(cut)
    return cuts


def _cut_at_random(machines: list[Plugged], rng: random.Random, *, cuts: int, every_s: float) -> None:
    for _ in range(cuts):
        time.sleep(rng.uniform(0.3, 1.0) * every_s)
        for machine in machines:
            machine.cut()


def _cuts(base: Path, *, rounds: int, cuts: int) -> dict[Kind, list[Cut]]:
    """Cuts at random moments; after each round but the last every writer is killed and started anew."""
    rng = random.Random()
    with plugged(base, NONE, INTERVAL, INTERVAL_LONG, BATCH) as machines:
        for number in range(rounds):
            if number:
                for machine in machines:
                    machine.restart()
            _cut_at_random(machines, rng, cuts=cuts, every_s=2.0)
        return {machine.kind: hold(machine) for machine in machines}


def test_a_power_cut_costs_nothing_a_second_or_what_the_kernel_kept(tmp_path: Path, own_mounts: None) -> None:
    found = _cuts(tmp_path, rounds=2, cuts=2)
    assert found[NONE][-1].lost_s > max(cut.lost_s for kind in (INTERVAL, INTERVAL_LONG) for cut in found[kind])
    assert found[NONE][-1].lost > PACE, "a cut that loses nothing shows nothing"


@pytest.mark.nightly
def test_very_many_power_cuts(tmp_path: Path, own_mounts: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = _cuts(tmp_path, rounds=6, cuts=6)
    with capsys.disabled():
        for kind, cuts in found.items():
            worst = max(cuts, key=lambda cut: (cut.lost_s, cut.lost))
            print(f"\n{len(cuts)} cuts, segments of {kind.segment_bytes >> 10} KiB, the worst: {worst}", end="")


def test_a_writer_that_does_not_sync_or_not_what_it_leaves_is_caught(tmp_path: Path, own_mounts: None) -> None:
    unsynced, holed = Kind("batch", plant="no_sync"), Kind("interval", plant="no_retired_sync")
    with plugged(tmp_path, unsynced, holed) as machines:
        time.sleep(2.0)
        for machine in machines:
            machine.cut()
        for machine, complaint in zip(machines, ("acknowledged and lost", "a hole in the middle"), strict=True):
            with pytest.raises(AssertionError, match=complaint):
                hold(machine)
