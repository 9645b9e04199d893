"""edit_file: exactly one match or everywhere, on a file that was read and is unchanged, every other byte left as it is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentd.tools.changes import MAX_FILE_BYTES
from agentd.tools.diff import MAX_DIFF_BYTES, unified_diff
from agentd.tools.edit import EditError, edit
from tests.agentd.tools.tool_calls import Tools

pytestmark = pytest.mark.anyio


async def edited(tools: Tools, data: bytes, old: str, new: str, **more: object) -> bytes:
    file = tools.put("a", data)
    await tools.text("read_file", path="a")
    await tools.text("edit_file", path="a", old=old, new=new, **more)
    return file.read_bytes()


@pytest.mark.parametrize(
    ("data", "old", "new", "result"),
    [
        (b"a\nb\nc\n", "b", "B", b"a\nB\nc\n"),
        (b"a\nb", "b", "B", b"a\nB"),
        (b"a\nb\n", "\nb\n", "\n", b"a\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"\xef\xbb\xbfa = 1\n", "a = 1", "a = 2", b"\xef\xbb\xbfa = 2\n"),
        ("é = 'ü\u2028'\n".encode(), "ü\u2028", "😀", "é = '😀'\n".encode()),
        (b"caf\xe9\nx\n", "x", "y", b"caf\xe9\ny\n"),
        (b"  tab\there\n", "\t", "    ", b"  tab    here\n"),
        (b"x", "x", "", b""),
    ],
)
async def test_only_the_old_text_changes(tools: Tools, data: bytes, old: str, new: str, result: bytes) -> None:
    assert await edited(tools, data, old, new) == result


async def test_the_change_is_reported_with_digests_and_a_diff(tools: Tools) -> None:
    tools.put("src/a.py", b"one\ntwo\nthree")
    await tools.text("read_file", path="src/a.py")
    output = await tools.call("edit_file", path="src/../src/a.py", old="three", new="3")
    assert output.text == "Edited src/a.py: replaced text at line 3."
    (change,) = output.changes
    assert (change.path, len(change.before or ""), len(change.after or "")) == ("src/a.py", 64, 64)
    assert change.diff == (
        "--- a/src/a.py\n+++ b/src/a.py\n@@ -1,3 +1,3 @@\n one\n two\n"
        "-three\n\\ No newline at end of file\n+3\n\\ No newline at end of file\n"
    )
    await tools.text("edit_file", path="src/a.py", old="3", new="drei")


async def test_a_text_that_is_not_unique_is_refused_with_its_lines(tools: Tools) -> None:
    tools.put("a", b"x\ny\nx\n" + b"x\n" * 20)
    await tools.text("read_file", path="a")
    error = await tools.error("edit_file", path="a", old="x", new="z")
    assert "old matches 22 times, on lines 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, …" in error
    assert "replace_all" in error
    text = await tools.text("edit_file", path="a", old="x", new="z", replace_all="true")
    assert "22 places, the first on line 1" in text


def test_overlapping_matches_are_not_one_match() -> None:
    with pytest.raises(EditError, match="2 times"):
        edit(b"aaa", "aa", "b", replace_all=False)


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("def f(x):\n  return 1", "its first line is like line 2, `    def f(x):`"),
        ("def f(y):", "the nearest is line 2, `    def f(x):`"),
        ("completely different", "nor a line like it"),
        ("", "old is empty"),
        ("pass", "nothing would change"),
    ],
)
async def test_an_edit_that_cannot_be_made_says_what_is_near(tools: Tools, old: str, says: str) -> None:
    tools.put("a.py", b"class A:\n    def f(x):\n        pass\n")
    await tools.text("read_file", path="a.py")
    assert says in await tools.error("edit_file", path="a.py", old=old, new="pass")


async def test_a_file_must_exist_be_read_and_be_unchanged(tools: Tools) -> None:
    assert "there is no such file" in await tools.error("edit_file", path="gone", old="a", new="b")
    file = tools.put("a", b"old\n")
    assert "read it with read_file first" in await tools.error("edit_file", path="a", old="old", new="new")
    await tools.text("read_file", path="a")
    file.write_bytes(b"old too\n")
    assert "has changed since you read it" in await tools.error("edit_file", path="a", old="old", new="new")
    (tools.root / "link").symlink_to("a")
    await tools.text("read_file", path="link")
    assert "symbolic link to a" in await tools.error("edit_file", path="link", old="old", new="new")


async def test_names_that_other_tools_use_are_understood(tools: Tools) -> None:
    tools.put("a", b"old\n")
    await tools.text("read_file", file_path="a")
    await tools.text("edit_file", file_path="a", old_string="old", new_string="new")
    assert (tools.root / "a").read_bytes() == b"new\n"


def test_a_result_over_the_bound_is_refused_before_it_is_built() -> None:
    with pytest.raises(EditError, match="too large"):
        edit(b"x" * 1_000_000, "x", "y" * (MAX_FILE_BYTES // 10), replace_all=True)


TEXT = st.lists(
    st.sampled_from(["a", "b", "  c", "", "d\r", "\ufeff", "é\u2028", "@@ -1 +1 @@", "--- a", "+"]), max_size=12
).map("\n".join)


@given(prefix=TEXT, old=TEXT.filter(bool), new=TEXT, suffix=TEXT)
def test_a_unique_text_is_replaced_and_nothing_else(prefix: str, old: str, new: str, suffix: str) -> None:
    data = (prefix + old + suffix).encode()
    lf_only = b"\r\n" not in data
    assume(old != new)
    try:
        result = edit(data, old, new, replace_all=False)
    except EditError:
        assert data.find(old.encode()) != data.rfind(old.encode()) or not lf_only
    else:
        if lf_only:
            assert result.data == (prefix + new + suffix).encode()


# --- diffs


def patched(directory: Path, before: bytes, diff: str) -> bytes:
    """What patch(1), as git has it, makes of a diff."""
    (directory / "f").write_bytes(before)
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=directory, input=diff.encode(), check=True, env=GIT)
    return (directory / "f").read_bytes() if (directory / "f").exists() else b""


def check_numbers(old: bytes, new: bytes, diff: str) -> None:
    """git looks for a hunk elsewhere when its numbers are wrong, so the numbers are checked here."""
    for hunk in re.split(r"^@@ ", diff, flags=re.MULTILINE)[1:]:
        numbers, _, body = hunk.partition("\n")
        lines = [line for line in body.split("\n")[:-1] if line[0] != "\\"]
        for data, mark, numbered in ((old, "-", numbers.split()[0]), (new, "+", numbers.split()[1])):
            first, _, count = numbered[1:].partition(",")
            said = [line[1:] for line in lines if line[0] in (" ", mark)]
            assert int(count or 1) == len(said)
            assert not said or data.decode().split("\n")[int(first) - 1 :][: len(said)] == said


GIT = {
    "PATH": os.environ.get("PATH", ""),
    "GIT_CEILING_DIRECTORIES": "/",
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": "/nonexistent",
}


@given(before=TEXT.filter(bool), after=TEXT, many=st.integers(0, 30))
def test_git_applies_the_diff_to_the_same_result(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str, many: int
) -> None:
    old, new = (("same\n" * many + text + "\nsame" * many).encode() for text in (before, after))
    if old != new:
        diff = unified_diff("f", old, new)
        check_numbers(old, new, diff)
        assert patched(tmp_path_factory.mktemp("diff"), old, diff) == new


def test_a_diff_of_everything_is_quick_and_right(tmp_path: Path) -> None:
    old = b"".join(b"%d\n" % (n % 7) for n in range(5_000))
    new = b"".join(b"%d\n" % (n % 5) for n in range(5_000))
    diff = unified_diff("f", old, new)
    check_numbers(old, new, diff)
    assert patched(tmp_path, old, diff) == new


def test_a_diff_is_cut_at_a_line_with_a_note() -> None:
    diff = unified_diff("f", None, b"".join(b"%05d\xc3\xbc\n" % n for n in range(100_000)))
    assert len(diff.encode()) <= MAX_DIFF_BYTES
    lines = diff.split("\n")
    assert lines[-3][0] == "+"
    assert lines[-2].startswith("[diff cut: ")
    assert len(unified_diff("f", None, b"x" * 1_000_000).encode()) < 200
