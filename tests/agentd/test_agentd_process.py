"""The daemon as a process: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentd import paths

Json = dict[str, Any]


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTD", "XDG", "LISTEN"))}
    return kept | {"AGENTD_HOME": str(home)} | more


def command(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentd", *arguments], capture_output=True, text=True, env=env, cwd="/", timeout=30
    )


def connect(env: dict[str, str]) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            with paths.address(paths.agentd_socket(env)) as name:
                sock.connect(name)
            return sock
        except OSError:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def ask(sock: socket.socket, method: str, **params: object) -> Json:
    sock.settimeout(20)
    sock.sendall(msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n")
    data = b""
    while not data.endswith(b"\n"):
        data += sock.recv(65536)
    answer: Json = msgspec.json.decode(data)
    return answer


@contextmanager
def daemon(env: dict[str, str]) -> Generator[subprocess.Popen[bytes], None, None]:
    process = subprocess.Popen([sys.executable, "-m", "agentd", "serve"], env=env, cwd="/", stderr=subprocess.PIPE)
    try:
        with connect(env) as sock:
            assert ask(sock, "initialize", protocol=1)["result"]["pid"] == process.pid
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With the recorder left out: these tests are about the daemon alone."""
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "config.toml").write_text("[recorder]\nautostart = false\n")
    return tmp_path / "home"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(home: Path, number: signal.Signals) -> None:
    env = environment(home)
    with daemon(env) as process:
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert not Path(paths.agentd_socket(env)).exists()


def test_a_second_one_is_refused_in_one_line_and_the_first_one_serves_on(home: Path) -> None:
    env = environment(home)
    with daemon(env) as process:
        second = command("serve", env=env)
        assert second.returncode == 3
        assert "another agentd runs already" in second.stderr
        assert second.stderr.count("\n") == 1
        with connect(env) as sock:
            assert ask(sock, "initialize", protocol=1)["result"]["pid"] == process.pid


def test_after_a_kill_the_next_one_takes_over_the_stale_socket(home: Path) -> None:
    env = environment(home)
    with daemon(env) as process:
        process.kill()
        process.wait(timeout=20)
    assert Path(paths.agentd_socket(env)).exists()
    with daemon(env) as process:
        assert process.poll() is None


def test_its_memory_and_environment_are_closed_to_others_of_the_same_user(home: Path) -> None:
    with daemon(environment(home)) as process:
        # What a process may not be asked for by its own user belongs to root (of no help to a test that is root).
        assert os.stat(f"/proc/{process.pid}/environ").st_uid == 0
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)


def test_keys_and_proxies_of_its_own_environment_are_no_sessions(home: Path, tmp_path: Path) -> None:
    own = {
        "OPENAI_API_KEY": "sk-the-daemons-own-0123456789",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "AGENTD_NO_TRACE": "1",
    }
    env = environment(home, **own)
    with daemon(env), connect(env) as sock:
        assert ask(sock, "initialize", protocol=1)["result"]
        refused = ask(sock, "session/create", cwd=str(tmp_path), model="openai/gpt-5")
        assert refused["error"]["data"]["kind"] == "no_key"
        created = ask(
            sock, "session/create", cwd=str(tmp_path), model="openai/gpt-5", env={"OPENAI_API_KEY": "sk-mine"}
        )
        assert not [note for note in created["result"]["notes"] if "recording is off" in note]


def test_a_home_of_any_length_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True, mode=0o700)
    (deep / "config.toml").write_text("[recorder]\nautostart = false\n")
    with daemon(environment(deep)) as process:
        assert process.poll() is None


def test_a_socket_passed_at_start_is_used_and_left_in_place(home: Path) -> None:
    env = environment(home)
    path = Path(paths.agentd_socket(env))
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ |= {'LISTEN_FDS': '1', 'LISTEN_PID': str(os.getpid())};"
            "os.execv(sys.executable, [sys.executable, '-m', 'agentd', 'serve'])"
        )
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(fd)], env=env, cwd="/", pass_fds=[fd, 3] if fd != 3 else [3]
        )
        try:
            with connect(env) as sock:
                assert ask(sock, "initialize", protocol=1)["result"]["pid"] == process.pid
                assert ask(sock, "daemon/stop")["result"] == {"stopping": True}
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
            process.wait(timeout=20)
    assert path.exists()


def test_the_service_manager_is_told_when_it_is_ready_alive_and_stopping(home: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        manager.settimeout(20)
        env = environment(home, NOTIFY_SOCKET=str(tmp_path / "n"), WATCHDOG_USEC="100000")
        with daemon(env) as process:
            told = [manager.recv(100), manager.recv(100), manager.recv(100)]
            assert sorted(told) == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            process.terminate()
            while told[-1] != b"STOPPING=1":
                told.append(manager.recv(100))
            assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda home: (home / "config.toml").write_text("modle = 1"), 2, "modle"),
        (lambda home: (home / "run").write_text(""), 1, "not a directory"),
        (lambda home: (home / "traces").symlink_to("/tmp"), 1, "symbolic link"),
        (lambda home: home.chmod(0o777), 1, "by everyone"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line_with_a_next_step(home: Path, spoil: Any, code: int, said: str) -> None:
    spoil(home)
    done = command("serve", env=environment(home))
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "(" in done.stderr


def test_a_state_directory_that_cannot_be_made_is_said() -> None:
    done = command(env=environment(Path("/proc/agentd")))
    assert done.returncode == 1
    assert "AGENTD_HOME" in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_usage_is_told_by_exit_code_2_and_the_version_costs_nothing() -> None:
    env = environment(Path("/nonexistent"))
    assert command("fly", env=env).returncode == 2
    version = command("--version", env=env)
    assert (version.returncode, version.stdout.split()[0]) == (0, "agentd")
    code = "import sys; from agentd.__main__ import main; main(['--version']); print({'asyncio', 'msgspec'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.endswith("set()\n")


def test_httpx_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, agentd.daemon; print('httpx' in sys.modules, 'genai_prices' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"
