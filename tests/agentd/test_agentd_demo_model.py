from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentd.demo_model import Answer, Chat, answer, chunks
from agentd.demo_server import DemoServer

BUGGY = (
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    return ordered[middle]\n"
)
TOOLS = [{"type": "function", "function": {"name": "edit_file", "parameters": {}}}]
Json = dict[str, Any]


def chat(*results: str, tools: list[Json] = TOOLS) -> Chat:
    """The conversation after the script's tools gave these results, one string per call."""
    messages: list[Json] = [{"role": "system", "content": "s"}, {"role": "user", "content": "find the bug"}]
    left = list(results)
    while True:
        parsed = msgspec.convert({"messages": messages, "stream": True, "tools": tools}, Chat)
        if not left:
            return parsed
        reply = answer(parsed)
        calls = [
            {
                "id": f"c{len(messages)}_{n}",
                "type": "function",
                "function": {"name": c.name, "arguments": msgspec.json.encode(c.input).decode()},
            }
            for n, c in enumerate(reply.calls)
        ]
        messages.append({"role": "assistant", "content": reply.text, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": made["id"], "content": left.pop(0)} for made in calls]


LISTED, TEST, FOUND = "stats.py\ntest_stats.py", "assert median([1, 2]) == 1.5", "stats.py:1:def median(values):"


def called(reply: Answer) -> list[str]:
    return [made.name for made in reply.calls]


def test_the_whole_script_finds_and_fixes_the_bug_in_the_file_it_was_shown() -> None:
    assert called(answer(chat())) == ["list_files"]
    assert [c.input for c in answer(chat(LISTED)).calls] == [{"path": "stats.py"}, {"path": "test_stats.py"}]
    assert called(answer(chat(LISTED, BUGGY, TEST))) == ["search"]
    (edit,) = answer(chat(LISTED, BUGGY, TEST, FOUND)).calls
    assert BUGGY.count(edit.input["old"]) == 1
    fixed: Json = {}
    exec(compile(BUGGY.replace(edit.input["old"], edit.input["new"]), "stats.py", "exec"), fixed)  # noqa: S102 - our own text
    assert [fixed["median"](v) for v in ([1, 2], [3, 1, 2], [4, 1, 3, 2])] == [1.5, 2, 2.5]
    last = answer(chat(LISTED, BUGGY, TEST, FOUND, "Edited stats.py: replaced text at line 4."))
    assert last.calls == ()
    assert last.text.startswith("Fixed.")


@pytest.mark.parametrize(
    "results",
    [
        ("The directory is empty.",),
        ("astats.py\nstats.pyc",),
        (LISTED, "stats.py: permission denied", TEST),
        (LISTED, BUGGY, TEST, "No matches"),
        (LISTED, BUGGY, TEST, FOUND, "stats.py: the file was changed since it was read"),
    ],
)
def test_when_a_tool_fails_it_says_so_and_stops(results: tuple[str, ...]) -> None:
    reply = answer(chat(*results))
    assert reply.calls == ()
    assert "I stop here" in reply.text
    assert results[-1].split("\n")[0] in reply.text or results[1] in reply.text


def test_what_is_fixed_already_is_left_alone_and_what_cannot_be_edited_is_said() -> None:
    fixed = BUGGY.replace("    return", "    if len(values) % 2 == 0:\n        return 0\n    return")
    assert "nothing to fix" in answer(chat(LISTED, fixed, TEST)).text
    assert "build mode" in answer(chat(tools=[])).text


def test_the_stream_has_deltas_a_finish_and_usage_when_asked() -> None:
    asked = msgspec.structs.replace(chat(LISTED), stream_options=None)
    parts = [msgspec.json.decode(part) for part in chunks(asked, answer(asked))[:-1]]
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    assert text == answer(asked).text
    assert len(parts) > 10
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all("usage" not in part for part in parts)


@asynccontextmanager
async def served(path: Path) -> AsyncGenerator[None, None]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        sock.setblocking(False)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(DemoServer(pause_s=0.0).serve(sock))
            yield
            task.cancel()


async def exchange(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(request)
    writer.write_eof()
    async with asyncio.timeout(10):
        data = await reader.read()
    writer.close()
    await writer.wait_closed()
    return data


def post(body: bytes, path: str = "/v1/chat/completions") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.anyio
async def test_a_plain_socket_client_gets_a_chunked_event_stream(tmp_path: Path) -> None:
    body = b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}'
    async with served(tmp_path / "m.sock"):
        head, _, rest = (await exchange(tmp_path / "m.sock", post(body))).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked")
        pieces = re.findall(rb"([0-9a-f]+)\r\n(data: .*?\n\n)\r\n", rest, re.DOTALL)
        assert all(int(size, 16) == len(data) for size, data in pieces)
        assert rest.endswith(b"0\r\n\r\n")
        events = [data[6:-2] for _, data in pieces]
        assert events[-1] == b"[DONE]"
        usage = msgspec.json.decode(events[-2])
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] > 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"nonsense"), b"400"),
        (post(b'{"messages":[]}'), b"400"),
        (post(b"{}", "/v1/embeddings"), b"404"),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", b"200"),
        (post(b'{"stream":true,"messages":[]}')[:-5], b""),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", b""),
        (b"\r\n\r\n", b"404"),
    ],
)
async def test_what_it_cannot_do_is_said_by_the_status(tmp_path: Path, request_bytes: bytes, status: bytes) -> None:
    async with served(tmp_path / "m.sock"):
        got = await exchange(tmp_path / "m.sock", request_bytes)
        assert got[9:12] == status


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    start = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'agentd', 'demo-model', '--uds', {str(path)!r}])"
    wait = f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\nprint(p.pid); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", f"{start}\n{wait}"], capture_output=True, text=True, timeout=20)
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not path.exists(), f"{pid} still serves"
