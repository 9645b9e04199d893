"""Prices against sums done by hand, from the usage that each wire's decoder gives: caches, reasoning, tiers of long contexts.

The dollars per million tokens stand in the sums; when the price list of a new genai-prices differs, these tests say so.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from agentd.providers.openai_chat_request import ChatQuirks
from agentd.providers.prices import cost_usd
from agentd.providers.stream import UsageReported
from agentd.providers.wires import WIRES
from tests.wire_answers import sse
from tracewriter.events import Usage

M = 1e-6


def price(provider: str, model: str, usage: Usage | None) -> float | None:
    return asyncio.run(cost_usd(provider, model, usage, local=False))


def usage_of(wire: str, *frames: dict[str, Any]) -> Usage:
    """What the wire's decoder says of a stream."""
    decoder = WIRES[wire].decoder(ChatQuirks())
    events = decoder.feed(sse(*frames, named=wire in ("anthropic", "openai-responses"))) + decoder.end()
    [usage] = [event.usage for event in events if isinstance(event, UsageReported)]
    assert usage is not None
    return usage


def test_anthropic_prices_cache_writes_and_reads_apart_from_fresh_input() -> None:
    usage = usage_of(
        "anthropic",
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {
            "input_tokens": 1000, "cache_creation_input_tokens": 3000, "cache_read_input_tokens": 6000, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 500}},
        {"type": "message_stop"},
    )  # fmt: skip
    assert usage == Usage(10_000, 500, 6000, 3000)
    by_hand = 1000 * 3 * M + 3000 * 3.75 * M + 6000 * 0.3 * M + 500 * 15 * M
    assert price("anthropic", "claude-sonnet-4-5-20250929", usage) == pytest.approx(by_hand, rel=1e-9)


def test_openai_prices_the_cached_part_of_the_input_and_all_of_the_output() -> None:
    frame = {"choices": [], "usage": {
        "prompt_tokens": 10_000, "completion_tokens": 500, "total_tokens": 10_500,
        "prompt_tokens_details": {"cached_tokens": 8000}, "completion_tokens_details": {"reasoning_tokens": 300}}}  # fmt: skip
    stop = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    usage = usage_of("openai-chat", stop, frame)
    by_hand = 2000 * 0.25 * M + 8000 * 0.025 * M + 500 * 2 * M
    assert price("openai", "gpt-5-mini", usage) == pytest.approx(by_hand, rel=1e-9)


def test_responses_prices_the_same_usage_the_same() -> None:
    usage = usage_of("openai-responses", {"type": "response.completed", "response": {
        "id": "r", "status": "completed", "output": [], "usage": {
            "input_tokens": 10_000, "output_tokens": 500, "total_tokens": 10_500,
            "input_tokens_details": {"cached_tokens": 8000}, "output_tokens_details": {"reasoning_tokens": 300}}}})  # fmt: skip
    by_hand = 2000 * 0.25 * M + 8000 * 0.025 * M + 500 * 2 * M
    assert price("openai", "gpt-5-mini", usage) == pytest.approx(by_hand, rel=1e-9)


def gemini(prompt: int, cached: int, answer: int, thoughts: int) -> Usage:
    return usage_of("gemini", {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "x"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": prompt, "cachedContentTokenCount": cached, "candidatesTokenCount": answer,
                          "thoughtsTokenCount": thoughts, "totalTokenCount": prompt + answer + thoughts}})  # fmt: skip


def test_gemini_prices_thoughts_as_output() -> None:
    usage = gemini(10_000, 4000, 200, 800)
    assert (usage.output_tokens, usage.reasoning_tokens) == (1000, 800)
    by_hand = 6000 * 1.25 * M + 4000 * 0.125 * M + 1000 * 10 * M
    assert price("gemini", "gemini-2.5-pro", usage) == pytest.approx(by_hand, rel=1e-9)
    assert price("gemini", "models/gemini-2.5-pro", usage) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(
    ("tokens", "per_in", "per_cached", "per_out"),
    [(200_000, 1.25, 0.125, 10.0), (200_001, 2.5, 0.25, 15.0), (400_000, 2.5, 0.25, 15.0)],
)
def test_a_long_context_has_its_tier_for_the_whole_request(
    tokens: int, per_in: float, per_cached: float, per_out: float
) -> None:
    usage = gemini(tokens, 50_000, 1000, 0)
    by_hand = (tokens - 50_000) * per_in * M + 50_000 * per_cached * M + 1000 * per_out * M
    assert price("gemini", "gemini-2.5-pro", usage) == pytest.approx(by_hand, rel=1e-9)


def test_a_long_context_that_is_mostly_cache_is_long_all_the_same() -> None:
    """Anthropic counts cache reads into the 200,000."""
    usage = Usage(250_000, 1000, 240_000, 5000)
    by_hand = 5000 * 6 * M + 240_000 * 0.6 * M + 5000 * 7.5 * M + 1000 * 22.5 * M
    assert price("anthropic", "claude-sonnet-4-5", usage) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(
    ("provider", "model", "by_hand"),
    [
        ("groq", "openai/gpt-oss-120b", 10_000 * 0.15 * M + 500 * 0.6 * M),
        ("fireworks", "accounts/fireworks/models/gpt-oss-120b", 10_000 * 0.15 * M + 500 * 0.6 * M),
        ("openrouter", "anthropic/claude-sonnet-4.5", 10_000 * 3 * M + 500 * 15 * M),
    ],
)
def test_the_names_that_routers_use_are_found(provider: str, model: str, by_hand: float) -> None:
    assert price(provider, model, Usage(10_000, 500)) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(
    ("provider", "model"), [("openrouter", "openrouter/auto"), ("openai", "gpt-99"), ("gemini", "models/")]
)
def test_unknown_is_none_and_never_0(provider: str, model: str) -> None:
    assert price(provider, model, Usage(10_000, 500)) is None


def test_the_list_is_imported_by_the_first_price_that_needs_it_off_the_event_loop() -> None:
    code = """
import asyncio, sys, threading
from agentd.providers.prices import cost_usd
from tracewriter.events import Usage
assert 'genai_prices' not in sys.modules
where = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'genai_prices': where.append(threading.current_thread() is threading.main_thread())
sys.meta_path.insert(0, Finder())
asyncio.run(cost_usd('ollama', 'm', Usage(1, 1), local=True))
assert where == []
asyncio.run(cost_usd('openai', 'gpt-5-mini', Usage(1, 1), local=False))
print(where)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[False]\n"
