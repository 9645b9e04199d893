"""The wires this version speaks: how a request is built and an answer decoded, by the wire's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from agentd.providers.openai_chat import OpenAIChatDecoder
from agentd.providers.openai_chat_request import ChatQuirks, build_request
from agentd.providers.stream import ModelRequest, StreamEvent


class WireDecoder(Protocol):
    """A stream.Decoder that also tells the transport how far the answer is."""

    frames: int  # data frames so far, comments not counted: what progress is
    ended: bool  # the last event was given

    @property
    def settled(self) -> bool:
        """Only usage can still come: the transport need not wait long for it."""

    def feed(self, data: bytes) -> list[StreamEvent]:
        """As in stream.Decoder."""

    def end(self) -> list[StreamEvent]:
        """As in stream.Decoder."""


class Wire(Struct, frozen=True):
    """One wire. `path` comes after the base URL; `auth` makes the header that carries a key."""

    path: str
    decoder: Callable[[ChatQuirks], WireDecoder]
    build: Callable[[ModelRequest, ChatQuirks], bytes]
    auth: Callable[[str], tuple[str, str]]


def _bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


def _openai_chat(quirks: ChatQuirks) -> WireDecoder:
    return OpenAIChatDecoder(think_split=quirks.think_split)


WIRES: Final[dict[str, Wire]] = {
    "openai-chat": Wire("/chat/completions", _openai_chat, build_request, _bearer),
}
