"""Bodies too long for a record, on disk: whole and in place before the record that names them, however they come."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import drop_line_of, line_of, lines_of
from tests.tracewriter.harness import OTHER_LIFE, Answer, Writer, broken_references, drop, events, naming, parts
from tests.tracewriter.payload_writer import (
    ACK_2,
    BODY,
    OTHER,
    P,
    Q,
    disk_of,
    manifest_of,
    slots,
    stored,
    whole,
    with_body,
)
from tracewriter import reader
from tracewriter.journal import Producer
from tracewriter.manifest import chain, digests_head, parse_digests, parse_payload_digests
from tracewriter.payload import seal_of
from tracewriter.protocol import FrameDecoder, Kind, encode

# --- in order


def test_a_body_is_stored_before_the_record_that_names_it_sealed_digested_and_private(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert writer.send(events(1, line_of(1))) == [Answer(Kind.ACK, 1)]
    *some, last = parts(2, P, BODY)
    for frame in some:
        assert writer.send(frame) == [Answer(Kind.ACK, 1)], "each part is answered"
    assert stored(writer) == {}
    assert writer.send(last) == [Answer(Kind.ACK, 1)]
    assert stored(writer) == {P: BODY}
    assert writer.send(events(2, naming(2, P))) == ACK_2
    writer.close()
    directory = writer.directory / "payloads"
    assert (stat.S_IMODE(directory.stat().st_mode), stat.S_IMODE((directory / P).stat().st_mode)) == (0o700, 0o600)
    assert slots(writer) == [(P[:16], len(BODY))]
    digests = (writer.directory / "digests").read_bytes()
    segment, body = parse_digests(digests)[1], hashlib.sha256(BODY).hexdigest()
    assert digests.decode().splitlines() == [
        f"1 {segment} {chain('', segment)}",
        f"{P} {body} {chain(chain('', segment), body)}",
    ]
    assert digests_head(digests) == chain(chain("", segment), body)
    whole(writer, 2)
    assert disk_of(writer).open_fds == []


def test_the_first_record_of_a_session_may_have_a_body_and_is_answered_with_ack_0(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for frame in parts(1, P, BODY):
        assert writer.send(frame) == [Answer(Kind.ACK, 0)]
    assert writer.send(events(1, naming(1, P))) == [Answer(Kind.ACK, 1)]
    writer.close()
    assert slots(writer) == [(P[:16], len(BODY))], "the seal waits for the segment"
    whole(writer, 1)


def test_in_one_receive_everything_keeps_its_place(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    frames = [events(1, lines_of(1, 2)), *with_body(3), events(4, line_of(4)), *with_body(5, Q, OTHER)]
    assert writer.send(*frames) == [Answer(Kind.ACK, 5)]
    names = [operation.name for operation in disk_of(writer).log if operation.kind in ("write", "replace")]
    order = [name for name in names if not name.endswith(".seal")]
    assert order == ["000001.jsonl", f"{P}.part", f"{P}.part", "000001.jsonl", f"{Q}.part", f"{Q}.part", "000001.jsonl"]
    writer.close()
    whole(writer, 5)


def test_the_same_body_is_stored_and_counted_once_over_records_connections_and_writers(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1))
    size = writer.recording.status().bytes
    assert writer.send(*parts(2, P, BODY)) == [Answer(Kind.ACK, 1)]
    assert writer.recording.status().bytes == size
    writer.close(closed=False)  # killed: the producer sends again what was not acknowledged
    writer = Writer(tmp_path, producer=Producer("00000000000000a1", 1, 2))
    assert writer.recording.status().bytes == size
    assert writer.send(*with_body(1), *with_body(2)) == ACK_2
    writer.close()
    assert stored(writer) == {P: BODY}
    assert not [operation for operation in disk_of(writer).log if operation.name.startswith(P)]
    whole(writer, 2)


def test_a_reopened_session_counts_what_is_there_and_the_manifest_tells_both_sizes(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1), *with_body(2, Q, OTHER))
    writer.close()
    segments = sum(path.stat().st_size for path in writer.directory.glob("*.jsonl"))
    manifest = manifest_of(writer)
    assert (manifest.segments_bytes, manifest.payloads_bytes) == (segments, len(BODY) + len(OTHER))
    again = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert again.recording.status().bytes == segments + len(BODY) + len(OTHER)
    again.close()


def test_digests_of_later_closings_are_appended_to_the_chain_payloads_by_id(tmp_path: Path) -> None:
    for life, payloads in ((OTHER_LIFE, (Q, P)), ("00000000000000c3", ("00" * 16,))):
        writer = Writer(tmp_path, producer=Producer(life))
        for payload in payloads:
            writer.send(*with_body(writer.recording.next, payload))
        writer.close()
    data = (writer.directory / "digests").read_bytes()
    names = [line.split(b" ")[0].decode() for line in data.splitlines()]
    assert names == ["1", P, Q, "2", "00" * 16]
    head = ""
    for line in data.decode().splitlines():
        _, digest, said = line.split(" ")
        head = chain(head, digest)
        assert said == head
    assert digests_head(data) == head == reader.verify(writer.directory).head
    assert set(parse_payload_digests(data)) == {P, Q, "00" * 16}


def test_seals_that_found_no_segment_to_go_to_go_to_the_next_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(events(1, line_of(1)))
    writer.journal.rest()
    writer.send(*parts(2, P, BODY))
    writer.journal.seal()
    writer.send(events(2, naming(2, P)))
    writer.close()
    assert (slots(writer, 1), slots(writer, 2)) == ([], [(P[:16], len(BODY))])
    assert seal_of(P, BODY).size == len(BODY)


# --- cut anywhere, lost anywhere


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10_000), max_size=6), st.integers(1, 900))
def test_wherever_the_stream_is_cut_the_same_is_on_disk_and_no_record_comes_before_its_body(
    cuts: list[int], size: int
) -> None:
    frames = [events(1, lines_of(1, 2)), *parts(3, P, BODY, size=size), *parts(3, Q, OTHER, size=size)]
    frames += [events(3, naming(3, P, Q)), events(4, line_of(4)), *with_body(5)]
    stream = b"".join(
        encode(f.kind, channel=1, count=f.count, first=f.first, body=bytes(f.body), flags=f.flags) for f in frames
    )
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    decoder = FrameDecoder()
    root = Path(os.environ.get("TMPDIR", "/tmp")) / f"cut-{os.getpid()}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    writer = Writer(root)
    for start, end in itertools.pairwise(places):
        writer.send(*decoder.feed(stream[start:end]))
        assert broken_references(writer.directory) == []
    assert writer.recording.next == 6
    assert stored(writer) == {P: BODY, Q: OTHER}
    writer.close()
    whole(writer, 5)
    shutil.rmtree(root)


@pytest.mark.parametrize("lost", range(5))
def test_a_record_whose_body_lacks_a_part_is_not_taken_until_it_came_again(lost: int, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    frames = with_body(1)
    assert len(frames) == 6
    if lost == 0:  # without its first part nothing is known of the body: such a record is the producer's own mistake
        writer.send(*frames[1:-1])
        assert stored(writer) == {}
    else:
        said = writer.send(*frames[:lost], *frames[lost + 1 :], events(2, line_of(2)))
        assert said == [Answer(Kind.ACK, 0), Answer(Kind.NACK, 1, 0, "gap", 0)]
        assert writer.send(frames[-1]) == [], "told once"
    assert writer.send(*frames, events(2, line_of(2))) == ACK_2
    writer.close()
    whole(writer, 2)


def test_a_part_of_another_body_or_kind_does_not_go_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    first, second = parts(1, P, BODY, size=900), parts(1, Q, BODY, size=900)
    as_json = parts(1, P, BODY, size=900, json=True)
    for stranger in (second[1], as_json[1], parts(2, P, BODY, size=900)[1]):
        assert writer.send(first[0], stranger) == [Answer(Kind.ACK, 0)]
        assert stored(writer) == {}
    writer.close()


def test_a_record_that_is_dropped_needs_no_body_and_gives_its_memory_back(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*parts(1, P, BODY)[:-1])
    assert writer.send(drop(1, 1, drop_line_of(1, 1)), events(2, line_of(2))) == ACK_2
    assert writer.recording._parts.size == 0
    writer.close()
    whole(writer, 2)


def test_known_parts_are_answered_and_early_ones_come_to_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(*with_body(1))
    assert writer.send(*parts(1, Q, OTHER)) == [Answer(Kind.ACK, 1)]
    assert writer.send(*with_body(7, Q, OTHER)) == [Answer(Kind.ACK, 1), Answer(Kind.NACK, 2, 0, "gap", 0)]
    assert stored(writer) == {P: BODY}
    writer.close()
