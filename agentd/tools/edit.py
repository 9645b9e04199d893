"""edit_file: replace text that occurs exactly once, or everywhere, leaving every other byte as it is.

The work is done on bytes: a BOM, a missing final newline and bytes that are not UTF-8 elsewhere in the file stay untouched. In a
file whose lines all end in CRLF, line ends of `old` and `new` are taken as CRLF, because read_file shows them as LF.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from msgspec import Raw, Struct

from agentd.providers.stream import ToolSpec
from agentd.tools.base import ToolContext, ToolOutput
from agentd.tools.changes import MAX_FILE_BYTES, Change, apply_change, check_seen
from agentd.tools.typed import InputError, TypedTool, quoted
from agentd.tools.workspace import PathError, Workspace, shown

_SHOWN_LINES: Final = 10
# Comparing with every line costs up to a millisecond a line.
_COMPARED_LINES: Final = 2_000
_COMPARED_CHARS: Final = 200
_ABSENT: Final = "list_files shows what is there, write_file creates files"


class EditInput(Struct, frozen=True):
    path: str
    old: str
    new: str
    replace_all: bool = False


class Edited(Struct, frozen=True):
    """The new contents, and the lines (from 1) where the old text was."""

    data: bytes
    lines: tuple[int, ...]
    count: int


class EditError(Exception):
    """The text to replace is not there, or not unique. One line, with line numbers."""


def edit(data: bytes, old: str, new: str, *, replace_all: bool) -> Edited:
    """The contents after the edit. Pure. Raises EditError, and InputError for an edit that can never work."""
    if not old:
        raise InputError("old is empty; give the text to replace, or use write_file for a new file")
    if old == new:
        raise InputError("old and new are the same; nothing would change")
    before, after = _in_line_ends_of(data, old, new)
    places = list(_places(data, before))
    if not places:
        raise EditError(_nearest(data, old))
    lines = tuple(_line_of(data, place) for place in places[:_SHOWN_LINES])
    if len(places) > 1 and not replace_all:
        numbers = ", ".join(str(line) for line in lines) + (", …" if len(places) > len(lines) else "")
        raise EditError(
            f"old matches {len(places):,} times, on lines {numbers}; add lines around it to make it unique, or set replace_all"
        )
    count = data.count(before)
    if len(data) + count * (len(after) - len(before)) > MAX_FILE_BYTES:
        raise EditError(f"the file would become too large (over {MAX_FILE_BYTES:,} bytes)")
    return Edited(data.replace(before, after), lines, count)


def _in_line_ends_of(data: bytes, old: str, new: str) -> tuple[bytes, bytes]:
    """old and new as bytes, with CRLF in a CRLF file; in a mixed file, only when that is what matches."""
    exact = old.encode(), new.encode()
    crlf = _with_crlf(exact[0]), _with_crlf(exact[1])
    ends, crlf_ends = data.count(b"\n"), data.count(b"\r\n")
    if crlf_ends and (crlf_ends == ends or (exact[0] not in data and crlf[0] in data)):
        return crlf
    return exact


def _with_crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _places(data: bytes, wanted: bytes) -> Iterator[int]:
    """Where it is, overlaps included: two overlapping matches are two readings of "the" match."""
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def _line_of(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _nearest(data: bytes, old: str) -> str:
    """Why there is no match, with the line of the file that is most like the first line of old."""
    said = "old is not in the file"
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")[:_COMPARED_CHARS]
    lines = data.decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        if first and line.strip()[:_COMPARED_CHARS] == first:
            near = f"its first line is like line {number}, {quoted(line)}"
            return f"{said} as given; {near}: check white space and the lines after it"
    close = difflib.get_close_matches(first, [line.strip()[:_COMPARED_CHARS] for line in lines[:_COMPARED_LINES]], 1)
    if not close:
        return f"{said}, nor a line like it; read it again with read_file"
    number = next(n for n, line in enumerate(lines, 1) if line.strip()[:_COMPARED_CHARS] == close[0])
    return f"{said}; the nearest is line {number}, {quoted(lines[number - 1])}"


def _edit(workspace: Workspace, wanted: EditInput, seen: str | None, change: Change) -> ToolOutput:
    before = workspace.snapshot(wanted.path, MAX_FILE_BYTES)
    if before is None:
        check = "path" if seen is None else "deleted"
        raise PathError(wanted.path, f"there is no such file; {_ABSENT}", check)
    check_seen(wanted.path, before.data, seen)
    try:
        edited = edit(before.data, wanted.old, wanted.new, replace_all=wanted.replace_all)
    except EditError as error:
        raise PathError(wanted.path, str(error), "match") from error
    done = change.make(workspace, wanted.path, before, edited.data)
    name = shown(workspace.locate(wanted.path))
    if done is None:
        return ToolOutput(f"{name} already reads like that; nothing was changed.")
    where = (
        f"line {edited.lines[0]}"
        if edited.count == 1
        else f"{edited.count:,} places, the first on line {edited.lines[0]}"
    )
    return ToolOutput(f"Edited {name}: replaced text at {where}.", changes=(done,))


async def edit_file(wanted: EditInput, context: ToolContext) -> ToolOutput:
    return await apply_change(wanted.path, context, lambda seen, change: _edit(context.workspace, wanted, seen, change))


EDIT_FILE: Final = TypedTool(
    ToolSpec(
        "edit_file",
        "Replace text in a file that was read before. old must occur exactly once, white space included, or set replace_all.",
        Raw(
            b'{"type":"object","properties":{"path":{"type":"string"},'
            b'"old":{"type":"string","description":"Text to replace, exactly as it is in the file"},'
            b'"new":{"type":"string","description":"Text to put there"},'
            b'"replace_all":{"type":"boolean","description":"Replace every occurrence"}},"required":["path","old","new"]}'
        ),
    ),
    EditInput,
    edit_file,
    writes=True,
)
