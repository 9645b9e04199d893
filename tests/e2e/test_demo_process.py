"""`agentctl demo` with nothing set up: it works, its record verifies, and nothing of it stays but the daemon and the recorder."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.harness import Done, Home, environ, of, processes, records


def demo(home: Home) -> Done:
    """In an environment of three variables, in a directory that is not the project."""
    env = {"HOME": str(home.place), "AGENTD_HOME": str(home.root), "TMPDIR": str(home.place)}
    env |= {name: value for name, value in home.env.items() if name.startswith(("COVERAGE_", "PYTHONPATH"))}
    command = [sys.executable, "-P", "-m", "agentctl", "demo"]
    done = subprocess.run(command, env=env, cwd=home.workspace, capture_output=True, text=True, timeout=90)
    return Done(done.returncode, done.stdout, done.stderr)


def left_by(home: Home) -> list[str]:
    """The command lines of what runs in this home."""
    mine = f"AGENTD_HOME={home.root}\0".encode()
    return [words for pid, words in processes().items() if mine in (environ(pid) or b"") + b"\0"]


def test_it_fixes_the_bug_says_what_it_is_and_leaves_a_record_that_verifies(home: Home) -> None:
    done = demo(home).ok()
    for words in (
        "The model is scripted",
        "✗ test_stats.py",
        "✓ test_stats.py",
        "+    if len(ordered) % 2 == 0",
        "intact",
    ):
        assert words in done.out
    assert "Traceback" not in done.out + done.err
    path = home.trace()
    assert str(path) in done.out
    found = records(path)
    (end,) = of("run.execute.finished", found)
    assert (end["outcome"], end["files"], end["errors"]) == ("completed", ["stats.py"], [])
    assert {"read_file", "edit_file"} <= set(end["tools"])
    (change,) = of("file.change.applied", found)
    assert "+    if len(ordered) % 2 == 0" in change["diff"]
    home.ctl("stop").ok()
    verdict = home.sound(path)
    assert verdict.emitted == verdict.records
    assert home.logs() == ""


def test_nothing_stays_but_the_daemon_and_the_recorder_also_when_it_is_run_again(home: Home) -> None:
    before = {entry.name for entry in home.place.iterdir()}
    daemons = set()
    for times in (1, 2):
        demo(home).ok()
        assert {entry.name for entry in home.place.iterdir()} - before == {home.root.name}
        left = left_by(home)
        assert [words for words in left if "demo-model" in words or "agentctl" in words] == []
        assert (len(home.daemons()), len(home.writers())) == (1, 1)
        assert len(left) <= 2
        assert len(home.traces()) == times
        daemons.add(home.daemon())
    assert len(daemons) == 1
    home.ctl("trace", "verify", "--all").ok()
