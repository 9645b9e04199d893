"""A home for the client's tests that is short enough for sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.agentctl.fake_daemon import FakeDaemon


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """The environment of a user who has nothing but a home."""
    home = tempfile.mkdtemp(prefix="agentctl-")
    yield {"HOME": home, "AGENTD_HOME": f"{home}/a", "PATH": "/usr/bin:/bin"}
    shutil.rmtree(home)


@pytest.fixture
def daemon(env: dict[str, str]) -> Iterator[FakeDaemon]:
    """A daemon that listens where the client looks."""
    with FakeDaemon(env) as fake:
        yield fake
