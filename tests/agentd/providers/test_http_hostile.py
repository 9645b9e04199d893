"""Answers of servers that are no provider's, or mean harm: each ends in one true line, at once, and without the key."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

import msgspec
import pytest

from agentd.providers.http import MAX_BODY_BYTES, HttpProvider
from agentd.providers.models import ModelInfo
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, Text, UsageReported
from tests.agentd.providers.test_http_provider import FAST, KEY, ask, asking, choice_for, failure_of
from tests.replay_server import Abort, Script, Send, Sleep, Step, replay_server
from tracewriter.events import Failure, Usage

pytestmark = pytest.mark.anyio

SAID = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
OVER = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
IDLE = b'data: {"choices":[{"index":0,"delta":{}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":99,"completion_tokens":1}}\n\n'
# No address, one that other programs refuse, one of another kind, none, one with a key in it.
LOCATIONS = [
    "//[x", "http://[x]/", "http://[::1", "http://[::1]:99999/", "http://a:b:c/", "http://a:-1/", "foo:bar", "mailto:x",
    "http:", "http:///x", "?x", "", "http://%zz/", "http://xn--a/", "http://xn--/", "http://a\u2024b/", "http://\u2100.com/",
    "http://" + "a" * 70_000, f"http://user:{KEY}@[bad/", f"http://{KEY}@elsewhere.example/", "https://elsewhere.example/v1",
]  # fmt: skip


@pytest.mark.parametrize("location", LOCATIONS, ids=range(len(LOCATIONS)))
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_named_wherever_it_goes_and_followed_nowhere(location: str, status: int) -> None:
    head = f"HTTP/1.1 {status} Moved\r\nlocation: {location}\r\nconnection: close\r\n\r\n"
    async with replay_server([Script(raw=head.encode())]) as server, asking(choice_for(server, key=KEY)) as provider:
        listed = await provider.models()
    events, requests = await ask([Script(raw=head.encode())], key=KEY, retries=Retries(attempts=3))
    assert len(requests) == 1
    assert isinstance(listed, Failure)
    for failure in (listed, failure_of(events).failure):
        assert f"answered {status}: a redirect" in failure.message
        assert "base_url" in failure.hint
        assert KEY not in failure.message


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ""), (b"\x15\x03\x01\x00\x02\x02P", ""), (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000 + b"\r\n\r\n", ""), (b"", "without sending"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", ""), (KEY.encode() + b"\r\n\r\n", ""),
    ],
)  # fmt: skip
async def test_what_is_no_http_is_not_called_unreachable(raw: bytes, part: str) -> None:
    events, _ = await ask([Script(raw=raw)], key=KEY)
    failed = failure_of(events)
    assert "gave no HTTP answer" in failed.failure.message
    assert part in failed.failure.message
    assert failed.retryable
    assert "http or https" in failed.failure.hint
    assert KEY not in failed.failure.message


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("text/plain", "upstream connect error, reset before headers", "upstream connect error"),
        ("", "<!doctype html><title>Log in</title>", "Log in"),
        ("text/event-stream", "<html><title>Maintenance</title>", "Maintenance"),
        ("application/x-ndjson", '{"model":"m","message":{"content":"hi"}}\n{"done":true}\n', '"content":"hi"'),
        ("text/plain", f"you sent {KEY}", "[redacted]"),
    ],
)
async def test_a_good_status_with_something_else_says_what_came(kind: str, body: str, said: str) -> None:
    headers = (("content-type", kind),) if kind else ()
    events, _ = await ask([Script((Send(body.encode()),), headers=headers)], key=KEY)
    failed = failure_of(events)
    assert said in failed.failure.message
    assert "in place of an event stream" in failed.failure.message
    assert failed.failure.hint
    assert KEY not in failed.failure.message


async def test_nothing_at_all_stays_an_empty_answer() -> None:
    for script in (Script.of_sse(b": ping\n\n"), Script((), 204)):
        events, _ = await ask([script])
        assert "empty" in failure_of(events).failure.message


def paced(body: bytes, times: int, pause_s: float) -> Iterator[Step]:
    for _ in range(times):
        yield Send(body)
        yield Sleep(pause_s)


async def test_an_answer_that_is_over_is_not_kept_open_by_empty_frames() -> None:
    steps = (Send(SAID + OVER), *paced(IDLE, 50, 0.1), Send(USAGE))
    times = msgspec.structs.replace(FAST, settle_s=0.5)
    events, _ = await ask([Script(steps)], timeouts=times)
    assert events[-2:] == [UsageReported(None), Finished("stop", "stop")]


async def test_text_that_comes_after_a_reason_to_finish_is_read_as_long_as_it_comes() -> None:
    steps = (*paced(OVER, 7, 0.3), Send(USAGE))
    events, _ = await ask([Script(steps)])
    assert events == [*[Text("b")] * 7, UsageReported(Usage(99, 1)), Finished("stop", "stop")]


def bomb() -> bytes:
    """Comments, beyond all bounds, in half a megabyte."""
    packer = zlib.compressobj(1, wbits=31)
    line = b":" + b" " * (1024 * 1024 - 2) + b"\n"
    return b"".join(packer.compress(line) for _ in range(MAX_BODY_BYTES // len(line) + 1)) + packer.flush()


async def test_an_answer_without_bounds_is_closed_and_not_asked_for_again() -> None:
    script = Script((Send(bomb()),), headers=(("content-type", "text/event-stream"), ("content-encoding", "gzip")))
    events, requests = await ask([script], retries=Retries(attempts=3))
    assert len(requests) == 1
    assert failure_of(events).failure.message == "the answer is larger than 512 MiB: the stream was closed"


async def test_what_broke_the_answer_before_its_connection_broke_is_what_is_told() -> None:
    script = Script((Send(SAID + b"data: {broken\n\n"), Sleep(0.05), Abort()))
    events, _ = await ask([script])
    assert "could not be read" in failure_of(events).failure.message


async def test_a_list_of_models_shows_no_key_and_no_absurd_size() -> None:
    listed = [
        {"id": KEY},
        {"id": f"x-{KEY}-y"},
        {"id": "m", "context_length": 10**400},
        {"id": "n", "context_length": 4096},
    ]
    script = Script.of_error(200, json.dumps({"data": listed}).encode())
    async with replay_server([script]) as server, asking(choice_for(server, key=KEY)) as provider:
        assert isinstance(provider, HttpProvider)
        assert await provider.models() == (ModelInfo("m"), ModelInfo("n", 4096))


async def test_a_page_in_place_of_a_list_of_models_is_called_that() -> None:
    script = Script.of_error(200, b"<title>Log in</title>", "text/html")
    async with replay_server([script]) as server, asking(choice_for(server)) as provider:
        listed = await provider.models()
    assert isinstance(listed, Failure)
    assert listed.message == "answered 200 with text/html in place of a list of models: Log in"


async def test_a_call_that_is_not_in_a_list_is_a_call() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}
    body = json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": call}, "finish_reason": "tool_calls"}]})
    events, _ = await ask([Script.of_sse(f"data: {body}\n\ndata: [DONE]\n\n".encode())])
    assert not isinstance(events[-1], Failed)
    assert events[-1] == Finished("tool_calls", "tool_calls")
