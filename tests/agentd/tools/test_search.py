"""search: ripgrep's habits, bounded answers, and a worker process that a time-out or a cancellation ends."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.tools.base import MAX_RESULT_CHARS
from agentd.tools.blocking import run_stoppable
from agentd.tools.search import Request, SearchInput, Worker, search
from agentd.tools.search_worker import glob_regex, ignore_rules, is_ignored, path_regex
from tests.agentd.tools.tool_calls import Tools

pytestmark = pytest.mark.anyio

# Exponential in `re`: would run for ages.
CATASTROPHE = "(x+x+)+y"


async def started(worker: Worker) -> int:
    """The worker's process id, as soon as there is one."""

    def wait() -> int:
        while worker.pid is None:
            time.sleep(0.01)
        return worker.pid

    return await asyncio.to_thread(wait)


async def test_matches_are_sorted_lines_with_path_and_number(tools: Tools) -> None:
    tools.put("b.py", b"import os\r\nprint(os)\r\n")
    tools.put("a/x.py", "# ü os\n".encode())
    tools.put("a/y.txt", b"nothing\n")
    assert await tools.text("search", pattern=r"\bos\b") == "a/x.py:1:# ü os\nb.py:1:import os\nb.py:2:print(os)"
    assert await tools.text("search", pattern="os", path="a") == "a/x.py:1:# ü os"
    assert await tools.text("search", pattern="os", path="b.py", limit="1") == (
        "b.py:1:import os\n[there are more matches than these 1: narrow the pattern, path or glob]"
    )
    assert await tools.text("search", pattern="OS)", literal=True, ignore_case=True) == "b.py:2:print(os)"
    assert await tools.text("search", pattern="nowhere") == "[no match for `nowhere` in 3 files]"
    assert await tools.text("search", pattern="-e", literal=True) == "[no match for `-e` in 3 files]"
    assert await tools.text("search", pattern="^$") == "[no match for `^$` in 3 files]", (
        "no line after the last newline"
    )


async def test_hidden_binary_ignored_and_vendored_files_are_left_out(tools: Tools) -> None:
    tools.put(".gitignore", b"build/\n*.log\n!keep.log\n/only_here\n")
    for path in (".env", ".git/x", "node_modules/x", "build/x", "x.log", "only_here", "sub/ignored"):
        tools.put(path, b"needle\n")
    tools.put("sub/.gitignore", b"ignored\n")
    tools.put("binary", b"needle\n\0")
    for path in ("keep.log", "sub/only_here", "sub/x"):
        tools.put(path, b"needle\n")
    text = await tools.text("search", pattern="needle")
    assert [line.split(":")[0] for line in text.split("\n")] == ["keep.log", "sub/only_here", "sub/x"]
    assert await tools.text("search", pattern="needle", path="node_modules") == "node_modules/x:1:needle"
    assert await tools.text("search", pattern="needle", path=".env") == ".env:1:needle"


async def test_a_glob_chooses_files(tools: Tools) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.ts", "d.txt"):
        tools.put(path, b"x\n")

    async def found(glob: str) -> list[str]:
        text = await tools.text("search", pattern="x", glob=glob)
        return [line.split(":")[0] for line in text.split("\n")]

    assert await found("*.py") == ["a.py", "src/b.py"]
    assert await found("src/**/*.ts") == ["src/deep/c.ts"]
    assert await found("*.{ts,txt}") == ["d.txt", "src/deep/c.ts"]
    assert await found("!*.py") == ["d.txt", "src/deep/c.ts"]


async def test_links_are_not_followed_out_of_the_tree(tools: Tools) -> None:
    outside = tools.root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"needle\n")
    (tools.root / "dir").symlink_to("../outside")
    (tools.root / "file").symlink_to("../outside/secret")
    (tools.root / ".gitignore").symlink_to("../outside/secret")
    os.mkfifo(tools.root / "fifo")
    assert "no match" in await tools.text("search", pattern="needle")
    for path in ("dir", "file", "../outside", str(outside)):
        assert "outside the workspace" in await tools.call_error("search", pattern="needle", path=path)


async def test_long_lines_and_many_matches_are_bounded(tools: Tools) -> None:
    tools.put("long", b"a" * 50_000 + b"needle" + b"b" * 50_000)
    text = await tools.text("search", pattern="needle")
    assert "needle" in text
    assert len(text) < 400
    tools.put("many", b"needle and some more text to fill the line\n" * 50_000)
    text = await tools.text("search", pattern="needle", limit=10**9)
    assert len(text) <= MAX_RESULT_CHARS
    assert "there are more matches" in text


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "*", "(?P<x>a)(?P<x>b)", "a{999999999999}", "(" * 500 + ")" * 500])
async def test_a_bad_pattern_is_an_error_of_the_call(tools: Tools, pattern: str) -> None:
    assert "not valid" in await tools.error("search", pattern=pattern)


async def test_an_exponential_pattern_is_stopped_and_what_was_found_is_kept(tools: Tools) -> None:
    tools.put("a", b"xxy\n")
    tools.put("b", b"x" * 60 + b"\n")
    output = await search(SearchInput(CATASTROPHE), tools.context, timeout_s=0.5)
    assert output.text.startswith("a:1:xxy\n[stopped after 0.5 s")
    assert not output.is_error


async def test_a_cancelled_search_kills_its_process(tools: Tools) -> None:
    tools.put("b", b"x" * 60 + b"\n")
    worker = Worker()
    fd = tools.context.workspace.open_directory(".")
    request = Request(CATASTROPHE, "", "", False, False, 10, 60)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_stoppable(lambda: worker.run(fd, request, 60.0), worker.kill))
        pid = await started(worker)
        task.cancel()
    os.close(fd)
    assert task.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_search_cancelled_before_it_began_starts_no_process(tools: Tools) -> None:
    worker = Worker()
    worker.kill()
    assert worker.run(0, Request("x", "", "", False, False, 10, 60), 1.0) == (b"", True)
    assert worker.pid is None


async def test_the_worker_gets_nothing_of_the_daemons_environment(tools: Tools) -> None:
    tools.put("b", b"x" * 60 + b"\n")
    worker = Worker()
    fd = tools.context.workspace.open_directory(".")
    async with asyncio.TaskGroup() as group:
        request = Request(CATASTROPHE, "", "", False, False, 10, 60)
        task = group.create_task(run_stoppable(lambda: worker.run(fd, request, 60.0), worker.kill))
        environ = await asyncio.to_thread(Path(f"/proc/{await started(worker)}/environ").read_bytes)
        task.cancel()
    os.close(fd)
    assert environ == b""


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "py"]),
        ("/a", ["a"], ["x/a"]),
        ("a/b", ["a/b"], ["x/a/b"]),
        ("**/b", ["b", "a/b", "a/c/b"], ["ab"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["ab"]),
        ("[!a]?", ["bc"], ["ac", "b"]),
        ("[]-]", ["]", "-"], ["x"]),
        ("a\\*", ["a*"], ["ab"]),
        ("x.{c,h}", ["x.c", "x.h"], ["x.,"]),
    ],
)
def test_globs_match_like_gitignore(glob: str, yes: list[str], no: list[str]) -> None:
    regex = path_regex(glob)
    assert [path for path in yes + no if regex.fullmatch(path)] == yes


def test_the_last_matching_rule_decides() -> None:
    rules = ignore_rules("# c\n\n*.log\n!a.log\nd/\n", "sub/")
    decided = {
        path: is_ignored(path, rules, directory=path.endswith("d"))
        for path in ("sub/x.log", "sub/a.log", "sub/d", "sub/e")
    }
    assert decided == {"sub/x.log": True, "sub/a.log": False, "sub/d": True, "sub/e": False}


@pytest.mark.parametrize("pair", ["&&", "||", "~~", "[["])
def test_what_may_become_a_set_operation_is_just_characters(pair: str) -> None:
    regex = path_regex(f"[x{pair}]")  # a warning is an error here
    assert all(regex.fullmatch(c) for c in f"x{pair}")
    assert not regex.fullmatch("y")
    assert path_regex("[+--]").fullmatch(",")  # a range that ends in a hyphen


@given(glob=st.text(alphabet="a*?[]{},!\\/-^&|.+(", max_size=12))
def test_any_glob_is_a_pattern_or_a_plain_error(glob: str) -> None:
    try:
        re.compile(glob_regex(glob))
    except re.error:
        pass
