"""A home for each test, and nobody left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.harness import Home


@pytest.fixture
def home() -> Iterator[Home]:
    """A home of its own; its processes end with the test."""
    with Home() as home:
        yield home
