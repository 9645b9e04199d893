"""JSON that came without the framing of an event stream: an error, or an array of frames where `alt=sse` was not heeded."""

from __future__ import annotations

import json
from typing import Any, Final

from agentd.providers.gemini_frame import Frame, frames_in

MAX_BARE_BYTES: Final = 1024 * 1024
_SKIPPED: Final = " \t\r\n[],"


class BareJson:
    """Collects the lines; `overflowed` says that there were more than an error or a short answer needs."""

    __slots__ = ("_bytes", "_lines", "overflowed")

    def __init__(self) -> None:
        self.overflowed = False
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, line: bytes) -> None:
        """Take one line that is no field of an event stream. Lines before the first brace are no JSON."""
        if not self._lines and line.lstrip()[:1] not in (b"{", b"["):
            return
        self._bytes += len(line) + 1
        if self._bytes > MAX_BARE_BYTES:
            self.overflowed = True
            self._lines.clear()
        elif not self.overflowed:
            self._lines.append(line)

    def frames(self) -> tuple[list[Frame], list[dict[str, Any]]]:
        """The frames in it, one after the other, however they are set apart; and the objects that are none.

        What is cut off at the end is left out.
        """
        if not self._lines:
            return [], []
        text = b"\n".join(self._lines).decode("utf-8", "replace")
        decoder = json.JSONDecoder(parse_constant=lambda _: None)
        frames: list[Frame] = []
        others: list[dict[str, Any]] = []
        at = 0
        while True:
            while at < len(text) and text[at] in _SKIPPED:
                at += 1
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                return frames, others
            for frame in frames_in(value):
                if frame.says_something:
                    frames.append(frame)
                elif isinstance(value, dict):
                    others.append(value)
