"""What a command works with: the surroundings of this process, as values, so that tests can give others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentctl.output import Output


class World(NamedTuple):
    """The caller's environment and directory, its standard input, and the only way to its terminal."""

    env: Mapping[str, str]
    cwd: str
    stdin: TextIO
    out: Output
