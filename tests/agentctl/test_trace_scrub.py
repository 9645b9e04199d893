"""agentctl trace scrub: what is said, what is done, where secrets may come from, and the exit code."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from agentctl.__main__ import run
from agentctl.catalog import help_text
from agentd.paths import traces_dir
from tests.agentctl.fake_daemon import Screen
from tests.strategies import SESSION
from tests.tracewriter.old_sessions import make
from tests.tracewriter.scrub_sessions import EXACT, WORKSPACE, an_old_session, contents, leaks, secrets
from tracewriter import lock, reader

Env = dict[str, str]
RULES_ONLY = [secret for secret in secrets() if secret != EXACT]


@pytest.fixture
def root(env: Env) -> Path:
    """A session full of secrets, and one without any."""
    root = Path(traces_dir(env))
    an_old_session(root)
    make(root, "clean", 3)
    return root


def scrub(env: Env, *words: str, code: int = 0, stdin: str = "") -> Screen:
    screen = Screen(env)
    world = screen.world._replace(stdin=io.StringIO(stdin))
    assert run(["trace", "scrub", *words], world) == code, screen.err
    assert EXACT not in screen.out + screen.err
    return screen


def hold(directory: Path) -> tuple[int, int]:
    fd = os.open(directory, os.O_RDONLY)
    return fd, lock.acquire(fd)


def test_a_dry_run_counts_by_rule_and_changes_nothing(env: Env, root: Path) -> None:
    before = contents(root)
    out = scrub(env, SESSION[:8], "--dry-run").out
    assert re.search(r"would be scrubbed, in [34]\d records and 2 payloads: .*\bgithub \d", out)
    document = json.loads(scrub(env, "--all", "--dry-run", "--json").out.splitlines()[0])
    assert (document["dry_run"], document["state"], document["hits"]["github"] >= 9) == (True, "found", True)
    assert contents(root) == before


def test_all_are_scrubbed_and_each_is_a_line_in_the_log(env: Env, root: Path) -> None:
    screen = scrub(env, "--all")
    assert re.search(r"scrubbed, in [34]\d records and 2 payloads: ", screen.out)
    assert "2 sessions: 1 scrubbed, 1 with nothing to scrub, 0 in use, 0 not scrubbed" in screen.err
    assert "not overwritten" in screen.err
    assert leaks(root, RULES_ONLY) == []
    verdict = reader.verify(root / WORKSPACE / SESSION)
    assert not verdict.damaged
    assert f"head {verdict.head}" in screen.out
    deeds = [json.loads(line) for line in (root / "retention.jsonl").read_text().splitlines()]
    assert [(deed["action"], deed["session"], deed["reason"]) for deed in deeds] == [("scrubbed", SESSION, "asked")]
    before = contents(root)
    assert "0 scrubbed, 2 with nothing" in scrub(env, "--all").err
    assert contents(root) == before


def test_the_change_is_shown_like_any_record(env: Env, root: Path) -> None:
    scrub(env, SESSION)
    screen = Screen(env)
    assert run(["trace", "show", SESSION], screen.world) == 0
    assert "trace.scrub.applied" in screen.out
    assert re.search(r"[34]\d records and 2 payloads changed on 20", screen.out)
    assert "by the rules of tracewriter" in screen.out


def test_an_exact_value_comes_from_the_environment_a_private_file_or_standard_input(env: Env, root: Path) -> None:
    kept = root.parent / "kept"
    shutil.copytree(root, kept)
    file = root.parent / "values"
    file.write_text(f"\nanother-value\n{EXACT}\r\n")
    file.chmod(0o600)
    ways = (["--secret-env", "MY_KEY"], ["--secret-env=OTHER", "--secret-env", "MY_KEY"], ["--secret-file", str(file)])
    for way in (*ways, ["--secret-file", "-"]):
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        found = {**env, "MY_KEY": EXACT, "OTHER": "another-value"}
        assert "exact " in scrub(found, SESSION, *way, stdin=f"{EXACT}\n").out
        assert leaks(root) == []


def test_a_value_that_is_missing_short_or_readable_by_others_stops_everything(env: Env, root: Path) -> None:
    before = contents(root)
    file = root.parent / "values"
    file.write_text(EXACT)
    file.chmod(0o640)
    assert "can be read by others" in scrub(env, SESSION, "--secret-file", str(file), code=2).err
    assert "cannot be read" in scrub(env, SESSION, "--secret-file", str(file) + "x", code=2).err
    assert "NOPE is not set" in scrub(env, SESSION, "--secret-env", "NOPE", code=2).err
    short = scrub({**env, "SHORT": "abcde"}, SESSION, "--secret-env", "SHORT", code=2).err
    assert "the value of SHORT is under 6 characters" in short
    assert "abcde" not in short
    assert "no secret is in standard input" in scrub(env, SESSION, "--secret-file", "-", stdin="\n \n", code=2).err
    os.mkfifo(root.parent / "fifo", 0o600)
    assert "no plain file" in scrub(env, SESSION, "--secret-file", str(root.parent / "fifo"), code=2).err
    assert contents(root) == before


def test_sessions_in_use_are_left_alone_and_exit_4_when_that_was_all(env: Env, root: Path) -> None:
    held = hold(root / WORKSPACE / SESSION)
    assert "left alone: it is being recorded, or scrubbed, right now" in scrub(env, SESSION, code=4).out
    assert "1 in use" in scrub(env, "--all", code=1).err
    scrub(env, SESSION, "clean", code=1)
    for fd in held:
        os.close(fd)
    scrub(env, SESSION, "clean")


def test_damage_exits_5_and_what_no_writer_made_exits_1(env: Env, root: Path) -> None:
    odd = make(root, "odd", 5)
    (odd / "notes.txt").write_text("mine")
    assert "NOT scrubbed: it holds 'notes.txt', which no writer made" in scrub(env, "odd", code=1).out
    path = root / WORKSPACE / SESSION / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7', 1))
    screen = scrub(env, "--all", code=5)
    assert "NOT scrubbed: it is damaged" in screen.out
    assert "not as they were sealed" in screen.out
    assert "--force" in screen.err
    assert leaks(root, RULES_ONLY)
    scrub(env, SESSION, "--force")
    assert leaks(root, RULES_ONLY) == []


def test_the_trash_is_told_of(env: Env, root: Path) -> None:
    make(root, "old", 90)
    screen = Screen(env)
    run(["trace", "prune"], screen.world)
    assert "1 session in the trash as they are" in scrub(env, "--all").err


def test_what_a_killed_scrub_left_of_a_session_that_is_gone_goes_too(env: Env, root: Path) -> None:
    left = root / ".scrub" / WORKSPACE / "gone"
    left.mkdir(parents=True)
    shutil.move(root / WORKSPACE / SESSION, left / "x")
    for path in (left, left.parent, left.parent.parent):
        os.utime(path, (1e9, 1e9))
    scrub(env, "--all", "--dry-run")
    assert leaks(root, RULES_ONLY)
    scrub(env, "--all")
    assert leaks(root, RULES_ONLY) == []


def test_wrong_words(env: Env, root: Path) -> None:
    assert "SESSION is missing (or --all)" in scrub(env, code=2).err
    assert "either sessions or --all" in scrub(env, "--all", "x", code=2).err
    assert "is no session under" in scrub({**env}, str(root.parent), code=2).err
    assert "trace scrub" in help_text()
