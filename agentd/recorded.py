"""Where the record of a session holds what was said already, so that the context of a request refers to it.

A reference is only made when the message that a reader builds from that record is, byte for byte, the one that is sent: both
sides build it with `messages.message_of`, and messages are known here by a hash of their encoding. Messages that no record
holds (hints, shortened ones, what came from the store) are given whole once, and referred to at that place from then on.

Knows one life of a session, and nothing of what becomes of the records: a reader says so when one that is referred to is missing.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from agentd.messages import AssistantMessage, Message, encode_message, message_of
from tracewriter.events import Event, RunExecuteStarted, SameAs

# As many as a conversation can have (MAX_LOADED_MESSAGES), each in two forms: as it was said and shortened.
MAX_KNOWN: Final = 8_000
_encoder: Final = msgspec.json.Encoder()


class Given(Struct, frozen=True):
    """What the first request of a run says of its system prompt and tools: the content, or the operation that had the same."""

    system: str | msgspec.UnsetType = UNSET
    system_as: str | msgspec.UnsetType = UNSET
    tools: tuple[Raw, ...] | msgspec.UnsetType = UNSET
    tools_as: str | msgspec.UnsetType = UNSET


class Recorded:
    """The messages, and the last system prompt and tools, that are in the records so far. The oldest are forgotten first."""

    def __init__(self, *, max_known: int = MAX_KNOWN) -> None:
        self._max_known = max_known
        self._known: dict[bytes, SameAs] = {}
        self._system = self._tools = (b"", "")  # hash, operation

    def __repr__(self) -> str:
        return f"<Recorded messages={len(self._known)}>"

    def note(self, event: Event, run: str, op: str) -> Message | None:
        """An event is recorded: the message that it holds, if any, which can be referred to from now on."""
        message = message_of(event)
        if message is not None:
            self._put(_hash(encode_message(message)), SameAs(run if isinstance(event, RunExecuteStarted) else op))
        return message

    def entry(self, message: Message, raw: bytes, op: str, at: int) -> Raw:
        """What stands for a message (`raw`: its encoding) at position `at` of the request `op`: itself, or a reference."""
        key = _hash(raw)
        found = self._known.get(key)
        if found is None:
            found = self._without_opaque(message)
            self._put(key, SameAs(op, at))
        else:
            self._put(key, found)
        if found is None:
            return Raw(raw)
        reference = _encoder.encode(found)
        return Raw(reference if len(reference) < len(raw) else raw)

    def _without_opaque(self, message: Message) -> SameAs | None:
        if not isinstance(message, AssistantMessage) or not message.opaque:
            return None
        found = self._known.get(_hash(encode_message(msgspec.structs.replace(message, opaque=()))))
        if found is None or found.at is not UNSET:
            return None
        return SameAs(found.same_as, opaque=message.opaque)

    def _put(self, key: bytes, where: SameAs) -> None:
        self._known.pop(key, None)
        self._known[key] = where
        if len(self._known) > self._max_known:
            del self._known[next(iter(self._known))]

    def given(self, system: str, tools: tuple[Raw, ...], op: str) -> Given:
        """System prompt and tools of the request `op`, whole when they are not those of the last request."""
        keys = _hash(system.encode("utf-8", "surrogatepass")), _hash(b"\n".join(bytes(tool) for tool in tools))
        same_system, same_tools = self._system[0] == keys[0], self._tools[0] == keys[1]
        if not same_system:
            self._system = keys[0], op
        if not same_tools:
            self._tools = keys[1], op
        return Given(
            UNSET if same_system else system,
            self._system[1] if same_system else UNSET,
            UNSET if same_tools else tools,
            self._tools[1] if same_tools else UNSET,
        )


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
