"""Clients that speak frames by hand, for what no well-behaved producer does."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.faults.waiting import START_S
from tracewriter.protocol import Frame, FrameDecoder, Hello, Kind, Status, decode_body, encode


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            connect(sock, path)
        except OSError:
            return False
        return True


def connect(sock: socket.socket, path: Path) -> None:
    """Connect, also to a path that is too long for sun_path."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


class RawClient:
    """A client that speaks frames by hand, for what no well-behaved producer does."""

    def __init__(self, path: Path, *, life: str = "", conn: int = 1, hello: bool = True) -> None:
        self.life = life or os.urandom(8).hex()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(START_S)
        connect(self.sock, path)
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        if hello:
            self.send(encode(Kind.HELLO, body=Hello(self.life, conn)))

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def frame(self) -> Frame | None:
        """The next frame; None at the end of the stream."""
        while not self._frames:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def expect(self, kind: Kind) -> Frame:
        """Read up to the next frame of this kind."""
        while True:
            frame = self.frame()
            assert frame is not None, f"the connection ended before {kind.name}"
            if frame.kind is kind:
                return frame

    def ended(self) -> bool:
        """Wait until the other side has closed."""
        while True:
            try:
                if self.frame() is None:
                    return True
            except TimeoutError:
                return False

    def close(self) -> None:
        self.sock.close()


def ask_status(path: Path) -> Status:
    """The writer's STATUS."""
    with RawClient(path) as client:
        client.send(encode(Kind.STATUS, body=b"{}"))
        return decode_body(client.expect(Kind.STATUS).body, Status)


def line(seq: int, session: str, number: int | None = None) -> bytes:
    """A record as a producer would encode it."""
    text = (
        f'{{"seq":{seq},"ts":"2026-01-01T00:00:00Z","event":"prompt.queue.observed","session":"{session}",'
        f'"data":{{"change":"added","prompt":"{seq - 1 if number is None else number}"}}}}\n'
    )
    return text.encode()


def events(seqs: range, session: str, *, channel: int = 1) -> bytes:
    """An EVENTS frame of the records with these seqs."""
    body = b"".join(line(seq, session) for seq in seqs)
    return encode(Kind.EVENTS, channel=channel, count=len(seqs), first=seqs.start, body=body)
