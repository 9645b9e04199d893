"""Which model a request goes to when the one before it failed: the user's own list, in its order, and never back. Pure.

Only a request of which nothing was shown goes on elsewhere, and only for a reason that may be another one elsewhere: the
provider was overloaded, unreachable, out of credit, refused the key or does not have the model. What is wrong with the
request itself (a parameter, its length, its content) is wrong for all of them. The model that answered stays for the rest
of the run: going back and forth would cost each provider's cache and its signatures.
"""

from __future__ import annotations

from msgspec import Struct

from agentd.providers.errors import no_model, out_of_credit
from agentd.providers.stream import Failed, Provider


class Target(Struct, frozen=True):
    """A model to ask, by its provider's own id."""

    provider: Provider
    model: str

    @property
    def label(self) -> str:
        """provider/model."""
        return f"{self.provider.name}/{self.model}"


def may_go_elsewhere(failed: Failed) -> bool:
    """Whether another provider may do better with the same request."""
    failure = failed.failure
    if failed.retryable or failure.kind == "transport" or no_model(failure):
        return True
    if failure.kind != "provider":
        return False
    return failure.status in (401, 402, 403) or out_of_credit(failure)


class Chain:
    """The targets of one run: the one in use, and those that are left."""

    def __init__(self, first: Target, others: tuple[Target, ...]) -> None:
        self.current = first
        self._left = list(others)

    def __repr__(self) -> str:
        return f"<Chain {self.current.label}, {len(self._left)} left>"

    def advance(self, failed: Failed) -> Target | None:
        """The next target, from now on the current one; None when there is none, or it would not help."""
        if not self._left or not may_go_elsewhere(failed):
            return None
        self.current = self._left.pop(0)
        return self.current
