"""What a tool is: a spec for the model, and a function from JSON input to text. A tool's failure is output, not an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Raw, Struct

if TYPE_CHECKING:
    from agentd.providers.stream import ToolSpec
    from agentd.tools.workspace import Workspace
    from tracewriter.events import FileChangeApplied, FileCheckFailed, WorkspaceChangeObserved

# What the model gets of one result (design: 20,000 characters); the record says how long the whole was.
MAX_RESULT_CHARS: Final = 20_000


class ToolOutput(Struct, frozen=True):
    """What a call gave. `text` is at most MAX_RESULT_CHARS long; `chars` is the full length when it was cut. observed: what it
    found out besides about files.
    """

    text: str
    is_error: bool = False
    chars: int | None = None
    changes: tuple[FileChangeApplied, ...] = ()
    observed: tuple[FileCheckFailed | WorkspaceChangeObserved, ...] = ()


class ToolContext(Struct):
    """What calls of one session share: the workspace, and the contents (SHA-256 by path) that the model has seen."""

    workspace: Workspace
    seen: dict[str, str]


class Tool(Protocol):
    """One tool. `writes` is true when it may change files: then calls are run one at a time and only in build modes."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description and input schema."""

    @property
    def writes(self) -> bool:
        """Whether a call may change the workspace."""

    async def run(self, arguments: Raw, context: ToolContext) -> ToolOutput:
        """Run one call. Wrong input, missing files and refusals come back with is_error, saying what to do instead."""
