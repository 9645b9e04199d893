"""Whatever was said, failed, trimmed, left out or begun again: from the records comes the request that the provider got."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from agentctl.context import Missing, Request, outline
from agentctl.context_sources import rebuild
from agentd.messages import encode_message
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
from tests.agentd.daemon_fakes import call
from tracewriter.events import Failure, ModelRequestStarted

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


def check_honest(request: Request, sent: ModelRequest) -> None:
    """Every part is as it was sent or named as missing."""
    assert len(request.messages) == len(sent.messages)
    for found, message in zip(request.messages, sent.messages, strict=True):
        assert isinstance(found, Missing) or encode_message(found) == encode_message(message)
    assert isinstance(request.system, Missing) or request.system == sent.system
    assert isinstance(request.tools, Missing) or len(request.tools) == len(sent.tools)
