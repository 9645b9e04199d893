"""What a request cost, by the price list of genai-prices, which ships with its package: nothing is fetched.

Usage is all-in: the list's rules take cache reads and writes out of the input and price them apart, and choose the tier of
long contexts by the whole input (batch prices are never used: no request here is one). An Anthropic cache write is priced
as one of five minutes, the only kind that is asked for. Reasoning is part of the output, and priced so.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tracewriter.events import Usage

# Names that the list has for our providers. copilot is a subscription: its tokens have no price.
_LISTED: Final = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gemini": "google",
    "groq": "groq",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "xai": "x-ai",
    "together": "together",
    "fireworks": "fireworks",
    "perplexity": "perplexity",
    "openrouter": "openrouter",
    "cerebras": "cerebras",
}


async def cost_usd(provider: str, model: str, usage: Usage | None, *, local: bool) -> float | None:
    """The price of a request's usage in US dollars; None when it is not known, which is never the same as 0. Local is 0.0.

    `provider` is the catalog's name, `model` the provider's own id. The first call imports the list in a thread (150 ms).
    """
    if local:
        return 0.0
    listed = _LISTED.get(provider)
    if listed is None or usage is None:
        return None
    return await asyncio.to_thread(_price, listed, model, usage)


def _price(provider: str, model: str, usage: Usage) -> float | None:
    import genai_prices

    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(genai_prices.calc_price(counted, _bare(provider, model), provider_id=provider).total_price)
    except (LookupError, ValueError):
        return None  # a model that is not listed, or counts that contradict each other


def _bare(provider: str, model: str) -> str:
    """The name that the list has: Gemini's may come with the collection that it is in."""
    return model.removeprefix("models/") if provider == _LISTED["gemini"] else model
