"""Which tools there are, that their schemas are true, and that a failing call is output while a bug and a cancellation are not."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from agentd.providers.stream import ToolSpec
from agentd.tools.base import MAX_RESULT_CHARS, Tool, ToolContext, ToolOutput
from agentd.tools.blocking import Commit, run_stoppable
from agentd.tools.registry import ALL_TOOLS, find_tool, run_tool, tools_for
from agentd.tools.typed import TypedTool, cut
from agentd.tools.workspace import shown
from tests.agentd.tools.tool_calls import Tools
from tracewriter.events import ToolCall

pytestmark = pytest.mark.anyio


class _Property(Struct):
    type: str


class _Schema(Struct):
    type: str
    properties: dict[str, _Property]
    required: tuple[str, ...] = ()


class NoInput(Struct, frozen=True):
    pass


class Boom(RuntimeError):
    """A bug."""


def tool_that(body: object) -> Tool:
    async def run(wanted: NoInput, context: ToolContext) -> ToolOutput:
        if isinstance(body, BaseException):
            raise body
        return ToolOutput(str(body))

    return TypedTool(ToolSpec("t", "", Raw(b'{"type":"object","properties":{}}')), NoInput, run, writes=False)


def test_plan_and_anything_unknown_only_read() -> None:
    reading = ["list_files", "read_file", "search"]
    names = {mode: [tool.spec.name for tool in tools_for(mode)] for mode in ("plan", "build", "swe", "BUILD", "")}
    assert names == {
        mode: reading + (["write_file", "edit_file"] if mode in ("build", "swe") else []) for mode in names
    }
    assert [tool.spec.name for tool in ALL_TOOLS if tool.writes] == ["write_file", "edit_file"]


@pytest.mark.parametrize("tool", ALL_TOOLS, ids=lambda tool: tool.spec.name)
def test_a_schema_says_what_the_input_type_takes(tool: Tool) -> None:
    assert b"\n" not in bytes(tool.spec.schema)
    schema = msgspec.json.decode(tool.spec.schema, type=_Schema)
    fields = msgspec.structs.fields(cast("TypedTool[Struct]", tool).input_type)
    assert list(schema.properties) == [field.name for field in fields]
    assert list(schema.required) == [field.name for field in fields if field.required]
    types: dict[object, str] = {str: "string", int: "integer", int | None: "integer", bool: "boolean"}
    assert [schema.properties[field.name].type for field in fields] == [types[field.type] for field in fields]


async def test_an_unknown_tool_and_one_of_another_mode_are_told_apart(tools: Tools) -> None:
    output = await run_tool(tools_for("plan"), ToolCall("1", "write_file", Raw(b"{}")), tools.context)
    assert (output.is_error, "mode is read-only" in output.text) == (True, True)
    assert "There is no tool run\\nshell. Available: list_files" in await tools.error("run\nshell")
    assert find_tool(ALL_TOOLS, "search") in ALL_TOOLS


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{}", "missing required field `path`"),
        (b'{"path":5}', "Expected `str`, got `int`"),
        (b'{"path":"a"', "truncated"),
        (b"[]", "Expected `object`"),
        (b"nonsense", "malformed"),
        (b"", "missing required field `path`"),
        (b'{"path":"\\ud800"}', "Invalid input"),
        (b'{"path":"\xff"}', "UTF-8"),
        (b'{"path":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
async def test_invalid_input_says_what_is_wanted(tools: Tools, data: bytes, says: str) -> None:
    output = await run_tool(ALL_TOOLS, ToolCall("1", "read_file", Raw(data)), tools.context)
    assert output.is_error
    assert says in output.text
    assert '"required":["path"]' in output.text


async def test_a_failing_disk_is_output_and_a_bug_is_not(tools: Tools) -> None:
    call = ToolCall("1", "t", Raw(b"{}"))
    output = await run_tool((tool_that(OSError(28, "x", "/machine/path")),), call, tools.context)
    assert output == ToolOutput("t failed: the disk is full", is_error=True)
    for error in (Boom(), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            await run_tool((tool_that(error),), call, tools.context)


async def test_over_long_output_is_cut_with_its_length(tools: Tools) -> None:
    output = await run_tool((tool_that("ü 😀 " * 10_000),), ToolCall("1", "t", Raw(b"{}")), tools.context)
    assert len(output.text) <= MAX_RESULT_CHARS
    assert output.chars == 40_000
    assert output.text.endswith(" of 40,000 characters]")


@given(text=st.text(max_size=50), times=st.integers(1, 30_000))
def test_a_cut_keeps_the_bound_and_the_beginning(text: str, times: int) -> None:
    whole = ToolOutput(text * times)
    done = cut(whole)
    assert len(done.text) <= MAX_RESULT_CHARS
    assert done == whole or whole.text.startswith(done.text.rpartition("\n")[0])


@given(name=st.text())
def test_a_shown_name_is_one_line_of_valid_text(name: str) -> None:
    assert shown(name).encode().isascii() or shown(name).isprintable()
    assert "\n" not in shown(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["list_files", "read_file", "write_file", "edit_file"]),
    fields=st.dictionaries(
        st.sampled_from(
            ["path", "old", "new", "content", "offset", "limit", "depth", "recursive", "file_path", "junk"]
        ),
        JSON,
    ),
)
def test_any_input_gives_output_that_can_be_encoded(tools: Tools, name: str, fields: dict[str, object]) -> None:
    output = asyncio.run(tools.call(name, **fields))
    assert msgspec.json.decode(msgspec.json.encode(output.text)) == output.text
    assert len(output.text) <= MAX_RESULT_CHARS


# --- cancellation


class Steps:
    """Work in two steps, with the moment of its effect in the test's hand."""

    def __init__(self) -> None:
        self.commit = Commit()
        self.reached = threading.Event()
        self.go = threading.Event()

    def effect_at_the_end(self) -> str:
        self.reached.set()
        assert self.go.wait(10)
        return "done" if self.commit.begin() else "prevented"

    def effect_at_the_start(self) -> str:
        done = self.commit.begin()
        self.reached.set()
        assert self.go.wait(10)
        return "done" if done else "prevented"

    def stop(self) -> bool:
        stopped = self.commit.stop()
        self.go.set()
        return stopped


async def cancelled_midway(steps: Steps, work: str, heard: list[str]) -> None:
    async def caller() -> None:
        heard.append(await run_stoppable(getattr(steps, work), steps.stop))
        heard.append("reported")
        await asyncio.sleep(0)
        heard.append("went on")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(caller())
        await asyncio.to_thread(steps.reached.wait, 10)
        task.cancel()
    assert task.cancelled()


async def test_a_cancellation_before_the_effect_prevents_it() -> None:
    heard: list[str] = []
    await cancelled_midway(Steps(), "effect_at_the_end", heard)
    assert heard == []


async def test_a_cancellation_after_the_effect_comes_when_it_was_reported() -> None:
    heard: list[str] = []
    await cancelled_midway(Steps(), "effect_at_the_start", heard)
    assert heard == ["done", "reported"]


async def test_a_time_out_after_the_effect_is_still_a_time_out() -> None:
    steps, heard = Steps(), list[str]()

    async def bounded() -> None:
        async with asyncio.timeout(0.05):
            heard.append(await run_stoppable(steps.effect_at_the_start, steps.stop))
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await bounded()
    assert heard == ["done"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_failure_of_the_work_passes_through() -> None:
    def fail() -> str:
        raise OSError(28, "x")

    with pytest.raises(OSError, match="28"):
        await run_stoppable(fail, lambda: True)
