"""The official SDKs as judges: the tests' fake provider is as real as they can tell, and our decoders hear what they hear.

First our own streams, from tests/fake_provider_streams.py; then the recorded ones, as far as an SDK can read them. Where one
says something else, the bytes that make the difference are named here.
"""

from __future__ import annotations

import json
import os
from typing import Any, cast

import msgspec
import pytest

from agentd.providers.openai_chat_request import ChatQuirks
from agentd.providers.stream import StreamEvent
from agentd.providers.summary import summarise
from agentd.providers.wires import WIRES
from tests import sdk_judges, wire_corpus
from tests.fake_provider_server import FakeProvider, compose
from tests.fake_provider_streams import Answer, Call
from tests.sdk_judges import Judged, judge
from tests.wire_cases import KnownDecoder

CALLS = (Call("call_1", "look_up", '{"word":"na\u00efve \u2028","deep":[1,{"a":null}]}'), Call("call_2", "now", "{}"))
ANSWERS = {
    "text": Answer(text="Hello, w\u00f6rld \u2028 \U0001f600 and more", given=120, cached=100, produced=12),
    "thinking": Answer(text="Four.", reasoning="Two and two.", produced=30, thought=20),
    "calls": Answer(text="Looking.", reasoning="It is a word.", calls=CALLS, stop="tool_calls"),
    "only-calls": Answer(calls=CALLS, stop="tool_calls", piece_chars=1),
    "refusal": Answer(refusal="I will not do that.", stop="refusal"),
    "length": Answer(text="And so on and", stop="length"),
    "filter": Answer(text="And then", stop="filter"),
    "error": Answer(text="It was", error="the model fell over"),
    "error-first": Answer(error="the model fell over"),
    "cut": Answer(text="It was a", cut=True),
}
STREAMS = [(wire, name) for wire in WIRES for name in wire_corpus.names(f"streams/{wire}", ".expected.json")]
# What differs, and the bytes that the SDK has no reading of.
KNOWN = {
    "mistral-content-list-thinking": (
        b'"content":[{"type":"thinking"',
        {"text", "reasoning", "error", "finish", "tokens"},
    ),
    "partial-args-two-calls": (b'"willContinue"', {"calls"}),  # the SDK hands the pieces of a call on as calls
    "vertex-partial-args-nested": (b'"willContinue"', {"calls"}),
    "prism-single-newline-frames": (
        b'}\ndata: {"',
        {"text", "error", "finish", "tokens"},
    ),  # no blank line between frames
    # The SDK makes one answer of two: a call of the first with the end of the second. Ours is an error.
    "spliced-message-start": (b'{"type":"message_start"', {"reasoning", "error", "finish", "calls", "tokens"}),
}


def need_judge(wire: str) -> None:
    if not sdk_judges.installed(wire):
        message = f"the judge of this wire is not installed: pip install -e '.[judges]' ({sdk_judges.PACKAGES[wire]})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def ours(wire: str, body: bytes) -> dict[str, Any]:
    """What our decoder says of a body."""
    decoder = WIRES[wire].decoder(ChatQuirks())
    events: list[StreamEvent] = decoder.feed(body) + decoder.end()
    summary: dict[str, Any] = json.loads(msgspec.json.encode(summarise(events, cast("KnownDecoder", decoder))))
    return summary


def as_judged(summary: dict[str, Any]) -> Judged:
    """Our summary in the judges' terms."""
    usage, error = summary["usage"], summary["error"]
    return Judged(
        text=summary["text"],
        reasoning=summary["reasoning"],
        refusal=summary["refusal"],
        calls=[
            (call["id"], call["name"], None if "_raw" in call["input"] else call["input"])
            for call in summary["tool_calls"]
        ],
        tokens=None if usage is None else (usage["input_tokens"], usage["output_tokens"]),
        finish=summary["finish"],
        error=None if error is None else error["message"],
    )


def differences(theirs: Judged, summary: dict[str, Any]) -> set[str]:
    """The fields in which an SDK and we differ, but for what they are not made to tell.

    No SDK notices a stream that ends without an end; after an error none reads on, so that only what came before it compares.
    An id that the provider did not send is made by us.
    """
    mine = as_judged(summary)
    if theirs.error is not None and mine.error is not None:
        same = mine.text.startswith(theirs.text) and mine.reasoning.startswith(theirs.reasoning)
        return set() if same else {"text"}
    if mine.error is not None and summary["error"]["kind"] == "truncated":
        mine.error, mine.finish, mine.calls = None, theirs.finish, theirs.calls
    mine.calls = [
        (None if their[0] is None else my[0], *my[1:]) for my, their in zip(mine.calls, theirs.calls, strict=False)
    ] + mine.calls[len(theirs.calls) :]
    fields = Judged.__struct_fields__
    return {name for name in fields if getattr(mine, name) != getattr(theirs, name)}


def expected(wire: str, answer: Answer) -> Judged:
    """What was meant by an answer of ours, as far as the wire carries it."""
    calls: list[tuple[str | None, str, Any]] = [
        (call.id, call.name, json.loads(call.arguments)) for call in answer.calls
    ]
    refusal = "" if wire == "gemini" else answer.refusal
    return Judged(answer.text, answer.reasoning, refusal, calls, (answer.given, answer.produced))


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("wire", WIRES)
def test_an_sdk_hears_the_fake_provider_as_we_do(wire: str, case: str) -> None:
    need_judge(wire)
    answer = ANSWERS[case]
    with FakeProvider(answer) as provider:
        theirs = judge(wire, provider.url)
    body = b"".join(compose(wire, answer, "m-1", {"stream_options": {"include_usage": True}}))
    summary = ours(wire, body)
    assert differences(theirs, summary) == set()
    meant = expected(wire, answer)
    blocked = wire == "gemini" and bool(answer.refusal)
    if answer.error is None and not answer.cut and not blocked:
        meant.finish = theirs.finish
        assert theirs == meant
    elif answer.cut:
        assert (theirs.text, summary["error"]["kind"]) == (answer.text, "truncated")
    else:
        assert theirs.text == answer.text
        assert (answer.error or "PROHIBITED_CONTENT") in (theirs.error or "")
        assert (answer.error or "PROHIBITED_CONTENT") in summary["error"]["message"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503, 529])
@pytest.mark.parametrize("wire", WIRES)
def test_an_sdk_reads_the_fake_providers_errors(wire: str, status: int) -> None:
    need_judge(wire)
    with FakeProvider(Answer(status=status, error="no, because of reasons")) as provider:
        theirs = judge(wire, provider.url)
    assert theirs.error is not None
    assert "no, because of reasons" in theirs.error
    assert str(status) in theirs.error


@pytest.mark.parametrize(
    ("wire", "request_options", "sent"),
    [
        ("anthropic", {}, "authorization"),
        ("anthropic", {"extra_headers": {"x-api-key": "k", "anthropic-version": "2023-06-01"}}, "x-api-key"),
        ("anthropic", {"bearer": True}, "authorization"),
        ("gemini", {"api_version": "v1"}, "/v1/models/m-1:streamGenerateContent?alt=sse"),
        ("gemini", {"api_version": "v1beta"}, "/v1beta/models/m-1:streamGenerateContent?alt=sse"),
    ],
)
def test_both_generations_of_dialects_are_served(wire: str, request_options: dict[str, Any], sent: str) -> None:
    need_judge(wire)
    with FakeProvider(Answer(text="hi")) as provider:
        assert judge(wire, provider.url, **request_options).text == "hi"
        [request] = provider.requests
    assert sent in request.headers or sent == request.target


@pytest.mark.parametrize(("wire", "name"), STREAMS)
def test_an_sdk_hears_a_recorded_stream_as_we_do(wire: str, name: str) -> None:
    need_judge(wire)
    body, _ = wire_corpus.stream(wire, name)
    with FakeProvider(body) as provider:
        theirs = judge(wire, provider.url)
    evidence, fields = KNOWN.get(name, (b"", set[str]()))
    assert differences(theirs, ours(wire, body)) <= fields
    assert evidence in body.replace(b": ", b":") or evidence in body
