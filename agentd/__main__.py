"""The `agentd` command: `agentd serve` (also without arguments), `agentd demo-model --uds PATH`,
`agentd decode-stream --wire WIRE [FILE]`, `agentd --version`.

Exit codes: 0 ended in order, 1 cannot start, 2 wrong usage or configuration. One line on stderr says why and what to do.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from agentd import __version__
from agentd.errors import AlreadyRuns, ConfigError, StartError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

USAGE: Final = """usage: agentd [serve]                    run the daemon in the foreground
       agentd demo-model --uds PATH      serve the scripted model of the demo
       agentd decode-stream --wire WIRE [--think-split] [FILE]
                                         print the events of a captured stream (or of standard input; also gzip) as JSON lines
       agentd --version"""


def main(argv: list[str] | None = None) -> int:
    """The command."""
    match sys.argv[1:] if argv is None else argv:
        case ["--version" | "-V"]:
            print(f"agentd {__version__}")
        case ["--help" | "-h"]:
            print(USAGE)
        case [] | ["serve"]:
            return _explained(_serve)
        case ["demo-model", "--uds", path]:
            return _explained(lambda: _demo_model(path))
        case ["decode-stream", *arguments]:
            return _decode_stream(arguments)
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0


def _serve() -> None:
    # Before asyncio: it is what costs, and nothing of it is needed to say that the arguments are wrong.
    from agentd.daemon import run_daemon
    from tracewriter.clock import SYSTEM_CLOCK

    logging.basicConfig(format="agentd: %(message)s", level=logging.WARNING, stream=sys.stderr)
    run_daemon(os.environ, SYSTEM_CLOCK, _loop_factory())


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def _demo_model(path: str) -> None:
    from agentd.demo_server import run

    run(path)


def _decode_stream(arguments: list[str]) -> int:
    from agentd import decode_stream

    try:
        options = decode_stream.parse_arguments(arguments)
    except decode_stream.UsageError as exc:
        print(f"agentd: {exc}\n{USAGE}", file=sys.stderr)
        return 2

    def write(lines: bytes) -> None:
        try:
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as exc:
            _forget_output()
            raise StartError(f"the events cannot be written: {os.strerror(exc.errno or 0).lower()}") from exc

    try:
        return _explained(lambda: decode_stream.run(options, write))
    except BrokenPipeError:
        _forget_output()  # whoever read has gone
        return 1


def _forget_output() -> None:
    """The interpreter's own flush at exit must not fail again, and say so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _explained(command: Callable[[], None]) -> int:
    try:
        command()
    except StartError as exc:
        # One line: a client that started us shows the last line of the log.
        print(f"agentd: {exc}" + (f" ({exc.hint})" if exc.hint else ""), file=sys.stderr)
        return 2 if isinstance(exc, ConfigError) else 3 if isinstance(exc, AlreadyRuns) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
