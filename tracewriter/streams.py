"""A stream of events that is recorded as it goes by: `async for event in recorded(source, trace)`, or `recorded_sync`.

Each event is passed on as it is, in order, whatever becomes of the recording; `asend`, `athrow` and `aclose` reach the source,
and its exceptions come through as they are. The last record of a stream is always `<tool>.stream.finished`:

    outcome   finished: the source came to its end; stopped: the consumer wanted no more; failed: the source raised;
              cancelled: the task was
    items     how many events went by
    error     failed: the type of the exception. `message`: its text, not in capture mode metadata

A stream that its consumer dropped without closing it gets its mark when it is collected, at the latest when the trace is closed.
An iterator that goes on after it raised gets another one at its end.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any, Final, Generic, Protocol, TypeVar, cast, runtime_checkable

from tracewriter.events import NAMES, Event

T = TypeVar("T")
ENDED: Final = "stream.finished"
ITEM: Final = "stream.item"  # what has no name of its own
_MESSAGE_CHARS: Final = 2_000


class Notes(Protocol):
    """What a stream is recorded through: any trace."""

    def record(self, event: Event) -> None:
        """Never raises, never waits."""

    def note(self, name: str, value: object = None, *, metadata: dict[str, object] | None = None) -> None:
        """Never raises, never waits."""


@runtime_checkable
class Closing(Protocol):
    """A trace that tells before it is closed."""

    def at_close(self, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` then. Gives what takes that back."""


class _Stream:
    """The record of one stream. Holds nothing of the source."""

    def __init__(self, trace: Notes, name: str) -> None:
        self._trace, self._name = trace, name
        self._items = 0
        self._ended = False
        self._release: Callable[[], object] = lambda: None
        if isinstance(trace, Closing):
            self._release = trace.at_close(self.stop)

    def item(self, value: object) -> None:
        """It went by."""
        self._items += 1
        self._ended = False
        if type(value) in NAMES:
            self._trace.record(cast(Event, value))
        else:
            self._trace.note(self._name, value)

    def stop(self) -> None:
        """The consumer wants no more."""
        self._end("stopped")

    def finish(self) -> None:
        """The source came to its end."""
        self._end("finished")

    def fail(self, error: BaseException) -> None:
        """The source raised."""
        kind = type(error).__name__
        if kind in ("CancelledError", "Cancelled") and not isinstance(error, Exception):
            self._end("cancelled")  # of asyncio, and of trio; imported, either would cost more than all of this
        else:
            self._end("failed", error)

    def _end(self, outcome: str, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        self._release()
        facts: dict[str, object] = {"outcome": outcome, "items": self._items}
        if error is not None:
            facts["error"] = type(error).__name__
        told = facts if error is None else {**facts, "message": _text(error)}
        self._trace.note(ENDED, told, metadata=facts)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARS]
    except Exception:  # noqa: BLE001 - foreign code, which may raise anything; the exception that is passed on is another
        return ""


class Recorded(AsyncGenerator[T, Any], Generic[T]):
    """An asynchronous stream that is recorded. A class and no generator: nothing stands between consumer and source, and a
    consumer that breaks off is noticed at once.
    """

    def __init__(self, source: AsyncIterable[T], trace: Notes, name: str) -> None:
        self._stream = _Stream(trace, name)
        self._source: AsyncIterator[T] = aiter(source)

    def __aiter__(self) -> Recorded[T]:
        return self

    async def __anext__(self) -> T:
        return await self._step(anext(self._source))

    async def asend(self, value: Any) -> T:
        """Resume the source with a value."""
        return await self._step(cast("AsyncGenerator[T, Any]", self._source).asend(value))

    async def athrow(self, *error: Any) -> T:
        """Raise inside the source."""
        return await self._step(cast("AsyncGenerator[T, Any]", self._source).athrow(*error))

    async def aclose(self) -> None:
        """Close the source."""
        try:
            if hasattr(self._source, "aclose"):
                await self._source.aclose()
        except BaseException as error:
            self._stream.fail(error)
            raise
        self._stream.stop()

    async def _step(self, step: Awaitable[T]) -> T:
        try:
            item = await step
        except StopAsyncIteration:
            self._stream.finish()
            raise
        except GeneratorExit:  # thrown in by the consumer, or what awaits this was dropped
            self._stream.stop()
            raise
        except BaseException as error:
            self._stream.fail(error)
            raise
        self._stream.item(item)
        return item

    def __del__(self) -> None:
        stream: _Stream | None = getattr(self, "_stream", None)
        if stream is not None:
            stream.stop()


class RecordedSync(Generator[T, Any, Any], Generic[T]):
    """The same for plain generators and iterables."""

    def __init__(self, source: Iterable[T], trace: Notes, name: str) -> None:
        self._stream = _Stream(trace, name)
        self._source: Iterator[T] = iter(source)

    def __iter__(self) -> RecordedSync[T]:
        return self

    def __next__(self) -> T:
        return self._step(self._source.__next__)

    def send(self, value: Any) -> T:
        """Resume the source with a value."""
        return self._step(cast("Generator[T, Any, Any]", self._source).send, value)

    def throw(self, *error: Any) -> T:
        """Raise inside the source."""
        return self._step(cast("Generator[T, Any, Any]", self._source).throw, *error)

    def close(self) -> Any:
        """Close the source; gives what that gives (from Python 3.13 on, its return value)."""
        try:
            value = self._source.close() if hasattr(self._source, "close") else None
        except BaseException as error:
            self._stream.fail(error)
            raise
        self._stream.stop()
        return value

    def _step(self, step: Callable[..., T], *values: Any) -> T:
        try:
            item = step(*values)
        except StopIteration:
            self._stream.finish()
            raise
        except GeneratorExit:
            self._stream.stop()
            raise
        except BaseException as error:
            self._stream.fail(error)
            raise
        self._stream.item(item)
        return item

    def __del__(self) -> None:
        stream: _Stream | None = getattr(self, "_stream", None)
        if stream is not None:
            stream.stop()


def recorded(source: AsyncIterable[T], trace: Notes, *, name: str = ITEM) -> Recorded[T]:
    """The source's events, recorded: those of `tracewriter.events` under their own names, all others under `name`."""
    return Recorded(source, trace, name)


def recorded_sync(source: Iterable[T], trace: Notes, *, name: str = ITEM) -> RecordedSync[T]:
    """As `recorded`, for plain generators and iterables."""
    return RecordedSync(source, trace, name)
