"""The arguments of a call whose values are streamed: pieces, each under a JSON path, put together into one object.

Paths are those of RFC 9535 that name one place: `$.a.b[0]['c d']`. Whatever cannot be placed (another kind of path, a
piece without a value, a value where an object already is) makes the arguments `broken`: a call is whole or it is reported.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, Final

import msgspec

from agentd.providers.chat_chunk import ABSENT
from agentd.providers.gemini_frame import PartialArg
from agentd.providers.tool_input import mend

_STEP: Final = re.compile(
    r"""\.([^.\[\]'"\s]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.){0,1000})'\]|\["((?:[^"\\]|\\.){0,1000})"\]"""
)
_MAX_DEPTH: Final = 64
_MAX_GAP: Final = 16  # list items may be left out on the way, but one number must not make a list of a million
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Pieces(list[str]):
    """A string as it comes: joined once, at the end, so that long ones cost what they weigh."""


class PartialArgs:
    """Takes the pieces in order. `open` says that more of a value was promised; `text` is the JSON of what there is."""

    __slots__ = ("_open", "_path", "_pieces", "_root", "broken")

    def __init__(self) -> None:
        self.broken = False
        self._root: dict[str, Any] = {}
        self._open: set[str] = set()
        self._path = ""  # the string that came last: mostly, what comes next goes on with it
        self._pieces = _Pieces()

    @property
    def open(self) -> bool:
        return bool(self._open)

    def merge(self, args: dict[str, Any]) -> None:
        """Whole arguments beside the streamed ones."""
        self._root.update(args)
        self._path = ""

    def add(self, piece: PartialArg) -> int:
        """Take one piece; returns about how many characters it holds."""
        path, text = piece.json_path or "", piece.string_value
        if text is not None and path == self._path and path:
            self._pieces.append(text)
            self._mark(path, more=bool(piece.will_continue))
            return len(text) + 8
        steps = _steps(path)
        if not steps:
            self.broken = True
            return len(path) + 8
        self._mark(path, more=bool(piece.will_continue))
        holder = self._holder(steps)
        if holder is None or not _put(holder, steps[-1], _value(piece), more=bool(piece.will_continue)):
            self.broken = True
            return len(path) + 8
        put = _get(holder, steps[-1])
        if isinstance(put, _Pieces):
            self._path, self._pieces = path, put
        return len(path) + len(text or "") + len(piece.number_value) + 8

    def _mark(self, path: str, *, more: bool) -> None:
        if more:
            self._open.add(path)
        else:
            self._open.discard(path)

    def text(self) -> str:
        """The arguments as JSON, all in ASCII: whole arguments beside the streamed ones may hold any text."""
        try:
            return json.dumps(_joined(self._root), separators=(",", ":"))
        except RecursionError:
            self.broken = True
            return ""

    def _holder(self, steps: list[str | int]) -> dict[str, Any] | list[Any] | None:
        """What the last step is to be put into, made on the way; None when something else is there already."""
        at: Any = self._root
        for step, after in itertools.pairwise(steps):
            found = _get(at, step)
            if found is _NOTHING:
                found = [] if isinstance(after, int) else {}
                if not _set(at, step, found):
                    return None
            at = found
        return at if isinstance(at, dict) or (isinstance(at, list) and not isinstance(at, _Pieces)) else None


class _Nothing:
    pass


_NOTHING: Final = _Nothing()


def _steps(path: str) -> list[str | int] | None:
    """The path's steps, from the root; None when it is another kind of path. A path without `$` begins at the root too."""
    steps: list[str | int] = []
    at = 1 if path.startswith("$") else 0
    if not at and path:
        path = path if path[0] in ".[" else f".{path}"
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or len(steps) >= _MAX_DEPTH:
            return None
        name, index, single, double = found.groups()
        quoted = single if single is not None else double
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(mend(name) if quoted is None else mend(_ESCAPE.sub(_unescaped, quoted)))
        at = found.end()
    return steps


def _unescaped(found: re.Match[str]) -> str:
    word = found.group(1)
    return chr(int(word[1:], 16)) if len(word) == 5 else _ESCAPED.get(word, word)


def _value(piece: PartialArg) -> Any:
    if piece.string_value is not None:
        return piece.string_value
    if piece.null_value is not ABSENT:
        return None
    for raw in (piece.number_value, piece.bool_value):
        if raw is not ABSENT:
            try:
                return msgspec.json.decode(raw, type=int | float | bool)
            except (msgspec.DecodeError, RecursionError):
                return _NOTHING
    return _NOTHING


def _get(holder: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return holder.get(step, _NOTHING) if isinstance(holder, dict) else None
    if not isinstance(holder, list) or isinstance(holder, _Pieces):
        return None
    found = holder[step] if step < len(holder) else _NOTHING
    return _NOTHING if found is None else found  # null stands for an item that was left out so far


def _set(holder: Any, step: str | int, value: Any) -> bool:
    if isinstance(step, str):
        if not isinstance(holder, dict):
            return False
        holder[step] = value
        return True
    if not isinstance(holder, list) or isinstance(holder, _Pieces) or step > len(holder) + _MAX_GAP:
        return False
    holder.extend([None] * (step + 1 - len(holder)))
    holder[step] = value
    return True


def _put(holder: Any, step: str | int, value: Any, *, more: bool) -> bool:
    known = _get(holder, step)
    if value is _NOTHING:
        return more or known is not _NOTHING  # a mark only: that a value begins, or that it is over
    if isinstance(value, str):
        if isinstance(known, _Pieces):
            known.append(value)
            return True
        value = _Pieces([value])
    return not isinstance(known, dict | list) and _set(holder, step, value)


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _joined(item) for name, item in value.items()}
    return [_joined(item) for item in value] if isinstance(value, list) else value
