"""The demo's second act: a real model on this machine, when one is there; else one line about how to get it.

It is small and often wrong, and what it does decides nothing about the demo's end. It has a bounded time, loading included.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from agentctl.starting import daemon_env
from agentd.paths import models_dir

if TYPE_CHECKING:
    from pathlib import Path

    from agentctl.world import World

MODEL: Final = "smollm2"
PROMPT: Final = "Read the file stats.py"
LIMIT_S: Final = 45.0
_END_S: Final = 10.0  # for an interrupted run to be ended in order


class LocalAct:
    """`limit_s` bounds it, in seconds; `installed` says whether the extra is there, `command` are the words of agentctl."""

    def __init__(
        self,
        workspace: Path,
        world: World,
        *,
        limit_s: float = LIMIT_S,
        installed: bool | None = None,
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "agentctl"),
    ) -> None:
        self._workspace = workspace
        self._world = world
        self._limit_s = limit_s
        self._installed = importlib.util.find_spec("xllamacpp") is not None if installed is None else installed
        self._command = command

    def run(self) -> None:
        """Show it, or how to get it. Never fails the demo."""
        out = self._world.out
        out.line()
        if missing := self.missing():
            out.line(f"A real model on this machine would be the second act. To get one: {missing}")
            return
        out.line(f"== agentctl ask -m local/{MODEL} “{PROMPT}”", "bold")
        out.line("This is real inference, by a model of 135 million parameters: fast, free, and often wrong.")
        out.line(self._ask())

    def missing(self) -> str:
        """What to do first, "" when all is there."""
        steps = [] if self._installed else ["pip install -e '.[local]' in agentd's directory"]
        if not os.path.isfile(os.path.join(models_dir(self._world.env), f"{MODEL}.gguf")):
            steps.append(f"agentctl models pull {MODEL} (93 MB)")
        return "; ".join(steps)

    def _ask(self) -> str:
        """Run it as a command of its own, which can be interrupted; the line that says how it ended."""
        words = [*self._command, "ask", "-m", f"local/{MODEL}", PROMPT]
        # Its own output goes through the same streams as ours only as text: what a model says is made safe once more.
        process = subprocess.Popen(
            words,
            cwd=self._workspace,
            env=daemon_env(self._world.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, end = self._wait(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        for line in said.strip().split("\n")[-20:]:
            self._world.out.line(line)
        return end

    def _wait(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        try:
            return process.communicate(timeout=self._limit_s)[0], f"It ended with exit code {process.returncode}."
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        late = f"It was interrupted after {self._limit_s:g} s: this machine is slow or busy."
        try:
            return process.communicate(timeout=_END_S)[0], late
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], late
