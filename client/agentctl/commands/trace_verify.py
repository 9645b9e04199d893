"""agentctl trace verify: is everything there that was recorded, exactly as it was written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from agentctl import format as fmt
from agentctl.commands.trace_show import note_json
from agentctl.errors import DAMAGED, DONE
from agentctl.trace_lines import note_line
from tracewriter.reader import verify

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentctl.arguments import Parsed
    from agentctl.world import World
    from tracewriter.findings import Verdict


def run(paths: Sequence[Path], parsed: Parsed, world: World) -> int:
    """Exit 5 when damage was found in any of the sessions, else 0. With --json one document per session and line."""
    damaged = 0
    for path in paths:
        try:
            verdict = verify(path)
        except FileNotFoundError:
            if parsed.has("all"):
                continue  # retention was faster
            raise
        damaged += verdict.damaged
        if parsed.has("json"):
            world.out.json(as_json(path, verdict))
        else:
            show(path, verdict, world)
        if world.out.closed:
            break
    if parsed.has("all") and not parsed.has("json"):
        world.out.note(f"{fmt.count(len(paths), 'session')}, {damaged} damaged")
    return DAMAGED if damaged else DONE


def as_json(path: Path, verdict: Verdict) -> dict[str, object]:
    """A verdict as a document."""
    fields: dict[str, object] = msgspec.to_builtins(verdict)
    return {
        "session": path.name,
        "path": os.fspath(path),
        **fields,
        "notes": [note_json(note) for note in verdict.notes],
    }


def show(path: Path, verdict: Verdict, world: World) -> None:
    """A verdict for people: the line that says it all, then each note, then the digest to keep elsewhere."""
    out = world.out
    text = f"{fmt.short_id(path.name)}  {sentence(verdict)}"
    out.line(text, "red" if verdict.damaged else "green")
    for note in verdict.notes:
        if note.kind == "active":
            continue  # the sentence says so
        out.line(note_line(note), "red" if note.damage else "")
    if verdict.head is not None:
        out.line(f"        head {verdict.head}")


def sentence(verdict: Verdict) -> str:
    """Damage or none, whether the end is there, and the counts."""
    if verdict.damaged:
        state = "DAMAGED"
    elif verdict.active:
        state = "intact, the session is still open"
    elif verdict.emitted is None:
        state = f"intact, end missing (unknown after {verdict.last})"
    else:
        state = "intact and complete"
    dropped = f", {verdict.dropped:,} dropped" if verdict.dropped else ""
    where = f"{fmt.count(verdict.segments, 'segment')}, {fmt.size(verdict.bytes)}"
    verified = "all" if verdict.verified == verdict.records else f"{verdict.verified:,}"
    return f"{state}: {fmt.count(verdict.records, 'record')} ({verified} verified by hash){dropped}, {where}{_payloads(verdict)}"


def _payloads(verdict: Verdict) -> str:
    if not verdict.payloads:
        return ""
    verified = "all" if verdict.payloads_verified == verdict.payloads else f"{verdict.payloads_verified:,}"
    return f", {fmt.count(verdict.payloads, 'payload')} ({verified} verified), {fmt.size(verdict.payload_bytes)}"
