"""agentctl trace scrub: today's rules, and secrets that one names, on traces that were recorded before there were such rules.

A secret is given by the name of an environment variable, in a file that only its owner can read, or on standard input: never as
an argument, which every process of the machine can read. None of them is ever shown, nor how long it is.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agentctl import format as fmt
from agentctl.commands import trace
from agentctl.errors import DAMAGED, DONE, INCOMPLETE, REFUSED, UsageProblem
from agentctl.ids import recorded
from agentd.paths import traces_dir
from tracewriter.scrub import MIN_EXACT, Redactor, Scrub
from tracewriter.trash import Traces

if TYPE_CHECKING:
    from agentctl.arguments import Parsed
    from agentctl.world import World
    from tracewriter.scrub import Scrubbed

_SECRETS_MAX: Final = 1024 * 1024  # bytes of a file of secrets
_NOTHING_DONE: Final = "nothing was scrubbed"


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when done, 5 when a session is damaged, 4 when all that were named are in use, 1 when some could not be scrubbed.

    With --json one document per session and line. Raises UsageProblem.
    """
    paths = _sessions(parsed, world)
    redactor = Redactor(_secrets(parsed, world))
    root = Path(traces_dir(world.env))
    scrub = Scrub(root, redactor, force=parsed.has("force"))
    work = scrub.look if parsed.has("dry-run") else scrub.apply
    states: Counter[str] = Counter()
    with _traces(root) as traces:
        if not parsed.has("dry-run"):
            scrub.tidy()
        for path in paths:
            result = work(path.parent.name, path.name)
            states[result.state] += 1
            if result.state in ("scrubbed", "left"):
                traces.log_scrub(result.workspace, result.session, result.bytes)
            _show(result, parsed, world)
        in_trash = sum(1 for _ in traces.scan()[1]) if parsed.has("all") else 0
    if not parsed.has("json"):
        _show_totals(states, in_trash, parsed, world)
    return _exit_code(states, parsed)


def _exit_code(states: Counter[str], parsed: Parsed) -> int:
    if states["damaged"]:
        return DAMAGED
    if states["failed"] or states["left"]:
        return INCOMPLETE
    if not states["active"]:
        return DONE
    return INCOMPLETE if parsed.has("all") or states["active"] < states.total() else REFUSED


def _sessions(parsed: Parsed, world: World) -> list[Path]:
    root = traces_dir(world.env)
    if parsed.has("all"):
        if parsed.operands:
            raise UsageProblem("trace scrub: either sessions or --all", "see agentctl trace scrub --help")
        return sorted((Path(one.path) for one in recorded(root)), key=lambda path: path.name)
    if not parsed.operands:
        raise UsageProblem("trace scrub: SESSION is missing (or --all)", "see agentctl trace scrub --help")
    paths = list(dict.fromkeys(trace.find(typed, world) for typed in parsed.operands))
    for path in paths:
        if os.path.realpath(path.parent.parent) != os.path.realpath(root):
            raise UsageProblem(f"{path} is no session under {root}", "agentctl trace ls")
    return paths


def _traces(root: Path) -> Traces:
    try:
        return Traces(root)
    except FileNotFoundError as problem:
        raise UsageProblem(f"nothing is recorded in {root}", "agentctl demo") from problem


# --- secrets


def _secrets(parsed: Parsed, world: World) -> tuple[str, ...]:
    found: list[str] = []
    for name in parsed.all("secret-env"):
        value = world.env.get(name, "")
        if not value:
            raise UsageProblem(f"trace scrub: {name} is not set, or empty", _NOTHING_DONE)
        found.append(_long_enough(value, f"the value of {name}"))
    for typed in parsed.all("secret-file"):
        text = world.stdin.read(_SECRETS_MAX) if typed == "-" else _read(Path(world.cwd, typed))
        where = "standard input" if typed == "-" else typed
        values = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        if not values:
            raise UsageProblem(f"trace scrub: no secret is in {where}", _NOTHING_DONE)
        found += (_long_enough(value, f"a line of {where}") for value in values)
    return tuple(dict.fromkeys(found))


def _long_enough(value: str, what: str) -> str:
    if len(value) < MIN_EXACT:
        raise UsageProblem(
            f"trace scrub: {what} is under {MIN_EXACT} characters, and would be found in ordinary text", _NOTHING_DONE
        )
    return value


def _read(path: Path) -> str:
    """A file of secrets, one per line. Raises UsageProblem for one that others may read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, encoding="utf-8", errors="surrogateescape", newline="") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077 or info.st_uid != os.geteuid():
                raise UsageProblem(
                    f"trace scrub: {path} can be read by others, or is no plain file", f"chmod 600 {path}"
                )
            if info.st_size > _SECRETS_MAX:
                raise UsageProblem(f"trace scrub: {path} is over 1 MiB", _NOTHING_DONE)
            return file.read()
    except OSError as problem:
        raise UsageProblem(f"trace scrub: {path} cannot be read: {problem.strerror}", _NOTHING_DONE) from problem


# --- showing


_STYLES: Final = {
    "scrubbed": "green",
    "found": "yellow",
    "active": "yellow",
    "left": "red",
    "damaged": "red",
    "failed": "red",
}


def _show(result: Scrubbed, parsed: Parsed, world: World) -> None:
    if parsed.has("json"):
        world.out.json({"dry_run": parsed.has("dry-run"), **msgspec.to_builtins(result)})
        return
    if result.state == "clean" and parsed.has("all"):
        return  # the last line counts them
    world.out.line(f"{fmt.short_id(result.session)}  {_sentence(result)}", _STYLES.get(result.state, ""))
    for text in result.damage:
        world.out.line(f"        {text}", "red")
    if result.new_head:
        world.out.line(f"        head {result.new_head} (before: {result.old_head})")


def _sentence(result: Scrubbed) -> str:
    where = f"in {fmt.count(result.records, 'record')} and {fmt.count(result.payloads, 'payload')}: {_hits(result)}"
    pinned = ", pinned" if result.pinned else ""
    match result.state:
        case "clean":
            return f"nothing to scrub{pinned}"
        case "found":
            return f"would be scrubbed{pinned}, {where}"
        case "scrubbed":
            return f"scrubbed{pinned}, {where}"
        case "left":
            return f"scrubbed{pinned}, {where}; BUT {result.reason}"
        case "active":
            return f"left alone: {result.reason}"
        case _:
            found = f"; the rules find {_hits(result)}" if result.hits else ""
            return f"NOT scrubbed: {result.reason}{found}"


def _hits(result: Scrubbed) -> str:
    return ", ".join(f"{rule} {count:,}" for rule, count in result.hits.items())


def _show_totals(states: Counter[str], in_trash: int, parsed: Parsed, world: World) -> None:
    out = world.out
    if parsed.has("all"):
        done = states["found"] if parsed.has("dry-run") else states["scrubbed"]
        what = "would be scrubbed" if parsed.has("dry-run") else "scrubbed"
        counts = f"{done} {what}, {states['clean']} with nothing to scrub, {states['active']} in use"
        out.note(
            f"{fmt.count(states.total(), 'session')}: {counts}, {states['damaged'] + states['failed']} not scrubbed"
        )
    if in_trash:
        out.note(f"{fmt.count(in_trash, 'session')} in the trash as they are: retention removes them within a day")
    if states["damaged"]:
        out.note("agentctl trace verify tells what is damaged; --force scrubs what can be read and leaves the rest out")
    if states["scrubbed"]:
        out.note("the old files are deleted, not overwritten: snapshots and backups may still hold what was in them")
