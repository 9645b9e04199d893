"""The demo's second act: shown when a model is there, bounded in time, never a reason to fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentctl.commands.demo_local import LocalAct
from tests.agentctl.fake_daemon import Screen

Env = dict[str, str]


def act(env: Env, place: Path, script: str, *, installed: bool = True, limit_s: float = 30.0) -> str:
    screen = Screen(env)
    command = (sys.executable, "-c", "import signal, sys, time\n" + script)
    LocalAct(place, screen.world, limit_s=limit_s, installed=installed, command=command).run()
    return screen.out


def add_model(env: Env) -> None:
    models = Path(env["AGENTD_HOME"], "models")
    models.mkdir(parents=True)
    (models / "smollm2.gguf").touch()


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_what_is_missing_is_one_line(env: Env, tmp_path: Path, installed: bool, there: bool) -> None:
    if there:
        add_model(env)
    out = act(env, tmp_path, "print('said', sys.argv[1:])", installed=installed)
    assert ("agentctl models pull smollm2" in out) is not there
    assert ("pip install -e '.[local]'" in out) is not installed
    assert ("real inference" in out) is (there and installed)
    if not (there and installed):
        assert len(out.strip().split("\n")) == 1


def test_what_it_says_is_shown_with_how_it_ended(env: Env, tmp_path: Path) -> None:
    add_model(env)
    out = act(env, tmp_path, "print(*sys.argv[1:]); print('\\x1b[31mred'); sys.exit(1)")
    assert "ask -m local/smollm2 Read the file stats.py" in out
    assert "\x1b" not in out
    assert "ended with exit code 1" in out


@pytest.mark.parametrize("script", ["time.sleep(60)", "signal.signal(2, lambda *a: sys.exit(130))\ntime.sleep(60)"])
def test_it_takes_no_longer_than_it_may(env: Env, tmp_path: Path, script: str) -> None:
    add_model(env)
    assert "interrupted after 0.3 s" in act(env, tmp_path, script, limit_s=0.3)
