"""Reaching a writer's socket: a path of any length, and who is at the other end."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_UCRED: Final = struct.Struct("3i")  # pid, uid, gid
_MAX_SUN_PATH: Final = 107  # sockaddr_un.sun_path has 108 bytes, one of them the NUL


def reach(sock: socket.socket, path: str) -> None:
    """Connect; a path too long for a socket's address goes through its directory. Raises OSError."""
    if len(os.fsencode(path)) <= _MAX_SUN_PATH:
        sock.connect(path)
        return
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)


def peer_uid(sock: socket.socket) -> int:
    """The uid of the process at the other end of a Unix socket (SO_PEERCRED)."""
    return int(_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1])


def dial(path: str, send_buffer: int) -> socket.socket | str:
    """A connection to the writer that never blocks, or why there is none. A Unix socket connects at once or not at all."""
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError as exc:  # no descriptors left
        return f"no connection to the writer: {exc.strerror or exc}"
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        reach(sock, path)  # EAGAIN: its backlog is full
        if peer_uid(sock) == os.geteuid():
            return sock
        problem = "the writer's socket belongs to another user"
    except OSError as exc:
        problem = f"no writer: {exc.strerror or exc}"
    sock.close()
    return problem
