"""Group D of the faults, and the deletions that others' users complained of: what retention must never do to a session.

D2 clock ahead · D4, D5 sweepers race writers · D8 very many directories · D9 all is active · A14 append-only directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from agentctl.__main__ import run as agentctl
from tests.agentctl.fake_daemon import Screen
from tests.faults.harness import (
    START_S,
    WORKSPACE,
    Lab,
    RawClient,
    Writer,
    ask_status,
    check,
    events,
    require_root,
    require_tool,
    wait_for,
)
from tests.tracewriter.old_sessions import content, in_trash, live, make
from tracewriter.clock import SYSTEM_CLOCK, Clock
from tracewriter.housekeeping import Sweeper
from tracewriter.journal import Key
from tracewriter.protocol import Kind, Open, encode
from tracewriter.reader import read

_HERE: Final = Path(__file__).parent
HASH: Final = Key("x", WORKSPACE).workspace_hash


def configured(lab: Lab, text: str) -> list[str]:
    """What to wrap a writer's command in, so that it reads this configuration."""
    config = lab.base / "config.toml"
    config.write_text(text)
    return ["sh", "-c", f'exec "$@" --config {config}', "sh"]


def swept(writer: Writer) -> str:
    """Wait for the writer's first sweep; what the status says of it."""
    wait_for(lambda: " at " in writer.status().retention, "the first sweep")
    return writer.status().retention


def sweep(lab: Lab, *arguments: str, env: dict[str, str] | None = None) -> str:
    """One sweep as the writer starts it; its line."""
    command = [sys.executable, "-m", "tracewriter.trash", "--root", str(lab.root), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env={**os.environ, **(env or {})}
    )
    return done.stdout.strip()


def trusted() -> list[str]:
    return ["--trusted-now", str(time.time())]


# --- D2


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the clock is 40 days ahead."""
    shim = tmp_path_factory.mktemp("shim") / "clock_ahead.so"
    command = [require_tool("gcc"), "-shared", "-fPIC", "-O1", "-o", str(shim), str(_HERE / "clock_ahead.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=START_S)
    env = {"LD_PRELOAD": str(shim), "CLOCK_AHEAD_S": str(40 * 86_400)}
    seen = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], env={**os.environ, **env}, capture_output=True
    )
    assert float(seen.stdout) > time.time() + 39 * 86_400
    return env


def test_d2_a_clock_that_is_ahead_deletes_nothing_by_age(lab: Lab, ahead: dict[str, str]) -> None:
    for number in range(20):
        make(lab.root, f"s{number}", 1 + number, workspace=HASH)
    writer = lab.writer(env=ahead)
    assert "0 moved to the trash, 0 removed" in swept(writer)
    assert len(live(lab.root)) == 20
    # and a jump between a writer's decision to sweep, when it trusted its clock, and the sweep itself
    assert "0 moved" in sweep(lab, *trusted(), env=ahead)
    assert len(live(lab.root)) == 20
    # a sweep that is sure takes what is old by the clock it was told, and never the newest
    make(lab.root, "old", 31, workspace=HASH)
    assert "1 moved" in sweep(lab, *trusted())
    assert in_trash(lab.root) == {"old"}


class SteppedClock(Clock):
    """A clock of which a test decides both hands."""

    def __init__(self) -> None:
        self.ahead_s = self.mono_s = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        return self.mono_s


@pytest.mark.parametrize(("jump_s", "moved"), [(0.0, 1), (40 * 86_400.0, 0), (-40 * 86_400.0, 0)])
def test_d2_a_jump_while_the_writer_runs_ends_its_trust(lab: Lab, jump_s: float, moved: int) -> None:
    for number in range(10):
        make(lab.root, f"s{number}", 1 + number / 10, workspace=HASH)
    make(lab.root, "old", 31, workspace=HASH)
    clock = SteppedClock()
    clock.ahead_s = -3610.0  # an hour ago
    sweeper = Sweeper(str(lab.root), None, clock, interval_s=3600.0)
    for mono in (0.0, 2.0, 1800.0, 3590.0, 3610.0):
        clock.ahead_s, clock.mono_s = mono - 3610.0 + (jump_s if mono == 3610.0 else 0), mono
        sweeper.tick()
        wait_for(lambda: _ended(sweeper), "the sweep to end")
    assert sweeper.state.startswith("swept at")
    sweeper.stop()
    assert len(in_trash(lab.root)) == moved, sweeper.state


def _ended(sweeper: Sweeper) -> bool:
    if sweeper.running:
        sweeper.tick()
    return not sweeper.running


# --- D4, D5


def _race(lab: Lab, rounds: int, sessions: int, *plant: str) -> tuple[int, int]:
    """Old sessions, two sweepers, three writers whose producers take a part of them up again. (recorded, moved) sessions."""
    originals: dict[str, bytes] = {}
    sockets = [lab.base / "run" / f"w{number}.sock" for number in range(3)]
    writers = [lab.writer(socket_path=path) for path in sockets]
    recorded = moved = 0
    for turn in range(rounds):
        for number in range(sessions):
            name = f"r{turn}-{number}"
            path = make(lab.root, name, 60 + (number * 7919 % sessions), workspace=HASH)
            originals[name] = (path / "000001.jsonl").read_bytes()
        sweepers = [
            subprocess.Popen(
                [sys.executable, str(_HERE / "sweep_on.py"), str(lab.root), *plant],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        names = [[f"r{turn}-{n}" for n in range(first, sessions, 9)] for first in range(3)]
        recorders = [
            lab.recorder(socket=str(path), sessions=tuple(mine), resumed=True, pace=20)
            for path, mine in zip(sockets, names, strict=True)
        ]
        for recorder, mine in zip(recorders, names, strict=True):
            for name in mine:
                recorder.wait_acked(3, name)
        reports = [recorder.settle() for recorder in recorders]
        for sweeper in sweepers:
            out, _ = sweeper.communicate(timeout=START_S)
            assert sweeper.returncode == 0
            moved += int(out.split()[0])
        for report, mine in zip(reports, names, strict=True):
            for name in mine:
                directory = lab.root / HASH / name
                first = (directory / "000001.jsonl").read_bytes()
                check(directory, report.sessions[name], started_after=1 if first == originals[name] else 0)
                recorded += 1
    for writer in writers:
        assert writer.stop() == 0
    _nothing_is_lost(lab, originals)
    return recorded, moved


def _nothing_is_lost(lab: Lab, originals: dict[str, bytes]) -> None:
    """Every old session is where it was or in the trash, as it was; nothing was recorded into the trash."""
    in_place = live(lab.root)
    trash = {path.name.split("-", 2)[2]: path for path in (lab.root / ".trash").iterdir()}
    for name, data in originals.items():
        kept = [path for path in (lab.root / HASH / name, trash.get(name)) if path is not None and path.is_dir()]
        assert any((path / "000001.jsonl").read_bytes() == data for path in kept), name
        if name in trash:
            assert [path.name for path in trash[name].glob("*.jsonl")] == ["000001.jsonl"]
            assert (trash[name] / "000001.jsonl").read_bytes() == data
    assert in_place | trash.keys() >= originals.keys()


def test_d4_d5_sweepers_race_writers_and_no_session_is_hurt(lab: Lab) -> None:
    recorded, moved = _race(lab, rounds=2, sessions=120)
    print(f"\nD4 D5: {recorded} sessions taken up by 3 writers while 2 sweepers moved {moved}: 0 hurt")
    assert recorded == 84
    assert moved > 50


def test_the_race_finds_a_sweeper_that_takes_no_lock(lab: Lab) -> None:
    def race_on() -> None:
        for _ in range(20):
            _race(lab, 1, 120, "unlocked")
            shutil.rmtree(lab.root)

    with pytest.raises((AssertionError, FileNotFoundError)):
        race_on()


@pytest.mark.nightly
def test_d4_d5_at_length(lab: Lab) -> None:
    recorded, moved = _race(lab, rounds=12, sessions=600)
    print(f"\nD4 D5: {recorded} sessions taken up by 3 writers while 2 sweepers moved {moved}: 0 hurt")


def test_complaint_58_a_session_that_is_open_and_idle_is_never_deleted(lab: Lab) -> None:
    make(lab.root, "idle", 365, workspace=HASH)
    make(lab.root, "old", 365, workspace=HASH)
    for number in range(10):
        make(lab.root, f"s{number}", 1, workspace=HASH)
    lab.writer()
    with RawClient(lab.socket) as client:
        client.send(encode(Kind.OPEN, channel=1, body=Open("idle", WORKSPACE)))
        client.expect(Kind.OPENED)
        assert sweep(lab, *trusted()).startswith("1 moved")
        assert (in_trash(lab.root), "idle" in live(lab.root)) == ({"old"}, True)
        client.send(events(range(2, 5), "idle"))
        client.expect(Kind.ACK)
    assert [found.record.seq for found in read(lab.root / HASH / "idle") if hasattr(found, "record")] == [1, 2, 3, 4]


# --- D8


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: making a hundred thousand directories is not what is measured."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="tw-", dir=base))
    yield path
    shutil.rmtree(path)


def _many(root: Path, count: int) -> None:
    """Session directories, cheaply: a segment each, and the oldest ones first in line."""
    body = content("session", datetime.now(UTC) - timedelta(days=2))
    for first in range(0, count, 1000):
        workspace = root / f"{first:024x}"
        workspace.mkdir(parents=True)
        for number in range(first, min(first + 1000, count)):
            directory = workspace / f"s{number}"
            directory.mkdir()
            (directory / "000001.jsonl").write_bytes(body)


def _acks(client: RawClient, seqs: Iterator[int], until: float) -> list[float]:
    """Record at a pace until that time; how long each acknowledgement took, in seconds."""
    waits: list[float] = []
    while time.monotonic() < until:
        seq = next(seqs)
        started = time.monotonic()
        client.send(events(range(seq, seq + 1), "live"))
        client.expect(Kind.ACK)
        waits.append(time.monotonic() - started)
        time.sleep(0.001)
    return waits


def _stall(lab: Lab, count: int) -> None:
    _many(lab.root, count)
    budget = count * 2048  # in memory a session takes a page: half of them are too many, and a fifth goes
    writer = lab.writer(wrap=configured(lab, f"[retention]\nmax_bytes = {budget}\n"))
    quiet: list[float] = []
    busy: list[float] = []
    with RawClient(lab.socket) as client:
        client.send(encode(Kind.OPEN, channel=1, body=Open("live", WORKSPACE)))
        client.expect(Kind.OPENED)
        seqs = iter(range(1, 10**9))
        quiet += _acks(client, seqs, time.monotonic() + 1.0)
        started = time.monotonic()
        while " at " not in ask_status(lab.socket).retention:
            assert time.monotonic() < started + 300, "the sweep does not end"
            busy += _acks(client, seqs, time.monotonic() + 0.25)
        took = time.monotonic() - started
    state = writer.status().retention
    figures = [1000 * value for value in (max(quiet), max(busy), sorted(busy)[len(busy) // 2])]
    print(
        f"\nD8: {count:,} directories, sweep {took:.1f} s: worst acknowledgement {figures[1]:.1f} ms (without a sweep "
        f"{figures[0]:.1f} ms), median {figures[2]:.2f} ms; {state.partition(': ')[2]}"
    )
    assert f"{count // 5} moved" in state
    # on the loop the sweep would hold up recording for as long as it takes
    assert max(busy) < took / 2


def test_d8_a_sweep_of_very_many_directories_does_not_hold_up_recording(lab: Lab, memory: Path) -> None:
    lab.root = memory / "traces"
    _stall(lab, 10_000)


@pytest.mark.nightly
def test_d8_a_hundred_thousand(lab: Lab, memory: Path) -> None:
    lab.root = memory / "traces"
    _stall(lab, 100_000)


# --- D9, A14


def test_d9_when_all_is_active_nothing_is_deleted_and_status_says_over_the_budget(lab: Lab) -> None:
    """1 GiB of active sessions, scaled down with the budget."""
    home = lab.base / "home"
    lab.root, lab.socket = home / "traces", home / "run" / "tracewriter.sock"
    wrap = configured(lab, "[retention]\nmax_bytes = 500_000\n")
    home.mkdir(0o700)
    shutil.copy(lab.base / "config.toml", home / "config.toml")
    writer = lab.writer(wrap=wrap)
    names = tuple(f"s{n}" for n in range(6))
    recorder = lab.recorder(sessions=names, pace=1500, size=300, count=600, first=1)
    for name in names:
        recorder.wait_acked(600, name)
    line = swept(writer)
    assert "0 moved to the trash, 0 removed" in line
    assert sweep(lab, "--config", str(home / "config.toml"), *trusted()).startswith("0 moved")
    screen = Screen({"HOME": str(home), "AGENTD_HOME": str(home)})
    assert agentctl(["trace", "status", "--json"], screen.world) == 0
    document = json.loads(screen.out)
    assert document["retention"]["over_bytes"] > 500_000
    assert (document["retention"]["active"], len(document["writer"]["sessions"])) == (6, 6)
    screen = Screen({"HOME": str(home), "AGENTD_HOME": str(home)})
    assert agentctl(["trace", "status"], screen.world) == 0
    assert "over the budget by" in screen.out
    report = recorder.settle()
    for name in names:
        check(lab.directory(name), report.sessions[name])


def test_a14_an_append_only_directory_is_left_alone_and_the_reason_is_told(lab: Lab) -> None:
    require_root()
    for number in range(10):
        make(lab.root, f"s{number}", 1, workspace=HASH)
    stuck = make(lab.root, "stuck", 100, workspace=HASH)
    make(lab.root, "old", 50, workspace=HASH)
    chattr = require_tool("chattr")
    if subprocess.run([chattr, "+a", str(stuck)], check=False, capture_output=True).returncode != 0:
        pytest.skip("this file system has no attributes")
    try:
        line = sweep(lab, *trusted())
        assert line == "1 moved to the trash, 0 removed from it; left alone: stuck: it is append-only (chattr +a)"
        assert (in_trash(lab.root), "stuck" in live(lab.root)) == ({"old"}, True)
    finally:
        subprocess.run([chattr, "-a", str(stuck)], check=True)


def test_two_sweeps_at_once_remove_the_trash_once(lab: Lab) -> None:
    trash = lab.root / ".trash"
    for number in range(200):
        directory = trash / f"1000-{HASH}-s{number}"
        (directory / "payloads").mkdir(parents=True)
        for name in ("000001.jsonl", "000001.seal", "payloads/a"):
            (directory / name).write_text("x")
    command = [sys.executable, "-m", "tracewriter.trash", "--root", str(lab.root), *trusted()]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [one.communicate(timeout=START_S)[0] for one in both]
    assert list(trash.iterdir()) == []
    deeds = (lab.root / "retention.jsonl").read_text().splitlines()
    assert len(deeds) == len({json.loads(line)["session"] for line in deeds}) == 200, lines


def test_the_clock_of_a_writer_is_the_machines() -> None:
    assert abs(SYSTEM_CLOCK.now().timestamp() - time.time()) < 60
