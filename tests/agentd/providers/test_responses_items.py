"""The items of a response: told apart in every dialect, calls only when they are whole, and what goes back kept in order."""

from __future__ import annotations

import pytest

from agentd.providers.stream import Finished, UsageReported
from tests.responses_events import (
    CALL,
    INCOMPLETE,
    MESSAGE,
    added,
    arguments,
    calls,
    completed,
    decode,
    ended,
    frame,
    joined,
    kept,
    said,
    text,
)


def test_ids_that_change_with_every_event_of_an_item_do_not_matter_where_places_are_right() -> None:
    events = decode(
        added({**MESSAGE, "id": "1"}, output_index=0),
        text("a", "2", output_index=0, content_index=0),
        text("b", "3", output_index=0, content_index=0),
        frame("output_text.done", item_id="4", output_index=0, content_index=0, text="ab"),
        ended({**MESSAGE, "id": "5", "content": said("ab")}, output_index=0),
        added({**CALL, "id": "6"}, output_index=1),
        arguments('{"a"', "7", output_index=1),
        arguments(":1}", "8", output_index=1),
        ended({**CALL, "id": "9", "arguments": '{"a":1}'}, output_index=1),
        completed({**MESSAGE, "id": "10", "content": said("ab")}, {**CALL, "id": "11", "arguments": '{"a":1}'}),
    )
    assert joined(events) == "ab"
    assert calls(events) == [("c1", "f", {"a": 1})]


def test_places_that_are_all_the_same_do_not_matter_where_ids_are_right() -> None:
    other = {**CALL, "id": "fc2", "call_id": "c2", "name": "g"}
    events = decode(
        added(MESSAGE, output_index=0), text("a", output_index=0), added(CALL, output_index=0),
        added(other, output_index=0), arguments('{"a":', output_index=0), arguments("{}", "fc2", output_index=0),
        arguments("1}", output_index=0), completed(),
    )  # fmt: skip
    assert joined(events) == "a"
    assert calls(events) == [("c1", "f", {"a": 1}), ("c2", "g", {})]


def test_calls_are_told_apart_by_their_call_id_alone() -> None:
    bare = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": f'{{"n":{n}}}'} for n in range(3)]
    expected = [(f"c{n}", "f", {"n": n}) for n in range(3)]
    assert calls(decode(*(ended(item) for item in bare), completed(*bare))) == expected
    assert calls(decode(*(ended(item, output_index=0) for item in bare), completed(*bare))) == expected
    assert calls(decode(completed(*bare))) == expected
    assert calls(decode(*(added({**item, "arguments": ""}) for item in bare), completed(*bare))) == expected


def test_arguments_that_go_by_the_call_id_find_their_call() -> None:
    item = {"type": "function_call", "call_id": "fc_x", "name": "f", "arguments": ""}
    events = decode(added(item), arguments('{"a"', "fc_x"), arguments(":1}", "fc_x"), completed())
    assert calls(events) == [("fc_x", "f", {"a": 1})]


def test_calls_come_in_their_places_whatever_their_order() -> None:
    one, two = {**CALL, "arguments": "{}"}, {**CALL, "id": "b", "call_id": "c2", "name": "g", "arguments": "{}"}
    events = decode(added(two, output_index=1), added(one, output_index=0), completed(one, two))
    assert [name for _, name, _ in calls(events)] == ["f", "g"]


def test_a_call_without_an_id_or_with_anothers_gets_one_of_its_own() -> None:
    nameless = {"type": "function_call", "name": "f", "arguments": "{}"}
    assert calls(decode(ended(nameless), completed())) == [("made_0", "f", {})]
    twice = [{**CALL, "id": f"i{n}", "arguments": f"[{n}]"} for n in range(2)]
    events = decode(*(ended(item, output_index=n) for n, item in enumerate(twice)), completed())
    assert calls(events) == [("c1", "f", [0]), ("made_0", "f", [1])]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((arguments('{"a":1}'), frame("function_call_arguments.done", item_id="fc", arguments="")), {"a": 1}),
        ((frame("function_call_arguments.done", item_id="fc", arguments='{"a":1}'),), {"a": 1}),
        ((arguments('{"a":1}'), frame("function_call_arguments.done", item_id="fc", arguments='{"a":2}')), {"a": 2}),
        ((arguments('{"a":1}'), frame("function_call_arguments.done", item_id="fc", arguments='{"a":')), {"a": 1}),
        ((arguments('{"a":1}'), ended({**CALL, "arguments": '{"a":3}'})), {"a": 3}),
        ((arguments('{"a":1}'), ended({**CALL, "arguments": {"a": 4}})), {"a": 4}),
        ((arguments('{"a":1}'), ended(CALL)), {"a": 1}),
        ((ended({**CALL, "arguments": ""}),), {}),
        ((arguments(""),), {}),
    ],
)
def test_the_end_of_a_call_is_believed_before_its_deltas(pieces: tuple[bytes, ...], expected: object) -> None:
    assert calls(decode(added({**CALL, "arguments": ""}), *pieces, completed())) == [("c1", "f", expected)]


@pytest.mark.parametrize(
    "pieces",
    [
        (added(CALL), arguments('{"path":"a"}')),
        (
            added(CALL),
            arguments("{}"),
            completed({**CALL, "status": "incomplete", "arguments": "{}"}, kind="incomplete"),
        ),
        (added(CALL), arguments("{}"), completed({**CALL, "arguments": "{}"}, kind="incomplete")),
        (ended({**CALL, "status": "incomplete", "arguments": "{}"}),),
    ],
)
def test_a_call_that_a_limit_cut_is_reported_and_never_runs_even_if_it_looks_whole(pieces: tuple[bytes, ...]) -> None:
    events = decode(*pieces, INCOMPLETE)
    assert calls(events) == []
    assert isinstance(events[-1], Finished)
    assert (events[-1].stop_reason, events[-1].cut_tool_calls) == ("length", ("f",))


def test_a_call_that_was_whole_before_the_limit_is_a_call() -> None:
    other = {**CALL, "id": "fc2", "call_id": "c2", "name": "g"}
    events = decode(ended({**CALL, "arguments": "{}"}), added(other), arguments('{"a', "fc2"), INCOMPLETE)
    assert calls(events) == [("c1", "f", {})]
    assert events[-1] == Finished("length", "incomplete:max_output_tokens", ("g",))


@pytest.mark.parametrize("broken", ['{"a":', "{'a':1}", "NaN", "[" * 5000])
def test_arguments_that_are_no_json_are_reported_and_never_run(broken: str) -> None:
    events = decode(ended({**CALL, "arguments": broken}), completed({**CALL, "arguments": broken}))
    assert events == [UsageReported(None), Finished("error", "completed", ("f",))]


def test_a_call_without_a_name_never_runs() -> None:
    assert calls(decode(arguments("{}"), completed())) == []


def test_a_custom_tools_free_text_is_its_input() -> None:
    item = {"type": "custom_tool_call", "id": "ct", "call_id": "c1", "name": "patch"}
    deltas = [frame("custom_tool_call_input.delta", item_id="ct", delta=delta) for delta in ("*** ", "Begin")]
    for pieces in (
        deltas,
        [ended({**item, "input": "*** Begin"})],
        [frame("custom_tool_call_input.done", item_id="ct", input="*** Begin")],
    ):
        assert calls(decode(added(item), *pieces, completed())) == [("c1", "patch", {"input": "*** Begin"})]


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "file_search_call", "code_interpreter_call", "mcp_call", "mcp_list_tools", "image_generation_call",
     "computer_call", "local_shell_call", "mcp_approval_request", "tool_search_call", "a_call_of_next_year"],
)  # fmt: skip
def test_what_the_provider_runs_itself_is_no_call_of_ours(kind: str) -> None:
    item = {
        "type": kind,
        "id": "s",
        "name": "f",
        "call_id": "c9",
        "arguments": '{"q":1}',
        "output": {"x": [1]},
        "status": "completed",
    }
    events = decode(
        added(item, output_index=0), frame(f"{kind}.in_progress", item_id="s"), arguments("{}", "s", output_index=0),
        frame(f"{kind}_arguments.delta", item_id="s", delta={"q": 1}), ended(item, output_index=0), text("found"),
        completed(item, {**MESSAGE, "content": said("found")}),
    )  # fmt: skip
    assert joined(events) == "found"
    assert calls(events) == []
    assert isinstance(events[-1], Finished)


def test_encrypted_reasoning_is_kept_as_it_came_with_what_it_led_to() -> None:
    first = {
        "type": "reasoning",
        "id": "r1",
        "summary": said("s", "summary_text"),
        "encrypted_content": "AA",
        "status": None,
        "new": {"x": 1},
    }
    second = {"type": "reasoning", "id": "r2", "summary": [], "encrypted_content": "BB"}
    plain = {"type": "reasoning", "id": "r3", "summary": said("t", "summary_text")}
    message = {**MESSAGE, "phase": "commentary", "content": said("words")}
    items = [first, message, second, plain, {**CALL, "arguments": "{}"}]
    expected = [{"reasoning": first}, {"text": 5, "phase": "commentary"}, {"reasoning": second}, {"call": True}]
    assert kept(decode(*(ended(item, output_index=n) for n, item in enumerate(items)), completed())) == expected
    assert kept(decode(*(ended(item) for item in items), completed(*items))) == expected
    assert kept(decode(completed(*items))) == expected
    assert kept(decode(*(added(item) for item in items), completed(*items))) == expected


def test_reasoning_is_not_kept_where_what_it_led_to_is_not() -> None:
    reasoning = {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "AA"}
    search = {"type": "web_search_call", "id": "w"}
    message = {**MESSAGE, "content": said("words")}
    assert kept(decode(completed(reasoning, search, message))) == []
    assert kept(decode(completed(reasoning))) == []
    assert kept(decode(ended(reasoning), added(CALL), arguments("{"), INCOMPLETE)) == []
    assert kept(decode(ended({**reasoning, "encrypted_content": ""}), ended(message), completed())) == []


def test_the_models_own_words_are_kept_for_servers_that_encrypt_nothing() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "r1",
        "summary": [],
        "content": said("why", "reasoning_text"),
        "encrypted_content": "",
    }
    events = decode(completed(reasoning, {**CALL, "arguments": "{}"}))
    assert kept(events) == [{"reasoning": reasoning}, {"call": True}]
