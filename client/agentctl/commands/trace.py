"""agentctl trace: which session is meant, and the list of all. Each of the other commands has its own module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentctl import format as fmt
from agentctl.errors import DONE, UsageProblem
from agentctl.ids import choose, matching, recorded
from agentd.paths import traces_dir
from tracewriter.reader import list_sessions, segment_numbers

if TYPE_CHECKING:
    from agentctl.arguments import Parsed
    from agentctl.world import World


def run(name: str, parsed: Parsed, world: World) -> int:
    """Run one trace command. None of them needs the daemon, and only scrub changes records (prune moves whole sessions)."""
    try:
        return _run(name, parsed, world)
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise UsageProblem(f"this record is not there (any more): {problem.filename}", "agentctl trace ls") from problem


def _run(name: str, parsed: Parsed, world: World) -> int:
    if name == "trace ls":
        return _ls(parsed, world)
    if name == "trace status":
        from agentctl.commands import trace_status

        return trace_status.run(parsed, world)
    if name == "trace tail":
        from agentctl.commands import trace_tail

        typed = parsed.operands[0] if parsed.operands else "last"
        awaited = "/" in typed and parsed.has("follow")  # it may appear yet
        return trace_tail.run(Path(world.cwd, typed) if awaited else find_trace(typed, world), parsed, world)
    if name in ("trace prune", "trace pin", "trace unpin", "trace undelete"):
        from agentctl.commands import trace_retention

        return trace_retention.run(name, parsed, world)
    if name == "trace context":
        from agentctl.commands import trace_context

        return trace_context.run(parsed, world)
    if name == "trace scrub":
        from agentctl.commands import trace_scrub

        return trace_scrub.run(parsed, world)
    if name == "trace verify" and parsed.has("all"):
        from agentctl.commands import trace_verify

        if parsed.operands:
            raise UsageProblem("trace verify: either an ID or --all", "see agentctl trace verify --help")
        paths = sorted((Path(one.path) for one in recorded(traces_dir(world.env))), key=lambda path: path.name)
        return trace_verify.run(paths, parsed, world)
    if not parsed.operands:
        raise UsageProblem(f"{name}: ID is missing (or --all)", f"see agentctl {name} --help")
    path = find_trace(parsed.operands[0], world)
    if name == "trace verify":
        from agentctl.commands import trace_verify

        return trace_verify.run([path], parsed, world)
    if name == "trace summary":
        from agentctl.commands import trace_summary

        return trace_summary.run(path, parsed, world)
    from agentctl.commands import trace_show

    return trace_show.run(path, parsed, world)


def find(typed: str, world: World) -> Path:
    """The directory of the session that was typed: an id or its beginning, "last", or a trace's directory.

    A word without a slash is a directory only when no id begins so. Raises UsageProblem.
    """
    path = Path(world.cwd, typed)
    if "/" in typed:
        if not path.is_dir():
            raise UsageProblem(f"there is no directory {path}", "agentctl trace ls")
        return path
    root = traces_dir(world.env)
    if typed == "last":
        sessions = list_sessions(Path(root))
        if not sessions:
            raise UsageProblem(f"nothing is recorded in {root}", "agentctl demo")
        return sessions[0].path
    known = recorded(root)
    if typed and not matching(typed, known) and path.is_dir():
        return path
    return Path(choose(typed, known).path)


def find_trace(typed: str, world: World) -> Path:
    """As `find`, for what is to be read. Raises UsageProblem for any other directory too."""
    path = find(typed, world)
    if path.parent.parent == Path(traces_dir(world.env)):
        return path  # a session of ours may have nothing yet
    dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With all segments gone the other two still say that there were some: that is damage, and the reader's to say.
        if segment_numbers(dir_fd) or not {"manifest.json", "digests"}.isdisjoint(os.listdir(dir_fd)):
            return path
    finally:
        os.close(dir_fd)
    raise UsageProblem(
        f"no trace is here: {path}",
        "a trace is a directory with 000001.jsonl in it; agentctl trace ls shows those kept",
    )


def _ls(parsed: Parsed, world: World) -> int:
    root = Path(traces_dir(world.env))
    sessions = list_sessions(root)
    if parsed.has("json"):
        rows = [{**_builtins(entry), "path": os.fspath(entry.path)} for entry in sessions]
        world.out.json({"root": os.fspath(root), "sessions": rows})
        return DONE
    if not sessions:
        world.out.note(f"nothing is recorded in {root}")
        return DONE
    for entry in sessions:
        state = "active" if entry.active else ""
        numbers = f"{fmt.count(entry.records, 'record'):>14}  {fmt.size(entry.bytes):>10}  {state:<6}"
        world.out.line(f"{fmt.short_id(entry.session)}  {fmt.local_time(entry.last_at)}  {numbers}  {entry.workspace}")
    return DONE


def _builtins(entry: msgspec.Struct) -> dict[str, object]:
    values: dict[str, object] = msgspec.to_builtins(entry, enc_hook=os.fspath)
    return values
