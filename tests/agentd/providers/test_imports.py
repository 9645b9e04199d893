"""What starting the daemon must not cost: httpx and the price list are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_providers_imports_neither_httpx_nor_the_price_list() -> None:
    code = (
        "import sys, agentd.providers.http, agentd.providers.catalog, agentd.providers.prices;"
        "print([name for name in ('httpx', 'httpcore', 'genai_prices', 'pydantic', 'certifi') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
