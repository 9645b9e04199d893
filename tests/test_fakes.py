"""The fakes are held against the real thing: the same claims, the same outcome."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeClock, FaultyDisk, Operation
from tracewriter.clock import SYSTEM_CLOCK, Clock
from tracewriter.disk import REAL_DISK, Disk


@pytest.fixture
def dir_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["real", "faulty"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return REAL_DISK if request.param == "real" else FaultyDisk()


def test_what_is_appended_is_there_and_a_cut_removes_its_end(disk: Disk, dir_fd: int, tmp_path: Path) -> None:
    fd = disk.create("a", dir_fd)
    assert (disk.write(fd, b"one\n"), disk.write(fd, b"two\n")) == (4, 4)
    disk.truncate(fd, 4)
    disk.write(fd, b"x")
    assert disk.fstat(fd).st_size == disk.stat("a", dir_fd).st_size == 5
    disk.sync(fd)
    disk.close(fd)
    fd = disk.append("a", dir_fd)
    disk.write(fd, b"y")
    disk.close(fd)
    assert (tmp_path / "a").read_bytes() == b"one\nxy"


def test_a_name_that_is_taken_is_never_made_again(disk: Disk, dir_fd: int, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for name in ("dangling", "fifo", "file"):
        with pytest.raises(FileExistsError):
            disk.create(name, dir_fd)
    assert not (tmp_path / "nowhere").exists()


def test_only_a_plain_file_of_its_own_is_appended_to(disk: Disk, dir_fd: int, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "hard").hardlink_to(outside)
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("link", "hard", "fifo", "missing"):
            with pytest.raises(OSError, match=r"\w"):
                disk.append(name, dir_fd)
    finally:
        os.close(reader)


def test_files_and_directories_are_private_whatever_the_umask(disk: Disk, dir_fd: int) -> None:
    before = os.umask(0o777)
    try:
        sub = disk.open_dir("sub", dir_fd, create=True)
        fd = disk.create("file", sub)
    finally:
        os.umask(before)
    assert disk.fstat(sub).st_mode & 0o777 == 0o700
    assert disk.fstat(fd).st_mode & 0o777 == 0o600
    disk.close(fd)
    disk.close(sub)


def test_a_directory_is_never_opened_through_a_link(disk: Disk, dir_fd: int, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"\w"):
        disk.open_dir("link", dir_fd, create=True)


def test_replacing_and_removing(disk: Disk, dir_fd: int, tmp_path: Path) -> None:
    for name in ("old", "new"):
        fd = disk.create(name, dir_fd)
        disk.write(fd, name.encode())
        disk.close(fd)
    disk.replace("old", "new", dir_fd)
    assert disk.names(dir_fd) == ["new"]
    assert (tmp_path / "new").read_bytes() == b"old"
    disk.unlink("new", dir_fd)
    assert disk.names(dir_fd) == []
    with pytest.raises(FileNotFoundError):
        disk.unlink("new", dir_fd)
    with pytest.raises(FileNotFoundError):
        disk.replace("old", "new", dir_fd)


def test_a_full_disk_cuts_a_write_short_before_it_refuses_one(dir_fd: int) -> None:
    disk = FaultyDisk()
    fd = disk.create("a", dir_fd)
    disk.free = 3
    assert disk.write(fd, b"12345") == 3
    with pytest.raises(OSError, match="No space") as raised:
        disk.write(fd, b"45")
    assert raised.value.errno == errno.ENOSPC
    disk.truncate(fd, 1)
    assert (disk.free, disk.write(fd, b"xyz")) == (2, 2)
    disk.close(fd)
    disk.unlink("a", dir_fd)
    assert disk.free == 3


def test_the_log_replays_to_the_same_files(dir_fd: int) -> None:
    disk = FaultyDisk()
    fd = disk.create("a", dir_fd)
    disk.short.append(2)
    disk.once.append(("write", errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        disk.write(fd, b"lost")
    assert disk.write(fd, b"abc") == 2
    disk.truncate(fd, 1)
    disk.close(fd)
    disk.replace("a", "b", dir_fd)
    assert disk.open_fds == []
    assert disk.log == [
        Operation("create", "a"),
        Operation("write", "a", b"ab"),
        Operation("truncate", "a", size=1),
        Operation("replace", "a", new="b"),
    ]


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, FakeClock()])
def test_clocks_are_in_utc_and_never_go_back(clock: Clock) -> None:
    before = clock.monotonic()
    assert clock.now().utcoffset() is not None
    assert clock.now().utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    if isinstance(clock, FakeClock):
        clock.advance(5)
        clock.jump(-1000)
        assert clock.monotonic() == before + 5
    assert clock.monotonic() >= before
