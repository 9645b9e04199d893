"""agentctl trace show: a session's records in order, notes in their places, and the verdict. Constant memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentctl import format as fmt
from agentctl.errors import DAMAGED, DONE
from agentctl.ids import choose_run
from agentctl.trace_lines import note_line, record_lines
from tracewriter.bodies import with_bodies, with_whole_lines
from tracewriter.findings import Note
from tracewriter.payload_files import SessionPayloads
from tracewriter.reader import read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.world import World
    from tracewriter.bodies import Find
    from tracewriter.events import RawRecord
    from tracewriter.findings import Found


def run(path: Path, parsed: Parsed, world: World) -> int:
    """Exit 5 when damage was found, else 0. Raises UsageProblem for a run that is not in the session."""
    typed = parsed.value("run")
    run = choose_run(typed, _runs(path)) if typed is not None else ""
    full, as_json = parsed.has("full"), parsed.has("json")
    with SessionPayloads(path) as payloads:
        items = filled(read(path), payloads.find, run=run, as_json=as_json, full=full)
        return show(items, world.out, run=run, as_json=as_json, full=full)


def filled(
    items: Iterable[Found | Note], find: Find, *, run: str = "", as_json: bool, full: bool
) -> Iterable[Found | Note]:
    """The findings with the bodies that a view needs: all of the run's when they are to be shown whole."""

    def wanted(record: RawRecord) -> bool:
        return full and (not run or record.run == run)

    if as_json:
        return with_whole_lines(items, find, wanted) if full else items
    return with_bodies(items, find, wanted)


def _runs(path: Path) -> list[str]:
    runs = (item.record.run for item in read(path) if not isinstance(item, Note))
    return list(dict.fromkeys(run for run in runs if run))


def show(
    items: Iterable[Found | Note], out: Output, *, run: str = "", as_json: bool = False, full: bool = False
) -> int:
    """Show what was found, as it is found; of one run only when it is named. Ends early, and quietly, when nobody reads on."""
    tally = _Tally()
    view = _Json(out) if as_json else _People(out, full=full)
    for item in items:
        tally.take(item)
        if isinstance(item, Note) or not run or item.record.run == run:
            view.show(item)
        if out.closed:
            return DONE
    if as_json:
        out.json(tally.as_json())
    else:
        for line in tally.lines():
            out.line(line, "red" if tally.damage else "")
    return DAMAGED if tally.damage else DONE


class _People:
    """Shows findings as lines, with the date above the first record of each day."""

    def __init__(self, out: Output, *, full: bool) -> None:
        self._out = out
        self._full = full
        self._day = ""
        self._held: Note | None = None

    def show(self, item: Found | Note) -> None:
        if self._held is not None:
            self._note(self._held)
            self._held = None
        if isinstance(item, Note):
            if item.kind in ("end_missing", "active"):
                self._held = item  # at the very end the verdict says it
            elif item.kind != "dropped":  # the drop record itself, just shown, says it
                self._note(item)
            return
        day = fmt.local_time(item.record.ts)[:10]
        if day != self._day:
            self._day = day
            self._out.line(day, "bold")
        for line in record_lines(item, full=self._full):
            self._out.lines(line)

    def _note(self, note: Note) -> None:
        self._out.line(note_line(note), "red" if note.damage else "yellow")


class _Json:
    """Shows the lines of findings, as they are stored unless bodies were put back."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def show(self, item: Found | Note) -> None:
        if isinstance(item, Note):
            self._out.json({"note": note_json(item)})  # no record looks like that
        else:
            self._out.json_line(item.line.decode("utf-8", "replace"))


def note_json(note: Note) -> dict[str, object]:
    """A note's fields, and whether it is damage."""
    fields: dict[str, object] = msgspec.to_builtins(note)
    return {**{name: value for name, value in fields.items() if value is not None}, "damage": note.damage}


class _Tally:
    """Counts what went by; keeps nothing of it."""

    def __init__(self) -> None:
        self.records = 0
        self.dropped = 0
        self.damage = 0
        self.first = 0
        self.last = 0
        self.ended = True
        self.active = False

    def take(self, item: Found | Note) -> None:
        if isinstance(item, Note):
            self.damage += item.damage
            self.ended = self.ended and item.kind != "end_missing"
            self.active = self.active or item.kind == "active"
            return
        if item.record.event == "trace.drop.observed":
            self.dropped += item.end - item.record.seq + 1
        else:
            self.records += 1
        self.first = self.first or item.record.seq
        self.last = item.end
        self.ended = True  # what ended without an end was an earlier recording

    def lines(self) -> list[str]:
        """The verdict, for people."""
        lost = f", {self.dropped:,} dropped" if self.dropped else ""
        verdict = f"DAMAGE FOUND in {fmt.count(self.damage, 'place')}" if self.damage else "no damage seen"
        lines = [f"{fmt.count(self.records, 'record')} ({self.first} to {self.last}){lost}: {verdict}"]
        if self.active:
            lines.append("still being recorded")
        elif not self.ended:
            lines.append(
                f"end missing: the recording did not finish; whether anything came after record {self.last} is unknown"
            )
        return lines

    def as_json(self) -> dict[str, object]:
        """The verdict, for programs."""
        verdict = {name: getattr(self, name) for name in ("records", "dropped", "first", "last", "active")}
        return {"verdict": {**verdict, "damaged": self.damage > 0, "end_missing": not self.ended}}
