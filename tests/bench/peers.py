"""The recorder beside the loggers people use: `python -m tests.bench.peers [--runs 5] [--python PYTHON] [--node-modules DIR]`.

Every contender records the same events (a tool's result with about 300 B or 4 KB of text) as JSON lines into files on the
same disk, until all of it is written; the ratio is our events per second over theirs, the median of the runs. Peers that
are not installed are named and left out: `pip install loguru structlog orjson opentelemetry-sdk`, `npm install pino`,
`apt-get install s6`. Ours does more than any of them (numbers, redaction, seals, acknowledgement, a process of its own).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.peer_loggers import NOT_INSTALLED, PEERS
from tests.bench.recorder import SIZES, Writer, batches, end_to_end, event_of_size, lines, through_writer, touch_memory

PINO = """
const pino = require('pino'); const [path, count, text] = [process.argv[2], +process.argv[3], process.argv[4]];
const transport = pino.transport({target: 'pino/file', options: {destination: path}});
const alive = setInterval(() => {}, 1000);
const logger = pino(transport); const start = process.hrtime.bigint();
let n = 0;
function some() {
  for (let k = 0; k < 1000 && n < count; k++, n++)
    logger.info({seq: n, event: 'tool.call.finished', data: {id: 'call_1', name: 'read_file', output: text, is_error: false}});
  if (n < count) setImmediate(some); else transport.end();
}
transport.on('close', () => { clearInterval(alive); console.log(Number(process.hrtime.bigint() - start) / 1e9); });
some();
"""


def peer(name: str, python: str, home: Path, size: int, count: int) -> float | None:
    """Events per second of one Python peer in a process of its own; None when it is not installed."""
    program = str(Path(__file__).with_name("peer_loggers.py"))
    command = [python, program, name, str(size), str(count), str(home / f"peer-{time.monotonic_ns()}")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == NOT_INSTALLED:
        return None
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-500:]}")
    return float(done.stdout)


def pino(modules: Path | None, home: Path, text: str, count: int) -> float | None:
    """Events per second of pino with its worker transport."""
    if modules is None or shutil.which("node") is None:
        return None
    command = ["node", "-e", PINO, "-", str(home / "pino.log"), str(count), text]
    env = {**os.environ, "NODE_PATH": str(modules)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, check=False)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"pino failed: {done.stderr[-500:]}")
    return count / float(done.stdout)


def s6_log(home: Path, work: list[tuple[int, int, bytes]]) -> float | None:
    """Seconds that s6-log takes for the same bytes from a pipe."""
    if shutil.which("s6-log") is None:
        return None
    started = time.perf_counter()
    process = subprocess.Popen(["s6-log", "n1000", "s8388608", str(home / "s6")], stdin=subprocess.PIPE)
    assert process.stdin is not None
    for _, _, body in work:
        process.stdin.write(body)
    process.stdin.close()
    process.wait()
    return time.perf_counter() - started


def ours(writer: Writer, size: int, count: int, session: str) -> float:
    """Events per second, end to end."""
    elapsed, _ = asyncio.run(end_to_end(writer, event_of_size(size), count, session))
    return float(count / elapsed)


def run(size: int, arguments: argparse.Namespace, directory: Path) -> dict[str, list[float]]:
    """Ratios for one event size: ours over theirs."""
    event = event_of_size(size)
    count = arguments.megabytes * 1_000_000 // len(lines(event, "x" * 32, 1)[0])
    ratios: dict[str, list[float]] = {}
    for number in range(arguments.runs):
        home = directory / f"{size}-{number}"
        home.mkdir()
        writer = Writer(home)
        try:
            for at, (name, (_, module, share)) in enumerate(PEERS.items()):
                theirs = peer(name, arguments.python, home, size, max(1000, count // (4 * share)))
                if theirs is None:
                    print(f"left out: {name} ({module} is not installed for {arguments.python})", file=sys.stderr)
                    continue
                ratios.setdefault(name, []).append(ours(writer, size, count, f"p{number}-{at}") / theirs)
            theirs = pino(arguments.node_modules, home, event.output, count // 2)
            if theirs is not None:
                ratios.setdefault("pino, worker", []).append(ours(writer, size, count, f"pino{number}") / theirs)
            work = batches(lines(event, "x" * 32, count))
            taken = s6_log(home, work[1:])
            if taken is not None:
                _, through = through_writer(writer, 1, work, [f"s6-{number}"])
                ratios.setdefault("s6-log (writer alone)", []).append(taken / through)
        finally:
            writer.stop()
        shutil.rmtree(home)
    return ratios


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="The recorder beside other loggers, as ratios in one run.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the Python peers")
    parser.add_argument("--node-modules", type=Path, default=None, help="a node_modules directory that has pino")
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        touch_memory(Path(directory), arguments.megabytes * 20)
        table = {name: run(size, arguments, Path(directory)) for name, size in SIZES.items()}
    print(f"ours over theirs, events per second, medians of {arguments.runs} runs, load {os.getloadavg()[0]:.1f}")
    for name in table["300 B"]:
        cells = [f"{size}: {statistics.median(values[name]):8.1f}x" for size, values in table.items() if name in values]
        print(f"{name:28}" + "   ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
