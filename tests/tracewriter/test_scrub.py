"""Scrub: what the rules of today find in yesterday's traces is gone, and everything else is what it was."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import START, FakeClock
from tests.strategies import SESSION, lines_of
from tests.tracewriter.harness import KEY, OTHER_LIFE, Writer, events
from tests.tracewriter.payload_sessions import PLANTED, Body, plant, put, put_digests, put_segment, record
from tests.tracewriter.scrub_sessions import (
    CANARIES,
    EXACT,
    WORKSPACE,
    FaultyScrubDisk,
    a_scrub,
    an_old_session,
    change_of,
    closing,
    contents,
    found,
    heads,
    intact,
    leaks,
    open_fds,
    scrubbed,
    secrets,
)
from tracewriter import lock, reader
from tracewriter.config import Limits
from tracewriter.disk import REAL_DISK
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Journal, Producer
from tracewriter.manifest import chain, decode_manifest, parse_digests
from tracewriter.payload_files import SessionPayloads
from tracewriter.redact import Redactor
from tracewriter.scan import parse_header
from tracewriter.scrub import RETURN_S, Scrub, rules_version
from tracewriter.scrub_disk import SCRUB, remove_leftovers
from tracewriter.scrub_lines import scrub_lines
from tracewriter.trash import Traces

KEY_TEXT = CANARIES[0]


@pytest.mark.parametrize("closed", [True, False])
def test_no_file_under_the_root_holds_a_secret_afterwards(tmp_path: Path, closed: bool) -> None:
    directory = an_old_session(tmp_path, closed=closed)
    before = found(directory)
    planted = {secret for _, secret in leaks(tmp_path)}
    assert planted == set(secrets()), "all of them were there"
    was = open_fds()
    result = scrubbed(tmp_path)
    assert leaks(tmp_path) == []
    assert open_fds() == was
    verdict = intact(directory)
    assert verdict.payloads_verified == verdict.payloads == 3
    assert verdict.verified == verdict.records
    after = found(directory)
    assert heads(after[: len(before)]) == heads(before)
    assert [item.state for item in after] == ["verified"] * len(after)
    assert [item.record.event for item in after[len(before) :]] == [
        "session.record.started",
        "trace.scrub.applied",
        "session.record.finished",
    ]
    assert len(result.hits) >= 25
    assert result.hits["exact"] > 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [WORKSPACE]
    assert not list(directory.glob("payloads/*.part"))


def test_records_and_bodies_are_what_they_were_up_to_markers(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    before = found(directory)
    bodies = {path.name: path.read_bytes() for path in (directory / "payloads").iterdir()}
    scrubbed(tmp_path)
    redactor = Redactor((EXACT,))
    expected = [redactor.redact(item.line + b"\n")[:-1] for item in before]
    assert [item.line for item in found(directory)[: len(before)]] == expected
    now = {path.name: path.read_bytes() for path in (directory / "payloads").iterdir()}
    assert now.keys() == bodies.keys()
    assert sum(now[name] == bodies[name] for name in now) == 1, "the clean one"
    nested = next(body for body in now.values() if body.startswith(b"{"))
    assert msgspec.json.decode(nested)["n"] == [1, 2.5, None]


def test_what_was_changed_is_a_record_with_bothheads(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    old_head = intact(directory).head
    result = scrubbed(tmp_path)
    change, verdict = change_of(directory), intact(directory)
    assert (change.old_head, result.old_head, result.new_head) == (old_head, old_head, verdict.head)
    assert (change.hits, change.records, change.payloads, change.damage) == (
        result.hits,
        result.records,
        result.payloads,
        0,
    )
    own = parse_digests((directory / "digests").read_bytes())[4]
    assert verdict.head == chain(change.new_head, own), "new_head, and then only the segment that says so"
    assert change.rules == rules_version()
    assert verdict.emitted == verdict.records + verdict.dropped == verdict.last
    assert [note.kind for note in verdict.notes] == ["dropped"], "closed in order before, and again"


def test_a_recording_that_was_not_closed_is_not_made_to_look_closed(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path, closed=False)
    last = found(directory)[-1].end
    scrubbed(tmp_path)
    missing = [note for note in intact(directory).notes if note.kind == "end_missing"]
    assert [(note.last, "an earlier recording" in note.message) for note in missing] == [(last, True)]


def test_headers_stay_but_for_their_ids_and_seals_are_bound_to_the_new_ones(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    before = [parse_header(path.read_bytes().split(b"\n")[0]) for path in sorted(directory.glob("*.jsonl"))]
    scrubbed(tmp_path)
    after = [parse_header(path.read_bytes().split(b"\n")[0]) for path in sorted(directory.glob("*.jsonl"))]
    for old, new in zip(before, after, strict=False):
        assert old is not None
        assert new is not None
        assert old.id != new.id
        assert msgspec.structs.replace(old, id=new.id) == new
    own = after[-1]
    assert own is not None
    assert (own.segment, own.why) == (4, "scrub")


def test_a_scrub_makes_no_session_younger(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    with Traces(tmp_path) as traces:
        before = traces.scan()[0]
        scrubbed(tmp_path)
        after = traces.scan()[0]
    assert [one.last_at for one in after] == [one.last_at for one in before]
    assert [one.doubt for one in after] == [""]
    manifest = decode_manifest((directory / "manifest.json").read_bytes())
    assert manifest is not None
    assert (manifest.closed, manifest.last) == (True, found(directory)[-1].end)
    assert manifest.segments_bytes == sum(path.stat().st_size for path in directory.glob("*.jsonl"))
    assert "[redacted:exact]" in manifest.workspace
    entry = reader.list_sessions(tmp_path)[0]
    assert entry.last_at == found(directory)[0].record.ts


def test_a_second_scrub_finds_nothing_and_writes_nothing(tmp_path: Path) -> None:
    an_old_session(tmp_path)
    scrubbed(tmp_path)
    before = contents(tmp_path)
    result = a_scrub(tmp_path).apply(WORKSPACE, SESSION)
    assert (result.state, result.hits) == ("clean", {})
    assert contents(tmp_path) == before


def test_another_exact_value_is_a_second_change_on_the_first(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    first = scrubbed(tmp_path)
    result = a_scrub(tmp_path, exact=("nothing in here",)).apply(WORKSPACE, SESSION)
    assert result.state == "scrubbed"
    assert change_of(directory).old_head == first.new_head
    assert [i.record.event for i in found(directory)].count("trace.scrub.applied") == 2
    assert intact(directory).emitted == intact(directory).last
    assert leaks(tmp_path, ["nothing in here"]) == []


def test_a_look_counts_what_the_scrub_then_finds_and_touches_nothing(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in [tmp_path, *tmp_path.rglob("*")]}
    looked = a_scrub(tmp_path).look(WORKSPACE, SESSION)
    assert looked.state == "found"
    assert {
        path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in [tmp_path, *tmp_path.rglob("*")]
    } == before
    done = scrubbed(tmp_path)
    assert (looked.hits, looked.records, looked.payloads) == (done.hits, done.records, done.payloads)
    assert a_scrub(tmp_path).look(WORKSPACE, SESSION).state == "clean"
    intact(directory)


def test_a_secret_in_the_workspaces_path_alone_is_found(tmp_path: Path) -> None:
    directory = tmp_path / WORKSPACE / SESSION
    directory.mkdir(parents=True)
    put_segment(directory, 1, 1, [record(1, {"n": 1}), closing(2)])
    fields = {
        "session": SESSION,
        "workspace": f"/w/{KEY_TEXT}",
        "started_at": None,
        "last_at": None,
        "last": 2,
        "segments_bytes": 0,
    }
    (directory / "manifest.json").write_bytes(msgspec.json.encode(fields))
    assert scrubbed(tmp_path).records == 0
    assert leaks(tmp_path, [KEY_TEXT]) == []
    assert a_scrub(tmp_path).apply(WORKSPACE, SESSION).state == "clean"


# --- who else is there


def test_a_session_that_is_recorded_is_left_alone(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    before = contents(tmp_path)
    fd = os.open(directory, os.O_RDONLY)
    held = lock.acquire(fd)
    for work in (a_scrub(tmp_path).apply, a_scrub(tmp_path).look):
        result = work(WORKSPACE, SESSION)
        assert (result.state, "right now" in result.reason) == ("active", True)
    os.close(held)
    os.close(fd)
    assert contents(tmp_path) == before


def test_the_lock_is_held_until_the_old_files_are_gone(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    tried: list[str] = []

    class Meddling(FaultyScrubDisk):
        def before(self, operation: str, name: str) -> None:
            second = a_scrub(tmp_path).apply(WORKSPACE, SESSION)
            tried.append(second.state)
            with Traces(tmp_path) as traces, pytest.raises(SessionUnavailable):
                traces.discard(next(iter(traces.scan()[0])))
            unlocked = operation in ("open_dir", "rmdir")  # not locked yet, when its age protects it; or empty
            root_fd = os.open(tmp_path, os.O_RDONLY)
            assert remove_leftovers(root_fd, time.time() + (-60 if unlocked else 60)) == 0
            with pytest.raises(SessionUnavailable) as refused:
                Journal.open(REAL_DISK, root_fd, KEY, Producer(OTHER_LIFE), Limits())
            os.close(root_fd)
            assert (refused.value.code, refused.value.retry_ms) == ("locked", lock.RETRY_MS)

    result = a_scrub(tmp_path, disk=Meddling()).apply(WORKSPACE, SESSION)
    assert result.state == "scrubbed", result.reason
    assert set(tried) == {"active"}
    assert len(tried) > 50
    intact(directory)


def test_what_was_not_closed_just_now_may_be_gone_on_with(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path, closed=False)
    clock = FakeClock(START + timedelta(seconds=RETURN_S - 1))
    scrub = Scrub(tmp_path, Redactor((EXACT,)), clock=clock)
    assert scrub.apply(WORKSPACE, SESSION).state == "active"
    assert scrub.look(WORKSPACE, SESSION).state == "active"
    assert Scrub(tmp_path, Redactor(), clock=clock, force=True).look(WORKSPACE, SESSION).state == "found"
    clock.advance(2)
    assert scrub.apply(WORKSPACE, SESSION).state == "scrubbed"
    intact(directory)


def test_the_next_writer_goes_on_after_the_scrubs_records(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, lines_of(1, 3)))
    writer.close()
    directory = tmp_path / KEY.workspace_hash / SESSION
    block = (directory / "000001.jsonl").read_bytes()
    assert b"text of" in block
    result = Scrub(tmp_path, Redactor(("text of",))).apply(KEY.workspace_hash, SESSION)
    assert result.state == "scrubbed"
    writer = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert writer.recording.next == 7
    writer.send(events(7, lines_of(7, 2)))
    writer.close()
    assert [item.record.seq for item in found(directory)] == list(range(1, 9))
    intact(directory)


def test_a_pinned_session_is_scrubbed_and_stays_pinned(tmp_path: Path) -> None:
    directory = an_old_session(tmp_path)
    (directory / "pinned").write_text(f"because of {KEY_TEXT}")
    assert scrubbed(tmp_path).pinned
    assert (directory / "pinned").read_text() == "because of [redacted:github]"
    assert (directory / "pinned").stat().st_mode & 0o777 == 0o600


# --- what is not as a writer makes it


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize(
    "name", ["000002.jsonl", "000009.seal", "manifest.json", "digests", "pinned", "notes.txt", "payloads/" + "e" * 32]
)
def test_what_is_planted_in_the_directory_is_not_followed(tmp_path: Path, kind: str, name: str) -> None:
    root = tmp_path / "root"
    directory = an_old_session(root)
    (directory / name).unlink(missing_ok=True)
    outside = tmp_path / "outside"
    plant(kind, directory / name, outside)
    before = contents(root)
    for force in (False, True):
        result = a_scrub(root, force=force).apply(WORKSPACE, SESSION)
        assert (result.state, name in result.reason) == ("failed", True)
    assert contents(root) == before
    assert outside.read_bytes() == b"a secret"


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("place", [SCRUB, f"{SCRUB}/{WORKSPACE}", f"{SCRUB}/{WORKSPACE}/{SESSION}"])
def test_what_is_planted_where_a_scrub_works_is_not_followed(tmp_path: Path, kind: str, place: str) -> None:
    root = tmp_path / "root"
    directory = an_old_session(root)
    outside = tmp_path / "outside"
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    plant(kind, root / place, outside)
    result = a_scrub(root).apply(WORKSPACE, SESSION)
    assert result.state == ("scrubbed" if kind == "directory" else "failed")
    assert outside.read_bytes() == b"a secret"
    intact(directory)
    assert bool(leaks(root)) == (result.state == "failed")


def test_links_in_a_leftover_are_removed_and_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    an_old_session(root)
    left = root / SCRUB / WORKSPACE / SESSION
    left.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (left / "payloads").symlink_to(outside)
    (left / "deep").mkdir()
    (left / "deep" / "link").symlink_to(outside)
    os.mkfifo(left / "000001.jsonl")
    scrubbed(root)
    assert (outside / "mine").read_text() == "mine"
    assert not (root / SCRUB).exists()


def test_leftovers_are_removed_by_whoever_sweeps_when_nobody_holds_them(tmp_path: Path) -> None:
    an_old_session(tmp_path)
    left = tmp_path / SCRUB / WORKSPACE / SESSION
    left.parent.mkdir(parents=True)
    (tmp_path / WORKSPACE / SESSION).rename(left)
    root_fd = os.open(tmp_path, os.O_RDONLY)
    assert remove_leftovers(root_fd, time.time() - 60) == 0, "too young"
    assert reader.list_sessions(tmp_path) == []
    assert remove_leftovers(root_fd, time.time() + 60) == 1
    os.close(root_fd)
    assert leaks(tmp_path) == []
    assert not (tmp_path / SCRUB).exists()


# --- any contents

_pieces = st.lists(
    st.sampled_from(["words ", "\n", '"', "\\", "é", "\u2028", "{", *CANARIES[:8], EXACT, "\x1b[0m"]), max_size=6
)
_texts = st.lists(_pieces.map("".join), min_size=1, max_size=8)


@given(_texts, st.booleans(), st.integers(1, 7))
def test_any_session_is_what_it_was_up_to_markers(texts: list[str], as_json: bool, cut: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        directory = root / WORKSPACE / SESSION
        directory.mkdir(parents=True)
        body = Body(msgspec.json.encode(texts) if as_json else "".join(texts).encode(), as_json)
        lines = [record(n, {"t": text, "u": {"v": [text, n]}}) for n, text in enumerate(texts, 1)]
        lines += [record(len(lines) + 1, {"p": body.ref})]
        lines += [closing(len(lines) + 1)]
        cut = min(cut, len(lines) - 1)
        put_segment(directory, 1, 1, lines[:cut], [body])
        put_segment(directory, 2, cut + 1, lines[cut:])
        put(directory, body)
        put_digests(directory)
        before, redactor = found(directory), Redactor((EXACT,))
        looked = a_scrub(root).look(WORKSPACE, SESSION)
        result = a_scrub(root).apply(WORKSPACE, SESSION)
        has = any(
            canary in "".join(texts) or any(canary in text for text in texts) for canary in (*CANARIES[:8], EXACT)
        )
        assert result.state == ("scrubbed" if looked.hits else "clean")
        assert looked.hits or not has
        after = found(directory)
        wanted = [scrub_lines(item.line + b"\n", redactor).data[:-1] for item in before]
        assert [item.line for item in after[: len(before)]] == wanted
        assert len(after) - len(before) == (3 if looked.hits else 0)
        intact(directory)
        with SessionPayloads(directory) as payloads:
            stored = payloads.find(body.ref)
        assert isinstance(stored, bytes)
        if as_json:
            assert len(msgspec.json.decode(stored)) == len(texts)
        assert a_scrub(root).apply(WORKSPACE, SESSION).state == "clean"
