"""FORMAT.md says what is true: its examples decode, its table of kinds is the code's, its ten-line reader reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

import tracewriter
from tracewriter import protocol
from tracewriter.disk import REAL_DISK
from tracewriter.events import KINDS, TraceDropObserved, UnknownEvent, event_of
from tracewriter.payload import REFERENCE, PayloadRef
from tracewriter.scan import parse_header, parse_record
from tracewriter.segment import Header, Segment

TEXT = (Path(tracewriter.__file__).parent / "FORMAT.md").read_text()
BLOCKS = re.findall(r"```(json|python)\n(.*?)```", TEXT, re.DOTALL)
LINES = [line.encode() for kind, body in BLOCKS if kind == "json" for line in body.strip().split("\n")]
BODIES = (
    PayloadRef,
    protocol.Hello,
    protocol.Welcome,
    protocol.Open,
    protocol.Refused,
    protocol.Nack,
    protocol.Flushed,
)


def as_body(line: bytes) -> type | None:
    for cls in BODIES:
        try:
            body = msgspec.json.decode(line, type=cls)
        except msgspec.ValidationError:
            continue
        if set(msgspec.json.decode(line)) <= set(msgspec.to_builtins(body)):
            return cls
    return None


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_every_json_example_is_a_header_a_record_or_a_frame_body(line: bytes) -> None:
    if parse_header(line) is not None:
        return
    parsed = parse_record(line)
    if parsed is not None:
        record, _ = parsed
        assert not isinstance(event_of(record.event, record.data), UnknownEvent)
        return
    assert as_body(line) is not None


def test_the_example_of_a_payload_is_found_as_readers_find_it() -> None:
    examples = [line for line in LINES if as_body(line) is PayloadRef]
    assert len(examples) == 1
    assert REFERENCE.fullmatch(examples[0])


def test_the_table_of_kinds_is_the_catalog() -> None:
    table = re.search(r"<!-- kinds.*?-->(.*?)<!-- /kinds -->", TEXT, re.DOTALL)
    assert table is not None
    rows = dict(re.findall(r"^\| ([a-z.]+\.[a-z.]+) \| (.*?) \|$", table[1], re.MULTILINE))
    fields = {
        name: ", ".join(f.name + ("?" if f.default is UNSET else "") for f in msgspec.structs.fields(cls))
        for name, cls in KINDS.items()
    }
    assert rows == fields


def test_every_kind_of_frame_that_is_spoken_is_in_the_table() -> None:
    reserved = {protocol.Kind.DELETE, protocol.Kind.PIN}
    for kind in set(protocol.Kind) - reserved:
        assert re.search(rf"\b{int(kind)} {kind.name}\b", TEXT), kind


def test_the_ten_line_reader_reads_a_trace(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    directory.mkdir()
    dir_fd = os.open(directory, os.O_RDONLY)
    segment = Segment(
        REAL_DISK, dir_fd, Header(1, "3f732153578510ed", "s", "agentd.trace/1", "4a6ea9920d2bec6c", 0, "open")
    )
    data = b'"ts":"2026-11-29T20:45:01Z","event":"%s","session":"s","data":%s}\n'
    drop = msgspec.json.encode(TraceDropObserved(2, 4, 3, "limit"))
    block = b'{"seq":1,' + data % (b"a.b.c", b'{"text":"\xe2\x80\xa8"}')
    block += b'{"seq":2,' + data % (b"trace.drop.observed", drop) + b'{"seq":6,' + data % (b"a.b.c", b"{}")
    assert segment.start(block, 3, 6).error is None
    segment.suspend()
    os.close(dir_fd)
    program = next(body for kind, body in BLOCKS if kind == "python")
    done = subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [
        "1 a.b.c {'text': '\\u2028'}",
        "2 trace.drop.observed {'first': 2, 'last': 4, 'count': 3, 'reason': 'limit'}",
        "missing from 5",
        "6 a.b.c {}",
        "",
    ]
