"""A Server with its socket and loop, in a thread of the test's own process, so that its disk and its parts can be fakes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracewriter.clock import SYSTEM_CLOCK
from tracewriter.config import Limits
from tracewriter.disk import REAL_DISK, Disk
from tracewriter.listen import listen, private_dir
from tracewriter.server import Server, Versions


@contextmanager
def served(
    base: Path,
    *,
    disk: Disk = REAL_DISK,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    versions: Versions = Versions(),  # noqa: B008 - frozen
) -> Iterator[Path]:
    """Serve `base`/traces; gives the socket's path."""
    root = base / "traces"
    private_dir(root)
    listener = listen(base / "w.sock", [])
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    stop = threading.Event()
    server = Server(
        listener.sock,
        root_fd,
        root=str(root),
        disk=disk,
        clock=SYSTEM_CLOCK,
        limits=limits,
        version="test",
        log=lambda line: None,
        versions=versions,
    )
    thread = threading.Thread(target=server.run, args=(stop.is_set,))
    thread.start()
    try:
        yield base / "w.sock"
    finally:
        stop.set()
        thread.join(15)
        listener.close()
        os.close(root_fd)
    assert not thread.is_alive()
