"""Group A of the faults: the disk is full, slow, broken, limited or gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.harness import START_S, WORKSPACE, Lab, Recorder, check, filled, require_root, require_tool, wait_for
from tracewriter.config import KIB
from tracewriter.reader import list_sessions, verify

# Retries come quickly, so that a test need not wait for the usual backoff of up to 30 s.
EAGER = {"retry_first_s": 0.05, "retry_max_s": 0.2}


def _emit_more(recorder: Recorder, count: int) -> None:
    recorder.wait_emitted(recorder.latest().sessions["s1"].emitted + count)


def test_no_fault_records_all_and_every_figure_agrees(lab: Lab) -> None:
    lab.writer()
    recorder = lab.recorder(count=2000, pace=5000)
    recorder.wait_emitted(2001)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.records, result.dropped, result.verdict.notes) == (2002, 0, ())


@pytest.mark.parametrize("kind", ["a1_tmpfs", "a2_ext4"])
def test_a1_a2_full_disk_loses_nothing_acknowledged_and_recording_resumes_alone(
    lab: Lab, own_mounts: None, kind: str
) -> None:
    if kind == "a1_tmpfs":
        lab.mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=lab.root)
    else:
        lab.ext4(lab.root, 4)
    writer = lab.writer()
    recorder = lab.recorder(pace=2000, size=300)
    recorder.wait_acked(300)
    with filled(lab.root, leave=5000):
        recorder.wait_reason("ENOSPC")
        assert (writer.status().state, writer.status().reason) == ("degraded", "ENOSPC")
        before = len(lab.segments())
        _emit_more(recorder, 1500)
        assert len(lab.segments()) <= before + 1
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_a3_full_then_freed_accounts_for_every_event_with_a_small_buffer(lab: Lab, own_mounts: None) -> None:
    lab.mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=lab.root)
    lab.writer(limits=EAGER)
    recorder = lab.recorder(pace=3000, size=300, buffer_bytes=150_000)
    recorder.wait_acked(200)
    for _ in range(2):
        with filled(lab.root, leave=3000):
            recorder.wait_reason("ENOSPC")
            before = len(lab.segments())
            _emit_more(recorder, 2500)
            assert len(lab.segments()) <= before + 1
        recorder.wait_acked(recorder.latest().sessions["s1"].emitted)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped > 1000
    assert {note.kind for note in result.verdict.notes} == {"dropped"}


def test_a5_file_size_limit_rotates_early_and_says_so(lab: Lab) -> None:
    wrap = [require_tool("prlimit"), "--fsize=50000"]
    writer = lab.writer(wrap=wrap)
    recorder = lab.recorder(pace=3000, size=300)
    recorder.wait_acked(3000, timeout_s=10)
    assert "EFBIG" in writer.status().sessions[0].reason
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped == 0
    assert all(path.stat().st_size <= 50_000 for path in lab.segments())
    assert len(lab.segments()) >= 3000 * 400 // 50_000


@pytest.mark.parametrize("error", ["EDQUOT", "EIO"])
def test_a6_a7_a_write_error_on_a_running_writer_degrades_it_until_it_ends(lab: Lab, error: str) -> None:
    writer = lab.writer(limits=EAGER)
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(300)
    strace = lab.inject(writer.pid, f"inject=write:error={error}", "trace=write", paths=lab.data_files())
    recorder.wait_reason(error)
    _emit_more(recorder, 500)
    before = len(lab.segments())
    assert before <= 2
    lab.detach(strace)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_a7_one_failed_write_in_the_segment_costs_nothing(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(100)
    lab.inject(writer.pid, "inject=write:error=EIO:when=5", "trace=write", paths=lab.segments())
    recorder.wait_acked(1500)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.dropped, result.segments) == (0, 2)


def test_a8_short_writes_are_completed_once(lab: Lab) -> None:
    shim = lab.base / "short_write.so"
    source = Path(__file__).parent / "short_write.c"
    command = [require_tool("gcc"), "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=START_S)
    lab.writer(env={"LD_PRELOAD": str(shim)})
    recorder = lab.recorder(pace=3000)
    recorder.wait_acked(3000)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.dropped, result.segments) == (0, 1)


def test_a9_interrupted_writes_show_nowhere(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=1000)
    recorder.wait_acked(100)
    lab.inject(writer.pid, "inject=write:error=EINTR:when=2..4", "trace=write", paths=lab.segments())
    recorder.wait_acked(800)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.segments, result.verdict.notes) == (1, ())


def test_a11_a_manifest_that_cannot_be_replaced_is_no_problem(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(50)
    names = "rename,renameat,renameat2"
    lab.inject(writer.pid, f"inject={names}:error=ENOSPC", f"trace={names}")
    recorder.ask("flush 2")
    report = recorder.settle()
    assert not (lab.directory() / "manifest.json").exists()
    result = check(lab.directory(), report.sessions["s1"])
    (entry,) = list_sessions(lab.root)
    assert (entry.session, entry.workspace, entry.records) == ("s1", WORKSPACE, result.last)


def test_a12_a_file_system_gone_read_only_is_retried_once_a_minute_and_resumes(lab: Lab, own_mounts: None) -> None:
    lab.ext4(lab.root, 8)
    writer = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(200)
    subprocess.run(["mount", "-o", "remount,abort", str(lab.root)], check=False, timeout=START_S)
    recorder.wait_reason("EROFS", "EIO")
    recorder.wait_reason("EROFS", timeout_s=10)
    log = lab.base / "tries"
    strace = subprocess.Popen(
        [
            require_tool("strace"),
            "-f",
            "-e",
            "trace=write,openat",
            "-e",
            "status=failed",
            "-o",
            str(log),
            "-p",
            str(writer.pid),
        ],
        stderr=subprocess.DEVNULL,
    )
    _emit_more(recorder, 1000)
    strace.terminate()
    strace.wait(START_S)
    assert log.read_text().count("EROFS") <= 1
    assert writer.status().reason == "EROFS"
    assert not verify(lab.directory()).damaged
    writer.kill()
    # An aborted journal does not come back by remounting rw: as after a repair, the file system is mounted anew.
    subprocess.run(["umount", str(lab.root)], check=True, timeout=START_S)
    subprocess.run(
        [require_tool("e2fsck"), "-fy", str(lab.base / "ext4.img")],
        check=False,
        timeout=START_S,
        stdout=subprocess.DEVNULL,
    )
    lab.mount("-o", "loop", str(lab.base / "ext4.img"), at=lab.root)
    lab.writer()
    check(lab.directory(), recorder.settle().sessions["s1"], may_lose=10**6, allow=("gap", "lost"))


def test_a12_read_only_and_back_in_place_resumes_alone(lab: Lab) -> None:
    writer = lab.writer(limits={**EAGER, "retry_read_only_s": 0.5})
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(200)
    strace = lab.inject(writer.pid, "inject=write:error=EROFS", "trace=write", paths=lab.data_files())
    recorder.wait_reason("EROFS")
    _emit_more(recorder, 300)
    lab.detach(strace)
    assert check(lab.directory(), recorder.settle().sessions["s1"]).dropped == 0


def test_a16_a_slow_disk_fills_the_buffer_then_drops_are_counted_and_the_run_is_not_slowed(lab: Lab) -> None:
    writer = lab.writer()
    recorder = lab.recorder(pace=2000, size=300, buffer_bytes=200_000)
    recorder.wait_acked(100)
    strace = lab.inject(writer.pid, "inject=write:delay_enter=300000", "trace=write", paths=lab.segments())
    started, before = time.monotonic(), recorder.latest().sessions["s1"].emitted
    wait_for(lambda: recorder.latest().sessions["s1"].dropped > 100, "drops")
    emitted = recorder.latest().sessions["s1"].emitted - before
    assert emitted >= 0.5 * 2000 * (time.monotonic() - started)
    lab.detach(strace)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert result.dropped > 100


def test_a17_a_segment_that_cannot_be_read_is_named_and_the_next_is_read(lab: Lab) -> None:
    lab.writer(limits={"segment_bytes": 64 * KIB})
    recorder = lab.recorder(count=1500, pace=5000)
    recorder.wait_emitted(1501)
    recorder.settle()
    first, *others = lab.segments()
    program = (
        "import sys; from pathlib import Path; from tracewriter.reader import verify\n"
        f"v = verify(Path({str(lab.directory())!r}))\n"
        "print(v.records, *(n.message for n in v.notes if n.damage), sep='\\n'); sys.exit(5 if v.damaged else 0)"
    )
    command = [require_tool("strace"), "-D", "-f", "-o", "/dev/null", "-P", str(first), "-e", "trace=read,pread64"]
    command += ["-e", "inject=read,pread64:error=EIO", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, timeout=START_S, text=True, check=False)
    records, *notes = done.stdout.splitlines()
    assert (done.returncode, int(records) > 1000, len(others) > 2) == (5, True, True), done
    assert notes[0] == "segment 1 cannot be read: EIO; going on with the next"


def test_a17_what_cannot_be_read_is_not_taken_for_empty_by_the_next_life(lab: Lab) -> None:
    """Going on from a number that is on disk already would make duplicates: the session waits until it can be read."""
    first = lab.writer()
    before = lab.recorder(count=200, pace=2000)
    before.wait_emitted(201)
    before.settle()
    last = verify(lab.directory()).last
    assert first.stop() == 0
    second = lab.writer()
    strace = lab.inject(second.pid, "inject=read,pread64:error=EIO", "trace=read,pread64", paths=lab.segments())
    after = lab.recorder(pace=200, resumed=True, first=100_001)
    after.wait_reason("EIO")
    assert len(lab.segments()) == 1
    lab.detach(strace)
    result = check(lab.directory(), after.settle_later(last).sessions["s1"], started_after=last)
    assert (result.dropped, result.segments) == (0, 2)


def test_a18_a_lazy_unmount_is_noticed_within_seconds_and_recording_goes_on_below(lab: Lab, own_mounts: None) -> None:
    require_root()
    lab.root.mkdir()
    lab.mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", at=lab.root)
    writer = lab.writer()
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(300)
    kept = os.open(lab.root, os.O_RDONLY)  # what was mounted stays readable for this test
    subprocess.run(["umount", "-l", str(lab.root)], check=True, timeout=START_S)
    gone = recorder.acked()
    took = wait_for(lambda: lab.directory().exists() and bool(lab.segments()), "a segment in the directory below", 10)
    assert took < 10
    assert "traces" in writer.log
    report = recorder.settle().sessions["s1"]
    first = check(lab.directory(), report, may_lose=report.acked, allow=("gap",), closed=False)
    assert first.closed
    below = check(
        Path(f"/proc/self/fd/{kept}") / lab.directory().relative_to(lab.root), report, closed=False, may_lose=10**6
    )
    os.close(kept)
    # What was acknowledged into the unmounted file system is there; what is there and below is all there is.
    assert below.last >= gone
    assert below.last + 1 >= first.first
