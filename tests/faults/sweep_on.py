"""A sweeper that never rests: sweep after sweep until its standard input is closed; what it moved and skipped is counted on
stdout. With "unlocked" it takes no lock and does not look again: the bug that the race is there to find.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from tracewriter.retention import Move, Policy
from tracewriter.trash import Deed, Traces


class Unlocked(Traces):
    """Moves without the session's lock what the scan found old."""

    def _move(self, move: Move) -> Deed:
        workspace_fd = os.open(move.candidate.workspace, os.O_RDONLY, dir_fd=self._fd)
        trash_fd = self._trash_fd()
        try:
            name = f"{int(time.time() * 1000)}-{move.candidate.workspace}-{move.candidate.session}"
            os.rename(move.candidate.session, name, src_dir_fd=workspace_fd, dst_dir_fd=trash_fd)
        finally:
            os.close(trash_fd)
            os.close(workspace_fd)
        return self._log("moved", move.candidate.session, move.candidate.workspace, 0, move.reason, name)


def main(root: Path, plant: str = "") -> None:
    moved = skipped = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        with (Unlocked if plant else Traces)(root) as traces:
            report = traces.enforce(Policy(max_bytes=10**12), time.time(), clock_trusted=True)
        moved += len(report.deeds)
        skipped += len(report.skipped)
    print(moved, skipped)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
