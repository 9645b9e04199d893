"""trace show, tail, verify and summary of records whose bodies are in payload files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from agentctl.__main__ import run
from agentctl.summary import MAX_PROMPT_CHARS
from tests.agentctl import traces
from tests.agentctl.fake_daemon import SESSION, Screen
from tests.tracewriter.payload_sessions import PLANTED, Body, plant, put
from tracewriter.payload import PAYLOADS

Env = dict[str, str]
PROMPT = Body("fix the bug\n     9  forged\r\nin \x1b[2J the file 𝔘 \u2028 ".encode() + b"word " * 5000)
INPUT = Body(msgspec.json.encode({"content": "def f():\n" * 3000, "path": "src/big.py"}), is_json=True)
OUTPUT = Body(b"no such directory: " + b"deep/" * 8000)
DIFF = Body(b"--- a\n+++ b\n" + b"+a line\n" * 4000)
BODIES = (PROMPT, INPUT, OUTPUT, DIFF)


def ref(body: Body) -> object:
    fields: object = msgspec.to_builtins(body.ref)
    return fields


def lines(prompt: Body = PROMPT) -> list[str]:
    started = {"prompt": "p", "text": ref(prompt), "mode": "build", "model": "gpt-5", "provider": "openai"}
    failed = {"id": "c", "name": "run_shell", "output": ref(OUTPUT), "is_error": True, "duration_ms": 3.0}
    return [
        traces.opened(1),
        traces.record(2, "run.execute.started", started),
        traces.record(3, "tool.call.started", {"id": "c", "name": "write_file", "input": ref(INPUT)}, op="t1"),
        traces.changed(4, "src/big.py", "t1", ref(DIFF)),
        traces.record(5, "tool.call.finished", failed, op="t2"),
        traces.finished(6, files=["src/big.py"]),
        traces.closed(7),
    ]


@pytest.fixture
def directory(env: Env) -> Path:
    path = traces.write_session(env, lines())
    for body in BODIES:
        put(path, body)
    return path


def shown(env: Env, *words: str, code: int = 0) -> str:
    screen = Screen(env)
    assert run(["trace", *words], screen.world) == code, screen.err
    return screen.out


@pytest.mark.parametrize("words", [["show"], ["tail"], ["tail", "-f"]])
def test_people_see_heads_that_say_how_much_there_is(words: list[str], env: Env, directory: Path) -> None:
    rows = [row for row in shown(env, *words, SESSION).splitlines() if row[:6].strip().isdecimal()]
    assert f"“fix the bug” [payload: {len(PROMPT.data.decode()):,} characters]" in rows[1]
    assert f"[payload: {len(INPUT.data.decode()):,} characters]" in rows[2]
    assert f"failed in 3 ms: “no such directory:” [payload: {len(OUTPUT.data):,} characters]" in rows[4]
    assert "word word word word word word word word word word word word" not in "".join(rows)


@pytest.mark.parametrize("words", [["show", "--full"], ["tail", "--full"], ["tail", "--full", "-f"]])
def test_full_shows_whole_bodies_made_safe(words: list[str], env: Env, directory: Path) -> None:
    out = shown(env, *words, SESSION)
    under = "\n".join(row for row in out.split("\n") if row.startswith(" " * 11))
    assert under.count("word ") == 5000
    assert under.count("def f():") == 3000
    assert under.count("deep/") == 8000
    assert under.count("+a line") == 4000
    assert "\x1b" not in out
    assert "\u2028" not in out
    assert "␛[2J" in out
    assert [row[:6].strip() for row in out.split("\n") if row[:6].strip().isdecimal()] == [str(n) for n in range(1, 8)]


@pytest.mark.parametrize("command", ["show", "tail"])
def test_json_is_the_stored_lines_and_whole_with_full(command: str, env: Env, directory: Path) -> None:
    stored = [line for line in shown(env, command, SESSION, "--json").split("\n") if line.startswith('{"seq"')]
    assert [json.loads(line) for line in stored] == [json.loads(line) for line in lines()]
    whole = [line for line in shown(env, command, SESSION, "--json", "--full").split("\n") if line.startswith('{"seq"')]
    records = [json.loads(line) for line in whole]
    assert [record["seq"] for record in records] == list(range(1, 8))
    assert records[1]["data"]["text"] == PROMPT.data.decode()
    assert records[2]["data"]["input"] == json.loads(INPUT.data)
    assert records[3]["data"]["diff"] == DIFF.data.decode()
    assert records[4]["data"]["output"] == OUTPUT.data.decode()
    for line in whole:
        line.encode("ascii" if "𝔘" not in line else "utf-8")
        assert "\x1b" not in line


@pytest.mark.parametrize("command", ["show", "tail"])
@pytest.mark.parametrize("as_json", [False, True])
def test_full_says_what_is_missing_or_damaged_and_exits_5(
    command: str, as_json: bool, env: Env, directory: Path
) -> None:
    (directory / PAYLOADS / PROMPT.id).unlink()
    (directory / PAYLOADS / DIFF.id).write_bytes(b"\xff\xfe")
    more = ["--json"] if as_json else []
    assert "payload" in shown(env, command, SESSION, *more)  # heads need no file
    out = shown(env, command, SESSION, "--full", *more, code=5)
    assert out.count("[payload missing]") >= 2
    if as_json:
        notes = [json.loads(line)["note"] for line in out.split("\n") if line.startswith('{"note"')]
        told = [(note["kind"], note["payload"], note["first"]) for note in notes if note["damage"]]
        assert told == [("payload_missing", PROMPT.id, 2), ("payload_damaged", DIFF.id, 4)]
    else:
        assert f"!!!  payload missing: payload {PROMPT.id} is missing; seq 2 names it" in out
        assert f"!!!  payload damaged: payload {DIFF.id} is no text; seq 4 names it" in out
        assert "DAMAGE FOUND in 2 places" in out or command == "tail"


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_planted_is_shown(kind: str, env: Env, directory: Path, tmp_path: Path) -> None:
    path = directory / PAYLOADS / PROMPT.id
    path.unlink()
    plant(kind, path, tmp_path / "outside")
    out = shown(env, "show", SESSION, "--full", code=5)
    assert "a secret" not in out
    assert "foreign" in out


def test_one_run_loads_its_own_bodies_only(env: Env, directory: Path) -> None:
    (directory / PAYLOADS / PROMPT.id).unlink()
    other = "0199ffffc3d57e5f8a9b0c1d2e3f4a5b"
    path = directory / "000001.jsonl"
    path.write_text(path.read_text() + traces.started(8, run=other) + "\n" + traces.closed(9) + "\n")
    assert "payload" not in shown(env, "show", SESSION, "--full", "--run", other[:8])


def test_a_summary_tells_what_is_in_the_bodies(env: Env, directory: Path) -> None:
    document = json.loads(shown(env, "summary", SESSION, "--json"))
    (one,) = document["runs"]
    assert one["prompt"] == PROMPT.data.decode()
    assert [tool["argument"] for tool in one["tools"]] == ["src/big.py", ""]
    assert one["files"] == ["src/big.py"]
    assert one["errors"][0].startswith("run_shell: no such directory: deep/deep/deep/")
    text = shown(env, "summary", SESSION)
    assert "write_file src/big.py" in text
    assert "\x1b" not in text


def test_a_summary_is_bounded_and_says_what_it_cannot_tell(env: Env) -> None:
    long = Body(b"x " * MAX_PROMPT_CHARS)
    path = traces.write_session(env, lines(long), "long")
    put(path, long)
    put(path, OUTPUT)
    document = json.loads(shown(env, "summary", "long", "--json", code=5))
    assert document["runs"][0]["prompt"].endswith(f"…[cut: {2 * MAX_PROMPT_CHARS:,} characters]")
    assert len(document["runs"][0]["prompt"]) < MAX_PROMPT_CHARS + 100
    assert ("payload_missing", INPUT.id) in [(note["kind"], note.get("payload")) for note in document["notes"]]


def test_verify_tells_of_payloads(env: Env, directory: Path) -> None:
    assert ", 4 payloads (0 verified), " in shown(env, "verify", SESSION)
    (directory / PAYLOADS / OUTPUT.id).unlink()
    (directory / PAYLOADS / "odd\x1bname").touch()
    out = shown(env, "verify", SESSION, code=5)
    assert f"payload missing: payload {OUTPUT.id}, which seq 5 names, is missing" in out
    assert "foreign: payloads/odd␛name" in out
    document = json.loads(shown(env, "verify", SESSION, "--json", code=5))
    assert (document["payloads"], document["payloads_verified"], document["damaged"]) == (3, 0, True)
    assert document["payload_bytes"] == sum(len(body.data) for body in (PROMPT, INPUT, DIFF))
    kinds = {note["kind"]: note for note in document["notes"]}
    assert (kinds["payload_missing"]["payload"], kinds["payload_missing"]["first"]) == (OUTPUT.id, 5)
    assert not kinds["unsealed"]["damage"]


def test_a_name_that_is_no_text_is_told_in_json(env: Env, directory: Path) -> None:
    (directory / PAYLOADS / os.fsdecode(b"\xff\xfe")).touch()
    assert json.loads(shown(env, "verify", SESSION, "--json", code=5))["damaged"]


def test_a_record_with_its_structure_in_a_payload_is_still_shown_as_what_it_is(env: Env) -> None:
    calls = Body(msgspec.json.encode([{"id": "1", "name": "read_file", "input": {"path": "a"}}]), is_json=True)
    line = traces.replied(2).replace('"tool_calls":[]', f'"tool_calls":{msgspec.json.encode(calls.ref).decode()}')
    path = traces.write_session(env, [traces.opened(1), line, traces.closed(3)])
    put(path, calls)
    assert "calls read_file" in shown(env, "show", SESSION)
