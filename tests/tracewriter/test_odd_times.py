"""Times without a zone, or at the calendar's end, are shown and compared like any others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentctl import format as fmt
from tests.strategies import line_of, lines_of
from tests.tracewriter.harness import Writer, events
from tracewriter import reader
from tracewriter.manifest import decode_manifest
from tracewriter.scan import parse_record


def test_a_record_without_a_zone_is_utc() -> None:
    line = b'{"seq":1,"ts":"2026-11-29T20:45:01","event":"x","session":"s","data":{}}'
    parsed = parse_record(line)
    assert parsed is not None
    assert parsed[0].ts == datetime(2026, 11, 29, 20, 45, 1, tzinfo=UTC)
    assert parsed[0].seq == 1


def test_a_manifest_without_zones_is_utc_and_sorts_among_the_others(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 3)))
    writer.close()
    other = writer.directory.parent / "other"
    other.mkdir()
    (other / "000001.jsonl").write_bytes(line_of(1))
    data = (
        b'{"session":"other","workspace":"/w","started_at":"2026-11-29T20:45:01","last_at":"2026-11-29T20:45:01",'
        b'"last":1,"segments_bytes":%d}' % len(line_of(1))
    )
    (other / "manifest.json").write_bytes(data)
    manifest = decode_manifest(data)
    assert manifest is not None
    assert manifest.last_at == manifest.started_at == datetime(2026, 11, 29, 20, 45, 1, tzinfo=UTC)
    entries = reader.list_sessions(tmp_path)
    assert len(entries) == 2
    assert all(entry.last_at is not None and entry.last_at.tzinfo is not None for entry in entries)


@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_none(data: bytes | None) -> None:
    assert decode_manifest(data) is None


@pytest.fixture
def zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    yield
    os.environ.pop("TZ", None)
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("name", ["Asia/Tokyo", "America/New_York", "UTC"])
@pytest.mark.parametrize("at", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_the_ends_of_the_calendar_are_shown_in_every_zone(name: str, at: datetime) -> None:
    os.environ["TZ"] = name
    time.tzset()
    assert fmt.local_time(at).endswith(fmt.local(at).strftime("%M:%S"))
