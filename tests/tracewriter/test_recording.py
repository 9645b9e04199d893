"""What a recording takes and says of itself: bounds of lines, and nothing secret in the manifest."""

from __future__ import annotations

import os
from pathlib import Path

from tests.fakes import FakeClock
from tests.tracewriter.harness import LIFE, Writer
from tracewriter.config import MAX_LINE, Limits
from tracewriter.disk import RealDisk
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
