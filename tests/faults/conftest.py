"""Fault tests run real processes: nightly variants only when asked, mounts only in a namespace of our own, nobody left behind."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.faults.harness import Lab, require_root, require_tool

_HERE: Final = Path(__file__).parent
_CLONE_NEWNS: Final = 0x00020000


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked nightly, unless AGENTD_NIGHTLY=1."""
    if os.environ.get("AGENTD_NIGHTLY") == "1":
        return
    nightly = [i for i in items if _HERE in i.path.parents and i.get_closest_marker("nightly") is not None]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A socket, a trace root, and the processes of one test; all are ended with it."""
    lab = Lab(tmp_path)
    try:
        yield lab
    finally:
        lab.end()


@pytest.fixture(scope="session")
def own_mounts() -> None:
    """This process's own mount namespace: what is mounted is seen by it and its children only, and dies with them."""
    require_root()
    require_tool("mount")
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        pytest.fail(f"unshare: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, timeout=10)
