"""Every command that there is: words, options, help. Imports nothing of the commands themselves. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentctl.arguments import JSON, Command, Option
from agentctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUN: Final = Option(("--run",), "only this run of the session", "RUN")
_FULL: Final = Option(("--full",), "whole texts, also those that are in payload files (default: their beginnings)")
_IDS: Final = (
    'An id may be shortened as far as it stays unambiguous; "last" is the newest. The directory of a trace works too: '
    "./NAME, or NAME where no id begins so."
)

COMMANDS: Final = (
    Command(
        "ask",
        "Give the agent a task in this directory and watch it work. Reads only, unless -b is given.",
        "PROMPT|-",
        (
            Option(("-m", "--model"), "provider/model, or a bare model id", "MODEL"),
            Option(
                ("--fallback",),
                "ask this model when the one before gave nothing (may be repeated; default: as configured)",
                "MODEL",
                many=True,
            ),
            Option(("-b", "--build"), "let it change files (short for --mode build)"),
            Option(("--mode",), "what the agent may do (default: plan, reads only)", "MODE", ("plan", "build", "swe")),
            Option(("-c", "--continue"), "go on with the newest session of this directory"),
            Option(("--session",), "go on with this session", "ID"),
            Option(("--ephemeral",), "keep nothing: no history, no record"),
            Option(
                ("--capture",),
                "what the session's record holds from now on (default: as before, or as configured)",
                "WHAT",
                ("content", "metadata", "stream", "off"),
            ),
            Option(("-q", "--quiet"), "only the answer"),
            Option(("--json",), "the session's records on stdout, one per line"),
            Option(("--base-url",), "an OpenAI-compatible server", "URL"),
            Option(("--uds",), "the Unix socket on which that server listens", "PATH"),
        ),
        least=1,
        most=None,
        details="The prompt is the words given, or standard input for -. Keys are taken from this shell's environment.",
    ),
    Command(
        "models pull",
        "Get a small model that runs on this machine, without key and network: smollm2 (135M, 98 MB).",
        "NAME",
        (JSON,),
        1,
        1,
        "It is asked as local/NAME, once agentd's extra [local] is installed. Any other GGUF file: -m local//PATH.",
    ),
    Command(
        "models",
        "List the models that can be asked: of every provider with a key, and of local servers.",
        "[PROVIDER]",
        (
            Option(("--all",), "every model (default: the first 10 of each provider)"),
            Option(("--refresh",), "ask again what was asked within the hour"),
            JSON,
        ),
        0,
        1,
        "A provider has 5 seconds to answer. Exits 1 when the provider named cannot be asked.",
    ),
    Command("status", "Show whether agentd runs, what it does, and whether it records.", options=(JSON,)),
    Command(
        "stop",
        "Stop agentd: runs end as cancelled, records are finished.",
        options=(Option(("--when-idle",), "let the runs end first"), JSON),
    ),
    Command("demo", "Watch a scripted model fix a bug with real tools: no key, no network. Needs nothing set up."),
    Command("trace ls", "List the recorded sessions, newest first.", options=(JSON,)),
    Command(
        "trace show", "Show a session's records in order, and what is missing.", "ID", (_RUN, _FULL, JSON), 1, 1, _IDS
    ),
    Command(
        "trace verify",
        "Check a session's records and payloads against their seals and digests. Exits 5 when damage was found.",
        "ID",
        (Option(("--all",), "every session"), JSON),
        0,
        1,
        _IDS,
    ),
    Command("trace summary", "Tell what a session's runs really did.", "ID", (_RUN, JSON), 1, 1, _IDS),
    Command(
        "trace context",
        "Show what the model was sent: a run's requests, and the last or one of them whole.",
        "RUN",
        (
            Option(("--request",), "this one, counted from 1 (default: the last)", "N"),
            Option(("--run",), "this run of the session that RUN names", "ID"),
            Option(("--body",), "the body of the request, as its provider was sent it"),
            JSON,
        ),
        1,
        1,
        'An id may be shortened as far as it stays unambiguous; "last" is the newest session\'s last run. A session or its '
        "directory (./NAME) stands for its last run. Exits 1 when something of the request is not in the record.",
    ),
    Command(
        "trace tail",
        "Show a session's newest records, and with -f those to come, as they are written.",
        "[ID]",
        (
            Option(("-f", "--follow"), "go on until the recording is closed in order, or Ctrl-C"),
            Option(("--forever",), "with -f: go on after that too (a session may be taken up again)"),
            Option(("-n", "--lines"), "begin with so many records (default: 10)", "N"),
            Option(("--since",), "begin after this record (0: with the first), or at segment:offset", "CURSOR"),
            _FULL,
            JSON,
        ),
        0,
        1,
        f"{_IDS} Without one it is the last. With -f a directory need not be there yet.",
    ),
    Command(
        "trace record",
        "Record the events of another tool: lines of JSON on standard input, or of a file. Prints the session's id.",
        "[FILE|-]",
        (
            Option(("--tool",), "who says them: stands before the name of each (default: script)", "NAME"),
            Option(("--session",), "go on with this session (default: a new one)", "ID"),
            Option(("--workspace",), "the directory that they are about (default: this one)", "DIR"),
            Option(("--capture",), "metadata: names and ids only", "MODE", ("content", "metadata", "off")),
            Option(("--typed",), "lines that are events of agentd's own, to the last field, are recorded as such"),
            JSON,
        ),
        0,
        1,
        'A line is an object with the name of an event: {"event": …, "data": {…}}, {"hook_event_name": …}, {"type": …}, '
        '{"name": …}. PreToolUse of the tool my-hook is recorded as my-hook.pre_tool_use. A line that is none is named on '
        "stderr and left out. Exits 0 when all are recorded, 1 when some are not, 3 when no recorder took any.",
    ),
    Command(
        "trace status",
        "Show how recording goes: the recorder, the daemon's side, what is kept and what goes next.",
        options=(JSON,),
        details="Works without daemon and recorder. Exits 3 when a recorder is there but does not answer.",
    ),
    Command(
        "trace prune",
        "Do now what retention would: old records go to the trash, old trash is removed.",
        options=(
            Option(("--dry-run",), "only say what would be done, and why"),
            Option(("--days",), "instead of max_age_days in config.toml", "N"),
            Option(("--max-bytes",), "instead of max_bytes in config.toml (K, M, G may follow)", "N"),
            JSON,
        ),
        details="What is being recorded, pinned, or odd is never touched; a fifth of the sessions at most goes at once.",
    ),
    Command(
        "trace scrub",
        "Take out of recorded sessions what today's rules of redaction find, and secrets that you name.",
        "[SESSION…]",
        (
            Option(("--all",), "every session"),
            Option(("--dry-run",), "only count what each rule finds"),
            Option(
                ("--secret-env",), "also the value of this environment variable (may be repeated)", "NAME", many=True
            ),
            Option(
                ("--secret-file",), "also each line of this file (mode 0600; - for standard input)", "PATH", many=True
            ),
            Option(("--force",), "also sessions that are damaged, or were not closed in order just now"),
            JSON,
        ),
        0,
        None,
        "What is being recorded is left alone; what is pinned is not. The old files go only when the new ones verify, and the "
        "change is a record of its own. Exits 1 when some could not be scrubbed, 4 when those named are in use, 5 for damage.",
    ),
    Command("trace pin", "Keep a session's record whatever its age.", "ID", (), 1, 1, _IDS),
    Command("trace unpin", "Let retention have a session's record again.", "ID", (), 1, 1, _IDS),
    Command(
        "trace undelete",
        "Bring a session's record back from the trash, pinned.",
        "ID",
        (Option(("--list",), "show what is in the trash"), JSON),
        0,
        1,
    ),
)

EXIT_CODES: Final = (
    "0 done, 1 the run did not complete, 2 usage, 3 no daemon, 4 refused, 5 damage found, 130 interrupted"
)


def find(words: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """The command that the words name, and the words after it. Raises UsageProblem with the nearest one for a typo."""
    for command in COMMANDS:
        name = command.name.split()
        if list(words[: len(name)]) == name:
            return command, words[len(name) :]
    first = words[0]
    group = [command.name for command in COMMANDS if command.name.startswith(first + " ")]
    if group and (len(words) == 1 or words[1].startswith("-")):
        raise UsageProblem(f"{first}: which one? {', '.join(group)}", "see agentctl --help")
    raise UsageProblem(
        f"unknown command {' '.join(words[:2] if group else [first])!r}{_meant(words, group)}", "see agentctl --help"
    )


def _meant(words: Sequence[str], group: list[str]) -> str:
    from difflib import get_close_matches

    typed = " ".join(words[:2]) if group else words[0]
    close = get_close_matches(typed, group or [command.name for command in COMMANDS], 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def help_text(words: Sequence[str] = ()) -> str:
    """The overview, of all commands or of those that begin with these words."""
    chosen = [command for command in COMMANDS if command.name.split()[: len(words)] == list(words)]
    lines = ["usage: agentctl COMMAND [options]", "", "commands:"]
    lines += [f"  {command.name:<15} {command.summary}" for command in chosen]
    lines += ["", "agentctl COMMAND --help tells more; agentctl --version.", f"exit codes: {EXIT_CODES}"]
    return "\n".join(lines)
