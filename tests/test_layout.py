"""The tree keeps its shape: what is at the top, which way imports point, how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"agentd": ROOT / "agentd", "tracewriter": ROOT / "tracewriter", "agentctl": ROOT / "client" / "agentctl"}
TOP = {"pyproject.toml", "README.md", "agentd", "tracewriter", "client", "tests", "systemd"}
MAX_LINES = 500

# Who may import what of ours, and why. Everything else points the wrong way.
ARROWS: dict[str, dict[str, str]] = {
    "tracewriter": {"tracewriter": "itself; it must be usable by any other program"},
    "agentd": {
        "agentd": "itself",
        "tracewriter.events": "one event union serves loop, trace and clients",
        "tracewriter.jsonl": "one way to make JSON safe",
        "tracewriter.sender": "records through it",
        "tracewriter.clock": "time is a parameter everywhere",
        "tracewriter.redact": "asked where a stream may be cut so that no secret is split over two records (capture stream)",
        "tracewriter.systemd": "readiness and passed sockets",
        "tracewriter.places": "where files and sockets are, as every program finds them",
        "tracewriter.ids": "ids are made in one way",
        "tracewriter.capture": "what capture mode metadata leaves of an event, whoever records it",
    },
    "agentctl": {
        "agentctl": "itself",
        "agentd.paths": "where the sockets and traces are; imports only os",
        "agentd.protocol": "the protocol's types",
        "agentd": "its version",
        "agentd.messages": "what a context is made of; the daemon and whoever rebuilds it make messages of events in one way",
        "agentd.providers": "`trace context --body` is made by the very builders that made the request; imported there only",
        "agentd.config": "which providers the user added: their wire, for the same body; imported there only",
        "agentd.errors": "what can be wrong with that file",
        "tracewriter.events": "the types of what it shows",
        "tracewriter.reader": "reads traces",
        "tracewriter.bodies": "puts back what was moved to payload files",
        "tracewriter.payload_files": "reads those",
        "tracewriter.expand": "shows their heads",
        "tracewriter.findings": "the types of what the reader finds",
        "tracewriter.retention": "prune, pin and undelete work without a daemon",
        "tracewriter.trash": "does what they ask for, and tells what is kept",
        "tracewriter.scrub": "applies today's rules to old traces, without a daemon",
        "tracewriter.client": "asks a writer for its status",
        "tracewriter.tail": "follows a trace that grows",
        "tracewriter.tool": "records what other tools say",
        "tracewriter.thread_trace": "the types of that",
        "tracewriter.standing": "how it stands",
        "tracewriter.foreign": "which names other tools may have",
        "tracewriter.ids": "which ids a session may have",
        "tracewriter.jsonl": "one way to make JSON safe",
        "tracewriter.config": "the bounds of a record",
    },
}
# Imported where it is used only, so that start-up stays quick.
LAZY = {"httpx", "genai_prices", "rich", "watchfiles"}
HTTP_MODULE = "agentd/providers/http.py"


def modules() -> Iterator[tuple[str, Path]]:
    for package, directory in PACKAGES.items():
        for path in sorted(directory.rglob("*.py")):
            yield package, path


def imported(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(), str(path))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


_AGENTD_NAMES = {"agentd", "agentd.__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for owner, path in modules():
        if owner != package:
            continue
        for name in imported(path):
            first = name.split(".")[0]
            if first in PACKAGES and not _points_right(name, ARROWS[package]):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def _points_right(name: str, arrows: dict[str, str]) -> bool:
    package = name.split(".")[0]
    if arrows.get(package) == "itself" or (package in arrows and arrows[package].startswith("itself")):
        return True
    if name in arrows or (name in _AGENTD_NAMES and "agentd" in arrows):
        return True
    # `from tracewriter import events` shows as tracewriter and tracewriter.events
    if name == package and any(to.startswith(package + ".") for to in arrows):
        return True
    return any(name.startswith(to + ".") for to in arrows if "." in to)


def test_heavy_libraries_are_imported_only_when_used() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for _, path in modules()
        for name in imported(path, top_level_only=True)
        if name.split(".")[0] in LAZY
    ]
    assert wrong == []


def test_one_module_speaks_http() -> None:
    users = {
        str(path.relative_to(ROOT)) for _, path in modules() if "httpx" in {n.split(".")[0] for n in imported(path)}
    }
    assert users <= {HTTP_MODULE}


def test_every_file_has_one_job_and_stays_short() -> None:
    paths = [path for _, path in modules()] + sorted((ROOT / "tests").rglob("*.py"))
    long = {str(p.relative_to(ROOT)): n for p in paths if (n := len(p.read_text().split("\n"))) > MAX_LINES + 1}
    assert long == {}


def test_test_files_have_names_of_their_own() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []  # pytest imports them by that name alone


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p.relative_to(ROOT)) for _, p in modules() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []


def test_all_packages_have_the_distributions_version() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for package, directory in PACKAGES.items():
        assert f'__version__ = "{wanted}"' in (directory / "__init__.py").read_text(), package


def test_the_top_level_holds_nothing_else() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the project is not known")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    top = {line.split("/")[0] for line in done.stdout.split("\n") if line}
    assert {name for name in top if not name.startswith(".")} == TOP
