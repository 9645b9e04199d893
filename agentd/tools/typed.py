"""A tool made of a typed function: its JSON input becomes a Struct before it, its failures become output after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from agentd.tools.base import MAX_RESULT_CHARS, ToolContext, ToolOutput
from agentd.tools.workspace import PathError, in_words, shown
from tracewriter.events import Failure, FileCheckFailed, WorkspaceChangeObserved

if TYPE_CHECKING:
    from agentd.providers.stream import ToolSpec

I = TypeVar("I", bound=Struct)  # noqa: E741 - input

# Field names that models trained on other tools use; taken when the right one is missing.
ALIASES: Final = {"file_path": "path", "filename": "path", "old_string": "old", "new_string": "new", "text": "content"}

# A cut is backed off to white space, but not further than this.
_BACK_OFF_CHARS: Final = 200
_NOTE_CHARS: Final = 200


class InputError(Exception):
    """The input of a call does not fit the tool, or is not JSON that can be read. One line."""


class TypedTool(Generic[I]):
    """Implements `Tool`. `body` may raise InputError, PathError and OSError; they come back as is_error."""

    def __init__(
        self,
        spec: ToolSpec,
        input_type: type[I],
        body: Callable[[I, ToolContext], Awaitable[ToolOutput]],
        *,
        writes: bool,
    ) -> None:
        self._spec = spec
        self.input_type = input_type
        self._body = body
        self._writes = writes

    def __repr__(self) -> str:
        return f"<TypedTool {self._spec.name}>"

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    @property
    def writes(self) -> bool:
        return self._writes

    async def run(self, arguments: Raw, context: ToolContext) -> ToolOutput:
        try:
            return cut(await self._body(decode_input(arguments, self.input_type), context))
        except FAILURES as error:
            output = failed(error, self._spec)
            return msgspec.structs.replace(output, observed=_refused(error)) if self._writes else output


FAILURES: Final = (InputError, PathError, OSError, msgspec.ValidationError)


def failed(error: Exception, spec: ToolSpec) -> ToolOutput:
    """A failure that a model can act on, as the output of the call."""
    match error:
        case InputError() | msgspec.ValidationError():
            text = f"Invalid input for {spec.name}: {error}\n{spec.name} takes: {bytes(spec.schema).decode()}"
        case PathError():
            text = str(error)
        case OSError():
            text = f"{spec.name} failed: {in_words(error)}"
        case _:
            raise AssertionError(f"not a failure of a call: {error!r}")
    return cut(ToolOutput(text, is_error=True))


def _refused(error: Exception) -> tuple[FileCheckFailed | WorkspaceChangeObserved, ...]:
    """What is recorded of a change that was refused: the check, and what somebody else did to the file."""
    if not isinstance(error, PathError):
        return ()
    refused = FileCheckFailed(error.path, error.check, Failure("refused", str(error)))
    if error.check in ("changed", "deleted"):
        return WorkspaceChangeObserved(error.path, error.check, "edit"), refused
    return (refused,)


def decode_input(arguments: Raw, input_type: type[I]) -> I:
    """The input as its Struct. Lax where it is harmless: numbers as strings, other tools' names for the same field, no input."""
    data = bytes(arguments).strip() or b"{}"
    try:
        try:
            return msgspec.json.decode(data, type=input_type, strict=False)
        except msgspec.ValidationError as error:
            renamed = _renamed(data)
            if renamed is None:
                raise InputError(str(error)) from error
            return msgspec.json.decode(renamed, type=input_type, strict=False)
    except RecursionError:
        raise InputError("it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InputError(str(error)) from error


def _renamed(data: bytes) -> bytes | None:
    """The same object with foreign field names replaced, or None when there are none."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Raw])
    except msgspec.ValidationError:
        return None
    foreign = [name for name in fields if name in ALIASES and ALIASES[name] not in fields]
    for name in foreign:
        fields[ALIASES[name]] = fields.pop(name)
    return msgspec.json.encode(fields) if foreign else None


def cut(output: ToolOutput) -> ToolOutput:
    """The output, its text at most MAX_RESULT_CHARS code points; a cut says so and keeps the full length in `chars`."""
    length = len(output.text)
    if length <= MAX_RESULT_CHARS:
        return output
    keep = MAX_RESULT_CHARS - _NOTE_CHARS
    head = output.text[:keep]
    space = max(head.rfind(" "), head.rfind("\n"))
    if space > keep - _BACK_OFF_CHARS:
        head = head[: space + 1]
    note = f"\n[cut: the first {len(head):,} of {length:,} characters]"
    return msgspec.structs.replace(output, text=head + note, chars=output.chars or length)


def quoted(text: str, limit: int = 200) -> str:
    """Text from a file or a model, as part of a one-line message."""
    return f"`{shown(text[:limit])}{'…' if len(text) > limit else ''}`"
