"""Surrogate pairs whose halves come in two deltas: one character, given when it is whole."""

from __future__ import annotations

from typing import Generic, TypeVar

from agentd.providers.tool_input import mend

_K = TypeVar("_K")


class Halves(Generic[_K]):
    """Holds back a first half per channel until the text after it comes."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[_K, str] = {}

    def whole(self, channel: _K, text: str) -> str:
        """The text with what was held back before it, without a first half at its end; lone halves are U+FFFD."""
        text = self._held.pop(channel, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[channel] = text[-1]
            text = text[:-1]
        return mend(text)

    def left(self) -> list[_K]:
        """The channels that end in a half whose other one never came."""
        return list(self._held)
