"""What a conversation becomes on the gemini wire: always one that the API accepts."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage
from agentd.providers.gemini import GeminiDecoder
from agentd.providers.gemini_models import GeminiModel, gemini_model, model_path
from agentd.providers.gemini_request import NO_SIGNATURE, build_request
from agentd.providers.gemini_schema import parameters_of
from agentd.providers.openai_chat_request import NO_RESULT
from agentd.providers.stream import ModelRequest, Opaque, Reasoning, Text, ToolSpec
from tests.strategies import nasty_text, plain_json
from tracewriter.events import ToolCall

CALL = ToolCall("t1", "read_file", Raw(b'{"path":"a"}'))
OTHER = ToolCall("t2", "search", Raw(b"{}"))


def body(*messages: Message, model: str = "gemini-2.0-flash", system: str = "", **more: Any) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(build_request(ModelRequest(model, system, messages, **more)))
    return built


def sent(*messages: Message, model: str = "gemini-2.0-flash") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(*messages, model=model)["contents"]
    return found


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def model(*parts: Any) -> dict[str, Any]:
    return {**user(*parts), "role": "model"}


def called(call: ToolCall, signature: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"name": call.name, "args": json.loads(bytes(call.input)), "id": call.id}}
    return {**part, "thoughtSignature": signature} if signature else part


def answered(call: ToolCall, key: str, text: str) -> dict[str, Any]:
    return {"functionResponse": {"name": call.name, "response": {key: text}, "id": call.id}}


def test_the_least_that_is_sent() -> None:
    assert body(UserMessage("hi")) == {"contents": [user("hi")]}


def test_everything_that_can_be_set() -> None:
    tool = ToolSpec("f", "does f", Raw(b'{"type":"object","properties":{"a":{"type":"string"}}}'))
    bare = ToolSpec("g", "does g", Raw(b'{"type":"object","properties":{}}'))
    built = body(
        UserMessage("hi"),
        model="gemini-2.5-pro",
        system="be brief",
        tools=(tool, bare),
        max_tokens=9,
        temperature=0.0,
    )
    declared = {"name": "f", "description": "does f", "parametersJsonSchema": json.loads(bytes(tool.schema))}
    assert built == {
        "contents": [user("hi")],
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "tools": [{"functionDeclarations": [declared, {"name": "g", "description": "does g"}]}],
        "generationConfig": {
            "maxOutputTokens": 9,
            "temperature": 0.0,
            "thinkingConfig": {"includeThoughts": True},
        },
    }


def test_calls_and_results_are_linked_and_in_the_order_of_the_calls() -> None:
    said = AssistantMessage("I look", tool_calls=(CALL, OTHER))
    results = (ToolMessage("t2", "search", "no", is_error=True), ToolMessage("t1", "read_file", "text"))
    assert sent(UserMessage("q"), said, *results, UserMessage("and?")) == [
        user("q"),
        model("I look", called(CALL), called(OTHER)),
        user(answered(CALL, "output", "text"), answered(OTHER, "error", "no"), "and?"),
    ]


def test_a_call_that_was_never_answered_is_answered() -> None:
    messages = sent(UserMessage("q"), AssistantMessage("", tool_calls=(CALL, OTHER)), ToolMessage("t2", "search", "2"))
    assert messages[-1] == user(answered(CALL, "error", NO_RESULT), answered(OTHER, "output", "2"))


def test_a_result_without_its_call_is_said_as_text() -> None:
    assert sent(ToolMessage("gone", "f", "text")) == [user("[result of an earlier f call]\ntext")]


def test_neighbours_of_one_role_are_one_content_and_nothing_is_empty() -> None:
    messages = (UserMessage("a"), UserMessage(" "), UserMessage("b"), AssistantMessage(""), AssistantMessage("c"))
    assert sent(*messages, AssistantMessage("d"), UserMessage("e")) == [user("a", "b"), model("c", "d"), user("e")]


def test_the_user_begins_and_ends() -> None:
    assert [content["role"] for content in sent(AssistantMessage("a"))] == ["user", "model", "user"]
    assert [content["role"] for content in sent()] == ["user"]


@pytest.mark.parametrize(
    ("given", "args"),
    [
        (b"[1]", {"input": [1]}),
        (b"null", {"input": None}),
        (b'"x"', {"input": "x"}),
        (b"", {}),
        (b' {"a":1}', {"a": 1}),
    ],
)
def test_arguments_are_an_object(given: bytes, args: Any) -> None:
    [part] = sent(UserMessage("q"), AssistantMessage("", tool_calls=(ToolCall("t", "f", Raw(given)),)))[1]["parts"]
    assert part["functionCall"]["args"] == args


@pytest.mark.parametrize("name", ["", "1f", "a b", "ü", "x" * 200, "default_api.f\n"])
def test_a_name_that_the_wire_refuses_is_made_one_that_it_takes(name: str) -> None:
    messages = sent(UserMessage("q"), AssistantMessage("", tool_calls=(ToolCall("t", name, Raw(b"{}")),)))
    names = [messages[1]["parts"][0]["functionCall"]["name"], messages[2]["parts"][0]["functionResponse"]["name"]]
    assert names[0] == names[1]
    assert NAME.match(names[0])


def opaque(*parts: dict[str, Any]) -> tuple[Raw, ...]:
    return (Raw(b'{"reasoning_details":[]}'), Raw(json.dumps({"gemini": {"parts": parts}}).encode()))


def test_signatures_go_back_on_exactly_their_parts() -> None:
    parts = opaque(
        {"thought": 5, "start": 2, "signature": "T"},
        {"text": 2},
        {"text": 1, "signature": "C"},
        {"whole": {"executableCode": {"code": "1"}}, "signature": "X"},
        {"whole": {"codeExecutionResult": {"output": "1"}}},
        {"call": "read_file", "signature": "F"},
        {"call": "search"},
        {"text": 0, "signature": "E"},
    )
    said = AssistantMessage("abc", "I think", (CALL, OTHER), parts)
    assert sent(UserMessage("q"), said, model="gemini-3-pro-preview")[1] == model(
        {"text": "think", "thought": True, "thoughtSignature": "T"},
        "ab",
        {"text": "c", "thoughtSignature": "C"},
        {"executableCode": {"code": "1"}, "thoughtSignature": "X"},
        {"codeExecutionResult": {"output": "1"}},
        called(CALL, "F"),
        called(OTHER),
        {"text": "", "thoughtSignature": "E"},
    )


def test_what_was_cut_since_takes_its_signature_with_it_and_no_other() -> None:
    parts = opaque(
        {"text": 3, "signature": "C"}, {"thought": 9, "signature": "T"}, {"call": "read_file", "signature": "F"}
    )
    short = AssistantMessage("ab", "I", (ToolCall("t1", "read_file", Raw(b'{"trimmed":"budget"}')),), parts)
    [text, call] = sent(UserMessage("q"), short)[1]["parts"]
    assert text == {"text": "ab"}
    assert call["thoughtSignature"] == "F"


def test_a_call_that_got_another_id_keeps_its_signature_and_another_call_gets_none() -> None:
    parts = opaque({"call": "read_file", "signature": "F"})
    renamed = msgspec.structs.replace(CALL, id="call_new")
    assert sent(UserMessage("q"), AssistantMessage("", "", (renamed,), parts))[1] == model(called(renamed, "F"))
    assert sent(UserMessage("q"), AssistantMessage("", "", (OTHER,), parts))[1] == model(called(OTHER))


def test_where_the_model_insists_on_a_signature_the_first_call_of_an_answer_has_one() -> None:
    bare = AssistantMessage("", tool_calls=(CALL, OTHER))
    foreign = AssistantMessage(
        "", tool_calls=(CALL,), opaque=(Raw(b'{"reasoning_details":[{"data":"x"}]}'), Raw(b"[1]"))
    )
    messages = (UserMessage("q"), bare, ToolMessage("t1", "read_file", "1"), foreign)
    found = [part for content in sent(*messages, model="gemini-3-flash-preview") for part in content["parts"]]
    signatures = [part.get("thoughtSignature") for part in found if "functionCall" in part]
    assert signatures == [NO_SIGNATURE, None, NO_SIGNATURE]
    assert NO_SIGNATURE not in json.dumps(sent(*messages, model="gemini-2.5-flash"))


def said_again(answer: bytes) -> dict[str, Any]:
    """What goes back of an answer, as the loop keeps it."""
    decoder = GeminiDecoder()
    events = decoder.feed(answer) + decoder.end()
    message = AssistantMessage(
        "".join(event.text for event in events if isinstance(event, Text)),
        "".join(event.text for event in events if isinstance(event, Reasoning)),
        tuple(event for event in events if isinstance(event, ToolCall)),
        tuple(event.data for event in events if isinstance(event, Opaque)),
    )
    return sent(UserMessage("q"), message, model="gemini-3-pro-preview")[1]


SIGNED = st.fixed_dictionaries({}, optional={"thoughtSignature": st.sampled_from(["QQ==", "Qg=="])})
ANSWERED = st.lists(
    st.one_of(
        st.builds(lambda text, more: {"text": text, **more}, st.text(st.characters(codec="utf-8"), min_size=1), SIGNED),
        st.builds(lambda name, more: {"functionCall": {"name": name, "args": {}, "id": ""}, **more}, st.sampled_from("fg"), SIGNED),
        st.builds(lambda code, more: {"executableCode": {"code": code}, **more}, st.text(st.characters(codec="utf-8")), SIGNED),
    ),
    min_size=1,
)  # fmt: skip


@given(ANSWERED)
def test_an_answer_goes_back_as_it_came(parts: list[dict[str, Any]]) -> None:
    calls = [part for part in parts if "functionCall" in part]
    for number, part in enumerate(calls):
        part["functionCall"]["id"] = f"t{number}"
    candidate = {"content": {"parts": parts}, "finishReason": "STOP"}
    text = "".join(part.get("text", "") for part in parts)
    if not calls and not text.strip():
        return
    sent_back = said_again(b"data: " + json.dumps({"candidates": [candidate]}).encode() + b"\n\n")["parts"]
    if calls and "thoughtSignature" not in calls[0]:
        calls[0]["thoughtSignature"] = NO_SIGNATURE
    if any("thoughtSignature" in part or "executableCode" in part for part in parts if part not in calls):
        assert joined(sent_back) == joined(parts)
    assert [part for part in sent_back if "functionCall" in part] == calls


def joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring texts without a signature are one text."""
    out: list[dict[str, Any]] = []
    for part in parts:
        if out and set(part) == set(out[-1]) == {"text"}:
            out[-1] = {"text": out[-1]["text"] + part["text"]}
        else:
            out.append(part)
    return out


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("gemini-1.5-pro", GeminiModel()), ("gemini-2.0-flash", GeminiModel()), ("gemma-3-27b-it", GeminiModel()),
        ("gemini-2.0-flash-001", GeminiModel()), ("gemini-2.5-flash-image-preview", GeminiModel()),
        ("gemini-2.5-flash-preview-tts", GeminiModel()), ("gemini-2.5-flash", GeminiModel(thinks=True)),
        ("models/gemini-2.5-pro", GeminiModel(thinks=True)), ("gemini-2.5-flash-lite-preview-09-2025", GeminiModel(thinks=True)),
        ("gemini-3-pro-preview", GeminiModel(thinks=True, signed=True)), ("gemini-3.1-pro", GeminiModel(thinks=True, signed=True)),
        ("gemini-12-pro", GeminiModel(thinks=True, signed=True)), ("gemini-flash-latest", GeminiModel(thinks=True, signed=True)),
        ("publishers/google/models/gemini-3.5-flash", GeminiModel(thinks=True, signed=True)), ("my-own", GeminiModel()),
    ],
)  # fmt: skip
def test_what_a_model_takes_is_known_by_its_name(name: str, known: GeminiModel) -> None:
    assert gemini_model(name) == known


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("gemini-2.5-pro", "/models/gemini-2.5-pro"), ("models/gemini-2.5-pro", "/models/gemini-2.5-pro"),
        ("tunedModels/x-1", "/tunedModels/x-1"), ("google/gemini", "/models/google/gemini"), ("a?b#c%d", "/models/a%3Fb%23c%25d"),
    ],
)  # fmt: skip
def test_the_model_is_in_the_url(name: str, path: str) -> None:
    assert model_path(name) == f"{path}:streamGenerateContent?alt=sse"


def test_a_schema_is_sent_without_what_the_wire_has_no_meaning_for() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "$schema": {"type": "string", "const": "x", "examples": ["x"]},
            "examples": {"type": "array", "items": {"$comment": "c", "enum": [{"$id": "kept"}]}},
        },
        "required": ["$schema"],
        "additionalProperties": False,
        "$defs": {"deprecated": {"deprecated": True, "default": {"examples": 1}}},
    }
    sent = parameters_of(Raw(json.dumps(schema).encode()))
    assert sent is not None
    assert json.loads(bytes(sent)) == {
        "type": "object",
        "properties": {
            "$schema": {"type": "string", "enum": ["x"]},
            "examples": {"type": "array", "items": {"enum": [{"$id": "kept"}]}},
        },
        "required": ["$schema"],
        "additionalProperties": False,
        "$defs": {"deprecated": {"default": {"examples": 1}}},
    }


@pytest.mark.parametrize(
    "schema", [b"{}", b"true", b"[]", b'{"type":"object"}', b'{"properties":{}}', b"{", b"[" * 5000]
)
def test_a_tool_without_arguments_has_no_schema(schema: bytes) -> None:
    assert parameters_of(Raw(schema)) is None


@given(plain_json)
def test_any_schema_gives_json_or_nothing(schema: Any) -> None:
    sent = parameters_of(Raw(json.dumps(schema).encode()))
    assert sent is None or json.loads(bytes(sent))["type"]


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")
ONE_OF = {
    "text",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
}


def assert_accepted(contents: list[dict[str, Any]], *, signed: bool) -> None:
    """The rules of the wire, as far as its errors and pages tell them."""
    assert [content["role"] for content in contents] == ["user", "model"] * (len(contents) // 2) + ["user"]
    pending: list[tuple[str, str]] = []
    for content in contents:
        assert content["parts"]
        for part in content["parts"]:
            assert len(part.keys() & ONE_OF) == 1
            assert part.get("text") != "" or part["thoughtSignature"]
            assert part.get("thoughtSignature") != ""
        found = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        assert [(one["name"], one["id"]) for one in found] == pending
        assert all("functionResponse" in part for part in content["parts"][: len(found)])
        assert all(isinstance(one["response"], dict) for one in found)
        calls = [part for part in content["parts"] if "functionCall" in part]
        assert not calls or content["role"] == "model"
        assert not (signed and calls) or calls[0]["thoughtSignature"]
        pending = [(part["functionCall"]["name"], part["functionCall"]["id"]) for part in calls]
        assert all(NAME.match(name) for name, _ in pending)
        assert all(isinstance(part["functionCall"]["args"], dict) for part in calls)
    assert pending == []


KEPT = st.fixed_dictionaries(
    {},
    optional={
        "text": st.integers(-2, 9),
        "thought": st.integers(-2, 9),
        "start": st.integers(-2, 9),
        "call": nasty_text.filter(lambda text: text.isprintable()) | st.sampled_from("abc"),
        "whole": st.dictionaries(st.sampled_from(["executableCode", "toolCall"]), plain_json, max_size=1),
        "signature": st.sampled_from(["", "S", "\ud800"]),
    },
)
OPAQUE = st.one_of(
    st.lists(KEPT, max_size=5).map(lambda parts: Raw(json.dumps({"gemini": {"parts": parts}}).encode())),
    plain_json.map(lambda value: Raw(msgspec.json.encode(value))),
    st.just(Raw(b"\xff")),
)
CALLS = st.builds(
    ToolCall,
    st.sampled_from(["a", "b", "c", "\ud800"]),
    nasty_text | st.sampled_from("abc"),
    plain_json.map(lambda value: Raw(msgspec.json.encode(value))),
)
MESSAGES = st.one_of(
    st.builds(UserMessage, nasty_text),
    st.builds(
        AssistantMessage,
        nasty_text,
        nasty_text,
        st.lists(CALLS, max_size=3, unique_by=lambda call: call.id).map(tuple),
        st.lists(OPAQUE, max_size=2).map(tuple),
    ),
    st.builds(ToolMessage, st.sampled_from(["a", "b", "c", "\ud800"]), nasty_text, nasty_text, st.booleans()),
)


@given(st.lists(MESSAGES, max_size=10), st.sampled_from(["gemini-2.0-flash", "gemini-2.5-pro", "gemini-3-pro-preview"]))
def test_any_conversation_is_accepted_by_the_wire(messages: list[Message], name: str) -> None:
    assert_accepted(sent(*messages, model=name), signed=gemini_model(name).signed)


@given(st.lists(MESSAGES, max_size=8), st.integers(0, 8))
def test_the_beginning_of_a_request_does_not_change_as_the_conversation_goes_on(
    messages: list[Message], more: int
) -> None:
    # What the provider has cached is found again only if what was sent is sent again.
    whole = sent(*messages, UserMessage("a"), AssistantMessage("b"), UserMessage("c"))
    assert whole[: len(sent(*messages, UserMessage("a")))] == sent(*messages, UserMessage("a"))
