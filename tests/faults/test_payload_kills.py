"""The writer killed at its k-th system call while bodies come in: no record names one that is not whole, and all get there."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.faults.harness import START_S, WORKSPACE, Lab, RawClient, Writer, require_tool
from tests.tracewriter.harness import broken_references, covered, damage, parts, read_all
from tracewriter import reader
from tracewriter.config import KIB
from tracewriter.protocol import Kind, Open, decode_body, encode
from tracewriter.protocol import Refused as RefusedBody

LIFE = "00000000000000a1"
BUSY = {"segment_bytes": 20 * KIB, "seal_interval_s": 0.02, "sync_interval_s": 0.02}
RECORDS = 6  # of one life of the writer, each with a body of its own
POINTS = [
    ("rename,renameat,renameat2", 1),
    ("rename,renameat,renameat2", 2),
    *(("mkdirat,mkdir", k) for k in (1, 2, 3)),
    *(("openat", k) for k in (2, 4, 6, 8, 10, 12)),
    *(("write", k) for k in range(1, 11)),
    *(("close", k) for k in (1, 2, 3, 4, 5)),
    *(("fdatasync", k) for k in (1, 2, 3, 4)),
    *(("fstat,newfstatat", k) for k in (1, 3, 5)),
    ("unlink,unlinkat", 1),
]


def body_of(seq: int) -> bytes:
    return b"body of %d, " % seq * 1500


def id_of(seq: int) -> str:
    return f"{seq:08x}" * 4


def frames(seq: int) -> bytes:
    """A record and its body in two parts."""
    line = (
        f'{{"seq":{seq},"ts":"2026-01-01T00:00:00Z","event":"a.b.c","session":"s1",'
        f'"data":{{"text":{{"payload":"{id_of(seq)}","bytes":1,"chars":1,"head":""}}}}}}\n'
    )
    pieces = [
        encode(f.kind, channel=1, count=f.count, first=seq, body=bytes(f.body), flags=f.flags)
        for f in parts(seq, id_of(seq), body_of(seq), size=12 * KIB)
    ]
    return b"".join(pieces) + encode(Kind.EVENTS, channel=1, count=1, first=seq, body=line.encode())


def record_some(lab: Lab, conn: int, acked: int) -> int:
    """Open the session and record; the last seq that was acknowledged before the writer ended, or when all were."""
    with contextlib.suppress(OSError), RawClient(lab.socket, life=LIFE, conn=conn) as client:
        client.send(encode(Kind.OPEN, channel=1, body=Open("s1", WORKSPACE, acked=acked, last=10_000)))
        frame = client.frame()
        while frame is not None and frame.kind not in (Kind.OPENED, Kind.REFUSED):
            frame = client.frame()
        if frame is None:
            return acked
        assert frame.kind is Kind.OPENED, decode_body(frame.body, RefusedBody)
        assert frame.first > acked
        first = frame.first
        for seq in range(first, first + RECORDS):
            client.send(frames(seq))
            while acked < seq:
                frame = client.frame()
                if frame is None:
                    return acked
                assert frame.kind is Kind.ACK
                acked = max(acked, frame.first)
    return acked


def bodies_are_whole(directory: Path) -> None:
    assert broken_references(directory) == []
    for path in directory.glob("payloads/*"):
        assert path.name.endswith(".part") or path.read_bytes() == body_of(int(path.name[:8], 16))


def killed_at(lab: Lab, writer: Writer, call: str, k: int, conn: int, acked: int) -> tuple[int, bool]:
    strace = lab.inject(writer.pid, f"inject={call}:signal=KILL:when={k}", f"trace={call}")
    acked = record_some(lab, conn, acked)
    until = time.monotonic() + 0.5  # its last system calls may be those of the next seal or sync
    while not writer.gone() and time.monotonic() < until:
        time.sleep(0.01)
    killed = writer.gone()
    writer.kill()
    strace.wait(START_S)
    return acked, killed


def kill_at(lab: Lab, points: list[tuple[str, int]]) -> None:
    acked, missed = 0, []
    for conn, (call, k) in enumerate(points, 1):
        acked, killed = killed_at(lab, lab.writer(limits=BUSY), call, k, conn, acked)
        if not killed:
            missed.append((call, k))
        if lab.directory().exists():
            bodies_are_whole(lab.directory())
            found, _ = read_all(lab.directory())
            assert covered(found) == list(range(1, len(found) + 1))
            assert len(found) >= acked
    lab.writer()
    acked = record_some(lab, len(points) + 1, acked)
    assert acked >= RECORDS
    bodies_are_whole(lab.directory())
    assert damage(reader.verify(lab.directory())) == []
    assert len(missed) <= len(points) * 0.4, f"not reached: {missed}"


def test_c2_killed_at_its_kth_system_call_no_record_names_a_body_that_is_not_whole(lab: Lab) -> None:
    require_tool("strace")
    kill_at(lab, POINTS)


@pytest.mark.nightly
def test_c2_killed_at_many_more_system_calls_with_bodies(lab: Lab) -> None:
    require_tool("strace")
    calls = ("write", "openat", "fdatasync", "close", "fstat,newfstatat", "rename,renameat,renameat2", "sendto")
    kill_at(lab, [(call, k) for call in calls for k in range(1, 21)])
