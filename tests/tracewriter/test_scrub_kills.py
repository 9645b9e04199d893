"""A scrub that is killed, or that the disk fails, at each thing it does: the old trace or the new one, whole, and never a mix."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.strategies import SESSION, lines_of
from tests.tracewriter.harness import KEY, OTHER_LIFE
from tests.tracewriter.scrub_sessions import (
    EXACT,
    WORKSPACE,
    FaultyScrubDisk,
    a_scrub,
    an_old_session,
    closing,
    contents,
    found,
    intact,
    leaks,
    open_fds,
)
from tracewriter.config import Limits
from tracewriter.disk import REAL_DISK
from tracewriter.journal import Journal, Producer
from tracewriter.reader import list_sessions
from tracewriter.redact import Redactor
from tracewriter.scrub import Scrub
from tracewriter.scrub_disk import SCRUB

TOLD = ["see ghp_a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8i9J0 here", f"and {EXACT}."]
PLAIN = ["ghp_a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8i9J0", EXACT]


class CountedDisk(FaultyScrubDisk):
    """Does something at its nth operation; half of a write is done then."""

    def __init__(self, at: int = -1, code: int = 0) -> None:
        super().__init__()
        self.at, self.code, self.done = at, code, 0
        self.operations: list[str] = []

    def before(self, operation: str, name: str) -> None:
        self.operations.append(operation)
        number, self.done = self.done, self.done + 1
        if number == self.at:
            self.strike()

    def strike(self) -> None:
        raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, data: bytes) -> int:
        if self.done == self.at:
            REAL_DISK.write(fd, data[: len(data) // 2])
        return super().write(fd, data)


class KillingDisk(CountedDisk):
    """kill -9 at its nth operation."""

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class WithoutExchange(FaultyScrubDisk):
    """A file system that cannot do it."""

    def exchange(self, one: str, one_fd: int, other: str, other_fd: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def operations(root: Path) -> list[str]:
    """All that a scrub does."""
    an_old_session(root, TOLD)
    disk = CountedDisk()
    assert a_scrub(root, disk=disk).apply(WORKSPACE, SESSION).state == "scrubbed"
    return disk.operations


def either(root: Path, old: dict[str, bytes]) -> bool:
    """The session is the old one to the byte, or the new one, verified; which of them."""
    directory = root / WORKSPACE / SESSION
    intact(directory)
    assert [entry.session for entry in list_sessions(root)] == [SESSION]
    now = contents(directory)
    if now == old:
        return False
    assert leaks(directory, PLAIN) == []
    items = found(directory)
    assert items[-2].record.event == "trace.scrub.applied"
    assert {item.state for item in items} == {"verified"}
    return True


def in_a_child(root: Path, at: int) -> int:
    """A scrub in a process of its own, killed at its nth operation. Its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            Scrub(root, Redactor((EXACT,)), disk=KillingDisk(at)).apply(WORKSPACE, SESSION)
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_killed_anywhere_there_is_the_old_trace_or_the_new_one(tmp_path: Path) -> None:
    done = operations(tmp_path / "whole")
    assert {"open_dir", "create", "write", "sync", "replace", "exchange", "unlink", "rmdir"} <= set(done)
    old = contents(an_old_session(tmp_path / "old", TOLD))
    states = []
    for at in range(len(done)):
        root = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "old", root)
        assert os.WIFSIGNALED(in_a_child(root, at))
        states.append(either(root, old))
        if at % 2:
            goes_on(root)
        result = a_scrub(root).apply(WORKSPACE, SESSION)
        assert result.state == ("clean" if states[-1] else "scrubbed"), result
        intact(root / WORKSPACE / SESSION)
        assert leaks(root, PLAIN) == []
        assert not (root / SCRUB).exists()
        shutil.rmtree(root)
    assert states == sorted(states), "one moment in which it changes"
    assert states.index(True) == done.index("exchange") + 1


def goes_on(root: Path) -> None:
    """Another life records in the session, whatever the kill left, and closes it in order."""
    root_fd = os.open(root, os.O_RDONLY)
    directory = root / WORKSPACE / SESSION
    last = found(directory)[-1].end
    journal = Journal.open(REAL_DISK, root_fd, KEY, Producer(OTHER_LIFE), Limits())
    assert journal.last == last
    assert journal.append(lines_of(last + 1, 2) + closing(last + 3), 3, last + 3, lambda k: last + k).error is None
    journal.seal()
    assert journal.note_digests() is None
    journal.close()
    os.close(root_fd)
    intact(directory)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_operation_that_fails_leaves_one_or_the_other_and_says_so(tmp_path: Path, code: int) -> None:
    done = operations(tmp_path / "whole")
    old = contents(an_old_session(tmp_path / "old", TOLD))
    said = set()
    for at in range(len(done)):
        root = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "old", root)
        fds = open_fds()
        result = a_scrub(root, disk=CountedDisk(at, code)).apply(WORKSPACE, SESSION)
        assert open_fds() == fds
        new = either(root, old)
        said.add(result.state)
        if result.state == "failed":
            assert not new
            assert errno.errorcode[code] in result.reason or "seal" in result.reason
        elif result.state == "left":
            assert new
            assert result.reason
        else:
            assert (result.state, new, leaks(root, PLAIN)) == ("scrubbed", True, [])
        assert a_scrub(root).apply(WORKSPACE, SESSION).state == ("clean" if new else "scrubbed")
        assert leaks(root, PLAIN) == []
        assert not (root / SCRUB).exists()
        shutil.rmtree(root)
    assert {"failed", "left"} <= said


def test_a_full_disk_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    directory = an_old_session(root, TOLD)
    old = contents(root)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    for free in range(0, size, size // 40):
        result = a_scrub(root, disk=FaultyScrubDisk(free)).apply(WORKSPACE, SESSION)
        assert result.state == "failed"
        assert "ENOSPC" in result.reason or "seal" in result.reason
        assert contents(root) == old
        assert sorted(path.name for path in root.iterdir()) == [WORKSPACE]


def test_a_file_system_without_the_exchange_is_refused(tmp_path: Path) -> None:
    an_old_session(tmp_path, TOLD)
    old = contents(tmp_path)
    result = a_scrub(tmp_path, disk=WithoutExchange()).apply(WORKSPACE, SESSION)
    assert (result.state, "cannot exchange two directories" in result.reason) == ("failed", True)
    assert contents(tmp_path) == old


def test_two_renames_in_place_of_the_exchange_would_be_caught(tmp_path: Path) -> None:
    """The check can fail: a kill between them leaves no session."""

    class TwoRenames(KillingDisk):
        def exchange(self, one: str, one_fd: int, other: str, other_fd: int) -> None:
            os.rename(one, other + ".old", src_dir_fd=one_fd, dst_dir_fd=other_fd)
            self.strike()

    root = tmp_path / "root"
    old = contents(an_old_session(root, TOLD))
    pid = os.fork()
    if pid == 0:
        try:
            a_scrub(root, disk=TwoRenames()).apply(WORKSPACE, SESSION)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    with pytest.raises(FileNotFoundError):
        either(root, old)


class Forgetful(FaultyScrubDisk):
    """Writes something else than it was told, once, at the nth write."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def write(self, fd: int, data: bytes) -> int:
        self.at -= 1
        wrong = data.replace(b'"n":', b'"m":') if self.at == 0 else data
        return super().write(fd, wrong)


def test_new_files_that_are_not_what_they_should_be_are_never_put_in_place(tmp_path: Path) -> None:
    failed = 0
    for at in range(1, 12):
        root = tmp_path / f"{at}"
        an_old_session(root, TOLD)
        old = contents(root)
        result = a_scrub(root, disk=Forgetful(at)).apply(WORKSPACE, SESSION)
        if result.state == "failed":
            failed += 1
            assert "not what they should be" in result.reason
            assert contents(root) == old
    assert failed > 0
