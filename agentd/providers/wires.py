"""The wires this version speaks: how a request is built and an answer decoded, by the wire's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from agentd.providers import anthropic_request, gemini_models, gemini_request, openai_responses_request
from agentd.providers.anthropic import AnthropicDecoder
from agentd.providers.gemini import GeminiDecoder
from agentd.providers.openai_chat import OpenAIChatDecoder
from agentd.providers.openai_chat_request import ChatQuirks, build_request
from agentd.providers.openai_responses import OpenAIResponsesDecoder
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
    """One wire. `path` comes after the base URL, or what `model_path` makes of the model where the URL names it; `auth` makes
    the header that carries a key, and `headers` go with every request. `models_path` is where the list of models is."""

    path: str
    decoder: Callable[[ChatQuirks], WireDecoder]
    build: Callable[[ModelRequest, ChatQuirks], bytes]
    auth: Callable[[str], tuple[str, str]]
    model_path: Callable[[str], str] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    models_path: str = "/models"

    def path_for(self, model: str) -> str:
        """What comes after the base URL in a request to the model; it may end in a query."""
        return self.model_path(model) if self.model_path else self.path


def bearer(key: str) -> tuple[str, str]:
    """The header of most servers; some want it in place of their wire's own (ProviderSpec.bearer)."""
    return "authorization", f"Bearer {key}"


def _openai_chat(quirks: ChatQuirks) -> WireDecoder:
    return OpenAIChatDecoder(think_split=quirks.think_split)


def _openai_responses(quirks: ChatQuirks) -> WireDecoder:
    return OpenAIResponsesDecoder(think_split=quirks.think_split)


def _build_openai_responses(request: ModelRequest, quirks: ChatQuirks) -> bytes:
    return openai_responses_request.build_request(request)


def _gemini(quirks: ChatQuirks) -> WireDecoder:
    return GeminiDecoder()


def _build_gemini(request: ModelRequest, quirks: ChatQuirks) -> bytes:
    return gemini_request.build_request(request)


def _goog_api_key(key: str) -> tuple[str, str]:
    return "x-goog-api-key", key


def _anthropic(quirks: ChatQuirks) -> WireDecoder:
    return AnthropicDecoder()


def _build_anthropic(request: ModelRequest, quirks: ChatQuirks) -> bytes:
    return anthropic_request.build_request(request)


def _x_api_key(key: str) -> tuple[str, str]:
    return "x-api-key", key


_ANTHROPIC_HEADERS: Final = (("anthropic-version", "2023-06-01"),)

WIRES: Final[dict[str, Wire]] = {
    "openai-chat": Wire("/chat/completions", _openai_chat, build_request, bearer),
    "openai-responses": Wire("/responses", _openai_responses, _build_openai_responses, bearer),
    "gemini": Wire(
        "/models", _gemini, _build_gemini, _goog_api_key, gemini_models.model_path, models_path="/models?pageSize=1000"
    ),
    "anthropic": Wire(
        "/v1/messages",
        _anthropic,
        _build_anthropic,
        _x_api_key,
        headers=_ANTHROPIC_HEADERS,
        models_path="/v1/models?limit=1000",
    ),
}
