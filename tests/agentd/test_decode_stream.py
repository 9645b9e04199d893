"""`agentd decode-stream`: recorded streams over a pipe in odd pieces, gzip, failures, and lines that come as the events do."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import random
import select
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd import decode_stream
from agentd.__main__ import main
from agentd.decode_stream import Options
from agentd.providers.wires import WIRES
from tests import wire_corpus

HELLO = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
USAGE = {
    "input_tokens": 3,
    "output_tokens": 2,
    "cache_read_tokens": None,
    "cache_write_tokens": None,
    "reasoning_tokens": None,
}
STREAMS = [(wire, name) for wire in WIRES for name in wire_corpus.names(f"streams/{wire}", ".expected.json")]
TYPES = {"text", "reasoning", "refusal", "opaque", "tool_call", "usage", "finish", "error", "summary"}

Lines = list[dict[str, Any]]


def parsed(output: bytes) -> Lines:
    assert output.endswith(b"\n")
    return [json.loads(line) for line in output.removesuffix(b"\n").split(b"\n")]


def decoded(body: bytes, wire: str = "openai-chat", *, piece: int = 1 << 16) -> Lines:
    """What the command writes for a body that comes in pieces of a size."""
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    written: list[bytes] = []
    decode_stream.decode(Options(wire), lambda _: pieces.pop(0) if pieces else b"", written.append)
    return parsed(b"".join(written))


def through_a_pipe(wire: str, body: bytes, path: pathlib.Path, capture: pytest.CaptureFixture[bytes]) -> Lines:
    """What the command prints for a body that comes through a FIFO in pieces of odd sizes."""
    sizes = random.Random(len(body))
    os.mkfifo(path)

    def feed() -> None:
        at = 0
        with path.open("wb", buffering=0) as pipe:
            while at < len(body):
                at += pipe.write(body[at : at + sizes.choice((1, 2, 3, 7, 61, 1021))]) or 0

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert main(["decode-stream", "--wire", wire, str(path)]) == 0
    feeder.join()
    return parsed(capture.readouterr().out)


@pytest.mark.parametrize(("wire", "name"), STREAMS)
def test_a_recorded_stream_gives_what_is_expected(
    wire: str, name: str, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    body, expected = wire_corpus.stream(wire, name)
    *events, summary = through_a_pipe(wire, body, tmp_path / "pipe", capsysbinary)
    assert wire_corpus.mismatches(expected, summary) == []
    assert {event["type"] for event in events} < TYPES
    assert events[-2]["type"] == "usage"
    assert events[-1]["type"] == ("error" if summary["error"] else "finish")
    for kind in ("text", "reasoning", "refusal"):
        assert "".join(event["text"] for event in events if event["type"] == kind) == summary[kind]
    assert events[-2]["usage"] == summary["usage"]
    run = [{key: event[key] for key in ("id", "name", "input")} for event in events if event["type"] == "tool_call"]
    assert run == [call for call in summary["tool_calls"] if "_raw" not in call["input"]]


def test_each_event_is_a_line_and_the_summary_is_the_last() -> None:
    assert decoded(HELLO) == [
        {"type": "text", "text": "Hel"},
        {"type": "text", "text": "lo"},
        {"type": "usage", "usage": USAGE},
        {"type": "finish", "stop_reason": "stop", "finish": "stop", "cut_tool_calls": []},
        {
            "type": "summary",
            "text": "Hello",
            "reasoning": "",
            "refusal": "",
            "tool_calls": [],
            "usage": USAGE,
            "stop_reason": "stop",
            "finish": "stop",
            "complete": True,
            "error": None,
        },
    ]


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_ends_early_is_decoded_and_its_summary_says_so(wire: str) -> None:
    assert decoded(b"", wire)[-1]["error"]["kind"] == "truncated"
    assert decoded(b"", wire)[-1]["complete"] is False


@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_gzip_is_recognised_and_a_cut_one_is_an_error(piece: int) -> None:
    packed = gzip.compress(HELLO)
    assert decoded(packed, piece=piece) == decoded(HELLO)
    summary = decoded(packed[: len(packed) // 2], piece=piece)[-1]
    assert summary["error"]["kind"] == "transport"
    damaged = packed[:12] + bytes([packed[12] ^ 0xFF]) + packed[13:]
    assert decoded(damaged, piece=piece)[-1]["error"] is not None


def test_a_gzip_recording_decodes_like_its_text() -> None:
    body, _ = wire_corpus.stream("anthropic", "prefill-stop-sequence-gzip")
    packed = (wire_corpus.ROOT / "streams/anthropic/prefill-stop-sequence-gzip.sse.gz").read_bytes()
    assert decoded(packed, "anthropic") == decoded(body, "anthropic")


@given(
    st.sampled_from(list(WIRES)),
    st.binary(max_size=300) | st.sampled_from([HELLO, b"\x1f", b"\x1f\x8b"]),
    st.integers(1, 99),
)
def test_any_bytes_give_events_an_end_and_a_summary(wire: str, body: bytes, piece: int) -> None:
    *events, summary = decoded(body, wire, piece=piece)
    assert [event["type"] for event in events[-2:]] in (["usage", "finish"], ["usage", "error"])
    assert summary["type"] == "summary"
    assert (summary["error"] is None) == (events[-1]["type"] == "finish")


def test_inline_thinking_is_split_when_asked(
    tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "think.sse"
    path.write_bytes(HELLO.replace(b"Hel", b"<think>Hm</think>Hel"))
    for options, reasoning in ((["--think-split"], "Hm"), ([], "")):
        assert main(["decode-stream", "--wire=openai-chat", *options, str(path)]) == 0
        assert parsed(capsysbinary.readouterr().out)[-1]["reasoning"] == reasoning


@pytest.mark.parametrize(
    "arguments",
    [[], ["--wire"], ["--wire", "telegraph"], ["--wire", "gemini", "a", "b"], ["--wire", "gemini", "--fast"]],
)
def test_wrong_usage_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode-stream", *arguments]) == 2
    assert "usage: agentd" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, reason in ((tmp_path / "none", "no such file or directory"), (tmp_path, "is a directory")):
        assert main(["decode-stream", "--wire", "gemini", str(path)]) == 1
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1


def test_lines_come_as_the_events_do_and_a_reader_may_leave() -> None:
    command = [sys.executable, "-m", "agentd", "decode-stream", "--wire", "openai-chat"]
    first, rest = HELLO.split(b"\n\n", 1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(first + b"\n\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 60)[0], "nothing came while the stream was open"
        assert json.loads(process.stdout.readline()) == {"type": "text", "text": "Hel"}
        process.stdout.close()
        process.stdin.write(rest)
        process.stdin.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""


def test_an_output_that_is_full_is_one_line() -> None:
    command = [sys.executable, "-m", "agentd", "decode-stream", "--wire", "openai-chat"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, input=HELLO, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"agentd: the events cannot be written: no space left on device\n")


def test_the_installed_command_decodes_standard_input() -> None:
    command = pathlib.Path(sys.executable).with_name("agentd")
    done = subprocess.run(
        [command, "decode-stream", "--wire", "openai-chat", "-"], input=HELLO, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert parsed(done.stdout) == decoded(HELLO)
