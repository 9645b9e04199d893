"""HttpProvider against a real server on loopback: what is sent, what is retried, and every way an answer can fail."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import pathlib
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import pytest

from agentd.messages import UserMessage
from agentd.providers.catalog import Choice, resolve
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, ModelRequest, Retry, StreamEvent, Text, UsageReported
from tests import wire_corpus
from tests.replay_server import Abort, ReplayServer, Request, Script, Send, Sleep, replay_server
from tracewriter.events import Failure, Usage

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
REQUEST = ModelRequest("m", "be brief", (UserMessage("hi"),))
HELLO = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
    b"data: [DONE]\n\n"
)
FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
ANSWER: list[StreamEvent] = [Text("Hel"), Text("lo"), UsageReported(Usage(3, 2)), Finished("stop", "stop")]
FAST = Timeouts(connect_s=2, first_byte_s=5, stall_s=5, total_s=10, settle_s=1, error_body_s=1)


class Sleeps:
    """Takes the place of asyncio.sleep in retries: notes the wait and goes on."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)


def choice_for(server: ReplayServer, *, key: str = "") -> Choice:
    env = {"AGENTD_API_KEY": key} if key else {}
    choice = resolve("m", base_url=server.base_url, uds=server.uds, env=env)
    assert isinstance(choice, Choice)
    return choice


@asynccontextmanager
async def asking(
    choice: Choice,
    *,
    env: Mapping[str, str] = {},
    timeouts: Timeouts = FAST,
    retries: Retries = Retries(attempts=1),  # noqa: B008 - frozen
    sleeps: Sleeps | None = None,
) -> AsyncIterator[HttpProvider]:
    provider = HttpProvider(
        choice, env=env, timeouts=timeouts, retries=retries, sleep=sleeps or Sleeps(), uniform=lambda: 1.0
    )
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(
    scripts: Iterable[Script],
    *,
    key: str = "",
    uds: str | None = None,
    timeouts: Timeouts = FAST,
    retries: Retries = Retries(attempts=1),  # noqa: B008 - frozen
    sleeps: Sleeps | None = None,
) -> tuple[list[StreamEvent], list[Request]]:
    async with replay_server(scripts, uds=uds) as server:
        choice = choice_for(server, key=key)
        async with asking(choice, timeouts=timeouts, retries=retries, sleeps=sleeps) as provider:
            events = [event async for event in provider.stream(REQUEST)]
        return events, server.requests


def failure_of(events: list[StreamEvent]) -> Failed:
    last = events[-1]
    assert isinstance(last, Failed)
    assert isinstance(events[-2], UsageReported)
    return last


async def test_an_answer_arrives_and_the_request_is_what_the_wire_wants() -> None:
    events, [request] = await ask([Script.of_sse(HELLO)], key=KEY)
    assert events == ANSWER
    assert (request.method, request.target) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept-encoding"] == "identity"
    assert request.json()["stream_options"] == {"include_usage": True}


async def test_without_a_key_no_authorization_is_sent() -> None:
    _, [request] = await ask([Script.of_sse(HELLO)])
    assert "authorization" not in request.headers


async def test_a_unix_socket_serves_as_well_even_with_a_long_path(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with contextlib.chdir(folder):  # the server binds by the short name, the client connects by the long one
        async with replay_server([Script.of_sse(HELLO)], uds="model.sock") as server:
            choice = resolve("m", uds=str(folder / "model.sock"), env={})
            assert isinstance(choice, Choice)
            async with asking(choice) as provider:
                assert [event async for event in provider.stream(REQUEST)] == ANSWER
            assert len(server.requests) == 1


async def test_a_connection_is_used_again() -> None:
    async with replay_server([Script.of_sse(HELLO)]) as server, asking(choice_for(server)) as provider:
        for _ in range(3):
            assert [event async for event in provider.stream(REQUEST)] == ANSWER
        assert server.connections == 1


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_gzip_is_decoded_as_it_comes(size: int) -> None:
    packed = gzip.compress(HELLO[:70]) + gzip.compress(HELLO[70:])
    steps = tuple(Send(packed[i : i + size]) for i in range(0, len(packed), size))
    script = Script(steps, headers=(("content-type", "text/event-stream"), ("content-encoding", "gzip")))
    assert (await ask([script]))[0] == ANSWER


async def test_a_gzip_body_shows_its_text_before_its_end() -> None:
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(FIRST) + packer.flush(zlib.Z_SYNC_FLUSH)
    headers = (("content-type", "text/event-stream"), ("content-encoding", "gzip"))
    script = Script((Send(head), Sleep(30)), headers=headers)
    async with replay_server([script]) as server, asking(choice_for(server)) as provider:
        stream = provider.stream(REQUEST)
        assert await anext(stream) == Text("Hel")
        await stream.aclose()


async def test_half_a_gzip_body_is_an_error() -> None:
    packed = gzip.compress(FIRST)
    headers = (("content-type", "text/event-stream"), ("content-encoding", "gzip"))
    events, _ = await ask([Script((Send(packed[:-6]),), headers=headers)])
    assert events[0] == Text("Hel")
    failed = failure_of(events)
    assert "cut off" in failed.failure.message
    assert failed.failure.kind == "transport"
    assert failed.retryable


async def test_an_encoding_that_was_not_asked_for_is_an_error() -> None:
    headers = (("content-type", "text/event-stream"), ("content-encoding", "br"))
    events, _ = await ask([Script((Send(b"\x8b\x00\x80"),), headers=headers)])
    assert "content-encoding" in failure_of(events).failure.message


async def test_a_connection_cut_in_the_middle_keeps_the_text_and_runs_no_half_call() -> None:
    fault = wire_corpus.fault("F14")
    events, _ = await ask([Script.of_fault(fault)])
    assert events[0] == Text("Hal")
    failed = failure_of(events)
    assert (failed.failure.kind, failed.retryable, failed.cut_tool_calls) == ("transport", True, ("run",))


async def test_a_cut_after_the_answer_was_complete_is_no_failure() -> None:
    body = HELLO.removesuffix(b"data: [DONE]\n\n")
    assert (await ask([Script((Send(body), Abort()))]))[0] == ANSWER


async def test_a_server_that_never_closes_is_not_waited_for() -> None:
    assert (await ask([Script((Send(HELLO), Sleep(30)))]))[0] == ANSWER
    body = HELLO.removesuffix(b"data: [DONE]\n\n")
    quick = Timeouts(settle_s=0.05)
    assert (await ask([Script((Send(body), Sleep(30)))], timeouts=quick))[0] == ANSWER


async def test_a_page_with_status_200_is_named_not_shown_as_an_answer() -> None:
    fault = wire_corpus.fault("F10")
    failed = failure_of((await ask([Script.of_fault(fault)]))[0])
    assert failed.failure.kind == "transport"
    assert "text/html" in failed.failure.message
    assert "<" not in failed.failure.message
    assert failed.retryable


async def test_pings_do_not_hide_a_stalled_model() -> None:
    script = Script((Send(FIRST), *(Send(b": ping\n\n"), Sleep(0.02)) * 500))
    failed = failure_of((await ask([script], timeouts=Timeouts(stall_s=0.2)))[0])
    assert "idle" in failed.failure.message
    assert failed.failure.kind == "transport"


async def test_every_wait_has_its_time_out() -> None:
    silent = Script((Sleep(30),))
    for script, timeouts, words in [
        (silent, Timeouts(first_byte_s=0.1), "idle for 0.1"),
        (Script((Send(FIRST), Sleep(30))), Timeouts(stall_s=0.1), "idle for 0.1"),
        (Script((Send(FIRST), Sleep(0.03)) * 200), Timeouts(total_s=0.2), "longer than 0.2"),
    ]:
        failed = failure_of((await ask([script], timeouts=timeouts))[0])
        assert words in failed.failure.message
        assert failed.retryable


async def test_an_error_status_is_one_line_with_a_hint_and_without_the_key() -> None:
    body = f'{{"error":{{"message":"Incorrect API key provided: {KEY}.\\nSee the docs"}}}}'.encode()
    failed = failure_of((await ask([Script.of_error(401, body)], key=KEY))[0])
    assert failed.failure == Failure(
        "provider",
        "custom answered 401: Incorrect API key provided: [redacted]. See the docs",
        "the key in AGENTD_API_KEY was not accepted: check it, or make a new one with the provider",
        401,
    )
    assert not failed.retryable


async def test_a_key_echoed_inside_the_stream_is_not_shown() -> None:
    key = "plainkeywithoutprefix"
    body = f'data: {{"error":{{"message":"bad key {key}"}}}}\n\n'.encode()
    failed = failure_of((await ask([Script.of_sse(body)], key=key))[0])
    assert failed.failure.message == "bad key [redacted]"


async def test_redirects_are_not_followed() -> None:
    async with replay_server([Script.of_sse(HELLO)]) as target:
        script = Script(status=307, headers=(("location", f"{target.base_url}/chat/completions"),))
        failed = failure_of((await ask([script], key=KEY))[0])
        assert target.requests == []
    assert f"127.0.0.1:{target.port}" in failed.failure.message
    assert not failed.retryable


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_tried_again_and_said(status: int) -> None:
    sleeps = Sleeps()
    scripts = [Script.of_error(status, b'{"error":"busy"}'), Script.of_sse(HELLO)]
    events, requests = await ask(scripts, retries=Retries(attempts=2), sleeps=sleeps)
    retry = events[0]
    assert isinstance(retry, Retry)
    assert (retry.attempt, retry.wait_s, retry.failure.status) == (2, 1.0, status)
    assert events[1:] == ANSWER
    assert sleeps.waited == [1.0]
    assert len(requests) == 2


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    events, requests = await ask([Script.of_error(status, b"{}")], retries=Retries(attempts=3))
    listed = ["GET"] if status == 404 else []  # which models are there?
    assert [request.method for request in requests] == ["POST", *listed]
    assert failure_of(events).failure.hint


async def test_retry_after_is_a_floor_and_an_absurd_one_is_cut() -> None:
    sleeps = Sleeps()
    scripts = [
        Script.of_error(429, b"{}", retry_after="7"),
        Script.of_error(529, b"{}", retry_after="99999999"),
        Script.of_sse(HELLO),
    ]
    events, _ = await ask(scripts, retries=Retries(attempts=3, retry_after_cap_s=30.0), sleeps=sleeps)
    assert sleeps.waited == [7.0, 30.0]
    assert events[2:] == ANSWER


async def test_a_rate_limit_that_stays_is_shown_with_what_was_asked() -> None:
    fault = wire_corpus.fault("F16a")
    sleeps = Sleeps()
    events, requests = await ask([Script.of_fault(fault)], retries=Retries(), sleeps=sleeps)
    failed = failure_of(events)
    assert failed.failure.message == "custom answered 429: Rate limit reached (asked to wait 60 s)"
    assert failed.retryable
    assert sum(sleeps.waited) <= Retries().budget_s
    assert len(requests) == len(sleeps.waited) + 1


async def test_an_error_inside_a_stream_is_retried_only_while_nothing_was_shown() -> None:
    error = b'data: {"choices":[],"error":{"code":502,"message":"upstream gone"}}\n\n'
    events, _ = await ask([Script.of_sse(error), Script.of_sse(HELLO)], retries=Retries(attempts=2))
    assert isinstance(events[0], Retry)
    assert events[1:] == ANSWER
    events, requests = await ask([Script.of_sse(FIRST + error)], retries=Retries(attempts=5))
    assert len(requests) == 1
    assert events[0] == Text("Hel")
    assert failure_of(events).failure.message == "upstream gone"


async def test_usage_of_failed_attempts_is_counted() -> None:
    error = b'data: {"choices":[],"error":{"code":502,"message":"gone"},"usage":{"prompt_tokens":10,"completion_tokens":0}}\n\n'
    events, _ = await ask([Script.of_sse(error), Script.of_sse(HELLO)], retries=Retries(attempts=2))
    assert events[-2] == UsageReported(Usage(13, 2))


async def test_an_unreachable_host_is_one_line_with_its_port() -> None:
    async with replay_server([Script()]) as server:
        choice = choice_for(server, key=KEY)
    sleeps = Sleeps()
    async with asking(choice, retries=Retries(attempts=2), sleeps=sleeps) as provider:
        events = [event async for event in provider.stream(REQUEST)]
    failed = failure_of(events)
    assert failed.failure.kind == "transport"
    assert failed.failure.message == f"could not reach 127.0.0.1:{server.port}: connection refused"
    assert "running" in failed.failure.hint
    assert len(sleeps.waited) == 1


async def test_a_socket_that_is_not_there_is_one_line(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "none.sock")
    choice = resolve("m", uds=path, env={})
    assert isinstance(choice, Choice)
    async with asking(choice) as provider:
        failed = failure_of([event async for event in provider.stream(REQUEST)])
    assert failed.failure.message == f"could not reach {path}: no such file or directory"


@pytest.mark.parametrize("raw", [b"", b"\x15\x03\x01\x00\x02", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_what_is_no_http_is_one_line(raw: bytes) -> None:
    failed = failure_of((await ask([Script(raw=raw)]))[0])
    assert failed.failure.kind == "transport"
    assert "127.0.0.1:" in failed.failure.message
    assert "\n" not in failed.failure.message


async def test_closing_the_stream_closes_the_connection_at_once() -> None:
    async with replay_server([Script((Send(FIRST), Sleep(60)))]) as server, asking(choice_for(server)) as provider:
        stream = provider.stream(REQUEST)
        assert await anext(stream) == Text("Hel")
        await stream.aclose()
        async with asyncio.timeout(10):
            await server.until(disconnects=1)


@pytest.mark.parametrize("script", [Script((Send(FIRST), Sleep(60))), Script((Sleep(60),))])
async def test_cancelling_the_task_closes_the_connection_at_once(script: Script) -> None:
    async with replay_server([script]) as server, asking(choice_for(server)) as provider:

        async def read() -> None:
            async for _ in provider.stream(REQUEST):
                pass

        async with asyncio.TaskGroup() as group:
            task = group.create_task(read())
            async with asyncio.timeout(10):
                await server.until(served=1)
                task.cancel()
                await server.until(disconnects=1)


async def test_proxies_come_from_the_sessions_environment() -> None:
    async with replay_server([Script.of_sse(HELLO)]) as proxy:
        env = {"http_proxy": f"http://user:secret@127.0.0.1:{proxy.port}", "no_proxy": "other.example"}
        choice = resolve("m", base_url="http://model.example:8000/v1", env=env)
        assert isinstance(choice, Choice)
        async with asking(choice, env=env) as provider:
            assert [event async for event in provider.stream(REQUEST)] == ANSWER
        assert proxy.requests[0].target == "http://model.example:8000/v1/chat/completions"
        assert proxy.requests[0].headers["proxy-authorization"].startswith("Basic ")


async def test_a_dead_proxy_is_named_without_its_password() -> None:
    async with replay_server([Script()]) as proxy:
        pass
    env = {"ALL_PROXY": f"http://user:secret@127.0.0.1:{proxy.port}"}
    choice = resolve("m", base_url="http://model.example/v1", env=env)
    assert isinstance(choice, Choice)
    async with asking(choice, env=env) as provider:
        failed = failure_of([event async for event in provider.stream(REQUEST)])
    assert f"through the proxy 127.0.0.1:{proxy.port}" in failed.failure.message
    assert "secret" not in failed.failure.message


async def test_settings_that_cannot_work_are_a_failure_not_an_exception() -> None:
    for env in ({"HTTP_PROXY": "socks5://127.0.0.1:1"}, {"SSL_CERT_FILE": "/nonexistent/ca.pem"}):
        choice = resolve(
            "m", base_url="https://model.example/v1" if "SSL_CERT_FILE" in env else "http://m.example/v1", env={}
        )
        assert isinstance(choice, Choice)
        async with asking(choice, env=env, retries=Retries(attempts=3)) as provider:
            failed = failure_of([event async for event in provider.stream(REQUEST)])
        assert failed.failure.kind == "config"
        assert not failed.retryable


@pytest.mark.parametrize(
    "where", [{"uds": "nul\0"}, {"base_url": "http://a..b/v1"}, {"base_url": "http://" + "a" * 70 + ".x/v1"}]
)
async def test_a_place_that_cannot_be_is_a_failure_not_an_exception(where: dict[str, str]) -> None:
    choice = resolve("m", env={}, **where)  # type: ignore[arg-type]
    assert isinstance(choice, Choice)
    async with asking(choice) as provider:
        failed = failure_of([event async for event in provider.stream(REQUEST)])
    assert failed.failure.kind == "transport"
    assert failed.failure.message.isprintable()


async def test_nothing_printable_holds_the_key() -> None:
    choice = resolve("openai/m", env={"OPENAI_API_KEY": KEY})
    assert isinstance(choice, Choice)
    async with asking(choice) as provider:
        assert KEY not in f"{choice!r} {choice} {provider!r} {choice.key!r} {choice.key}"


@pytest.mark.parametrize("name", wire_corpus.faults("openai-chat"))
async def test_a_fault_case_comes_through_a_real_connection_as_expected(name: str) -> None:
    fault = wire_corpus.fault(name)
    expected = fault["expected"]
    for split_bytes in (0, 23) if name != "F05" else (0,):
        events, _ = await ask([Script.of_fault(fault, split_bytes=split_bytes)])
        text = "".join(event.text for event in events if isinstance(event, Text))
        assert text in (expected["text"], "<think>plan</think>ANSWER a < b")
        last = events[-1]
        assert isinstance(last, Failed if expected["error"] else Finished)
        if isinstance(last, Failed):
            assert last.failure.kind == expected["error"]["kind"]
            assert expected["error"]["retryable"] in (None, last.retryable)
            assert [words for words in expected["error"]["must_contain"] if words not in last.failure.message] == []


@pytest.mark.parametrize("case", wire_corpus.http_errors("openai-chat"), ids=lambda case: str(case["name"]))
async def test_a_recorded_error_body_gives_its_reason(case: dict[str, str]) -> None:
    script = Script.of_error(int(case["status"]), case["body"].encode(), case["content_type"])
    failed = failure_of((await ask([script]))[0])
    assert case["message_must_contain"] in failed.failure.message
    assert failed.failure.status == int(case["status"])
    assert "\n" not in failed.failure.message
