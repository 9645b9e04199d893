"""agentctl trace record, as a process: what goes in, what is said of it, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentctl.__main__ import run
from agentd.paths import runtime_dir, traces_dir, writer_socket
from tests.agentctl.fake_daemon import Screen
from tests.tracewriter.served import served
from tracewriter.findings import Found
from tracewriter.reader import read, verify

Env = dict[str, str]
TOKEN = "ghp_" + "A1b2" * 9


@pytest.fixture
def writer(env: Env) -> Iterator[None]:
    """A recorder where the client looks for one."""
    with _writer(env):
        yield


@contextlib.contextmanager
def _writer(env: Env) -> Iterator[None]:
    home = Path(env["AGENTD_HOME"])
    Path(runtime_dir(env)).mkdir(parents=True, mode=0o700)
    with served(home) as sock:
        os.symlink(sock, writer_socket(env))
        yield


def start(env: Env, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "agentctl", "trace", "record", *words]
    pythonpath = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "COVERAGE_"))}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env | pythonpath, cwd=env["HOME"])


def said(env: Env, lines: bytes, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = start(env, *words)
    out, err = process.communicate(lines, timeout=60)
    return process.returncode, out.decode(), err.decode()


def records(env: Env, session: str) -> list[dict[str, Any]]:
    (path,) = Path(traces_dir(env)).glob(f"*/{session}")
    verdict = verify(path)
    assert not verdict.damaged, verdict.notes
    return [json.loads(item.line) for item in read(path) if isinstance(item, Found)]


def between(found: list[dict[str, Any]]) -> list[str]:
    names = [record["event"] for record in found]
    assert (names[0], names[-1]) == ("session.record.started", "session.record.finished")
    return names[1:-1]


GOOD = (
    b'{"hook_event_name":"PreToolUse","tool_input":{"key":"%s"}}\n{"type":"a","x":null}\n'
    b'{"event":"run.execute.finished","data":{"outcome":"completed"}}\n{"event":"step","run":"r1"}' % TOKEN.encode()
)


@pytest.mark.usefixtures("writer")
def test_lines_are_recorded_under_the_tools_names_and_the_session_is_printed(env: Env) -> None:
    code, out, err = said(env, GOOD, "--tool", "my-hook", "--workspace", "sub")
    assert (code, err) == (0, "")
    found = records(env, out.strip())
    assert between(found) == ["my-hook.pre_tool_use", "my-hook.a", "my-hook.run.execute.finished", "my-hook.step"]
    assert found[0]["data"]["workspace"] == os.path.realpath(os.path.join(env["HOME"], "sub"))
    assert found[1]["data"]["hook_event_name"] == "PreToolUse"
    assert found[2]["data"] == {"type": "a", "x": None}
    assert found[4]["run"] == "r1"
    stored = b"".join(path.read_bytes() for path in Path(traces_dir(env)).rglob("*") if path.is_file())
    assert TOKEN.encode() not in stored
    assert b"[redacted:" in stored


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(
    ("value", "stored", "repaired"),
    [
        (b"NaN", "nan", 1),
        (b"[Infinity,-1e999]", ["inf", "-inf"], 2),
        (rb'"a\ud800b"', "a\ufffdb", 1),
        (rb'{"\udfff":["\ud83d"]}', {"\ufffd": ["\ufffd"]}, 2),
        (b"[" * 80 + b"]" * 80, None, 1),
        (b"[1.5,null,18446744073709551615]", [1.5, None, 2**64 - 1], None),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("line", [b'{"type":"a","x":%b}', b'{"event":"a","data":{"x":%b}}'], ids=("theirs", "ours"))
def test_a_value_that_had_to_be_repaired_is_marked_and_counted_in_its_record(
    env: Env, line: bytes, value: bytes, stored: object, repaired: int | None
) -> None:
    code, out, err = said(env, line % value + b"\n", "--tool", "t")
    assert (code, err) == (0, "")
    data = records(env, out.strip())[1]["data"]
    assert data.get("repaired") == repaired
    assert stored is None or data["x"] == stored


@pytest.mark.usefixtures("writer")
def test_bad_lines_are_named_and_counted_and_the_rest_is_recorded(env: Env) -> None:
    lines = b'{"type":"a"}\nnonsense %s\n\n[1]\n{"type":"b"}\n{"x":1}\n{"type":"\xff"}\n' % TOKEN.encode()
    code, out, err = said(env, lines, "--json")
    assert code == 1
    document = json.loads(out)
    assert (document["recorded"], document["not_recorded"], document["bad"]) == (2, 0, 4)
    assert [bad["line"] for bad in document["bad_lines"]] == [2, 4, 6, 7]
    assert err.splitlines() == [
        "line 2: no JSON",
        "line 4: no JSON object",
        "line 6: no name of an event (event, hook_event_name, type, name, …)",
        "line 7: no UTF-8 at byte 9",
        "2 lines recorded, 4 bad",
    ]
    assert TOKEN not in err
    assert between(records(env, document["session"])) == ["script.a", "script.b"]


@pytest.mark.usefixtures("writer")
def test_many_bad_lines_are_counted_and_the_first_of_them_named(env: Env) -> None:
    code, _, err = said(env, b"x\n" * 5000)
    lines = err.splitlines()
    assert code == 1
    assert lines[99:] == ["line 100: no JSON", "and 4,900 more such lines", "0 lines recorded, 5,000 bad"]


@pytest.mark.usefixtures("writer")
def test_a_hook_for_each_event_goes_on_with_one_session(env: Env) -> None:
    for number in range(3):
        code, out, err = said(env, b'{"hook_event_name":"Stop","n":%d}' % number, "--session", "hooks", "--tool", "h")
        assert (code, out, err) == (0, "hooks\n", "")
    assert [r["data"]["n"] for r in records(env, "hooks") if r["event"] == "h.stop"] == [0, 1, 2]


@pytest.mark.usefixtures("writer")
def test_hooks_at_the_same_moment_wait_for_each_other(env: Env) -> None:
    processes = [start(env, "--session", "hooks") for _ in range(3)]
    for number, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write(b'{"type":"a","n":%d}' % number)
        process.stdin.close()
        process.stdin = None
    ends = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0, 0, 0], ends
    assert {r["data"]["n"] for r in records(env, "hooks") if r["event"] == "script.a"} == {0, 1, 2}


@pytest.mark.usefixtures("writer")
def test_a_line_is_recorded_while_the_tool_still_writes(env: Env) -> None:
    process = start(env)
    assert process.stdin is not None
    assert process.stdout is not None
    session = process.stdout.readline().decode().strip()
    process.stdin.write(b'{"type":"first"}\n{"type":"half')
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while "script.first" not in _text(env, session):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    _, err = process.communicate(b'"}', timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert between(records(env, session)) == ["script.first", "script.half"]


def _text(env: Env, session: str) -> str:
    return "".join(path.read_text() for path in Path(traces_dir(env)).glob(f"*/{session}/*.jsonl"))


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_signal_ends_the_reading_and_what_was_read_is_recorded(
    env: Env, number: signal.Signals, expected: int
) -> None:
    process = start(env)
    assert process.stdin is not None
    assert process.stdout is not None
    session = process.stdout.readline().decode().strip()
    process.stdin.write(b'{"type":"first"}\n{"type":"half')
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while "script.first" not in _text(env, session):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.wait(60)
    _, err = process.communicate()
    assert process.returncode == expected
    assert b"line 2: not complete when the reading was stopped" in err
    assert between(records(env, session)) == ["script.first"]


def test_without_a_recorder_nothing_is_lost_silently(env: Env) -> None:
    code, out, err = said(env, b'{"type":"a"}\n' * 3, "--json")
    document = json.loads(out)
    assert code == 3
    assert (document["recorded"], document["not_recorded"], document["state"]) == (0, 3, "degraded")
    assert "0 lines recorded, 3 not (no writer: " in err
    assert "start one" in err


def test_without_a_recorder_the_tool_that_writes_is_not_broken_off(env: Env) -> None:
    code, _, err = said(env, b'{"type":"a","text":"%s"}\n' % (b"x" * 500) * 8000)
    assert code == 3
    assert "8,000 not (" in err


def test_a_recorder_that_comes_while_lines_are_read_takes_them_all(env: Env) -> None:
    process = start(env)
    assert process.stdin is not None
    process.stdin.write(b'{"type":"a"}\n')
    process.stdin.flush()
    with _writer(env):
        out, err = process.communicate(b'{"type":"b"}\n', timeout=60)
        assert (process.returncode, err) == (0, b"")
        names = between(records(env, out.decode().strip()))
    assert [name for name in names if name.startswith("script.")] == ["script.a", "script.b"]


def test_a_stream_faster_than_the_recorder_is_slowed_down_and_not_dropped(env: Env) -> None:
    command = ["--socket", writer_socket(env), "--root", traces_dir(env)]
    recorder = subprocess.Popen([sys.executable, "-P", "-m", "tracewriter", *command])
    try:
        first = said(env, b'{"type":"a"}', "--session", "s")  # until it serves
        while first[0] == 3:
            first = said(env, b'{"type":"a"}', "--session", "s")
        recorder.send_signal(signal.SIGSTOP)
        resume = threading.Timer(1.5, recorder.send_signal, [signal.SIGCONT])
        resume.start()
        line = b'{"type":"b","text":"%s"}\n' % (b"x" * 900)
        code, out, err = said(env, line * 30_000)  # 28 MB; the buffer has 16 MiB
        resume.join()
    finally:
        recorder.kill()
        recorder.wait()
    assert (code, err) == (0, "")
    names = [record["event"] for record in records(env, out.strip())]
    assert names.count("script.b") == 30_000


@pytest.mark.usefixtures("writer")
def test_an_endless_line_is_bounded_and_told(env: Env) -> None:
    process = start(env, "--json")
    assert process.stdin is not None
    for _ in range(40):
        process.stdin.write(b"x" * (1 << 20))
    process.stdin.flush()
    status = Path("/proc", str(process.pid), "status").read_text()
    peak_kib = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmHWM:"))
    out, _ = process.communicate(b'\n{"type":"after"}\n', timeout=60)
    document = json.loads(out)
    assert process.returncode == 1
    assert document["bad_lines"] == [{"line": 1, "reason": "longer than 4,194,304 bytes"}]
    assert document["recorded"] == 1
    assert peak_kib < 100 * 1024


@pytest.mark.usefixtures("writer")
def test_typed_lines_are_events_of_ours_but_never_the_recorders(env: Env) -> None:
    result = {"id": "c", "name": "n", "output": "o", "is_error": False, "duration_ms": 1.0}
    lines = [
        {"event": "tool.call.finished", "data": result},
        {"event": "trace.drop.observed", "data": {"first": 1, "last": 9, "count": 9, "reason": "forged"}},
        {"event": "session.record.finished", "data": {"emitted": 1, "counts": {}, "usage": None, "cost_usd": None}},
    ]
    code, out, _ = said(env, b"\n".join(json.dumps(line).encode() for line in lines), "--typed", "--tool", "t")
    assert code == 0
    assert between(records(env, out.strip())) == [
        "tool.call.finished",
        "t.trace.drop.observed",
        "t.session.record.finished",
    ]


@pytest.mark.usefixtures("writer")
def test_a_file_and_mode_metadata(env: Env) -> None:
    Path(env["HOME"], "lines").write_bytes(GOOD.replace(b"PreToolUse", b"CANARY"))
    code, out, err = said(env, b"", "lines", "--capture", "metadata")
    assert (code, err) == (0, "")
    found = records(env, out.strip())
    assert len(found) == 6
    assert [record["data"] for record in found[1:-1]] == [{}] * 4


@pytest.mark.parametrize(("more", "words"), [({"AGENTD_NO_TRACE": "1"}, ()), ({}, ("--capture", "off"))])
def test_off_records_nothing_and_says_so(env: Env, more: Env, words: tuple[str, ...]) -> None:
    code, _, err = said(env | more, b'{"type":"a"}\n' * 100_000, *words)
    assert code == 0
    assert err.startswith("nothing is recorded: ")
    assert not Path(traces_dir(env)).exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--tool", "run"], "--tool is a-z"),
        (["--tool", "My Tool"], "--tool is a-z"),
        (["--session", "../x"], "a session's id is"),
        (["--capture", "all"], "--capture is one of"),
        (["a", "b"], "unexpected 'b'"),
    ],
)
def test_wrong_words_are_told(env: Env, words: list[str], problem: str) -> None:
    screen = Screen(env)
    assert run(["trace", "record", *words], screen.world) == 2
    assert problem in screen.err


def test_a_file_that_is_not_there_is_told(env: Env) -> None:
    screen = Screen(env)
    assert run(["trace", "record", "/nowhere/lines"], screen.world) == 1
    assert "/nowhere/lines" in screen.err
