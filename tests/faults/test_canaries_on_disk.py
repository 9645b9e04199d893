"""Every kind of secret in every text of every kind of event, through a real producer and a real writer: nothing of it is on disk.

In the event's own texts, in JSON bodies (also escaped deeper), and in bodies long enough to become payload files; in the path of
the workspace, and so in the manifest; in what the writer logs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Raw, Struct, UnsetType

from tests.faults.harness import Lab
from tests.tracewriter.test_redact_canaries import ALL, EXACT
from tracewriter import reader
from tracewriter.events import KINDS, TraceDropObserved
from tracewriter.findings import Found
from tracewriter.sender import Sender

GROUP = 8
WORKSPACE = "/home/u/ghp_Zq8vTn3Lw0Rk5Yb2Hd7Jx4Mc9Pf6Sg1AoEi0"


def filled(kind: Any, text: str) -> Any:
    """A value of a field's type with the text wherever it has room for one."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return filled(next(part for part in arguments if part not in (type(None), UnsetType)), text)
    if origin is tuple:
        return (filled(arguments[0], text),) if arguments[-1] is ... else tuple(filled(a, text) for a in arguments)
    if origin is dict:
        return {text: filled(arguments[1], text)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        return kind(*(filled(hints[name], text) for name in kind.__struct_fields__))
    if kind is Raw:
        return Raw(json.dumps({"role": "user", "text": text, text[:2000]: [json.dumps({"inner": text})]}).encode())
    simple: dict[Any, Any] = {str: text, int: 3, float: 1.5, bool: True}
    return simple[kind]


def texts() -> Iterator[str]:
    for at in range(0, len(ALL), GROUP):
        yield "\n".join(f"line {text}" for _, text, _ in ALL[at : at + GROUP])
    ordinary = "an ordinary line of some length that says nothing of interest to anybody\n" * 3
    yield "\n".join(f"{ordinary}line {text}" for _, text, _ in ALL)  # over 16 KiB: a payload of its own


@pytest.mark.anyio
async def test_no_secret_of_any_kind_in_any_text_of_any_event_reaches_the_disk(lab: Lab) -> None:
    writer = lab.writer()
    kinds = [cls for cls in KINDS.values() if cls is not TraceDropObserved]
    sender = Sender(str(lab.socket))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sender.run())
        trace = sender.open("s1", WORKSPACE, agentd="t", mode="plan", capture="content", secrets=(EXACT,))
        for text in texts():
            for cls in kinds:
                trace.record(filled(cls, text))
            await trace.flush(30)
        status = await trace.close(30)
        task.cancel()
    writer.stop()
    assert (status.dropped, status.recorded) == (0, status.emitted)
    (directory,) = lab.root.glob("*/s1")
    notes = reader.verify(directory).notes  # some, since records of a recording's begin and end stand in its middle
    assert {note.kind for note in notes} <= {"end_missing", "emitted"}, notes
    shown = [item.record.event for item in reader.read(directory) if isinstance(item, Found)]
    assert set(shown) >= set(KINDS) - {"trace.drop.observed"}
    assert len(list((directory / "payloads").iterdir())) >= 2  # the text and the JSON, each once for all kinds
    files = [path for path in lab.base.rglob("*") if path.is_file()]
    assert any(path.name == "manifest.json" for path in files)
    everything = b"\0".join(path.read_bytes() for path in files)
    assert everything.count(b"[redacted:") > len(kinds) * len(ALL)
    flat = everything.replace(b"\\", b"")
    flat = re.sub(rb"-MAC: [0-9a-f]{64}", b"", flat)  # of a PuTTY key: no secret, and made of the same digits as some
    left = {secret for _, _, secret in ALL if secret != "[" and secret.encode() in flat}
    assert left == set()
    assert WORKSPACE.encode() not in everything
