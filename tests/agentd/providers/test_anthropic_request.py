"""What a conversation becomes on the anthropic wire: always one that the provider's own rules accept."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.context import Window
from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.anthropic_request import BEGINNING, GO_ON, NO_OUTPUT, build_request, max_tokens_for
from agentd.providers.openai_chat_request import NO_RESULT
from agentd.providers.stream import ModelRequest, ToolSpec
from tests.strategies import nasty_text, plain_json
from tracewriter import jsonl
from tracewriter.events import ToolCall

CALL = ToolCall("t1", "read_file", Raw(b'{"path":"a"}'))
CACHE = {"type": "ephemeral"}
TOOL = ToolSpec("f", "does f", Raw(b'{"type":"object","properties":{}}'))
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def body(*messages: Message, model: str = "claude-sonnet-4-6", system: str = "", **more: Any) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(build_request(ModelRequest(model, system, messages, **more)))
    return built


def sent(*messages: Message, model: str = "claude-sonnet-4-6") -> list[tuple[str, list[Any]]]:
    """Roles and contents, cache marks taken off, texts as strings."""
    return [
        (turn["role"], [plain(block) for block in turn["content"]]) for turn in body(*messages, model=model)["messages"]
    ]


def plain(block: dict[str, Any]) -> Any:
    block = {name: value for name, value in block.items() if name != "cache_control"}
    return block["text"] if block["type"] == "text" else block


def kept(*content: dict[str, Any], model: str = "claude-sonnet-4-6") -> Raw:
    return Raw(json.dumps({"anthropic": {"model": model, "content": content}}).encode())


def test_the_least_that_is_sent() -> None:
    assert body(UserMessage("hi")) == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 32_000,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": CACHE}]}],
    }


def test_a_whole_tool_turn_is_in_the_wires_own_shape() -> None:
    opaque = kept(SIGNED, {"type": "text", "chars": 10}, {"type": "tool_use", "id": "t1"})
    messages = (
        UserMessage("q"),
        AssistantMessage("let me see", "hm", (CALL,), (opaque,)),
        ToolMessage("t1", "read_file", "no such file", is_error=True),
    )
    built = body(*messages, system="be brief", tools=(TOOL,), max_tokens=9, temperature=0.0)
    assert built == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "stream": True,
        "temperature": 0.0,
        "system": [{"type": "text", "text": "be brief", "cache_control": CACHE}],
        "tools": [
            {
                "name": "f",
                "description": "does f",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": CACHE,
            }
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": CACHE}]},
            {
                "role": "assistant",
                "content": [
                    SIGNED,
                    {"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": "no such file",
                        "is_error": True,
                        "cache_control": CACHE,
                    }
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-opus-4-6", 32_000), ("claude-sonnet-4-20250514", 32_000), ("us.anthropic.claude-haiku-4-5-v1:0", 32_000),
        ("claude-3-7-sonnet-latest", 32_000), ("claude-3-5-haiku-latest", 8192), ("claude-3-opus-20240229", 4096),
        ("claude-2.1", 4096), ("claude-instant-1.2", 4096), ("anthropic/Claude-Sonnet-4.5", 32_000), ("qwen3", 8192),
    ],
)  # fmt: skip
def test_every_model_has_a_limit_that_it_takes(model: str, limit: int) -> None:
    assert max_tokens_for(model) == limit


def test_results_come_first_in_the_order_of_the_calls_and_missing_ones_are_made_up() -> None:
    other = ToolCall("t2", "f", Raw(b"{}"))
    messages = sent(
        UserMessage("q"),
        AssistantMessage("", tool_calls=(CALL, other)),
        ToolMessage("t2", "f", " "),
        UserMessage("go on"),
    )
    missing = {"type": "tool_result", "tool_use_id": "t1", "content": NO_RESULT, "is_error": True}
    assert messages[2] == (
        "user",
        [missing, {"type": "tool_result", "tool_use_id": "t2", "content": NO_OUTPUT}, "go on"],
    )


def test_neighbours_of_one_role_are_one_turn_and_nothing_is_blank() -> None:
    messages = (UserMessage("a"), UserMessage(" \n"), UserMessage("b"), AssistantMessage(""), AssistantMessage("c"))
    assert sent(*messages, AssistantMessage("d"), UserMessage("e")) == [
        ("user", ["a", "b"]),
        ("assistant", ["c", "d"]),
        ("user", ["e"]),
    ]


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    assert sent(AssistantMessage("a")) == [("user", [BEGINNING]), ("assistant", ["a"]), ("user", [GO_ON])]
    assert sent() == [("user", [GO_ON])]


def test_a_result_without_its_call_is_said_as_text() -> None:
    [(role, [text])] = sent(ToolMessage("gone", "read_file", "text"))
    assert (role, text) == ("user", "[result of an earlier read_file call]\ntext")


def test_ids_and_names_of_other_wires_are_made_to_fit() -> None:
    odd = ToolCall("functions.read:0", "fs.read", Raw(b"[1]"))
    again = ToolCall("functions.read:0", "", Raw(b"{}"))
    messages = sent(
        UserMessage("q"),
        AssistantMessage("", tool_calls=(odd,)),
        ToolMessage("functions.read:0", "x", "1"),
        AssistantMessage("", tool_calls=(again,)),
        ToolMessage("functions.read:0", "x", "2"),
    )
    uses = [block for role, content in messages if role == "assistant" for block in content]
    assert [(use["id"], use["name"], use["input"]) for use in uses] == [
        ("functions_read_0", "fs_read", {"_raw": [1]}),
        ("functions_read_0_2", "tool", {}),
    ]
    results = [block for role, content in messages[1:] if role == "user" for block in content]
    assert [(r["tool_use_id"], r["content"]) for r in results] == [
        ("functions_read_0", "1"),
        ("functions_read_0_2", "2"),
    ]


def test_calls_of_a_conversation_are_declared_also_where_no_tool_may_be_used() -> None:
    built = body(UserMessage("q"), AssistantMessage("", tool_calls=(CALL,)), ToolMessage("t1", "read_file", "x"))
    assert [(tool["name"], tool["input_schema"]) for tool in built["tools"]] == [("read_file", {"type": "object"})]
    assert built["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in body(UserMessage("q"), tools=(TOOL,))


def test_at_most_four_cache_breakpoints_are_set_and_on_the_newest_turns() -> None:
    messages = [one for at in range(5) for one in (UserMessage(f"q{at}"), AssistantMessage(f"a{at}"))]
    built = body(*messages, UserMessage("last"), system="s", tools=(TOOL, TOOL))
    assert json.dumps(built).count("cache_control") == 4
    marked = [turn["content"][-1]["text"] for turn in built["messages"] if "cache_control" in turn["content"][-1]]
    assert marked == ["q4", "last"]


def text(chars: int) -> dict[str, Any]:
    return {"type": "text", "chars": chars}


USE = {"type": "tool_use", "id": "t1"}
USED = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}}


@pytest.mark.parametrize(
    ("said", "opaque", "expected"),
    [
        ("ab", [SIGNED, text(1), REDACTED, text(1), USE], [SIGNED, "a", REDACTED, "b", USED]),
        ("ab", [text(2), SIGNED, USE], ["ab", SIGNED, USED]),
        ("", [SIGNED, REDACTED, USE], [SIGNED, REDACTED, USED]),
        ("ab", [USE, SIGNED, text(2)], [USED, SIGNED, "ab"]),
        ("a", [text(1), USE, SIGNED], ["a", USED]),  # thinking may not end an answer
        ("  b", [SIGNED, text(2), REDACTED, text(1), USE], [SIGNED, REDACTED, "b", USED]),  # a blank text is refused
        ("cut", [text(2), SIGNED, text(99), USE], [SIGNED, "cut", USED]),  # no longer the answer that it was
        ("ab", [SIGNED, text(2)], [SIGNED, "ab", USED]),
        ("ab", [SIGNED, text(2), USE, {"type": "tool_use", "id": "t2"}], [SIGNED, "ab", USED]),
    ],
)
def test_thinking_goes_back_in_its_place_or_in_front(said: str, opaque: list[Any], expected: list[Any]) -> None:
    message = AssistantMessage(said, "", (CALL,), (Raw(b'{"reasoning_opaque":"x"}'), kept(*opaque)))
    assert sent(UserMessage("q"), message)[1] == ("assistant", expected)


def test_an_answer_of_nothing_but_thinking_is_left_out() -> None:
    for opaque in (kept(SIGNED), kept(SIGNED, text(5))):
        assert sent(UserMessage("q"), AssistantMessage("", "hm", (), (opaque,)), UserMessage("r")) == [
            ("user", ["q", "r"])
        ]


def test_a_merged_answer_begins_with_its_thinking() -> None:
    second = AssistantMessage("b", "", (CALL,), (kept(SIGNED, text(1), USE),))
    assert sent(UserMessage("q"), AssistantMessage("a"), second)[1][1] == [SIGNED, "a", "b", USED]
    first = AssistantMessage("a", "", (), (kept(REDACTED, text(1)),))
    assert sent(UserMessage("q"), first, second)[1][1] == [REDACTED, "a", SIGNED, "b", USED]


def test_thinking_that_another_makers_model_signed_is_not_sent_to_claude() -> None:
    message = AssistantMessage("a", "", (), (kept(SIGNED, text(1), model="kimi-k2"),))
    assert sent(UserMessage("q"), message)[1][1] == ["a"]
    assert sent(UserMessage("q"), message, model="kimi-k2")[1][1] == [SIGNED, "a"]
    for known in ("", "claude-opus-4-1", "anthropic/claude-opus-4.1"):
        message = AssistantMessage("a", "", (), (kept(SIGNED, text(1), model=known),))
        assert sent(UserMessage("q"), message)[1][1] == [SIGNED, "a"]


OPAQUE = st.one_of(
    st.lists(
        st.sampled_from([SIGNED, REDACTED, text(0), text(1), text(2), USE, {"type": "tool_use", "id": "b"}]), max_size=5
    ).map(lambda content: kept(*content)),
    plain_json.map(jsonl.raw),
)
CALLS = st.builds(
    ToolCall, st.sampled_from(["a", "b", "t1", "", "a.b", "a:b", "\ud800"]), nasty_text, plain_json.map(jsonl.raw)
)
MESSAGES = (
    st.builds(UserMessage, nasty_text)
    | st.builds(
        AssistantMessage,
        nasty_text,
        nasty_text,
        st.lists(CALLS, max_size=3).map(tuple),
        st.lists(OPAQUE, max_size=2).map(tuple),
    )
    | st.builds(ToolMessage, st.sampled_from(["a", "b", "t1", "", "a.b"]), nasty_text, nasty_text, st.booleans())
)
TOOLS = st.lists(st.builds(ToolSpec, nasty_text, nasty_text, st.just(Raw(b'{"properties":{}}'))), max_size=3).map(tuple)
NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def assert_accepted(built: dict[str, Any]) -> None:
    """The wire's rules, from the provider's reference and its error messages."""
    turns = built["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    assert isinstance(built["max_tokens"], int)
    ids: list[str] = []
    waiting: list[str] = []
    for turn in turns:
        content = turn["content"]
        assert content
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        assert results == waiting  # all of them, in order
        assert [block["type"] for block in content[: len(results)]] == ["tool_result"] * len(results)
        waiting = [block["id"] for block in content if block["type"] == "tool_use"]
        ids += waiting
        for block in content:
            assert_block(block, turn["role"])
        assert content[-1]["type"] not in ("thinking", "redacted_thinking")
    assert len(set(ids)) == len(ids)
    declared = [tool["name"] for tool in built.get("tools", [])]
    assert all(NAME.match(name) for name in declared)
    assert len(set(declared)) == len(declared)
    assert all(tool["input_schema"]["type"] == "object" for tool in built.get("tools", []))
    assert declared or not ids
    assert len(re.findall(r'"cache_control": \{"type": "ephemeral"\}', json.dumps(built))) <= 4
    assert all(block["text"].strip() for block in built.get("system", []))


FIELDS = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content"},
}


def assert_block(block: dict[str, Any], role: str) -> None:
    kind = block["type"]
    fields = set(block) - {"cache_control"} - ({"is_error"} if kind == "tool_result" else set())
    assert fields == FIELDS[kind]
    assert kind == "text" or (role == "user") == (kind == "tool_result")
    assert kind != "text" or block["text"].strip()
    assert kind != "tool_result" or block["content"].strip()
    assert "cache_control" not in block or not kind.endswith("thinking")
    assert kind != "thinking" or block["signature"]
    if kind == "tool_use":
        assert NAME.match(block["id"])
        assert NAME.match(block["name"])
        assert isinstance(block["input"], dict)


@given(st.lists(MESSAGES, max_size=10), nasty_text, TOOLS, st.sampled_from(["claude-opus-4-6", "kimi-k2"]))
def test_any_conversation_is_one_that_the_wire_accepts(
    messages: list[Message], system: str, tools: tuple[ToolSpec, ...], model: str
) -> None:
    assert_accepted(body(*messages, system=system, tools=tools, model=model))


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.integers(50, 2000))
def test_a_conversation_that_was_trimmed_to_any_budget_is_still_accepted(messages: list[Message], budget: int) -> None:
    clean = [msgspec.json.decode(msgspec.json.encode(_encodable(message)), type=Message) for message in messages]
    window = Window(clean, budget_chars=budget)
    window.fit()
    assert_accepted(body(*window.messages))


def _encodable(message: Message) -> Message:
    """The store's texts are whole Unicode."""
    fields = {
        name: value.encode("utf-8", "replace").decode()
        for name, value in msgspec.structs.asdict(message).items()
        if isinstance(value, str)
    }
    message = msgspec.structs.replace(message, **fields)
    if isinstance(message, AssistantMessage):
        calls = tuple(
            ToolCall(
                call.id.encode("utf-8", "replace").decode(), call.name.encode("utf-8", "replace").decode(), call.input
            )
            for call in message.tool_calls
        )
        return msgspec.structs.replace(message, tool_calls=calls)
    return message
