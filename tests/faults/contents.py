"""Events whose contents are hostile (group E of the faults), by row. produce.py records them; test_content.py judges."""

from __future__ import annotations

import math
from typing import Final

from tracewriter import jsonl
from tracewriter.events import Event, ToolCallFinished, ToolCallStarted

SEPARATORS: Final = "a\u2028b\u2029c\u0085d\x1ce\x0bf\x0cg\rh\x1ei"
CONTROLS: Final = "nul\0 esc\x1b[31m del\x7f c1\x9b bidi\u202e osc\x1b]52;c;aGk=\x07"
_LOOP: list[object] = []
_LOOP.append(_LOOP)


def output(text: object) -> Event:
    """A tool's output, whatever its type really is."""
    return ToolCallFinished("1", "t", text, False, 1.0)  # type: ignore[arg-type]


class Hostile:
    """Raises whatever is asked of it."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__

    def __len__(self) -> int:
        raise ValueError("no")


def _duration(value: float) -> Event:
    return ToolCallFinished("1", "t", "x", False, value)


CONTENTS: Final[dict[str, list[Event]]] = {
    "e1": [output("lone \ud83d surrogate"), output("\udcff"), ToolCallStarted("1", "t", jsonl.raw(b'{"a":"\\ud800"}'))],
    "e2": [
        output(b"caf\xe9".decode("utf-8", "surrogateescape")),
        ToolCallStarted("1", "t", jsonl.raw(b'{"a":"\xff"}')),
    ],
    "e3": [
        ToolCallStarted("1", "t", jsonl.raw({"a": math.nan, "b": math.inf, "c": -math.inf})),
        ToolCallStarted("1", "t", jsonl.raw(b'{"a": NaN}')),
        _duration(math.nan),
    ],
    "e5": [
        ToolCallStarted("1", "t", jsonl.raw(b"[" * 1000 + b"]" * 1000)),
        ToolCallStarted("1", "t", jsonl.raw(b'{"a":' * 5000 + b"1" + b"}" * 5000)),
    ],
    "e6": [output(SEPARATORS), output("\ufeffbom")],
    "e7": [output(CONTROLS)],
    "e8": [output(object()), output(_LOOP), output(Hostile()), output({1, 2}), output({"k": _LOOP}), output(10**400)],
    "e9": [output("x" * 64 * 1024 * 1024), output("é" * 300_000), output("\0" * 200_000)],
}
