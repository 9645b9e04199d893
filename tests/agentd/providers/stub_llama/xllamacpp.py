"""Stands for the real xllamacpp in the process of a local model: a server on the socket, no weights, faults by the model's name.

Names: `answers…` says hello with its pid, `crashes-before…` dies at the first chat request of the first process, `crashes-always…`
at each, `crashes-between…` after its first words, `unready…` is never healthy, `unloadable…` fails as llama.cpp does, `endless…`
streams until the connection is closed and counts in /slots what it works on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any


class CommonParams:
    """Takes any setting."""

    def __init__(self) -> None:
        self.model, self.cpuparams, self.cpuparams_batch, self.sampling = (_Bag() for _ in range(4))
        self.hostnames: list[str] = []

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class _Bag:
    path = ""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/slots":
            self._answer(200, json.dumps([{"is_processing": self.server.busy > 0}]))
        elif "unready" in self.server.name:
            self._answer(503, '{"error":{"code":503,"message":"Loading model"}}')
        else:
            self._answer(200, '{"status":"ok"}')

    def do_POST(self) -> None:
        name = self.server.name
        self.rfile.read(int(self.headers["content-length"]))
        mark = Path(self.server.path + ".crashed")
        if "crashes-always" in name or ("crashes-before" in name and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self._say(f"hello from {os.getpid()}")
        if "crashes-between" in name:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        if "endless" in name:
            self._stream_on()
            return
        self._say("", finish="stop")
        self.wfile.write(b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3}}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")

    def _stream_on(self) -> None:
        self.server.busy += 1
        try:
            while True:
                self._say("and on ")
                time.sleep(0.01)
        except OSError:
            pass
        finally:
            self.server.busy -= 1

    def _say(self, text: str, finish: str | None = None) -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, path: str) -> None:
        self.path, self.name, self.busy = path, Path(path).name, 0
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.socket.accept()[0], ("local", 0)


class Server:
    """Serves from now on."""

    def __init__(self, params: CommonParams) -> None:
        path: str = params.model.path
        if "unloadable" in path:
            print("0.00.1 E llama_model_load: error loading model: tensor data is not within the file", file=sys.stderr)
            print("0.00.2 E srv  load_model: failed to load model", file=sys.stderr, flush=True)
            raise RuntimeError("Failed to init server, please check the input params.")
        self._server = _Server(params.hostnames[0], path)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
