"""A workspace in a temporary directory, and calls of the tools on it, for the tests in this directory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Raw

from agentd.tools.base import ToolContext, ToolOutput
from agentd.tools.registry import run_tool, tools_for
from agentd.tools.workspace import Workspace
from tracewriter.events import ToolCall


class Tools:
    """Calls by name with keyword input, in build mode; outputs as the loop gets them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.context = ToolContext(Workspace(root), {})

    async def call(self, name: str, /, **fields: object) -> ToolOutput:
        call = ToolCall("call_1", name, Raw(msgspec.json.encode(fields)))
        return await run_tool(tools_for("build"), call, self.context)

    async def text(self, name: str, /, **fields: object) -> str:
        """The text of a call that must succeed."""
        output = await self.call(name, **fields)
        assert not output.is_error, output.text
        return output.text

    async def error(self, name: str, /, **fields: object) -> str:
        """The text of a call that must fail and change nothing."""
        before = tree(self.root)
        output = await self.call(name, **fields)
        assert output.is_error, output.text
        assert output.changes == ()
        assert tree(self.root) == before
        return output.text

    async def call_error(self, name: str, /, **fields: object) -> str:
        """The same where the tree cannot be looked at whole (FIFOs, huge files)."""
        output = await self.call(name, **fields)
        assert output.is_error, output.text
        assert output.changes == ()
        return output.text

    def put(self, path: str, data: bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file


def tree(root: Path) -> dict[str, bytes | None]:
    """Every path below `root`, with the contents of regular files."""
    found: dict[str, bytes | None] = {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = Path(directory, name)
            found[str(path.relative_to(root))] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    return found
