"""What a conversation becomes on the openai-responses wire: always one that the API accepts, and nothing that it must look up."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.context import shrink
from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.openai_chat_request import NO_RESULT
from agentd.providers.openai_responses_request import build_request
from agentd.providers.responses_kept import KeptItem, KeptOutput, encode_kept
from agentd.providers.stream import ModelRequest, Opaque, Text, ToolSpec
from tests import strategies
from tests.responses_events import completed, decode, said
from tracewriter.events import ToolCall

CALL = ToolCall("t1", "read_file", Raw(b'{"path":"a"}'))
OTHER = ToolCall("t2", "glob", Raw(b"{}"))
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AA=="}
MORE = {
    "type": "reasoning",
    "id": "rs_2",
    "summary": [{"type": "summary_text", "text": "s"}],
    "encrypted_content": "BB",
}


def body(*messages: Message, model: str = "gpt-5.4", **more: Any) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(build_request(ModelRequest(model, more.pop("system", ""), messages, **more)))
    return built


def sent(*messages: Message, model: str = "gpt-5.4") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*messages, model=model)["input"]
    return found


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def kept(*items: KeptItem, model: str = "gpt-5.4-2026-03-05") -> tuple[Raw, ...]:
    return (Raw(b'["of another wire"]'), Raw(b'{"reasoning_opaque":"CC"}'), encode_kept(KeptOutput(items, model)))


def message(role: str, content: str, **more: str) -> dict[str, str]:
    return {"type": "message", "role": role, "content": content, **more}


def call(of: ToolCall) -> dict[str, str]:
    return {"type": "function_call", "call_id": of.id, "name": of.name, "arguments": bytes(of.input).decode()}


def output(of: ToolCall, text: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": of.id, "output": text}


def test_the_least_that_is_sent_is_stateless_and_asks_for_what_must_come_back() -> None:
    assert body(UserMessage("hi")) == {
        "model": "gpt-5.4",
        "input": [message("user", "hi")],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_settings_are_sent_only_when_set() -> None:
    full = body(UserMessage("hi"), max_tokens=99, temperature=0.0, system="be brief")
    assert (full["max_output_tokens"], full["temperature"], full["instructions"]) == (99, 0.0, "be brief")
    assert {"max_tokens", "tools", "parallel_tool_calls", "previous_response_id"}.isdisjoint(full)


def test_tools_carry_their_schema_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    built = body(UserMessage("hi"), tools=(ToolSpec("f", "does f", raw(schema)),))
    assert built["tools"] == [
        {"type": "function", "name": "f", "description": "does f", "parameters": schema, "strict": False}
    ]
    assert built["parallel_tool_calls"] is True


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        ("gpt-5.4", True), ("o3", True), ("gpt-5-codex", True), ("grok-4", True), ("openai/gpt-5", True), ("qwen3", True),
        ("gpt-4o", False), ("gpt-4.1-mini", False), ("openai/gpt-4o-mini", False), ("gpt-5-chat-latest", False),
        ("gpt-5.2-chat-latest", False), ("gpt-3.5-turbo", False), ("chatgpt-4o-latest", False), ("gpt-oss-120b", True),
    ],
)  # fmt: skip
def test_encrypted_reasoning_is_asked_of_and_given_to_models_that_reason_and_no_others(
    model: str, reasons: bool
) -> None:
    opaque = kept(KeptItem(reasoning=raw(REASONING)), KeptItem(text=1), model="")
    built = body(UserMessage("q"), AssistantMessage("a", opaque=opaque), model=model)
    assert ("include" in built) is reasons
    assert (REASONING in built["input"]) is reasons


def test_parallel_calls_and_their_results_are_linked_and_in_order() -> None:
    assert sent(
        UserMessage("q"),
        AssistantMessage("I look", "thought", (CALL, OTHER)),
        ToolMessage("t2", "glob", "two"),
        ToolMessage("t1", "read_file", ""),
        UserMessage("go on"),
    ) == [
        message("user", "q"),
        message("assistant", "I look"),
        call(CALL),
        call(OTHER),
        output(CALL, ""),
        output(OTHER, "two"),
        message("user", "go on"),
    ]


def test_a_call_that_was_never_answered_is_answered_and_a_result_without_its_call_is_said() -> None:
    items = sent(ToolMessage("gone", "read_file", "text"), AssistantMessage("", tool_calls=(CALL,)))
    assert items[0]["role"] == "user"
    assert "text" in items[0]["content"]
    assert items[1:] == [call(CALL), output(CALL, NO_RESULT)]


def test_what_the_user_said_in_a_row_is_one_message_and_nothing_is_empty() -> None:
    messages = (UserMessage("a"), UserMessage(" "), UserMessage("b"), AssistantMessage(""), AssistantMessage("c"))
    assert sent(*messages) == [message("user", "a\n\nb"), message("assistant", "c")]


def test_reasoning_goes_back_as_it_came_right_before_what_it_led_to() -> None:
    opaque = kept(
        KeptItem(reasoning=raw(REASONING)),
        KeptItem(text=4, phase="commentary"),
        KeptItem(reasoning=raw(MORE)),
        KeptItem(call=True),
        KeptItem(call=True),
        KeptItem(text=3, phase="final_answer"),
    )
    assert sent(AssistantMessage("I doend", tool_calls=(CALL, OTHER), opaque=opaque)) == [
        REASONING,
        message("assistant", "I do", phase="commentary"),
        MORE,
        call(CALL),
        call(OTHER),
        message("assistant", "end", phase="final_answer"),
        output(CALL, NO_RESULT),
        output(OTHER, NO_RESULT),
    ]


def test_what_came_with_an_answer_only_is_not_sent() -> None:
    came = {**REASONING, "status": "completed", "content": [], "other": None, "format": "x"}
    items = sent(AssistantMessage("a", opaque=kept(KeptItem(reasoning=raw(came)), KeptItem(text=1))))
    assert items[0] == {**REASONING, "format": "x"}


def test_the_models_own_words_go_back_to_servers_that_encrypt_nothing() -> None:
    words = [{"type": "reasoning_text", "text": "why"}]
    came = {"type": "reasoning", "id": "r", "summary": [], "content": words, "encrypted_content": ""}
    items = sent(
        AssistantMessage("", tool_calls=(CALL,), opaque=kept(KeptItem(reasoning=raw(came)), KeptItem(call=True)))
    )
    assert items[0] == {"type": "reasoning", "id": "r", "summary": [], "content": words}


@pytest.mark.parametrize(
    "broken", [{}, {"type": "reasoning"}, {**REASONING, "type": "message"}, [1], {**REASONING, "encrypted_content": ""}]
)
def test_reasoning_that_is_none_is_left_out(broken: object) -> None:
    opaque = kept(KeptItem(reasoning=raw(broken)), KeptItem(text=1))
    assert sent(AssistantMessage("a", opaque=opaque)) == [message("assistant", "a")]


def test_reasoning_alone_is_never_sent() -> None:
    before_text = kept(KeptItem(reasoning=raw(REASONING)), KeptItem(text=3))
    before_call = kept(KeptItem(reasoning=raw(REASONING)), KeptItem(call=True))
    for opaque in (before_text, before_call):
        assert sent(UserMessage("q"), AssistantMessage("", opaque=opaque)) == [message("user", "q")]
    assert sent(AssistantMessage("", tool_calls=(CALL,), opaque=before_text))[0] == call(CALL)


def test_a_text_that_was_trimmed_stands_where_the_first_message_stood() -> None:
    opaque = kept(KeptItem(reasoning=raw(REASONING)), KeptItem(text=9), KeptItem(call=True), KeptItem(text=9))
    items = sent(AssistantMessage("cut…", tool_calls=(CALL,), opaque=opaque))
    assert items == [REASONING, message("assistant", "cut…"), call(CALL), output(CALL, NO_RESULT)]


def test_calls_that_the_order_does_not_know_come_last_and_none_is_lost() -> None:
    opaque = kept(KeptItem(reasoning=raw(REASONING)), KeptItem(call=True))
    items = sent(AssistantMessage("text", tool_calls=(CALL, OTHER), opaque=opaque))
    assert items[:4] == [message("assistant", "text"), REASONING, call(CALL), call(OTHER)]


@pytest.mark.parametrize(
    ("model", "of", "same"),
    [("gpt-5.4", "gpt-5.4-mini", True), ("gpt-5.4", "o4-mini", True), ("gpt-5.4", "grok-4", False), ("grok-4", "gpt-5", False),
     ("my-deployment", "gpt-5", True), ("gpt-5", "", True), ("openai/gpt-5", "openai/gpt-5-2026", True)],
)  # fmt: skip
def test_reasoning_that_another_vendor_encrypted_stays_here(model: str, of: str, same: bool) -> None:
    opaque = kept(KeptItem(reasoning=raw(REASONING)), KeptItem(text=1), model=of)
    assert (REASONING in sent(AssistantMessage("a", opaque=opaque), model=model)) is same


def test_ids_and_names_that_the_api_refuses_are_made_ones_that_it_takes() -> None:
    long = ToolCall("x" * 65, "read file.now" + "y" * 100, Raw(b"{}"))
    made, answer = sent(AssistantMessage("", tool_calls=(long,)), ToolMessage(long.id, "f", "ok"))
    assert made["call_id"] == answer["call_id"]
    assert len(made["call_id"]) <= 64
    assert made["name"].startswith("read_file_now")
    assert len(made["name"]) <= 64
    assert answer["output"] == "ok"


def test_what_a_decoder_gave_makes_the_next_request() -> None:
    items: list[dict[str, Any]] = [
        {**REASONING, "content": []},
        {"type": "message", "id": "msg_1", "phase": "commentary", "content": said("Looking. ")},
        MORE,
        {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "read_file", "arguments": '{"path": "a"}'},
        {"type": "message", "id": "msg_2", "phase": "final_answer", "content": said("Done.")},
    ]
    events = decode(completed(*items, model="gpt-5.4"))
    answer = AssistantMessage(
        "".join(event.text for event in events if isinstance(event, Text)),
        tool_calls=tuple(event for event in events if isinstance(event, ToolCall)),
        opaque=tuple(event.data for event in events if isinstance(event, Opaque)),
    )
    assert sent(answer, ToolMessage("t1", "read_file", "text")) == [
        REASONING,
        message("assistant", "Looking. ", phase="commentary"),
        MORE,
        call(CALL),
        message("assistant", "Done.", phase="final_answer"),
        output(CALL, "text"),
    ]


def test_a_conversation_of_nothing_is_still_a_request() -> None:
    for messages in ((), (UserMessage(" "), AssistantMessage(""))):
        [item] = sent(*messages)
        assert item["role"] == "user"


def assert_accepted(request: dict[str, Any]) -> None:
    """The API's rules for `input`: known items, none empty, ids matched, every call answered once, reasoning followed."""
    open_calls: dict[str, bool] = {}
    items = request["input"]
    assert items
    for place, item in enumerate(items):
        follower = items[place + 1] if place + 1 < len(items) else {"type": "nothing"}
        match item:
            case {"type": "message", "role": "user" | "assistant", "content": str() as content, **more}:
                assert content.strip()
                assert set(more) <= ({"phase"} if item["role"] == "assistant" else set())
                assert item["role"] == "assistant" or open_calls == {}
                assert (item["role"], follower.get("role")) != ("user", "user")
            case {
                "type": "function_call",
                "call_id": str() as call_id,
                "name": str() as name,
                "arguments": str() as text,
                **more,
            }:
                assert more == {}
                assert call_id not in open_calls
                assert 0 < len(call_id) <= 64
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
                json.loads(text)
                open_calls[call_id] = True
            case {"type": "function_call_output", "call_id": str() as call_id, "output": str(), **more}:
                assert more == {}
                del open_calls[call_id]  # KeyError: an orphan
            case {"type": "reasoning", "summary": list(), **more}:
                assert more.get("encrypted_content") or more.get("content")
                assert None not in more.values()
                assert "status" not in more
                assert follower["type"] in ("reasoning", "function_call") or follower.get("role") == "assistant"
            case _:
                raise AssertionError(item)
    assert open_calls == {}


IDS = st.sampled_from(["a", "b", "c", "x" * 70, "\ud800"])
CALLS = st.builds(ToolCall, IDS, strategies.nasty_text, st.sampled_from([Raw(b"{}"), Raw(b'{"a":"\\u00e9"}')]))
KEPT = st.builds(
    KeptItem,
    reasoning=st.sampled_from([REASONING, MORE, {**REASONING, "id": None}, {"type": "reasoning"}, 7]).map(raw),
) | st.builds(KeptItem, text=st.integers(0, 9), phase=st.sampled_from(["", "commentary"]), call=st.booleans())
OPAQUE = st.lists(
    st.lists(KEPT, max_size=7).map(lambda items: kept(*items)[-1])
    | st.sampled_from([Raw(b"{}"), Raw(b'{"responses_output":{"items":[{"text":"x"}]}}'), Raw(b"\xff")]),
    max_size=2,
).map(tuple)
MESSAGES = (
    st.builds(UserMessage, strategies.nasty_text)
    | st.builds(
        AssistantMessage,
        strategies.nasty_text,
        strategies.nasty_text,
        st.lists(CALLS, max_size=3, unique_by=lambda one: one.id).map(tuple),
        OPAQUE,
    )
    | st.builds(ToolMessage, IDS, strategies.nasty_text, strategies.nasty_text)
)


@given(
    st.lists(MESSAGES, max_size=10), st.sampled_from(["gpt-5.4", "gpt-4o", "grok-4", "\ud800"]), strategies.nasty_text
)
def test_any_conversation_is_well_formed_on_the_wire(messages: list[Message], model: str, system: str) -> None:
    request = body(*messages, model=model, system=system)
    assert_accepted(request)
    results = [item for item in request["input"] if item["type"] == "function_call_output"]
    assert len(results) == sum(len(one.tool_calls) for one in messages if isinstance(one, AssistantMessage))


SOME_CALLS = (CALL, OTHER, ToolCall("x" * 70, "f", Raw(b'{"a":"b"}')))
CLEAN = st.builds(UserMessage, strategies.clean_text) | st.builds(
    AssistantMessage,
    strategies.clean_text,
    strategies.clean_text,
    st.lists(st.sampled_from([0, 1, 2]), max_size=3, unique=True).map(lambda at: tuple(SOME_CALLS[n] for n in at)),
    st.lists(KEPT, max_size=7).map(lambda items: kept(*items)[-1:]),
)


@given(st.lists(CLEAN, max_size=8), st.integers(0, 400), st.sets(st.integers(0, 7)))
def test_a_conversation_that_was_trimmed_or_had_parts_left_out_is_well_formed_too(
    messages: list[Message], chars: int, gone: set[int]
) -> None:
    left: list[Message] = [shrink(one, chars) for place, one in enumerate(messages) if place not in gone]
    assert_accepted(body(*left))
