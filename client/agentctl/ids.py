"""Session ids shortened like git's. Pure, but for the one listing of directory names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from agentctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

# Named in full when an id is ambiguous; more help nobody.
MAX_CANDIDATES = 8


class Recorded(NamedTuple):
    """A session directory: its id is its name."""

    session: str
    path: str


def choose(typed: str, sessions: Iterable[Recorded]) -> Recorded:
    """The one session whose id is, or begins with, what was typed. Raises UsageProblem naming the candidates."""
    wanted = typed.lower()
    begin = [one for one in sessions if one.session.startswith(wanted)]
    exact = [one for one in begin if one.session == wanted]
    found = exact or begin
    if not wanted or not found:
        raise UsageProblem(f"no session {typed!r} is recorded", "agentctl trace ls")
    if len(found) > 1:
        names = sorted(one.session if len(exact) < 2 else one.path for one in found)
        more = f" and {len(names) - MAX_CANDIDATES} more" if len(names) > MAX_CANDIDATES else ""
        raise UsageProblem(f"{typed!r} is ambiguous: {', '.join(names[:MAX_CANDIDATES])}{more}", "give more of it")
    return found[0]


def recorded(root: str) -> list[Recorded]:
    """Every session directory under the traces' root, in no order. Nothing there is an empty list; names only are read."""
    found = []
    for workspace in _directories(root):
        found += [Recorded(entry.name, entry.path) for entry in _directories(workspace.path)]
    return found


def _directories(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [
                entry for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
