"""A forked child never speaks for its parent: what owns a connection is told of the fork, in the child, before anything else.

A look at the process id would cost each record; and a child that runs the parent's event loop on would take its answers.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet


class Owner(Protocol):
    """What a child must not use."""

    def disown(self) -> None:
        """Called in the child. Must not touch what is shared with the parent (an epoll set is)."""


def tell(owner: Owner) -> None:
    """Call `owner.disown()` in every child that is forked while it lives."""
    _owners().add(owner)


@cache  # once in a process: nothing that is registered can be taken back
def _owners() -> WeakSet[Owner]:
    owners: WeakSet[Owner] = WeakSet()

    def in_child() -> None:
        for owner in list(owners):
            owner.disown()

    os.register_at_fork(after_in_child=in_child)
    return owners
