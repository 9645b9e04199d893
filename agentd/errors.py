"""Errors of the daemon. Each carries one readable line and a hint that says what to do next.

    AgentdError
    ├── StartError       the daemon cannot start here (lock held, directory not writable); exit 1
    │   └── ConfigError  config.toml cannot be used: the user's to mend; exit 2
    └── Refusal          a request that is answered with an error: kind, message and hint go to the client

What a model, a tool or the recorder fails at is not here: those failures are events.
"""

from __future__ import annotations


class AgentdError(Exception):
    """Base of all: `str(error)` is the line for people, `hint` the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StartError(AgentdError):
    """The daemon cannot start."""


class AlreadyRuns(StartError):
    """Another daemon serves this runtime directory, or is just ending: whoever wants one may ask again."""


class ConfigError(StartError):
    """The configuration cannot be used."""


class Refusal(AgentdError):
    """A request was understood and is refused. `kind` is one of PROTOCOL.md's."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind
