"""What write_file and edit_file share: a change needs a file the model has seen and that is still the same, and leaves a diff."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from agentd.tools.base import ToolContext, ToolOutput
from agentd.tools.blocking import Commit, run_stoppable
from agentd.tools.diff import unified_diff
from agentd.tools.workspace import PathError, Snapshot, Workspace
from tracewriter.events import FileChangeApplied

# A file is changed in memory, whole: source files are far smaller, and larger ones are not the work of a model.
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
# Paths remembered as seen in a session; beyond it the oldest must be read again.
MAX_SEEN: Final = 4_096
# Where git and ripgrep look for a NUL, too.
_SNIFF_BYTES: Final = 8_192


def sha256(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def is_binary(head: bytes) -> bool:
    """Whether contents that start like this are not text: a NUL in the first 8 KiB."""
    return b"\0" in head[:_SNIFF_BYTES]


def remember(seen: dict[str, str], path: str, digest: str) -> None:
    """Note what the model has seen of a path, as the newest, within MAX_SEEN paths."""
    seen.pop(path, None)
    if len(seen) >= MAX_SEEN:
        del seen[next(iter(seen))]
    seen[path] = digest


def check_seen(path: str, data: bytes, seen: str | None) -> None:
    """Raise PathError unless the model has read exactly this content."""
    if is_binary(data):
        raise PathError(path, "it is a binary file; it cannot be changed as text", "binary")
    if seen is None:
        raise PathError(
            path, "read it with read_file first; it exists and you have not read it in this session", "unread"
        )
    if seen != sha256(data):
        raise PathError(path, "it has changed since you read it; read it again with read_file", "changed")


class Change:
    """One change of one file, which a cancellation prevents or leaves whole."""

    def __init__(self) -> None:
        self.commit = Commit()

    def make(self, workspace: Workspace, path: str, before: Snapshot | None, data: bytes) -> FileChangeApplied | None:
        """Apply it; None when the content is the same already. Raises PathError, with nothing changed."""
        old = None if before is None else before.data
        if old == data:
            return None
        clean = workspace.locate(path)
        diff = unified_diff(clean, old, data)
        workspace.replace(path, data, before, self.commit.begin)
        return FileChangeApplied(clean, None if old is None else sha256(old), sha256(data), diff)


async def apply_change(path: str, context: ToolContext, work: Callable[[str | None, Change], ToolOutput]) -> ToolOutput:
    """Run `work` in a thread with what was seen of the path; what it wrote counts as seen. See run_stoppable for cancellation."""
    clean = context.workspace.locate(path)
    seen, change = context.seen.get(clean), Change()
    output = await run_stoppable(lambda: work(seen, change), change.commit.stop)
    for applied in output.changes:
        if applied.after is not None:
            remember(context.seen, applied.path, applied.after)
    return output
