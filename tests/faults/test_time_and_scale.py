"""Group D of the faults as far as it is not about retention, the limits of a session, and everything at once."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.harness import Lab, Recorder, check, filled, require_file, wait_for
from tracewriter.config import KIB, MIB
from tracewriter.events import RunExecuteFinished, TraceClockObserved, TraceLimitObserved, event_of, name_of_class
from tracewriter.findings import Found
from tracewriter.reader import list_sessions, read, verify

LIMITED = {"session_bytes": 600_000.0, "session_reserve": 100_000.0}


def _events(directory: Path, cls: type) -> list[int]:
    """The seqs of the records of this kind."""
    found = [item for item in read(directory) if isinstance(item, Found)]
    return [item.record.seq for item in found if item.record.event == name_of_class(cls)]


# --- time


def test_d1_a_wall_clock_that_jumps_years_changes_no_order_and_shows_in_the_records(lab: Lab) -> None:
    library = require_file(
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"
    )
    clock = lab.base / "clock"
    clock.write_text("+0\n")
    env = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    writer = lab.writer(env=env)
    recorder = lab.recorder(env=env, pace=500)
    for shift in ("+0", "+1200d", "-2000d", "+0"):
        (lab.base / "next").write_text(f"{shift}\n")
        (lab.base / "next").replace(clock)
        recorder.wait_acked(recorder.acked() + 150)
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.dropped, result.verdict.notes) == (0, ())
    times = [item.record.ts for item in read(lab.directory()) if isinstance(item, Found)]
    assert (max(times) - min(times)).days > 3000
    assert sum(abs((later - earlier).days) > 1000 for earlier, later in pairwise(times)) == 3
    found = (event_of(item.record.event, item.record.data) for item in read(lab.directory()) if isinstance(item, Found))
    jumps = [event.jump_s / 86400 for event in found if isinstance(event, TraceClockObserved)]
    assert [round(days) for days in jumps] == [1200, -3200, 2000]
    assert writer.stop() == 0


# --- the limits of a session


def _runaway(lab: Lab) -> Recorder:
    recorder = lab.recorder(pace=5000, size=300)
    wait_for(lambda: recorder.latest().sessions["s1"].dropped > 2000, "the limit")
    return recorder


def test_d9_a_runaway_session_stops_at_its_limit_keeps_its_run_ends_and_disturbs_no_other(lab: Lab) -> None:
    writer = lab.writer(limits=LIMITED)
    other = lab.recorder(sessions=("s2",), pace=300)
    recorder = _runaway(lab)
    assert [s.state for s in writer.status().sessions if s.session == "s1"] == ["limited"]
    recorder.ask("ends 3")
    recorder.wait_emitted(recorder.latest().sessions["s1"].emitted + 1000)
    recorder.ask("ends 2")
    result = check(lab.directory(), recorder.settle_some().sessions["s1"])
    assert len(_events(lab.directory(), RunExecuteFinished)) == 5
    assert len(_events(lab.directory(), TraceLimitObserved)) == 1
    assert result.dropped > 3000
    assert result.verdict.bytes <= LIMITED["session_bytes"] + 64 * KIB
    assert check(lab.directory("s2"), other.settle().sessions["s2"]).dropped == 0


def test_d9_after_a_restart_of_the_writer_a_limited_session_still_keeps_its_run_ends(lab: Lab) -> None:
    writer = lab.writer(limits=LIMITED)
    recorder = _runaway(lab)
    recorder.ask("pace 100")
    writer.kill()
    lab.writer(limits=LIMITED)
    recorder.ask("ends 3")
    result = check(lab.directory(), recorder.settle_some().sessions["s1"])
    assert len(_events(lab.directory(), RunExecuteFinished)) == 3
    assert result.verdict.bytes <= LIMITED["session_bytes"] + 64 * KIB


def test_d9_when_even_the_reserve_is_used_up_recording_ends_and_nobody_spins(lab: Lab) -> None:
    writer = lab.writer(limits=LIMITED)
    recorder = _runaway(lab)
    recorder.ask("pace 50")
    recorder.ask("ends 1500")
    time.sleep(0.5)
    before = writer.cpu_s()
    time.sleep(1.0)
    assert writer.cpu_s() - before < 0.5, "the writer spins"
    report = recorder.close(1.0)
    assert report.raised == 0
    verdict = verify(lab.directory())
    assert not verdict.damaged
    assert verdict.bytes <= LIMITED["session_bytes"] + 64 * KIB


def test_d10_d11_a_list_of_big_sessions_reads_their_edges_and_verify_keeps_its_memory(lab: Lab) -> None:
    lab.writer()
    recorder = lab.recorder(pace=0, size=3000)
    for _ in range(6):
        recorder.ask("burst 2000")
        recorder.wait_acked(recorder.latest().sessions["s1"].emitted)
    report = recorder.settle()
    before = _own_rss_kib()
    check(lab.directory(), report.sessions["s1"])
    (entry,) = list_sessions(lab.root)
    assert entry.bytes > 30 * MIB
    assert entry.records == 12_002
    assert _own_rss_kib() - before < 24 * KIB


def _own_rss_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


# --- everything at once


def _chaos(lab: Lab, seconds: float, seed: int) -> None:
    lab.mount("-t", "tmpfs", "-o", f"size={int(3 * seconds)}m", "tmpfs", at=lab.root)  # room for all of it
    rng = random.Random(seed)
    limits = {"retry_first_s": 0.05, "retry_max_s": 0.3, "segment_bytes": 256.0 * KIB, "seal_interval_s": 0.1}
    writer = lab.writer(limits=limits)
    sessions = ("s1", "s2", "s3")
    recorder = lab.recorder(pace=300, size=200, buffer_bytes=300 * KIB, sessions=sessions)
    counts = dict.fromkeys(("kill", "stop", "full", "burst"), 0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        fault = rng.choice(list(counts))
        counts[fault] += 1
        match fault:
            case "kill":
                writer.kill()
                time.sleep(rng.uniform(0, 0.2))
                writer = lab.writer(limits=limits)
            case "stop":
                writer.signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0, 0.4))
                writer.signal(signal.SIGCONT)
            case "full":
                with filled(lab.root, leave=rng.randrange(20_000)):
                    time.sleep(rng.uniform(0, 0.4))
                    if rng.random() < 0.4:
                        writer.kill()
                        writer = lab.writer(limits=limits)
            case _:
                recorder.ask(f"burst {rng.randrange(800)}")
        time.sleep(rng.uniform(0, 0.2))
        recorder.ask("kick")
    assert all(counts.values()), counts
    report = recorder.settle()
    for session in sessions:
        result = check(lab.directory(session), report.sessions[session])
        assert result.dropped > 0
        assert result.records > 500


def test_chaos_20_s_of_kills_stops_full_disks_and_a_small_buffer(lab: Lab, own_mounts: None) -> None:
    _chaos(lab, 20, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_chaos_60_s(lab: Lab, own_mounts: None, seed: int) -> None:
    _chaos(lab, 60, seed)


# --- the checks themselves


@pytest.mark.parametrize("plant", ["flip", "swallow", "twice"])
def test_a_planted_bug_in_what_is_written_is_caught(lab: Lab, plant: str) -> None:
    lab.writer(plant=plant)
    recorder = lab.recorder(pace=1000, count=600)
    recorder.wait_emitted(601)
    report = recorder.settle()
    with pytest.raises(AssertionError):
        check(lab.directory(), report.sessions["s1"])


def test_a_writer_that_acknowledges_before_it_writes_is_caught(lab: Lab) -> None:
    writer = lab.writer(plant="ack_first")
    recorder = lab.recorder(pace=500)
    recorder.wait_acked(200)
    writer.kill()
    lab.writer()
    report = recorder.settle()
    with pytest.raises(AssertionError, match="lost"):
        check(lab.directory(), report.sessions["s1"])


def test_a_writer_that_does_not_store_drop_records_is_caught(lab: Lab) -> None:
    writer = lab.writer(plant="forget_drops")
    recorder = lab.recorder(pace=500, buffer_bytes=100 * KIB)
    recorder.wait_acked(50)
    writer.signal(signal.SIGSTOP)
    recorder.ask("burst 6000")
    writer.signal(signal.SIGCONT)
    report = recorder.settle()
    with pytest.raises(AssertionError):
        check(lab.directory(), report.sessions["s1"])
