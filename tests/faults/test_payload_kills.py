"""SIGKILL the writer while bodies are on their way: the next one has every record once, and every body that one names, whole."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from msgspec import Raw

from tests.faults.harness import WORKSPACE, Lab
from tests.tracewriter.harness import broken_references, damage
from tracewriter import jsonl, reader
from tracewriter.bodies import with_bodies
from tracewriter.events import Event, ToolCallFinished, ToolCallStarted, ToolOutputDelta, event_of
from tracewriter.findings import Found
from tracewriter.payload_files import PayloadFiles
from tracewriter.sender import Sender, SessionTrace

SESSIONS = ("s1", "s2", "s3")
KILLS = 6


def event(number: int, chance: random.Random) -> Event:
    """One in two has a body, one in four of these the same as others."""
    size = chance.choice([10, 300, 3000, 20_000, 70_000, 400_000])
    text = f"number {number if chance.random() < 0.75 else 0} says it\n" * (size // 20 + 1)
    match number % 3:
        case 0:
            return ToolCallStarted(str(number), "name", jsonl.raw({"text": text, "list": [text, number]}))
        case 1:
            return ToolCallFinished(str(number), "name", text, False, 1.0)
        case _:
            return ToolOutputDelta(number, text)


def recorded(directory: Path) -> list[Event]:
    """The events of a session that were ours, bodies and all, in order."""
    dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    files = PayloadFiles(dir_fd)
    try:
        items = list(with_bodies(reader.read(directory), files.find, lambda _: True))
    finally:
        files.close()
        os.close(dir_fd)
    found = [event_of(item.record.event, item.record.data) for item in items if isinstance(item, Found)]
    return [item for item in found if isinstance(item, ToolCallStarted | ToolCallFinished | ToolOutputDelta)]


def plain(events: list[Event]) -> list[object]:
    return [
        [bytes(v) if isinstance(v, Raw) else v for v in map(item.__getattribute__, item.__struct_fields__)]
        for item in events
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_reference_resolves_after_kills_in_the_middle_of_bodies(seed: int, lab: Lab) -> None:
    chance = random.Random(seed)
    given: dict[str, list[Event]] = {session: [] for session in SESSIONS}
    killed_midway = 0
    writer = lab.writer()
    sender = Sender(str(lab.socket))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        traces: list[SessionTrace] = [
            sender.open(session, WORKSPACE, agentd="t", mode="plan", capture="content") for session in SESSIONS
        ]
        for _ in range(KILLS):
            for number in range(36):
                trace = chance.choice(traces)
                given[trace.session].append(event(number, chance))
                trace.record(given[trace.session][-1])
                await asyncio.sleep(chance.choice([0, 0, 0, 0.001, 0.004]))
            killed_midway += sum(bool(channel.outbox.frames) for channel in sender.producer.channels) > 0
            writer.kill()
            writer = lab.writer()
            await asyncio.sleep(0.01)  # the end of the old connection is read: a FLUSH said on it would not be answered
            sender.try_now()
            for trace in traces:
                await trace.flush(10)
        states = [await trace.close(10) for trace in traces]
        task.cancel()
    assert [(state.dropped, state.emitted - state.recorded) for state in states] == [(0, 0)] * len(SESSIONS)
    assert killed_midway > 0
    writer.stop()
    for session in SESSIONS:
        directory = lab.directory(session)
        verdict = reader.verify(directory)
        assert damage(verdict) == []
        assert broken_references(directory) == []
        assert plain(recorded(directory)) == plain(given[session])
        assert len(list((directory / "payloads").iterdir())) > 10
