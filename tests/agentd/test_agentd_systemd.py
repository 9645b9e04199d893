from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNITS / name)
    return parser


@pytest.mark.parametrize("name", ["agentd", "tracewriter"])
def test_services_are_notified_watched_restarted_and_keep_their_socket(name: str) -> None:
    service = unit(f"{name}.service")["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["Restart"] == "on-failure"
    assert "RuntimeDirectory" not in service
    assert service["UMask"] == "0077"
    socket = unit(f"{name}.socket")["Socket"]
    assert socket["ListenStream"] == f"%t/agentd/{name}.sock"
    assert (socket["SocketMode"], socket["DirectoryMode"]) == ("0600", "0700")


def test_the_sandbox_of_the_recorder_is_not_silently_ignored_by_user_managers() -> None:
    assert unit("tracewriter.service")["Service"]["PrivateUsers"] == "yes"


def test_systemd_finds_nothing_to_say(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        assert not os.environ.get("CI"), "CI must have systemd-analyze"
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS.iterdir():
        text = path.read_text().replace("%h/.local/bin/agentd", sys.executable)
        (tmp_path / path.name).write_text(text.replace("%h/.local/bin/tracewriter", sys.executable))
    command = ["systemd-analyze", "--user", "verify", "--recursive-errors=yes"]
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    files = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run([*command, *files], capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
