from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentd import paths


def test_agentd_home_holds_everything() -> None:
    env = {"AGENTD_HOME": "/a", "XDG_RUNTIME_DIR": "/run/user/1", "XDG_STATE_HOME": "/s", "HOME": "/h"}
    assert paths.config_file(env) == "/a/config.toml"
    assert paths.sessions_db(env) == "/a/sessions.db"
    assert paths.traces_dir(env) == "/a/traces"
    assert paths.agentd_socket(env) == "/a/run/agentd.sock"
    assert paths.writer_socket(env) == "/a/run/tracewriter.sock"


def test_without_it_the_xdg_directories_decide_and_relative_ones_are_ignored() -> None:
    env = {"HOME": "/h", "XDG_STATE_HOME": "relative", "XDG_CONFIG_HOME": "/c"}
    assert paths.config_file(env) == "/c/agentd/config.toml"
    assert paths.state_dir(env) == "/h/.local/state/agentd"
    assert paths.runtime_dir(env) == "/h/.local/state/agentd/run"
    assert paths.runtime_dir(env | {"XDG_RUNTIME_DIR": "/run/user/1"}) == "/run/user/1/agentd"


def test_a_workspace_is_named_by_its_canonical_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    expected = hashlib.sha256(os.fsencode(os.path.realpath(tmp_path))).hexdigest()[:24]
    assert paths.workspace_hash(str(tmp_path / "link")) == paths.workspace_hash(str(tmp_path)) == expected


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_private_directories_are_0700_at_every_level_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        paths.private_dir(str(tmp_path / "a" / "b" / "c"))
    finally:
        os.umask(old)
    for made in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700


def test_an_existing_directory_is_tightened(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    paths.private_dir(str(tmp_path / "d"))
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


def test_symlinks_files_and_directories_open_to_everyone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name, why in (("link", "symbolic link"), ("file", "not a directory"), ("open", "by everyone")):
        with pytest.raises(PermissionError, match=why):
            paths.private_dir(str(tmp_path / name))


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away takes root")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        paths.private_dir(str(tmp_path / "theirs"))


def test_sockets_of_any_path_length_can_be_bound_and_connected(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100) / ("y" * 100) / "sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with paths.address(str(path)) as name:
            assert len(os.fsencode(name)) <= paths.MAX_SOCKET_PATH_BYTES
            server.bind(name)
        server.listen()
        with paths.address(str(path)) as name:
            client.connect(name)
    assert path.is_socket()


def test_importing_it_pulls_in_nothing_but_os() -> None:
    code = "import sys; before = set(sys.modules); import agentd.paths; print(sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['__future__', 'agentd', 'agentd.paths', 'tracewriter', 'tracewriter.places']"
