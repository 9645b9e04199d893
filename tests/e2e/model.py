"""Fake models for end-to-end tests: a real HTTP server on loopback whose answers depend on the request alone.

So that many sessions can ask one server at once, what is answered follows from the conversation in the request (`turns`), never
from the order of requests. A `threading.Event` among the pieces of an answer holds the stream there until it is set.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from msgspec import Struct

HOLD_S: Final = 60.0


class Asked(Struct, frozen=True):
    """A request: its headers (names in lower case) and its body."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def turn(self) -> int:
        """How many answers the model has given since the last prompt."""
        roles = [message["role"] for message in self.body["messages"]]
        return roles[len(roles) - roles[::-1].index("user") :].count("assistant")

    @property
    def prompt(self) -> str:
        """The last prompt."""
        said = [message["content"] for message in self.body["messages"] if message["role"] == "user"]
        return str(said[-1])

    @property
    def results(self) -> list[str]:
        """What the tools of this conversation gave."""
        return [message["content"] for message in self.body["messages"] if message["role"] == "tool"]


class Answer(Struct, frozen=True):
    """Pieces of a body, each sent at once as it is; an Event holds the rest back until it is set."""

    pieces: tuple[bytes | threading.Event, ...]
    status: int = 200
    content_type: str = "text/event-stream"


Decide = Callable[[Asked], Answer]


def stream(*pieces: bytes | threading.Event) -> Answer:
    """An answer of these pieces."""
    return Answer(pieces)


def turns(*answers: Answer | bytes) -> Decide:
    """The first answer to a prompt, then the second, and so on; the last one stays."""
    ready = [answer if isinstance(answer, Answer) else stream(answer) for answer in answers]
    return lambda asked: ready[min(asked.turn, len(ready) - 1)]


def text(words: str, *, finish: bool = True) -> bytes:
    """A stream that says these words; without `finish` it is only its beginning."""
    return sse({"content": words}) + (end() if finish else b"")


def call(name: str, **arguments: object) -> bytes:
    """A stream that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return sse({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}) + end(
        "tool_calls"
    )


def sse(delta: dict[str, Any], finish: str | None = None, **fields: object) -> bytes:
    """One chunk."""
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: %s\n\n" % json.dumps({**chunk, **fields}).encode()


def end(finish: str = "stop") -> bytes:
    """The last chunks: the reason, the usage, the mark."""
    usage = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}}
    return sse({}, finish) + b"data: %s\n\n" % json.dumps(usage).encode() + b"data: [DONE]\n\n"


class Model:
    """A context manager: the server, running inside the `with`. `asked` is what came, `started` counts answers begun."""

    def __init__(self, decide: Decide) -> None:
        self.asked: list[Asked] = []
        self.waiting = threading.Semaphore(0)
        self._over = threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                asked = Asked({name.lower(): value for name, value in self.headers.items()}, json.loads(body))
                model.asked.append(asked)
                with contextlib.suppress(ConnectionError):  # a client that went away is none of our business
                    self._answer(decide(asked))

            def _answer(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("content-type", answer.content_type)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for piece in answer.pieces:
                    if isinstance(piece, bytes):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        continue
                    model.waiting.release()
                    model._hold(piece)
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

            def handle_error(self, request: object, client_address: object) -> None:
                return  # a connection that was cut by a kill

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.05), daemon=True)

    def __enter__(self) -> Model:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def wait_held(self, times: int = 1) -> None:
        """Wait until so many more answers have come to an Event: all before it was sent."""
        for _ in range(times):
            assert self.waiting.acquire(timeout=HOLD_S), "no request came as far as the hold"

    def _hold(self, event: threading.Event) -> None:
        for _ in range(int(HOLD_S / 0.05)):
            if event.wait(0.05) or self._over.is_set():
                return
