"""Asking a writer how it is: an answer, or one readable reason within the time-out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tracewriter.client import NoWriter, SessionStatus, Status, ask_status
from tracewriter.protocol import FrameDecoder, Kind, Refused, Welcome, encode

STATUS = Status("1", 7, "/r", "ok", "", 1.5, 1, "interval", (SessionStatus("s1", 3, 99, 1, "ok", ""),), "swept")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.sock"


def answered(path: Path, answer: Callable[[socket.socket], None], timeout_s: float = 5.0) -> Status:
    """Ask a fake writer that takes one connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                answer(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask_status(str(path), timeout_s)
        finally:
            thread.join(10)


def test_the_answer_may_come_in_any_pieces(path: Path) -> None:
    def answer(sock: socket.socket) -> None:
        frames = FrameDecoder().feed(sock.recv(4096))
        assert [frame.kind for frame in frames] == [Kind.HELLO, Kind.STATUS]
        data = encode(Kind.WELCOME, body=Welcome(1)) + encode(Kind.STATUS, body=STATUS)
        for at in range(0, len(data), 7):
            sock.sendall(data[at : at + 7])

    assert answered(path, answer) == STATUS


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100, "no writer"),
        (encode(Kind.STATUS, body=b"{}"), "no writer"),
        (encode(Kind.REFUSED, body=Refused("busy", "256 producers are connected already")), "no more connections"),
    ],
)
def test_what_is_no_answer_is_said(path: Path, answer: bytes, said: str) -> None:
    def send(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(answer)

    with pytest.raises(NoWriter, match=said) as caught:
        answered(path, send)
    assert not caught.value.absent


def test_one_that_does_not_answer_is_given_up(path: Path) -> None:
    def hold(sock: socket.socket) -> None:
        while sock.recv(4096):
            pass

    with pytest.raises(NoWriter, match="did not answer"):
        answered(path, hold, 0.1)


def test_nobody_there_is_told_apart(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NoWriter) as caught:
        ask_status(str(path))
    assert caught.value.absent
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(NoWriter) as caught:
        ask_status(str(path))
    assert caught.value.absent
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(NoWriter) as caught:
        ask_status(str(deep / "w.sock"))
    assert caught.value.absent
