"""Events of other tools: no name passes for one of ours, no value is lost without a mark."""

from __future__ import annotations

import json
import math
import re
import threading
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import any_value, nasty_text, plain_json, realise
from tracewriter.config import MAX_BODY
from tracewriter.events import KINDS, ToolCallStarted
from tracewriter.foreign import (
    NAME_CHARS,
    ORIGINAL,
    RESERVED,
    TOOL_CHARS,
    body_of,
    event_name,
    event_of,
    is_tool_name,
    tool_name,
)

LEGAL = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)+\Z")
names = (
    nasty_text | st.sampled_from([*KINDS, "PreToolUse", "a/b", "..", "x" * 500]) | st.text("aB./:_- é0", max_size=200)
)


@given(nasty_text | st.sampled_from(sorted(RESERVED)) | st.text("aB_-9/", max_size=60))
def test_every_tool_gets_a_legal_name_that_is_not_ours_and_stays(text: str) -> None:
    made = tool_name(text)
    assert is_tool_name(made)
    assert made not in RESERVED
    assert len(made) <= TOOL_CHARS
    assert tool_name(made) == made


@given(nasty_text | st.sampled_from(sorted(RESERVED)), names)
def test_no_name_of_a_tool_is_a_kind_of_ours_and_each_is_legal_and_stays(tool: str, name: str) -> None:
    tool = tool_name(tool)
    made, _ = event_name(tool, name)
    assert made not in KINDS
    assert made.partition(".")[0] not in RESERVED
    assert LEGAL.match(made)
    assert len(made) <= NAME_CHARS
    assert event_name(tool, made) == (made, False)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("step.finished", "my-tool.step.finished"),
        ("my-tool.step.finished", "my-tool.step.finished"),
        ("PreToolUse", "my-tool.pre_tool_use"),
        ("HTTPRequest", "my-tool.http_request"),
        ("item/started", "my-tool.item.started"),
        ("run.execute.finished", "my-tool.run.execute.finished"),
        ("trace.drop.observed", "my-tool.trace.drop.observed"),
        ("???", "my-tool.event"),
        ("", "my-tool.event"),
    ],
)
def test_names_are_made_legal_and_the_original_is_kept_when_they_had_to_change(name: str, made: str) -> None:
    event = event_of("my-tool", name, {"a": 1})
    assert event.name == made
    data = json.loads(bytes(event.data))
    changed = made.removeprefix("my-tool.") != name and made != name
    assert data == ({ORIGINAL: name, "a": 1} if changed else {"a": 1})


def test_a_key_of_the_values_own_is_not_written_over_by_the_original_name() -> None:
    data = json.loads(bytes(event_of("t", "Odd", {ORIGINAL: "mine"}).data))
    assert data == {ORIGINAL: "Odd", "value": {ORIGINAL: "mine"}}


@given(any_value, names)
def test_any_value_becomes_one_line_of_json_with_an_object_in_it(value: object, name: str) -> None:
    event = event_of("t", name, realise(value))
    assert b"\n" not in bytes(event.data)
    assert isinstance(msgspec.json.decode(event.data), dict)


@given(plain_json)
def test_plain_json_is_recorded_as_it_is(value: object) -> None:
    data = json.loads(bytes(body_of(value)))
    assert data == (value if isinstance(value, dict) else {"value": value})


@pytest.mark.parametrize("value", [{"a": math.nan, "b": None}, {"a": [None, math.inf]}, {"a": "\ud800"}])
def test_what_json_cannot_say_is_repaired_and_marked(value: dict[str, object]) -> None:
    assert json.loads(bytes(body_of(value)))["repaired"] == 1


@dataclass
class Step:
    """An event of somebody's."""

    name: str
    after: str | None = None


def test_dataclasses_and_structs_are_recorded_by_their_fields() -> None:
    assert json.loads(bytes(body_of(Step("a")))) == {"name": "a", "after": None}
    call = ToolCallStarted("c", "read", msgspec.Raw(b"{}"))
    assert json.loads(bytes(body_of(call))) == {"id": "c", "name": "read", "input": {}}


def test_what_is_far_too_long_is_cut_in_its_fields() -> None:
    body = body_of({"a": "x" * (3 * MAX_BODY), "b": "kept"})
    assert len(body) <= MAX_BODY
    data = json.loads(bytes(body))
    assert data["b"] == "kept"
    assert data["a"].endswith(f"…[cut: {3 * MAX_BODY} characters]")


def test_a_value_that_another_thread_changes_meanwhile_costs_nothing_but_its_own_shape() -> None:
    value: dict[str, object] = {str(n): n for n in range(500)}
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            value[f"new{n % 700}"] = [n]
            value.pop(f"new{(n + 350) % 700}", None)
            n += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            assert isinstance(json.loads(bytes(body_of(value))), dict)
    finally:
        stop.set()
        thread.join()
