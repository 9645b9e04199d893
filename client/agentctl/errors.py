"""What can stop a command, as one readable line, what to do next, and the exit code.

    ClientError
    ├── UsageProblem   2  the command line, a key, a model, a session id
    ├── NoDaemon       3  nobody answers, or it cannot be started
    │   ├── DaemonGone 3  the connection ended (1 once a run was accepted)
    │   └── NoAnswer   3  it is there, but does not answer (1 once a run was accepted)
    └── Refused        4  the daemon answered, and said no

Exit codes of a command that ran: 0 done, 1 the run did not complete, 5 damage found, 130 interrupted.
"""

from __future__ import annotations

from typing import ClassVar, Final

DONE: Final = 0
INCOMPLETE: Final = 1
USAGE: Final = 2
NO_DAEMON: Final = 3
REFUSED: Final = 4
DAMAGED: Final = 5
INTERRUPTED: Final = 130


class ClientError(Exception):
    """Ends the command. `hint` says what to do next; both may hold untrusted text, so they are only shown through Output.

    `kind` is PROTOCOL.md's word for why, "" when the daemon had no part in it.
    """

    exit_code: ClassVar[int] = INCOMPLETE

    def __init__(self, message: str, hint: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind


class UsageProblem(ClientError):
    """What was asked for does not exist or is incomplete."""

    exit_code = USAGE


class NoDaemon(ClientError):
    """agentd is not running and could not be started, or does not speak to us."""

    exit_code = NO_DAEMON


class DaemonGone(NoDaemon):
    """The daemon closed the connection."""


class NoAnswer(NoDaemon):
    """The daemon is there, and did not answer in time: another one cannot take its place."""


class Refused(ClientError):
    """The daemon answered and refused."""

    exit_code = REFUSED
