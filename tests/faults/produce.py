"""A producer as a process of its own: numbered events at a pace, reports on stdout, commands on stdin. See `Plan`.

Commands, a line each: `kick` (connect now) · `pace N` · `burst N` (at once) · `ends N` (run ends) · `flush S` · `close S` ·
`status`. Every command is answered by a report that names it; reports without a name come by themselves every `report_s`.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import time

import msgspec
from msgspec import Struct

from tracewriter.config import BUFFER_BYTES
from tracewriter.events import Event, PromptQueueObserved, RunExecuteFinished, Usage
from tracewriter.producer import Channel
from tracewriter.sender import Sender, SessionTrace


class Plan(Struct, frozen=True, kw_only=True):
    """What to do. pace: events a second in every session (0: only when told); count: then stop by itself (0: never)."""

    socket: str
    workspace: str
    sessions: tuple[str, ...] = ("s1",)
    pace: float = 1000
    size: int = 200
    count: int = 0
    buffer_bytes: int = BUFFER_BYTES
    resumed: bool = False
    first: int = 1
    content: str = ""
    uid: int = 0  # become this user first
    report_s: float = 0.02


class SessionReport(Struct, frozen=True):
    """One session as its producer knows it. acked: the highest acknowledged seq."""

    emitted: int
    acked: int
    recorded: int
    dropped: int
    state: str
    reason: str


class Report(Struct, frozen=True):
    """reply: the command this answers. slowest and p99.9 are of record(), in microseconds."""

    reply: str
    sessions: dict[str, SessionReport]
    raised: int
    slowest_us: float
    p999_us: float
    state: str
    reason: str
    buffered: int


class Run:
    """The program's state."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pace = plan.pace
        self.sender = Sender(plan.socket, buffer_bytes=plan.buffer_bytes)
        self.traces: list[tuple[SessionTrace, Channel]] = []
        self.number = plan.first - 1
        self.raised = 0
        self.times: list[int] = []
        self._text = "x" * plan.size

    def open(self) -> None:
        for session in self.plan.sessions:
            trace = self.sender.open(
                session,
                self.plan.workspace,
                agentd="test",
                mode="plan",
                capture="content",
                resumed=self.plan.resumed,
            )
            self.traces.append((trace, self.sender.producer.channels[-1]))

    def record(self, event: Event) -> None:
        for trace, _ in self.traces:
            started = time.perf_counter_ns()
            try:
                trace.record(event)
            except Exception:  # noqa: BLE001 - that none comes is what is measured
                self.raised += 1
            self.times.append(time.perf_counter_ns() - started)
        if len(self.times) > 200_000:
            del self.times[:100_000]

    def next(self) -> None:
        self.number += 1
        self.record(PromptQueueObserved("added", str(self.number), self._text))

    def report(self, reply: str = "") -> None:
        sessions = {}
        for trace, channel in self.traces:
            status = trace.status()
            sessions[trace.session] = SessionReport(
                status.emitted, channel.outbox.acked, status.recorded, status.dropped, status.state, status.reason
            )
        times = sorted(self.times) if reply else self.times[-1:]
        worst = times[-1] / 1000 if times else 0.0
        p999 = times[int(len(times) * 0.999)] / 1000 if times else 0.0
        whole = self.sender.status()
        buffered = self.sender.producer.budget.bytes
        report = Report(reply, sessions, self.raised, worst, p999, whole.state, whole.reason, buffered)
        os.write(1, msgspec.json.encode(report) + b"\n")

    async def obey(self, command: str) -> None:
        name, _, argument = command.partition(" ")
        match name:
            case "kick":
                self.sender.try_now()
            case "pace":
                self.pace = float(argument)
            case "burst":
                for _ in range(int(argument)):
                    self.next()
            case "ends":
                for number in range(int(argument)):
                    self.record(RunExecuteFinished("completed", Usage(), 0.0, (), (), (), float(number)))
            case "flush":
                for trace, _ in self.traces:
                    await trace.flush(float(argument or 2))
            case "close":
                self.pace = 0
                async with asyncio.TaskGroup() as group:
                    for trace, _ in self.traces:
                        group.create_task(trace.close(float(argument or 2)))
            case _:
                pass
        self.report(command)

    async def work(self) -> None:
        """Keep to the pace by the clock: what a slow turn left undone is made up for in the next."""
        due, then = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            due += (now - then) * self.pace
            then = now
            while due >= 1:
                due -= 1
                if self.plan.count and self.number >= self.plan.count:
                    self.pace = due = 0
                else:
                    self.next()
            await asyncio.sleep(0.002)

    async def tell(self) -> None:
        while True:
            if select.select([], [1], [], 0)[1]:  # a test that does not look must not hold the producer up
                self.report()
            await asyncio.sleep(self.plan.report_s)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        commands: asyncio.Queue[str] = asyncio.Queue()
        rest = b""

        def readable() -> None:
            nonlocal rest
            data = os.read(0, 65536)
            if not data:
                os._exit(0)
            *lines, rest = (rest + data).split(b"\n")
            for text in lines:
                commands.put_nowait(text.decode())

        loop.add_reader(0, readable)
        while True:
            await self.obey(await commands.get())


async def main(plan: Plan) -> None:
    if plan.uid:
        os.setgroups([])
        os.setgid(plan.uid)
        os.setuid(plan.uid)
    run = Run(plan)
    run.open()
    if plan.content:
        from tests.faults.contents import CONTENTS

        for event in CONTENTS[plan.content]:
            run.record(event)
    async with asyncio.TaskGroup() as group:
        group.create_task(run.sender.run())
        group.create_task(run.work())
        group.create_task(run.tell())
        group.create_task(run.listen())


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
