"""Reasoning that a model writes inline, as <think>…</think> at the head of its answer, told apart from the answer."""

from __future__ import annotations

from typing import Final

from agentd.providers.stream import Reasoning, Text

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class ThinkSplitter:
    """Splits deltas cut anywhere. Only what could still be part of a tag is held back; `end` gives what is left.

    The block counts only before anything else was said: the same tag in the middle of an answer is the answer's own text.
    White space around the block belongs to nobody.
    """

    __slots__ = ("_held", "_state")

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"  # start, thinking, after (white space to skip), answer

    def feed(self, text: str) -> list[Text | Reasoning]:
        """The pieces that are decided with this text."""
        out: list[Text | Reasoning] = []
        self._held += text
        if self._state == "start":
            self._start(out)
        if self._state == "thinking":
            self._thinking(out)
        if self._state == "after":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "answer"
        if self._state == "answer" and self._held:
            out.append(Text(self._held))
            self._held = ""
        return out

    def end(self) -> list[Text | Reasoning]:
        """The answer is over: a tag that never became one was text."""
        held, self._held = self._held, ""
        if not held or self._state == "after":
            return []
        return [Reasoning(held) if self._state == "thinking" else Text(held)]

    def _start(self, out: list[Text | Reasoning]) -> None:
        head = self._held.lstrip()
        if head.startswith(_OPEN):
            self._held = head[len(_OPEN) :]
            self._state = "thinking"
        elif not _OPEN.startswith(head):
            self._state = "answer"

    def _thinking(self, out: list[Text | Reasoning]) -> None:
        inside, close, rest = self._held.partition(_CLOSE)
        if close:
            self._held = rest
            self._state = "after"
        else:
            keep = _prefix_at_end(inside)
            self._held = inside[len(inside) - keep :]
            inside = inside[: len(inside) - keep]
        if inside:
            out.append(Reasoning(inside))


def _prefix_at_end(text: str) -> int:
    """How many characters at the end of the text may be the beginning of the closing tag."""
    return next((n for n in range(min(len(_CLOSE) - 1, len(text)), 0, -1) if text.endswith(_CLOSE[:n])), 0)
