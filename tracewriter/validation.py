"""What a producer may call a session: names that are safe as directory names, and nothing else."""

from __future__ import annotations

import re
from typing import Final

from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Key

_SESSION_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_MAX_PATH: Final = 4096


def checked_key(session: str, workspace: str) -> Key:
    """The session's key. Raises SessionUnavailable bad_id, for good, when the id or the workspace cannot be used."""
    if not _SESSION_ID.match(session):
        raise SessionUnavailable(
            "bad_id", "session ids are 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit"
        )
    if not workspace.startswith("/") or len(workspace) > _MAX_PATH or "\0" in workspace:
        raise SessionUnavailable("bad_id", "the workspace must be an absolute path of at most 4,096 characters")
    return Key(session, workspace)
