"""A key that only the asking shell has works with a daemon started without it, and is found nowhere afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.harness import Done, Home, environ, of, processes, records
from tests.e2e.model import Answer, Asked, Model, call, stream, text

# Kinds that no rule but "this exact value" can recognise, and one that a rule knows too.
KEYS = {"plain": "Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1A", "sk": "sk-proj-Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9"}


def serve(key: str) -> Model:
    """A server that wants this key, then reads a file, and says back what it was sent."""

    def decide(asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {key}":
            error = b'{"error": {"message": "Incorrect API key provided.", "type": "invalid_request_error"}}'
            return Answer((error,), 401, "application/json")
        if asked.turn == 0:
            return stream(call("read_file", path="secrets.env"))
        if asked.turn == 1:
            return stream(call("write_file", path="copy.txt", content=f"it was {key}\n"))
        return stream(text(f"Your key is {key}, and the file said {asked.results[0]}"))

    return Model(decide)


def ask(home: Home, model: Model, *words: str, **env: str) -> Done:
    """Ask the provider `openai`, which is at the fake server for this shell."""
    return home.ctl("ask", "-m", "openai/gpt-test", *words, env={"OPENAI_BASE_URL": model.url, **env})


def holders(home: Home, secret: str) -> list[str]:
    """Every file under the home, and every command line and environment, that holds the bytes."""
    wanted = secret.encode()
    found = [str(path) for path in home.root.rglob("*") if path.is_file() and wanted in path.read_bytes()]
    found += [f"cmdline of {words}" for words in processes().values() if secret in words]
    for pid in (*home.daemons(), *home.writers()):
        found += [f"environ of {pid}"] * (wanted in (environ(pid) or b""))
    return found


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_the_asking_shell_works_and_is_nowhere(home: Home, kind: str) -> None:
    key = KEYS[kind]
    with serve(key) as model:
        ask(home, model, "-q", "no key here", OPENAI_API_KEY="wrong-key-0123456789")
        daemon = home.daemon()
        done = ask(home, model, "-b", "hello", OPENAI_API_KEY=key).ok()
        assert home.daemon() == daemon
        assert f"Your key is {key}" in done.out  # the live conversation is never altered
        assert (home.workspace / "copy.txt").read_text() == f"it was {key}\n"
        assert key not in done.err
    assert_redacted(home, home.traces()[1], key)
    ours = [path for path in holders(home, key) if Path(path).name not in STORE]
    assert ours == []


# The conversation is kept as it is, 0600, so that it can go on (README); what the model never said is not in it.
STORE = ("sessions.db", "sessions.db-wal", "sessions.db-shm")


def assert_redacted(home: Home, trace: Path, key: str) -> None:
    found = records(trace)
    marker = "[redacted:"
    last = of("model.request.finished", found)[-1]
    assert last["text"].startswith(f"Your key is {marker}")
    assert marker in str(of("tool.call.started", found)[1]["input"])
    assert marker in of("file.change.applied", found)[0]["diff"]
    assert (of("run.execute.finished", found)[0]["outcome"]) == "completed"
    home.sound(trace)
    shown = home.ctl("trace", "show", trace.name, "--json").ok()
    assert key not in shown.out
    assert stat_modes(home) == []


def stat_modes(home: Home) -> list[str]:
    """What is open to others."""
    return [str(path) for path in home.root.rglob("*") if path.lstat().st_mode & 0o077]


def test_a_key_that_nobody_repeats_is_not_even_in_the_store(home: Home) -> None:
    key = KEYS["plain"]

    def decide(asked: Asked) -> Answer:
        assert asked.headers["authorization"] == f"Bearer {key}"
        return stream(text("hello"))

    with Model(decide) as model:
        ask(home, model, "hello", OPENAI_API_KEY=key).ok()
        assert holders(home, key) == []
        home.ctl("stop").ok()
        assert holders(home, key) == []


def test_a_file_that_holds_the_key_is_read_and_recorded_redacted(home: Home) -> None:
    key = KEYS["plain"]
    (home.workspace / "secrets.env").write_text(f"OPENAI_API_KEY={key}\n")
    with serve(key) as model:
        ask(home, model, "-b", "hello", OPENAI_API_KEY=key).ok()
        assert key in model.asked[-1].body["messages"][3]["content"]  # the model is told what is in the file
    (read, _) = of("tool.call.finished", records(home.trace()))
    assert read["is_error"] is False
    assert "[redacted:" in read["output"]
    assert_redacted(home, home.trace(), key)


def test_another_shell_without_the_key_is_told_so(home: Home) -> None:
    with serve(KEYS["plain"]) as model:
        ask(home, model, "-q", "-b", "hello", OPENAI_API_KEY=KEYS["plain"]).ok()
        before = len(model.asked)
        for words in (("ask", "-m", "openai/gpt-test", "hi"), ("ask", "hi")):
            refused = home.ctl(*words)
            assert (refused.code, refused.out) == (2, "")
            assert "OPENAI_API_KEY" in refused.err
            assert "demo" in refused.err
        assert len(model.asked) == before
        assert len(home.traces()) == 1
        # and a second shell's own key is its own
        other = ask(home, model, "hi", OPENAI_API_KEY="another-key-9876543210")
        assert other.code == 1
        assert "401" in other.err or "Incorrect API key" in other.err
        assert model.asked[-1].headers["authorization"] == "Bearer another-key-9876543210"
        assert KEYS["plain"] not in other.err


def test_a_resumed_session_uses_the_key_of_whoever_resumes_it(home: Home) -> None:
    first, second = KEYS["plain"], "Another0Key1That2Is3Long4Enough5"
    seen = []

    def decide(asked: Asked) -> Answer:
        seen.append(asked.headers["authorization"])
        return stream(text(f"you use {asked.headers['authorization'].removeprefix('Bearer ')}"))

    with Model(decide) as model:
        ask(home, model, "one", OPENAI_API_KEY=first).ok()
        ask(home, model, "-c", "two", OPENAI_API_KEY=second).ok()
        ask(home, model, "-c", "three", OPENAI_API_KEY=first).ok()
        assert seen == [f"Bearer {key}" for key in (first, second, first)]
        home.ctl("stop").ok()
        # Keys are never stored: after a restart the next client has to bring one.
        again = home.ctl("ask", "-c", "four", env={"OPENAI_BASE_URL": "https://api.openai.com/v1"})
        assert (again.code, len(seen)) == (2, 3)
    found = records(home.trace())
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    texts = [data["text"] for data in of("model.request.finished", found)]
    assert [said.startswith("you use [redacted:") for said in texts] == [True] * 3
    leaks = [path for key in (first, second) for path in holders(home, key) if Path(path).name not in STORE]
    assert leaks == []
    assert os.path.exists(home.root / "sessions.db")
