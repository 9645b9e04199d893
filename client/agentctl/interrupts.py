"""Ctrl-C as something to wait for, so that it can never land in the middle of a message."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType


class Interrupts:
    """A context manager (main thread only). The first Ctrl-C makes `wake` readable; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0
        self.wake = -1

    def __enter__(self) -> Interrupts:
        self.wake, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._handler = signal.getsignal(signal.SIGINT)
        if self._handler is not signal.SIG_IGN:  # started with nohup, or in the background: not ours to change
            signal.signal(signal.SIGINT, self._on_interrupt)
        # Written by the C handler itself: a poll that is about to begin is woken too.
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        if self._handler is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handler)
        os.close(self.wake)
        os.close(self._write)

    def taken(self) -> bool:
        """Whether there was one since the last look."""
        try:
            return bool(os.read(self.wake, 64))
        except BlockingIOError:
            return False

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
