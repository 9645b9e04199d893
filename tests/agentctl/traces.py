"""Session directories written by hand, as FORMAT.md says: a header line, then records; no seals."""

from __future__ import annotations

import json
from pathlib import Path

from agentd.paths import traces_dir
from tests.agentctl.fake_daemon import PROMPT, RUN, SESSION

Json = dict[str, object]
WORKSPACE = "/home/u/project"


def record(seq: int, name: str, data: Json, *, run: str = RUN, op: str = "") -> str:
    """One stored line."""
    head: Json = {"seq": seq, "ts": f"2026-11-29T20:45:{seq % 60:02}.123456Z", "event": name, "session": SESSION}
    return json.dumps(
        {**head, **({"run": run} if run else {}), **({"op": op} if op else {}), "data": data}, separators=(",", ":")
    )


def started(seq: int, text: str = "fix the bug", run: str = RUN) -> str:
    """A run begins."""
    data: Json = {"prompt": PROMPT, "text": text, "mode": "build", "model": "gpt-5", "provider": "openai"}
    return record(seq, "run.execute.started", data, run=run)


def request(seq: int, op: str = "m1") -> str:
    """A model request begins."""
    data: Json = {
        "purpose": "main",
        "provider": "openai",
        "model": "gpt-5",
        "context": {"keep": 0, "messages": [], "chars": 9},
    }
    return record(seq, "model.request.started", data, op=op)


def replied(seq: int, cost: float | None = 0.001, op: str = "m1") -> str:
    """A model request ends."""
    usage = {"input_tokens": 100, "output_tokens": 20}
    data: Json = {
        "text": "ok",
        "reasoning": "",
        "tool_calls": [],
        "stop_reason": "stop",
        "finish": "stop",
        "usage": usage,
    }
    return record(seq, "model.request.finished", {**data, "cost_usd": cost, "ttft_ms": 1.0, "duration_ms": 2.0}, op=op)


def called(seq: int, name: str, path: str, op: str) -> str:
    """A tool call begins; ids of calls are the model's, and here always the same."""
    return record(
        seq, "tool.call.started", {"id": "call_1", "name": name, "input": {"path": path, "content": "x" * 5000}}, op=op
    )


def result(seq: int, name: str, op: str, *, is_error: bool = False, output: str = "ok") -> str:
    """A tool call ends."""
    data: Json = {"id": "call_1", "name": name, "output": output, "is_error": is_error, "duration_ms": 3.0}
    return record(seq, "tool.call.finished", data, op=op)


def changed(seq: int, path: str, op: str, diff: object = "-a\n+b\n") -> str:
    """A file was changed."""
    return record(seq, "file.change.applied", {"path": path, "before": "aa", "after": "bb", "diff": diff}, op=op)


def finished(seq: int, **more: object) -> str:
    """A run ends."""
    usage = {"input_tokens": 150, "output_tokens": 30}
    data: Json = {"outcome": "completed", "usage": usage, "cost_usd": 0.002, "tools": [], "files": [], "errors": []}
    return record(seq, "run.execute.finished", {**data, "duration_ms": 2500.0, **more})


def opened(seq: int) -> str:
    """A recording begins."""
    data: Json = {
        "format": "agentd.trace/1",
        "agentd": "0.1.0",
        "workspace": WORKSPACE,
        "mode": "build",
        "capture": "content",
    }
    return record(seq, "session.record.started", data, run="")


def closed(seq: int) -> str:
    """A recording ends in order."""
    data: Json = {"emitted": seq, "counts": {}, "usage": {}, "cost_usd": None}
    return record(seq, "session.record.finished", data, run="")


def write_session(env: dict[str, str], lines: list[str], session: str = SESSION, tail: str = "") -> Path:
    """A session directory of one segment holding these lines."""
    directory = Path(traces_dir(env), "0a1b2c3d4e5f60718293a4b5", session)
    directory.mkdir(parents=True, mode=0o700)
    head: Json = {"segment": 1, "id": "9f86d081884c7d65", "session": session, "format": "agentd.trace/1"}
    header = json.dumps({**head, "producer": "00f067aa0ba902b7", "after": 0, "why": "open"}, separators=(",", ":"))
    body = "".join(line.replace(SESSION, session) + "\n" for line in [header, *lines])
    (directory / "000001.jsonl").write_text(body + tail, encoding="utf-8", newline="")
    return directory
