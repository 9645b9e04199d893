"""The fake provider itself: as a command, beside subprocesses, and faithful to its scripts."""

from __future__ import annotations

import http.client
import pathlib
import socket
import subprocess
import sys

import pytest

from tests.replay_server import Abort, ReplayThread, Script, Send

BODY = b"data: hello\n\n"


def post(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/chat/completions", b'{"model":"m"}', {"authorization": "Bearer x"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_thread_serves_scripts_in_turn_and_the_last_again() -> None:
    with ReplayThread([Script.of_error(429, b"{}"), Script.of_sse(BODY, chunk_bytes=3)]) as server:
        assert [post(server.port) for _ in range(3)] == [(429, b"{}"), (200, BODY), (200, BODY)]
        assert server.requests[0].json() == {"model": "m"}
        assert server.requests[0].headers["authorization"] == "Bearer x"


def test_an_abort_is_seen_as_one() -> None:
    with (
        ReplayThread([Script((Send(BODY), Abort()))]) as server,
        pytest.raises((http.client.IncompleteRead, ConnectionError)),
    ):
        post(server.port)


def test_it_serves_a_unix_socket(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "s")
    with ReplayThread([Script.of_sse(BODY)], uds=path), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(path)
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += client.recv(4096)
        assert received.startswith(b"HTTP/1.1 200 ")


def test_as_a_command_it_prints_its_base_url_and_ends_by_itself(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.sse").write_bytes(BODY)
    command = [
        sys.executable,
        "tests/replay_server.py",
        str(tmp_path / "a.sse"),
        "--seconds",
        "2",
        "--log",
        str(tmp_path / "log"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert post(int(url.removesuffix("/v1").rpartition(":")[2])) == (200, BODY)
        assert process.wait(30) == 0
    assert b"chat/completions" in (tmp_path / "log").read_bytes()
