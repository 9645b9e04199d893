"""What a reader holds in memory is bounded by its own limits, not by what seal files claim."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from tests.strategies import SESSION, lines_of
from tracewriter import reader
from tracewriter.config import MIB
from tracewriter.segment import Header, SealEntry, encode_entry, encode_slot0

SEGMENT_ID = 255
HEAD = msgspec.json.encode(Header(1, f"{SEGMENT_ID:016x}", SESSION, "agentd.trace/1", "test", 0, "open")) + b"\n"
RECORDS = 9_000


def a_session(root: Path, data: bytes, entries: list[SealEntry]) -> Path:
    directory = root / SESSION
    directory.mkdir()
    (directory / "000001.jsonl").write_bytes(data)
    slots = b"".join(encode_entry(entry, SEGMENT_ID) for entry in entries)
    (directory / "000001.seal").write_bytes(encode_slot0(1, SEGMENT_ID) + slots)
    return directory


def peak_of_verify(directory: Path) -> tuple[reader.Verdict, int]:
    tracemalloc.start()
    try:
        verdict = reader.verify(directory)
        return verdict, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def long_data() -> bytes:
    data = HEAD + lines_of(1, RECORDS, "x" * 1000)
    assert len(data) > 8 * MIB
    return data


def test_a_long_range_is_verified_line_by_line(long_data: bytes, tmp_path: Path) -> None:
    entry = SealEntry(0, len(long_data), RECORDS, RECORDS, xxh3_64_intdigest(long_data))
    verdict = reader.verify(a_session(tmp_path, long_data, [entry]))
    assert (verdict.damaged, verdict.records, verdict.verified) == (False, RECORDS, RECORDS)


def test_a_changed_byte_in_a_long_range_is_damage_and_hides_no_other_line(long_data: bytes, tmp_path: Path) -> None:
    entry = SealEntry(0, len(long_data), RECORDS, RECORDS, xxh3_64_intdigest(long_data))
    changed = bytearray(long_data)
    changed[len(changed) // 2] ^= 1
    verdict = reader.verify(a_session(tmp_path, bytes(changed), [entry]))
    assert (verdict.damaged, verdict.verified) == (True, 0)
    assert verdict.records >= RECORDS - 1


def test_a_range_of_a_sparse_file_costs_no_memory(tmp_path: Path) -> None:
    size = 64 * MIB
    data = HEAD + lines_of(1, 2)
    entry = SealEntry(0, size, 2, 2, xxh3_64_intdigest(data + bytes(size - len(data))))
    directory = a_session(tmp_path, data, [entry])
    os.truncate(directory / "000001.jsonl", size)
    verdict, peak = peak_of_verify(directory)
    assert (verdict.records, verdict.verified) == (2, 2)
    assert peak < 16 * MIB


def test_seal_slots_beyond_what_a_segment_can_have_are_not_read(tmp_path: Path) -> None:
    data = HEAD + lines_of(1, 2)
    entry = SealEntry(0, len(data), 2, 2, xxh3_64_intdigest(data))
    directory = a_session(tmp_path, data, [entry])
    os.truncate(directory / "000001.seal", 64 * MIB)
    verdict, peak = peak_of_verify(directory)
    assert (verdict.damaged, verdict.records, verdict.verified) == (False, 2, 2)
    assert peak < 24 * MIB
