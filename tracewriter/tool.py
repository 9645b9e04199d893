"""Record what a program of your own does, in its own session, through the recorder that agentd uses:

    with tracewriter.recording("my-tool", workspace=".") as trace:
        trace.note("build.started", {"target": "all"})

The recorder is looked for where agentd's is. None is started: without one the program goes on, what it recorded waits in memory
(16 MiB at most), and `trace.status()` says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import TypeAlias

from tracewriter.events import Event
from tracewriter.foreign import tool_name
from tracewriter.ids import Ids
from tracewriter.places import switched_off, writer_socket
from tracewriter.standing import TraceStatus
from tracewriter.thread_trace import CAPTURES, ThreadTrace
from tracewriter.threaded import ThreadSender

NO_TRACE = "AGENTD_NO_TRACE is set"


class OffTrace:
    """Records nothing, in the words of `ThreadTrace`; its status says why."""

    def __init__(self, session: str, tool: str, reason: str) -> None:
        self.session, self.tool, self.capture = session, tool, "off"
        self._status = TraceStatus("off", reason)

    def record(
        self, event: Event, *, ts: datetime | None = None, run: str = "", op: str = "", parent: str = ""
    ) -> None:
        """Nothing."""

    def note(
        self,
        name: str,
        value: object = None,
        *,
        metadata: Mapping[str, object] | None = None,
        ts: datetime | None = None,
        run: str = "",
        op: str = "",
        parent: str = "",
    ) -> None:
        """Nothing."""

    def status(self) -> TraceStatus:
        """Off, and why."""
        return self._status

    def flush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing to wait for."""
        return self._status

    async def aflush(self, timeout_s: float = 2.0) -> TraceStatus:
        """Nothing to wait for."""
        return self._status

    def close(self, timeout_s: float | None = None) -> TraceStatus:
        """Nothing to close."""
        return self._status

    async def aclose(self, timeout_s: float | None = None) -> TraceStatus:
        """Nothing to close."""
        return self._status

    def __enter__(self) -> OffTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def __aenter__(self) -> OffTrace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


ToolTrace: TypeAlias = ThreadTrace | OffTrace


def recording(
    tool: str,
    *,
    workspace: str | os.PathLike[str] = ".",
    session: str | None = None,
    capture: str = "content",
    secrets: tuple[str, ...] = (),
    socket_path: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ToolTrace:
    """A session of its own for what `tool` does: a context manager for `with` and `async with`, usable from any thread.

    Use it from any number of threads and event loops at once; `record` and `note` never raise and never wait. `tool` stands
    before the names of its events (made legal where it must be). session: to go on with one, an id of [a-z0-9][a-z0-9_-]{0,63};
    default: a new one. capture: content, metadata (names, ids, times and what `note` is given as metadata) or off. secrets: exact
    values that must not reach the disk. Raises ValueError for another capture mode, and nothing else.
    """
    if capture not in CAPTURES:
        raise ValueError(f"capture is one of {', '.join(CAPTURES)}, not {capture!r}")
    env = os.environ if env is None else env
    tool = tool_name(tool)
    name = session if session is not None else Ids().uuid7()
    if switched_off(env):
        return OffTrace(name, tool, NO_TRACE)
    if capture == "off":
        return OffTrace(name, tool, "capture is off")
    sender = ThreadSender(socket_path or writer_socket(env), one_session=True)
    return sender.open(
        name, _canonical(workspace), tool=tool, capture=capture, secrets=secrets, resumed=session is not None
    )


def _canonical(workspace: str | os.PathLike[str]) -> str:
    try:
        return os.path.realpath(workspace)
    except OSError:  # the current directory was deleted
        return os.sep
