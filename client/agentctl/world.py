"""What a command works with: the surroundings of this process, as values, so that tests can give others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentctl.output import Output


class Patience(NamedTuple):
    """How long a daemon that is there is waited for, in seconds. slow_s: when to say that it takes long."""

    slow_s: float = 5.0
    greet_s: float = 20.0
    call_s: float = 30.0


class World(NamedTuple):
    """The caller's environment and directory, its standard input, and the only way to its terminal.

    `started_as` is the word by which this process was called (argv's first).
    """

    env: Mapping[str, str]
    cwd: str
    stdin: TextIO
    out: Output
    patience: Patience = Patience()
    started_as: str = "agentctl"
