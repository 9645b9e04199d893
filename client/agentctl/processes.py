"""What the kernel says of the process at the other end, and what can be done with one that is silent."""

from __future__ import annotations

import socket
import struct
from typing import Final

_PEERCRED: Final = struct.Struct("3i")


def peer(sock: socket.socket) -> int:
    """The pid that listens at the other end, 0 when the kernel does not say (another pid namespace)."""
    try:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    except OSError:
        return 0
    return max(0, int(_PEERCRED.unpack(found)[0]))


def state(pid: int) -> str:
    """The kernel's letter for what a process does (T: stopped, Z: dead, but not reaped), "" when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            words = stat.read(512).rpartition(b")")[2].split()[:1]
    except OSError:
        return ""
    return words[0].decode("ascii", "replace") if words else ""


def silence(pid: int, what: str) -> tuple[str, str]:
    """What is wrong with a daemon that did not do what it should (`what`, in the past tense), and what to do about it."""
    if not pid:
        return f"agentd {what}", "agentctl status"
    if state(pid) in ("T", "t"):
        return (
            f"agentd (pid {pid}) is stopped, as by Ctrl-Z or SIGSTOP, and {what}",
            f"`kill -CONT {pid}` lets it go on; `kill -KILL {pid}` ends it",
        )
    return (
        f"agentd (pid {pid}) {what}",
        f"`kill {pid}` ends it in order, `kill -KILL {pid}` at once; the next ask starts one",
    )
