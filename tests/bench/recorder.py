"""How fast the recorder is, as ratios in one run: `python -m tests.bench.recorder [--runs 5] [--json]`.

Measured, each as the median of the runs, for events of about 300 B and 4 KB:
  writer     batches that are encoded already, through the socket into the files (redaction, seals and everything else on),
             against a bare loop of write(2) of the same batches into one file on the same disk, and against a bare relay:
             a process that only receives the same bytes and writes them; sessions are open and have their files by then, and
             what opening them and writing their first batch costs is a figure of its own
  end to end `record()` to acknowledged on disk, with the CPU of both processes, against logging.FileHandler with the same JSON
  record()   CPU of the call against building and encoding the same record

Absolute numbers are printed for orientation; only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tracewriter.clock import SYSTEM_CLOCK
from tracewriter.events import NAMES, Record, ToolCallFinished
from tracewriter.outbox import Budget, Outbox
from tracewriter.protocol import FrameDecoder, Hello, Kind, Open, encode
from tracewriter.reader import verify
from tracewriter.sender import Sender

SIZES = {"300 B": 300, "4 KB": 4096}
BATCH_BYTES = 64 * 1024
_MIN_LINES_BYTES = 512 * 1024  # of each session: its first batch is not all of it


def event_of_size(line_bytes: int) -> ToolCallFinished:
    """An event whose stored line is about so long: source code, mostly."""
    text = "def total(values):\n    return sum(value for value in values if value is not None)\n\n" * (line_bytes // 40)
    return ToolCallFinished("call_1", "read_file", text[: max(1, line_bytes - 252)], False, 1.25)


def lines(event: ToolCallFinished, session: str, count: int) -> list[bytes]:
    """Whole records, encoded once."""
    now = SYSTEM_CLOCK.now()
    name = NAMES[type(event)]
    return [
        msgspec.json.encode(Record(seq=seq, ts=now, event=name, session=session, run="f" * 32, op="0" * 16, data=event))
        + b"\n"
        for seq in range(1, count + 1)
    ]


def batches(all_lines: list[bytes]) -> list[tuple[int, int, bytes]]:
    """(first, count, body) of batches of 128 events or 64 KiB."""
    out: list[tuple[int, int, bytes]] = []
    first, size, start = 1, 0, 0
    for index, line in enumerate(all_lines):
        size += len(line)
        if size >= BATCH_BYTES or index + 1 - start == 128 or index + 1 == len(all_lines):
            out.append((first, index + 1 - start, b"".join(all_lines[start : index + 1])))
            first, size, start = index + 2, 0, index + 1
    return out


class Writer:
    """A tracewriter process over a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.socket = str(directory / "w.sock")
        self.root = directory / "traces"
        command = [sys.executable, "-m", "tracewriter", "--socket", self.socket, "--root", str(self.root)]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 10
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(self.socket)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().split("\n"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        return 0.0

    def stop(self) -> None:
        """End it in order."""
        self.process.terminate()
        self.process.wait(10)


def bare_write(directory: Path, work: list[tuple[int, int, bytes]]) -> float:
    """Seconds of a loop of write(2) of the same batches. The file stays until the end, as the writer's do: memory that the
    page cache takes for the first time costs several times what recycled pages do, and both have to pay for it."""
    fd = os.open(directory / f"bare-{time.monotonic_ns()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    bodies = [body for _, _, body in work]
    started = time.perf_counter()
    for body in bodies:
        os.write(fd, body)
    elapsed = time.perf_counter() - started
    os.close(fd)
    return elapsed


def bare_relay(directory: Path, work: list[tuple[int, int, bytes]]) -> float:
    """Seconds of the least that a separate process can do: receive the same batches from a socket and write(2) them."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
    buffer = memoryview(bytearray(256 * 1024))
    fd = os.open(directory / f"relay-{time.monotonic_ns()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        theirs.close()
        for _, _, body in work:
            ours.sendall(body)
        os._exit(0)
    ours.close()
    while count := theirs.recv_into(buffer):
        os.write(fd, buffer[:count])
    elapsed = time.perf_counter() - started
    os.waitpid(pid, 0)
    theirs.close()
    os.close(fd)
    return elapsed


def through_writer(
    writer: Writer, sessions: int, work: list[tuple[int, int, bytes]], names: list[str]
) -> tuple[float, float]:
    """(seconds from OPEN to the first batch's ACK, seconds from the second batch to the last ACK), all sessions together, from
    as many channels of one connection."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
    sock.connect(writer.socket)
    decoder = FrameDecoder()
    sock.sendall(encode(Kind.HELLO, body=Hello(os.urandom(8).hex(), 1)))
    frames = [
        encode(Kind.EVENTS, channel=channel, first=first, count=count, body=body)
        for first, count, body in work
        for channel in range(1, sessions + 1)
    ]

    def wait_for(kind: Kind, seq: int) -> None:
        done: set[int] = set()
        while len(done) < sessions:
            for frame in decoder.feed(sock.recv(65536)):
                if frame.kind is kind and frame.first >= seq:
                    done.add(frame.channel)

    def send(frames: list[bytes]) -> int:
        pid = os.fork()
        if pid == 0:
            for data in frames:
                sock.sendall(data)
            os._exit(0)
        return pid

    started = time.perf_counter()
    for channel, name in enumerate(names, 1):
        sock.sendall(encode(Kind.OPEN, channel=channel, body=Open(name, "/bench")))
    wait_for(Kind.OPENED, 1)
    pid = send(frames[:sessions])
    wait_for(Kind.ACK, work[0][1])
    os.waitpid(pid, 0)
    opened = time.perf_counter() - started
    started = time.perf_counter()
    pid = send(frames[sessions:])
    wait_for(Kind.ACK, work[-1][0] + work[-1][1] - 1)
    elapsed = time.perf_counter() - started
    os.waitpid(pid, 0)
    sock.close()
    return opened, elapsed


async def end_to_end(writer: Writer, event: ToolCallFinished, count: int, session: str) -> tuple[float, float]:
    """(seconds, CPU seconds of both processes) from the first record() to everything acknowledged."""
    sender = Sender(writer.socket)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        trace = sender.open(session, "/bench", agentd="bench", mode="plan", capture="content")
        await trace.flush(5)
        cpu = time.process_time() + writer.cpu_s()
        started = time.perf_counter()
        for number in range(count):
            trace.record(event, run="f" * 32, op="0" * 16)
            if number % 128 == 127:
                while sender.producer.budget.bytes > 8 * 1024 * 1024:  # noqa: ASYNC110 - the sender has no event for it
                    await asyncio.sleep(0.0005)
                await asyncio.sleep(0)
        status = await trace.flush(30)
        elapsed = time.perf_counter() - started
        cpu = time.process_time() + writer.cpu_s() - cpu
        if status.recorded != count + 1 or status.dropped:
            raise SystemExit(f"the run is not valid: {status}")
        await trace.close(10)
        task.cancel()
    return elapsed, cpu


def with_logging(directory: Path, event: ToolCallFinished, count: int) -> tuple[float, float]:
    """(seconds, CPU seconds) of logging.FileHandler writing the same JSON."""
    path = directory / "logging"
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("bench")
    logger.addHandler(handler)
    data = {"id": event.id, "name": event.name, "output": event.output, "is_error": False, "duration_ms": 1.25}
    cpu, started = time.process_time(), time.perf_counter()
    for seq in range(1, count + 1):
        ts = SYSTEM_CLOCK.now().isoformat()
        logger.info(json.dumps({"seq": seq, "ts": ts, "event": "tool.call.finished", "session": "s", "data": data}))
    handler.close()
    result = time.perf_counter() - started, time.process_time() - cpu
    path.unlink()
    return result


def record_call(event: ToolCallFinished, count: int) -> float:
    """CPU of record() as a multiple of building and encoding the same record: same event, same time stamp, same line."""
    encode_into, name, text = msgspec.json.Encoder().encode_into, NAMES[type(event)], event.output

    def plain() -> None:
        buffer = bytearray()
        for seq in range(count):
            data = ToolCallFinished("call_1", "read_file", text, False, 1.25)
            now = SYSTEM_CLOCK.now()
            record = Record(seq=seq, ts=now, event=name, session="s" * 32, run="f" * 32, op="0" * 16, data=data)
            encode_into(record, buffer, -1)
            buffer += b"\n"
            if len(buffer) > BATCH_BYTES:
                buffer = bytearray()

    box = Outbox("s" * 32, SYSTEM_CLOCK, Budget(2**60, 2**59), resumed=False)

    def recorded() -> None:
        for _ in range(count):
            box.record(ToolCallFinished("call_1", "read_file", text, False, 1.25), run="f" * 32, op="0" * 16)
            if len(box.frames) > 2:  # as many as are on their way when the writer keeps up
                box.acknowledge(box.last)

    def cpu(work: Callable[[], None]) -> float:
        before = time.process_time()
        work()
        return time.process_time() - before

    return min(cpu(recorded) for _ in range(3)) / min(cpu(plain) for _ in range(3))


def touch_memory(directory: Path, megabytes: int) -> None:
    """Let the page cache take and give back as much as a round needs, so that every measurement finds recycled pages."""
    path = directory / "touch"
    with path.open("wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(bytes(1_000_000))
    path.unlink()


def run(size: int, runs: int, megabytes: int, directory: Path) -> dict[str, float]:
    """All figures for one event size."""
    event = event_of_size(size)
    line = lines(event, "x" * 32, 1)[0]
    count = megabytes * 1_000_000 // len(line)
    samples: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    for number in range(runs):
        home = directory / f"{size}-{number}"
        home.mkdir()
        writer = Writer(home)
        try:
            for sessions in (1, 16, 64, 256):
                names = [f"b{number}s{sessions}n{k}" for k in range(sessions)]
                # the bodies name another session than the channel: the writer does not decode them
                work = batches(lines(event, "x" * 32, max(count // sessions, _MIN_LINES_BYTES // len(line))))
                timed = work[1:] * sessions
                before, relayed = bare_write(home, timed), bare_relay(home, timed)
                opened, taken = through_writer(writer, sessions, work, names)
                after = bare_write(home, timed)
                note(f"open and first batch, {sessions} sessions, ms each", opened / sessions * 1e3)
                note(f"writer {sessions} sessions / write(2)", (before + after) / 2 / taken)
                note(f"writer {sessions} sessions / bare relay", relayed / taken)
            bare = bare_write(home, batches(lines(event, "x" * 32, count)))
            elapsed, cpu = asyncio.run(end_to_end(writer, event, count, f"e{number}"))
            logged, logged_cpu = with_logging(home, event, count)
            note("end to end, events/s", count / elapsed)
            note("end to end / write(2)", bare / elapsed)
            note("end to end / logging.FileHandler", logged / elapsed)
            note("CPU per event, us", cpu / count * 1e6)
            note("CPU of logging per event / ours", logged_cpu / cpu)
            note("record() / building and encoding", record_call(event, 20_000))
            note("writer RSS, MiB", writer.rss_mib())
        finally:
            writer.stop()
        for entry in (writer.root / p for p in os.listdir(writer.root)):
            verdict = verify(entry / f"e{number}")
            if verdict.damaged or verdict.records != count + 2:
                raise SystemExit(f"the trace does not verify: {verdict}")
        shutil.rmtree(home)
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="The recorder's speed as ratios in one run.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=60, help="of records in each measurement")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        touch_memory(Path(directory), arguments.megabytes * 40)
        figures = {
            name: run(size, arguments.runs, arguments.megabytes, Path(directory)) for name, size in SIZES.items()
        }
    load = os.getloadavg()[0]
    if arguments.json:
        print(json.dumps({"load": load, "figures": figures}))
        return 0
    print(f"medians of {arguments.runs} runs, {os.cpu_count()} cores, load {load:.1f}")
    for name in figures["300 B"]:
        print(f"{name:44}" + "".join(f"{size:>8}: {values[name]:12,.2f}" for size, values in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
