"""Group E of the faults: contents that break encoders, decoders, line splitters and terminals, from record() to reader.read."""

from __future__ import annotations

import json
from datetime import datetime

import msgspec

from tests.faults.contents import CONTENTS, CONTROLS, SEPARATORS
from tests.faults.harness import Lab, check
from tracewriter.config import MAX_LINE
from tracewriter.events import event_of
from tracewriter.findings import Found
from tracewriter.payload import PayloadRef
from tracewriter.reader import read


def _through(lab: Lab, row: str) -> list[dict[str, object]]:
    """The data of the hostile records as the reader gives them, after the common set has been checked."""
    lab.writer()
    recorder = lab.recorder(content=row, count=50, pace=1000)
    recorder.wait_emitted(51 + len(CONTENTS[row]))
    result = check(lab.directory(), recorder.settle().sessions["s1"])
    assert (result.dropped, result.verdict.notes) == (0, ())
    found = [item for item in read(lab.directory()) if isinstance(item, Found)]
    hostile = found[1 : 1 + len(CONTENTS[row])]
    for item in found:
        assert len(item.line) < MAX_LINE
        assert isinstance(item.record.ts, datetime)
        item.line.decode("utf-8")
        event_of(item.record.event, item.record.data)
    lines = [line for path in lab.segments() for line in path.read_bytes().split(b"\n")[1:-1]]
    assert len(lines) == len(found)
    return [json.loads(item.line)["data"] for item in hostile]


def test_e1_lone_surrogates_are_replaced_and_marked(lab: Lab) -> None:
    first, second, raw = _through(lab, "e1")
    assert first["output"] == "lone \ufffd surrogate"
    assert second["output"] == "\ufffd"
    assert "\ud800" not in str(raw["input"])
    for data in (first, second):
        assert data["repaired"] == 1


def test_e2_invalid_utf8_is_replaced(lab: Lab) -> None:
    first, raw = _through(lab, "e2")
    assert first["output"] == "caf\ufffd"
    assert "\udcff" not in str(raw["input"])


def test_e3_numbers_that_json_cannot_say_are_explicit(lab: Lab) -> None:
    values, text, _ = _through(lab, "e3")
    inner = json.dumps(values["input"]).lower()
    assert all(word in inner for word in ("nan", "inf", "-inf"))
    assert "nan" in json.dumps(text["input"]).lower()


def test_e5_deep_nesting_is_cut_and_readers_survive(lab: Lab) -> None:
    for data in _through(lab, "e5"):
        shown = json.dumps(data["input"]).replace("[left out", "")  # how deep a decoder looks differs by Python version
        assert isinstance(data["input"], str) or shown.count("[") <= 64


def test_e6_only_lf_ends_a_line(lab: Lab) -> None:
    separators, bom = _through(lab, "e6")
    assert separators["output"] == SEPARATORS
    assert bom["output"] == "\ufeffbom"


def test_e7_control_characters_are_stored_as_they_are_and_shown_by_safe_text_only(lab: Lab) -> None:
    (data,) = _through(lab, "e7")
    assert data["output"] == CONTROLS


def test_e8_what_cannot_be_serialised_becomes_a_record_all_the_same(lab: Lab) -> None:
    assert len(_through(lab, "e8")) == len(CONTENTS["e8"])


def test_e9_a_64_mib_string_is_cut_to_4_mib_and_its_length_told_and_shorter_ones_are_whole(lab: Lab) -> None:
    first, second, third = (msgspec.convert(data["output"], PayloadRef) for data in _through(lab, "e9"))
    bodies = {path.name: path.read_text() for path in (lab.directory() / "payloads").iterdir()}
    cut = bodies[first.payload]
    assert cut.strip("x") == f"…[cut: {64 * 1024 * 1024} characters]"
    assert 4 * 1024 * 1024 - 2048 < len(cut) == first.chars
    assert bodies[second.payload] == "é" * 300_000
    # nothing but escapes: the redactor may give such a body up, and then it is not stored as it is
    assert bodies[third.payload] in ("\0" * 200_000, "[redacted:undecodable]")
