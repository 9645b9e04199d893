"""How fast a trace is read: `python -m tests.bench.reader [--megabytes 100]`.

verify (hashes, numbers, digests, drops) and read (every record decoded) over one sealed trace, beside `cat` of the same files
into /dev/null and hashlib.sha256 over them, all with the files in the page cache; medians of 5, as shares of cat.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.recorder import Writer, end_to_end, event_of_size, lines
from tracewriter.reader import read, verify


def seconds(work: Callable[[], object]) -> float:
    """The median of five."""
    samples: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def sha256(paths: list[Path]) -> None:
    """What the digests cost at least."""
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="The reader's speed beside cat.")
    parser.add_argument("--megabytes", type=int, default=100, help="below a session's limit")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as base:
        for size in (300, 4096):
            event = event_of_size(size)
            count = arguments.megabytes * 1_000_000 // len(lines(event, "x" * 32, 1)[0])
            writer = Writer(Path(base))
            try:
                asyncio.run(end_to_end(writer, event, count, f"r{size}"))
            finally:
                writer.stop()
            (directory,) = writer.root.glob(f"*/r{size}")
            paths = sorted(directory.glob("*.jsonl"))
            volume = sum(path.stat().st_size for path in paths) / 1e6
            if verify(directory).verified != count + 2:
                raise SystemExit("the trace is not whole")
            cat = seconds(lambda p=paths: subprocess.run(["cat", *p], stdout=subprocess.DEVNULL, check=True))  # type: ignore[misc]
            for name, work in (
                ("cat", None),
                ("sha256", lambda p=paths: sha256(p)),
                ("verify", lambda d=directory: verify(d)),
                ("read", lambda d=directory: sum(1 for _ in read(d))),
            ):
                taken = seconds(work) if work is not None else cat
                print(f"{size:5} B  {name:8} {volume / taken:8.0f} MB/s   {cat / taken:5.2f} of cat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
