"""Start agentd when nobody answers, and wait until it does.

Clients may race: each starts one, the daemon's own lock lets one live, and all find that one. So the death of the process
started here is no failure while another may still come up; only when nobody answers in the end is it told, with the last
line of the log.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final, Protocol

from agentctl.connection import Connection, Stopping, connect, greet
from agentctl.errors import DaemonGone, NoDaemon
from agentctl.log_file import last_line, open_log, where_it_says_more
from agentd.paths import agentd_socket, private_dir, runtime_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentctl.wire import Hello
    from agentctl.world import Patience

    Note = Callable[[str], None]

READY_S: Final = 20.0
# When the one started here died, another client's may be about to answer; when none does, the lock may have been held by
# a daemon that was just ending, so it is tried again.
OTHERS_S: Final = 0.7
ALREADY_RUNS: Final = 3  # agentd's exit code when another one serves, or is just ending: worth another try
MAX_STARTS: Final = 3  # but one that says its configuration is wrong would only say so again
_SECRET_WORDS: Final = frozenset(
    {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "PAT", "CREDENTIALS", "AUTH"}
)


class Child(Protocol):
    """A daemon that was started here."""

    def exit_code(self) -> int | None:
        """None while it runs."""

    def last_words(self) -> str:
        """The last line it wrote to its log, "" when it wrote none."""

    def release(self) -> None:
        """It outlives us."""


def find_daemon(
    env: Mapping[str, str], patience: Patience | None = None, note: Note | None = None
) -> tuple[Connection, Hello] | None:
    """The running daemon, greeted; None when there is none. Raises NoDaemon when it cannot be spoken to."""
    connection = connect(agentd_socket(env), patience, note)
    if connection is None:
        return None
    try:
        return connection, greet(connection)
    except BaseException:
        connection.close()
        raise


def open_daemon(
    env: Mapping[str, str],
    start: Callable[[Mapping[str, str]], Child] | None = None,
    patience: Patience | None = None,
    note: Note | None = None,
) -> tuple[Connection, Hello]:
    """The running daemon, or a new one, greeted. Raises NoDaemon saying why there is none.

    `note` gets a line when a daemon takes long to answer, or is started without a log.
    """
    deadline = time.monotonic() + READY_S
    child: Child | None = None
    starts = 0
    died_at = 0.0
    pause = 0.005
    met: DaemonGone | None = None
    try:
        while True:
            found, met = _try(env, patience, note, met)
            if found is not None:
                return found
            now = time.monotonic()
            if child is None:
                child = start(env) if start is not None else start_agentd(env, note=note if not starts else None)
                starts, died_at = starts + 1, 0.0
            elif child.exit_code() is not None and not died_at:
                died_at = now
            elif now >= deadline or (
                _gave_up(died_at, now) and (starts == MAX_STARTS or child.exit_code() != ALREADY_RUNS)
            ):
                raise met if met is not None and child.exit_code() == ALREADY_RUNS else _not_started(child, env)
            elif _gave_up(died_at, now):
                child.release()
                child = None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
    finally:
        if child is not None:
            child.release()


def _gave_up(died_at: float, now: float) -> bool:
    return died_at > 0 and now >= died_at + OTHERS_S


def _try(
    env: Mapping[str, str], patience: Patience | None, note: Note | None, met: DaemonGone | None
) -> tuple[tuple[Connection, Hello] | None, DaemonGone | None]:
    """The daemon, when there is one, and how the last one that was met sent us away."""
    try:
        return find_daemon(env, patience, note), met
    except DaemonGone as problem:
        return None, problem  # one that is just ending (the next look finds nobody), or has no room
    except Stopping:
        return None, met


def _not_started(child: Child, env: Mapping[str, str]) -> NoDaemon:
    log = log_file(env)
    words = child.last_words().removeprefix("agentd: ")
    code = child.exit_code()
    how = "did not answer in time" if code is None else f"ended with exit code {code}"
    return NoDaemon(f"agentd {how}: {words}" if words else f"agentd {how}", where_it_says_more(log))


def log_file(env: Mapping[str, str]) -> str:
    """Where a daemon started by a client writes what it has to say."""
    return os.path.join(runtime_dir(env), "agentd.log")


def start_agentd(env: Mapping[str, str], python: str = sys.executable, note: Note | None = None) -> Child:
    """Start the enabled systemd unit, else a detached process. Raises NoDaemon when neither can be started.

    Where its log should be may lie something else, as old as a mistake or as new as an attack: it is neither waited for
    nor followed, the daemon starts without a log, and `note` gets a line about it.
    """
    unit = enabled_unit(env)
    if unit and _systemctl_start(unit):
        return _Unit(unit)
    try:
        private_dir(runtime_dir(env))
        log, problem_of_log = open_log(log_file(env))
    except OSError as problem:
        where = problem.filename or runtime_dir(env)
        reason = problem.strerror or str(problem)
        raise NoDaemon(
            f"cannot write to {where}: {reason}", "agentd needs a directory of its own: set AGENTD_HOME to one"
        ) from problem
    if problem_of_log and note is not None:
        note(f"agentd starts without a log: {problem_of_log}")
    try:
        return _Process([python, "-P", "-m", "agentd", "serve"], daemon_env(env), log, log_file(env))
    except OSError as problem:
        raise NoDaemon(f"cannot start {python}: {problem.strerror}") from problem
    finally:
        os.close(log)


def daemon_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a daemon for all sessions: without what belongs to the shell that happens to start it.

    Keys, proxies (passwords stand in them), base URLs and AGENTD_NO_TRACE come with each session instead.
    """
    kept = {name: value for name, value in env.items() if not _is_personal(name)}
    if kept.get("AGENTD_HOME"):
        kept["AGENTD_HOME"] = os.path.abspath(kept["AGENTD_HOME"])  # the daemon's directory is /
    return kept


def _is_personal(name: str) -> bool:
    upper = name.upper()
    if upper == "AGENTD_NO_TRACE" or upper.endswith(("_PROXY", "_BASE_URL", "APIKEY")):
        return True
    return not _SECRET_WORDS.isdisjoint(upper.split("_"))


def enabled_unit(env: Mapping[str, str]) -> str:
    """agentd.socket or agentd.service when the user has enabled it, else "". Units know nothing of AGENTD_HOME."""
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", ""), ".config")
    if env.get("AGENTD_HOME") or not os.path.isabs(home):
        return ""
    units = os.path.join(home, "systemd", "user")
    try:
        wants = [name for name in os.listdir(units) if name.endswith(".wants")]
    except OSError:
        return ""
    for unit in ("agentd.socket", "agentd.service"):
        if any(os.path.lexists(os.path.join(units, name, unit)) for name in wants):
            return unit
    return ""


def _systemctl_start(unit: str) -> bool:
    import subprocess

    try:
        command = ["systemctl", "--user", "start", unit]
        return subprocess.run(command, capture_output=True, timeout=15, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class _Process:
    """A detached daemon: its own session, no pipe of ours, its errors in the log."""

    def __init__(self, command: list[str], env: dict[str, str], log: int, path: str) -> None:
        import subprocess

        self._path = path
        self._from = os.fstat(log).st_size
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env=env,
            start_new_session=True,
        )

    def exit_code(self) -> int | None:
        return self._process.poll()

    def last_words(self) -> str:
        return last_line(self._path, self._from)

    def release(self) -> None:
        # It is meant to outlive this process; Popen's destructor would warn that it does.
        if self._process.returncode is None:
            self._process.returncode = 0


class _Unit:
    """A daemon that systemd runs."""

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def exit_code(self) -> int | None:
        return None

    def last_words(self) -> str:
        return f"{self._unit} was started; see systemctl --user status {self._unit}"

    def release(self) -> None:
        return
