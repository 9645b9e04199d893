"""Saving a session's conversation: each part as it comes, without a wait.

What a run adds is one operation, `session.save.started` to `finished` or `failed`: whoever reads the record wants to know whether
the conversation was kept, not of each message. While saving fails nothing more is said until it works again or another prompt
comes: whoever sends that need not have been here the last time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from agentd.ids import Ids
from agentd.messages import Message, encode_message
from agentd.store import SessionStore, StoredSession, StoreError
from tracewriter.clock import Clock
from tracewriter.events import Event, Failure, SessionSaveFailed, SessionSaveFinished, SessionSaveStarted

# A store that does not answer by then leaves the record without the end of the save.
SETTLE_S: Final = 1.0


class Observe(Protocol):
    """Session.observe."""

    def __call__(self, event: Event, run: str = "", op: str = "", parent: str = "") -> None: ...


class _Save:
    """What one run adds."""

    def __init__(self, op: str, prompt: str, started_s: float) -> None:
        self.op = op
        self.prompt = prompt
        self.started_s = started_s
        self.messages = 0
        self.waiting = 0
        self.complete = False  # the run has ended: nothing more comes
        self.over = False  # its end was told


class Saving:
    """Saves one session. `store` is None for an ephemeral one: then nothing is done, and nothing said."""

    def __init__(
        self, session: str, store: SessionStore | None, clock: Clock, ids: Ids, observe: Observe, *, next_number: int
    ) -> None:
        self._session = session
        self._store = store
        self._clock = clock
        self._ids = ids
        self._observe = observe
        self._next_number = next_number
        self._told = False  # that saving fails
        self._save: _Save | None = None

    def __repr__(self) -> str:
        return f"<Saving {self._session} next={self._next_number} failing={self._told}>"

    async def prompt(self, prompt: str, text: str) -> None:
        """A prompt was accepted; on return it is saved, or that it is not has been said."""
        store = self._store
        if store is not None:
            self._told = False
            try:
                await store.call(store.db.add_prompt, self._session, prompt, text, stamp(self._clock.now()))
                self._saved(None, None)
            except StoreError as exc:
                self._saved(None, exc)

    def drop(self, prompts: Sequence[str]) -> None:
        """Prompts were taken up or cleared."""
        store = self._store
        if store is not None and prompts:
            store.post(self._saved_alone, store.db.drop_prompts, self._session, prompts)

    def row(self, row: StoredSession) -> None:
        """What is kept besides the messages."""
        store = self._store
        if store is not None:
            store.post(self._saved_alone, store.db.save_session, row)

    def begin(self, prompt: str) -> None:
        """A run begins to add to the conversation."""
        if self._store is not None and not self._told and not self._store.failure:
            save = self._save = _Save(self._ids.op(), prompt, self._clock.monotonic())
            self._observe(SessionSaveStarted(prompt, self._next_number), op=save.op)

    def messages(self, messages: Sequence[Message]) -> None:
        """The conversation goes on."""
        store, save = self._store, self._save
        if messages and store is not None:
            encoded = [encode_message(message) for message in messages]
            if save is not None:
                save.messages += len(encoded)
                save.waiting += 1
            at = stamp(self._clock.now())
            numbered = (self._session, self._next_number, encoded, at)
            store.post(lambda error: self._saved(save, error), store.db.add_messages, *numbered)
        self._next_number += len(messages)

    def end(self) -> None:
        """The run is over."""
        save, self._save = self._save, None
        if save is not None:
            save.complete = True
            self._finish(save)

    async def settle(self) -> None:
        """Wait for what is being saved, so that its end can still be told; within SETTLE_S."""
        store = self._store
        if store is not None:
            try:
                async with asyncio.timeout(SETTLE_S):
                    await store.call(_nothing)
            except (StoreError, TimeoutError):
                pass

    def _saved_alone(self, error: StoreError | None) -> None:
        self._saved(None, error)

    def _saved(self, save: _Save | None, error: StoreError | None) -> None:
        save_open = save is not None and not save.over
        if error is not None and (save_open or not self._told):
            said = save if save_open else None
            self._observe(SessionSaveFailed(Failure("store", str(error), error.hint)), op=said.op if said else "")
            if said is not None:
                said.over = True
        self._told = error is not None
        if save is not None:
            save.waiting -= 1
            self._finish(save)

    def _finish(self, save: _Save) -> None:
        if save.complete and not save.waiting and not save.over:
            save.over = True
            took_ms = round((self._clock.monotonic() - save.started_s) * 1000, 3)
            self._observe(SessionSaveFinished(save.prompt, save.messages, took_ms), op=save.op)


def _nothing() -> None:
    """Takes its turn in the store's thread: what was posted before it has been done then."""


def stamp(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds: sorts as text."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
