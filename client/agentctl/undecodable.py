"""Bytes that are no UTF-8 reach a Python program as lone surrogates: they can be handed back to the kernel, but not sent as text.

A prompt is repaired, and said so; a name that would mean something else after a repair is refused. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentctl.errors import UsageProblem
from agentd.paths import config_file, runtime_dir, state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONE: Final = re.compile("[\ud800-\udfff]")
_PLACES: Final = ("AGENTD_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME")


def repaired(text: str) -> tuple[str, int]:
    """The text with U+FFFD for each such byte, and how many there were."""
    return _LONE.subn("\ufffd", text)


def require_text(what: str, value: str, hint: str = "") -> None:
    """Raises UsageProblem, naming what it is, for a value with such bytes. The value itself is not shown: it may be a key."""
    if _LONE.search(value):
        raise UsageProblem(f"{what} holds bytes that are no UTF-8 text", hint)


def require_places(env: Mapping[str, str]) -> None:
    """Raises UsageProblem, naming the variable, when configuration, state or sockets would be under such a name."""
    if not any(_LONE.search(place(env)) for place in (config_file, state_dir, runtime_dir)):
        return
    names = _PLACES[:1] if env.get("AGENTD_HOME") else _PLACES[1:]
    for name in names:
        require_text(name, env.get(name, ""), "agentd keeps its files there: set it to a directory with a plain name")
    raise UsageProblem(
        "the current directory's name holds bytes that are no UTF-8 text, and AGENTD_HOME is relative to it",
        "set AGENTD_HOME to an absolute path",
    )
