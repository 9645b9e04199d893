"""agentctl trace prune, pin, unpin, undelete: what is kept, by hand. The same rules and the same policy as the recorder's."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agentctl import format as fmt
from agentctl.commands import trace
from agentctl.errors import DONE, INCOMPLETE, ClientError, UsageProblem
from agentctl.safe_text import safe_line
from agentd.paths import config_file, traces_dir
from tracewriter.retention import Policy, PolicyError, checked, load_policy, plan
from tracewriter.trash import SessionUnavailable, TraceError, Traces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentctl.arguments import Parsed
    from agentctl.world import World
    from tracewriter.retention import Candidate, Plan, Trashed
    from tracewriter.trash import Deed, Report

_UNITS: Final = {"K": 1024, "M": 1024**2, "G": 1024**3}
_WHY: Final = {"age": "older than max_age_days", "budget": "over the budget", "trash": "in the trash"}


def run(name: str, parsed: Parsed, world: World) -> int:
    """Exit 0 when done, 1 when something would not go, 2 when what was asked for cannot be or the config cannot be read."""
    try:
        if name == "trace prune":
            return _prune(parsed, world)
        if name == "trace undelete":
            return _undelete(parsed, world)
        return _pin(parsed.operands[0], world, pinned=name == "trace pin")
    except TraceError as problem:
        raise ClientError(str(problem)) from problem


# --- prune


def policy_of(parsed: Parsed, world: World) -> Policy:
    """config.toml's [retention], with what was typed instead. Raises UsageProblem: nothing is deleted by a guess."""
    try:
        policy = load_policy(Path(config_file(world.env)))
        days, size = parsed.value("days"), parsed.value("max-bytes")
        if days is not None:
            policy = msgspec.structs.replace(policy, max_age_days=_number(days, "--days"))
        if size is not None:
            unit = _UNITS.get(size[-1:].upper(), 1)
            number = size if unit == 1 else size[:-1]
            policy = msgspec.structs.replace(policy, max_bytes=int(_number(number, "--max-bytes") * unit))
        return checked(policy, "trace prune")
    except PolicyError as problem:
        raise UsageProblem(str(problem), "see agentctl trace prune --help, or the README on [retention]") from problem


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise UsageProblem(f"trace prune: {option} is a number above 0, not {text[:40]!r}", "nothing was deleted")
    return value


def _prune(parsed: Parsed, world: World) -> int:
    policy = policy_of(parsed, world)
    now = time.time()
    with _traces(world) as traces:
        if parsed.has("dry-run"):
            candidates, trash = traces.scan()
            # Somebody asks: that stands for the hour that a recorder watches its clock.
            decided = plan(candidates, trash, policy, now, clock_trusted=True)
            _show_plan(decided, candidates, policy, parsed, world)
            return DONE
        report = traces.enforce(policy, now, clock_trusted=True)
    _show_report(report, policy, parsed, world)
    return INCOMPLETE if report.skipped else DONE


def _show_plan(decided: Plan, candidates: Sequence[Candidate], policy: Policy, parsed: Parsed, world: World) -> None:
    if parsed.has("json"):
        document: dict[str, object] = {"dry_run": True, "policy": msgspec.to_builtins(policy)}
        world.out.json({**document, **msgspec.to_builtins(decided), "kept": _kept_json(candidates)})
        return
    for one in decided.purge:
        world.out.line(f"would remove from the trash  {one.name}  {fmt.size(one.bytes)}, moved {_at(one.moved_at)}")
    for move in decided.moves:
        session = move.candidate
        what = f"last record {_at(session.last_at)}" if not session.empty else f"empty since {_at(session.last_at)}"
        why = _WHY.get(move.reason, move.reason)
        world.out.line(f"would move to the trash      {session.session}  {fmt.size(session.bytes)}, {what}: {why}")
    if not decided.purge and not decided.moves:
        world.out.line("nothing would be deleted")
    for candidate in candidates:
        if candidate.doubt:
            world.out.line(f"left alone                   {candidate.session}: {safe_line(candidate.doubt)}", "yellow")
    _show_totals(decided, policy, world)


def _show_report(report: Report, policy: Policy, parsed: Parsed, world: World) -> None:
    if parsed.has("json"):
        document: dict[str, object] = {"dry_run": False, "policy": msgspec.to_builtins(policy)}
        counts = {"total_bytes": report.plan.total_bytes, "over": report.plan.over, "held_back": report.plan.held_back}
        deeds, skipped = msgspec.to_builtins(report.deeds), msgspec.to_builtins(report.skipped)
        world.out.json({**document, **counts, "deeds": deeds, "skipped": skipped})
        return
    for deed in report.deeds:
        done = "moved to the trash    " if deed.action == "moved" else "removed from the trash"
        world.out.line(f"{done}  {deed.session}  {fmt.size(deed.bytes)}: {_WHY.get(deed.reason, deed.reason)}")
    for one in (*report.skipped, *report.odd):
        world.out.line(f"left alone              {one.name}: {safe_line(one.reason)}", "yellow")
    if not report.deeds:
        world.out.line("nothing was deleted")
    elif any(deed.action == "moved" for deed in report.deeds):
        world.out.note("the trash is kept for a day: agentctl trace undelete --list")
    _show_totals(report.plan, policy, world)


def _show_totals(decided: Plan, policy: Policy, world: World) -> None:
    budget = f"{fmt.size(decided.total_bytes)} of {fmt.size(policy.max_bytes)} were in use, trash included"
    world.out.note(f"{budget}; records go after {policy.max_age_days:g} days")
    if decided.held_back:
        world.out.note(f"{fmt.count(decided.held_back, 'more session')} due: a fifth at most goes at once")
    if decided.over:
        world.out.note(f"still {fmt.size(decided.over)} over the budget: in use, pinned, odd, or for the next sweep")
    if not policy.enabled:
        world.out.note("the recorder deletes nothing by itself: [retention] enabled = false")


def _kept_json(candidates: Sequence[Candidate]) -> dict[str, object]:
    return {
        "sessions": len(candidates),
        "active": sum(c.active for c in candidates),
        "pinned": sum(c.pinned for c in candidates),
        "odd": [{"session": c.session, "doubt": c.doubt} for c in candidates if c.doubt],
    }


def _at(seconds: float) -> str:
    try:
        return fmt.local_time(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return "?"


# --- pin, unpin


def _pin(typed: str, world: World, *, pinned: bool) -> int:
    path = trace.find(typed, world)
    root = traces_dir(world.env)
    if os.path.realpath(path.parent.parent) != os.path.realpath(root):
        raise UsageProblem(f"{path} is no session under {root}", "agentctl trace ls")
    with _traces(world) as traces:
        traces.pin(path.parent.name, path.name, pinned=pinned)
    world.out.note(f"{path.name} is {'kept whatever its age' if pinned else 'not pinned any more'}")
    return DONE


# --- undelete


def _undelete(parsed: Parsed, world: World) -> int:
    with _traces(world) as traces:
        trash = [one for one in traces.scan()[1] if not one.doomed]
        if parsed.has("list"):
            _list(trash, parsed, world)
            return DONE
        if not parsed.operands:
            raise UsageProblem("trace undelete: ID is missing (or --list)", "see agentctl trace undelete --help")
        deed = _restore(traces, _choose(parsed.operands[0], trash))
    path = os.path.join(traces_dir(world.env), deed.workspace, deed.session)
    if parsed.has("json"):
        world.out.json({"session": deed.session, "path": path, "pinned": True})
    else:
        world.out.line(path)
        world.out.note(
            f"{deed.session} is back, and pinned; agentctl trace unpin {fmt.short_id(deed.session)} lets it go"
        )
    return DONE


def _restore(traces: Traces, one: Trashed) -> Deed:
    try:
        return traces.restore(one.name)
    except FileExistsError as problem:
        session = _session(one)
        raise UsageProblem(f"a session {session} is there again already", f"agentctl trace show {session}") from problem
    except SessionUnavailable as problem:
        raise ClientError(str(problem)) from problem


def _choose(typed: str, trash: Sequence[Trashed]) -> Trashed:
    """The newest one in the trash whose session begins so; a name as --list --json gives it works too."""
    found = [one for one in trash if typed and (one.name == typed or _session(one).startswith(typed.lower()))]
    exact = [one for one in found if _session(one) == typed.lower()] or found
    sessions = sorted({_session(one) for one in exact})
    if not exact:
        raise UsageProblem(f"no session {typed!r} is in the trash", "agentctl trace undelete --list")
    if len(sessions) > 1:
        raise UsageProblem(f"{typed!r} is ambiguous: {', '.join(sessions[:8])}", "give more of it")
    return max(exact, key=lambda one: one.moved_at)


def _list(trash: Sequence[Trashed], parsed: Parsed, world: World) -> None:
    newest = sorted(trash, key=lambda one: one.moved_at, reverse=True)
    if parsed.has("json"):
        world.out.json({"trash": [{"session": _session(one), **msgspec.to_builtins(one)} for one in newest]})
        return
    for one in newest:
        world.out.line(f"{_session(one)}  moved {_at(one.moved_at)}  {fmt.size(one.bytes):>10}")
    if not newest:
        world.out.note("the trash is empty")


def _session(one: Trashed) -> str:
    return one.name.split("-", 2)[2]


def _traces(world: World) -> Traces:
    root = traces_dir(world.env)
    try:
        return Traces(Path(root))
    except FileNotFoundError as problem:
        raise UsageProblem(f"nothing is recorded in {root}", "agentctl demo") from problem
