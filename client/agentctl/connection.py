"""A blocking JSON-RPC client of PROTOCOL.md over a Unix socket: one thread, one poll, no event loop to start.

`LineBuffer` and the errors' meaning are pure; `Connection` is the only thing that touches the socket. Every wait is bounded.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from agentctl import __version__, processes, wire
from agentctl.errors import ClientError, DaemonGone, NoAnswer, NoDaemon, Refused, UsageProblem
from agentctl.world import Patience
from agentd.paths import address

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentctl.wire import Json

PROTOCOL: Final = 1
# PROTOCOL.md: one message is at most this long.
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
# Notifications that arrive while an answer is awaited. More than these mean a daemon that does not answer.
MAX_WAITING: Final = 65_536
CONNECT_S: Final = 5.0
# JSON-RPC's code for it in PROTOCOL.md, for an answer that names no kind.
_OVERLOADED: Final = -32001

# What a refusal's kind means for the exit code; the rest is "refused".
_USAGE_KINDS: Final = frozenset(
    {
        "too_big",
        "unknown_session",
        "bad_cwd",
        "bad_mode",
        "no_model",
        "unknown_provider",
        "no_key",
        "config",
        "no_session",
    }
)
_NO_DAEMON_KINDS: Final = frozenset({"protocol", "stopping", "not_initialized"})


class LineBuffer:
    """Bytes in, whole lines out; where the bytes were cut does not matter. Each byte is looked at once."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that became complete, without their LF. Raises DaemonGone for a line over the limit."""
        first, newline, rest = data.partition(b"\n")
        self._pending += first
        if len(self._pending) > self._limit:
            raise DaemonGone("agentd sent a message over 8 MiB")
        if not newline:
            return []
        lines = [bytes(self._pending), *rest.split(b"\n")]
        self._pending = bytearray(lines.pop())
        return lines


class Connection:
    """One connection to the daemon. Owns the socket; after DaemonGone it is of no further use.

    `note` gets one line, once, when an answer takes long.
    """

    def __init__(
        self, sock: socket.socket, patience: Patience | None = None, note: Callable[[str], None] | None = None
    ) -> None:
        self._sock = sock
        self.patience = patience or Patience()
        self._note = note
        self.pid = processes.peer(sock)
        self._lines = LineBuffer()
        self._arrived: deque[Json] = deque()
        self._next_id = 1

    def close(self) -> None:
        """End the connection; what runs in the daemon goes on."""
        self._sock.close()

    def call(self, method: str, params: Json, timeout_s: float | None = None) -> Json:
        """Ask, and wait for the answer; notifications that come meanwhile are kept for `next_notice`.

        An error without an id answers too: the daemon could not read the request that it is about, and only one is out at
        a time. Raises Refused, UsageProblem or NoDaemon for an error answer by its kind, DaemonGone when the connection
        ends, NoAnswer when no answer came in time.
        """
        timeout_s = self.patience.call_s if timeout_s is None else timeout_s
        number, self._next_id = self._next_id, self._next_id + 1
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, timeout_s)
        begun = time.monotonic()
        kept: deque[Json] = deque()
        while True:
            if not self._arrived:
                self._await(method, begun, timeout_s)
                continue
            message = self._arrived.popleft()
            if _is_answer(message, number):
                self._arrived.extendleft(reversed(kept))
                return _answer(message)
            kept.append(message)
            if len(kept) > MAX_WAITING:
                raise NoAnswer(f"agentd sent {MAX_WAITING:,} events, but no answer to {method}")

    def _await(self, method: str, begun: float, timeout_s: float) -> None:
        """Receive something, or say that it takes long, or give up."""
        waited = time.monotonic() - begun
        slow_s = self.patience.slow_s
        say_so = self._note is not None and slow_s < timeout_s
        left = (slow_s if say_so and waited < slow_s else timeout_s) - waited
        if left > 0 and self._receive(left):
            return
        waited = time.monotonic() - begun
        if waited >= timeout_s:
            raise NoAnswer(*processes.silence(self.pid, f"did not answer {method} in {timeout_s:.0f} s"))
        if say_so and self._note is not None and waited >= slow_s:
            who = f"agentd (pid {self.pid})" if self.pid else "agentd"
            self._note(f"{who} has not answered for {slow_s:.0f} s; waiting up to {timeout_s:.0f} s")
            self._note = None

    def next_notice(self, timeout_s: float, wake: int = -1) -> wire.Notice | None:
        """The next notice; None when none came in time, or when the descriptor `wake` became readable (not read here)."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self._arrived:
                notice = wire.notice(self._arrived.popleft())
                if notice is not None:
                    return notice
            left = deadline - time.monotonic()
            if left <= 0 or not self._receive(left, wake):
                return None

    def _send(self, message: Json, timeout_s: float) -> None:
        try:
            line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError as problem:
            raise UsageProblem("something to be sent holds bytes that are no UTF-8 text") from problem
        if len(line) >= MAX_LINE_BYTES:
            raise UsageProblem(
                "that is too much: a message may have 8 MiB", "put long material into files in the workspace"
            )
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(line + b"\n")
        except TimeoutError as problem:
            raise NoAnswer(
                *processes.silence(self.pid, f"did not read what it was sent in {timeout_s:.0f} s")
            ) from problem
        except OSError as problem:
            # It may have said why before it closed: then that is the answer.
            while not any(_is_answer(message, -1) for message in self._arrived):
                if not self._receive(timeout_s):
                    raise DaemonGone("agentd closed the connection") from problem

    def _receive(self, timeout_s: float, wake: int = -1) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if wake >= 0:
            poll.register(wake, select.POLLIN)
        ready = poll.poll(max(1, int(timeout_s * 1000)))
        if not any(fd == self._sock.fileno() for fd, _ in ready):
            return False
        try:
            data = self._sock.recv(262_144)
        except OSError as problem:
            raise DaemonGone("agentd closed the connection") from problem
        if not data:
            raise DaemonGone("agentd closed the connection")
        self._arrived.extend(message for line in self._lines.feed(data) if (message := _decoded(line)) is not None)
        return True


def _decoded(line: bytes) -> Json | None:
    try:
        message = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None  # not a message; the next line may be one
    return message if isinstance(message, dict) else None


def _is_answer(message: Json, number: int) -> bool:
    if "method" in message:
        return False
    return message.get("id") == number or (message.get("id") is None and "error" in message)


def _answer(message: Json) -> Json:
    if "error" not in message:
        return wire.obj(message, "result")
    error = wire.obj(message, "error")
    data = wire.obj(error, "data")
    kind, hint = wire.string(data, "kind"), wire.string(data, "hint")
    if not kind and error.get("code") == _OVERLOADED:
        kind = "overloaded"
    raise problem_of(kind, wire.string(error, "message") or "agentd gave an error without words", hint)


def problem_of(kind: str, message: str, hint: str) -> ClientError:
    """The exception for a refusal of this kind (PROTOCOL.md): it decides the exit code."""
    if kind in _USAGE_KINDS:
        return UsageProblem(message, hint, kind)
    if kind == "stopping":
        return Stopping(message, hint, kind)
    if kind in _NO_DAEMON_KINDS:
        return NoDaemon(message, hint or "agentctl stop, then try again", kind)
    return Refused(message, hint, kind)


class Stopping(NoDaemon):
    """The daemon is about to end; another one can be started when it is gone."""


def connect(
    path: str, patience: Patience | None = None, note: Callable[[str], None] | None = None
) -> Connection | None:
    """Connect to the daemon's socket, None when nobody listens there. Raises NoDaemon when it cannot be reached."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    deadline = time.monotonic() + CONNECT_S
    try:
        while True:
            try:
                sock.settimeout(CONNECT_S)
                with address(path) as name:
                    sock.connect(name)
                return Connection(sock, patience, note)
            except BlockingIOError as problem:  # its backlog is full: it is alive, and busy
                if time.monotonic() >= deadline:
                    raise NoDaemon("agentd takes no more connections", "try again in a moment") from problem
                time.sleep(0.05)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as problem:
        sock.close()
        reason = problem.strerror or str(problem)
        raise NoDaemon(f"cannot reach agentd at {path}: {reason}", "is that path yours? see AGENTD_HOME") from problem
    except BaseException:
        sock.close()
        raise


def greet(connection: Connection) -> wire.Hello:
    """The handshake: only after it is the daemon ready.

    Raises NoDaemon when there is no common protocol, Refused when it has no room for one more client.
    """
    client: Json = {"protocol": PROTOCOL, "client": f"agentctl {__version__}"}
    try:
        return wire.hello(connection.call("initialize", client, connection.patience.greet_s))
    except Refused as problem:
        if problem.kind != "overloaded":
            raise
        hint = problem.hint or "end some of its clients, or try again later"
        raise Refused(f"agentd has no room: {problem.message}", hint, problem.kind) from problem
    except DaemonGone as problem:
        who = f"agentd (pid {connection.pid})" if connection.pid else "agentd"
        raise DaemonGone(
            f"{who} closed the connection without a word",
            "it is ending, or has no room for more: try again in a moment",
        ) from problem
