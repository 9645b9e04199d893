"""Ask a writer how it is, over its own protocol: one blocking connection, no event loop, every wait bounded."""

from __future__ import annotations

import os
import socket
import time
from typing import Final

from tracewriter.errors import NoWriter, ProtocolError
from tracewriter.protocol import FrameDecoder, Hello, Kind, SessionStatus, Status, decode_body, encode
from tracewriter.reach import peer_uid, reach

__all__ = ["NoWriter", "SessionStatus", "Status", "ask_status"]

_RECEIVE: Final = 64 * 1024
_ANSWER_MAX: Final = 16 * 1024 * 1024  # 4,096 sessions need a tenth of it


def ask_status(path: str, timeout_s: float = 5.0) -> Status:
    """The writer's own figures. Raises NoWriter (`absent` when nobody listens there) within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(timeout_s)
        reach(sock, path)
        if peer_uid(sock) != os.geteuid():
            raise NoWriter("another user answers at the writer's socket")
        hello = encode(Kind.HELLO, body=Hello(os.urandom(8).hex(), 1))
        sock.sendall(hello + encode(Kind.STATUS, body=b"{}"))
        return _answer(sock, deadline)
    except (FileNotFoundError, ConnectionRefusedError) as exc:
        raise NoWriter("no recorder runs", absent=True) from exc
    except (TimeoutError, BlockingIOError) as exc:
        raise NoWriter(f"the recorder did not answer in {timeout_s:.0f} s; it may be stopped") from exc
    except ProtocolError as exc:
        raise NoWriter(f"what answers at the writer's socket is no writer: {exc}") from exc
    except OSError as exc:
        raise NoWriter(f"the recorder cannot be reached: {exc.strerror or exc}") from exc
    finally:
        sock.close()


def _answer(sock: socket.socket, deadline: float) -> Status:
    decoder = FrameDecoder()
    received = 0
    while received < _ANSWER_MAX:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        data = sock.recv(_RECEIVE)
        if not data:
            raise NoWriter("the recorder closed the connection")
        received += len(data)
        for frame in decoder.feed(data):
            if frame.kind is Kind.STATUS:
                return decode_body(frame.body, Status)
            if frame.kind is Kind.REFUSED:
                raise NoWriter("the recorder takes no more connections")
    raise NoWriter("what answers at the writer's socket is no writer")
