"""Three programs that know nothing of each other record at once through one recorder: asyncio, threads, and a shell script."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.harness import Home, records, side_by_side, wait_for
from tracewriter.client import NoWriter, ask_status

TOKEN = "ghp_" + "A1b2" * 9
COUNT = 300

ASYNCIO = """
import asyncio, sys, tracewriter

async def steps(count, token):
    for at in range(count):
        await asyncio.sleep(0)
        yield {"at": at, "token": token}

async def main(count, token):
    async with tracewriter.recording("async-tool", workspace=".") as trace:
        print(trace.session, flush=True)
        seen = 0
        async for step in tracewriter.recorded(steps(count, token), trace):
            seen += step["at"]
            trace.note("step.counted", {"seen": seen})
        status = await trace.aflush()
        assert status.state == "ok", status

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""

THREADS = """
import sys, threading, tracewriter
from tracewriter.events import ToolCallFinished

def work(trace, number, count, token):
    for at in range(count // 4):
        trace.note("work.finished", {"thread": number, "at": at, token: token})
    trace.record(ToolCallFinished(f"call{number}", "work", f"the token is {token}", False, 1.5))

with tracewriter.recording("thread-tool", workspace=".") as trace:
    print(trace.session, flush=True)
    args = [(trace, number, int(sys.argv[1]), sys.argv[2]) for number in range(4)]
    threads = [threading.Thread(target=work, args=each) for each in args]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""

SHELL = """
at=0
while [ $at -lt "$1" ]; do
  printf '{"hook_event_name":"PostToolUse","at":%d,"env":"export GITHUB_TOKEN=%s"}\\n' $at "$2"
  at=$((at+1))
done | "$3" -P -m agentctl trace record --tool shell-tool
"""


def _started(home: Home) -> None:
    """A recorder runs that no daemon started."""
    home.start_writer()

    def answers() -> bool:
        try:
            return ask_status(str(home.root / "run" / "tracewriter.sock")).state == "ok"
        except NoWriter:
            return False

    wait_for(answers, "the recorder")


def _recorded(home: Home, command: list[str]) -> str:
    """Run a tool to its end; the session it recorded."""
    done = subprocess.run(
        command, cwd=home.workspace, env=home.env, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_three_tools_record_three_sessions_at_once_through_one_recorder(home: Home) -> None:
    _started(home)
    python = sys.executable
    arguments = [str(COUNT), TOKEN]
    commands = (
        [python, "-P", "-c", ASYNCIO, *arguments],
        [python, "-P", "-c", THREADS, *arguments],
        ["/bin/sh", "-c", SHELL, "sh", *arguments, python],
    )
    sessions = side_by_side([partial(_recorded, home, command) for command in commands])
    assert len(home.writers()) == 1
    assert home.daemons() == []
    paths = {path.name: path for path in home.traces()}
    assert sorted(paths) == sorted(sessions)
    found = [records(paths[session]) for session in sessions]
    for session, of_it in zip(sessions, found, strict=True):
        home.sound(paths[session])
        assert [record["seq"] for record in of_it] == list(range(1, len(of_it) + 1))
        assert of_it[-1]["event"] == "session.record.finished"
        assert of_it[0]["data"]["workspace"] == str(home.workspace.resolve())
    _check_async(found[0])
    _check_threads(found[1])
    assert [r["data"]["at"] for r in found[2] if r["event"] == "shell-tool.post_tool_use"] == list(range(COUNT))
    stored = b"".join(path.read_bytes() for path in home.root.rglob("*") if path.is_file())
    assert TOKEN.encode() not in stored
    assert stored.count(b"[redacted:") >= 3 * COUNT
    _check_shown(home, sessions)


def _check_async(found: list[dict[str, Any]]) -> None:
    items = [r["data"]["at"] for r in found if r["event"] == "async-tool.stream.item"]
    counted = [r["data"]["seen"] for r in found if r["event"] == "async-tool.step.counted"]
    assert items == list(range(COUNT))
    assert counted == [at * (at + 1) // 2 for at in range(COUNT)]
    assert [r["data"] for r in found if r["event"] == "async-tool.stream.finished"] == [
        {"outcome": "finished", "items": COUNT}
    ]


def _check_threads(found: list[dict[str, Any]]) -> None:
    for number in range(4):
        of_it = [r["data"] for r in found if r["event"] == "thread-tool.work.finished"]
        assert [work["at"] for work in of_it if work["thread"] == number] == list(range(COUNT // 4))
    results = [r["data"] for r in found if r["event"] == "tool.call.finished"]
    assert sorted(result["id"] for result in results) == ["call0", "call1", "call2", "call3"]


def _check_shown(home: Home, sessions: list[str]) -> None:
    shown = home.ctl("trace", "show", sessions[2]).ok().out
    assert "shell-tool.post_tool_use" in shown
    assert '"at":299' in shown
    assert f"{COUNT + 2} records (1 to {COUNT + 2}): no damage seen" in shown
    assert "async-tool.stream.finished" in home.ctl("trace", "tail", sessions[0]).ok().out
    summary = home.ctl("trace", "summary", sessions[0]).ok().out
    assert f"events    async-tool.step.counted {COUNT}" in summary
    assert "no run is recorded" not in summary
    others = home.ctl("trace", "summary", sessions[1], "--json").ok().json()["others"]
    assert others == {"thread-tool.work.finished": COUNT}
    listed = json.loads(home.ctl("trace", "ls", "--json").ok().out)["sessions"]
    assert {entry["session"] for entry in listed} == set(sessions)


def test_the_example_in_the_readme_records_what_it_says(home: Home) -> None:
    _started(home)
    readme = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text()
    (example,) = (
        part.partition("```")[0] for part in readme.split("```python\n") if part.startswith("import tracewriter")
    )
    assert len([line for line in example.split("\n") if line]) <= 10
    said = _recorded(home, [sys.executable, "-P", "-c", f"source = ['a', 'b']\n{example}"])
    assert said.startswith("TraceStatus(state='ok'")
    found = records(home.trace())
    assert [record["event"] for record in found[1:-1]] == [
        "my-tool.step.started",
        "my-tool.stream.item",
        "my-tool.stream.item",
        "my-tool.stream.finished",
    ]
    assert found[1]["data"] == {"any": ["Python", None, 1.5]}
