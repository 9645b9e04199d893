"""The scan behind `search`, run as a process of its own: `python -I -S search_worker.py FD`, request on stdin, JSON lines out.

Standard library only, nothing of ours imported: it must start in milliseconds and needs no site-packages. It gets an open
descriptor of a directory or a file, opens everything below it with O_NOFOLLOW, and so cannot leave the tree. Its time and
memory are limited by the kernel, so that it ends even when its parent is gone.

Answers, one JSON object a line: {"type":"match","path","line","text"}…, then {"type":"end","files","more","large"}, or one
{"type":"bad","message"} for a pattern or glob that does not compile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

# Never looked into unless named as the path: version control, dependencies, caches, build output.
SKIPPED_DIRECTORIES: Final = frozenset(
    {".git", ".hg", ".svn", ".jj", "node_modules", ".venv", "venv", ".tox", ".nox", "__pycache__", ".mypy_cache"}
    | {".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", ".idea", ".gradle", ".terraform", ".next", ".eggs"}
)
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MAX_TEXT_CHARS: Final = 300
# All that is worth sending: twice what a model is given of one result.
MAX_OUTPUT_CHARS: Final = 40_000
MAX_MEMORY_BYTES: Final = 512 * 1024 * 1024
_MAX_DEPTH: Final = 64
_MAX_IGNORE_BYTES: Final = 256 * 1024
_LEAD_CHARS: Final = 100
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Search: TypeAlias = Callable[[str], tuple[int, int] | None]


class Rule(NamedTuple):
    """One line of a .gitignore: paths (relative to `base`) that match are ignored, or kept when negated."""

    base: str
    regex: re.Pattern[str]
    negated: bool
    directories_only: bool


def glob_regex(glob: str) -> str:
    """A glob as a regular expression over a path with "/": `*` and `?` stay in a component, `**` does not, {a,b} and [x] work."""
    out, i, braces = "", 0, 0
    while i < len(glob):
        c = glob[i]
        i += 1
        if c == "*" and glob.startswith("*/", i) and (i == 1 or glob[i - 2] == "/"):
            out, i = out + "(?:.*/)?", i + 2
        elif c == "*" and glob.startswith("*", i):
            out, i = out + ".*", i + 1
        elif c == "*":
            out += "[^/]*"
        elif c == "?":
            out += "[^/]"
        elif c == "[" and (end := glob.find("]", i + 1 + glob.startswith(("!", "^"), i))) > 0:
            inside = glob[i:end].replace("\\", "\\\\").replace("[", "\\[")
            for pair in ("&&", "||", "~~", "--"):  # one day set operations
                inside = inside.replace(pair, f"{pair[0]}\\{pair[1]}")
            out, i = out + "[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]", end + 1
        elif c == "{" and "}" in glob[i:]:
            out, braces = out + "(?:", braces + 1
        elif c == "}" and braces:
            out, braces = out + ")", braces - 1
        elif c == "," and braces:
            out += "|"
        elif c == "\\" and i < len(glob):
            out, i = out + re.escape(glob[i]), i + 1
        else:
            out += re.escape(c)
    return out + ")" * braces


def path_regex(glob: str) -> re.Pattern[str]:
    """Matches whole relative paths. A glob without "/" (but at its end) is about names at any depth, as in .gitignore."""
    anchored = "/" in glob
    return re.compile(("" if anchored else "(?:.*/)?") + glob_regex(glob.lstrip("/")), re.DOTALL)


def ignore_rules(text: str, base: str) -> list[Rule]:
    """The rules of a .gitignore in directory `base` ("" or ending in "/"). Lines that make no valid glob are left out."""
    rules = []
    for line in text.split("\n"):
        glob = line.rstrip()
        if not glob or glob.startswith("#"):
            continue
        negated = glob.startswith("!")
        glob = glob.removeprefix("!")
        try:
            rules.append(Rule(base, path_regex(glob.rstrip("/")), negated, glob.endswith("/")))
        except re.error:
            continue
    return rules


def is_ignored(path: str, rules: list[Rule], *, directory: bool) -> bool:
    """What the last matching rule says."""
    for rule in reversed(rules):
        if (directory or not rule.directories_only) and rule.regex.fullmatch(path[len(rule.base) :]):
            return not rule.negated
    return False


def compile_search(pattern: str, *, literal: bool, ignore_case: bool) -> Search:
    """Where the pattern first matches in a line. Raises re.error, OverflowError or RecursionError for a bad one."""
    regex = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)

    def search(line: str) -> tuple[int, int] | None:
        found = regex.search(line)
        return found.span() if found else None

    return search


def compile_glob(glob: str) -> Callable[[str], bool]:
    """Which paths are wanted: all without a glob, those that do not match with a leading "!"."""
    if not glob:
        return lambda path: True
    regex = path_regex(glob.removeprefix("!"))
    wanted = not glob.startswith("!")
    return lambda path: (regex.fullmatch(path) is not None) is wanted


def excerpt(line: str, start: int) -> str:
    """The line, or at most MAX_TEXT_CHARS of it around the match."""
    if len(line) <= MAX_TEXT_CHARS:
        return line
    first = max(0, min(start - _LEAD_CHARS, len(line) - MAX_TEXT_CHARS))
    text = line[first : first + MAX_TEXT_CHARS]
    return ("…" if first else "") + text + ("…" if first + MAX_TEXT_CHARS < len(line) else "")


class Scan:
    """One search. `emit` takes each match; after the walk the counts tell what was and was not looked at."""

    def __init__(
        self, search: Search, wanted: Callable[[str], bool], limit: int, emit: Callable[[str, int, str], None]
    ) -> None:
        self._search = search
        self._wanted = wanted
        self._emit = emit
        self._left = limit
        self._chars_left = MAX_OUTPUT_CHARS
        self.files = 0
        self.large = 0
        self.more = False

    def walk(self, fd: int, prefix: str, path: str, rules: list[Rule], depth: int = 0) -> None:
        """Everything below the directory `fd`, in name order. `path` is relative to where the search began, `prefix` is shown."""
        rules = rules + self._rules_at(fd, path)
        with os.scandir(fd) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if self.more:
                return
            name, below = entry.name, path + entry.name
            directory = entry.is_dir(follow_symlinks=False)
            if name.startswith(".") or is_ignored(below, rules, directory=directory):
                continue
            if directory:
                if name not in SKIPPED_DIRECTORIES and depth < _MAX_DEPTH:
                    with _opened(name, fd, os.O_DIRECTORY) as inner:
                        if inner >= 0:
                            self.walk(inner, prefix + name + "/", below + "/", rules, depth + 1)
            elif entry.is_file(follow_symlinks=False) and self._wanted(below):
                with _opened(name, fd) as inner:
                    if inner >= 0:
                        self.scan_file(inner, prefix + name)

    def scan_file(self, fd: int, path: str) -> None:
        """One file: its matching lines, unless it is binary or too large."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return
        data = _read(fd, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            self.large += 1
            return
        if b"\0" in data:
            return
        self.files += 1
        for number, line in enumerate(_lines(data.decode("utf-8", "replace")), 1):
            span = self._search(line)
            if span is not None:
                self._take(path, number, excerpt(line, span[0]))
                if self.more:
                    return

    def _take(self, path: str, number: int, text: str) -> None:
        size = len(path) + len(text)
        if self._left < 1 or size > self._chars_left:
            self.more = True
            return
        self._left -= 1
        self._chars_left -= size
        self._emit(path, number, text)

    def _rules_at(self, fd: int, path: str) -> list[Rule]:
        with _opened(".gitignore", fd) as inner:
            if inner < 0 or not stat.S_ISREG(os.fstat(inner).st_mode):
                return []
            return ignore_rules(_read(inner, _MAX_IGNORE_BYTES).decode("utf-8", "replace"), path)


def _lines(text: str) -> Iterator[str]:
    """The lines at LF, without CR, one at a time: millions of short ones in a list would pass the memory limit."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].removesuffix("\r")
        start = end + 1


@contextlib.contextmanager
def _opened(name: str, parent: int, flags: int = 0) -> Iterator[int]:
    """A descriptor, or -1 for what cannot be opened (gone, unreadable): a search goes on without it."""
    try:
        fd = os.open(name, _OPEN | flags, dir_fd=parent)
    except OSError:
        fd = -1
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def _read(fd: int, max_bytes: int) -> bytes:
    parts = []
    while max_bytes > 0 and (part := os.read(fd, min(max_bytes, 1 << 20))):
        parts.append(part)
        max_bytes -= len(part)
    return b"".join(parts)


def _say(**fields: str | int | bool) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def main(fd: int, request: str) -> None:
    """Answer one request; `fd` is open on the directory or the file to search."""
    asked = json.loads(request)
    signal.alarm(asked["seconds"])
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    try:
        search = compile_search(asked["pattern"], literal=asked["literal"], ignore_case=asked["ignore_case"])
        wanted = compile_glob(asked["glob"])
    except (re.error, OverflowError, RecursionError) as error:
        _say(type="bad", message=str(error))
        return
    scan = Scan(
        search,
        wanted,
        asked["limit"],
        lambda path, line, text: _say(type="match", path=_text(path), line=line, text=text),
    )
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        scan.walk(fd, asked["prefix"], "", [])
    else:
        scan.scan_file(fd, asked["prefix"])
    _say(type="end", files=scan.files, more=scan.more, large=scan.large)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.stdin.read())
