"""The writer lock: held means alive, nothing is stale, nothing planted at its place is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracewriter import lock
from tracewriter.errors import SessionUnavailable


@pytest.fixture
def dir_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_one_holder_at_a_time_and_free_as_soon_as_it_is_gone(dir_fd: int, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not lock.is_held(path)
    held = lock.acquire(dir_fd)
    assert lock.is_held(path)
    with pytest.raises(SessionUnavailable) as refused:
        lock.acquire(dir_fd)
    assert (refused.value.code, refused.value.retry_ms > 0) == ("locked", True)
    other = os.open(path, os.O_RDWR)  # closing another descriptor of the file must not free it
    os.close(other)
    assert lock.is_held(path)
    os.close(held)
    assert not lock.is_held(path)
    os.close(lock.acquire(dir_fd))


def test_asking_does_not_disturb_the_holder_or_the_next_one(dir_fd: int, tmp_path: Path) -> None:
    for _ in range(3):
        held = lock.acquire(dir_fd)
        assert lock.is_held(str(tmp_path / "lock"))
        os.close(held)
        assert not lock.is_held(str(tmp_path / "lock"))


@pytest.mark.parametrize("kind", ["symlink", "dangling", "hard link", "fifo", "directory"])
def test_what_is_planted_at_the_locks_place_is_refused_and_not_touched(kind: str, dir_fd: int, tmp_path: Path) -> None:
    path, outside = tmp_path / "lock", tmp_path / "outside"
    outside.write_bytes(b"x")
    outside.chmod(0o644)
    match kind:
        case "symlink":
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
        case "hard link":
            path.hardlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(SessionUnavailable):
        lock.acquire(dir_fd)
    assert (outside.read_bytes(), outside.stat().st_mode & 0o777) == (b"x", 0o644)
    assert not (tmp_path / "nowhere").exists()
    assert not lock.is_held(str(path))


def test_it_is_private_whatever_the_umask(dir_fd: int, tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        held = lock.acquire(dir_fd)
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    os.close(held)


def test_the_lock_of_a_directory_that_was_moved_away_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    fd = os.open(tmp_path / "session", os.O_RDONLY | os.O_DIRECTORY)
    first = lock.acquire(fd)
    (tmp_path / "session" / "lock").unlink()
    second = lock.acquire(fd)  # another file has the name now: both hold a lock, of different files
    assert not os.path.samestat(os.fstat(first), os.fstat(second))
    os.close(first)
    os.close(second)
    os.close(fd)
