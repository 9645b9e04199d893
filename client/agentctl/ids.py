"""Session ids shortened like git's. Pure, but for the one listing of directory names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from agentctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Named in full when an id is ambiguous; more help nobody.
MAX_CANDIDATES = 8


class Recorded(NamedTuple):
    """A session directory: its id is its name."""

    session: str
    path: str


def matching(typed: str, sessions: Iterable[Recorded]) -> list[Recorded]:
    """The sessions with exactly this id, else those whose id begins with what was typed."""
    wanted = typed.lower()
    begin = [one for one in sessions if wanted and one.session.startswith(wanted)]
    return [one for one in begin if one.session == wanted] or begin


def choose(typed: str, sessions: Iterable[Recorded]) -> Recorded:
    """The one session whose id is, or begins with, what was typed. Raises UsageProblem naming the candidates."""
    found = matching(typed, sessions)
    if not found:
        raise UsageProblem(f"no session {typed!r} is recorded", "agentctl trace ls")
    if len(found) > 1:
        same = len({one.session for one in found}) == 1
        names = sorted(one.path if same else one.session for one in found)
        more = f" and {len(names) - MAX_CANDIDATES} more" if len(names) > MAX_CANDIDATES else ""
        raise UsageProblem(f"{typed!r} is ambiguous: {', '.join(names[:MAX_CANDIDATES])}{more}", "give more of it")
    return found[0]


def choose_run(typed: str, runs: Sequence[str]) -> str:
    """The one run of a session whose id begins with what was typed. Raises UsageProblem naming those that there are."""
    found = [run for run in runs if run.startswith(typed.lower())]
    if len(found) == 1:
        return found[0]
    names = ", ".join(runs[:MAX_CANDIDATES]) or "none"
    more = f" and {len(runs) - MAX_CANDIDATES} more" if len(runs) > MAX_CANDIDATES else ""
    many = "more than one" if found else "no"
    raise UsageProblem(f"{many} run {typed!r} in this session", f"its runs: {names}{more}")


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
