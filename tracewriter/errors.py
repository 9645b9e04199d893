"""What can be wrong, as a tree:

TraceError
├── ProtocolError        the peer broke the socket protocol (its connection is closed)
├── SessionUnavailable   a session cannot be recorded now; has a code (busy, locked, taken, bad_id, an errno name)
├── RetentionHeld        nothing may be deleted now; the message says why
├── NoWriter             nobody answers at the writer's socket, or no writer of ours
└── StartError           the writer cannot start; the message is for people and says what to do

Failures of the disk under a running writer are no exceptions: they are states of a session (`recorder`).
"""

from __future__ import annotations

import errno


class TraceError(Exception):
    """Base of all errors of this package."""


class ProtocolError(TraceError):
    """The peer sent what the protocol does not allow. Nothing more of its bytes is read."""


class SessionUnavailable(TraceError):
    """A session cannot be opened. retry_ms: when to ask again, -1 for never."""

    def __init__(self, code: str, message: str, retry_ms: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_ms = retry_ms


class RetentionHeld(TraceError):
    """Nothing may be deleted under this root now."""


class NoWriter(TraceError):
    """The writer cannot be asked. `absent`: nobody listens there, which is no fault."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class StartError(TraceError):
    """The writer cannot start."""


def errno_name(exc: OSError) -> str:
    """ENOSPC, EIO, …: the code under which an I/O failure is told."""
    return errno.errorcode.get(exc.errno or 0, "EIO")
