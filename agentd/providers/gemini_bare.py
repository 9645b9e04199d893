"""JSON that came without the framing of an event stream: an error, or an array of frames where `alt=sse` was not heeded."""

from __future__ import annotations

import json
from typing import Any, Final

from agentd.providers.gemini_frame import Frame, frames_in

_SKIPPED: Final = " \t\r\n[],"


def bare_frames(body: bytes) -> tuple[list[Frame], list[dict[str, Any]]]:
    """The frames in it, one after the other, however they are set apart; and the objects that are none.

    What is cut off at the end is left out.
    """
    text = body.decode("utf-8", "replace")
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
