"""Session directories with a record of any age, made cheaply: header line, records, perhaps a manifest. No seals."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

WORKSPACE: Final = "0a1b2c3d4e5f60718293a4b5"
NOW: Final = datetime.now(UTC)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def make(root: Path, session: str, days: float, *, workspace: str = WORKSPACE, size: int = 0) -> Path:
    """A session whose last record is so many days old; `size`: about so many bytes of segment."""
    directory = root / workspace / session
    directory.mkdir(parents=True, mode=0o700)
    (directory / "000001.jsonl").write_bytes(content(session, days_ago(days), size))
    return directory


def content(session: str, at: datetime, size: int = 0, seq: int = 1) -> bytes:
    """A segment of one record."""
    stamp = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    header = (
        f'{{"segment":1,"id":"{os.urandom(8).hex()}","session":"{session}","format":"agentd.trace/1",'
        f'"producer":"00f067aa0ba902b7","after":{seq - 1},"why":"open"}}\n'
    )
    record = (
        f'{{"seq":{seq},"ts":"{stamp}","event":"prompt.queue.observed","session":"{session}",'
        f'"data":{{"change":"added","prompt":"0","text":"{"x" * size}"}}}}\n'
    )
    return (header + record).encode()


def manifest(directory: Path, last_at: datetime, segments_bytes: int | None = None) -> None:
    """A manifest, by default about just the segments that are there."""
    size = sum(path.stat().st_size for path in directory.glob("*.jsonl"))
    stamp = last_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    (directory / "manifest.json").write_text(
        f'{{"session":"{directory.name}","workspace":"/w","started_at":null,"last_at":"{stamp}","last":1,'
        f'"segments_bytes":{size if segments_bytes is None else segments_bytes},"closed":true}}'
    )


def live(root: Path) -> set[str]:
    """The sessions that are there."""
    return {path.name for workspace in root.glob("[0-9a-f]*") for path in workspace.iterdir()}


def in_trash(root: Path) -> set[str]:
    """The sessions in the trash."""
    trash = root / ".trash"
    return {name.split("-", 2)[2] for name in os.listdir(trash)} if trash.is_dir() else set()
