"""A recorded stream is the stream: same values, same order, same ends; and its record ends once, saying how it ended."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracewriter
from tests.strategies import any_value, realise
from tracewriter.events import Event, ToolCallFinished
from tracewriter.sender import NullTrace, Sender
from tracewriter.streams import Recorded, RecordedSync, recorded, recorded_sync
from tracewriter.thread_trace import ThreadTrace
from tracewriter.threaded import ThreadSender

RESULT = ToolCallFinished("call", "read", "out", False, 1.0)


class Notebook:
    """A trace that keeps what it is given."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.told: list[Any] = []
        self.ends: dict[Callable[[], None], None] = {}

    def record(self, event: Event) -> None:
        self.said.append(("typed", event))

    def note(self, name: str, value: object = None, *, metadata: dict[str, object] | None = None) -> None:
        self.said.append((name, value))
        self.told.append(metadata)

    def at_close(self, end: Callable[[], None]) -> Callable[[], None]:
        self.ends[end] = None
        return lambda: self.ends.pop(end, None)

    @property
    def marks(self) -> list[Any]:
        return [value for name, value in self.said if name == "stream.finished"]


def mark(outcome: str, items: int, **more: str) -> dict[str, object]:
    return {"outcome": outcome, "items": items, **more}


class Boom(Exception):
    """The source's own failure."""


async def source(values: list[Any], raises: BaseException | None = None) -> AsyncGenerator[Any, None]:
    for value in values:
        yield value
    if raises is not None:
        raise raises


def plain(values: list[Any], raises: BaseException | None = None) -> Generator[Any, None, str]:
    yield from values
    if raises is not None:
        raise raises
    return "returned"


def driven(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives that waits for nothing. An event loop would look at the values, which some of them do not bear."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


# --- the property: any values, any stop


@given(st.lists(any_value, max_size=6), st.integers(0, 7), st.booleans())
def test_any_values_up_to_any_stop_are_passed_on_untouched(drawn: list[object], stop: int, raises: bool) -> None:
    values = [realise(value) for value in drawn]
    boom = Boom() if raises else None
    trace = ThreadSender("/nowhere", one_session=True).open("s", "/", tool="t")

    async def consume(stream: AsyncGenerator[Any, Any]) -> tuple[list[Any], BaseException | None]:
        got: list[Any] = []
        try:
            async for value in stream:
                got.append(value)
                if len(got) == stop:
                    break
        except Boom as error:
            return got, error
        finally:
            await stream.aclose()
        return got, None

    def consume_plain(stream: Generator[Any, Any, Any]) -> tuple[list[Any], BaseException | None]:
        got: list[Any] = []
        try:
            for value in stream:
                got.append(value)
                if len(got) == stop:
                    break
        except Boom as error:
            return got, error
        finally:
            stream.close()
        return got, None

    notes = Notebook()
    for sink in (trace, notes):
        bare, recorded_ = (driven(consume(s)) for s in (source(values, boom), recorded(source(values, boom), sink)))
        assert list(map(id, bare[0])) == list(map(id, recorded_[0])), "the very same objects, in order"
        assert bare[1] is recorded_[1]
        bare, recorded_ = (consume_plain(s) for s in (plain(values, boom), recorded_sync(plain(values, boom), sink)))
        assert list(map(id, bare[0])) == list(map(id, recorded_[0]))
        assert bare[1] is recorded_[1]
    trace.close(0)
    stopped = 0 < stop <= len(values)
    outcome = "stopped" if stopped else "failed" if raises else "finished"
    count = stop if stopped else len(values)
    for end in notes.marks:
        assert (end["outcome"], end["items"]) == (outcome, count)
    assert len(notes.marks) == 2
    assert len(notes.said) == 2 * count + 2
    assert notes.said[-1][0] == "stream.finished"
    assert not notes.ends


def test_events_of_ours_are_recorded_as_such_and_others_under_a_name() -> None:
    notes = Notebook()
    assert list(recorded_sync([RESULT, 5], notes)) == [RESULT, 5]
    assert list(recorded_sync([{"a": 1}], notes, name="chunk.observed")) == [{"a": 1}]
    assert [name for name, _ in notes.said] == [
        "typed",
        "stream.item",
        "stream.finished",
        "chunk.observed",
        "stream.finished",
    ]


# --- how streams end


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.anyio
async def test_the_sources_exception_comes_through_as_it_is() -> None:
    notes, cause = Notebook(), ValueError("cause")
    boom = Boom("with sk-secret text")
    boom.__cause__ = cause
    caught: BaseException | None = None
    try:
        async for _ in recorded(source([1], boom), notes):
            pass
    except Boom as error:
        caught = error
    assert caught is boom
    assert frames(boom)[-1] == "source", "it still ends where it was raised"
    assert (boom.__cause__, boom.__context__, boom.args) == (cause, None, ("with sk-secret text",))
    assert notes.marks == [mark("failed", 1, error="Boom", message="with sk-secret text")]
    assert notes.told[-1] == mark("failed", 1, error="Boom"), "in mode metadata without its text"


def test_the_same_for_plain_generators_and_what_they_return() -> None:
    notes, boom = Notebook(), Boom()
    with pytest.raises(Boom) as caught:
        list(recorded_sync(plain([1], boom), notes))
    assert caught.value is boom
    assert frames(boom)[-1] == "plain"
    assert boom.__context__ is None

    def delegate() -> Generator[Any, Any, Any]:
        return (yield from recorded_sync(plain([1, 2]), notes))

    outer = delegate()
    assert [next(outer), next(outer)] == [1, 2]
    with pytest.raises(StopIteration) as stop:
        next(outer)
    assert stop.value.value == "returned"
    assert notes.marks == [mark("failed", 1, error="Boom", message=""), mark("finished", 2)]


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_exception_whose_text_raises_is_passed_on_all_the_same() -> None:
    notes, mute = Notebook(), Mute()
    with pytest.raises(Mute) as caught:
        list(recorded_sync(plain([], mute), notes))
    assert caught.value is mute
    assert mute.__context__ is None
    assert notes.marks == [mark("failed", 0, error="Mute", message="")]


@pytest.mark.anyio
async def test_a_cancelled_consumer_is_cancelled_and_the_mark_says_so() -> None:
    notes = Notebook()
    waiting = asyncio.Event()

    async def endless() -> AsyncGenerator[int, None]:
        yield 1
        waiting.set()
        await asyncio.Event().wait()

    async def consume() -> None:
        async for _ in recorded(endless(), notes):
            pass

    async with asyncio.TaskGroup() as group:
        task = group.create_task(consume())
        await waiting.wait()
        task.cancel()
    assert task.cancelled()
    assert notes.marks == [mark("cancelled", 1)]


@pytest.mark.anyio
async def test_a_consumer_that_breaks_off_is_noticed_at_once() -> None:
    notes = Notebook()
    async for _ in recorded(source([1, 2, 3]), notes):
        break
    assert notes.marks == [mark("stopped", 1)]
    for _ in recorded_sync(plain([1, 2, 3]), notes):
        break
    assert notes.marks[1:] == [mark("stopped", 1)]


@pytest.mark.anyio
async def test_a_stream_that_nobody_looked_at_has_its_mark_too() -> None:
    notes = Notebook()
    await recorded(source([1]), notes).aclose()
    recorded_sync(plain([1]), notes)
    gc.collect()
    assert notes.marks == [mark("stopped", 0)] * 2


@pytest.mark.anyio
async def test_closing_the_trace_ends_the_streams_that_are_open() -> None:
    notes = Notebook()
    held = recorded(source([1, 2]), notes)
    assert await anext(held) == 1
    for end in list(notes.ends):
        end()
    assert notes.marks == [mark("stopped", 1)]
    await held.aclose()
    assert len(notes.marks) == 1


# --- what consumers say to the source


async def talking() -> AsyncGenerator[Any, Any]:
    heard: Any = "first"
    try:
        while True:
            try:
                heard = yield heard
            except Boom as error:
                heard = f"heard {error}"
    finally:
        heard = "closed"


def talking_plain() -> Generator[Any, Any, str]:
    heard: Any = "first"
    while True:
        try:
            heard = yield heard
        except Boom as error:
            heard = f"heard {error}"
        except GeneratorExit:
            return "closed"


@pytest.mark.anyio
async def test_what_is_sent_and_thrown_reaches_the_source() -> None:
    notes = Notebook()
    for stream in (talking(), recorded(talking(), notes)):
        assert await anext(stream) == "first"
        assert await stream.asend("sent") == "sent"
        assert await stream.athrow(Boom("thrown")) == "heard thrown"
        with pytest.raises(KeyError):
            await stream.athrow(KeyError("not caught"))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert notes.marks == [mark("failed", 3, error="KeyError", message="'not caught'")]


def test_the_same_for_plain_generators() -> None:
    notes = Notebook()
    given: list[Any] = []
    for stream in (talking_plain(), recorded_sync(talking_plain(), notes)):
        assert next(stream) == "first"
        assert stream.send("sent") == "sent"
        assert stream.throw(Boom("thrown")) == "heard thrown"
        given.append(stream.close())
    assert given[0] == given[1]
    assert notes.marks == [mark("stopped", 3)]


@pytest.mark.anyio
async def test_a_source_that_refuses_to_close_says_so_to_its_consumer() -> None:
    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    notes = Notebook()
    stream = recorded(stubborn(), notes)
    await anext(stream)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        await stream.aclose()
    assert [end["outcome"] for end in notes.marks] == ["failed"]


class Flaky:
    """An iterator, no generator, that goes on after it raised."""

    def __init__(self) -> None:
        self.at = 0

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at == 2:
            raise Boom("once")
        if self.at == 4:
            raise StopIteration
        return self.at

    async def __anext__(self) -> int:
        self.at += 1
        if self.at == 2:
            raise Boom("once")
        if self.at == 4:
            raise StopAsyncIteration
        return self.at


@pytest.mark.anyio
async def test_iterators_that_are_no_generators_work_and_may_go_on_after_a_failure() -> None:
    notes = Notebook()
    stream = recorded(Flaky(), notes)
    assert await anext(stream) == 1
    with pytest.raises(Boom):
        await anext(stream)
    assert [value async for value in stream] == [3]
    await stream.aclose()
    other = recorded_sync(Flaky(), notes)
    assert next(other) == 1
    with pytest.raises(Boom):
        next(other)
    assert list(other) == [3]
    other.close()
    assert [(end["outcome"], end["items"]) for end in notes.marks] == [("failed", 1), ("finished", 2)] * 2


# --- whatever becomes of the recording


def test_every_kind_of_trace_will_do(tmp_path: Any) -> None:
    for trace in (
        NullTrace("s"),
        Sender("/nowhere").open("s", "/", agentd="0", mode="plan", capture="content"),
        tracewriter.recording("t", env={"AGENTD_NO_TRACE": "1"}),
    ):
        assert list(recorded_sync([RESULT, 1, None], trace)) == [RESULT, 1, None]


def test_after_the_recording_ended_the_stream_goes_on() -> None:
    trace = ThreadSender("/nowhere", one_session=True).open("s", "/", tool="t")
    stream = recorded_sync(plain([1, 2, 3]), trace)
    assert next(stream) == 1
    trace.close(0)
    assert list(stream) == [2, 3]
    assert isinstance(trace, ThreadTrace)
    assert trace.status().state in ("off", "degraded")


def test_they_are_generators_to_whoever_asks() -> None:
    notes = Notebook()
    sync = recorded_sync(plain([]), notes)
    assert isinstance(sync, Generator)
    assert isinstance(sync, RecordedSync)
    assert isinstance(recorded(source([]), notes), AsyncGenerator)
    assert isinstance(recorded(source([]), notes), Recorded)
    assert sync.close() is None
