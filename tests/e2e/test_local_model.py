"""A model on this machine behind the whole agent: `agentctl ask -m local/smollm2`, with real inference, tools and record."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from tests.e2e.harness import Home, ended, of, processes, records
from tests.gguf_files import LLAMA, head, real_model

ONE_FILE = {"type": "object", "properties": {"path": {"type": "string", "enum": ["one.txt"]}}, "required": ["path"]}


@pytest.fixture
def smollm2(home: Home) -> Home:
    """A home with the model in its data directory, and a file to ask about."""
    model = real_model()
    models = home.root / "models"
    models.mkdir(parents=True, mode=0o700)
    (models / "smollm2.gguf").symlink_to(model.resolve())
    (home.workspace / "one.txt").write_text("the secret word is pineapple\n")
    return home


def children(home: Home) -> list[int]:
    """The processes of local models of this home."""
    return [pid for pid, words in processes().items() if "local_child" in words and str(home.root) in words]


class _Forcing(BaseHTTPRequestHandler):
    """Passes a request on to llama.cpp; the first of a prompt must read the file: the model is weak at choosing."""

    server: _Relay

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["messages"][-1]["role"] == "user":
            body |= {"tool_choice": "required", "max_tokens": 64}
            (tool,) = (tool for tool in body["tools"] if tool["function"]["name"] == "read_file")
            tool["function"]["parameters"] = ONE_FILE
            body["tools"] = [tool]
        onward = http.client.HTTPConnection("localhost")
        onward.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        onward.sock.connect(self.server.to)
        onward.request("POST", self.path, json.dumps(body), {"content-type": "application/json"})
        answer = onward.getresponse()
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.end_headers()
        while piece := answer.read1(65_536):
            self.wfile.write(piece)
        onward.close()

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Relay(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    to = ""

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.socket.accept()[0], ("local", 0)


@contextmanager
def forcing(path: Path, to: Path) -> Iterator[None]:
    with _Relay(str(path), _Forcing) as relay:
        relay.to = str(to)
        thread = threading.Thread(target=relay.serve_forever)
        thread.start()
        try:
            yield
        finally:
            relay.shutdown()
            thread.join()


def test_a_local_model_answers_calls_a_real_tool_costs_nothing_and_ends_with_the_daemon(smollm2: Home) -> None:
    home = smollm2
    listed = home.ctl("models", "local").ok()
    assert "local/smollm2" in listed.out
    assert children(home) == []  # listing starts nothing

    # Whatever it says: it is weak at choosing, so only that it was asked and answered is certain.
    first = home.ctl("ask", "-m", "local/smollm2", "Read the file one.txt")
    assert first.code in (0, 1), first.err
    assert "$0 (local model)" in first.err
    (run,) = of("run.execute.finished", records(home.trace()))
    assert run["cost_usd"] == 0
    assert run["usage"]["input_tokens"] > 300
    assert run["usage"]["output_tokens"] > 0
    (pid,) = children(home)

    (llama,) = (home.root / "run" / "local").glob("*.sock")
    with forcing(home.place / "relay.sock", llama):
        words = ("ask", "-m", "local/smollm2", "--uds", str(home.place / "relay.sock"), "Read the file one.txt")
        second = home.ctl(*words)
    assert second.code in (0, 1), second.err
    (called,) = of("tool.call.started", records(home.traces()[1]))[:1]
    (result,) = of("tool.call.finished", records(home.traces()[1]))[:1]
    assert (called["name"], called["input"]["path"]) == ("read_file", "one.txt")
    assert (result["is_error"], "pineapple" in json.dumps(result["output"])) == (False, True)
    assert children(home) == [pid]  # one process for the model, whoever asks

    os.kill(home.daemon(), 9)
    assert ended(pid)  # no orphan


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_no_process_of_a_model_outlives_the_daemon_however_it_ends(home: Home, how: str) -> None:
    """With a stand-in for llama.cpp, so that it is tested everywhere."""
    models = home.root / "models"
    models.mkdir(parents=True, mode=0o700)
    (models / "answers.gguf").write_bytes(head(LLAMA))
    stub = Path(__file__).parents[1] / "agentd" / "providers" / "stub_llama"
    env = {"PYTHONPATH": os.pathsep.join((str(stub), *filter(None, (home.env.get("PYTHONPATH"),))))}
    done = home.ctl("ask", "-m", "local/answers", "hello", env=env).ok()
    (pid,) = children(home)
    assert f"hello from {pid}" in done.out
    assert "$0 (local model)" in done.err
    if how == "stop":
        home.ctl("stop").ok()
        assert list((home.root / "run" / "local").glob("*.sock")) == []
    else:
        home.kill_daemon()
    assert ended(pid)
    assert home.logs() == ""


def test_a_local_model_that_is_not_there_says_how_to_get_it(home: Home) -> None:
    done = home.ctl("ask", "-m", "local/smollm2", "hello")
    assert done.code == 1
    assert "agentctl models pull smollm2" in done.err or "agentd[local]" in done.err
    assert "Traceback" not in done.err
