"""agentctl trace context over real files: what is shown, for whom, and what is said of what is not there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agentctl.__main__ import run
from agentd.capture import metadata_of
from agentd.messages import encode_message
from agentd.providers.catalog import CATALOG
from agentd.providers.openai_chat_request import ChatQuirks, build_request
from agentd.providers.stream import Reasoning
from tests.agentctl import traces
from tests.agentctl.conversations import Recording, Script
from tests.agentctl.fake_daemon import SESSION, Screen
from tests.agentd.daemon_fakes import call, say
from tracewriter.events import RawRecord, UnknownEvent, event_of

Env = dict[str, str]

SCRIPT = Script(
    "fix the bug",
    (
        (Reasoning("hm"), *say("I look", call("a", '{"path":"x.py"}', "call_1"), call("b", "{}", "call_2"))),
        tuple(say("done")),
    ),
    ("def f():\n    return \x1b[31m1\u202e", "!no such file"),
)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """Two runs of one session: three requests, then one."""
    made = Recording(tmp_path)

    async def work() -> None:
        await made.run(SCRIPT)
        await made.run(msgspec.structs.replace(SCRIPT, text="thanks", replies=(tuple(say("welcome")),)))

    asyncio.run(work())
    made.close()
    return made


def write(env: Env, recording: Recording, change: Callable[[str], str] = lambda line: line) -> Path:
    return traces.write_session(env, [change(line.decode()) for line in recording.lines])


def shown(env: Env, *words: str, code: int = 0, cwd: str = "/") -> Screen:
    screen = Screen(env, cwd)
    assert run(["trace", "context", *words], screen.world) == code, (screen.out, screen.err)
    return screen


def test_people_see_the_runs_requests_and_the_last_one_whole(env: Env, recording: Recording) -> None:
    write(env, recording)
    first = recording.asked[0].run
    lines = shown(env, first[:20]).out.splitlines()
    assert lines[0] == f"run {first} of session {SESSION}"
    assert lines[1].split()[:2] == ["1", recording.asked[0].op]
    assert "main to openai/m, 1 message" in lines[1]
    assert "4 messages" in lines[2]
    assert lines[3].startswith("request 2: main to openai/m, 4 messages")
    assert lines[4:] == [
        "system",
        "    be good",
        "tools: a, b, w",
        "[0] user",
        "    fix the bug",
        "[1] assistant",
        "    I look",
        "    (reasoning) hm",
        '    calls a (call_1) {"path":"x.py"}',
        "    calls b (call_2) {}",
        "[2] tool a (call_1)",
        "    def f():",
        "        return ␛[31m1\\u202e",
        "[3] tool b (call_2, failed)",
        "    !no such file",
    ]


def test_a_request_is_chosen_by_its_number(env: Env, recording: Recording) -> None:
    write(env, recording)
    lines = shown(env, recording.asked[0].run, "--request", "1").out.splitlines()
    assert lines[1].startswith("request 1: main to openai/m, 1 message, ")
    assert lines[-2:] == ["[0] user", "    fix the bug"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_as_json_it_is_what_the_provider_got(env: Env, recording: Recording, number: int) -> None:
    write(env, recording)
    asked = recording.asked[number - 1]
    document = json.loads(shown(env, asked.run, "--request", str(asked.number), "--json").out)
    assert document["messages"] == [json.loads(encode_message(message)) for message in asked.request.messages]
    assert document["tools"] == [json.loads(msgspec.json.encode(tool)) for tool in asked.request.tools]
    assert (document["system"], document["whole"], document["run"]) == ("be good", True, asked.run)
    assert (document["request"]["op"], "requests" in document) == (asked.op, False)
    listed = json.loads(shown(env, asked.run, "--json").out)["requests"]
    assert [line["op"] for line in listed] == [other.op for other in recording.asked if other.run == asked.run]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_body_is_the_one_that_was_sent(env: Env, recording: Recording, number: int) -> None:
    write(env, recording)
    asked = recording.asked[number - 1]
    quirks = next(spec.quirks for spec in CATALOG if spec.name == "openai")
    out = shown(env, asked.run, "--request", str(asked.number), "--body").out
    assert json.loads(out) == json.loads(build_request(asked.request, quirks))
    assert "\x1b" not in out


def test_the_body_of_a_provider_of_the_users_own_is_built_as_the_configuration_says(env: Env, tmp_path: Path) -> None:
    made = Recording(tmp_path)
    asyncio.run(made.run(msgspec.structs.replace(SCRIPT, provider="work")))
    made.close()
    write(env, made)
    assert "'work' is not known here" in shown(env, "last", "--body", code=1).err
    home = Path(env["AGENTD_HOME"])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[providers.work]\nbase_url = "http://localhost:8000/v1"\n')
    assert json.loads(shown(env, "last", "--body").out) == json.loads(
        build_request(made.asked[-1].request, ChatQuirks())
    )
    (home / "config.toml").write_text("nonsense")
    assert "config.toml" in shown(env, "last", "--body", code=1).err


def test_a_run_is_named_by_its_beginning_by_last_by_its_session_or_by_its_directory(
    env: Env, recording: Recording
) -> None:
    path = write(env, recording)
    first, second = dict.fromkeys(asked.run for asked in recording.asked)
    for words in ([second], [second[:31]], ["last"], [SESSION], [SESSION[:8]], ["last", "--run", second]):
        assert shown(env, *words).out.startswith(f"run {second} of session {SESSION}"), words
    assert shown(env, f"./{path.name}", cwd=str(path.parent)).out.startswith(f"run {second} ")
    assert shown(env, SESSION, "--run", first).out.startswith(f"run {first} ")


def test_what_names_no_run_or_request_is_a_usage_problem(env: Env, recording: Recording) -> None:
    assert "nothing is recorded" in shown(env, "last", code=2).err
    write(env, recording)
    first, second = dict.fromkeys(asked.run for asked in recording.asked)
    common = next(at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    assert "ambiguous" in shown(env, first[:common], code=2).err
    assert "no run and no session 'ffff' is recorded" in shown(env, "ffff", code=2).err
    assert "has 2 recorded requests, no number 3" in shown(env, first, "--request", "3", code=2).err
    for number in ("0", "-1", "x", ""):
        assert "a number from 1" in shown(env, first, f"--request={number}", code=2).err
    assert "no run" in shown(env, "last", "--run", "ffff", code=2).err


def test_the_same_run_in_two_records_is_told_apart_by_the_directory(env: Env, recording: Recording) -> None:
    write(env, recording)
    other = SESSION[::-1]
    traces.write_session(env, [line.decode() for line in recording.lines], session=other)
    run_id = recording.asked[0].run
    err = shown(env, run_id, code=2).err
    assert "ambiguous" in err
    assert f"/{other}" in err
    assert shown(env, other, "--run", run_id).out.startswith(f"run {run_id} of session {other}")


def test_a_run_with_an_id_of_its_own_is_found_whatever_time_that_looks_like(env: Env, recording: Recording) -> None:
    mine = "f" * 32
    write(env, recording, lambda line: line.replace(recording.asked[0].run, mine))
    assert shown(env, "ffff").out.startswith(f"run {mine} ")


def without(name: str) -> Callable[[str], str]:
    """Lines of this kind were dropped, each by itself."""

    def change(line: str) -> str:
        record = json.loads(line)
        if record["event"] != name:
            return line
        seq = record["seq"]
        return traces.record(
            seq, "trace.drop.observed", {"first": seq, "last": seq, "count": 1, "reason": "buffer_full"}, run=""
        )

    return change


def test_a_message_whose_record_was_dropped_is_named_and_the_others_are_shown(env: Env, recording: Recording) -> None:
    write(env, recording, without("tool.call.finished"))
    asked = recording.asked[1]
    screen = shown(env, asked.run, "--json", code=1)
    document = json.loads(screen.out)
    sent = [json.loads(encode_message(message)) for message in asked.request.messages]
    assert document["messages"][:2] == sent[:2]
    for message in document["messages"][2:]:
        assert "records were dropped" in message["missing"]
    assert document["whole"] is False
    assert "message 2: the record that holds it" in screen.err
    assert "[missing: " in shown(env, asked.run, code=1).out
    assert shown(env, asked.run, "--body", code=1).out == ""


def test_a_request_after_a_lost_one_says_what_it_does_not_know(env: Env, recording: Recording) -> None:
    first = recording.asked[0].op
    drop = without("model.request.started")
    write(env, recording, lambda line: drop(line) if f'"op":"{first}"' in line else line)
    run_id = recording.asked[0].run
    document = json.loads(shown(env, run_id, "--json", code=1).out)
    assert [line["number"] for line in document["requests"]] == [1]
    whys = [document["system"]["missing"], document["tools"]["missing"], document["messages"][0]["missing"]]
    assert all(first in why for why in whys)
    assert [message["role"] for message in document["messages"][1:]] == ["assistant", "tool", "tool"]


def test_damage_is_said_and_exits_5(env: Env, recording: Recording) -> None:
    finished = next(at for at, line in enumerate(recording.lines) if b'"tool.call.finished"' in line)
    lines = [line.decode() for line in recording.lines]
    lines[finished] = '{"seq":5,"ts":"20'
    traces.write_session(env, lines)
    screen = shown(env, recording.asked[0].run, code=5)
    assert "DAMAGE FOUND" in screen.err
    assert "the trace is damaged" in screen.out


def test_in_metadata_mode_there_is_nothing_to_rebuild_and_no_reference_either(env: Env, recording: Recording) -> None:
    def strip(line: str) -> str:
        record = msgspec.json.decode(line, type=RawRecord)
        event = event_of(record.event, record.data)
        assert not isinstance(event, UnknownEvent)
        kept = metadata_of(event)
        assert kept is not None
        return line.replace(bytes(record.data).decode(), msgspec.json.encode(kept).decode())

    path = write(env, recording, strip)
    assert "same_as" not in (path / "000001.jsonl").read_text()
    asked = recording.asked[1]
    document = json.loads(shown(env, asked.run, "--json", code=1).out)
    assert len(document["messages"]) == len(asked.request.messages)
    assert all("capture mode metadata" in part["missing"] for part in [document["system"], *document["messages"]])


REF = '{"payload":"5e0f1c9a7b3d42e86f10a2b4c6d8e0f1","bytes":30,"chars":30,"head":"!no"}'


def test_a_body_that_was_moved_out_is_loaded_whole(env: Env, recording: Recording) -> None:
    path = write(env, recording, lambda line: line.replace('"output":"!no such file"', f'"output":{REF}'))
    screen = shown(env, recording.asked[0].run, "--json", code=5)  # it is not there
    missing = json.loads(screen.out)["messages"][3]["missing"]
    assert "payload 5e0f1c9a7b3d42e86f10a2b4c6d8e0f1 is missing" in missing
    (path / "payloads").mkdir(mode=0o700)
    (path / "payloads" / "5e0f1c9a7b3d42e86f10a2b4c6d8e0f1").write_text("!no such file")
    message = json.loads(shown(env, recording.asked[0].run, "--json").out)["messages"][3]
    assert message["text"] == "!no such file"


def test_a_record_that_was_cut_when_it_was_recorded_is_said_to_be(env: Env, recording: Recording) -> None:
    cut = '"output":"!no such…[cut: 13 characters]","cut_from_bytes":99'
    write(env, recording, lambda line: line.replace('"output":"!no such file"', cut))
    screen = shown(env, recording.asked[0].run)
    assert "was cut from 99 bytes when it was recorded" in screen.err


def test_references_of_a_hostile_trace_end(env: Env, recording: Recording) -> None:
    op = recording.asked[1].op
    circle = f'{{"same_as":"{op}","at":1}}'
    write(env, recording, lambda line: line.replace(f'{{"same_as":"{recording.asked[0].op}"}}', circle))
    document = json.loads(shown(env, recording.asked[0].run, "--json", code=1).out)
    assert set(document["messages"][1]) == {"missing"}


def test_nothing_that_speaks_to_providers_is_imported_for_a_look() -> None:
    code = "import agentctl.commands.trace_context, sys; print([m for m in sys.modules if m.startswith('agentd.providers')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
