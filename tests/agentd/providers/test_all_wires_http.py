"""The transport is one for all wires: every fault and error body of the corpus through a real server, and what each wire gets."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime

import msgspec
import pytest

from agentd.messages import UserMessage
from agentd.providers.http import HttpProvider, Timeouts
from agentd.providers.retries import Retries
from agentd.providers.stream import Failed, Finished, ModelRequest, Reasoning, Retry, StreamEvent, Text, UsageReported
from tests import wire_corpus
from tests.replay_server import Abort, ReplayServer, Request, Script, Send, Sleep, Step, replay_server
from tests.wire_answers import ANSWERS, KEY, WIRES, choice_of
from tests.wire_cases import body_of
from tracewriter.events import ToolCall, Usage

pytestmark = pytest.mark.anyio
REQUEST = ModelRequest("m-1", "be brief", (UserMessage("hi"),))
FAST = Timeouts(connect_s=2, first_byte_s=5, stall_s=5, total_s=10, settle_s=1, error_body_s=1, list_s=2)
ALL_FAULTS = wire_corpus.names("faults", ".json")
ALL_ERRORS = [case for wire in WIRES for case in wire_corpus.http_errors(wire)]
SECRET_HEADERS = {"authorization", "x-api-key", "x-goog-api-key"}


class Asked:
    """What came of one request: the events, the waits between attempts, what the server was sent."""

    def __init__(self, events: list[StreamEvent], waits: list[float], requests: list[Request]) -> None:
        self.events, self.waits, self.requests = events, waits, requests

    @property
    def failed(self) -> Failed:
        last = self.events[-1]
        assert isinstance(last, Failed), last
        return last

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))


@asynccontextmanager
async def provider_at(
    server: ReplayServer,
    wire: str,
    *,
    timeouts: Timeouts = FAST,
    attempts: int = 1,
    waits: list[float] | None = None,
    think_split: bool = False,
) -> AsyncGenerator[HttpProvider, None]:
    async def note(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    provider = HttpProvider(
        choice_of(wire, server.base_url, think_split=think_split),
        env={},
        timeouts=timeouts,
        retries=Retries(attempts=attempts),
        sleep=note,
        uniform=lambda: 1.0,
        wall=lambda: datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp(),
    )
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(
    wire: str,
    scripts: Sequence[Script],
    *,
    timeouts: Timeouts = FAST,
    attempts: int = 1,
    think_split: bool = False,
) -> Asked:
    waits: list[float] = []
    async with (
        replay_server(scripts) as server,
        provider_at(server, wire, timeouts=timeouts, attempts=attempts, waits=waits, think_split=think_split) as there,
    ):
        events = [event async for event in there.stream(REQUEST)]
        return Asked(events, waits, server.requests)


def error(status: int, body: bytes = b"{}", **headers: str) -> Script:
    return Script.of_error(status, body, **headers)


@pytest.mark.parametrize("name", ALL_FAULTS)
async def test_every_fault_comes_through_a_real_connection_as_expected(name: str) -> None:
    fault = wire_corpus.fault(name)
    expected = fault["expected"]
    think = "<th" in body_of(fault).decode("utf-8", "replace")[:10_000]
    got = await ask(fault["wire"], [Script.of_fault(fault)], think_split=think)
    calls = [event for event in got.events if isinstance(event, ToolCall)]
    last = got.events[-1]
    assert [type(event) for event in got.events if isinstance(event, UsageReported | Finished | Failed)] == [
        UsageReported,
        Failed if expected["error"] else Finished,
    ]
    assert got.text == expected["text"]
    assert "".join(event.text for event in got.events if isinstance(event, Reasoning)) == expected["reasoning"]
    assert {call.id for call in calls}.isdisjoint(
        [*fault.get("must_not_execute", []), *expected.get("must_not_execute", [])]
    )
    if isinstance(last, Failed):
        assert last.failure.kind == expected["error"]["kind"]
        assert expected["error"]["retryable"] in (None, last.retryable)
        assert [words for words in expected["error"]["must_contain"] if words not in last.failure.message] == []
        assert last.failure.message.isprintable()
    else:
        assert isinstance(last, Finished)
        assert len(calls) + len(last.cut_tool_calls) == len(expected["tool_calls"])


@pytest.mark.parametrize("case", ALL_ERRORS, ids=lambda case: str(case["name"]))
async def test_every_recorded_error_body_gives_its_reason_and_a_next_step(case: dict[str, str]) -> None:
    answer = Script.of_error(int(case["status"]), case["body"].encode(), case["content_type"])
    failure = (await ask(case["wire"], [answer])).failed.failure
    assert case["message_must_contain"] in failure.message
    assert failure.status == int(case["status"])
    assert failure.message.isprintable()
    hint = {
        "too-long": "too long",
        "context": "too long",
        "401": "THERE_KEY",
        "api-key": "THERE_KEY",
        "429": "rate limit",
    }
    wanted = next((words for part, words in hint.items() if part in case["name"]), None)
    assert wanted is None or wanted in failure.hint
    assert KEY not in repr(failure)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_arrives_and_the_key_is_in_one_header_only(wire: str) -> None:
    got = await ask(wire, [Script.of_sse(ANSWERS[wire])])
    assert got.text == "Hello"
    assert got.events[-2] == UsageReported(Usage(3, 2))
    assert isinstance(got.events[-1], Finished)
    [request] = got.requests
    carrying = [name for name, value in request.headers.items() if KEY in value]
    assert len(carrying) == 1
    assert set(carrying) <= SECRET_HEADERS
    assert KEY not in request.target
    assert KEY.encode() not in request.body


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_tried_again_and_each_attempt_is_told(wire: str, status: int) -> None:
    got = await ask(wire, [error(status), error(status), Script.of_sse(ANSWERS[wire])], attempts=3)
    retries = [event for event in got.events if isinstance(event, Retry)]
    assert [(retry.attempt, retry.failure.status) for retry in retries] == [(2, status), (3, status)]
    assert got.waits == [1.0, 2.0] == [retry.wait_s for retry in retries]
    assert got.text == "Hello"
    assert len(got.requests) == 3
    assert len({request.body for request in got.requests}) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_connection_that_breaks_is_tried_again_only_before_anything_was_shown(wire: str) -> None:
    answer = Script.of_sse(ANSWERS[wire])
    got = await ask(wire, [Script((Abort(),)), answer], attempts=2)
    assert (got.text, len(got.requests)) == ("Hello", 2)
    whole = ANSWERS[wire]
    shown = whole[: whole.index(b"\n\n", whole.index(b"Hello")) + 2]
    got = await ask(wire, [Script((Send(shown), Abort())), answer], attempts=2)
    assert (got.text, len(got.requests)) == ("Hello", 1)
    assert got.failed.failure.kind == "transport"


@pytest.mark.parametrize("wire", WIRES)
async def test_each_silence_has_its_own_bound(wire: str) -> None:
    short = Timeouts(connect_s=2, first_byte_s=0.2, stall_s=5, total_s=10, settle_s=1)
    assert "no answer within" not in (await ask(wire, [Script.of_sse(ANSWERS[wire])], timeouts=short)).text
    got = await ask(wire, [Script((Sleep(30),))], timeouts=short)
    assert got.failed.retryable
    assert "0.2 s" in got.failed.failure.message
    whole = ANSWERS[wire]
    head = whole[: whole.index(b"\n\n", whole.index(b"Hello")) + 2]
    pings: list[Step] = [Sleep(0.1), Send(b": ping\n\n")] * 40
    stalled = Script((Send(head), *pings))
    stall = Timeouts(first_byte_s=5, stall_s=0.3, total_s=10, settle_s=0.3)
    got = await ask(wire, [stalled], timeouts=stall)
    assert "was idle for 0.3 s" in got.failed.failure.message
    total = Timeouts(first_byte_s=5, stall_s=5, total_s=0.3, settle_s=5)
    got = await ask(wire, [stalled], timeouts=total)
    assert "took longer than 0.3 s" in got.failed.failure.message


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("script", [Script((Sleep(60),)), Script((Sleep(60),), status=500)])
async def test_cancelling_closes_the_connection_at_once(wire: str, script: Script) -> None:
    async with replay_server([script]) as server, provider_at(server, wire) as there:

        async def read() -> None:
            async for _ in there.stream(REQUEST):
                pass

        async with asyncio.TaskGroup() as group:
            task = group.create_task(read())
            async with asyncio.timeout(10):
                await server.until(served=1)
                task.cancel()
                await server.until(disconnects=1)


RETRY_INFO = msgspec.json.encode(
    {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{}]},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"},
            ],
        }
    }
)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("script", "wait_s"),
    [
        (error(429, retry_after="7"), 7.0),
        (error(503, retry_after_ms="2500", retry_after="9"), 2.5),
        (error(429, retry_after=format_datetime(datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC), usegmt=True)), 30.0),
        (error(429, retry_after="Mon, 30 Nov 2026 12:00:40 GMT", date="Mon, 30 Nov 2026 12:00:00 GMT"), 40.0),
        (error(429, RETRY_INFO), 17.5),
        (error(429, b'{"error":{"message":"Rate limit reached. Please try again in 6.2s. Visit x"}}'), 6.2),
    ],
    ids=["seconds", "milliseconds", "date", "date by the server's own clock", "RetryInfo", "words"],
)
async def test_what_the_provider_asks_to_wait_is_waited(wire: str, script: Script, wait_s: float) -> None:
    got = await ask(wire, [script, Script.of_sse(ANSWERS[wire])], attempts=2)
    assert got.waits == [pytest.approx(wait_s)]
    assert got.text == "Hello"


async def test_a_provider_may_say_itself_whether_to_try_again() -> None:
    got = await ask("anthropic", [error(500, x_should_retry="false")], attempts=3)
    assert len(got.requests) == 1
    got = await ask("anthropic", [error(400, x_should_retry="true"), Script.of_sse(ANSWERS["anthropic"])], attempts=3)
    assert got.text == "Hello"


# --- the key is nowhere

ECHO = f'{{"error":{{"message":"bad key {KEY} in request","type":"{KEY}","code":"{KEY}"}}}}'.encode()
FAILURES: dict[str, list[Script]] = {
    "echoed": [Script.of_error(401, ECHO)],
    "echoed in text": [Script.of_error(403, KEY.encode(), "text/plain")],
    "echoed in html": [Script.of_error(502, f"<html><title>{KEY}</title>{KEY}</html>".encode(), "text/html")],
    "echoed with 200": [Script.of_error(200, f"<html>{KEY}</html>".encode(), "text/html")],
    "echoed in a frame": [Script.of_sse(b'data: {"error":{"message":"no ' + KEY.encode() + b'"}}\n\n')],
    "echoed in a bare body": [Script.of_sse(ECHO)],
    "content type": [Script.of_error(200, b"x", f"text/html; {KEY}")],
    "redirect": [Script(status=307, headers=(("location", f"http://{KEY}@evil.example/{KEY}"),))],
    "abort": [Script((Abort(),))],
    "no http": [Script(raw=b"garbage\r\n")],
    "encoding": [Script((Send(b"\x1f\x8bxx"),), headers=(("content-type", "text/event-stream"), ("content-encoding", "gzip")))],
    "not found": [Script.of_error(404, ECHO), Script.of_error(200, b'{"data":[{"id":"' + KEY.encode() + b'"}]}')],
    "too large": [Script.of_error(500, KEY.encode() * 20_000)],
}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kind", FAILURES)
async def test_the_key_is_in_no_message_log_or_repr(wire: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with replay_server(FAILURES[kind]) as server, provider_at(server, wire, attempts=2) as there:
        events = [event async for event in there.stream(REQUEST)]
        listed = await there.models()
        shown = f"{there!r} {events!r} {listed!r} {choice_of(wire, server.base_url)!r}"
    assert isinstance(events[-1], Failed)
    if kind != "not found":  # there the list is the answer, and it may hold any name
        assert KEY not in repr(listed)
        assert KEY not in shown
    assert KEY not in repr(events)
    assert KEY not in caplog.text


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_host_carries_neither_key_nor_conversation_there(wire: str, status: int) -> None:
    async with replay_server([Script.of_sse(ANSWERS[wire])]) as evil:
        target = evil.base_url.replace("127.0.0.1", "localhost")
        got = await ask(wire, [Script(status=status, headers=(("location", f"{target}/x"),))], attempts=2)
        assert evil.requests == []
    assert f"a redirect to localhost:{evil.port}" in got.failed.failure.message
    assert "base_url" in got.failed.failure.hint


# --- models that are not there

LISTS = {
    "openai-chat": b'{"object":"list","data":[{"id":"m-10"},{"id":"other"}]}',
    "openai-responses": b'{"data":[{"id":"m-10"},{"id":"other"}]}',
    "anthropic": b'{"data":[{"type":"model","id":"m-10","display_name":"M"},{"id":"other"}],"has_more":false}',
    "gemini": b'{"models":[{"name":"models/m-10","supportedGenerationMethods":["generateContent"]},{"name":"models/other"}]}',
}


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_is_not_there_is_answered_with_those_that_are(wire: str) -> None:
    missing = error(404, b'{"error":{"message":"model not found"}}')
    got = await ask(wire, [missing, Script.of_error(200, LISTS[wire])], attempts=3)
    assert "did you mean m-10?" in got.failed.failure.hint
    asked, listing = got.requests
    assert (asked.method, listing.method) == ("POST", "GET")
    assert {name: asked.headers[name] for name in SECRET_HEADERS & set(asked.headers)} == {
        name: listing.headers[name] for name in SECRET_HEADERS & set(listing.headers)
    }
    assert listing.target.partition("?")[0] == {"gemini": "/v1/models"}.get(wire, "/v1/models")


@pytest.mark.parametrize(
    "answer", [Script((Sleep(30),)), error(500), Script.of_error(200, b"<p>", "text/html"), Script((Abort(),))]
)
async def test_without_a_list_the_hint_stays_and_nobody_waits_long(answer: Script) -> None:
    times = msgspec.structs.replace(FAST, list_s=0.3)
    got = await ask("openai-chat", [error(404, b'{"error":"no such model"}'), answer], timeouts=times)
    assert "model's name" in got.failed.failure.hint
    assert got.failed.failure.status == 404


# --- bodies of any kind

LATIN = "la clé n'est pas acceptée".encode("latin-1")
ODD_BODIES: dict[str, tuple[Script, str]] = {
    "nothing": (error(500, b""), "no reason given"),
    "html": (Script.of_error(502, b"<html><head><title>Bad Gateway</title></head><body>x</body>", "text/html"), "Bad Gateway"),
    "huge": (error(500, b'{"error":{"message":"' + b"long " * 100_000 + b'"}}'), "long long"),
    "huge text": (Script.of_error(500, b"long " * 200_000, "text/plain"), "long long"),
    "binary": (error(500, bytes(range(128, 256)) * 20), "2560 bytes that are no text"),
    "latin-1 said": (Script.of_error(500, LATIN, "text/plain; charset=ISO-8859-1"), "la clé n'est pas acceptée"),
    "latin-1 not said": (Script.of_error(500, LATIN, "text/plain"), "la cl"),
    "utf-16": (Script.of_error(500, '{"error":"é"}'.encode("utf-16"), "application/json; charset=utf-16"), "é"),
    "utf-8 called latin-1": (Script.of_error(500, "é".encode(), "text/plain; charset=latin-1"), ": é"),
    "with a byte order mark": (error(500, b'\xef\xbb\xbf{"error":"m"}'), ": m"),
    "a codec that is no text": (Script.of_error(500, b"6\xff", "text/plain; charset=hex"), "answered 500"),
    "gzip": (error(500, gzip.compress(b'{"error":"packed"}'), content_encoding="gzip"), "packed"),
    "half gzip": (error(500, gzip.compress(b'{"error":"packed"}')[:-9], content_encoding="gzip"), "answered 500"),
    "no gzip": (error(500, b'{"error":"bare"}', content_encoding="gzip"), "answered 500"),
    "brotli": (error(500, b"\x0b\x02\x80", content_encoding="br"), "answered 500"),
    "deep": (error(500, b"[" * 100_000), "answered 500"),
    "escapes": (error(500, b'{"error":{"message":"a\\u001b]52;c;x\\u0007\\u202eb\\ud800"}}'), "answered 500: a"),
    "slow": (Script((Send(b'{"error":'), Sleep(30)), 500), "answered 500"),
    "cut": (Script((Send(b'{"error":"x'), Abort()), 500), "answered 500"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD_BODIES)
async def test_whatever_an_error_is_made_of_it_is_one_readable_line_with_a_next_step(kind: str) -> None:
    script, said = ODD_BODIES[kind]
    wire = WIRES[len(kind) % len(WIRES)]
    times = msgspec.structs.replace(FAST, error_body_s=0.3)
    failure = (await ask(wire, [script], timeouts=times)).failed.failure
    assert said in failure.message
    assert failure.message.startswith(f"there answered {script.status}: ")
    assert failure.message.isprintable()
    assert len(failure.message) <= 1100
    assert failure.hint
