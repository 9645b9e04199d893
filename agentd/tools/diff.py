"""Unified diffs of file contents, bounded in time and size."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

MAX_DIFF_BYTES: Final = 64 * 1024

# difflib is quadratic on repetitive input. What differs is first narrowed to the middle between the equal ends; a middle with more
# lines than this is shown as replaced whole.
_MAX_COMPARED_LINES: Final = 1_000
_CONTEXT: Final = 3
_NOTE_BYTES: Final = 100
_HUNK: Final = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def unified_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """The change in `diff -u` form, at most 64 KiB of UTF-8, cut at a line with a note. None: no such file on that side.

    Bytes that are not UTF-8 are shown as U+FFFD. A missing final newline is shown the way diff does.
    """
    old, new = _split(before), _split(after)
    header = [
        "--- /dev/null\n" if before is None else f"--- a/{_name(path)}\n",
        "+++ /dev/null\n" if after is None else f"+++ b/{_name(path)}\n",
    ]
    return _bounded([*header, *_hunks(old, new)])


def _name(path: str) -> str:
    return path.replace("\n", "\\n").replace("\r", "\\r")


def _split(data: bytes | None) -> list[str]:
    """Lines with their LF; never str.splitlines, which also cuts at U+2028, form feeds and lone CRs."""
    text = (data or b"").decode("utf-8", "replace")
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    first = max(0, head - _CONTEXT)
    a = old[first : len(old) - max(0, tail - _CONTEXT)]
    b = new[first : len(new) - max(0, tail - _CONTEXT)]
    if max(len(a), len(b)) > _MAX_COMPARED_LINES:
        lines = _replaced_whole(a, b, head - first, min(tail, _CONTEXT))
    else:
        lines = list(difflib.unified_diff(a, b, n=_CONTEXT))[2:]
    for line in lines:
        if line.startswith("@@"):
            yield _moved(line, first)
        else:
            yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _common(a: list[str], b: list[str]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _replaced_whole(a: list[str], b: list[str], head: int, tail: int) -> list[str]:
    first_a, first_b = (1 if a else 0), (1 if b else 0)
    return [
        f"@@ -{first_a},{len(a)} +{first_b},{len(b)} @@\n",
        *(" " + line for line in a[:head]),
        *("-" + line for line in a[head : len(a) - tail]),
        *("+" + line for line in b[head : len(b) - tail]),
        *(" " + line for line in a[len(a) - tail :]),
    ]


def _moved(hunk: str, lines: int) -> str:
    return _HUNK.sub(lambda m: f"@@ -{int(m[1]) + lines}{m[2] or ''} +{int(m[3]) + lines}{m[4] or ''} @@", hunk)


def _bounded(lines: list[str]) -> str:
    sizes = [len(line.encode()) for line in lines]
    if sum(sizes) <= MAX_DIFF_BYTES:
        return "".join(lines)
    kept, size = 0, 0
    while size + sizes[kept] <= MAX_DIFF_BYTES - _NOTE_BYTES:
        size += sizes[kept]
        kept += 1
    return "".join(lines[:kept]) + f"[diff cut: {len(lines) - kept:,} of {len(lines):,} lines left out]\n"
