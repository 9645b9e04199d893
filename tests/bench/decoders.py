"""What decoding costs: `python -m tests.bench.decoders [--runs 7] [--piece-bytes 0] [--min-frames 1] [--memory-megabytes 100]`.

CPU time (process time) per data frame of our four decoders on the recorded streams, each stream in pieces of one frame as it
comes from a model that is thinking (or in pieces of --piece-bytes), beside
  - msgspec decoding the frames' data lines alone into Any: no framing, no events;
  - httpx-sse with json.loads, over the same bytes;
  - the wire's official SDK: its own client, asked for a stream, over a transport that hands it the same pieces from memory. What
    the same request costs with an empty answer is taken off, so that only what reading the frames costs is counted.
All contenders take turns in each run; ratios are of the same run, and the median of the runs counts. Streams that an SDK gives up
on are left out for all. Most recorded streams are short, and what a stream costs by itself (its end, its usage) is in our
figures: --min-frames keeps to longer ones. Targets: at most 2x of msgspec alone, at least 8x less than each SDK. Peers that are
not installed are named and left out: `pip install -e '.[judges]'`. Then memory: how much a decoder's process grows over a long
stream.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from agentd.providers.openai_chat_request import ChatQuirks
from agentd.providers.stream import Failed
from agentd.providers.wires import WIRES
from tests import wire_corpus
from tests.fake_provider_server import compose
from tests.fake_provider_streams import Answer

Pieces = list[bytes]
USAGE = {"stream_options": {"include_usage": True}}


class Work(Struct):
    """The streams of a wire, and their data lines."""

    streams: list[Pieces]
    lines: list[bytes]


def frames_of(body: bytes) -> Pieces:
    """A body in pieces of one frame each, line ends and all."""
    end = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    *whole, rest = body.split(end)
    return [piece + end for piece in whole] + ([rest] if rest else [])


def data_lines(body: bytes) -> list[bytes]:
    """What is JSON in the data fields."""
    lines = [line[5:].strip() for line in body.replace(b"\r", b"\n").split(b"\n") if line.startswith(b"data:")]
    return [line for line in lines if line[:1] == b"{"]


def bodies(wire: str) -> list[bytes]:
    """The recorded streams, or without them some of our own making."""
    if not wire_corpus.PRESENT:
        answer = Answer(text="some words and more of them " * 200, reasoning="thought " * 200)
        return [b"".join(compose(wire, answer, "m-1", USAGE))]
    return [wire_corpus.stream(wire, name)[0] for name in wire_corpus.names(f"streams/{wire}", ".expected.json")]


def pieces_of(body: bytes, size: int) -> Pieces:
    """One frame a piece, or pieces of a size."""
    return [body[at : at + size] for at in range(0, len(body), size)] if size else frames_of(body)


# --- contenders: each reads one stream to its end


def ours(wire: str) -> Callable[[Pieces], None]:
    """Our decoder."""
    make, quirks = WIRES[wire].decoder, ChatQuirks()

    def read(pieces: Pieces) -> None:
        decoder = make(quirks)
        feed = decoder.feed
        for piece in pieces:
            feed(piece)
        decoder.end()

    return read


def sse_and_json() -> Callable[[Pieces], None]:
    """httpx-sse and the standard library's json."""
    import httpx
    import httpx_sse

    class Body(httpx.SyncByteStream):
        def __init__(self, pieces: Pieces) -> None:
            self.pieces = pieces

        def __iter__(self) -> Iterator[bytes]:
            yield from self.pieces

    def read(pieces: Pieces) -> None:
        response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(pieces))
        for event in httpx_sse.EventSource(response).iter_sse():
            if event.data[:1] == "{":
                json.loads(event.data)

    return read


def transport(module: Any) -> Any:
    """A transport for a client of httpx or its like, that answers every request with its `pieces`."""

    class Body(module.SyncByteStream):  # type: ignore[misc]
        def __init__(self, pieces: Pieces) -> None:
            self.pieces = pieces

        def __iter__(self) -> Iterator[bytes]:
            yield from self.pieces

    class Memory(module.BaseTransport):  # type: ignore[misc]
        pieces: Pieces = []  # noqa: RUF012 - set before each request

        def handle_request(self, request: Any) -> Any:
            headers = {"content-type": "text/event-stream"}
            return module.Response(200, headers=headers, stream=Body(self.pieces), request=request)

    return Memory()


def httpx_of(client: type) -> Any:
    """The package that an SDK's client is built on."""
    for name in ("httpx2", "httpx"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if issubclass(client, module.Client):
            return module
    raise SystemExit(f"{client} is built on no httpx that is known here")


def openai_chat() -> Callable[[Pieces], None]:
    """openai's chat completions."""
    import openai

    memory = transport(httpx_of(openai.DefaultHttpxClient))
    client = openai.OpenAI(api_key="k", http_client=openai.DefaultHttpxClient(transport=memory))

    def read(pieces: Pieces) -> None:
        memory.pieces = pieces
        for _ in client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True):
            pass

    return read


def openai_responses() -> Callable[[Pieces], None]:
    """openai's responses."""
    import openai

    memory = transport(httpx_of(openai.DefaultHttpxClient))
    client = openai.OpenAI(api_key="k", http_client=openai.DefaultHttpxClient(transport=memory))

    def read(pieces: Pieces) -> None:
        memory.pieces = pieces
        for _ in client.responses.create(model="m", input="hi", stream=True):
            pass

    return read


def anthropic() -> Callable[[Pieces], None]:
    """anthropic's plain stream of events, without the helper that puts the message together."""
    import anthropic

    memory = transport(httpx_of(anthropic.DefaultHttpxClient))
    client = anthropic.Anthropic(api_key="k", http_client=anthropic.DefaultHttpxClient(transport=memory))

    def read(pieces: Pieces) -> None:
        memory.pieces = pieces
        messages = [{"role": "user", "content": "hi"}]
        for _ in client.messages.create(model="m", max_tokens=9, messages=messages, stream=True):
            pass

    return read


def gemini() -> Callable[[Pieces], None]:
    """google-genai's stream."""
    import httpx
    from google import genai

    memory = transport(httpx)
    client = genai.Client(api_key="k", http_options={"httpx_client": httpx.Client(transport=memory)})

    def read(pieces: Pieces) -> None:
        memory.pieces = pieces
        for _ in client.models.generate_content_stream(model="m", contents="hi"):
            pass

    return read


SDKS = {
    "openai-chat": ("openai SDK", openai_chat),
    "openai-responses": ("openai SDK", openai_responses),
    "anthropic": ("anthropic SDK", anthropic),
    "gemini": ("google-genai SDK", gemini),
}


# --- measuring


def cpu(work: Callable[[], None]) -> float:
    """Process seconds of one run of the work, repeated until the clock can tell."""
    times, spent = 0, 0.0
    while spent < 0.05:
        started = time.process_time()
        work()
        spent += time.process_time() - started
        times += 1
    return spent / times


def reads(whole: list[Pieces], read: Callable[[Pieces], None]) -> bool:
    """Whether a contender reads all of it without raising."""
    try:
        for pieces in whole:
            read(pieces)
    except Exception:  # noqa: BLE001 - whatever an SDK raises, it does not read this
        return False
    return True


def in_order(body: bytes, wire: str) -> bool:
    """Whether our decoder finds no error in it."""
    decoder = WIRES[wire].decoder(ChatQuirks())
    return not any(isinstance(event, Failed) for event in decoder.feed(body) + decoder.end())


def contenders(wire: str) -> dict[str, Callable[[Pieces], None]]:
    """Those that are installed, by name."""
    found = {"ours": ours(wire)}
    name, make = SDKS[wire]
    for peer, build in (("httpx-sse + json", sse_and_json), (name, make)):
        try:
            found[peer] = build()
        except ImportError as exc:
            print(f"left out: {peer} ({exc})", file=sys.stderr)
    return found


def measured(wire: str, runs: int, size: int, frames: int) -> dict[str, list[float]]:
    """Microseconds per frame by contender, a list of one number a run."""
    known = contenders(wire)
    whole = [body for body in bodies(wire) if in_order(body, wire) and len(data_lines(body)) >= frames]
    if not whole:
        raise SystemExit(f"{wire}: no stream of {frames} frames")
    whole = [body for body in whole if all(reads([pieces_of(body, size)], read) for read in known.values())]
    work = Work([pieces_of(body, size) for body in whole], [line for body in whole for line in data_lines(body)])
    print(f"{wire}: {len(work.streams)} streams, {len(work.lines)} frames, {sum(map(len, whole)) / 1e6:.2f} MB")
    decode_any = msgspec.json.Decoder().decode

    def alone() -> None:
        for line in work.lines:
            decode_any(line)

    def through(read: Callable[[Pieces], None], streams: list[Pieces]) -> Callable[[], None]:
        def run() -> None:
            for pieces in streams:
                read(pieces)

        return run

    empty: list[Pieces] = [[] for _ in work.streams]
    out: dict[str, list[float]] = {}
    for _ in range(runs):
        out.setdefault("msgspec alone", []).append(cpu(alone))
        for name, read in known.items():
            spent = cpu(through(read, work.streams))
            if "SDK" in name:
                spent -= cpu(through(read, empty))
            out.setdefault(name, []).append(spent)
    return {name: [each / len(work.lines) * 1e6 for each in times] for name, times in out.items()}


def report(figures: dict[str, list[float]]) -> None:
    """A line a contender: its own cost, and how ours stands to it."""
    mine = figures["ours"]
    for name, times in figures.items():
        ratio = statistics.median(their / my for their, my in zip(times, mine, strict=True))
        stands = "" if name == "ours" else f"  ours: {1 / ratio:5.2f}x of it, {ratio:6.2f}x less"
        print(f"  {name:20} {statistics.median(times):8.2f} us a frame{stands}")


# --- memory

GROWTH = """
import sys
from tests.bench.decoders import grown
print(*grown(sys.argv[1], int(sys.argv[2])))
"""


def resident() -> int:
    """This process's resident memory in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def endless(wire: str) -> tuple[bytes, bytes]:
    """The beginning of a stream, and a block of it that may come again and again: text."""
    answer = Answer(text="and so on, " * 4000, cut=True, piece_chars=44)
    frames = frames_of(b"".join(compose(wire, answer, "m-1", USAGE)))
    told = [number for number, frame in enumerate(frames) if b"and so on" in frame]
    return b"".join(frames[: told[0]]), b"".join(frames[told[0] : told[0] + 500])


def grown(wire: str, megabytes: int) -> tuple[float, float, float]:
    """How many MB a process grew while one decoder read a stream: at the worst moment, and at the end. And the MB that it read."""
    decoder = WIRES[wire].decoder(ChatQuirks())
    begin, block = endless(wire)
    decoder.feed(begin)
    for _ in range(20):
        decoder.feed(block)
    before = worst = resident()
    read = 0
    while read < megabytes * 1_000_000:
        for at in range(0, len(block), 16384):
            decoder.feed(block[at : at + 16384])
        read += len(block)
        worst = max(worst, resident())
    if decoder.ended:
        raise SystemExit(f"the {wire} decoder took the stream for over")
    return (worst - before) / 1e6, (resident() - before) / 1e6, read / 1e6


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="What decoding costs, as ratios in one run.")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--piece-bytes", type=int, default=0, help="0: one frame a piece")
    parser.add_argument("--min-frames", type=int, default=1, help="leave shorter streams out")
    parser.add_argument("--memory-megabytes", type=int, default=100, help="0: leave memory out")
    parser.add_argument("--wire", choices=list(WIRES), action="append")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # google's, of a word that its lists do not have
    print(f"load {os.getloadavg()[0]:.1f}; recorded streams: {'yes' if wire_corpus.PRESENT else 'no, our own'}")
    for wire in arguments.wire or WIRES:
        report(measured(wire, arguments.runs, arguments.piece_bytes, arguments.min_frames))
    for wire in (arguments.wire or WIRES) if arguments.memory_megabytes else ():
        command = [sys.executable, "-c", GROWTH, wire, str(arguments.memory_megabytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        worst, end, read = map(float, done.stdout.split())
        print(f"{wire}: over {read:.0f} MB of stream the process grew {worst:.2f} MB at worst, {end:.2f} MB at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
