"""Work on sessions that takes time (closing one, changing its recording), by the session's id.

It goes on when the client that caused it is gone, and whoever wants such a session waits for it first: the same id must not be
recorded twice at once. A bug that it meets is logged and is the task's result: it must not end the runs of all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from agentd.session import where

Work: TypeAlias = Callable[[], Awaitable[None]]
Settled: TypeAlias = "asyncio.Task[Exception | None]"
_log: Final = logging.getLogger("agentd")


class Settling:
    """What is going on, one task at most per session: `start` only for an id that is not in it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._by_id: dict[str, Settled] = {}

    def __repr__(self) -> str:
        return f"<Settling {len(self._by_id)}>"

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._by_id

    def start(self, session_id: str, work: Work) -> Settled:
        """Begin; the task gives the bug that it met, None for none."""
        task = self._tasks.create_task(_caught(work))
        self._by_id[session_id] = task
        task.add_done_callback(lambda _: self._by_id.pop(session_id, None))
        return task

    async def over(self, session_id: str) -> None:
        """Wait until nothing goes on with this session."""
        while (task := self._by_id.get(session_id)) is not None:
            await ended(task)

    async def one(self) -> None:
        """Wait until any of it ends."""
        await asyncio.wait(self._by_id.values(), return_when=asyncio.FIRST_COMPLETED)

    async def all(self) -> None:
        """Wait for what goes on now."""
        await ended(*self._by_id.values())


async def ended(*tasks: Settled) -> None:
    """Wait for these; whoever waits may be cancelled, they are not."""
    if tasks:
        await asyncio.wait(tasks)


async def _caught(work: Work) -> Exception | None:
    try:
        await work()
    except Exception as exc:  # noqa: BLE001 - the seam: a bug met with one session must not end the runs of all others
        _log.error("session: %s", where(exc))
        return exc
    return None
