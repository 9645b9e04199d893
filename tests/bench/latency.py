"""What record() costs the run that calls it: `python -m tests.bench.latency [--events 100000]`.

For events of 300 B, 4 KB and 16 KB, paced, with the writer healthy, stopped (SIGSTOP), dead (SIGKILL) and on a full disk (a
tmpfs of 1 MiB, where one can be mounted): p50, p99, p99.9 and the longest call in microseconds, and what became of the events.
The promise is p99.9 under 1 ms on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.recorder import Writer, event_of_size
from tracewriter.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = {"300 B": 300, "4 KB": 4096, "16 KB": 16384}
CONDITIONS = ("healthy", "stopped", "dead", "full")
SESSIONS = 24
PER_TURN = 10  # events recorded in a turn of the loop, then a pause: bursts, as agents make them
PAUSE_S = 0.001


async def measure(writer: Writer, size: int, condition: str, events: int) -> tuple[list[int], str]:
    """Nanoseconds of each call, and the sender's account at the end."""
    event = event_of_size(size)
    sender = Sender(writer.socket)
    spent: list[int] = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        # so many that no session reaches its 128 MiB
        opened = [
            sender.open(f"l{size}{condition}{number}", "/bench", agentd="bench", mode="plan", capture="content")
            for number in range(SESSIONS)
        ]
        for trace in opened:
            await trace.flush(2)
        pid = writer.process.pid
        if condition == "stopped":
            os.kill(pid, signal.SIGSTOP)
        elif condition == "dead":
            os.kill(pid, signal.SIGKILL)
        clock = time.perf_counter_ns
        for turn in range(events // PER_TURN):
            trace = opened[turn % SESSIONS]
            for _ in range(PER_TURN):
                before = clock()
                trace.record(event, run="f" * 32, op="0" * 16)
                spent.append(clock() - before)
            await asyncio.sleep(PAUSE_S)
        if condition == "stopped":
            os.kill(pid, signal.SIGCONT)
        states = [await trace.flush(10 if condition in ("healthy", "stopped") else 0.01) for trace in opened]
        task.cancel()
    emitted, recorded, dropped = (
        sum(figures) for figures in zip(*((s.emitted, s.recorded, s.dropped) for s in states), strict=True)
    )
    return spent, f"{recorded:,} recorded, {dropped:,} dropped, {emitted - recorded - dropped:,} waiting"


@contextmanager
def directory(condition: str, base: Path) -> Iterator[Path | None]:
    """Where the writer of a condition lives; None where a full disk cannot be had."""
    path = base / condition
    path.mkdir(exist_ok=True)
    if condition != "full":
        yield path
        return
    (path / "traces").mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path / "traces")]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path / "traces")], check=False)


def row(base: Path, name: str, size: int, condition: str, events: int) -> str:
    """One line of the table."""
    with directory(condition, base) as path:
        if path is None:
            return f"{name:6} {condition:8} left out: no tmpfs can be mounted"
        writer = Writer(path)
        try:
            spent, account = asyncio.run(measure(writer, size, condition, events))
        finally:
            writer.process.kill()
            writer.process.wait()
    spent.sort()
    p50, p99, p999 = (spent[int(len(spent) * share)] / 1000 for share in (0.5, 0.99, 0.999))
    return f"{name:6} {condition:8} {p50:8.1f} {p99:8.1f} {p999:8.1f} {spent[-1] / 1000:10.1f}   {account}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="record() as its caller feels it.")
    parser.add_argument("--events", type=int, default=100_000, help="per line of the table")
    arguments = parser.parse_args()
    print(f"{'size':6} {'writer':8} {'p50 us':>8} {'p99':>8} {'p99.9':>8} {'max':>10}   load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as base:
        for name, size in SIZES.items():
            for condition in CONDITIONS:
                print(row(Path(base), name, size, condition, arguments.events), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
