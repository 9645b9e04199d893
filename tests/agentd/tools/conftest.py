"""The fixture that the tests of the tools share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agentd.tools.tool_calls import Tools


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    root = tmp_path / "ws"
    root.mkdir()
    made = Tools(root)
    yield made
    made.context.workspace.close()
