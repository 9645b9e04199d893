"""`agentctl ask` against recorded tool-calling streams: what the record says of the files is what happened to them.

The recorded calls are made into calls of our tools (retarget.py), everything else is as the provider sent it; every answer after
the first is made up here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests import wire_corpus
from tests.e2e.harness import Done, Home, Record, finish, of, records
from tests.e2e.model import Answer, Asked, Decide, Model, call, stream, text, turns
from tests.e2e.retarget import Called, retarget, tool_streams
from tests.wire_corpus import need_corpus

STREAMS: Final = tool_streams()
CONTENT: Final = 'first line\nsecond line: \u00e4\u2028\U0001f600 "quoted" \\back\nlast\n'
# Streams of one turn each, for the turns of one run.
CHAIN: Final[tuple[str, ...]] = (
    "mistral-tool-no-index",
    "alibaba-qwen3-tool-id-empty-later",
    "mistral-glm-tool-empty-name-later",
    "novita-kimi-tool-name-repeated",
    "writer-tool-message-and-delta",
    "openai-finish-stop-with-tool",
    "azure-grok41-tool-empty-args",
)


def recorded(name: str) -> tuple[bytes, int]:
    """A stream and the number of its calls."""
    body, expected = wire_corpus.stream("openai-chat", name)
    return body, len(expected["tool_calls"])


def writes(name: str) -> tuple[bytes, list[str]]:
    """The stream with each of its calls writing a file, and those files."""
    body, count = recorded(name)
    paths = [f"out/{name}-{number}.txt" for number in range(count)]
    calls = [Called("write_file", {"path": path, "content": f"{path}\n{CONTENT}"}) for path in paths]
    return retarget(body, calls), paths


def by_prompt(bodies: dict[str, bytes]) -> Decide:
    """The prompt names the stream that is the first answer to it."""

    def decide(asked: Asked) -> Answer:
        return stream(bodies[asked.prompt] if asked.turn == 0 else text("done"))

    return decide


def ask_each(home: Home, model: Model, names: list[str], *options: str) -> dict[str, Done]:
    """One `agentctl ask` for each stream, four at a time."""
    done: dict[str, Done] = {}
    for start in range(0, len(names), 4):
        group = names[start : start + 4]
        asking = [home.start("ask", "--base-url", model.url, "-m", "scripted", *options, name) for name in group]
        done |= {name: finish(process) for name, process in zip(group, asking, strict=True)}
    return done


def by_stream(home: Home) -> dict[str, Path]:
    """The trace of each prompt."""
    return {of("run.execute.started", records(path))[0]["text"]: path for path in home.traces()}


def verified(home: Home, sessions: int) -> None:
    """All traces verify, as the client sees it, with the daemon ended."""
    home.ctl("stop").ok()
    verdicts = home.ctl("trace", "verify", "--all", "--json").ok().lines()
    assert len(verdicts) == sessions
    for verdict in verdicts:
        assert verdict["emitted"] == verdict["records"]
        assert not verdict["damaged"]
    assert home.logs() == ""


def test_every_recorded_stream_changes_the_files_and_the_record_says_so(home: Home) -> None:
    need_corpus()
    made = {name: writes(name) for name in STREAMS}
    with Model(by_prompt({name: body for name, (body, _) in made.items()})) as model:
        home.ctl("ask", "--base-url", model.url, "-q", STREAMS[0]).ok()  # starts the daemon, in plan mode
        assert list(home.workspace.iterdir()) == []
        (warm,) = home.traces()
        asked = ask_each(home, model, list(STREAMS), "-b")
    sessions = by_stream(home)
    for name, (_, paths) in made.items():
        assert asked[name].code == 0, (name, asked[name].err)
        assert sessions[name] != warm
        found = records(sessions[name])
        (end,) = of("run.execute.finished", found)
        assert (name, end["outcome"], end["files"], end["errors"]) == (name, "completed", paths, [])
        assert [change["path"] for change in of("file.change.applied", found)] == paths
        assert [finished["is_error"] for finished in of("tool.call.finished", found)] == [False] * len(paths)
        for path in paths:
            assert (home.workspace / path).read_text() == f"{path}\n{CONTENT}", name
        expected = wire_corpus.stream("openai-chat", name)[1]
        first = of("model.request.finished", found)[0]
        assert first["text"] == expected["text"]
        assert [len(first["tool_calls"]), first["finish"]] == [len(paths), expected["finish"]]
    assert len(list(home.workspace.rglob("*.txt"))) == sum(len(paths) for _, paths in made.values())
    summary = home.ctl("trace", "summary", sessions[STREAMS[-1]].name).ok().out
    for path in made[STREAMS[-1]][1]:
        assert path in summary
    verified(home, len(STREAMS) + 1)


def test_in_plan_mode_the_same_streams_change_nothing(home: Home) -> None:
    need_corpus()
    names = [name for name in CHAIN if name in STREAMS]
    bodies = {name: writes(name)[0] for name in names}
    with Model(by_prompt(bodies)) as model:
        home.ask(model.url, names[0]).ok()
        asked = ask_each(home, model, names[1:])
        assert [done.code for done in asked.values()] == [0] * len(asked)
    assert list(home.workspace.iterdir()) == []
    for name, path in by_stream(home).items():
        found = records(path)
        (end,) = of("run.execute.finished", found)
        assert (name, end["files"], end["tools"]) == (name, [], ["write_file"])
        assert of("file.change.applied", found) == []
        (refused,) = of("tool.call.finished", found)
        assert refused["is_error"]
        assert "write_file is not available: this session's mode is read-only" in refused["output"]
        tools = of("model.request.started", found)[0]["context"]["tools"]
        assert "read_file" in (told := [tool["name"] for tool in tools])
        assert "write_file" not in told
    verified(home, len(names))


def test_untouched_streams_call_tools_that_do_not_exist_and_the_runs_end_in_order(home: Home) -> None:
    need_corpus()
    bodies = {name: recorded(name)[0] for name in STREAMS}
    with Model(by_prompt(bodies)) as model:
        home.ask(model.url, "-b", STREAMS[0]).ok()
        asked = ask_each(home, model, list(STREAMS[1:]), "-b")
        for name, done in asked.items():
            assert (name, done.code) == (name, int(is_cut(name))), done.err
    assert list(home.workspace.iterdir()) == []
    for name, path in by_stream(home).items():
        found = records(path)
        (end,) = of("run.execute.finished", found)
        assert (name, end["outcome"], end["files"]) == (name, "limit" if is_cut(name) else "completed", [])
        assert of("file.change.applied", found) == []
        if is_cut(name):
            assert end["tools"] == []
            continue
        assert all(finished["is_error"] for finished in of("tool.call.finished", found))
        assert len(end["errors"]) == len(end["tools"])
    verified(home, len(STREAMS))


def is_cut(name: str) -> bool:
    """Whether the stream's call was cut at the model's output limit."""
    return any("_raw" in call["input"] for call in wire_corpus.stream("openai-chat", name)[1]["tool_calls"])


def test_a_call_that_was_cut_is_not_run_however_much_of_it_came(home: Home) -> None:
    need_corpus()
    (name,) = [name for name in STREAMS if is_cut(name)]
    cut = Called("write_file", '{"path": "cut.txt", "content": "the first half of what was to be wri')
    with Model(by_prompt({name: retarget(recorded(name)[0], [cut])})) as model:
        asked = home.ask(model.url, "-b", name)
    assert (asked.code, list(home.workspace.iterdir())) == (1, [])
    assert "the answer was cut at the model's output limit" in asked.err
    found = records(home.trace())
    (end,) = of("run.execute.finished", found)
    assert (end["outcome"], end["tools"], end["files"]) == ("limit", [], [])
    assert of("tool.call.started", found) == []
    verified(home, 1)


def chained() -> list[bytes]:
    """Read, edit and write over several turns, each in another provider's way."""
    steps = (
        Called("list_files", {}),
        Called("read_file", {"path": "code.py"}),
        Called("edit_file", {"path": "code.py", "old": "return 1", "new": "return 2"}),
        Called("edit_file", {"path": "code.py", "old": "not in it", "new": "x"}),
        Called("write_file", {"path": "new/notes.md", "content": CONTENT}),
        Called("write_file", {"path": "../outside.txt", "content": "no"}),
        Called("search", {"pattern": "return"}),
    )
    return [retarget(recorded(name)[0], [step]) for name, step in zip(CHAIN, steps, strict=True)]


def test_a_run_over_many_dialects_credits_what_succeeded_and_nothing_else(home: Home) -> None:
    need_corpus()
    code = home.workspace / "code.py"
    code.write_bytes(b"def one():\r\n    return 1\r\n")
    with Model(turns(*chained(), text("All done."))) as model:
        asked = home.ask(model.url, "-b", "change it").ok()
    assert asked.out == "All done.\n"
    assert code.read_bytes() == b"def one():\r\n    return 2\r\n"
    assert (home.workspace / "new" / "notes.md").read_text() == CONTENT
    assert not (home.place / "outside.txt").exists()
    check_chain(home, records(home.trace()))
    for line in ("✗ edit_file", "✗ write_file", "✓ edit_file", "✓ write_file"):
        assert line in asked.err
    verified(home, 1)
    summary = home.ctl("trace", "summary", "last", "--json").ok().json()
    (run,) = summary["runs"]
    assert (run["outcome"], run["files"], run["prompt"]) == ("completed", ["code.py", "new/notes.md"], "change it")
    assert [tool["ok"] for tool in run["tools"]] == [True, True, True, False, True, False, True]
    shown = home.ctl("trace", "summary", "last").ok().out
    assert "outside.txt" not in shown.partition("\n  files ")[2].partition("\n  errors ")[0]


def check_chain(home: Home, found: list[Record]) -> None:
    finished = of("tool.call.finished", found)
    assert [call["is_error"] for call in finished] == [False, False, False, True, False, True, False]
    changes = of("file.change.applied", found)
    assert [change["path"] for change in changes] == ["code.py", "new/notes.md"]
    assert "-    return 1" in changes[0]["diff"]
    assert "+    return 2" in changes[0]["diff"]
    assert changes[1]["before"] is None
    (end,) = of("run.execute.finished", found)
    assert end["files"] == ["code.py", "new/notes.md"]
    assert [error.partition(":")[0] for error in end["errors"]] == ["edit_file", "write_file"]


def test_a_file_that_ends_as_it_began_is_no_changed_file(home: Home) -> None:
    (home.workspace / "a.txt").write_text("one\n")
    steps = (
        call("read_file", path="a.txt"),
        call("write_file", path="a.txt", content="two\n"),
        call("write_file", path="a.txt", content="one\n"),
    )
    with Model(turns(*steps, text("as before"))) as model:
        home.ask(model.url, "-b", "there and back").ok()
    found = records(home.trace())
    assert len(of("file.change.applied", found)) == 2
    assert of("run.execute.finished", found)[0]["files"] == []


@pytest.mark.parametrize("name", STREAMS)
def test_retargeting_changes_the_calls_and_nothing_else(name: str) -> None:
    body, count = recorded(name)
    made, _ = writes(name)
    again = retarget(made, [Called("write_file")] * count)
    assert again == made
    before, after = body.split(b"\n"), made.split(b"\n")
    assert len(before) == len(after)
    assert all(new == old for old, new in zip(before, after, strict=True) if b'"tool_calls"' not in old)
