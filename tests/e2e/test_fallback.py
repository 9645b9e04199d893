"""A provider that fails hands over to another one, of another wire and with a key out of a command, in whole processes."""

from __future__ import annotations

import sys

from tests.e2e.harness import Home, of, records
from tests.e2e.test_keys import holders
from tests.replay_server import ReplayThread, Script, Send
from tests.wire_answers import ANSWERS

FIRST = "sk-proj-Fq8vTn3Lw0Rk5Yb2Hd7J"
# No rule recognises it: only that the recorder was told of it.
SECOND = "Gq7vTn2Lw9Rk4Yb1Hd6Jx3Mc8Pf5"
LISTS = Script((Send(b'{"data":[{"id":"claude-x"}]}'),), headers=(("content-type", "application/json"),))


def configure(home: Home, first: str, second: str) -> None:
    home.root.mkdir(0o700)
    key_file = home.root / "second.key"
    key_file.write_text(SECOND + "\n")
    key_file.chmod(0o600)
    command = [sys.executable, "-S", "-c", f"print(open({str(key_file)!r}).read())"]
    (home.root / "config.toml").write_text(
        f'fallback = ["second/claude-x"]\n[providers.openai]\nbase_url = "{first}"\n'
        f'[providers.second]\nwire = "anthropic"\nbase_url = "{second}"\nkey_command = {command}\n'
    )


def test_a_run_goes_on_with_the_fallback_and_neither_key_is_seen(home: Home) -> None:
    refusal = Script.of_error(401, b'{"error":{"message":"Incorrect API key provided: ' + FIRST.encode() + b'"}}')
    answer = ANSWERS["anthropic"].replace(b"Hello", b"I was asked with " + SECOND.encode())
    with ReplayThread([refusal]) as one, ReplayThread([Script.of_sse(answer)]) as two:
        configure(home, one.base_url, two.base_url)
        env = {"OPENAI_API_KEY": FIRST}
        done = home.ctl("ask", "-m", "openai/gpt-test", "hello", env=env).ok()
        assert [request.headers.get("authorization") for request in one.requests] == [f"Bearer {FIRST}"]
        assert [request.headers.get("x-api-key") for request in two.requests] == [SECOND]
        assert FIRST not in str(two.requests)
    assert SECOND in done.out  # the live conversation is never altered
    assert "asking second/claude-x instead" in done.err
    assert "OPENAI_API_KEY was not accepted" in done.err
    assert FIRST not in done.err
    found = records(home.trace())
    assert [(row["provider"], row["model"]) for row in of("model.request.started", found)] == [
        ("openai", "gpt-test"),
        ("second", "claude-x"),
    ]
    (retry,) = of("model.retry.observed", found)
    assert (retry["provider"], retry["model"], retry["error"]["status"]) == ("second", "claude-x", 401)
    assert of("model.request.finished", found)[0]["text"] == "I was asked with [redacted:exact]"
    home.sound(home.trace())
    stored = ("sessions.db", "sessions.db-wal", "sessions.db-shm", "second.key")
    assert [path for key in (FIRST, SECOND) for path in holders(home, key) if not path.endswith(stored)] == []


def test_models_lists_what_can_be_asked_with_the_key_of_a_command(home: Home) -> None:
    with ReplayThread([LISTS]) as one:
        configure(home, one.base_url, one.base_url)
        shown = home.ctl("models", "second").ok()
        again = home.ctl("models", "second", "--json").ok().json()
        assert len(one.requests) == 1  # kept
        assert one.requests[0].headers["x-api-key"] == SECOND
    assert shown.out.splitlines() == ["second: 1 model", "  second/claude-x"]
    assert [model["model"] for row in again["providers"] for model in row["models"]] == ["claude-x"]
    assert SECOND not in shown.out + shown.err
