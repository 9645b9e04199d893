"""What a recording takes and says of itself: bounds of lines, and nothing secret in the manifest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.strategies import lines_of
from tests.tracewriter.harness import LIFE, OTHER_LIFE, Writer
from tracewriter.config import MAX_LINE, Limits
from tracewriter.disk import RealDisk
from tracewriter.errors import SessionUnavailable
from tracewriter.journal import Journal, Key, Producer
from tracewriter.protocol import Frame, Kind
from tracewriter.recorder import Recording
from tracewriter.redact import Redactor


def test_a_secret_in_the_workspaces_path_is_not_in_the_manifest(tmp_path: Path) -> None:
    for secrets, path in (((), "/w/sk-abcdEFGH1234567890zz/x"), (("hunter2-hunter2",), "/w/hunter2-hunter2")):
        key = Key("s1", path)
        fd = os.open(tmp_path, os.O_RDONLY)
        journal = Journal.open(RealDisk(), fd, key, Producer(LIFE), Limits())
        recording = Recording(
            channel=1,
            journal=journal,
            reopen=lambda last, journal=journal: journal,  # type: ignore[misc]
            redactor=Redactor(secrets),
            limits=Limits(),
            clock=FakeClock(),
        )
        manifest = recording.manifest(journal, closed=True)
        assert "[redacted:" in manifest.workspace
        assert manifest.workspace.startswith("/w/")
        journal.close()
        os.close(fd)


def test_a_line_over_the_bound_is_refused_and_its_neighbours_are_taken(tmp_path: Path) -> None:
    with_long = b'{"seq":1,"x":"%s"}\n' % (b"x" * MAX_LINE)
    writer = Writer(tmp_path)
    answers = writer.send(Frame(Kind.EVENTS, 1, 1, 1, with_long))
    assert [answer.code for answer in answers if answer.kind is Kind.NACK] == ["malformed"]
    many = b"".join(b'{"seq":%d,"x":"%s"}\n' % (seq, b"x" * 9000) for seq in range(1, 41))
    answers = writer.send(Frame(Kind.EVENTS, 1, 40, 1, many))
    assert [(answer.kind, answer.first) for answer in answers] == [(Kind.ACK, 40)]
    writer.close()


@pytest.mark.parametrize("after", [9, 2**61, 2**63 - 1, 2**64 - 1, 99_999_999_999_999_999_999])
def test_a_number_that_a_header_claims_alone_moves_no_session(after: int, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.send(Frame(Kind.EVENTS, 1, 5, 1, lines_of(1, 5)))
    writer.close()
    (segment,) = tmp_path.glob("*/*/000001.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b'"after":0', b'"after":%d' % after, 1))
    planted = (
        b'{"segment":2,"id":"00000000000000aa","session":"s","format":"x","producer":"b","after":%d,"why":"open"}\n'
    )
    segment.with_name("000002.jsonl").write_bytes(planted % after)
    again = Writer(tmp_path, producer=Producer(OTHER_LIFE))
    assert again.recording.next == 6
    again.close()


@pytest.mark.parametrize("claim", [2**62 + 1, 2**64 - 1, 2**70, -1])
def test_numbers_that_cannot_be_are_refused_for_good_at_open(claim: int, tmp_path: Path) -> None:
    for producer in (Producer(LIFE, claim, 5), Producer(LIFE, 5, claim)):
        with pytest.raises(SessionUnavailable) as refused:
            Writer(tmp_path, producer=producer)
        assert (refused.value.code, refused.value.retry_ms) == ("malformed", -1)
