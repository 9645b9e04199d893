"""Whatever is wrong: one readable line, what to do next, the exit code that says whose turn it is, and nothing lost."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import Done, Home, finish, of, records, side_by_side
from tests.e2e.model import Answer, Asked, Model, stream, text

USAGE, NO_DAEMON = 2, 3
# What stands in the line, and what in the hint after it.
REFUSED: Final[dict[str, tuple[tuple[str, ...], str, str]]] = {
    "unknown-provider": (("ask", "-m", "nosuch/model", "hi"), "no provider is called 'nosuch'", "known providers:"),
    "no-model": (("ask", "hi"), "no model is configured and no provider's key is set", "`agentctl demo`"),
    "no-key": (("ask", "-m", "openai/gpt", "hi"), "OPENAI_API_KEY is not set", "export OPENAI_API_KEY=…"),
    "bad-url": (("ask", "--base-url", "ftp://host", "hi"), "no http:// or https:// URL", "it looks like"),
    "unknown-command": (("aks", "hi"), "unknown command 'aks' (did you mean 'ask'?)", "agentctl --help"),
    "unknown-option": (("ask", "--nope", "hi"), "unknown option --nope", "agentctl ask --help"),
    "option-without-value": (("ask", "hi", "-m"), "-m needs a value (MODEL)", "agentctl ask --help"),
    "unknown-mode": (("ask", "--mode", "nope", "hi"), "one of plan, build, swe, not 'nope'", "agentctl ask --help"),
    "empty-prompt": (("ask", " "), "the prompt is empty", "agentctl ask --help"),
    "unknown-session": (("ask", "--session", "abcdef", "hi"), "no session 'abcdef'", "agentctl trace ls"),
    "nothing-to-continue": (("ask", "-c", "-m", "ollama/x", "hi"), "can be resumed", "leave -c away"),
    "unknown-trace": (("trace", "verify", "abcdef"), "no session 'abcdef' is recorded", "agentctl trace ls"),
    "two-modes": (("ask", "-b", "--mode", "plan", "hi"), "exclude each other", "agentctl ask --help"),
}
# An answer of the server, and what the line must say.
ANSWERS: Final = {
    "wrong-key": (
        401,
        '{"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}',
        "wants a key",
    ),
    "no-permission": (403, '{"error": {"message": "Project has no access"}}', "permissions"),
    "unknown-model": (404, '{"error": {"message": "The model `nope` does not exist"}}', "check the model's name"),
}


@pytest.fixture(scope="module")
def lived_in() -> Iterator[Home]:
    """A home with a running daemon and one good session, which must be as it was in the end."""
    with Home() as home, Model(lambda asked: stream(text("hello"))) as model:
        elsewhere = home.place / "elsewhere"
        elsewhere.mkdir()
        home.ask(model.url, "first", cwd=elsewhere).ok()
        good = home.trace()
        before = records(good)
        yield home
        assert records(good)[: len(before)] == before
        home.sound(good)
        assert "Traceback" not in home.logs()
        home.ask(model.url, "-c", "second", cwd=elsewhere).ok()
        assert len(of("run.execute.finished", records(good))) == 2


def explained(done: Done, code: int, line: str, hint: str) -> None:
    """Two lines and nothing else: what is wrong, and what to do."""
    assert "Traceback" not in done.out + done.err
    assert (done.code, done.out) == (code, ""), done
    said = done.err.rstrip("\n").split("\n")
    assert len(said) == 2, done.err
    assert said[0].startswith("agentctl: ")
    assert line in said[0]
    assert hint in said[1]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_anything_happens(lived_in: Home, case: str) -> None:
    words, line, hint = REFUSED[case]
    before = lived_in.traces()
    explained(lived_in.ctl(*words), USAGE, line, hint)
    assert lived_in.traces() == before


@pytest.mark.parametrize("case", ANSWERS)
def test_what_the_server_refuses_is_told_once_with_what_to_check(lived_in: Home, case: str) -> None:
    status, body, hint = ANSWERS[case]

    def decide(asked: Asked) -> Answer:
        return Answer((body.encode(),), status, "application/json")

    with Model(decide) as model:
        failed(lived_in, lived_in.ask(model.url, case), f"custom answered {status}: ", hint)
        assert len(model.asked) == 1


def failed(home: Home, done: Done, line: str, hint: str) -> None:
    """A run that was accepted, and failed: exit 1, the error and its hint are shown, and the record has it."""
    assert (done.code, done.out) == (1, ""), done
    assert "Traceback" not in done.err
    said = done.err.split("\n")
    (at,) = [number for number, text in enumerate(said) if text.startswith("error: ")]
    assert line in said[at]
    assert hint in said[at + 1]
    assert "· failed ·" in done.err
    short = done.err.partition("session ")[2].partition(" ")[0]
    (path,) = [path for path in home.traces() if path.name.startswith(short)]
    found = records(path)
    (end,) = of("run.execute.finished", found)
    assert (end["outcome"], len(end["errors"])) == ("failed", 1)
    assert of("model.request.failed", found)[-1]["error"]["hint"]
    home.sound(path)


def test_who_cannot_be_reached_is_tried_again_and_then_told(lived_in: Home) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else's port, and refused
        where = f"127.0.0.1:{closed.getsockname()[1]}"
        cases = {
            "closed port": (("--base-url", f"http://{where}/v1"), f"could not reach {where}", "is the server running"),
            "unknown host": (("--base-url", "http://no-such.invalid/v1"), "no-such.invalid", "check the host's name"),
            "no socket": (("--uds", "gone.sock"), "gone.sock: no such file or directory", "is the server running"),
        }
        asking = {name: lived_in.start("ask", "-m", "x", *words, name) for name, (words, _, _) in cases.items()}
        for name, process in asking.items():
            done = finish(process)
            failed(lived_in, done, cases[name][1], cases[name][2])
            assert "attempt 2 in" in done.err


# --- places


def place_taken(home: Home) -> None:
    home.root.write_text("not a directory")


def traces_taken(home: Home) -> None:
    home.root.mkdir()
    (home.root / "traces").write_text("not a directory")


def socket_taken(home: Home) -> None:
    (home.root / "run").mkdir(parents=True)
    (home.root / "run" / "agentd.sock").write_text("not a socket")


def open_to_all(home: Home) -> None:
    home.root.mkdir()
    home.root.chmod(0o777)


def unwritable(home: Home) -> None:
    home.env["AGENTD_HOME"] = "/proc/agentd"  # not even root makes a directory there


def too_long(home: Home) -> None:
    home.env["AGENTD_HOME"] = str(home.root / ("x" * 300))


def no_toml(home: Home) -> None:
    home.root.mkdir()
    (home.root / "config.toml").write_text("model = \n")


def no_setting(home: Home) -> None:
    home.root.mkdir()
    (home.root / "config.toml").write_text('modle = "openai/gpt"\n')


PLACES: Final[dict[Callable[[Home], None], tuple[str, str]]] = {
    place_taken: ("Not a directory", "AGENTD_HOME"),
    traces_taken: ("traces is not a directory", "agentd.log"),
    socket_taken: ("agentd.sock is there and is no socket", "agentd.log"),
    open_to_all: ("may be written by everyone (set AGENTD_HOME", "agentd.log"),
    unwritable: ("/proc/agentd", "AGENTD_HOME"),
    too_long: ("File name too long", "AGENTD_HOME"),
    no_toml: ("config.toml is not valid TOML", "agentd.log"),
    no_setting: ("unknown field `modle`", "agentd.log"),
}


def test_places_that_cannot_be_used_are_named() -> None:
    side_by_side([partial(check_place, spoil, *said) for spoil, said in PLACES.items()], workers=len(PLACES))


def check_place(spoil: Callable[[Home], None], line: str, hint: str) -> None:
    with Home() as home:
        spoil(home)
        explained(home.ctl("ask", "-m", "ollama/x", "hi"), NO_DAEMON, line, hint)
        assert "Traceback" not in home.logs()
        assert home.daemons() == []


def test_a_socket_path_that_is_too_long_for_the_kernel_works() -> None:
    with Home("/".join("d" * 60 for _ in range(3))) as home, Model(lambda asked: stream(text("hello"))) as model:
        assert len(os.fsencode(home.root / "run" / "agentd.sock")) > 107
        home.ctl("status")
        assert home.ask(model.url, "hi").ok().out == "hello\n"
        assert "recording: ok" in home.ctl("status").ok().out
        home.ctl("stop").ok()
        assert home.sound(home.trace()).emitted is not None
        assert (len(home.writers()), home.logs()) == (1, "")


def test_a_store_that_cannot_be_used_is_told_and_the_run_goes_on(home: Home) -> None:
    home.root.mkdir()
    store = home.root / "sessions.db"
    store.write_text("no database\n" * 1_000)
    with Model(lambda asked: stream(text("hello"))) as model:
        for words in (("one",), ("-c", "two"), ("three",)):
            done = home.ask(model.url, *words).ok()
            assert done.out == "hello\n"
            assert "not saved: " in done.err
            assert "sessions.db: file is not a database" in done.err
        assert len(model.asked[1].body["messages"]) == 4  # the conversation goes on in memory
        assert store.read_text().startswith("no database")  # what is there may be somebody's: it is left alone
        store.unlink()
        assert "not saved" not in home.ask(model.url, "four").ok().err
    for path in home.traces():
        home.sound(path)
    assert "Traceback" not in home.logs()


READ_ONLY: Final = 'mount --bind "$AGENTD_HOME" "$AGENTD_HOME" && mount -o remount,ro,bind "$AGENTD_HOME" && exec "$@"'


def read_only(home: Home, *words: str) -> Done:
    """`agentctl WORDS` where the home's file system is read-only, in a mount namespace of its own."""
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", sys.executable, "-P", "-m", "agentctl", *words]
    done = subprocess.run(command, env=home.env, cwd=home.workspace, capture_output=True, text=True, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_read_only_home_can_still_be_read(home: Home) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, for a mount of its own")
    with Model(lambda asked: stream(text("hello"))) as model:
        home.ask(model.url, "hi").ok()
        home.ctl("stop").ok()
        name = home.trace().name
        refused = read_only(home, "ask", "--base-url", model.url, "-m", "scripted", "more")
        explained(refused, NO_DAEMON, "Read-only file system", "AGENTD_HOME")
        assert name[:12] in read_only(home, "trace", "ls").ok().out
        assert "intact and complete" in read_only(home, "trace", "verify", name).ok().out
        assert "hello" in read_only(home, "trace", "show", name).ok().out
        home.ask(model.url, "-c", "more").ok()
        assert len(of("run.execute.finished", records(home.trace()))) == 2
        home.sound(home.trace())


def test_a_directory_that_was_deleted_under_the_client_is_told(home: Home) -> None:
    gone = home.place / "gone"
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -P -m agentctl ask -m ollama/x hi"
    Path(gone).mkdir()
    done = subprocess.run(["sh", "-c", script], env=home.env, capture_output=True, text=True, timeout=60)
    explained(Done(done.returncode, done.stdout, done.stderr), USAGE, "no longer exists", "cd to one that does")
