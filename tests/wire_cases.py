"""What the tests of all wires ask of a decoder: the contract of its events, any cut, and the cases of the corpus."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from agentd.providers.stream import Failed, Finished, StreamEvent, UsageReported
from agentd.providers.summary import summarise
from agentd.providers.tool_calls import CutCall
from agentd.providers.wires import WireDecoder
from tests.replay_server import Script, Send
from tracewriter.events import ToolCall


class KnownDecoder(WireDecoder, Protocol):
    """A wire's decoder as the summary needs it."""

    complete: bool
    calls: list[ToolCall | CutCall]


class Decoded(Struct):
    """What came out of a body: the events, and the summary as JSON has it."""

    events: list[StreamEvent]
    summary: dict[str, Any]


Make = Callable[[Callable[[], str]], KnownDecoder]


def decode(make: Make, pieces: Iterable[bytes]) -> Decoded:
    """Decode a body that comes in pieces; ids that are made are made_0, made_1, …; after the end nothing comes."""
    ids = itertools.count()
    decoder = make(lambda: f"made_{next(ids)}")
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.end()
    assert decoder.feed(b"data: more\n\n") + decoder.end() == []
    assert decoder.ended
    assert decoder.settled
    return Decoded(events, json.loads(msgspec.json.encode(summarise(events, decoder))))


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    """The body in pieces, cut at the places."""
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def bytewise(body: bytes) -> list[bytes]:
    """The body byte by byte."""
    return [body[at : at + 1] for at in range(len(body))]


def assert_contract(events: list[StreamEvent]) -> None:
    """One usage, one end, nothing after it; ids are unique, inputs are JSON on one line, and everything can be encoded."""
    assert [type(event) for event in events if isinstance(event, UsageReported | Finished | Failed)] in (
        [UsageReported, Finished],
        [UsageReported, Failed],
    )
    assert isinstance(events[-1], Finished | Failed)
    assert isinstance(events[-2], UsageReported)
    msgspec.json.encode(events)
    calls = [event for event in events if isinstance(event, ToolCall)]
    ids = [call.id for call in calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    for call in calls:
        assert b"\n" not in bytes(call.input)
        msgspec.json.decode(call.input)
    if isinstance(events[-1], Failed):
        assert calls == []
        assert events[-1].failure.message


def body_of(fault: dict[str, Any]) -> bytes:
    """The bytes of a fault case, as far as they are sent."""
    return b"".join(step.data for step in Script.of_fault(fault).steps if isinstance(step, Send))


def fault_mismatches(fault: dict[str, Any], got: Decoded) -> list[str]:
    """What differs from a fault case's expectation; an expected finish of null is not compared."""
    expected, summary = fault["expected"], got.summary
    keys = ("text", "reasoning", "complete") + (("finish",) if expected["finish"] is not None else ())
    wrong = [f"{key}: {summary[key]!r}" for key in keys if summary[key] != expected[key]]
    calls = [(call["name"], call["input"]) for call in summary["tool_calls"]]
    if calls != [(call["name"], call["input"]) for call in expected["tool_calls"]]:
        wrong.append(f"calls: {calls}")
    wanted = [call["id"] for call in expected["tool_calls"]]
    if [(want or call["id"]) for want, call in zip(wanted, summary["tool_calls"], strict=False)] != [
        call["id"] for call in summary["tool_calls"]
    ]:
        wrong.append("ids")
    run = {event.id for event in got.events if isinstance(event, ToolCall)}
    wrong += [f"ran {call_id}" for call_id in fault.get("must_not_execute", []) if call_id in run]
    return wrong + _usage_mismatches(expected["usage"], summary["usage"]) + _error_mismatches(fault, got)


def _usage_mismatches(expected: dict[str, int] | None, got: dict[str, int] | None) -> list[str]:
    if expected is None or got is None:
        return [] if got == expected else [f"usage: {got}"]
    given = expected.get("inputTokensTotal", expected["inputTokens"])
    produced = expected.get("outputTokensTotal", expected["outputTokens"])
    wanted = [count or 0 for count in (given, produced, expected.get("reasoningTokens"))]
    had = [got[name] or 0 for name in ("input_tokens", "output_tokens", "reasoning_tokens")]
    return [] if wanted == had else [f"usage: {got}"]


def _error_mismatches(fault: dict[str, Any], got: Decoded) -> list[str]:
    expected, error, last = fault["expected"]["error"], got.summary["error"], got.events[-1]
    if expected is None or error is None:
        return [] if error == expected else [f"error: {error}"]
    assert isinstance(last, Failed)
    wrong = [f"error: no {words!r} in {error}" for words in expected["must_contain"] if words not in error["message"]]
    if error["kind"] != expected["kind"] or expected["retryable"] not in (None, last.retryable):
        wrong.append(f"error: {last}")
    return wrong
