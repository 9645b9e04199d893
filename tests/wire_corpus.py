"""Where the recorded provider streams are: outside the project, read at run time.

AGENTD_WIRE_CORPUS names the directory; else it is ../shared/wire beside the project. Without it the tests that need it
are skipped and say so; in CI (the variable CI is set) its absence is a failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
from types import ModuleType
from typing import Any

import pytest

ROOT = pathlib.Path(
    os.environ.get("AGENTD_WIRE_CORPUS") or pathlib.Path(__file__).resolve().parents[2] / "shared" / "wire"
)
PRESENT = (ROOT / "streams").is_dir()


def need_corpus() -> None:
    """Skip the calling test without the corpus, or fail it in CI."""
    if not PRESENT:
        message = f"the wire corpus is not at {ROOT} (set AGENTD_WIRE_CORPUS)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def names(folder: str, suffix: str) -> list[str]:
    """The cases of a folder by name; one stand-in without the corpus, so that its tests are seen to be skipped."""
    found = sorted(path.name.removesuffix(suffix) for path in (ROOT / folder).glob(f"*{suffix}"))
    return found or ["corpus-absent"]


def stream(wire: str, name: str) -> tuple[bytes, dict[str, Any]]:
    """A recorded stream and what is expected of it."""
    need_corpus()
    folder = ROOT / "streams" / wire
    expected: dict[str, Any] = json.loads((folder / f"{name}.expected.json").read_text("utf-8"))
    return (folder / f"{name}.sse").read_bytes(), expected


def fault(name: str) -> dict[str, Any]:
    """A fault case."""
    need_corpus()
    case: dict[str, Any] = json.loads((ROOT / "faults" / f"{name}.json").read_text("utf-8"))
    return case


def faults(wire: str) -> list[str]:
    """The names of the fault cases of a wire."""
    cases = names("faults", ".json")
    return [name for name in cases if not PRESENT or fault(name)["wire"] == wire] or cases


def http_errors(wire: str) -> list[dict[str, str]]:
    """The rows of the error bodies' index for a wire, the body's text under `body`; empty without the corpus."""
    if not PRESENT:
        return []
    head, *rows = (ROOT / "http-errors" / "index.tsv").read_text("utf-8").rstrip("\n").split("\n")
    cases = [dict(zip(head.split("\t"), row.split("\t"), strict=True)) for row in rows]
    for case in cases:
        case["body"] = (ROOT / "http-errors" / f"{case['name']}.body").read_text("utf-8")
    return [case for case in cases if case["wire"] == wire]


def mismatches(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """What differs, by the corpus's own comparer."""
    differences: list[str] = _checker().compare(expected, got)
    return differences


def _checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wire_check", ROOT / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
