"""What a sweep does to real directories: what goes, what comes back, what is left alone, and that nothing outside is touched."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tracewriter.old_sessions import WORKSPACE, content, days_ago, in_trash, live, make, manifest
from tracewriter import lock, trash
from tracewriter.errors import RetentionHeld, SessionUnavailable
from tracewriter.retention import Move, Policy, plan
from tracewriter.trash import Deed, Report, Traces

ROOMY = Policy(max_bytes=10**12)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "traces"
    path.mkdir()
    for number in range(10):
        make(path, f"new{number}", 1 + number / 10)
    return path


@pytest.fixture
def traces(root: Path) -> Iterator[Traces]:
    with Traces(root) as opened:
        yield opened


def sweep(root: Path, policy: Policy = ROOMY, *, trusted: bool = True, now: float | None = None) -> Report:
    with Traces(root) as opened:
        return opened.enforce(policy, time.time() if now is None else now, clock_trusted=trusted)


def log(root: Path) -> list[Deed]:
    lines = (root / "retention.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Deed) for line in lines]


# --- the life of a session that goes


def test_an_old_session_goes_to_the_trash_and_after_a_day_for_good_each_with_a_line(root: Path) -> None:
    make(root, "old", 31)
    before = (root / WORKSPACE / "old" / "000001.jsonl").read_bytes()
    report = sweep(root)
    assert [(deed.action, deed.session, deed.reason) for deed in report.deeds] == [("moved", "old", "age")]
    assert (live(root), in_trash(root)) == ({f"new{n}" for n in range(10)}, {"old"})
    (kept,) = (root / ".trash").iterdir()
    assert (kept / "000001.jsonl").read_bytes() == before
    assert sweep(root).deeds == ()
    later = sweep(root, now=time.time() + 86_500)
    assert [(deed.action, deed.session, deed.reason) for deed in later.deeds] == [("purged", "old", "trash")]
    assert in_trash(root) == set()
    assert log(root) == [*report.deeds, *later.deeds]
    assert (root / "retention.jsonl").stat().st_mode & 0o777 == 0o600
    assert (root / ".trash").stat().st_mode & 0o777 == 0o700


def test_what_comes_back_is_pinned_and_stays(root: Path, traces: Traces) -> None:
    make(root, "old", 31)
    (deed,) = sweep(root).deeds
    back = traces.restore(deed.trash)
    assert (back.action, back.session, back.reason) == ("restored", "old", "asked")
    assert (root / WORKSPACE / "old" / "pinned").exists()
    assert sweep(root).deeds == ()
    traces.pin(WORKSPACE, "old", pinned=False)
    assert [one.session for one in sweep(root).deeds] == ["old"]


def test_what_is_there_again_is_not_overwritten_and_what_is_not_there_is_told(root: Path, traces: Traces) -> None:
    make(root, "old", 31)
    (deed,) = sweep(root).deeds
    again = make(root, "old", 0)
    with pytest.raises(FileExistsError):
        traces.restore(deed.trash)
    assert (again / "000001.jsonl").exists()
    assert in_trash(root) == {"old"}
    for name in ("../../etc", "1-" + WORKSPACE + "-gone", "nonsense", ""):
        with pytest.raises(FileNotFoundError):
            traces.restore(name)


def test_a_removal_that_was_cut_short_is_finished_and_never_brought_back(root: Path, traces: Traces) -> None:
    half = root / ".trash" / f"removing-{int(time.time() * 1000)}-{WORKSPACE}-old"
    half.mkdir(parents=True)
    (half / "000002.jsonl").write_text("half")
    with pytest.raises(FileNotFoundError):
        traces.restore(half.name)
    assert [one.action for one in sweep(root, trusted=False).deeds] == ["purged"]
    assert not half.exists()


def test_discarding_takes_one_session_unless_it_is_recorded(root: Path, traces: Traces) -> None:
    wanted = next(c for c in traces.scan()[0] if c.session == "new3")
    with _held(root / WORKSPACE / "new3"), pytest.raises(SessionUnavailable, match="another writer"):
        traces.discard(wanted)
    assert traces.discard(wanted).reason == "asked"
    assert in_trash(root) == {"new3"}


# --- what is left alone


class _held:  # noqa: N801 - reads as a statement
    """Somebody records this session."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        dir_fd = os.open(self._directory, os.O_RDONLY)
        self._fd = lock.acquire(dir_fd)
        os.close(dir_fd)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def test_a_long_idle_session_that_is_open_is_never_deleted(root: Path, traces: Traces) -> None:
    """Complaint 58: another process's sweep deleted a long-idle open session."""
    directory = make(root, "idle", 365)
    with _held(directory):
        assert sweep(root).deeds == ()
        # also when it was taken up after the scan
        os.unlink(directory / "lock")
    candidates, trashed = traces.scan()
    decided = plan(candidates, trashed, ROOMY, time.time(), clock_trusted=True)
    assert [move.candidate.session for move in decided.moves] == ["idle"]
    with _held(directory):
        report = traces.sweep(decided)
    assert (report.deeds, [one.name for one in report.skipped]) == ((), ["idle"])
    assert "idle" in live(root)


def test_what_was_pinned_or_recorded_or_replaced_after_the_scan_is_left_alone(root: Path, traces: Traces) -> None:
    for name in ("pinned", "recorded", "replaced", "gone", "filled"):
        make(root, name, 100)
    (root / WORKSPACE / "filled" / "000001.jsonl").unlink()
    os.utime(root / WORKSPACE / "filled", (time.time() - 90 * 86_400,) * 2)
    candidates, trashed = traces.scan()
    moves = [Move(c, "age") for c in candidates if not c.session.startswith("new")]
    assert len(moves) == 5
    decided = plan(candidates, trashed, ROOMY, time.time(), clock_trusted=True)
    traces.pin(WORKSPACE, "pinned", pinned=True)
    (root / WORKSPACE / "recorded" / "000002.jsonl").write_bytes(content("recorded", days_ago(0), seq=2))
    (root / WORKSPACE / "filled" / "000001.jsonl").write_bytes(content("filled", days_ago(0)))
    os.rename(root / WORKSPACE / "replaced", root / "aside")
    os.rename(root / WORKSPACE / "gone", root / "aside2")
    make(root, "replaced", 0)
    seen: dict[str, str] = {}
    for move in moves:
        report = traces.sweep(msgspec.structs.replace(decided, moves=(move,)))
        assert report.deeds == ()
        seen[move.candidate.session] = report.skipped[0].reason
    assert "pinned meanwhile" in seen["pinned"]
    assert "newer" in seen["recorded"]
    assert "newer" in seen["replaced"]
    assert "newer" in seen["filled"]
    assert "ENOENT" in seen["gone"]


def test_a_manifest_that_is_older_than_the_segments_is_not_believed(root: Path) -> None:
    """A crash leaves the manifest of the recording before; so does a digit that changed in it."""
    stale = make(root, "stale", 0.5)
    manifest(stale, days_ago(400), segments_bytes=10)
    wrong = make(root, "wrong", 0.5)
    manifest(wrong, days_ago(400))
    report = sweep(root)
    assert report.deeds == ()
    assert [one.name for one in report.skipped] == ["wrong"]
    assert {"stale", "wrong"} <= live(root)


def test_a_manifest_that_is_right_is_believed_and_nonsense_in_it_is_not(root: Path) -> None:
    manifest(make(root, "right", 50), days_ago(50))
    odd = make(root, "odd", 0.5)
    size = (odd / "000001.jsonl").stat().st_size
    (odd / "manifest.json").write_text(
        '{"session":"odd","workspace":"/w","started_at":null,"last_at":"0001-01-01T00:00:00","last":1,'
        f'"segments_bytes":{size}}}'
    )
    torn = make(root, "torn", 0.5)
    (torn / "manifest.json").write_bytes(b'\xff{"session":')
    assert [one.session for one in sweep(root).deeds] == ["right"]
    assert {"odd", "torn"} <= live(root)


def test_a_session_without_a_readable_record_is_a_doubt(root: Path, traces: Traces) -> None:
    directory = root / WORKSPACE / "garbage"
    directory.mkdir()
    (directory / "000001.jsonl").write_bytes(os.urandom(3000))
    os.utime(directory / "000001.jsonl", (0, 0))
    (found,) = [c for c in traces.scan()[0] if c.session == "garbage"]
    assert found.doubt == "none of its records can be read"
    assert sweep(root).deeds == ()


def test_what_would_not_go_does_not_stand_in_the_way_of_the_next_oldest(root: Path, traces: Traces) -> None:
    for number in range(8):
        (make(root, f"stuck{number}", 200 + number) / "lock").symlink_to("/dev/null")
    for number in range(2):
        make(root, f"old{number}", 100)
    assert {one.session for one in sweep(root).deeds} == {"old0", "old1"}
    for number in range(2, 4):
        make(root, f"old{number}", 100)
    for path in (root / WORKSPACE).glob("stuck*"):  # now without a doubt that the scan could see
        (path / "lock").unlink()
    held = [_held(path) for path in sorted((root / WORKSPACE).glob("stuck*"))]
    candidates, trashed = traces.scan()
    for one in held:
        one.__enter__()
    try:
        first = traces.sweep(plan(candidates, trashed, ROOMY, time.time(), clock_trusted=True))
        assert (len(first.deeds), len(first.skipped)) == (0, 4)
        assert {one.session for one in sweep(root).deeds} == {"old2", "old3"}
    finally:
        for one in held:
            one.__exit__()


def test_empty_directories_go_too(root: Path) -> None:
    """Complaint 25: thousands of directories that nothing ever pruned."""
    past = time.time() - 40 * 86_400
    for number in range(2):
        path = root / WORKSPACE / f"empty{number}"
        path.mkdir()
        os.utime(path, (past, past))
    (root / WORKSPACE / "fresh").mkdir()
    lonely, young = root / ("b" * 24), root / ("c" * 24)
    lonely.mkdir()
    young.mkdir()
    os.utime(lonely, (past, past))
    report = sweep(root)
    assert {one.session for one in report.deeds} == {"empty0", "empty1"}
    assert "fresh" in live(root)
    assert (lonely.exists(), young.exists()) == (False, True)


def test_the_size_is_what_du_says(root: Path, traces: Traces) -> None:
    """Complaint 26: rows deleted, the file stayed at 111 GB."""
    for number in range(5):
        directory = make(root, f"big{number}", 5 + number, size=200_000)
        (directory / "payloads").mkdir()
        (directory / "payloads" / ("ab" * 16)).write_bytes(os.urandom(300_000))
        with (directory / "000001.seal").open("wb") as sparse:
            sparse.truncate(50_000_000)  # a hole takes no space
    candidates, _ = traces.scan()
    said = {c.session: c.bytes for c in candidates}
    for path in (root / WORKSPACE).iterdir():
        du = subprocess.run(["du", "-s", "-B1", path], capture_output=True, check=True, text=True)
        assert said[path.name] == int(du.stdout.split()[0]), path.name
    budget = sum(said.values()) - 1_000_000
    for _ in range(3):
        sweep(root, Policy(max_bytes=budget))
    du = subprocess.run(["du", "-s", "-B1", root], capture_output=True, check=True, text=True)
    overhead = 16_384 * 3  # the root, the workspace's directory, .trash and the log
    assert int(du.stdout.split()[0]) <= budget + overhead
    assert {"big4", "big3"}.isdisjoint(live(root) | in_trash(root))


# --- hostile trees


def _plant_payload(directory: Path, target: Path) -> None:
    (directory / "payloads").mkdir()
    (directory / "payloads" / "x").symlink_to(target)


def test_links_fifos_and_odd_names_touch_nothing_outside(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    canary = outside / "canary"
    canary.write_text("alive")
    elsewhere = make(tmp_path / "other", "far", 400)
    workspace = root / WORKSPACE
    (workspace / "linked").symlink_to(outside)
    (workspace / "far").symlink_to(elsewhere)
    (root / ("d" * 24)).symlink_to(tmp_path / "other" / WORKSPACE)
    (workspace / "UPPER").mkdir()
    (workspace / "a file").write_text("x")
    (root / "not-a-hash" / "s").mkdir(parents=True)
    os.mkfifo(workspace / "fifo")
    within: dict[str, Callable[[Path], object]] = {
        "symlink": lambda d: (d / "000002.jsonl").symlink_to(canary),
        "fifo-segment": lambda d: os.mkfifo(d / "000002.jsonl"),
        "fifo-lock": lambda d: os.mkfifo(d / "lock"),
        "linked-payloads": lambda d: (d / "payloads").symlink_to(outside),
        "foreign-file": lambda d: (d / "notes.txt").write_text("mine"),
        "foreign-dir": lambda d: (d / "git" / "objects").mkdir(parents=True),
        "payload-dir": lambda d: (d / "payloads" / "sub").mkdir(parents=True),
        "linked-payload": lambda d: _plant_payload(d, canary),
    }
    for name, plant in within.items():
        plant(make(root, name, 100))
    for number in range(4):
        make(root, f"old{number}", 90)
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*") if "old" not in str(path)}
    report = sweep(root, now=time.time() + 1)
    sweep(root, now=time.time() + 3 * 86_400)
    assert {one.session for one in report.deeds} <= {f"old{n}" for n in range(4)}
    assert len(report.deeds) == 4
    gone = [path for path in before if not os.path.lexists(path)]
    assert gone == []
    assert canary.read_text() == "alive"
    with Traces(root) as traces:
        doubts = {c.session: c.doubt for c in traces.scan()[0] if c.doubt}
    assert doubts.keys() == within.keys() | {"linked", "far", "a file", "fifo"} - {"a file"}
    assert "notes.txt" in doubts["foreign-file"]


def test_a_planted_trash_or_log_stops_the_sweep_and_nothing_is_followed(root: Path, tmp_path: Path) -> None:
    make(root, "old", 100)
    target = tmp_path / "target"
    target.write_text("alive")
    plants: list[Callable[[Path], object]] = [
        lambda path: path.symlink_to(target),
        lambda path: os.link(target, path),
        os.mkfifo,
        os.mkdir,
    ]
    for plant in plants:
        plant(root / "retention.jsonl")
        with pytest.raises(RetentionHeld, match=r"retention\.jsonl"):
            sweep(root)
        path = root / "retention.jsonl"
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "retention.jsonl.1" / "full").mkdir(parents=True)
    (root / "retention.jsonl").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    with pytest.raises(RetentionHeld, match=r"retention\.jsonl\.1"):
        sweep(root)
    assert ("old" in live(root), in_trash(root)) == (True, set())
    (root / "retention.jsonl.1" / "full").rmdir()
    (root / "retention.jsonl.1").rmdir()
    (root / ".trash").symlink_to(tmp_path)
    report = sweep(root)
    assert (report.deeds, [one.name for one in report.skipped]) == ((), ["old"])
    assert target.read_text() == "alive"
    assert "old" in live(root)


def test_links_in_the_trash_are_not_followed(root: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary" / "file"
    canary.parent.mkdir()
    canary.write_text("alive")
    trash_dir = root / ".trash"
    trash_dir.mkdir()
    long_ago = f"1000-{WORKSPACE}"
    (trash_dir / f"{long_ago}-link").symlink_to(canary.parent)
    (trash_dir / "keep me").mkdir()
    inside = trash_dir / f"{long_ago}-inside"
    inside.mkdir()
    (inside / "out").symlink_to(canary.parent)
    (inside / "file").symlink_to(canary)
    assert [one.session for one in sweep(root).deeds] == ["inside"]
    assert canary.read_text() == "alive"
    assert sorted(os.listdir(trash_dir)) == [f"{long_ago}-link", "keep me"]


def test_an_append_only_directory_is_skipped_and_the_reason_is_said(root: Path) -> None:
    """Fault A14."""
    directory = make(root, "stuck", 100)
    made = subprocess.run(["chattr", "+a", directory], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("needs root and a file system with attributes")
    try:
        with Traces(root) as traces:
            (found,) = [c for c in traces.scan()[0] if c.session == "stuck"]
        assert found.doubt == "it is append-only (chattr +a)"
        make(root, "old", 50)
        assert [one.session for one in sweep(root).deeds] == ["old"]
    finally:
        subprocess.run(["chattr", "-a", directory], check=True)


def test_pins_are_whatever_has_the_name_and_can_be_taken_off(root: Path, traces: Traces, tmp_path: Path) -> None:
    directory = make(root, "old", 100)
    canary = tmp_path / "canary"
    canary.write_text("alive")
    (directory / "pinned").symlink_to(canary)
    assert sweep(root).deeds == ()
    traces.pin(WORKSPACE, "old", pinned=True)
    traces.pin(WORKSPACE, "old", pinned=False)
    traces.pin(WORKSPACE, "old", pinned=False)
    assert canary.read_text() == "alive"
    os.mkfifo(directory / "pinned")
    traces.pin(WORKSPACE, "old", pinned=True)
    assert sweep(root).deeds == ()
    with pytest.raises(FileNotFoundError):
        traces.pin(WORKSPACE, "nobody", pinned=True)
    (root / WORKSPACE / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        traces.pin(WORKSPACE, "link", pinned=True)


def test_a_lock_that_is_let_go_leaves_no_trace(root: Path) -> None:
    directory = make(root, "old", 100)
    with _held(directory):
        pass
    fd = os.open(directory / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    assert [one.session for one in sweep(root).deeds] == ["old"]


# --- the log, the command


def test_the_log_is_turned_over_when_it_is_long(root: Path) -> None:
    (root / "retention.jsonl").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    make(root, "old", 100)
    sweep(root)
    assert (root / "retention.jsonl.1").stat().st_size == 4 * 1024 * 1024 + 1
    assert [deed.session for deed in log(root)] == ["old"]


def test_the_command_sweeps_once_and_says_so_in_a_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(root, "old", 100)
    arguments = ["--root", str(root)]
    assert trash.main(arguments) == 0  # the clock is not vouched for
    assert capsys.readouterr().out == "0 moved to the trash, 0 removed from it\n"
    assert trash.main([*arguments, "--trusted-now", str(time.time() + 40 * 86_400)]) == 0  # it has jumped since
    assert "old" in live(root)
    config = tmp_path / "config.toml"
    config.write_text("[retention]\nmax_days = 3\n")
    assert trash.main([*arguments, "--config", str(config), "--trusted-now", str(time.time())]) == 1
    assert "max_days" in capsys.readouterr().out
    config.write_text("[retention]\nenabled = false\n")
    assert trash.main([*arguments, "--config", str(config), "--trusted-now", str(time.time())]) == 0
    assert "old" in live(root)
    capsys.readouterr()
    assert trash.main([*arguments, "--trusted-now", str(time.time())]) == 0
    assert capsys.readouterr().out == "1 moved to the trash, 0 removed from it\n"
    assert trash.main(["--root", str(tmp_path / "nowhere")]) == 1
    assert "nowhere: No such file" in capsys.readouterr().out


def test_a_root_behind_a_link_is_swept(root: Path, tmp_path: Path) -> None:
    """A user may keep traces on another disk; the writer goes there too."""
    make(root, "old", 100)
    (tmp_path / "link").symlink_to(root)
    assert [one.session for one in sweep(tmp_path / "link").deeds] == ["old"]
