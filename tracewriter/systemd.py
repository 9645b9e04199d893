"""The two things a service needs of systemd: readiness notices and sockets passed at start. No library: both are ten lines."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

_FIRST_FD: Final = 3  # SD_LISTEN_FDS_START, sd_listen_fds(3)


def notify(state: str, env: MutableMapping[str, str] = os.environ) -> bool:
    """Tell the service manager, e.g. "READY=1", "STOPPING=1", "WATCHDOG=1". False when none asked to be told (sd_notify(3))."""
    path = env.get("NOTIFY_SOCKET", "")
    if not path or path[0] not in "/@":
        return False
    address = "\0" + path[1:] if path[0] == "@" else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(1.0)
            sock.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_s(env: MutableMapping[str, str] = os.environ) -> float | None:
    """Seconds within which WATCHDOG=1 must be sent again; None when no watchdog is set for this process."""
    if env.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        usec = int(env.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return usec / 1e6 if usec > 0 else None


def listen_fds(env: MutableMapping[str, str] = os.environ) -> list[int]:
    """Descriptors of the sockets passed by the service manager, made close-on-exec; the variables are taken out of `env`."""
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    fds = list(range(_FIRST_FD, _FIRST_FD + int(count)))
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds
