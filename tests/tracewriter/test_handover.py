"""From any thread to the one that sends: nothing is lost uncounted, memory is bounded, nobody waits."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from tests.tracewriter.harness import LIFE
from tracewriter.events import ModelRequestFinished, ToolCall, ToolOutputDelta
from tracewriter.handover import SMALL, Handover, Tally, weight

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def put(queue: Handover[str], size: int = 1, event: object = "e") -> bool:
    return queue.put(LIFE, event, size, NOW, "", "", "")


def test_a_tally_of_many_threads_is_exact() -> None:
    tally = Tally()

    def add() -> None:
        for _ in range(5000):
            tally.add()

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert 0 <= tally.value <= 40_000
    for thread in threads:
        thread.join()
    assert tally.value == tally.value == 40_000


def test_so_many_small_events_fit_and_no_more_until_some_are_taken() -> None:
    queue: Handover[str] = Handover(events=10)
    assert [put(queue) for _ in range(12)] == [True] * 10 + [False] * 2
    assert queue.take() is not None
    assert [put(queue) for _ in range(2)] == [True, False]


def test_large_events_need_an_allowance_that_comes_back_when_they_are_taken_over() -> None:
    queue: Handover[str] = Handover(size_bytes=40 * 1024)
    assert [put(queue, 16 * 1024) for _ in range(3)] == [True, True, False]
    assert put(queue, SMALL), "a small one needs none"
    item = queue.take()
    assert isinstance(item, tuple)
    queue.free(item[-1])
    assert put(queue, 16 * 1024)


def test_an_event_larger_than_all_of_it_takes_all_of_it() -> None:
    queue: Handover[str] = Handover(size_bytes=40 * 1024)
    assert put(queue, 1 << 30)
    assert not put(queue, 2 * SMALL)


def test_orders_keep_their_place() -> None:
    queue: Handover[str] = Handover()
    seen: list[object] = []
    put(queue, event="a")
    queue.order(lambda: seen.append("order"))
    put(queue, event="b")
    while (item := queue.take()) is not None:
        seen.append(item[1]) if isinstance(item, tuple) else item()
    assert seen == ["a", "order", "b"]


def test_after_the_end_nothing_is_taken_and_nothing_kept() -> None:
    queue: Handover[str] = Handover()
    put(queue)
    queue.clear()
    assert not put(queue)
    assert len(queue) == 0


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_an_event_holds_on_to_is_weighed_whole(size: int) -> None:
    text = "x" * size
    assert weight(ToolOutputDelta(0, text)) >= size
    call = ToolCall("c", "n", Raw(b'"%s"' % text.encode()))
    assert weight(ModelRequestFinished("", "", (call, call), "stop", None, None, None, None, 1.0)) >= 2 * size
    assert weight(object()) < 100
