"""Reasons are found in whatever shape they come, on one bounded line, and a key is in none of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers import errors
from agentd.providers.errors import Reason, hint_for, http_failure, one_line, reason_of, retryable
from tests import wire_corpus


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ('{"error":{"message":"m"}}', "", "m"),
        ('{"error":"m"}', "", "m"),
        ('{"message":"m","type":"x"}', "", "m"),
        ('{"detail":"m"}', "", "m"),
        ('{"detail":[{"loc":["body","model"],"msg":"missing"},{"msg":"b"}]}', "", "missing (body.model); b"),
        ('[{"error":{"message":"m"}}]', "", "m"),
        ('{"errors":["a","b"]}', "", "a; b"),
        ('{"object":"error","message":{"detail":[{"loc":["body","x"],"msg":"Extra inputs"}]}}', "", "Extra inputs (body.x)"),
        ('{"error":{"message":"Provider returned error","metadata":{"raw":"{\\"error\\":{\\"message\\":\\"slow down\\"}}"}}}', "",
         "Provider returned error: slow down"),
        ('{"error":{"type":"rate_limit"}}', "", "rate_limit"),
        ('{"error":{}}', "", "no reason given"),
        ("null", "", "no reason given"),
        ("plain  text\nover lines", "text/plain", "plain text over lines"),
        ("<html><head><title>502 Bad\nGateway</title></head><body>x</body></html>", "text/html", "502 Bad Gateway"),
        ("<!DOCTYPE html><p>down <b>now</b></p><script>evil()</script>", "", "down now"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_a_reason_is_found_in_every_shape(body: str, content_type: str, text: str) -> None:
    assert reason_of(body.encode(), content_type).text == text


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic", "gemini"])
def test_recorded_bodies_give_their_reasons(wire: str) -> None:
    wire_corpus.need_corpus()
    for case in wire_corpus.http_errors(wire):
        found = reason_of(case["body"].encode(), case["content_type"])
        assert case["message_must_contain"] in found.text
        assert len(found.text) <= errors.MAX_REASON_CHARS


def test_the_line_is_bounded_and_holds_no_control_characters() -> None:
    text = one_line("a\x1b[31m\u202e\u2028\x00b" + "x" * 5000)
    assert text.startswith("a [31m b")
    assert len(text) == errors.MAX_REASON_CHARS
    assert text.isprintable()


@pytest.mark.parametrize(
    "key",
    ["sk-proj-abcdefgh1234", "sk-inval**************-key", "gsk_abcdefghij0123", "AIzaSyA1234567890abcdefghijk",
     "xai-abcdefgh12345", "Bearer abcdefgh12345678", "abcd****************wxyz"],
)  # fmt: skip
def test_what_looks_like_a_key_is_not_shown(key: str) -> None:
    assert one_line(f"bad key: {key}, sorry") in ("bad key: [redacted], sorry", "bad key: [redacted] sorry")


def test_words_that_resemble_keys_are_left() -> None:
    text = "a risk-based-approach and task-management-tools with desk-lamps-and-more"
    assert one_line(text) == text


@given(st.text(alphabet="abcXYZ019_-.", min_size=4, max_size=40), st.text(), st.text())
def test_the_key_in_use_is_never_shown(key: str, before: str, after: str) -> None:
    assert (
        key not in one_line(before + key + after, [key]).replace("[redacted]", "").replace("…", "")
        or key in before + after
    )


def test_401_and_403_say_different_things() -> None:
    assert "OPENAI_API_KEY" in hint_for(401, key_name="OPENAI_API_KEY")
    assert "not accepted" in hint_for(401)
    assert "was accepted" in hint_for(403)


@pytest.mark.parametrize(
    ("status", "words", "part"),
    [
        (402, "", "credit"), (429, "", "rate limit"), (429, "insufficient_quota", "credit"), (404, "", "model's name"),
        (400, "The model `x` does not exist", "model's name"), (413, "", "too long"), (400, "context_length_exceeded", "too long"),
        (400, "prompt is too long: 3 tokens > 2", "too long"), (500, "exceeds the available context size", "too long"),
        (529, "", "overloaded"), (503, "", "later"), (400, "temperature", "does not take"),
        (0, "rate_limit_exceeded slow", "rate limit"), (0, "overloaded_error", "overloaded"), (0, "server_error boom", "later"),
        (0, "insufficient_quota", "credit"), (0, "invalid_api_key", "not accepted"), (0, "", "another model"),
        (400, "invalid_api_key", "not accepted"), (418, "", "base URL"),
    ],
)  # fmt: skip
def test_each_status_has_its_next_step(status: int, words: str, part: str) -> None:
    hint = hint_for(status, words)
    assert part in hint


def test_no_status_and_no_error_of_a_stream_is_without_a_next_step() -> None:
    assert all(hint_for(status) for status in (0, *range(400, 1000)))
    for body in (b'{"message": "boom"}', b'{"type": "server_error", "message": "boom"}', b"boom", b"500", b"true"):
        failure, _ = errors.stream_failure(reason_of(body))
        assert failure.hint


@pytest.mark.parametrize(
    "shown", ["Qx7pL0zz9Wm4RtY2bN", "Qx7pL0zz9W...Y2bN", "Qx7pL0zz****Y2bN", "Qx7pL0zz…", "Qx7pL0zz9Wm4RtY2"]
)
def test_no_beginning_of_a_key_is_shown_whatever_its_form(shown: str) -> None:
    text = one_line(f"bad key {shown}, sorry", ("Qx7pL0zz9Wm4RtY2bN",))
    assert text == "bad key [redacted], sorry"


def test_what_may_pass_later_is_told_from_what_will_not() -> None:
    assert [status for status in range(400, 600) if retryable(status)] == [408, 409, 429, *range(500, 600)]
    assert not retryable(429, "You exceeded your current quota")
    assert retryable(None, "overloaded_error")
    assert not retryable(None, "invalid_request_error")


def test_an_http_failure_is_one_line_for_people() -> None:
    failure = http_failure(429, Reason("slow down", 429, "rate_limit"), "groq", wait_s=7.4)
    assert failure.message == "groq answered 429: slow down (asked to wait 7 s)"
    assert (failure.kind, failure.status) == ("provider", 429)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["error", "message", "detail", "code", "status", "type", "metadata", "raw", "loc", "msg", "errors"]), inner),
    max_leaves=20,
))  # fmt: skip
def test_any_json_gives_one_line(value: object) -> None:
    found = reason_of(json.dumps(value).encode())
    assert found.text.isprintable()
    assert len(found.text) <= errors.MAX_REASON_CHARS


@given(st.binary(max_size=500), st.sampled_from(["", "text/html", "application/json"]))
def test_any_bytes_give_one_line(body: bytes, content_type: str) -> None:
    assert reason_of(body, content_type).text.isprintable()
    assert reason_of(b"[" * 100_000).text.isprintable()


def test_the_cause_of_a_chain_is_the_systems_own_words() -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")
    assert errors.cause_of(outer) == "connection refused"
    assert errors.cause_of(RuntimeError()) == "RuntimeError"
