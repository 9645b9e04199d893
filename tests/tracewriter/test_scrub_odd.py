"""Scrub of traces that are damaged, unsealed, large, or hold what cannot be looked into."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tests.strategies import SESSION
from tests.tracewriter.payload_sessions import Body, put, put_segment, record
from tests.tracewriter.scrub_sessions import (
    CANARIES,
    WORKSPACE,
    a_scrub,
    an_old_session,
    change_of,
    closing,
    contents,
    found,
    heads,
    intact,
    leaks,
    scrubbed,
)
from tracewriter import reader
from tracewriter.redact import CannotRedact, Redactor

KEY_TEXT = CANARIES[0]


# --- odd traces


def test_records_without_seals_are_scrubbed_and_sealed(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    for seal in directory.glob("*.seal"):
        seal.unlink()
    (directory / "digests").unlink()
    before = found(directory)
    assert {item.state for item in before} == {"unsealed"}
    scrubbed(tmp_path)
    assert leaks(tmp_path) == []
    after = found(directory)
    assert heads(after[: len(before)]) == heads(before)
    assert {item.state for item in after} == {"verified"}
    assert intact(directory).payloads_verified == 3


def test_what_cannot_be_looked_into_is_a_counted_drop_and_not_kept(tmp_path: Path) -> None:
    directory = tmp_path / WORKSPACE / SESSION
    directory.mkdir(parents=True)
    body = Body(b"sk-" * 40_000)
    lines = [record(1, {"t": "fine"}), record(2, {"t": "sk-" * 60_000}), record(3, {"p": body.ref}), closing(4)]
    put_segment(directory, 1, 1, lines, [body])
    put(directory, body)
    with pytest.raises(CannotRedact):
        Redactor().redact(lines[1])
    result = scrubbed(tmp_path)
    assert result.hits == {"undecodable": 2}
    assert (result.records, result.payloads) == (1, 1)
    drop = found(directory)[1]
    assert (drop.record.event, drop.record.seq, drop.end) == ("trace.drop.observed", 2, 2)
    verdict = intact(directory)
    assert (verdict.dropped, verdict.emitted) == (1, verdict.last)
    assert (directory / "payloads" / body.id).read_bytes() == b"[redacted:undecodable]"
    assert a_scrub(tmp_path).apply(WORKSPACE, SESSION).state == "clean"


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    peaks = []
    for number, size in enumerate((2, 16)):
        root = tmp_path / f"{number}"
        directory = root / WORKSPACE / SESSION
        directory.mkdir(parents=True)
        seq = 0
        for segment in range(1, size + 1):
            first = seq + 1
            lines = []
            for seq in range(first, first + 150):
                lines.append(record(seq, {"t": f"{KEY_TEXT if seq % 50 == 0 else ''} " + "words " * 600}))
            put_segment(directory, segment, first, lines)
        tracemalloc.start()
        assert scrubbed(root).records == size * 3
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        intact(directory)
    assert peaks[1] < peaks[0] + 256 * 1024, peaks


# --- damage


def _damage(directory: Path, kind: str) -> None:
    if kind == "flip":
        path = directory / "000001.jsonl"
        data = bytearray(path.read_bytes())
        data[data.index(b'"seq":5,') + 6] = ord("7")
        path.write_bytes(data)
    elif kind == "payload":
        next(path for path in (directory / "payloads").iterdir() if path.read_bytes()[:1] == b"n").write_bytes(b"other")
    elif kind == "no payload":
        next(path for path in (directory / "payloads").iterdir() if path.read_bytes()[:1] == b"n").unlink()
    else:
        (directory / "000002.jsonl").unlink()


@pytest.mark.parametrize("kind", ["flip", "payload", "no payload", "missing"])
def test_a_damaged_session_is_refused_and_forced_it_is_said_in_the_record(tmp_path: Path, kind: str) -> None:
    directory = an_old_session(tmp_path)
    _damage(directory, kind)
    before = contents(tmp_path)
    was = found(directory)
    result = a_scrub(tmp_path).apply(WORKSPACE, SESSION)
    assert (result.state, bool(result.damage), bool(result.hits)) == ("damaged", True, True)
    assert contents(tmp_path) == before
    assert scrubbed(tmp_path, force=True).hits
    assert leaks(tmp_path) == []
    change = change_of(directory)
    assert change.damage > 0
    now = found(directory)
    assert [item.record.seq for item in now[: len(was)]] == [item.record.seq for item in was]
    if kind in ("missing", "no payload"):
        assert reader.verify(directory).damaged, "a hole stays a hole"


def test_lines_that_are_no_records_do_not_outlive_a_forced_scrub(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    path = directory / "000001.jsonl"
    data = path.read_bytes()
    at = data.index(b'{"seq":6,')
    path.write_bytes(data[:at] + f"what {KEY_TEXT} is this\n".encode() + data[at:])
    scrubbed(tmp_path, force=True)
    assert leaks(tmp_path) == []
    assert change_of(directory).damage > 0
