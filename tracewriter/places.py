"""Where the files and sockets of agentd and its recorder are: the rule, once, for every program. Needs nothing but `os`.

With AGENTD_HOME everything is in that one directory; otherwise the XDG base directories decide. Every function takes the
environment as a parameter and returns an absolute path; none of them touches the disk.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's import alone would cost more than this module
if TYPE_CHECKING:
    from collections.abc import Mapping


def config_file(env: Mapping[str, str]) -> str:
    """The user's config.toml; it need not exist."""
    home = _agentd_home(env)
    return os.path.join(
        home if home else os.path.join(_xdg(env, "XDG_CONFIG_HOME", ".config"), "agentd"), "config.toml"
    )


def state_dir(env: Mapping[str, str]) -> str:
    """The directory of what must survive: sessions.db and traces/."""
    home = _agentd_home(env)
    return home if home else os.path.join(_xdg(env, "XDG_STATE_HOME", os.path.join(".local", "state")), "agentd")


def traces_dir(env: Mapping[str, str]) -> str:
    """The root of all records."""
    return os.path.join(state_dir(env), "traces")


def runtime_dir(env: Mapping[str, str]) -> str:
    """The directory of sockets, locks and logs of running processes."""
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if not _agentd_home(env) and os.path.isabs(runtime):
        return os.path.join(runtime, "agentd")
    return os.path.join(state_dir(env), "run")


def writer_socket(env: Mapping[str, str]) -> str:
    """The recorder's socket."""
    return os.path.join(runtime_dir(env), "tracewriter.sock")


def switched_off(env: Mapping[str, str]) -> bool:
    """Whether the user wants nothing recorded: AGENTD_NO_TRACE is set, and not to 0."""
    return env.get("AGENTD_NO_TRACE", "") not in ("", "0")


def _agentd_home(env: Mapping[str, str]) -> str:
    home = env.get("AGENTD_HOME", "")
    return os.path.abspath(home) if home else ""


def _xdg(env: Mapping[str, str], name: str, default: str) -> str:
    value = env.get(name, "")
    if os.path.isabs(value):  # the XDG specification says to ignore relative ones
        return value
    home = env.get("HOME", "")
    return os.path.join(home if os.path.isabs(home) else os.path.expanduser("~"), default)
