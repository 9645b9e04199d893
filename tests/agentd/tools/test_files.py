"""list_files, read_file and write_file: what the model is shown, what it may overwrite, and that all of it is bounded."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.tools.base import MAX_RESULT_CHARS
from agentd.tools.changes import MAX_FILE_BYTES, MAX_SEEN, remember
from agentd.tools.window import take_window
from tests.agentd.tools.tool_calls import Tools

pytestmark = pytest.mark.anyio


# --- list_files


async def test_a_listing_is_sorted_marked_and_hides_what_nobody_wrote(tools: Tools) -> None:
    for path in ("src/b.py", "src/a.py", "src/deep/er/x", ".git/config", "node_modules/x/index.js", ".env", "README"):
        tools.put(path, b"")
    (tools.root / "link").symlink_to("src")
    assert (await tools.text("list_files")).split("\n") == [
        ".env",
        ".git/",
        "README",
        "link -> src",
        "node_modules/",
        "src/",
        "src/a.py",
        "src/b.py",
        "src/deep/",
    ]
    assert "src/deep/er/x" in await tools.text("list_files", recursive=True)
    assert await tools.text("list_files", path="node_modules/x") == "node_modules/x/index.js"
    assert await tools.text("list_files", path="link", depth="1") == "link/a.py\nlink/b.py\nlink/deep/"


async def test_ten_thousand_files_are_a_bounded_listing_that_counts_the_rest(tools: Tools) -> None:
    for number in range(10_000):
        (tools.root / f"f{number:05}").touch()
    text = await tools.text("list_files")
    assert text.startswith("f00000\n")
    assert text.split("\n")[500] == "[9,500 more not shown: list a directory below, or lower depth]"
    full = await tools.call("list_files", limit=100_000)
    lines = full.text.split("\n")
    assert len(full.text) <= MAX_RESULT_CHARS
    assert f"[{10_000 - len(lines) + 1:,} more not shown" in lines[-1]


async def test_odd_names_are_one_line_of_valid_text_each(tools: Tools) -> None:
    for name in (b"new\nline", b"\xff\xfe", b"\x1b[31mred", "ü\u2028".encode()):
        (tools.root / os.fsdecode(name)).touch()
    text = await tools.text("list_files")
    assert len(text.encode().split(b"\n")) == 4
    assert "new\\nline" in text
    assert "\x1b" not in text


async def test_an_empty_directory_a_file_and_nothing_say_so(tools: Tools) -> None:
    (tools.root / "d").mkdir()
    tools.put("f", b"")
    assert await tools.text("list_files", path="d") == "d is empty."
    assert "not a directory" in await tools.error("list_files", path="f")
    assert "no such file" in await tools.error("list_files", path="gone")


# --- read_file


async def test_a_whole_file_is_its_text_and_counts_as_seen(tools: Tools) -> None:
    tools.put("a.py", "x = 1\ny = 'ü\u2028'".encode())
    assert await tools.text("read_file", path="./a.py") == "x = 1\ny = 'ü\u2028'"
    assert tools.context.seen == {"a.py": hashlib.sha256((tools.root / "a.py").read_bytes()).hexdigest()}


async def test_a_window_says_where_it_is_and_where_to_go_on(tools: Tools) -> None:
    tools.put("a", b"".join(b"line %d\n" % n for n in range(1, 101)))
    assert (
        await tools.text("read_file", path="a", offset="11", limit="2")
        == "[lines 11-12 of 100; go on with offset=13]\nline 11\nline 12\n"
    )
    assert await tools.text("read_file", path="a", offset=100) == "[lines 100-100 of 100]\nline 100\n"
    assert "there is no line 101; the file has 100 lines" in await tools.error("read_file", path="a", offset=101)
    assert "limit must be at least 1" in await tools.error("read_file", path="a", limit=0)


async def test_windows_put_together_are_the_file(tools: Tools) -> None:
    data = "".join(f"{n} {'word ' * (n % 40)}\n" for n in range(2_000))
    tools.put("a", data.encode())
    parts, offset = [], 1
    while True:
        text = await tools.text("read_file", path="a", offset=offset)
        assert len(text) <= MAX_RESULT_CHARS
        header, _, body = text.partition("\n")
        parts.append(body)
        if "go on with offset=" not in header:
            break
        offset = int(header.rstrip("]").rpartition("=")[2])
    assert "".join(parts) == data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "[the file is empty]"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "[CRLF line ends; starts with a UTF-8 BOM]\na\nb\n"),
        (b"caf\xe9\n", "[bytes that are not UTF-8 are shown as \ufffd]\ncaf\ufffd\n"),
        ("\ufffd\n".encode(), "\ufffd\n"),
        (b"\n", "\n"),
    ],
)
async def test_what_the_text_does_not_show_is_said(tools: Tools, data: bytes, text: str) -> None:
    tools.put("a", data)
    assert await tools.text("read_file", path="a") == text


async def test_a_binary_file_is_one_line_and_not_seen(tools: Tools) -> None:
    data = b"\x89PNG\r\n\x1a\n\0\0\0"
    tools.put("a.png", data)
    text = await tools.text("read_file", path="a.png")
    assert text == f"[binary file: PNG image, 11 bytes, sha256 {hashlib.sha256(data).hexdigest()}]"
    assert tools.context.seen == {}
    assert "binary" in await tools.error("write_file", path="a.png", content="x")


async def test_one_endless_line_is_cut(tools: Tools) -> None:
    tools.put("a", b"x" * 100_000 + b"\nnext\n")
    text = await tools.text("read_file", path="a")
    assert len(text) <= MAX_RESULT_CHARS
    assert text.startswith("[lines 1-1 of 2; line 1 is cut, it has 100,000 bytes; go on with offset=2]\nxxx")


async def test_a_huge_file_is_read_in_windows_without_being_loaded_and_cannot_be_edited(tools: Tools) -> None:
    with (tools.root / "huge").open("wb") as file:
        file.write(b"first\nsecond\n")
        for _ in range(MAX_FILE_BYTES // 65_536 + 1):
            file.write(b"y" * 65_535 + b"\n")
        file.truncate(1 << 40)  # sparse: a terabyte
    assert "too large to be edited" in (text := await tools.text("read_file", path="huge", offset=2, limit=1))
    assert text.endswith("\nsecond\n")
    assert tools.context.seen == {}
    assert "too large" in await tools.call_error("edit_file", path="huge", old="first", new="x")


async def test_a_fifo_is_refused_and_does_not_hang(tools: Tools) -> None:
    os.mkfifo(tools.root / "fifo")
    for call in (
        tools.call_error("read_file", path="fifo"),
        tools.call_error("write_file", path="fifo", content="x"),
        tools.call_error("search", path="fifo", pattern="x"),
    ):
        assert "FIFO" in await call


@given(
    data=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 40), min_size=1),
    offset=st.integers(1, 5),
    limit=st.integers(1, 5),
)
def test_where_the_bytes_are_cut_does_not_matter(data: bytes, cuts: list[int], offset: int, limit: int) -> None:
    chunks: list[bytes] = []
    at = 0
    while at < len(data):
        step = cuts[len(chunks) % len(cuts)]
        chunks.append(data[at : at + step])
        at += step
    for budget in (7, 1_000):
        assert take_window(chunks, offset, limit, budget) == take_window([data], offset, limit, budget)


# --- write_file


async def test_a_new_file_needs_no_reading_and_gets_its_directories(tools: Tools) -> None:
    output = await tools.call("write_file", path="pkg/new/a.py", content="x = 1\n")
    assert output.text == "Created pkg/new/a.py (1 lines, 6 bytes)."
    (change,) = output.changes
    after = hashlib.sha256(b"x = 1\n").hexdigest()
    assert (change.path, change.before, change.after) == ("pkg/new/a.py", None, after)
    assert change.diff == "--- /dev/null\n+++ b/pkg/new/a.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert tools.context.seen == {"pkg/new/a.py": after}


async def test_an_existing_file_must_have_been_read_and_be_unchanged(tools: Tools) -> None:
    file = tools.put("a", b"old\n")
    assert "read it with read_file first" in await tools.error("write_file", path="a", content="new\n")
    await tools.text("read_file", path="a")
    file.write_bytes(b"theirs\n")
    assert "has changed since you read it" in await tools.error("write_file", path="a", content="new\n")
    await tools.text("read_file", path="a")
    assert (await tools.text("write_file", path="a", content="new\n")).startswith("Wrote a")
    assert file.read_bytes() == b"new\n"
    assert (await tools.text("write_file", path="a", content="newer\n")).startswith("Wrote a"), (
        "what it wrote counts as seen"
    )


async def test_writing_the_same_changes_nothing(tools: Tools) -> None:
    tools.put("a", b"same")
    await tools.text("read_file", path="a")
    output = await tools.call("write_file", path="a", content="same")
    assert (output.is_error, output.changes) == (False, ())
    assert "nothing was changed" in output.text


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "out/evil", "out/new/evil", "~/evil", "a\0b", "d/"])
async def test_an_escape_is_an_error_of_the_call(tools: Tools, path: str) -> None:
    outside = tools.root.parent / "outside"
    outside.mkdir()
    (tools.root / "out").symlink_to("../outside")
    for name, more in (
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": "a", "new": "b"}),
        ("read_file", {}),
        ("search", {"pattern": "x"}),
    ):
        assert str(outside) not in await tools.call_error(name, path=path, **more)
    assert os.listdir(outside) == []


def test_what_is_remembered_is_bounded() -> None:
    seen: dict[str, str] = {}
    for number in range(MAX_SEEN + 10):
        remember(seen, str(number), "")
    remember(seen, "11", "again")
    assert len(seen) == MAX_SEEN
    assert list(seen)[-1] == "11"
