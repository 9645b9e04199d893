"""A daemon that says what a test tells it to, over a real Unix socket."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from agentctl.output import Output
from agentctl.world import Patience, World
from agentd.paths import address, agentd_socket, private_dir, runtime_dir

Json = dict[str, object]
SESSION = "0199a1b2c3d47e5f8a9b0c1d2e3f4a5b"
RUN = "0199a1b2c3d57e5f8a9b0c1d2e3f4a5b"
PROMPT = "00f067aa0ba902b7"
# In a script: end the connection, or wait for session/cancel and go on.
CLOSE = "close"
WAIT_CANCEL = "wait for cancel"
Step = Json | str | Callable[[], None]

HELLO: Json = {
    "protocol": 1,
    "agentd": "0.1.0",
    "pid": 2**22 + 1,  # beyond the kernel's highest
    "life": "9f86d081884c7d65",
    "env": ["OPENAI_API_KEY", "AGENTD_NO_TRACE"],
    "recording": {"state": "ok", "reason": "", "root": "/traces"},
}
CREATED: Json = {
    "session": SESSION,
    "workspace": "/w",
    "mode": "plan",
    "provider": "openai",
    "model": "gpt-5",
    "resumed": False,
    "notes": [],
    "trace": "/traces/x/" + SESSION,
}


class FakeDaemon:
    """Answers every request from `replies` (an {"error": …} is sent as one); after a prompt it plays `script`."""

    def __init__(self, env: dict[str, str]) -> None:
        self.requests: list[Json] = []
        self.replies: dict[str, Json] = {
            "initialize": HELLO,
            "session/create": CREATED,
            "session/subscribe": {"cursor": "9f86d081884c7d65:0"},
            "session/prompt": {"prompt": PROMPT, "queued": 0},
            "session/cancel": {"cancelled": True},
            "trace/flush": {"ok": True, "state": "ok", "reason": ""},
            "daemon/stop": {"stopping": True},
            "daemon/status": {
                "agentd": "0.1.0",
                "pid": 7,
                "uptime_s": 12.5,
                "sessions": 1,
                "running": 1,
                "queued": 0,
                "clients": 2,
            },
        }
        self.script: list[Step] = []
        self.silent: set[str] = set()  # methods that it never answers
        self.turned_away: bytes | None = None  # all that a client gets, before it is hung up on
        self._cancelled = threading.Event()
        private_dir(runtime_dir(env))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address(agentd_socket(env)) as name:
            self._listener.bind(name)
        self._path = agentd_socket(env)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> FakeDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def stop(self) -> None:
        """Listen no more; open connections go on."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        self._listener.close()
        Path(self._path).unlink(missing_ok=True)

    def methods(self) -> list[object]:
        """The methods asked for, in order."""
        return [request["method"] for request in self.requests]

    def params(self, method: str) -> Json:
        """The params of the first request of this method."""
        found = next(request["params"] for request in self.requests if request["method"] == method)
        assert isinstance(found, dict)
        return found

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self.turned_away is not None:
                with sock:
                    sock.sendall(self.turned_away)
                continue
            self._threads.append(threading.Thread(target=self._serve, args=(sock,)))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as lines:
            try:
                for line in lines:
                    request = json.loads(line)
                    self.requests.append(request)
                    if not self._reply(sock, request):
                        return
            except OSError:
                return  # the client has gone

    def _reply(self, sock: socket.socket, request: Json) -> bool:
        method = str(request["method"])
        if method in self.silent:
            return True
        reply = self.replies.get(method, {"error": {"code": -32601, "message": f"no method {method}"}})
        body = reply if "error" in reply else {"result": reply}
        send(sock, {"jsonrpc": "2.0", "id": request["id"], **body})
        if method == "session/cancel":
            self._cancelled.set()
        if method == "session/prompt":
            player = threading.Thread(target=self._play, args=(sock.dup(),))
            self._threads.append(player)
            player.start()
        if method == "daemon/stop" and "error" not in reply:
            self.stop()
            return False
        return True

    def _play(self, sock: socket.socket) -> None:
        with sock:
            for step in self.script:
                if step == CLOSE:
                    sock.shutdown(socket.SHUT_RDWR)
                elif step == WAIT_CANCEL:
                    assert self._cancelled.wait(10)
                elif isinstance(step, dict):
                    send(sock, step)
                elif callable(step):
                    step()


def send(sock: socket.socket, message: Json) -> None:
    """One message, one line."""
    sock.sendall(json.dumps(message).encode() + b"\n")


def refusal(kind: str, message: str, hint: str = "") -> Json:
    """An error answer."""
    return {"error": {"code": -32000, "message": message, "data": {"kind": kind, "hint": hint}}}


def event(name: str, data: Json, *, run: str = RUN, op: str = "", cursor: int = 1) -> Json:
    """A session/event notification."""
    record: Json = {
        "ts": "2026-11-29T20:45:01.123456Z",
        "event": name,
        "session": SESSION,
        "run": run,
        "op": op,
        "data": data,
    }
    record = {key: value for key, value in record.items() if value != ""}
    params: Json = {"session": SESSION, "cursor": f"9f86d081884c7d65:{cursor}", "record": record}
    return {"jsonrpc": "2.0", "method": "session/event", "params": params}


def delta(text: str, offset: int, *, op: str = "m1", kind: str = "text", run: str = RUN) -> Json:
    """A session/delta notification."""
    params: Json = {"session": SESSION, "run": run, "op": op, "kind": kind, "offset": offset, "text": text}
    return {"jsonrpc": "2.0", "method": "session/delta", "params": params}


def started(prompt: str = PROMPT, run: str = RUN) -> Json:
    """Our run begins."""
    data: Json = {"prompt": prompt, "text": "hi", "mode": "plan", "provider": "openai", "model": "gpt-5"}
    return event("run.execute.started", data, run=run)


def replied(text: str, op: str = "m1") -> Json:
    """A model request ends with this text."""
    return event(
        "model.request.finished", {"text": text, "reasoning": "", "tool_calls": [], "stop_reason": "stop"}, op=op
    )


def finished(outcome: str = "completed", cost: float | None = 0.0012, run: str = RUN, **more: object) -> Json:
    """Our run ends."""
    data: Json = {
        "outcome": outcome,
        "usage": {"input_tokens": 1234, "output_tokens": 56},
        "cost_usd": cost,
        "tools": [],
        "files": [],
        "errors": [],
        "duration_ms": 2300.0,
        **more,
    }
    return event("run.execute.finished", data, run=run)


class Screen:
    """Where a command speaks in tests."""

    def __init__(self, env: dict[str, str], cwd: str = "/", stdin: str = "", patience: Patience | None = None) -> None:
        self.stdout = io.StringIO()
        self.stderr = io.StringIO()
        out = Output(self.stdout, self.stderr, env)
        self.world = World(env, cwd, io.StringIO(stdin), out, patience or Patience())

    @property
    def out(self) -> str:
        """What went to stdout."""
        return self.stdout.getvalue()

    @property
    def err(self) -> str:
        """What went to stderr."""
        return self.stderr.getvalue()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
