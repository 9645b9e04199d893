"""Slow work off the loop: one thread that syncs, hashes and replaces manifests, and hands results back through an eventfd.

One thread on purpose: the disk is one, order is kept, and a job never runs while another of the same session does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], object]
Done = Callable[[object], None]


class Background:
    """Runs jobs in order in a thread; `collect` runs their `done` callbacks on the caller's thread.

    Without a thread to be had (a process limit) jobs run at once in the caller's: slower, never lost.
    """

    def __init__(self, log: Callable[[str], None] = lambda line: None) -> None:
        self._log = log
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._results: deque[tuple[Done, object]] = deque()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.threaded = True
        self._pending = 0
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.threaded = False

    @property
    def pending(self) -> int:
        """Jobs given and not collected yet."""
        return self._pending

    def submit(self, job: Job, done: Done = lambda result: None) -> None:
        """Run `job` soon. What it returns (or the exception it raised) is passed to `done` by a later `collect`."""
        self._pending += 1
        if self.threaded:
            self._jobs.put((job, done))
        else:
            self._results.append((done, self._attempt(job)))
            self._wake()

    def collect(self) -> None:
        """Run the callbacks of all finished jobs."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            pass
        while self._results:
            done, result = self._results.popleft()
            self._pending -= 1
            done(result)

    def stop(self, timeout_s: float) -> bool:
        """Finish the jobs given so far, for at most so long, then end the thread. True when all were finished."""
        if self.threaded:
            self._jobs.put(None)
            self._thread.join(timeout_s)
        self.collect()
        finished = not (self.threaded and self._thread.is_alive())
        if finished:
            os.close(self.wake_fd)
        return finished

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            self._results.append((done, self._attempt(job)))
            self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self.wake_fd, 1)

    def _attempt(self, job: Job) -> object:
        try:
            return job()
        except OSError as exc:
            return exc
        except Exception as exc:  # noqa: BLE001 - a bug in one job must not end the thread, and with it every later close
            import traceback  # only when it is needed: this process is to stay small

            self._log("a bug in the background: " + "".join(traceback.format_exception(exc)))
            return exc
