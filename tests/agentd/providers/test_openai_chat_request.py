"""What a conversation becomes on the openai-chat wire: always one that servers accept."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.openai_chat_request import NO_RESULT, ChatQuirks, build_request
from agentd.providers.stream import ModelRequest, ToolSpec
from agentd.providers.tool_input import mend
from tracewriter.events import ToolCall

CALL = ToolCall("t1", "read_file", Raw(b'{"path":"a"}'))


def body(*messages: Message, quirks: ChatQuirks | None = None, **more: Any) -> dict[str, Any]:
    request = ModelRequest("m", more.pop("system", ""), messages, **more)
    built: dict[str, Any] = json.loads(build_request(request, quirks or ChatQuirks()))
    return built


def sent(*messages: Message, quirks: ChatQuirks | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*messages, quirks=quirks)["messages"]
    return found


def test_the_least_that_is_sent() -> None:
    assert body(UserMessage("hi")) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_settings_are_sent_only_when_set_and_under_the_servers_name() -> None:
    full = body(UserMessage("hi"), max_tokens=9, temperature=0.0)
    assert (full["max_tokens"], full["temperature"]) == (9, 0.0)
    other = body(
        UserMessage("hi"),
        max_tokens=9,
        quirks=ChatQuirks(include_usage=False, max_tokens_field="max_completion_tokens"),
    )
    assert other["max_completion_tokens"] == 9
    assert {"max_tokens", "temperature", "stream_options", "tools"}.isdisjoint(other)


def test_system_comes_first_and_tools_carry_their_schema() -> None:
    tool = ToolSpec("f", "does f", Raw(b'{"type":"object"}'))
    built = body(UserMessage("hi"), system="be brief", tools=(tool,))
    assert built["messages"][0] == {"role": "system", "content": "be brief"}
    function = {"name": "f", "description": "does f", "parameters": {"type": "object"}}
    assert built["tools"] == [{"type": "function", "function": function}]


def test_calls_and_results_are_linked_and_arguments_are_a_string() -> None:
    assert sent(UserMessage("q"), AssistantMessage("", tool_calls=(CALL,)), ToolMessage("t1", "read_file", "text")) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"}'}}
            ],
        },
        {"role": "tool", "content": "text", "tool_call_id": "t1"},
    ]


def test_a_call_that_was_never_answered_is_answered() -> None:
    other = ToolCall("t2", "f", Raw(b"{}"))
    messages = sent(AssistantMessage("", tool_calls=(CALL, other)), ToolMessage("t2", "f", "2"), UserMessage("go on"))
    assert [(m["role"], m["content"]) for m in messages[1:]] == [("tool", NO_RESULT), ("tool", "2"), ("user", "go on")]


def test_a_result_without_its_call_is_said_as_text() -> None:
    [message] = sent(ToolMessage("gone", "read_file", "text"))
    assert message["role"] == "user"
    assert "text" in message["content"]


def test_neighbours_of_one_role_are_one_message_and_nothing_is_empty() -> None:
    messages = (
        UserMessage("a"),
        UserMessage(" "),
        UserMessage("b"),
        AssistantMessage(""),
        AssistantMessage("c"),
        AssistantMessage("d"),
    )
    assert sent(*messages) == [{"role": "user", "content": "a\n\nb"}, {"role": "assistant", "content": "c\n\nd"}]


def test_reasoning_goes_back_only_where_it_is_wanted() -> None:
    message = AssistantMessage("", "I think", (CALL,))
    assert "reasoning_content" not in sent(message)[0]
    assert sent(message, quirks=ChatQuirks(reasoning_field="reasoning_content"))[0]["reasoning_content"] == "I think"


def test_opaque_data_goes_back_to_those_who_take_it() -> None:
    opaque = (
        Raw(b'{"reasoning_details":[{"type":"reasoning.encrypted","data":"AA"}]}'),
        Raw(b'{"extra_content":{"t1":{"google":{"thought_signature":"BB"}}}}'),
        Raw(b'{"reasoning_opaque":"CC"}'),
        Raw(b'["of another wire"]'),
        Raw(b'{"thinking":"of another wire"}'),
    )
    message = sent(AssistantMessage("", tool_calls=(CALL,), opaque=opaque))[0]
    assert message["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "AA"}]
    assert message["reasoning_opaque"] == "CC"
    assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "BB"}}
    strict = sent(AssistantMessage("", tool_calls=(CALL,), opaque=opaque), quirks=ChatQuirks(send_back=()))[0]
    assert set(strict) == {"role", "content", "tool_calls"}
    assert "extra_content" not in strict["tool_calls"][0]


TEXTS = st.text(st.characters() | st.sampled_from("\ud800\udfff\u2028\x00"), max_size=8)
CALLS = st.builds(ToolCall, st.sampled_from("abc"), TEXTS, st.just(Raw(b"{}")))
MESSAGES = (
    st.builds(UserMessage, TEXTS)
    | st.builds(AssistantMessage, TEXTS, TEXTS, st.lists(CALLS, max_size=3, unique_by=lambda call: call.id).map(tuple))
    | st.builds(ToolMessage, st.sampled_from("abc"), TEXTS, TEXTS)
)


@given(st.lists(MESSAGES, max_size=10))
def test_any_conversation_is_well_formed_on_the_wire(messages: list[Message]) -> None:
    pending: list[str] = []
    last = ""
    for message in sent(*messages):
        if message["role"] == "tool":
            assert message["tool_call_id"] == pending.pop(0)
        else:
            assert pending == []
            pending = [call["id"] for call in message.get("tool_calls", [])]
            assert pending or message["content"].strip()
            assert pending or message["role"] != last or last == "assistant"
        last = message["role"]
    assert pending == []


@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=80)), max_size=5, unique_by=lambda pair: pair[0]),
    st.booleans(),
)
def test_ids_and_names_of_another_providers_model_are_ones_that_the_server_takes(
    made: list[tuple[str, str]], nine: bool
) -> None:
    calls = tuple(ToolCall(call_id, name, Raw(b"{}")) for call_id, name in made)
    results_given = [ToolMessage(call.id, call.name, call.id) for call in calls]
    messages: tuple[Message, ...] = (UserMessage("u"), AssistantMessage("t", "", calls), *results_given)
    sent = [json.loads(build_request(ModelRequest("m", "", messages), ChatQuirks(nine_ids=nine))) for _ in range(2)]
    assert sent[0] == sent[1]
    given_calls = sent[0]["messages"][1].get("tool_calls", [])
    for call in given_calls:
        assert re.fullmatch(r"[A-Za-z0-9]{9}" if nine else r"(?s).{1,40}", call["id"])
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["function"]["name"])
    results = [message for message in sent[0]["messages"] if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == [call["id"] for call in given_calls]
    assert [result["content"] for result in results] == [mend(call.id) for call in calls]


def test_what_the_server_takes_goes_back_as_it_was() -> None:
    for call_id, nine in (("toolu_01ABC", False), ("functions.read:0", False), ("a" * 40, False), ("abcdEF123", True)):
        call = ToolCall(call_id, "read_file", Raw(b"{}"))
        messages = (UserMessage("u"), AssistantMessage("", "", (call,)))
        body = json.loads(build_request(ModelRequest("m", "", messages), ChatQuirks(nine_ids=nine)))
        assert body["messages"][1]["tool_calls"][0]["id"] == call_id
