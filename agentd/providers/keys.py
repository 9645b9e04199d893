"""Keys: held so that nothing prints them, read from files that nobody else can read, or asked of the user's own command."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from tracewriter.events import Failure

_MAX_FILE_BYTES: Final = 16 * 1024  # no key is longer; a wrong path must not pull a large file into memory
# A password manager may ask its user, who needs a moment.
COMMAND_S: Final = 20.0
_LOOK_MS: Final = 100  # how often it is looked whether a command that prints nothing has ended
# A key that was changed is used within this time; until then nobody is asked again.
KEPT_S: Final = 300.0
# What password managers need: no other variable, least of all another key, is a key command's business.
_COMMAND_ENV: Final = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TERM", "TMPDIR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "GNUPGHOME",
     "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "GPG_AGENT_INFO", "PASSWORD_STORE_DIR")
)  # fmt: skip
_COMMAND_ENV_PREFIXES: Final = ("LC_", "XDG_")


class Secret:
    """A key. Its repr and str show nothing, and no encoder takes it; `reveal` is for the one header that carries it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not to be stored")


def usable(key: str) -> bool:
    """Whether a header can carry the key: printable ASCII without spaces."""
    return key.isascii() and key.isprintable() and " " not in key


def read_key_file(path: str) -> Secret | Failure:
    """The key in a file: its first line. The file must be the user's own and closed to everybody else (0600)."""
    shown = "".join(char if char.isprintable() else "?" for char in path[:200])
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "not a path"
        return Failure("config", f"the key file {shown} cannot be read: {why}", "check key_file in the configuration")
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return Failure("config", f"the key file {shown} is no file", "check key_file in the configuration")
        if info.st_mode & 0o077 or info.st_uid != os.geteuid():
            return Failure("config", f"the key file {shown} can be read by others", f"chmod 600 {shown}, and own it")
        data = os.read(descriptor, _MAX_FILE_BYTES + 1)
    except OSError as exc:
        return Failure("config", f"the key file {shown} cannot be read: {exc.strerror}", "check key_file")
    finally:
        os.close(descriptor)
    return _key_in(data, f"the key file {shown}")


def _key_in(data: bytes, source: str) -> Secret | Failure:
    """One line of printable text; editors may have put a BOM before it."""
    lines = data.decode("utf-8-sig", "replace").strip().split("\n")
    key = lines[0].strip()
    if not key or len(lines) > 1 or not usable(key) or len(data) > _MAX_FILE_BYTES:
        return Failure("config", f"{source} holds no key", "it should hold the key alone, on one line")
    return Secret(key)


def run_key_command(
    argv: tuple[str, ...], env: Mapping[str, str] = os.environ, *, timeout_s: float = COMMAND_S
) -> Secret | Failure:
    """The key that a command prints: one line, nothing else. No shell; what it prints is never shown, nor its complaints.

    Blocks for at most `timeout_s` seconds; then the command and all that it started are killed.
    """
    shown = "".join(char if char.isprintable() else "?" for char in argv[0][:100]) if argv else ""
    hint = "check key_command in the configuration, and run it yourself to see"
    wanted = {n: v for n, v in env.items() if n in _COMMAND_ENV or n.startswith(_COMMAND_ENV_PREFIXES)}
    try:
        program = subprocess.Popen(
            [os.path.expanduser(argv[0]), *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=wanted,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as exc:
        why = exc.strerror.lower() if isinstance(exc, OSError) and exc.strerror else "not a command"
        return Failure("config", f"the key command `{shown}` cannot be run: {why}", hint)
    assert program.stdout is not None
    with program, program.stdout as output:
        try:
            data = _output(program, output.fileno(), deadline := time.monotonic() + timeout_s)
            if data is not None and len(data) <= _MAX_FILE_BYTES:
                program.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            data = None  # it closed its output and goes on
        finally:
            code = program.poll()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
    if data is None:
        return Failure("config", f"the key command `{shown}` did not end within {timeout_s:g} s", hint)
    if len(data) > _MAX_FILE_BYTES:
        return Failure("config", f"the key command `{shown}` printed far more than a key", hint)
    if code != 0:
        ended = f"was ended by signal {-code}" if code and code < 0 else f"failed with exit code {code}"
        return Failure("config", f"the key command `{shown}` {ended}", hint)
    return _key_in(data, f"the output of the key command `{shown}`")


def _output(program: subprocess.Popen[bytes], descriptor: int, deadline: float) -> bytes | None:
    """What comes up to the end of the output or of the command (what it left running may hold the output open), or until it
    is more than _MAX_FILE_BYTES; None when neither comes in time."""
    data = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(data) <= _MAX_FILE_BYTES:
        left_ms = (deadline - time.monotonic()) * 1000
        over = program.poll() is not None
        if not poll.poll(0 if over else max(0.0, min(left_ms, _LOOK_MS))):
            if over:
                return data
            if left_ms <= 0:
                return None
            continue
        piece = os.read(descriptor, _MAX_FILE_BYTES)
        if not piece:
            return data
        data += piece
        if left_ms <= 0:
            return None
    return data


class KeyCommands:
    """Keys out of commands, each kept for `kept_s` seconds, in memory; failures are not kept. For use from threads."""

    def __init__(
        self,
        run: Callable[[tuple[str, ...]], Secret | Failure] = run_key_command,
        *,
        kept_s: float = KEPT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._kept_s = kept_s
        self._monotonic = monotonic
        self._kept: dict[tuple[str, ...], tuple[float, Secret]] = {}
        self._lock = threading.Lock()  # one at a time: a password manager should ask its user once

    def __call__(self, argv: tuple[str, ...]) -> Secret | Failure:
        """The command's key, kept or new."""
        with self._lock:
            known = self._kept.get(argv)
            if known is not None and self._monotonic() - known[0] < self._kept_s:
                return known[1]
            found = self._run(argv)
            if isinstance(found, Secret):
                self._kept[argv] = self._monotonic(), found
            return found
