"""The trace root's descriptor follows its path; what was deleted is made again, as safely as at start, and nothing else is."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracewriter.root import follow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "traces"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def fd(root: Path) -> Iterator[int]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def _leads_to(fd: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(fd), path.stat())


def test_where_it_leads_is_told_and_followed(root: Path, fd: int) -> None:
    assert follow(str(root), fd) == ""
    root.rename(root.with_name("old"))
    assert follow(str(root), fd) == "gone"
    assert _leads_to(fd, root.with_name("old"))
    assert not root.exists()
    root.mkdir()
    assert follow(str(root), fd) == "replaced"
    assert _leads_to(fd, root)


@pytest.mark.parametrize("parents_too", [False, True])
def test_one_that_was_deleted_is_made_again_private_and_with_its_parents(
    root: Path, fd: int, parents_too: bool
) -> None:
    shutil.rmtree(root.parent if parents_too else root)
    umask = os.umask(0)
    try:
        assert follow(str(root), fd) == "made"
    finally:
        os.umask(umask)
    assert _leads_to(fd, root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert not parents_too or stat.S_IMODE(root.parent.stat().st_mode) == 0o700
    assert not os.get_inheritable(fd)
    assert follow(str(root), fd) == ""


def test_a_link_in_its_place_is_not_followed_into_nothing(tmp_path: Path, root: Path, fd: int) -> None:
    root.rmdir()
    root.symlink_to(tmp_path / "elsewhere")
    assert follow(str(root), fd) == "gone"
    assert not (tmp_path / "elsewhere").exists()


def test_what_cannot_be_made_again_is_told_and_made_when_it_can(tmp_path: Path, root: Path, fd: int) -> None:
    root.rmdir()
    root.parent.rmdir()
    root.parent.write_bytes(b"a file where a directory was")
    assert follow(str(root), fd) == "deleted"
    root.parent.unlink()
    assert follow(str(root), fd) == "made"
    assert _leads_to(fd, root)
