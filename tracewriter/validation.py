"""What a producer may call itself and a session, and how much it may have kept out: names that are safe on disk, bounded lists."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from tracewriter.errors import ProtocolError, SessionUnavailable
from tracewriter.journal import Key
from tracewriter.redact import CannotRedact, Redactor

_SESSION_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_LIFE: Final = re.compile(r"[0-9a-f]{16}\Z")
_MAX_PATH: Final = 4096
_MAX_SECRETS: Final = 1024  # of a session; the automaton over one character takes the writer KiBs
_MAX_SECRETS_CHARS: Final = 64 * 1024  # the producer's bound: a 1 MiB frame of them would take the writer GiBs


def check_life(producer: str) -> None:
    """Raises ProtocolError for what is no producer's id. It stands in the header lines of segments, which are not redacted."""
    if not _LIFE.match(producer):
        raise ProtocolError("a producer's id is 16 hex digits")


def check_secrets(secrets: tuple[str, ...]) -> None:
    """Raises SessionUnavailable, for good: what cannot be kept out of a record is not recorded."""
    if len(secrets) > _MAX_SECRETS or sum(map(len, secrets)) > _MAX_SECRETS_CHARS:
        message = (
            f"{_MAX_SECRETS:,} secrets of {_MAX_SECRETS_CHARS:,} characters in all are the most that can be kept out"
        )
        raise SessionUnavailable("limit", message)


def checked_key(session: str, workspace: str) -> Key:
    """The session's key. Raises SessionUnavailable bad_id, for good, when the id or the workspace cannot be used."""
    if not _SESSION_ID.match(session):
        raise SessionUnavailable(
            "bad_id", "session ids are 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit"
        )
    if _is_secret(session):
        raise SessionUnavailable("bad_id", "the session's id looks like a secret; it would be a name on disk")
    if not workspace.startswith("/") or len(workspace) > _MAX_PATH or "\0" in workspace:
        raise SessionUnavailable("bad_id", "the workspace must be an absolute path of at most 4,096 characters")
    return Key(session, workspace)


@cache
def _rules() -> Redactor:
    return Redactor()


def _is_secret(session: str) -> bool:
    """The id is in the name of a directory and in the head of each record, which redaction leaves alone."""
    try:
        return _rules().redact_text(session) != session
    except CannotRedact:
        return True
