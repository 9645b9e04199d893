"""Bounded waiting, and what a test may ask of the machine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Final

import pytest

START_S: Final = 20.0  # bound of anything that should take well under a second, on a machine that is busy


def require_root() -> None:
    """Skip without root; in CI that is a failure, so that no skip hides there."""
    if os.geteuid() != 0:
        _missing("root")


def require_tool(name: str) -> str:
    """The path of a program. Without it: a skip; in CI a failure."""
    found = shutil.which(name)
    if found is None:
        _missing(name)
    return found or ""


def require_file(*candidates: str) -> str:
    """The first of these files that is there. With none: a skip; in CI a failure."""
    for candidate in candidates:
        if os.path.exists(candidate):
            return candidate
    _missing(candidates[0])
    return ""


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is needed here, and CI has to have it")
    pytest.skip(f"needs {what}")


def wait_for(done: Callable[[], bool], what: str, timeout_s: float = START_S) -> float:
    """Poll until done() is true; gives the seconds it took. Fails the test at the time-out."""
    started = time.monotonic()
    while not done():
        if time.monotonic() - started > timeout_s:
            pytest.fail(f"waited {timeout_s} s in vain for: {what}")
        time.sleep(0.01)
    return time.monotonic() - started
