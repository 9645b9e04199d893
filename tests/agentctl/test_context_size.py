"""A long run's record, made by the real recorder: what it costs on disk, and that every request comes out of it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw, Struct

from agentctl.context import Missing, outline
from agentctl.context_sources import rebuild
from agentd.messages import AssistantMessage, encode_message
from agentd.providers.stream import Opaque, Reasoning, StreamEvent
from agentd.tools.base import ToolOutput
from agentd.tools.registry import tools_for
from tests.agentctl.conversations import Recording, Script
from tests.agentctl.fake_daemon import SESSION
from tests.agentd.daemon_fakes import FakeTool, call, say
from tests.tracewriter.served import served
from tracewriter.events import (
    FileChangeApplied,
    ModelRequestFinished,
    ModelRequestStarted,
    RunExecuteStarted,
    ToolCallFinished,
    ToolCallStarted,
)
from tracewriter.payload_files import SessionPayloads
from tracewriter.reader import read, verify
from tracewriter.sender import Sender

STEPS = 60
KEY = "sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY"


class Load(Struct, frozen=True):
    """What each step's tool gives, and whether every fourth writes as much instead."""

    name: str
    chars: int
    writes: bool


_WORDS = ["alpha", "beta", "gamma", "delta", "value", "index", "result", "total"]


def words(rng: random.Random, chars: int) -> str:
    """Text that no two calls give."""
    lines: list[str] = []
    while sum(map(len, lines)) < chars:
        lines.append(f"    {' '.join(rng.choices(_WORDS, k=4))} = compute({rng.getrandbits(64):x})\n")
    return "".join(lines)[:chars]


class World:
    """A recording of two runs: one of 60 steps, and one that goes on with it."""

    def __init__(self, workspace: Path, load: Load) -> None:
        self._rng = random.Random(load.name)
        self._load = load
        self._step = 0
        self._written: dict[int, str] = {}
        self.recording = Recording(workspace)

    async def work(self) -> ToolOutput:
        """A file is read; with `writes` every fourth step makes one."""
        self._step += 1
        written = self._written.get(self._step)
        if written is None:
            return ToolOutput(words(self._rng, self._load.chars))
        diff = "".join(f"+{line}\n" for line in written.split("\n"))
        path = f"src/m{self._step}.py"
        return ToolOutput("written", changes=(FileChangeApplied(path, None, "b" * 64, f"+++ b/{path}\n{diff}"),))

    def turn(self, at: int) -> tuple[StreamEvent, ...]:
        """What the model does in a step."""
        fields = {"path": f"src/m{at}.py"}
        if self._load.writes and at % 4 == 0:
            fields["content"] = self._written[at] = words(self._rng, self._load.chars)
        arguments = msgspec.json.encode(fields).decode()
        signature = Raw(msgspec.json.encode({"signature": f"{self._rng.getrandbits(1200):x}"}))
        thought = Reasoning(words(self._rng, 120))
        return (thought, Opaque(signature), *say(words(self._rng, 60), call("read", arguments, f"call_{at}")))

    async def run(self) -> None:
        """Both runs, one after the other."""
        tools = [FakeTool("read", self.work, writes=True), *tools_for("build")]
        turns = tuple(self.turn(at) for at in range(1, STEPS))
        try:
            first = Script(f"fix it with {KEY}", (*turns, tuple(say("done"))), (), "be good. " * 200)
            await self.recording.run(first, *tools)
            await self.recording.run(
                msgspec.structs.replace(first, text="and now?", replies=(tuple(say("yes")),)), *tools
            )
        finally:
            self.recording.close()


def distinct(world: World) -> int:
    """How many bytes of different content there are: system prompt and tools, what was said, called and given, each once."""
    parts: set[bytes] = set()
    for event, *_ in world.recording.events:
        match event:
            case RunExecuteStarted(text=text) | ToolCallFinished(output=text):
                parts.add(text.encode())
            case ModelRequestFinished():
                parts |= {
                    event.text.encode(),
                    event.reasoning.encode(),
                    *(bytes(made.input) for made in event.tool_calls),
                }
            case _:
                pass
    request = world.recording.asked[0].request
    parts |= {request.system.encode(), *(msgspec.json.encode(spec) for spec in request.tools)}
    sent = (message for asked in world.recording.asked for message in asked.request.messages)
    parts |= {bytes(item) for message in sent if isinstance(message, AssistantMessage) for item in message.opaque}
    return sum(map(len, parts))


def again(world: World) -> tuple[int, int]:
    """Bytes that other kinds repeat: inputs of calls, which the model's reply has, and diffs, made of those."""
    events = [event for event, *_ in world.recording.events]
    inputs = sum(len(event.input) for event in events if isinstance(event, ToolCallStarted))
    return inputs, sum(len(msgspec.json.encode(e.diff)) for e in events if isinstance(e, FileChangeApplied))


def contexts(world: World) -> int:
    """Bytes of all contexts."""
    events = (event for event, *_ in world.recording.events)
    return sum(len(msgspec.json.encode(event.context)) for event in events if isinstance(event, ModelRequestStarted))


async def record(world: World, base: Path) -> Path:
    """The events through the real producer, socket and writer; the session's directory."""
    with served(base) as socket:
        sender = Sender(str(socket))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sender.run())
            trace = sender.open(SESSION, "/work", agentd="0.1.0", mode="build", capture="content")
            for event, run, op, parent in world.recording.events:
                trace.record(event, run=run, op=op, parent=parent)
                await asyncio.sleep(0)
            status = await trace.close(15)
            assert status.dropped == 0
            running.cancel()
    (directory,) = (base / "traces").glob(f"*/{SESSION}")
    return directory


def stored(directory: Path) -> Iterator[Path]:
    """The segments and payloads: what grows with the content (a seal is 32 bytes for 64 KiB)."""
    yield from directory.glob("*.jsonl")
    yield from directory.glob("payloads/*")


LOADS = [
    Load("reads", 3_300, writes=False),  # about 200,000 characters of context, every message in every request
    Load("trims", 6_000, writes=False),  # twice that: old results are trimmed in most requests
    Load("payloads", 18_000, writes=False),  # each output is a payload
    Load("edits", 3_300, writes=True),  # a quarter of the steps writes a file
]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_long_runs_record_is_no_larger_than_what_it_says(tmp_path: Path, load: Load) -> None:
    world = World(tmp_path, load)
    asyncio.run(world.run())
    last = world.recording.asked[STEPS - 1].request
    assert len(world.recording.asked) == STEPS + 1
    assert sum(len(encode_message(message)) for message in last.messages) > 180_000
    directory = asyncio.run(record(world, tmp_path))
    size, content = sum(path.stat().st_size for path in stored(directory)), distinct(world)
    inputs, diffs = again(world)
    figures = f"{size:,} bytes for {content:,} of distinct content: {size / content:.3f}"
    print(f"{load.name}: {figures}; contexts {contexts(world):,}; again: inputs {inputs:,}, diffs {diffs:,}")
    # What tool.call.started and file.change.applied repeat is theirs, and none of it is in the other loads.
    assert size - (inputs + diffs if load.writes else 0) <= 1.5 * content
    assert not verify(directory).damaged
    check_requests(world, directory)


def check_requests(world: World, directory: Path) -> None:
    """First, middle, last, and that of the run after: as they were sent, but for the key."""
    with SessionPayloads(directory) as payloads:
        for at in (0, 1, STEPS // 2, STEPS - 1, STEPS):
            asked = world.recording.asked[at]
            told = outline(read(directory), payloads.find, asked.run, asked.number)
            assert told.chosen is not None
            request, damage = rebuild(told.chosen, lambda: read(directory), payloads.find)
            assert (told.damage, damage, request.missing) == (0, 0, [])
            sent = [encode_message(message) for message in asked.request.messages]
            found = [encode_message(message) for message in request.messages if not isinstance(message, Missing)]
            assert KEY.encode() in sent[0]
            assert b"[redacted:" in found[0]
            assert found[1:] == sent[1:]
            assert request.system == asked.request.system
            assert list(request.tools if isinstance(request.tools, tuple) else ()) == [
                Raw(msgspec.json.encode(tool)) for tool in asked.request.tools
            ]
