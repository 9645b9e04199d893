"""Sessions as they were recorded before there were rules, written by hand; a disk for scrubs that can be made to fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.fakes import FaultyDisk
from tests.strategies import SESSION
from tests.tracewriter.harness import KEY
from tests.tracewriter.payload_sessions import Body, put, put_digests, put_segment, record
from tracewriter import reader
from tracewriter.events import TraceScrubApplied, event_of
from tracewriter.findings import Found, Verdict
from tracewriter.redact import Redactor
from tracewriter.scrub import Scrub, Scrubbed
from tracewriter.scrub_disk import ScrubDisk

WORKSPACE: Final = KEY.workspace_hash
EXACT: Final = "the-exact-value/with é"
_A: Final = "a1B2c3D4e5F6g7H8i9J0" * 4
_HEX: Final = "0123456789abcdef" * 4
# One per family, as it stands in text; what must be gone is the part without the words around it.
CANARIES: Final = (
    *(prefix + _A[:40] for prefix in (
        "ghp_", "gho_", "glpat-", "xapp-1-", "rk_live_", "whsec_", "npm_", "gsk_", "xai-", "pplx-", "nvapi-", "lin_api_", "ntn_",
        "figd_", "hf_", "r8_", "sk-", "sk-ant-api03-", "sk_live_", "hvs.", "dckr_pat_", "glsa_", "sbp_",
    )),
    *(prefix + _HEX[:40] for prefix in ("dapi", "pul-", "dop_v1_")),
    "github_pat_" + _A[:60],
    "AIza" + _A[:35],
    "xoxb-1234567890-" + _A[:24],
    "AKIA" + "ABCDEFGH23456789",
    "SG." + _A[:22] + "." + _A[:43],
    "ya29." + _A[:60],
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + _A[:43],
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----",
)  # fmt: skip
PHRASES: Final = (("Authorization: Bearer ", _A[:30]), ("postgres://user:", "Xk29sPq81z", "@db.example.com/x"))


def secrets() -> list[str]:
    """What no file may hold after a scrub with EXACT: each canary's longest line, and the values of the phrases."""
    found = [
        max(canary.split("\n"), key=len) if "BEGIN" not in canary else canary.split("\n")[1] for canary in CANARIES
    ]
    return [*found, *(phrase[1] for phrase in PHRASES), EXACT]


def texts() -> list[str]:
    """Text around each of them."""
    return [*(f"see {canary} here" for canary in CANARIES), *("".join(phrase) for phrase in PHRASES), f"and {EXACT}."]


def closing(seq: int) -> bytes:
    """The record that ends a recording in order."""
    return record(seq, {"emitted": seq, "counts": {}, "usage": None, "cost_usd": None}, "session.record.finished")


def an_old_session(root: Path, told: Sequence[str] = (), *, closed: bool = True) -> Path:
    """Three segments: the texts plain, in JSON in a string, and in payloads of both kinds; a drop record; a manifest, digests,
    an unfinished tail and an unfinished payload, all with the texts in them."""
    told = list(told) or texts()
    directory = root / WORKSPACE / SESSION
    directory.mkdir(parents=True, mode=0o700)
    all_of_it = "\n".join(told)
    plain = Body((all_of_it + "\n" + "words " * 4000).encode())
    nested = Body(msgspec.json.encode({"texts": told, "n": [1, 2.5, None]}), is_json=True)
    clean = Body(b"nothing in here, " * 1200)
    workspace = f"/home/u/{told[-1]}"
    opening = {
        "format": "agentd.trace/1",
        "agentd": "0.0.1",
        "workspace": workspace,
        "mode": "build",
        "capture": "content",
    }
    one = [record(1, opening, "session.record.started")]
    one += [record(2 + n, {"text": text, "n": n}) for n, text in enumerate(told)]
    put_segment(directory, 1, 1, one, [nested])
    at = len(one) + 1
    inner = msgspec.json.encode({"tool": told}).decode()
    two = [
        record(at, {"json": inner}),
        record(at + 1, {"first": at + 1, "last": at + 4, "count": 4, "reason": "buffer_full"}, "trace.drop.observed"),
    ]
    put_segment(directory, 2, at, two, [plain, clean])
    at += 5
    three = [record(at, {"a": plain.ref, "b": [nested.ref, clean.ref]}), record(at + 1, {"again": plain.ref})]
    put_segment(directory, 3, at, [*three, closing(at + 2)] if closed else three)
    for body in (plain, nested, clean):
        put(directory, body)
    put_digests(directory)
    if not closed:
        with (directory / "000003.jsonl").open("ab") as file:
            file.write(
                b'{"seq":9,"ts":"2026-11-29T20:45:01Z","event":"a.b.observed","data":{"t":"' + all_of_it.encode()
            )
        (directory / "digests").unlink()
        (directory / "payloads" / ("f" * 32 + ".part")).write_bytes(all_of_it.encode())
    fields = {
        "session": SESSION,
        "workspace": workspace,
        "started_at": None,
        "last_at": None,
        "last": 1,
        "segments_bytes": 0,
    }
    (directory / "manifest.json").write_bytes(msgspec.json.encode(fields))
    return directory


def a_scrub(
    root: Path, *, disk: ScrubDisk | None = None, force: bool = False, exact: tuple[str, ...] = (EXACT,)
) -> Scrub:
    return Scrub(root, Redactor(exact), disk=disk or ScrubDisk(), force=force)


def scrubbed(root: Path, *, force: bool = False) -> Scrubbed:
    """One scrub of the session, that did it."""
    result = a_scrub(root, force=force).apply(WORKSPACE, SESSION)
    assert result.state == "scrubbed", result
    return result


def found(directory: Path) -> list[Found]:
    return [item for item in reader.read(directory) if isinstance(item, Found)]


def change_of(directory: Path) -> TraceScrubApplied:
    """What the last scrub recorded."""
    events = [event_of(item.record.event, item.record.data) for item in found(directory)]
    return [event for event in events if isinstance(event, TraceScrubApplied)][-1]


def heads(items: list[Found]) -> list[tuple[object, ...]]:
    """What a scrub changes of no record."""
    records = [(item, item.record) for item in items]
    return [(r.seq, i.end, r.ts, r.event, r.session, r.run, r.op, r.parent, i.segment) for i, r in records]


def contents(root: Path) -> dict[str, bytes]:
    """Every file under the root, locks apart."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != "lock"
    }


def leaks(root: Path, wanted: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(file, secret) for each that is left anywhere under the root, plain or as JSON writes it."""
    wanted = list(wanted) or secrets()
    forms = [(secret, {secret.encode(), msgspec.json.encode(secret)[1:-1]}) for secret in wanted]
    return [
        (name, secret)
        for name, data in contents(root).items()
        for secret, written in forms
        if any(form in data for form in written)
    ]


def intact(directory: Path) -> Verdict:
    verdict = reader.verify(directory)
    assert not verdict.damaged, verdict.notes
    return verdict


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class FaultyScrubDisk(ScrubDisk):
    """A ScrubDisk that calls `before` with each operation's name, and what it is about, and can run out of space."""

    def __init__(self, free: int | None = None) -> None:
        self._faulty = FaultyDisk()
        self._faulty.free = free

    def before(self, operation: str, name: str) -> None:
        """To be overridden."""

    def open_dir(self, name: str, dir_fd: int, *, create: bool) -> int:
        self.before("open_dir", name)
        return self._faulty.open_dir(name, dir_fd, create=create)

    def create(self, name: str, dir_fd: int) -> int:
        self.before("create", name)
        return self._faulty.create(name, dir_fd)

    def append(self, name: str, dir_fd: int) -> int:
        self.before("append", name)
        return self._faulty.append(name, dir_fd)

    def write(self, fd: int, data: bytes) -> int:
        self.before("write", "")
        return self._faulty.write(fd, data)

    def unlink(self, name: str, dir_fd: int) -> None:
        self.before("unlink", name)
        self._faulty.unlink(name, dir_fd)

    def replace(self, old: str, new: str, dir_fd: int) -> None:
        self.before("replace", old)
        self._faulty.replace(old, new, dir_fd)

    def sync(self, fd: int) -> None:
        self.before("sync", "")
        self._faulty.sync(fd)

    def close(self, fd: int) -> None:
        self._faulty.close(fd)

    def exchange(self, one: str, one_fd: int, other: str, other_fd: int) -> None:
        self.before("exchange", one)
        super().exchange(one, one_fd, other, other_fd)

    def rmdir(self, name: str, dir_fd: int) -> None:
        self.before("rmdir", name)
        super().rmdir(name, dir_fd)
