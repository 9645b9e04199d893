"""list_files, read_file and write_file."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Raw, Struct

from agentd.providers.stream import ToolSpec
from agentd.tools.base import MAX_RESULT_CHARS, ToolContext, ToolOutput
from agentd.tools.changes import MAX_FILE_BYTES, Change, apply_change, check_seen, is_binary, remember
from agentd.tools.search_worker import SKIPPED_DIRECTORIES
from agentd.tools.typed import InputError, TypedTool
from agentd.tools.window import Window, take_window
from agentd.tools.workspace import MAX_PATH_BYTES, PathError, RegularFile, Workspace, shown

# A larger file is read in windows up to here; what lies further in needs another tool.
MAX_SCAN_BYTES: Final = 256 * 1024 * 1024
# A listing looks at no more entries than this, shown or not.
MAX_ENTRIES: Final = 100_000
MAX_LISTED: Final = 2_000
MAX_DEPTH: Final = 32
# Room for the header line of a window.
_HEADER_CHARS: Final = 800

_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"\x7fELF", "ELF executable"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


class ListInput(Struct, frozen=True):
    path: str = "."
    depth: int = 2
    recursive: bool = False
    limit: int = 500


class ReadInput(Struct, frozen=True):
    path: str
    offset: int = 1
    limit: int | None = None


class WriteInput(Struct, frozen=True):
    path: str
    content: str


# --- list_files


class _Listing:
    """Walks a directory depth first, in name order, and keeps the first `limit` lines; the rest is only counted."""

    def __init__(self, limit: int) -> None:
        self.lines: list[str] = []
        self.left_out = 0
        self.complete = True
        self._limit = limit
        self._entries = 0

    def walk(self, fd: int, prefix: str, depth: int) -> None:
        with os.scandir(fd) as found:
            entries = sorted(islice(found, MAX_ENTRIES + 1 - self._entries), key=lambda entry: entry.name)
        self._entries += len(entries)
        if self._entries > MAX_ENTRIES:
            self.complete = False
        for entry in entries:
            directory = entry.is_dir(follow_symlinks=False)
            self._add(_line(fd, prefix, entry, directory=directory))
            if directory and depth > 1 and entry.name not in SKIPPED_DIRECTORIES and self.complete:
                self._descend(fd, entry.name, f"{prefix}{entry.name}/", depth - 1)

    def _descend(self, fd: int, name: str, prefix: str, depth: int) -> None:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            return  # unreadable or gone since: its line stays, its contents are not ours to show
        try:
            self.walk(below, prefix, depth)
        finally:
            os.close(below)

    def _add(self, line: str) -> None:
        if len(self.lines) < self._limit:
            self.lines.append(line)
        else:
            self.left_out += 1


def _line(fd: int, prefix: str, entry: os.DirEntry[str], *, directory: bool) -> str:
    name = shown(prefix + entry.name, MAX_PATH_BYTES)
    if directory:
        return name + "/"
    if entry.is_symlink():
        try:
            return f"{name} -> {shown(os.readlink(entry.name, dir_fd=fd))}"
        except OSError:
            return f"{name} ->"
    return name


def _list(workspace: Workspace, wanted: ListInput) -> ToolOutput:
    path = workspace.locate(wanted.path)
    listing = _Listing(max(1, min(wanted.limit, MAX_LISTED)))
    depth = MAX_DEPTH if wanted.recursive else max(1, min(wanted.depth, MAX_DEPTH))
    fd = workspace.open_directory(path)
    try:
        listing.walk(fd, "" if path == "." else path + "/", depth)
    finally:
        os.close(fd)
    return ToolOutput(_listing_text(listing, path))


def _listing_text(listing: _Listing, path: str) -> str:
    if not listing.lines:
        return f"{shown(path)} is empty."
    kept, size = 0, 0
    for line in listing.lines:
        size += len(line) + 1
        if size > MAX_RESULT_CHARS - _HEADER_CHARS:
            break
        kept += 1
    left_out = listing.left_out + len(listing.lines) - kept
    text = "\n".join(listing.lines[:kept])
    if left_out or not listing.complete:
        count = f"{left_out:,} more" if listing.complete else f"more than {left_out:,} more"
        text += f"\n[{count} not shown: list a directory below, or lower depth]"
    return text


async def list_files(wanted: ListInput, context: ToolContext) -> ToolOutput:
    return await asyncio.to_thread(_list, context.workspace, wanted)


# --- read_file


class _Read(Struct, frozen=True):
    text: str
    sha256: str | None


def _read(workspace: Workspace, path: str, offset: int, limit: int | None) -> _Read:
    with workspace.open_file(path) as file:
        data = b"".join(file.chunks(MAX_FILE_BYTES + 1))
        if is_binary(data):
            return _Read(_describe_binary(file, data), None)
        budget = MAX_RESULT_CHARS - _HEADER_CHARS
        if len(data) <= MAX_FILE_BYTES:
            window = take_window([data], offset, limit, budget)
            return _Read(_render(path, window, offset, _line_count(data)), hashlib.sha256(data).hexdigest())
        window = take_window(_scan(file, data), offset, limit, budget)
        note = f"{file.size:,} bytes, too large to be edited"
        if not window.more and file.size > MAX_SCAN_BYTES:
            note += f", only its first {MAX_SCAN_BYTES:,} bytes are looked at"
        return _Read(_render(path, window, offset, None, note), None)


def _scan(file: RegularFile, head: bytes) -> Iterator[bytes]:
    yield head
    yield from file.chunks(MAX_SCAN_BYTES - len(head))


def _render(path: str, window: Window, offset: int, total: int | None, *notes: str) -> str:
    """The lines as they are; one header line when there is something to say about them."""
    if not window.count:
        if offset <= 1:
            return "[the file is empty]"
        reach = "the file has" if total is not None else "as far as it is looked at, the file has"
        raise PathError(path, f"there is no line {offset}; {reach} {window.lines_seen:,} lines")
    said = list(notes)
    if window.more or offset > 1:
        lines = f"lines {window.first}-{window.last}"
        said.insert(0, lines + (f" of {total:,}" if total is not None else ""))
    said += window.notes
    if window.more:
        said.append(f"go on with offset={window.last + 1}")
    return f"[{'; '.join(said)}]\n{window.text}" if said else window.text


def _describe_binary(file: RegularFile, head: bytes) -> str:
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), "unknown type")
    digest, size = hashlib.sha256(), 0
    file.rewind()
    for chunk in file.chunks(MAX_SCAN_BYTES):
        digest.update(chunk)
        size += len(chunk)
    if file.size > MAX_SCAN_BYTES:
        return f"[binary file: {kind}, {file.size:,} bytes, too large for a digest]"
    return f"[binary file: {kind}, {size:,} bytes, sha256 {digest.hexdigest()}]"


async def read_file(wanted: ReadInput, context: ToolContext) -> ToolOutput:
    if wanted.limit is not None and wanted.limit < 1:
        raise InputError("limit must be at least 1")
    path = context.workspace.locate(wanted.path)
    found = await asyncio.to_thread(_read, context.workspace, wanted.path, max(1, wanted.offset), wanted.limit)
    if found.sha256 is not None:
        remember(context.seen, path, found.sha256)
    return ToolOutput(found.text)


# --- write_file


def _line_count(data: bytes) -> int:
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def _write(workspace: Workspace, wanted: WriteInput, seen: str | None, change: Change) -> ToolOutput:
    data = wanted.content.encode()
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"content is too large (over {MAX_FILE_BYTES:,} bytes)")
    before = workspace.snapshot(wanted.path, MAX_FILE_BYTES)
    if before is not None:
        check_seen(wanted.path, before.data, seen)
    done = change.make(workspace, wanted.path, before, data)
    size = f"{_line_count(data):,} lines, {len(data):,} bytes"
    name = shown(workspace.locate(wanted.path))
    if done is None:
        return ToolOutput(f"{name} already has this content; nothing was changed.")
    return ToolOutput(f"{'Wrote' if before else 'Created'} {name} ({size}).", changes=(done,))


async def write_file(wanted: WriteInput, context: ToolContext) -> ToolOutput:
    return await apply_change(
        wanted.path, context, lambda seen, change: _write(context.workspace, wanted, seen, change)
    )


LIST_FILES: Final = TypedTool(
    ToolSpec(
        "list_files",
        "List files and directories of the workspace, as paths to use with the other tools. Directories end in /. "
        "The contents of .git, node_modules and the like are left out unless they are named as the path.",
        Raw(
            b'{"type":"object","properties":{"path":{"type":"string","description":"Directory, default: the workspace"},'
            b'"depth":{"type":"integer","description":"Levels to show, default 2"},'
            b'"recursive":{"type":"boolean","description":"Show all levels"},'
            b'"limit":{"type":"integer","description":"Most entries to show, default 500"}}}'
        ),
    ),
    ListInput,
    list_files,
    writes=False,
)
READ_FILE: Final = TypedTool(
    ToolSpec(
        "read_file",
        "Read a text file of the workspace. Long files come in windows of lines: the first line then says which, and where to "
        "go on. A file must be read before it can be edited or overwritten.",
        Raw(
            b'{"type":"object","properties":{"path":{"type":"string"},'
            b'"offset":{"type":"integer","description":"First line, counted from 1"},'
            b'"limit":{"type":"integer","description":"Most lines to read"}},"required":["path"]}'
        ),
    ),
    ReadInput,
    read_file,
    writes=False,
)
WRITE_FILE: Final = TypedTool(
    ToolSpec(
        "write_file",
        "Write a whole text file, creating directories as needed. A file that exists must have been read before. "
        "To change part of a file use edit_file.",
        Raw(
            b'{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}},'
            b'"required":["path","content"]}'
        ),
    ),
    WriteInput,
    write_file,
    writes=True,
)
