"""The only way to the terminal: results on stdout, notes on stderr, everything made safe, a closed pipe remembered."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, TextIO

from agentctl.safe_text import safe_json, safe_line, safe_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_STYLES: Final = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33"}


class Output:
    """Shows text to people and programs. Nothing here raises when the reader has gone: `closed` and `notes_closed` tell.

    Pieces of text that people get may be cut anywhere; `end_line` closes the line that the last piece left open.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO, env: Mapping[str, str]) -> None:
        self.closed = False
        self.notes_closed = False
        self.stdout_tty = _is_tty(stdout)
        self.stderr_tty = _is_tty(stderr)
        self._stdout = stdout
        self._stderr = stderr
        self._mid_line = False
        plain = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
        self._colour_out = self.stdout_tty and not plain
        self._colour_err = self.stderr_tty and not plain
        self._columns = env.get("COLUMNS", "")

    def text(self, text: str) -> None:
        """A piece of an answer, shown at once."""
        if text:
            self._write(safe_text(text))
            self._mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        """Close the line, when one is open."""
        if self._mid_line:
            self._write("\n")
            self._mid_line = False

    def line(self, text: str = "", style: str = "") -> None:
        """One line of a result, whatever is in it: a name with a newline in it makes no second row."""
        self._write(_styled(safe_line(text), style, on=self._colour_out) + "\n")

    def lines(self, text: str, style: str = "") -> None:
        """Text that is meant to have lines and tabs of its own."""
        self._write(_styled(safe_text(text), style, on=self._colour_out) + "\n")

    def json(self, value: object) -> None:
        """One JSON document on one line. Raises TypeError for what JSON cannot hold (a bug)."""
        self.json_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def json_line(self, line: str) -> None:
        """A line that is JSON already, the same value in the same order."""
        self._write(safe_json(line) + "\n")

    def note(self, text: str, style: str = "") -> None:
        """One line on stderr. On a terminal it never lands in the middle of an answer's line."""
        if self.stdout_tty and self.stderr_tty:
            self.end_line()
        if self.notes_closed:
            return
        try:
            self._stderr.write(_styled(safe_line(text), style, on=self._colour_err) + "\n")
            self._stderr.flush()
        except BrokenPipeError:
            self.notes_closed = True  # nobody reads the notes: that must not stop the work

    def note_line(self, text: str, style: str = "") -> None:
        """A note that stays on one line and is cut to the terminal's width (progress, never an answer)."""
        self.note(fit(safe_line(text), self.width()), style)

    def width(self) -> int:
        """Columns of the terminal that shows the notes; 200 where there is none."""
        if self._columns.isdecimal() and int(self._columns) > 0:
            return max(20, int(self._columns))
        if not self.stderr_tty:
            return 200
        try:
            return max(20, os.get_terminal_size(self._stderr.fileno()).columns)
        except OSError:
            return 80

    def mark(self, ok: bool | None) -> str:
        """✓, ✗ or … (no result), in ASCII where the terminal knows nothing else."""
        unicode = "utf" in (getattr(self._stderr, "encoding", None) or "utf-8").lower()
        if ok is None:
            return "…" if unicode else "?"
        if unicode:
            return "✓" if ok else "✗"
        return "ok" if ok else "failed"

    def _write(self, text: str) -> None:
        if self.closed:
            return
        try:
            self._stdout.write(text)
            self._stdout.flush()
        except BrokenPipeError:
            self.closed = True


def fit(text: str, columns: int) -> str:
    """The text cut to so many columns, with … where it was cut. Wide characters count two, combining ones none."""
    if text.isascii():
        return text if len(text) <= columns else text[: columns - 1] + "…"
    from unicodedata import combining, east_asian_width

    used = 0
    cut = 0  # how much of the text leaves room for the …
    for at, char in enumerate(text):
        used += 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1
        if used > columns:
            return text[:cut] + "…"
        if used < columns:
            cut = at + 1
    return text


def _styled(text: str, style: str, *, on: bool) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and on else text


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed before we were started
        return False
