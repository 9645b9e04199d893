"""When retention runs: at start and hourly, as a process of its own, so that a huge tree never holds up recording.

Looks at the clocks with every tick, since only watching tells whether wall time may be believed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tracewriter.clock import Clock
from tracewriter.retention import ClockTrust, PolicyError, load_policy

_ANSWER_MAX: Final = 4096  # bytes: what a sweep says fits into its pipe, so it never waits to be read


class Sweeper:
    """Starts sweeps and waits for none of them. `state` is a line for the status."""

    def __init__(
        self, root: str, config: Path | None, clock: Clock, *, interval_s: float, first_after_s: float = 2.0
    ) -> None:
        self._root, self._clock, self._interval_s = root, clock, interval_s
        self._config = config.absolute() if config is not None else None  # a sweep runs in another directory
        now = clock.monotonic()
        self._next = now + first_after_s
        self._trust = ClockTrust(clock.now().timestamp(), now)
        self._child: subprocess.Popen[bytes] | None = None
        self.state = "no sweep yet"

    @property
    def running(self) -> bool:
        """A sweep is on its way, or its end was not noticed yet."""
        return self._child is not None

    def tick(self) -> None:
        """Start a sweep when one is due, take note of one that has ended. Never waits."""
        now = self._clock.monotonic()
        wall = self._clock.now().timestamp()
        trusted = self._trust.trusted(wall, now)
        if self._child is not None:
            self._look_at(self._child)
        elif now >= self._next:
            self._next = now + self._interval_s
            self._start(wall if trusted else None)

    def _start(self, trusted_now: float | None) -> None:
        try:
            policy = load_policy(self._config)
        except PolicyError as exc:
            self.state = f"held: {exc}"
            return
        if not policy.enabled:
            self.state = "off, as configured"
            return
        command = [sys.executable, "-m", "tracewriter.trash", "--root", self._root]
        command += ["--config", str(self._config)] if self._config is not None else []
        command += ["--trusted-now", f"{trusted_now:.3f}"] if trusted_now is not None else []
        try:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
            )
        except OSError as exc:
            self.state = f"a sweep could not start: {exc.strerror}"

    def _look_at(self, child: subprocess.Popen[bytes]) -> None:
        code = child.poll()
        if code is not None:
            self._child = None
            said = _said(child) or f"exit {code}"
            at = f"{self._clock.now():%Y-%m-%dT%H:%M:%SZ}"
            self.state = f"swept at {at}: {said}" if code == 0 else f"held at {at}: {said}"

    def stop(self) -> None:
        """End a running sweep: what it has moved is moved, the rest waits for the next."""
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            try:
                child.wait(2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(2.0)
            _said(child)


def _said(child: subprocess.Popen[bytes]) -> str:
    """The line of a sweep that has ended."""
    if child.stdout is None:
        return ""
    with child.stdout as pipe:
        return os.read(pipe.fileno(), _ANSWER_MAX).decode("utf-8", "replace").strip()
