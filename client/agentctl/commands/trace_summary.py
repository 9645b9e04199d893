"""agentctl trace summary: what the runs of a session really did, for people or as one JSON document."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from agentctl import format as fmt
from agentctl.commands.trace_show import note_json
from agentctl.errors import DAMAGED, DONE
from agentctl.ids import choose_run
from agentctl.safe_text import safe_line
from agentctl.summary import RunSummary, Summary, needs_bodies, summarise
from agentctl.trace_lines import note_line
from tracewriter.bodies import with_bodies
from tracewriter.payload_files import SessionPayloads
from tracewriter.reader import read

if TYPE_CHECKING:
    from pathlib import Path

    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.world import World

_MAX_PROMPT_LINES = 6
_MAX_OTHER_LINES = 12


def run(path: Path, parsed: Parsed, world: World) -> int:
    """Exit 5 when damage was found, else 0. Raises UsageProblem for a run that is not in the session."""
    with SessionPayloads(path) as payloads:
        summary = summarise(with_bodies(read(path), payloads.find, needs_bodies))
    wanted = parsed.value("run")
    if wanted is not None:
        chosen = choose_run(wanted, [run.run for run in summary.runs])
        summary = msgspec.structs.replace(summary, runs=tuple(run for run in summary.runs if run.run == chosen))
    if parsed.has("json"):
        world.out.json(as_json(path, summary))
    else:
        show(path, summary, world.out)
    return DAMAGED if summary.damaged else DONE


def as_json(path: Path, summary: Summary) -> dict[str, object]:
    """A summary as a document."""
    fields: dict[str, object] = msgspec.to_builtins(summary)
    return {
        "session": path.name,
        "path": os.fspath(path),
        **fields,
        "notes": [note_json(note) for note in summary.notes],
    }


def show(path: Path, summary: Summary, out: Output) -> None:
    """A summary for people; what the reader found wrong comes last, where it is seen."""
    where = f" in {summary.workspace}" if summary.workspace else ""
    out.line(f"session {path.name}{where}", "bold")
    for run in summary.runs:
        for line in run_lines(run, out):
            out.line(line)
    if not summary.runs and not summary.others:
        out.line("  no run is recorded")
    for line in _field("events", _others(summary.others)) if summary.others else []:
        out.line(line)
    for note in summary.notes:
        if note.kind not in ("active", "unsealed"):
            out.line(note_line(note), "red" if note.damage else "")


def run_lines(run: RunSummary, out: Output) -> list[str]:
    """One run, a fact per line."""
    model = "/".join(part for part in (run.provider, run.model) if part) or "unknown"
    used = (
        "unknown"
        if run.usage is None
        else fmt.usage(run.usage.input_tokens, run.usage.output_tokens, run.usage.cache_read_tokens)
    )
    so_far = " so far" if run.outcome in ("running", "end missing") else ""
    lines = [f"run {run.run}  {fmt.local_time(run.started_at)}"]
    lines += _field("prompt", _prompt_lines(run.prompt))
    lines += _field("model", [f"{model}, {run.mode or 'unknown'} mode, {fmt.count(run.requests, 'request')}"])
    lines += _field("tools", _tool_lines(run, out))
    lines += _field("files", [safe_line(path) for path in run.files] or ["none changed"])
    lines += _field("errors", [safe_line(error) for error in run.errors] or ["none"])
    lines += _field("outcome", [run.outcome])
    lines += _field("usage", [f"{used}{so_far}"])
    lines += _field("cost", [f"{fmt.cost(run.cost_usd).removeprefix('cost ')}{so_far}"])
    lines += _field("duration", [f"{fmt.duration(run.duration_ms)}{so_far}"])
    return lines


def _others(others: dict[str, int]) -> list[str]:
    """Kinds that other tools record, the most frequent first."""
    most = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    more = [f"… {len(most) - _MAX_OTHER_LINES} more kinds"] if len(most) > _MAX_OTHER_LINES else []
    return [f"{safe_line(kind)} {count:,}" for kind, count in most[:_MAX_OTHER_LINES]] + more


def _prompt_lines(prompt: str | None) -> list[str]:
    if prompt is None:
        return ["unknown: the run's beginning is missing"]
    lines = prompt.strip().split("\n")
    more = [f"… {len(lines) - _MAX_PROMPT_LINES} more lines"] if len(lines) > _MAX_PROMPT_LINES else []
    return [fmt.first_line(line, 300) for line in lines[:_MAX_PROMPT_LINES]] + more


def _tool_lines(run: RunSummary, out: Output) -> list[str]:
    lines = []
    for tool in run.tools:
        took = f"  {fmt.duration(tool.duration_ms)}" if tool.ok is not None else "  no result recorded"
        error = f"  {safe_line(tool.error)}" if tool.error else ""
        argument = fmt.first_line(safe_line(tool.argument), 80)
        called = " ".join(part for part in (out.mark(tool.ok), safe_line(tool.name), argument) if part)
        lines.append(f"{called}{took}{error}")
    return lines or ["none"]


def _field(name: str, values: list[str]) -> list[str]:
    return [f"  {name if at == 0 else '':<9} {value}" for at, value in enumerate(values)]
