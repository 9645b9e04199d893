"""The command line, by hand: argparse alone costs as much as the rest of a quick command's start. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agentctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Option(NamedTuple):
    """An option. `value` is the placeholder of its value in the help, "" for one that takes none."""

    flags: tuple[str, ...]
    help: str
    value: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False  # it may be given more than once

    @property
    def name(self) -> str:
        """Its long name without the dashes."""
        return next(flag for flag in self.flags if flag.startswith("--"))[2:]


class Command(NamedTuple):
    """A command: its words, what may follow them, and its help."""

    name: str
    summary: str
    operands: str = ""
    options: tuple[Option, ...] = ()
    least: int = 0
    most: int | None = 0
    details: str = ""


class Parsed(NamedTuple):
    """What was typed after a command's words. `wants_help` wins over everything else."""

    operands: tuple[str, ...] = ()
    values: Mapping[str, str] = {}
    wants_help: bool = False

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self.values

    def value(self, name: str) -> str | None:
        """The option's value, None when it was not given."""
        return self.values.get(name)

    def all(self, name: str) -> tuple[str, ...]:
        """Every value of an option that may be given more than once."""
        return tuple(self.values[name].split("\0")) if name in self.values else ()


HELP = Option(("-h", "--help"), "show this")
JSON = Option(("--json",), "for programs: JSON on stdout")


def parse(command: Command, words: Sequence[str]) -> Parsed:
    """Options may stand anywhere before `--`; `-` is an operand. Raises UsageProblem naming the word that is wrong."""
    values: dict[str, str] = {}
    operands: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            operands += rest
            break
        if word == "-" or not word.startswith("-"):
            operands.append(word)
            continue
        flag, value = _split(word, rest)
        option = _find(command, flag)
        if option is HELP:
            return Parsed(wants_help=True)
        given = _value(command, option, flag, value, rest)
        # no argument of a process has a NUL in it
        values[option.name] = f"{values[option.name]}\0{given}" if option.many and option.name in values else given
    _check_count(command, operands)
    return Parsed(tuple(operands), values)


def _split(word: str, rest: list[str]) -> tuple[str, str | None]:
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return flag, value if equals else None
    if len(word) > 2:  # -bq is -b -q; a value never sticks to its letter
        rest.insert(0, "-" + word[2:])
    return word[:2], None


def _find(command: Command, flag: str) -> Option:
    for option in (*command.options, HELP):
        if flag in option.flags:
            return option
    raise UsageProblem(f"{command.name}: unknown option {flag}", _see(command))


def _value(command: Command, option: Option, flag: str, value: str | None, rest: list[str]) -> str:
    if not option.value:
        if value is not None:
            raise UsageProblem(f"{command.name}: {flag} takes no value", _see(command))
        return ""
    if value is None:
        if not rest:
            raise UsageProblem(f"{command.name}: {flag} needs a value ({option.value})", _see(command))
        value = rest.pop(0)
    if option.choices and value not in option.choices:
        raise UsageProblem(
            f"{command.name}: {flag} is one of {', '.join(option.choices)}, not {value!r}", _see(command)
        )
    return value


def _check_count(command: Command, operands: list[str]) -> None:
    if len(operands) < command.least:
        raise UsageProblem(f"{command.name}: {command.operands} is missing", _see(command))
    if command.most is not None and len(operands) > command.most:
        raise UsageProblem(f"{command.name}: unexpected {operands[command.most]!r}", _see(command))


def _see(command: Command) -> str:
    return f"see agentctl {command.name} --help"


def help_of(command: Command) -> str:
    """The help of one command, for people."""
    usage = f"agentctl {command.name}" + (f" {command.operands}" if command.operands else "") + " [options]"
    lines = [f"usage: {usage}", "", command.summary, ""]
    if command.details:
        lines += [command.details, ""]
    lines.append("options:")
    for option in (*command.options, HELP):
        value = "|".join(option.choices) if option.choices else option.value
        left = ", ".join(option.flags) + (f" {value}" if value else "")
        lines.append(f"  {left:<28} {option.help}")
    return "\n".join(lines)
