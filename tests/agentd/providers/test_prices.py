"""What a request cost: known prices are exact, unknown ones are None and never 0, local ones are 0."""

from __future__ import annotations

import asyncio

import pytest

from agentd.providers.prices import cost_usd
from tracewriter.events import Usage


def price(provider: str, model: str, usage: Usage | None, *, local: bool = False) -> float | None:
    return asyncio.run(cost_usd(provider, model, usage, local=local))


def test_cached_tokens_are_cheaper_than_fresh_ones() -> None:
    fresh, cached = (
        price("openai", "gpt-5-mini", Usage(10_000, 100)),
        price("openai", "gpt-5-mini", Usage(10_000, 100, 9_000)),
    )
    assert fresh is not None
    assert cached is not None
    assert 0 < cached < fresh
    assert fresh == pytest.approx(10_000 * 0.25e-6 + 100 * 2e-6)


@pytest.mark.parametrize(
    ("provider", "model", "usage"),
    [
        ("openai", "no-such-model", Usage(1, 1)), ("custom", "gpt-5-mini", Usage(1, 1)), ("copilot", "gpt-4.1", Usage(1, 1)),
        ("openai", "gpt-5-mini", None), ("openai", "gpt-5-mini", Usage(5, 1, 10)), ("openai", "", Usage(1, 1)),
    ],
)  # fmt: skip
def test_what_is_not_known_is_none(provider: str, model: str, usage: Usage | None) -> None:
    assert price(provider, model, usage) is None


def test_local_models_cost_nothing() -> None:
    assert price("ollama", "qwen3", Usage(1, 1), local=True) == 0.0
    assert price("ollama", "qwen3", None, local=True) == 0.0
