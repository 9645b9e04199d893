"""Retention of sessions with payloads/: they count, go and come back with it, and nothing planted among them leads outside."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.tracewriter.old_sessions import WORKSPACE, in_trash, live, make
from tracewriter.retention import Policy
from tracewriter.trash import Report, Traces

P, Q = "ab" * 16, "cd" * 16
DAY = 86_400


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "traces"
    path.mkdir()
    for number in range(10):
        make(path, f"new{number}", 1 + number / 10)
    return path


def old(root: Path, session: str) -> Path:
    """A session of 100 days ago with two bodies; gives payloads/."""
    payloads = make(root, session, 100) / "payloads"
    payloads.mkdir(mode=0o700)
    (payloads / P).write_bytes(os.urandom(100_000))
    (payloads / Q).write_bytes(b"second")
    return payloads


def sweep(root: Path, days: float = 0.0) -> Report:
    with Traces(root) as traces:
        return traces.enforce(Policy(max_bytes=10**12), time.time() + days * DAY, clock_trusted=True)


def test_bodies_count_as_du_counts_them_live_and_in_the_trash(root: Path) -> None:
    directory = old(root, "old").parent
    (directory / "payloads" / (Q + ".part")).write_bytes(b"half")
    du = subprocess.run(["du", "-s", "-B1", directory], capture_output=True, check=True, text=True)
    size = int(du.stdout.split()[0])
    assert size > 100_000
    with Traces(root) as traces:
        (found,) = (c for c in traces.scan()[0] if c.session == "old")
    assert (found.bytes, found.doubt) == (size, "")
    (deed,) = sweep(root).deeds
    assert (deed.action, deed.bytes) == ("moved", size)
    with Traces(root) as traces:
        assert [one.bytes for one in traces.scan()[1]] == [size]


def test_they_go_with_their_session_and_come_back_with_it(root: Path) -> None:
    payloads = old(root, "old")
    before = {path.name: path.read_bytes() for path in payloads.iterdir()}
    sweep(root)
    assert (in_trash(root), payloads.exists()) == ({"old"}, False)
    with Traces(root) as traces:
        traces.restore(next((root / ".trash").iterdir()).name)
    assert {path.name: path.read_bytes() for path in payloads.iterdir()} == before
    (payloads.parent / "pinned").unlink()
    sweep(root)
    assert [deed.action for deed in sweep(root, 2).deeds] == ["purged"]
    assert (list((root / ".trash").iterdir()), payloads.exists()) == ([], False)


@pytest.mark.parametrize("kind", ["link", "link to a directory", "fifo", "directory", "foreign name", "hard link"])
def test_what_is_planted_among_bodies_is_a_doubt_or_its_name_goes_alone(root: Path, kind: str, tmp_path: Path) -> None:
    canary = tmp_path / "outside" / "canary"
    canary.parent.mkdir()
    canary.write_bytes(b"alive")
    planted = old(root, "odd") / ("ef" * 16)
    match kind:
        case "link":
            planted.symlink_to(canary)
        case "link to a directory":
            planted.symlink_to(canary.parent)
        case "fifo":
            os.mkfifo(planted)
        case "directory":
            (planted / "deeper").mkdir(parents=True)
            (planted / "deeper" / "out").symlink_to(canary.parent)
        case "foreign name":
            planted.with_name("notes.txt").write_bytes(b"mine")
        case _:
            planted.hardlink_to(canary)
    first, second = sweep(root), sweep(root, 2)
    if kind == "hard link":
        assert [deed.action for deed in (*first.deeds, *second.deeds)] == ["moved", "purged"]
    else:
        assert (first.deeds, second.deeds) == ((), ())
        assert [one.name for one in first.odd] == ["odd"]
        assert "payloads/" in first.odd[0].reason
        assert "odd" in live(root)
    assert canary.read_bytes() == b"alive"
    assert os.listdir(canary.parent) == ["canary"]


def test_removing_from_the_trash_follows_nothing_that_was_planted_there(root: Path, tmp_path: Path) -> None:
    canary = tmp_path / "outside" / "canary"
    canary.parent.mkdir()
    canary.write_bytes(b"alive")
    old(root, "old")
    sweep(root)
    payloads = next((root / ".trash").iterdir()) / "payloads"
    (payloads / "a").symlink_to(canary.parent)
    (payloads / "b").symlink_to(canary)
    os.mkfifo(payloads / "c")
    (payloads / "d" / "e").mkdir(parents=True)
    (payloads / "d" / "e" / "f").hardlink_to(canary)
    assert [deed.action for deed in sweep(root, 2).deeds] == ["purged"]
    assert (canary.read_bytes(), canary.stat().st_nlink) == (b"alive", 1)
    assert list((root / ".trash").iterdir()) == []


def test_a_link_at_payloads_is_a_doubt_and_is_not_followed(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / P).write_bytes(b"x" * 1_000_000)
    directory = make(root, "odd", 100)
    (directory / "payloads").symlink_to(outside)
    assert sweep(root).deeds == ()
    with Traces(root) as traces:
        (found,) = (c for c in traces.scan()[0] if c.session == "odd")
    assert found.bytes < 100_000
    assert (root / WORKSPACE / "odd").exists()
    assert (outside / P).stat().st_size == 1_000_000
