"""agentctl trace tail: the newest records of a session, and those to come, straight from its files."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Final

from agentctl import format as fmt
from agentctl.commands.trace_show import filled, note_json
from agentctl.errors import DAMAGED, DONE, INTERRUPTED, UsageProblem
from agentctl.interrupts import Interrupts
from agentctl.trace_lines import note_line, record_lines
from tracewriter.findings import Note
from tracewriter.tail import Cursor, Follower, before_last, parse_cursor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.world import World
    from tracewriter.bodies import Find
    from tracewriter.findings import Found

LINES: Final = 10
# How long nothing is looked at: short while records come, longer while none do.
_BUSY_MS: Final = 20
_IDLE_MS: Final = 200


def run(path: Path, parsed: Parsed, world: World) -> int:
    """Exit 0 at the end (with -f: of a recording that was closed in order), 5 when damage was seen, 130 after Ctrl-C."""
    with Follower(path, _since(path, parsed)) as follower:
        view = _View(world.out, follower.find_payload, as_json=parsed.has("json"), full=parsed.has("full"))
        if not parsed.has("follow"):
            view.show_all(follower.poll())
            view.show_all(follower.end())
            return DAMAGED if view.damage else DONE
        with Interrupts() as interrupts:
            return _follow(follower, view, interrupts, world, forever=parsed.has("forever"))


def _since(path: Path, parsed: Parsed) -> Cursor:
    typed, lines = parsed.value("since"), parsed.value("lines")
    if typed is not None and lines is not None:
        raise UsageProblem("trace tail: either --lines or --since", "see agentctl trace tail --help")
    if typed is not None:
        try:
            return parse_cursor(typed)
        except ValueError as problem:
            raise UsageProblem(f"trace tail: {problem}", "see agentctl trace tail --help") from problem
    if lines is not None and not (lines.isascii() and lines.isdecimal() and len(lines) < 16):
        raise UsageProblem(f"trace tail: --lines is a number, not {lines[:40]!r}", "see agentctl trace tail --help")
    return before_last(path, LINES if lines is None else int(lines))


def _follow(follower: Follower, view: _View, interrupts: Interrupts, world: World, *, forever: bool) -> int:
    poll = select.poll()
    poll.register(interrupts.wake, select.POLLIN)
    wait_ms = _BUSY_MS
    while True:
        shown = view.shown
        view.show_all(follower.poll(), interrupts)
        if interrupts.count:
            world.out.note(f"interrupted; go on with --since {follower.cursor}")
            return INTERRUPTED
        if world.out.closed:
            return DONE
        if follower.gone or (follower.finished and not forever):
            return DAMAGED if view.damage else DONE
        wait_ms = _BUSY_MS if view.shown != shown else min(_IDLE_MS, wait_ms * 2)
        poll.poll(wait_ms)


class _View:
    """Shows findings as they come, with the date above the first record of each day."""

    def __init__(self, out: Output, find: Find, *, as_json: bool, full: bool) -> None:
        self._out, self._find, self._as_json, self._full = out, find, as_json, full
        self._day = ""
        self.damage = 0
        self.shown = 0

    def show_all(self, items: Iterable[Found | Note], interrupts: Interrupts | None = None) -> None:
        """Until the reader has gone, or Ctrl-C."""
        for item in filled(items, self._find, as_json=self._as_json, full=self._full):
            self.shown += 1
            if isinstance(item, Note):
                self._note(item)
            else:
                self._record(item)
            if self._out.closed or (interrupts is not None and interrupts.count):
                return

    def _record(self, found: Found) -> None:
        if self._as_json:
            self._out.json_line(found.line.decode("utf-8", "replace"))
            return
        day = fmt.local_time(found.record.ts)[:10]
        if day != self._day:
            self._day = day
            self._out.line(day, "bold")
        for line in record_lines(found, full=self._full):
            self._out.lines(line)

    def _note(self, note: Note) -> None:
        self.damage += note.damage
        if self._as_json:
            self._out.json({"note": note_json(note)})
        elif note.kind != "dropped":  # the drop record itself, just shown, says it
            self._out.line(note_line(note), "red" if note.damage else "yellow")
