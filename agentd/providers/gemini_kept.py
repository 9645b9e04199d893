"""What must go back to Gemini with an answer: signatures, each on exactly the part it came with, and parts of its own tools.

An `Opaque` of this wire holds `{"gemini": {"parts": [...]}}`: the answer's parts in their order, without what the
conversation holds anyway. Of a text only its length is kept, of a call its name; parts that the provider made for its own
tools are kept whole. So nothing is said twice, and a conversation that was cut since is noticed: lengths no longer add up.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentd.providers.tool_input import mend, tool_input

# Signatures of a turn are some KiB. Beyond this nothing is kept: the builder then does without.
_MAX_KEPT_CHARS: Final = 4 * 1024 * 1024
_MAX_PARTS: Final = 4096


class KeptPart(Struct, omit_defaults=True):
    """One part: `text` or `thought` (how many characters), `call` (its name) or `whole`; and its signature.

    A thought's `start` says where in the reasoning it begins, because thoughts without a signature are not kept.
    """

    text: int | None = None
    thought: int | None = None
    start: int = 0
    call: str | None = None
    whole: Raw | UnsetType = UNSET
    signature: str = ""


class _Kept(Struct):
    parts: tuple[KeptPart, ...] = ()


class _Opaque(Struct):
    gemini: _Kept


class Keeper:
    """Takes an answer's parts as they come. `opaque` gives what must go back; None when nothing must."""

    __slots__ = ("_chars", "_parts", "_run", "_thought_chars", "_worth")

    def __init__(self) -> None:
        self._parts: list[KeptPart] = []
        self._run: KeptPart | None = None  # the text without a signature that goes on
        self._chars = 0
        self._thought_chars = 0
        self._worth = False  # something came that only we can give back

    def text(self, chars: int, signature: str | None = None) -> None:
        """Text was given to the user."""
        last = self._run
        if last is not None and not signature:
            last.text = (last.text or 0) + chars
        elif chars or signature:
            part = KeptPart(text=chars)
            self._add(part, signature)
            self._run = None if signature else part

    def thought(self, chars: int, signature: str | None) -> None:
        """Reasoning was given to the user."""
        if signature:
            self._add(KeptPart(thought=chars, start=self._thought_chars), signature)
        self._thought_chars += chars

    def call(self, signature: str | None) -> KeptPart:
        """A call began. It is counted in `opaque` if it has got a name by then: only calls that were given have one."""
        part = KeptPart(call="")
        self._add(part, signature)
        return part

    def sign(self, part: KeptPart, signature: str) -> None:
        """A later piece of a call brought its signature."""
        if not part.signature:
            part.signature = mend(signature)
            self._chars += len(signature)
            self._worth = True

    def whole(self, fields: dict[str, Raw], signature: str | None) -> None:
        """A part that the provider made for itself, to be sent back as it was."""
        size = sum(len(raw) for raw in fields.values())
        if self._chars + size <= _MAX_KEPT_CHARS:
            text = msgspec.json.encode(fields).decode("utf-8", "replace")
            line = tool_input(text)
            if line is not None:
                self._add(KeptPart(whole=line), signature)
                self._worth = True
        self._chars += size

    def _add(self, part: KeptPart, signature: str | None) -> None:
        self._run = None
        if signature:
            part.signature = mend(signature)
            self._chars += len(signature)
            self._worth = True
        if len(self._parts) <= _MAX_PARTS:
            self._parts.append(part)

    def opaque(self) -> Raw | None:
        """The JSON object to keep with the message."""
        if not self._worth or self._chars > _MAX_KEPT_CHARS or len(self._parts) > _MAX_PARTS:
            return None
        parts = tuple(part for part in self._parts if part.call != "")
        return Raw(msgspec.json.encode(_Opaque(_Kept(parts))))


def kept_parts(opaque: tuple[Raw, ...]) -> tuple[KeptPart, ...]:
    """The parts that a message's opaque data tells of; empty when it has none of this wire."""
    for item in opaque:
        try:
            return msgspec.json.decode(item, type=_Opaque).gemini.parts
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue  # of another wire
    return ()
