"""fdatasync fails in a real writer: with batch nothing is acknowledged before a good one, with interval it is said."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.harness import START_S, Lab, check, require_tool, wait_for
from tracewriter.scan import parse_header

EAGER: dict[str, float | str] = {"retry_first_s": 0.05, "retry_max_s": 0.2}
SYNCS = "trace=fdatasync"


def _why(path: Path) -> str:
    header = parse_header(path.read_bytes().partition(b"\n")[0])
    return header.why if header is not None else ""


def test_batch_one_failed_fdatasync_costs_one_segment_and_nothing_else(lab: Lab) -> None:
    writer = lab.writer(limits={**EAGER, "durability": "batch"})
    recorder = lab.recorder(pace=300)
    recorder.wait_acked(100)
    lab.inject(writer.pid, "inject=fdatasync:error=EIO:when=5", SYNCS, paths=[lab.segments()[0]])
    wait_for(lambda: len(lab.segments()) == 2, "the next segment")
    recorder.wait_acked(recorder.latest().sessions["s1"].emitted)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.dropped, result.segments) == (0, 2)
    assert _why(lab.segments()[1]) == "error:EIO"


def test_batch_while_every_fdatasync_fails_nothing_is_acknowledged_and_no_files_pile_up(lab: Lab) -> None:
    writer = lab.writer(limits={**EAGER, "durability": "batch"})
    recorder = lab.recorder(pace=300)
    recorder.wait_acked(100)
    strace = lab.inject(writer.pid, "inject=fdatasync:error=EIO", SYNCS, paths=lab.data_files())
    recorder.wait_reason("EIO")
    assert (writer.status().state, writer.status().reason) == ("degraded", "EIO")
    acked = recorder.acked()
    emitted = recorder.latest().sessions["s1"].emitted
    recorder.wait_emitted(emitted + 300)
    assert recorder.acked() == acked
    assert len(lab.segments()) <= 2
    lab.detach(strace)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_batch_a_writer_killed_while_fdatasync_fails_loses_nothing_and_doubles_nothing(lab: Lab) -> None:
    writer = lab.writer(limits={**EAGER, "durability": "batch"})
    recorder = lab.recorder(pace=300)
    recorder.wait_acked(50)
    for _ in range(3):
        strace = lab.inject(writer.pid, "inject=fdatasync:error=EIO", SYNCS, paths=lab.data_files())
        recorder.wait_reason("EIO")
        writer.kill()
        strace.wait(START_S)
        writer = lab.writer(limits={**EAGER, "durability": "batch"})
        recorder.wait_acked(recorder.latest().sessions["s1"].emitted)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_batch_acknowledges_after_fdatasync_has_returned(lab: Lab) -> None:
    """By the order of the system calls: between the write of a block and the answer there is a good fdatasync of that file."""
    writer = lab.writer(limits={**EAGER, "durability": "batch"})
    recorder = lab.recorder(pace=200)
    recorder.wait_acked(20)
    log = lab.base / "calls"
    command = [require_tool("strace"), "-f", "-y", "-s", "16", "-e", "trace=write,fdatasync,sendto,sendmsg"]
    strace = subprocess.Popen([*command, "-o", str(log), "-p", str(writer.pid)], stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and log.read_text().count("fdatasync(") > 100, "calls")
    strace.terminate()
    strace.wait(START_S)
    owed = answered = 0
    for call in log.read_text().splitlines():
        if re.search(r"write\(\d+<[^>]*\.jsonl>", call):
            owed += 1
        elif re.search(r"fdatasync\(\d+<[^>]*\.jsonl>\) += 0", call):
            owed = 0
        elif "socket:" in call and ("sendto(" in call or "sendmsg(" in call):
            assert owed == 0, call
            answered += 1
    assert answered > 20
    recorder.settle()


@pytest.mark.parametrize("rotation", [False, True])
def test_interval_a_failed_fdatasync_ends_the_segment_and_is_in_the_log_and_the_status(
    lab: Lab, rotation: bool
) -> None:
    """While it is written, and when it is done."""
    limits: dict[str, float | str] = {"segment_bytes": 40_000, "sync_interval_s": 60.0} if rotation else {}
    writer = lab.writer(limits={**EAGER, **limits, "durability": "interval"})
    recorder = lab.recorder(pace=300)
    recorder.wait_acked(50)
    lab.inject(writer.pid, "inject=fdatasync:error=EIO:when=1", SYNCS, paths=[lab.segments()[0]])
    recorder.wait_acked(500)
    wait_for(lambda: writer.status().sessions[0].reason == "sync:EIO", "the status to say it")
    assert (writer.status().state, writer.status().sessions[0].state) == ("ok", "ok")
    time.sleep(1.2)  # and once more is synced
    assert writer.log.count("fdatasync failed (EIO)") == 1
    assert _why(lab.segments()[1]) == ("size" if rotation else "error:EIO")
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped == 0
    assert rotation or result.segments == 2


def test_interval_a_disk_that_never_syncs_does_not_make_a_segment_a_second(lab: Lab) -> None:
    writer = lab.writer(limits={**EAGER, "durability": "interval", "sync_interval_s": 0.1})
    recorder = lab.recorder(pace=300)
    recorder.wait_acked(50)
    strace = lab.inject(writer.pid, "inject=fdatasync:error=EIO", SYNCS, paths=lab.data_files())
    recorder.wait_acked(900)
    assert len(lab.segments()) <= 2
    lab.detach(strace)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_interval_a_fdatasync_that_fails_when_a_recording_is_closed_is_in_the_log(lab: Lab) -> None:
    writer = lab.writer(limits={**EAGER, "durability": "interval", "sync_interval_s": 60.0})
    recorder = lab.recorder(pace=300)
    recorder.wait_acked(50)
    lab.inject(writer.pid, "inject=fdatasync:error=EIO", SYNCS, paths=lab.segments())
    report = recorder.settle()
    wait_for(lambda: "fdatasync failed (EIO)" in writer.log, "the log to say it")
    check(lab.directory(), report.sessions["s1"])
