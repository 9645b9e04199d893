"""agentctl stop: end the daemon in order, and wait until it is gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from agentctl import processes
from agentctl.connection import Stopping, connect
from agentctl.errors import DONE, INCOMPLETE, DaemonGone
from agentctl.starting import find_daemon
from agentd.paths import agentd_socket

if TYPE_CHECKING:
    from agentctl.arguments import Parsed
    from agentctl.connection import Connection
    from agentctl.world import World

# Runs are ended and records flushed in this time; a daemon told to wait for its runs takes as long as they do.
GONE_S: Final = 20.0


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when no daemon runs any more (or it will stop when idle), 1 when it did not end in time.

    Raises NoAnswer, naming the process and what ends it, when the daemon does not even answer.
    """
    found = find_daemon(world.env, world.patience, world.out.note)
    if found is None:
        return _tell(parsed, world, was_running=False, stopped=True, text="agentd is not running")
    connection, hello = found
    when_idle = parsed.has("when-idle")
    try:
        _ask_to_stop(connection, when_idle=when_idle)
        if when_idle and not _gone(connection, world, hello.pid, 1.0):
            text = f"agentd (pid {hello.pid}) stops when its runs have ended"
            return _tell(parsed, world, was_running=True, stopped=False, text=text)
        stopped = _gone(connection, world, hello.pid, GONE_S)
    finally:
        connection.close()
    text = f"agentd (pid {hello.pid}) stopped" if stopped else f"agentd (pid {hello.pid}) is still stopping"
    _tell(parsed, world, was_running=True, stopped=stopped, text=text)
    if not stopped:
        world.out.note(processes.silence(hello.pid, "")[1])
    return DONE if stopped else INCOMPLETE


def _ask_to_stop(connection: Connection, *, when_idle: bool) -> None:
    try:
        connection.call("daemon/stop", {"when_idle": when_idle})
    except (DaemonGone, Stopping):
        pass  # it was already on its way


def _gone(connection: Connection, world: World, pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    try:
        while (left := deadline - time.monotonic()) > 0:
            connection.next_notice(left)
    except DaemonGone:
        pass  # the connection ends before the process, and its lock, do
    while time.monotonic() < deadline:
        if processes.state(pid) in ("", "Z") and not _listening(world):
            return True
        time.sleep(0.02)
    return False


def _listening(world: World) -> bool:
    again = connect(agentd_socket(world.env))
    if again is None:
        return False
    again.close()
    return True


def _tell(parsed: Parsed, world: World, *, was_running: bool, stopped: bool, text: str) -> int:
    if parsed.has("json"):
        world.out.json({"was_running": was_running, "stopped": stopped})
    else:
        world.out.line(text)
    return DONE
