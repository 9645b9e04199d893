"""Fixtures and profiles shared by all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("AGENTD_HYPOTHESIS", "gate" if os.environ.get("CI") else "dev"))


@pytest.fixture(params=["asyncio", "asyncio+uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Async tests run on both loops that the daemon may run on."""
    return "asyncio", {"use_uvloop": request.param.endswith("uvloop")}
