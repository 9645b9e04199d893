"""Find the command, import only its module, and turn every failure of the world into one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from agentctl import __version__, catalog
from agentctl.arguments import help_of, parse
from agentctl.errors import DONE, INCOMPLETE, INTERRUPTED, ClientError
from agentctl.output import Output
from agentctl.undecodable import require_places
from agentctl.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentctl.arguments import Command, Parsed


def main() -> int:
    """The script's entry: this process's own arguments, environment and streams. Gives the exit code."""
    stdin, stdout, stderr = (_usable(stream) for stream in (sys.stdin, sys.stdout, sys.stderr))
    out = Output(stdout, stderr, os.environ)
    try:
        code = run(sys.argv[1:], World(os.environ, _cwd(), stdin, out, started_as=sys.argv[0]))
    except KeyboardInterrupt:
        out.note("interrupted")
        code = INTERRUPTED
    # The interpreter flushes both once more at exit, and a closed pipe would change the exit code.
    for fd, closed in ((1, out.closed), (2, out.notes_closed)):
        if closed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
    return code


def run(words: Sequence[str], world: World) -> int:
    """Run one command. Every ClientError becomes one line on stderr, with its hint, and its exit code."""
    try:
        return _command(words, world)
    except ClientError as problem:
        world.out.note(f"agentctl: {problem.message}", "red")
        if problem.hint:
            world.out.note(problem.hint)
        return problem.exit_code
    except OSError as problem:
        where = f": {problem.filename}" if problem.filename else ""
        world.out.note(f"agentctl: {problem.strerror or problem}{where}", "red")
        return INCOMPLETE


def _command(words: Sequence[str], world: World) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        world.out.lines(catalog.help_text(words[1:]))
        return DONE if words else 2
    if words[0] in ("-V", "--version"):
        world.out.line(f"agentctl {__version__}")
        return DONE
    if len(words) == 2 and words[0] == "trace" and words[1] in ("-h", "--help"):
        world.out.lines(catalog.help_text(["trace"]))
        return DONE
    command, rest = catalog.find(words)
    parsed = parse(command, rest)
    if parsed.wants_help:
        world.out.lines(help_of(command))
        return DONE
    require_places(world.env)
    return _dispatch(command, parsed, world)


def _dispatch(command: Command, parsed: Parsed, world: World) -> int:
    if command.name == "ask":
        from agentctl.commands import ask

        return ask.run(parsed, world)
    if command.name == "status":
        from agentctl.commands import status

        return status.run(parsed, world)
    if command.name == "models pull":
        from agentctl.commands import models_pull

        return models_pull.run(parsed, world)
    if command.name == "stop":
        from agentctl.commands import stop

        return stop.run(parsed, world)
    if command.name == "models":
        from agentctl.commands import models

        return models.run(parsed, world)
    if command.name == "demo":
        from agentctl.commands import demo

        return demo.run(parsed, world)
    if command.name == "trace record":  # for hooks: without the readers that the others need
        from agentctl.commands import trace_record

        return trace_record.run(parsed, world)
    from agentctl.commands import trace

    return trace.run(command.name, parsed, world)


def _usable(stream: TextIO | None) -> TextIO:
    """A standard stream that never raises for a character it cannot write, and exists even when the caller closed it."""
    if stream is None:
        return open(os.devnull, "r+", encoding="utf-8")
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        # What is no text on standard input is treated as it is in arguments, which come so from the interpreter.
        reconfigure(errors="surrogateescape" if stream is sys.stdin else "backslashreplace")
    return stream


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # deleted under us: commands that need it say so


if __name__ == "__main__":
    sys.exit(main())
