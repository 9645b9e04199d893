"""Which tools a session has, and how a call of one is run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agentd.tools.base import Tool, ToolContext, ToolOutput
from agentd.tools.edit import EDIT_FILE
from agentd.tools.files import LIST_FILES, READ_FILE, WRITE_FILE
from agentd.tools.search import SEARCH
from agentd.tools.typed import FAILURES, cut, failed
from agentd.tools.workspace import shown
from tracewriter.events import ToolCall

ALL_TOOLS: Final[tuple[Tool, ...]] = (LIST_FILES, READ_FILE, SEARCH, WRITE_FILE, EDIT_FILE)

# Modes that may change files. Any other, known or not, is read-only.
WRITING_MODES: Final = frozenset({"build", "swe"})


def tools_for(mode: str) -> tuple[Tool, ...]:
    """The tools of a mode, in the order the model is told of them."""
    return tuple(tool for tool in ALL_TOOLS if mode in WRITING_MODES or not tool.writes)


def find_tool(tools: Iterable[Tool], name: str) -> Tool | None:
    """The tool of that name, if it is one of these."""
    return next((tool for tool in tools if tool.spec.name == name), None)


async def run_tool(tools: tuple[Tool, ...], call: ToolCall, context: ToolContext) -> ToolOutput:
    """Run a call. An unknown tool, unfit input and a failing disk come back as is_error, and over-long text is cut.

    asyncio.CancelledError and programming errors pass. A change that was made just as the task was cancelled is returned,
    and the cancellation comes at the task's next await.
    """
    tool = find_tool(tools, call.name)
    if tool is None:
        return ToolOutput(_unknown(tools, call.name), is_error=True)
    try:
        return cut(await tool.run(call.input, context))
    except FAILURES as error:
        return failed(error, tool.spec)


def _unknown(tools: tuple[Tool, ...], name: str) -> str:
    names = ", ".join(tool.spec.name for tool in tools)
    if find_tool(ALL_TOOLS, name):
        return f"{name} is not available: this session's mode is read-only. Available: {names}"
    return f"There is no tool {shown(name, 100)}. Available: {names}"
