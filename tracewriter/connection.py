"""One producer's connection as the server sees it: bytes in, frames out; bytes out, bounded. Sockets only, no decisions."""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Final

from tracewriter.config import MAX_FRAME, Limits
from tracewriter.errors import ProtocolError
from tracewriter.protocol import HEADER_BYTES, Frame, FrameDecoder, Kind, Refused, encode
from tracewriter.reach import peer_uid
from tracewriter.recorder import Recording

# One buffer for all connections (1 MiB each would be 277 MiB at 256 clients); it must hold the rest of a frame and more.
RECEIVE_BUFFER: Final = 2 * (MAX_FRAME + HEADER_BYTES)
RECEIVE_BYTES: Final = 256 * 1024  # read at once: small enough to stay in a core's cache through all passes


class ReceiveBuffer:
    """The memory that every receive of this process goes through; views of it die at the next receive."""

    __slots__ = ("data", "view")

    def __init__(self) -> None:
        self.data = bytearray(RECEIVE_BUFFER)
        self.view = memoryview(self.data)


class Connection:
    """A connected producer (or somebody who asks for the status)."""

    def __init__(self, sock: socket.socket, limits: Limits, now: float) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self._limits = limits
        self._decoder = FrameDecoder()
        self._out: deque[bytes] = deque()
        self.unsent = 0
        self.producer = ""  # set by HELLO
        self.conn = 0
        self.version = 0
        self.channels: dict[int, Recording] = {}
        self.used_channels = 0  # the highest channel number seen: none is ever used twice
        self.opened_at = now
        self.partial_since: float | None = None
        self._unread_since: float | None = None  # answers wait, and the peer has taken nothing since
        self.closing = False
        self.waits_to_send = False  # the loop has been asked to say when the peer takes more

    def __repr__(self) -> str:
        return f"<Connection {self.producer or '-'}#{self.conn} {len(self.channels)} sessions>"

    def receive(self, buffer: ReceiveBuffer, now: float) -> list[Frame] | None:
        """The frames that came; None at the end of the stream. Bodies are views into the buffer. Raises ProtocolError."""
        rest = self._decoder.rest
        held = len(rest)
        if held:
            buffer.data[:held] = rest
        try:
            count = self.sock.recv_into(buffer.view[held:], max(RECEIVE_BYTES - held, RECEIVE_BYTES // 4))
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if count == 0:
            return None
        frames = self._decoder.parse(buffer.view[: held + count])
        self.partial_since = None if not self._decoder.rest else self.partial_since if not frames else now
        if self._decoder.rest and self.partial_since is None:
            self.partial_since = now
        return frames

    def overdue(self, now: float) -> str:
        """Why this connection has to be closed, or ""."""
        if not self.producer and now - self.opened_at > self._limits.hello_timeout_s:
            return "no hello"
        if self.partial_since is not None and now - self.partial_since > self._limits.half_frame_timeout_s:
            return "half a frame"
        if not self._out:
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since > self._limits.unread_timeout_s:
            return "it does not read its answers"
        return ""

    def queue(self, data: bytes) -> None:
        """Send these frames when the peer takes them. Raises ProtocolError when it has left too much unread."""
        if not data:
            return
        self._out.append(data)
        self.unsent += len(data)
        if self.unsent > self._limits.unread_bytes:
            raise ProtocolError("a peer that does not read")

    def send(self) -> bool:
        """Send what the peer takes now. True when everything is out; raises OSError when it is gone."""
        while self._out:
            data = self._out[0]
            try:
                count = self.sock.send(data, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return False
            self.unsent -= count
            self._unread_since = None
            if count < len(data):
                self._out[0] = data[count:]
                return False
            self._out.popleft()
        return True

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
        self._out.clear()
        self.unsent = 0


def same_user(sock: socket.socket) -> bool:
    """Only processes of our own uid are served."""
    try:
        return peer_uid(sock) == os.geteuid()
    except OSError:
        return False


def turn_away(sock: socket.socket, message: str) -> None:
    """Say why there is no room, as far as the socket takes it at once, and close."""
    try:
        sock.setblocking(False)
        sock.send(encode(Kind.REFUSED, body=Refused("connections", message, 1000)), socket.MSG_NOSIGNAL)
        sock.recv(RECEIVE_BYTES)  # its HELLO: closed over unread data, the answer would be lost with ECONNRESET
    except OSError:
        pass
    sock.close()
