"""Slow work off the loop, in two threads: `files` syncs, hashes and replaces manifests; `opens` opens sessions, since somebody
waits for that while an fdatasync or a big digest of another session may take seconds, or for ever.

Each thread does its jobs in the order in which they were given. What holds, and why two threads do not break it:
 - All jobs of an open session (syncs, retiring, digests, manifests, and its close last) go to `files`: none of them runs
   while another of the same session does, and what may come after its close only gives descriptors back.
 - Only opening goes to `opens`, and only when nothing of an earlier recording of that session is left: the server keeps it
   among its sessions until the close was collected, and answers `busy` until then. So an open never overtakes a close.
 - A session is asked for by one open at a time. What was opened belongs to the loop from `collect` on.
 - The flock is the judge besides, also for a directory that was let go of because its name led elsewhere, and leads there
   again: an open that comes too early is refused as `locked`, and asked for again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], object]
Done = Callable[[object], None]


class Background:
    """Runs jobs in order in threads; `collect` runs their `done` callbacks on the caller's thread.

    Without a thread to be had (a process limit) its jobs run at once in the caller's: slower, never lost.
    """

    def __init__(self, log: Callable[[str], None] = lambda line: None) -> None:
        self._log = log
        self._results: deque[tuple[Done, object]] = deque()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pending = 0
        self._files, self._opens = _Worker("files", self._do), _Worker("opens", self._do)

    @property
    def threaded(self) -> bool:
        """Both threads are there."""
        return self._files.threaded and self._opens.threaded

    @property
    def pending(self) -> int:
        """Jobs given and not collected yet."""
        return self._pending

    def submit(self, job: Job, done: Done = lambda result: None) -> None:
        """Run `job` soon. What it returns (or the exception it raised) is passed to `done` by a later `collect`."""
        self._pending += 1
        self._files.give(job, done)

    def submit_open(self, job: Job, done: Done) -> None:
        """The same for opening a session, which waits only for other opens. See the module for when it may be asked for."""
        self._pending += 1
        self._opens.give(job, done)

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
        """Finish the jobs given so far, for at most so long, then end the threads. True when all were finished."""
        deadline = time.monotonic() + timeout_s
        workers = (self._files, self._opens)
        for worker in workers:
            worker.end()
        ended = [worker.ended_by(deadline) for worker in workers]
        self.collect()
        if all(ended):
            os.close(self.wake_fd)
        return all(ended)

    def _do(self, job: Job, done: Done) -> None:
        self._results.append((done, self._attempt(job)))
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


class _Worker:
    """One thread and its queue."""

    def __init__(self, name: str, do: Callable[[Job, Done], None]) -> None:
        self._do = do
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.threaded = True
        try:
            self._thread.start()
        except RuntimeError:
            self.threaded = False

    def give(self, job: Job, done: Done) -> None:
        if self.threaded:
            self._jobs.put((job, done))
        else:
            self._do(job, done)

    def end(self) -> None:
        self._jobs.put(None)

    def ended_by(self, deadline: float) -> bool:
        if self.threaded:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not (self.threaded and self._thread.is_alive())

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._do(*item)
            del item  # what it holds (a session's secrets among it) is not to stay until the next job
