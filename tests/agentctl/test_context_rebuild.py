"""Whatever was said, failed, trimmed, left out or begun again: from the records comes the request that the provider got."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from agentctl.commands.trace_context import as_json
from agentctl.context import MAX_REQUESTS, TOO_LONG, Missing, Request, outline
from agentctl.context_sources import rebuild
from agentd.messages import UserMessage, encode_message
from agentd.providers.stream import (
    Failed,
    Finished,
    ModelRequest,
    Opaque,
    Reasoning,
    Refusal,
    StreamEvent,
    Text,
    UsageReported,
)
from tests.agentctl.conversations import Recording, Script, no_payload
from tests.agentd.daemon_fakes import call, say
from tracewriter.events import Failure, ModelRequestStarted
from tracewriter.findings import Found
from tracewriter.scan import parse_record

DOWN = Failure("unreachable", "could not reach the server", "start it")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).flatmap(
    lambda piece: st.integers(0, 120).map(lambda times: piece * times)
)
arguments = st.sampled_from(["{}", '{"n":1}', '{"n":2}']) | texts.map(
    lambda text: msgspec.json.encode({"text": text}).decode()
)
opaque = st.sampled_from([b'{"signature":"' + b"s" * 200 + b'"}', b"{}", b'{"reasoning_opaque":"x"}'])


@st.composite
def replies(draw: st.DrawFn) -> tuple[StreamEvent, ...]:
    """One answer: words, reasoning, perhaps calls (so that some repeat), perhaps what goes back, perhaps a failure."""
    pieces: list[StreamEvent] = [Reasoning(draw(texts))] if draw(st.booleans()) else []
    pieces += [Text(draw(texts))] if draw(st.integers(0, 3)) else [Refusal(draw(texts))]
    pieces += [Opaque(Raw(draw(opaque))) for _ in range(draw(st.integers(0, 2)))]
    names = draw(st.lists(st.sampled_from("abw"), max_size=4))
    pieces += [call(name, draw(arguments), draw(st.sampled_from(["", "c1", "c2", "x" * 300]))) for name in names]
    pieces.append(UsageReported(None))
    failed = draw(st.integers(0, 9)) == 0
    return (*pieces, Failed(DOWN) if failed else Finished("tool_calls" if names else "stop", "x"))


scripts = st.builds(
    Script,
    texts,
    st.lists(replies(), min_size=1, max_size=9).map(tuple),
    st.lists(texts, min_size=1, max_size=8).map(tuple),
    st.sampled_from(["be good", "be good. " * 20]),
    st.sampled_from([6_000, 9_000, 15_000, 200_000]),
    st.none() | st.integers(1, 40),
)


def rebuilt(recording: Recording, run: str, number: int, without: tuple[int, ...] = ()) -> Request:
    told = outline(recording.read(without), no_payload, run, number)
    assert told.chosen is not None
    return rebuild(told.chosen, lambda: recording.read(without), no_payload)[0]


def is_whole(request: Request, sent: ModelRequest) -> bool:
    return (
        request.missing == []
        and [encode_message(m) for m in request.messages if not isinstance(m, Missing)]
        == [encode_message(m) for m in sent.messages]
        and request.system == sent.system
        and request.tools == tuple(Raw(msgspec.json.encode(tool)) for tool in sent.tools)
    )


async def recorded_more(recording: Recording, script: Script, workspace: str) -> None:
    recording.reopen(Path(workspace))
    try:
        await recording.run(script)
    finally:
        recording.close()


async def recorded(scripts: list[tuple[Script, bool]], workspace: str) -> Recording:
    recording = Recording(Path(workspace))
    try:
        for script, restart in scripts:
            if restart:
                recording.restart()
            await recording.run(script)
    finally:
        recording.close()
    return recording


# A few of each kind are in every example: it is the conversation's length that finds mistakes.
@settings(max_examples=60)
@given(st.lists(st.tuples(scripts, st.integers(0, 4).map(lambda n: n == 0)), min_size=1, max_size=4))
def test_every_request_is_rebuilt_from_the_records_as_the_provider_got_it(script: list[tuple[Script, bool]]) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        recording = asyncio.run(recorded(script, workspace))
    for asked in recording.asked:
        request = rebuilt(recording, asked.run, asked.number)
        assert is_whole(request, asked.request), (asked, request)
        assert request.line.count == len(asked.request.messages)


def test_the_same_message_twice_in_one_request_is_given_once(tmp_path: Path) -> None:
    again = Script("the very same words, long enough for a reference", ((Failed(DOWN),),), ())
    other = msgspec.structs.replace(again, text="other words")
    recording = asyncio.run(recorded([(again, False), (again, False), (other, True)], str(tmp_path)))
    asked = recording.asked[-1]
    assert len(asked.request.messages) == 3
    assert is_whole(rebuilt(recording, asked.run, asked.number), asked.request)
    assert recording.lines[-3].count(b"the very same words") == 1


@settings(max_examples=40)
@given(st.lists(st.tuples(scripts, st.just(False)), min_size=2, max_size=3), st.data())
def test_a_request_whose_records_are_lost_says_so_and_is_right_in_all_else(
    script: list[tuple[Script, bool]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        recording = asyncio.run(recorded(script, workspace))
    seqs = st.integers(1, len(recording.lines))
    without = tuple(data.draw(st.sets(seqs, min_size=1, max_size=5)))
    found = 0
    for run in dict.fromkeys(asked.run for asked in recording.asked):
        for line in outline(recording.read(without), no_payload, run).lines:
            sent = next((asked.request for asked in recording.asked if asked.op == line.op), None)
            if sent is not None:  # else it was cut off before the provider was asked
                check_honest(rebuilt(recording, run, line.number, without), sent)
                found += 1
    started = [seq for seq, (event, *_) in enumerate(recording.events, 1) if isinstance(event, ModelRequestStarted)]
    assert found >= len(recording.asked) - len(set(started) & set(without))


numbers = st.sampled_from([-1, 0, 1, 2, 3, 5, 100_001, 2**63, 10**30])
ops = st.integers(0, 40).map(lambda number: f"{number:016x}")
entries: st.SearchStrategy[object] = st.one_of(
    st.fixed_dictionaries(
        {"same_as": ops | st.just("r")}, optional={"at": numbers, "opaque": st.lists(st.just({}), max_size=2)}
    ),
    st.just({"role": "user", "text": "x"}),
    st.sampled_from([None, 1, "x", [], {}, {"role": "tool"}, {"role": "assistant", "text": 1}, {"same_as": 1}]),
)
hostile = st.fixed_dictionaries(
    {"keep": numbers, "messages": st.lists(entries, max_size=5), "chars": numbers},
    optional={
        "count": numbers,
        "since": ops,
        "replaced": st.lists(st.tuples(numbers, entries), max_size=3),
        "system": st.just("s"),
        "system_as": ops,
        "tools": st.lists(entries, max_size=2),
        "tools_as": ops,
    },
)


@given(st.lists(hostile, min_size=5, max_size=5))
def test_whatever_a_trace_says_of_a_context_something_is_shown_of_it(contexts: list[dict[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        calls = tuple(tuple(say("more", call("a", f'{{"n":{n}}}', f"c{n}"))) for n in range(4))
        recording = asyncio.run(recorded([(Script("go", (*calls, tuple(say("done"))), ("out",)), False)], workspace))
    left = iter(contexts)
    for at, line in enumerate(recording.lines):
        record = msgspec.json.decode(line)
        if record["event"] == "model.request.started":
            record["data"]["context"] = next(left)
            recording.lines[at] = json.dumps(record).encode()
    run = recording.asked[0].run
    told_of = outline(recording.read(), no_payload, run).lines
    assert len(told_of) == 5
    for one in told_of:
        request = rebuilt(recording, run, one.number)
        assert as_json("s", run, request, None)
        # Nothing is invented: each message is a record's or the hostile context's own.
        told = {message.text for message in request.messages if not isinstance(message, Missing)}
        assert told <= {"go", "more", "done", "out", "x"}


def check_honest(request: Request, sent: ModelRequest) -> None:
    """Every part is as it was sent or named as missing."""
    assert len(request.messages) == len(sent.messages)
    for found, message in zip(request.messages, sent.messages, strict=True):
        assert isinstance(found, Missing) or encode_message(found) == encode_message(message)
    assert isinstance(request.system, Missing) or request.system == sent.system
    assert isinstance(request.tools, Missing) or len(request.tools) == len(sent.tools)


def test_what_is_longer_than_may_be_held_is_left_out_message_by_message(tmp_path: Path) -> None:
    recording = asyncio.run(recorded([(Script("p" * 900, (tuple(say("r" * 900)),), ()), False)], str(tmp_path)))
    recording.restart()
    recording.history = (*recording.history, UserMessage("w" * 900), UserMessage("short"))
    asyncio.run(recorded_more(recording, Script("end", (tuple(say("done")),), ()), str(tmp_path)))
    asked = recording.asked[-1]
    told = outline(recording.read(), no_payload, asked.run, limit_bytes=2_500)
    assert told.chosen is not None
    request, _ = rebuild(told.chosen, recording.read, no_payload, limit_bytes=2_500)
    assert [part == Missing(TOO_LONG) for part in request.messages].count(True) == 1
    others = zip(request.messages, asked.request.messages, strict=True)
    assert all(part == message for part, message in others if not isinstance(part, Missing))


def test_what_refers_to_longer_records_than_may_be_held_is_left_out_too(tmp_path: Path) -> None:
    recording = asyncio.run(
        recorded(
            [(Script("p" * 900, (tuple(say("r" * 900, call("a"))), tuple(say("x"))), ("o",)), False)], str(tmp_path)
        )
    )
    asked = recording.asked[-1]
    told = outline(recording.read(), no_payload, asked.run)
    assert told.chosen is not None
    request, _ = rebuild(told.chosen, recording.read, no_payload, limit_bytes=1_500)
    assert request.messages[:2] == (asked.request.messages[0], Missing(TOO_LONG))


def test_a_request_that_a_newer_version_recorded_otherwise_is_told_and_those_after_it_say_so(tmp_path: Path) -> None:
    script = Script("p", (tuple(say("r", call("a"))), tuple(say("x"))), ("o",))
    recording = asyncio.run(recorded([(script, False)], str(tmp_path)))
    first, second = (at for at, line in enumerate(recording.lines) if b"model.request.started" in line)
    record = msgspec.json.decode(recording.lines[first])
    recording.lines[first] = json.dumps({**record, "data": {"context": "otherwise"}}).encode()
    run = recording.asked[0].run
    assert [line.count for line in outline(recording.read(), no_payload, run).lines] == [None, 3]
    assert len(rebuilt(recording, run, 1).missing) == 3
    after = rebuilt(recording, run, 2)
    assert [isinstance(message, Missing) for message in after.messages] == [True, False, False]
    assert second > first


def test_a_list_of_requests_is_bounded_and_says_how_many_more_there_are() -> None:
    head = '"ts":"2026-11-29T20:45:00Z","event":"model.request.started","session":"s","run":"r"'
    lines = [f'{{"seq":{seq},{head},"op":"{seq}","data":{{}}}}'.encode() for seq in range(1, MAX_REQUESTS + 4)]
    found = (Found(record[0], line, 1, 0, "verified", record[1]) for line in lines if (record := parse_record(line)))
    told = outline(found, no_payload, "r")
    assert (len(told.lines), told.more) == (MAX_REQUESTS, 3)
    assert told.chosen is not None
    assert told.chosen.line.number == MAX_REQUESTS + 3
