"""How fast redaction is, as ratios beside one combined `re` pass in the same run: `python -m tests.bench.redaction`.

All times are CPU time. Clean text, text with a secret in every line, this project's own sources as tool output, and texts made to
be slow: the worst of these is what counts. Blocks are 64 KiB of whole lines, as the writer redacts them; hostile texts one line
of 1 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tracewriter.hostile_texts import hostile
from tracewriter.redact import CannotRedact, Redactor
from tracewriter.redact_names import NAMES
from tracewriter.redact_rules import SECRETS

BLOCK = 64 * 1024
MIB = 1024 * 1024
HEAD = (
    '{{"seq":{},"ts":"2026-11-29T20:45:01.123456Z","event":"tool.call.finished","session":"{}","run":"{}","data":{}}}\n'
)
PROJECT = Path(__file__).parents[2]
TOKEN = "Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1AoEiU"


def line(seq: int, text: str) -> bytes:
    data = json.dumps(
        {"id": "call_1", "name": "read_file", "output": text, "is_error": False},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return HEAD.format(seq, "0" * 32, "f" * 32, data).encode()


def blocks(lines: Iterator[bytes], size: int = 4 * MIB) -> list[bytes]:
    out: list[bytes] = []
    block = b""
    for each in lines:
        block += each
        if len(block) >= BLOCK:
            out.append(block)
            block = b""
            size -= BLOCK
            if size <= 0:
                break
    return out or [block]


def clean(length: int) -> Iterator[bytes]:
    text = "def total(values):\n    return sum(value for value in values if value is not None)\n\n"
    return (line(seq, (text * (length // len(text) + 1))[:length]) for seq in range(1, 10**9))


def dense() -> Iterator[bytes]:
    return (line(seq, f"and so on, export OPENAI_API_KEY=sk-proj-{TOKEN}{seq} and then") for seq in range(1, 10**9))


def sources() -> Iterator[bytes]:
    files = [
        path for part in ("agentd", "tracewriter", "client", "tests") for path in sorted((PROJECT / part).rglob("*.py"))
    ]
    texts = [path.read_text() for path in files]
    return (line(at, text[at : at + 6000]) for text in texts for at in range(0, len(text), 6000))


def mb_s(work: list[bytes], call: Callable[[bytes], object], runs: int = 5) -> float:
    best = float("inf")
    for _ in range(runs):
        started = time.process_time()
        for block in work:
            call(block)
        best = min(best, time.process_time() - started)
    return sum(map(len, work)) / best / 1e6


def combined() -> Callable[[bytes], object]:
    """All patterns as one, as one would write it without a search for anchors."""
    parts = (
        re.sub(rb"\(\?P([<=])", rb"(?P\g<1>r%d" % at, rule.pattern.pattern)
        for at, rule in enumerate((*SECRETS, *NAMES))
    )
    return re.compile(b"|".join(b"(?:%b)" % part for part in parts)).findall


def write_speed(work: list[bytes]) -> float:
    with tempfile.TemporaryFile(dir=PROJECT) as file:
        return mb_s(work, lambda block: os.write(file.fileno(), block), 3)


def worst_of_hostile(redactor: Redactor, shown: int) -> None:
    times: list[tuple[float, str, str]] = []
    for name, text in hostile():
        block = line(1, (text * (MIB // len(text.encode()) + 1))[:MIB])
        block = (
            block
            if len(block) <= MIB + 300
            else line(1, (text * (MIB // len(text.encode()) + 1))[: MIB * MIB // len(block)])
        )
        best = float("inf")
        for _ in range(2):
            started = time.process_time()
            result = "redacted"
            try:
                result = "untouched" if redactor.redact(block) is block else result
            except CannotRedact:
                result = "refused"
            best = min(best, time.process_time() - started)
        times.append((best * 1000, name, result))
    times.sort(reverse=True)
    print(f"hostile, one line of 1 MiB, {len(times)} texts: the worst {times[0][0]:.0f} ms")
    for ms, name, result in times[:shown]:
        print(f"  {ms:6.1f} ms  {result:9}  {name}")


def report(shown: int) -> None:
    redactor, knowing = Redactor(), Redactor((TOKEN, "hunter2hunter2", "sk-ant-" + TOKEN))
    search = combined()
    print("load:", *(f"{value:.1f}" for value in os.getloadavg()))
    for name, work in (
        ("clean 300 B", blocks(clean(60))),
        ("clean 4 KB", blocks(clean(3900))),
        ("own sources", blocks(sources())),
        ("dense", blocks(dense())),
    ):
        plain = mb_s([work[0][: BLOCK // 4]], search, 1)
        ours, exact = mb_s(work, redactor.redact), mb_s(work, knowing.redact)
        print(
            f"{name:12} {ours:7.0f} MB/s, with three exact values {exact:6.0f}; {ours / plain:6.0f}x one combined re"
            f" ({plain:.1f} MB/s); {ours / write_speed(work):.2f} of write(2)"
        )
    worst_of_hostile(Redactor(("aaaaaa", "aaaaab", "123456", "hunter2")), shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shown", type=int, default=8, help="how many of the slowest hostile texts to print")
    report(parser.parse_args().shown)


if __name__ == "__main__":
    main()
