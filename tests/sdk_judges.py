"""What the providers' own SDKs make of a stream: the judges of our decoders and of the tests' fake provider.

Each SDK is pointed at a loopback base URL and asked the way its users ask it; what it says is put under one set of names. They
are imported when they are used: `installed` says whether a wire has its judge (the extra `judges`).
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

TIMEOUT_S: Final = 30.0
KEY: Final = "sk-judge-0123456789abcdef"
PACKAGES: Final = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "gemini": "google.genai",
}


class Judged(Struct):
    """An answer as an SDK tells it. `calls` are (id, name, input), the input None where it was no JSON; `tokens` are all-in
    input and output; `error` is the exception's name and text, what came before it stays."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[tuple[str | None, str, Any]] = []
    tokens: tuple[int, int] | None = None
    finish: str | None = None
    error: str | None = None


def installed(wire: str) -> bool:
    """Whether the wire's SDK is here."""
    try:
        return importlib.util.find_spec(PACKAGES[wire]) is not None
    except ModuleNotFoundError:
        return False


def judge(wire: str, base_url: str, **request: Any) -> Judged:
    """Ask with the wire's SDK. `base_url` ends in no version; `request` changes what is asked (model, tools, …)."""
    judged = Judged()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # google's, of a word that its lists do not have
        try:
            _JUDGES[wire](base_url, request, judged)
        except Exception as exc:  # noqa: BLE001 - whatever an SDK raises is its verdict
            judged.error = f"{type(exc).__name__}: {exc}"
    return judged


def _openai(base_url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{base_url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)


def _chat(base_url: str, request: dict[str, Any], judged: Judged) -> None:
    asked = {"model": "m-1", "messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": True}}
    calls: dict[int, list[str | None]] = {}
    with _openai(base_url) as client, client.chat.completions.create(**{**asked, **request}, stream=True) as stream:
        for chunk in stream:
            if chunk.usage is not None:
                judged.tokens = _chat_tokens(chunk.usage)
            for choice in chunk.choices or ():
                if not choice.index:
                    _chat_choice(choice, judged, calls)
    judged.calls = [(call_id, name or "", _parsed(arguments)) for call_id, name, arguments in calls.values()]


def _chat_tokens(usage: Any) -> tuple[int, int]:
    """All-in: one provider's completion_tokens leave reasoning out, which its total shows."""
    given, produced = usage.prompt_tokens, usage.completion_tokens
    details = usage.completion_tokens_details
    thought = (details.reasoning_tokens if details is not None else None) or 0
    return given, produced + (thought if given + produced + thought == usage.total_tokens else 0)


def _chat_choice(choice: Any, judged: Judged, calls: dict[int, list[str | None]]) -> None:
    judged.finish = choice.finish_reason or judged.finish
    delta = choice.delta
    if delta is None:
        return
    judged.text += delta.content or ""
    judged.refusal += delta.refusal or ""
    extra = delta.model_extra or {}
    judged.reasoning += extra.get("reasoning_content") or extra.get("reasoning") or ""
    for piece in delta.tool_calls or ():
        call = calls.setdefault(piece.index, [None, None, ""])
        call[0] = call[0] or piece.id
        if piece.function is not None:
            call[1] = call[1] or piece.function.name
            call[2] = (call[2] or "") + (piece.function.arguments or "")


def _responses(base_url: str, request: dict[str, Any], judged: Judged) -> None:
    asked = {"model": "m-1", "input": "hi"}
    with _openai(base_url) as client, client.responses.create(**{**asked, **request}, stream=True) as stream:
        items: list[Any] = []
        for event in stream:
            if event.type == "response.output_item.done":
                items.append(event.item)
            elif event.type == "response.output_text.delta":
                judged.text += event.delta
            elif event.type in ("response.completed", "response.incomplete", "response.failed"):
                _response(event.response, items, judged)


def _response(response: Any, items: list[Any], judged: Judged) -> None:
    """The response as it ended, in place of its pieces; some servers leave its output empty, and it is what the items were."""
    judged.text = ""
    reason = response.incomplete_details.reason if response.incomplete_details else None
    judged.finish = f"{response.status}:{reason}" if reason else response.status
    if response.usage is not None:
        judged.tokens = (response.usage.input_tokens, response.usage.output_tokens)
    if response.error is not None:
        judged.error = f"response.failed: {response.error.message}"
    for item in response.output or items:
        if item.type == "message":
            judged.text += "".join(part.text for part in item.content if part.type == "output_text")
            judged.refusal += "".join(part.refusal for part in item.content if part.type == "refusal")
        elif item.type == "reasoning":
            judged.reasoning += "".join(part.text for part in [*(item.summary or ()), *(item.content or ())])
        elif item.type == "function_call":
            judged.calls.append((item.call_id, item.name, _parsed(item.arguments)))


def _anthropic(base_url: str, request: dict[str, Any], judged: Judged) -> None:
    import anthropic

    asked = {"model": "m-1", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
    how = {"api_key": KEY} if not request.pop("bearer", False) else {"auth_token": KEY}
    client = anthropic.Anthropic(base_url=base_url, max_retries=0, timeout=TIMEOUT_S, **how)
    with client, client.messages.stream(**{**asked, **request}) as stream:
        try:
            for _ in stream:
                pass
        finally:
            if _begun(stream):
                _message(stream.current_message_snapshot, judged)


def _begun(stream: Any) -> bool:
    try:
        return stream.current_message_snapshot is not None
    except AssertionError:
        return False


def _message(message: Any, judged: Judged) -> None:
    judged.finish = message.stop_reason
    usage = message.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    judged.tokens = (usage.input_tokens + cached, usage.output_tokens)
    if message.stop_details is not None:
        judged.refusal = message.stop_details.explanation or ""
    for block in message.content:
        if block.type == "text":
            judged.text += block.text
        elif block.type == "thinking":
            judged.reasoning += block.thinking
        elif block.type == "tool_use":
            judged.calls.append((block.id, block.name, block.input))


def _gemini(base_url: str, request: dict[str, Any], judged: Judged) -> None:
    from google import genai

    options: dict[str, Any] = {"base_url": base_url, "timeout": int(TIMEOUT_S * 1000)}
    if "api_version" in request:
        options["api_version"] = request.pop("api_version")
    asked = {"model": "m-1", "contents": "hi"}
    with genai.Client(api_key=KEY, http_options=options) as client:
        for chunk in client.models.generate_content_stream(**{**asked, **request}):
            _gemini_chunk(chunk, judged)


def _gemini_chunk(chunk: Any, judged: Judged) -> None:
    usage = chunk.usage_metadata
    if usage is not None:
        given = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
        judged.tokens = (given, (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0))
    if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
        judged.error = f"prompt blocked: {chunk.prompt_feedback.block_reason.value}"
    for candidate in (chunk.candidates or ())[:1]:
        if candidate.finish_reason is not None:
            judged.finish = candidate.finish_reason.value
        for part in (candidate.content.parts if candidate.content else None) or ():
            if part.function_call is not None:
                judged.calls.append((part.function_call.id, part.function_call.name, part.function_call.args or {}))
            elif part.thought:
                judged.reasoning += part.text or ""
            else:
                judged.text += part.text or ""


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return None


_JUDGES: Final[dict[str, Callable[[str, dict[str, Any], Judged], None]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
