"""Blocking work in a thread, with one answer to "was it done?" when the task is cancelled in the middle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# How long a cancelled call waits for its thread to tidy up (a temporary file, a killed process). Longer only on a hung disk.
TIDY_UP_S: Final = 2.0


class Commit:
    """The moment a change takes effect, decided once between the thread that makes it and the task that may cancel it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def begin(self) -> bool:
        """Called by the thread just before the effect: whether it may happen."""
        return self._settle("committed")

    def stop(self) -> bool:
        """Called on cancellation: whether the effect was prevented. False: it happened, or is happening."""
        return self._settle("stopped")

    def _settle(self, state: str) -> bool:
        with self._lock:
            if self._state == "open":
                self._state = state
            return self._state == state


async def run_stoppable(work: Callable[[], T], stop: Callable[[], bool]) -> T:
    """Run `work` in a thread. When the task is cancelled, `stop` is asked to prevent the effect and the thread is waited for.

    Prevented: CancelledError, and nothing was changed. Too late: the result is returned, so that the change is reported,
    and the cancellation is delivered again at the task's next await. Swallowing it was rejected, and so was dropping the result:
    a file would have changed without a record of it.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stopped = stop()
        absorbed = 1 + await _settled(future)
        # Read whether or not it is wanted: an exception that nobody looks at is reported by the loop.
        failed = future.done() and future.exception() is not None
        if stopped or failed or not future.done():
            raise
        _cancel_again(absorbed)
        return future.result()


async def _settled(future: asyncio.Future[T]) -> int:
    """Wait, within TIDY_UP_S, until the thread ended; more cancellations meanwhile are counted, not obeyed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIDY_UP_S
    absorbed = 0
    while not future.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait([future], timeout=left)
        except asyncio.CancelledError:
            absorbed += 1
    return absorbed


def _cancel_again(times: int) -> None:
    task = asyncio.current_task()
    if task is not None:
        for _ in range(times):
            task.uncancel()
        for _ in range(times):
            task.cancel()
