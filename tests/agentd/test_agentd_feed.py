from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.feed import MAX_RING_EVENTS, SMALL_RING_BYTES, Feed, RingBudget
from agentd.protocol import SessionDelta
from tests.agentd.daemon_fakes import ListSink


def feed() -> Feed:
    return Feed("s", "life", RingBudget())


def publish(to: Feed, count: int) -> None:
    for _ in range(count):
        to.publish(Raw(b'{"n":%d}' % (to.newest + 1)))


def seen(sink: ListSink) -> list[object]:
    """Numbers of events, ("lagged", from, to) for gaps, texts of deltas."""
    out: list[object] = []
    for line in sink.lines:
        assert line.endswith(b"\n")
        message = msgspec.json.decode(line)
        params = message["params"]
        if message["method"] == "session/event":
            assert params["cursor"] == f"life:{params['record']['n']}"
            out.append(params["record"]["n"])
        elif message["method"] == "session/lagged":
            out.append(("lagged", params["from"], params["to"]))
        else:
            out.append(params["text"])
    return out


def test_a_subscriber_gets_what_happens_from_now_on() -> None:
    source, sink = feed(), ListSink()
    publish(source, 2)
    source.subscribe(sink, None)
    publish(source, 2)
    source.publish_delta(SessionDelta("s", "r", "o", "text", 0, "hi"))
    assert seen(sink) == [3, 4, "hi"]


def test_or_all_that_is_in_memory_or_what_came_after_a_cursor() -> None:
    source, all_of_it, after = feed(), ListSink(), ListSink()
    publish(source, 3)
    source.subscribe(all_of_it, "")
    source.subscribe(after, "life:2")
    assert (seen(all_of_it), seen(after)) == ([1, 2, 3], [3])


def test_a_cursor_of_an_earlier_daemon_or_nonsense_gives_all_of_this_ones_events() -> None:
    for cursor in ("other:2", "x", "life:", "life:-1", "life:²", "life:" + "9" * 50):
        source, sink = feed(), ListSink()
        publish(source, 2)
        source.subscribe(sink, cursor)
        assert seen(sink) == [1, 2], cursor


def test_what_is_no_longer_in_memory_is_named_first() -> None:
    source, sink = feed(), ListSink()
    publish(source, MAX_RING_EVENTS + 10)
    source.subscribe(sink, "life:3")
    assert seen(sink)[:2] == [("lagged", "life:4", "life:10"), 11]


def test_a_slow_subscriber_is_told_what_it_missed_and_others_are_not_held_up() -> None:
    source, slow, quick = feed(), ListSink(room=2), ListSink()
    subscription = source.subscribe(slow, None)
    source.subscribe(quick, None)
    publish(source, 5)
    slow.room = 10
    subscription.resume()
    publish(source, 1)
    assert seen(slow) == [1, 2, ("lagged", "life:3", "life:5"), 6]
    assert seen(quick) == [1, 2, 3, 4, 5, 6]


@given(st.lists(st.one_of(st.just("event"), st.just("resume"), st.integers(0, 3)), max_size=60))
def test_every_event_is_delivered_or_named_as_missing_exactly_once(steps: list[str | int]) -> None:
    source, sink = feed(), ListSink(room=0)
    subscription = source.subscribe(sink, None)
    for step in steps:
        if step == "event":
            publish(source, 1)
        elif step == "resume":
            subscription.resume()
        else:
            sink.room = int(step)
    sink.room = 10
    subscription.resume()
    assert list(covered(seen(sink))) == list(range(1, source.newest + 1))


def covered(items: Iterable[object]) -> Iterable[int]:
    for item in items:
        if isinstance(item, tuple):
            yield from range(int(item[1].split(":")[1]), int(item[2].split(":")[1]) + 1)
        else:
            assert isinstance(item, int)
            yield item


def test_memory_is_bounded_for_one_session_and_for_all() -> None:
    budget = RingBudget(limit_bytes=1_000_000)
    feeds = [Feed(f"s{n}", "life", budget) for n in range(20)]
    for _ in range(30):
        for one in feeds:
            one.publish(Raw(b'"%s"' % (b"x" * 10_000)))
    assert budget.held_bytes <= 1_000_000 + len(feeds) * SMALL_RING_BYTES
    for one in feeds:
        one.close()
    assert budget.held_bytes == 0
