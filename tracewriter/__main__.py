"""`tracewriter --socket PATH --root DIR`: the recorder as a process of its own.

It needs nothing else: no configuration, no network, no agentd. SIGTERM and SIGINT end it in order (what producers have sent
is written, sessions are closed and sealed, exit 0); SIGKILL loses nothing that was acknowledged.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tracewriter import __version__, systemd
from tracewriter.clock import SYSTEM_CLOCK
from tracewriter.config import MIB, Limits
from tracewriter.disk import REAL_DISK
from tracewriter.errors import StartError
from tracewriter.housekeeping import Sweeper
from tracewriter.listen import listen, private_dir
from tracewriter.quiet import QuietLog
from tracewriter.server import Server

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_DESCRIPTORS: Final = 4096


def main(argv: list[str] | None = None) -> int:
    """The command. Exit codes: 0 ended in order, 1 cannot start (one line on stderr says why), 2 usage."""
    arguments = _parser().parse_args(argv)
    try:
        return _serve(arguments)
    except StartError as exc:
        print(f"tracewriter: {exc}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tracewriter", description="Record events of producers on a Unix socket.")
    parser.add_argument("--socket", required=True, type=Path, metavar="PATH", help="the socket to listen on")
    parser.add_argument("--root", required=True, type=Path, metavar="DIR", help="where traces are kept")
    parser.add_argument("--durability", choices=("none", "interval", "batch"), default="interval")
    parser.add_argument(
        "--idle-exit", type=float, default=0.0, metavar="S", help="exit S seconds after the last producer left"
    )
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE", help="a TOML file with a [retention] table"
    )
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    stopping = _stop_on_signals()
    os.umask(0o077)
    root: Path = arguments.root.absolute()
    private_dir(root)
    _keep_big_blocks()
    _raise_descriptors()
    listener = listen(arguments.socket.absolute(), systemd.listen_fds())
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    limits = Limits(durability=arguments.durability, idle_exit_s=arguments.idle_exit)
    log = QuietLog(lambda line: print(f"tracewriter: {line}", file=sys.stderr, flush=True), SYSTEM_CLOCK)
    server = Server(
        listener.sock,
        root_fd,
        root=str(root),
        disk=REAL_DISK,
        clock=SYSTEM_CLOCK,
        limits=limits,
        version=__version__,
        log=log,
        sweeper=Sweeper(str(root), arguments.config, SYSTEM_CLOCK, interval_s=limits.sweep_interval_s),
    )
    gc.freeze()  # what is loaded by now stays: do not walk it again and again
    gc.set_threshold(20_000, 50, 100)
    systemd.notify("READY=1")
    try:
        server.run(_with_watchdog(stopping))
    finally:
        systemd.notify("STOPPING=1")
        log.close()
        listener.close()
        os.close(root_fd)
    return 0


def _stop_on_signals() -> Callable[[], bool]:
    flag: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda signum, _frame: flag.append(signum))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file size limit shall be an error of write(2), not a death
    return lambda: bool(flag)


def _with_watchdog(stopping: Callable[[], bool]) -> Callable[[], bool]:
    period = systemd.watchdog_s()
    if period is None:
        return stopping
    due = [0.0]

    def stop() -> bool:
        now = SYSTEM_CLOCK.monotonic()
        if now >= due[0]:
            due[0] = now + period / 3
            systemd.notify("WATCHDOG=1")
        return stopping()

    return stop


def _keep_big_blocks() -> None:
    """Let malloc keep blocks of up to 64 MiB: fresh ones cost page faults each time (2.5 times slower writing)."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 * MIB)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 * MIB)
        libc.mallopt(_M_ARENA_MAX, 1)  # a heap of its own for the background thread would only be more memory
    except (OSError, AttributeError):
        pass  # another libc: slower, nothing else


def _raise_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, _DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    sys.exit(main())
