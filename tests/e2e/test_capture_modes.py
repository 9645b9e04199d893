"""The capture modes on a real disk: what is in no file in mode metadata, what stream records, and that off writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import Home, of, records
from tests.e2e.model import Answer, Asked, Model, call, end, sse, stream, text

# The conversation is kept as it is, 0600, so that it can go on (README); it is no trace.
STORE: Final = ("sessions.db", "sessions.db-wal", "sessions.db-shm")
CANARIES: Final = {
    "prompt": "canaryprompt7Qx",
    "file name": "canaryname7Qx",
    "file contents": "canarycontents7Qx",
    "written": "canarywritten7Qx",
    "model text": "canarysaid7Qx",
    "reasoning": "canarythought7Qx",
    "unknown path": "canarymissing7Qx",
    "arguments": "canaryargument7Qx",
    "error of the provider": "canaryrefusal7Qx",
}
NAME: Final = f"{CANARIES['file name']}.txt"
# Digests tell as much: of the file as it was and as it became.
OLD: Final = f"old {CANARIES['file contents']}\n"


def decide(asked: Asked) -> Answer:
    if "break" in asked.prompt:
        error = {"error": {"message": CANARIES["error of the provider"], "type": "invalid_request_error"}}
        return Answer((json.dumps(error).encode(),), 400, "application/json")
    turns = (
        call("read_file", path=NAME),
        call("search", pattern=CANARIES["arguments"]),
        call("edit_file", path=NAME, old="old", new=CANARIES["written"]),
        call("edit_file", path=f"{CANARIES['unknown path']}.txt", old="a", new="b"),
        sse({"reasoning_content": CANARIES["reasoning"]}) + text(f"I said {CANARIES['model text']}"),
    )
    return stream(turns[min(asked.turn, len(turns) - 1)])


@pytest.fixture
def model() -> Iterator[Model]:
    with Model(decide) as serving:
        yield serving


def run_all(home: Home, model: Model, *words: str, **env: str) -> None:
    """A run that reads, changes, fails at something and answers, and one that its provider refuses."""
    (home.workspace / NAME).write_text(OLD)
    assert CANARIES["model text"] in home.ask(model.url, "-b", *words, CANARIES["prompt"], env=env).ok().out
    assert home.ask(model.url, *words, f"break {CANARIES['prompt']}", env=env).code == 1
    assert (home.workspace / NAME).read_text() == OLD.replace("old", CANARIES["written"])


def holders(home: Home, wanted: str) -> list[str]:
    """The files under the home, by contents or by name, that have it; but for the store's."""
    paths = [path for path in home.root.rglob("*") if path.name not in STORE]
    named = [str(path) for path in paths if wanted in path.name]
    return named + [str(path) for path in paths if path.is_file() and wanted.encode() in path.read_bytes()]


def digests(home: Home) -> list[str]:
    import hashlib

    contents = (OLD, (home.workspace / NAME).read_text())
    return [hashlib.sha256(content.encode()).hexdigest() for content in contents]


def test_metadata_leaves_no_content_and_no_digest_of_any_in_any_file(home: Home, model: Model) -> None:
    run_all(home, model, "--capture", "metadata")
    home.ctl("stop").ok()
    for what, canary in CANARIES.items():
        assert holders(home, canary) == [], what
    for digest in digests(home):
        assert holders(home, digest) == []
    first, second = home.traces()
    found = records(first)
    assert of("session.record.started", found)[0]["capture"] == "metadata"
    finished = of("run.execute.finished", found)[0]
    assert (finished["outcome"], len(finished["files"]), len(finished["errors"])) == ("completed", 1, 1)
    assert finished["usage"]["input_tokens"] == 500
    assert [data["name"] for data in of("tool.call.finished", found)] == [
        "read_file",
        "search",
        "edit_file",
        "edit_file",
    ]
    assert of("run.execute.finished", records(second))[0]["outcome"] == "failed"
    for trace in (first, second):
        home.sound(trace)
        home.ctl("trace", "summary", trace.name).ok()
        home.ctl("trace", "show", trace.name).ok()


def test_content_has_them_so_that_the_test_above_can_fail(home: Home, model: Model) -> None:
    run_all(home, model)
    home.ctl("stop").ok()
    assert [what for what, canary in CANARIES.items() if not holders(home, canary)] == []
    assert [digest for digest in digests(home) if not holders(home, digest)] == []


@pytest.mark.parametrize("how", ["AGENTD_NO_TRACE", "--capture off", "config.toml"])
def test_off_writes_nothing_at_all_and_says_so_at_start_and_in_status(home: Home, model: Model, how: str) -> None:
    env = {"AGENTD_NO_TRACE": "1"} if how == "AGENTD_NO_TRACE" else {}
    words = ("--capture", "off") if how == "--capture off" else ()
    if how == "config.toml":
        home.root.mkdir()
        (home.root / "config.toml").write_text('capture = "off"\n')
    done = home.ask(model.url, *words, CANARIES["prompt"], env=env).ok()
    assert "recording is off: " in done.err
    assert "not recorded: " in done.err
    session = home.ctl("trace", "status", "--json", env=env).ok().json()["daemon"]["sessions"][0]
    assert session["state"] == "off"
    assert "1 open session not recorded" in home.ctl("status", env=env).ok().out
    assert "not recorded: " in home.ctl("trace", "status", env=env).ok().out
    home.ctl("stop").ok()
    assert home.traces() == []
    assert holders(home, CANARIES["prompt"]) == []
    assert holders(home, session["session"]) == []


SECRET: Final = "Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1A"
SAID: Final = f"Here is a line.\nAuthorization: Bearer {SECRET}\nand a last one"


def test_stream_records_deltas_and_a_secret_split_over_them_is_in_no_file(home: Home) -> None:
    pieces = [SAID[at : at + 3] for at in range(0, len(SAID), 3)]
    answer = stream(*(sse({"content": piece}) for piece in pieces), end())
    with Model(lambda asked: answer) as model:
        done = home.ask(model.url, "--capture", "stream", "hello").ok()
    assert SAID in done.out  # the live conversation is never altered
    home.ctl("stop").ok()
    assert holders(home, SECRET) == []
    assert holders(home, SECRET[:8]) == []
    found = records(home.trace())
    deltas = of("model.stream.delta", found)
    told = "".join(delta["text"] for delta in deltas)
    (finished,) = of("model.request.finished", found)
    assert told == finished["text"]
    assert "[redacted:" in told
    assert [delta["offset"] for delta in deltas] == [0, SAID.index("Auth"), SAID.index("and a")]
    home.sound(home.trace())


def test_a_session_changes_its_mode_and_each_recording_names_its_own(home: Home, model: Model) -> None:
    home.ask(model.url, "one").ok()
    for mode in ("metadata", "stream"):
        home.ask(model.url, "-c", "--capture", mode, mode).ok()
    home.ask(model.url, "-c", "as before").ok()
    home.ctl("stop").ok()
    found = records(home.trace())
    assert [data["capture"] for data in of("session.record.started", found)] == ["content", "metadata", "stream"]
    assert [data["value"] for data in of("config.change.applied", found)] == ["metadata", "stream"]
    assert [data["text"] for data in of("run.execute.started", found)] == [
        "one",
        "[not captured]",
        "stream",
        "as before",
    ]
    assert Path(home.trace(), "000001.jsonl").exists()
    home.sound(home.trace())
