"""Every kind of event: its name, its shape on the wire, and what becomes of kinds nobody knows."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.strategies import SESSION, events, plain_json, structs, times
from tracewriter import jsonl
from tracewriter.events import (
    DELTAS,
    KINDS,
    NAMES,
    Event,
    Record,
    UnknownEvent,
    Usage,
    event_of,
    name_of,
    name_of_class,
)
from tracewriter.scan import parse_record

PHASES = {"started", "finished", "failed", "observed", "requested", "decided", "applied", "delta"}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_named_entity_operation_phase_after_its_class_and_explained(name: str) -> None:
    cls = KINDS[name]
    assert "".join(part.capitalize() for part in name.split(".")) == cls.__name__
    assert re.fullmatch(r"[a-z]+\.[a-z]+\.[a-z]+", name)
    assert name.rpartition(".")[2] in PHASES
    assert cls.__doc__
    assert NAMES[cls] == name_of_class(cls) == name


def test_deltas_are_what_only_streams_record() -> None:
    assert {NAMES[cls] for cls in DELTAS} == {name for name in KINDS if name.endswith(".delta")}


@given(events, times)
def test_an_event_survives_the_wire(event: Event, ts: object) -> None:
    record = Record(seq=1, ts=ts, event=name_of(event), session=SESSION, data=event)  # type: ignore[arg-type]
    line = msgspec.json.encode(record)
    keys = list(msgspec.json.decode(line))
    assert keys == ["seq", "ts", "event", "session", "data"]
    parsed = parse_record(line)
    if name_of(event) != "trace.drop.observed":
        assert parsed is not None
        assert msgspec.json.encode(event_of(parsed[0].event, parsed[0].data)) == msgspec.json.encode(event)


@given(st.text(max_size=20) | st.sampled_from(sorted(KINDS)), plain_json)
def test_what_this_version_does_not_know_is_kept_as_it_is(name: str, data: object) -> None:
    raw = jsonl.raw(data)
    event = event_of(name, raw)
    if isinstance(event, UnknownEvent):
        assert bytes(event.data) == bytes(raw)
    else:
        assert name in KINDS


@given(events)
def test_a_newer_versions_fields_are_ignored(event: Event) -> None:
    data = msgspec.json.decode(msgspec.json.encode(event)) | {"added_later": {"x": 1}}
    assert msgspec.json.encode(event_of(name_of(event), Raw(msgspec.json.encode(data)))) == msgspec.json.encode(event)


@given(st.lists(structs(Usage), min_size=1, max_size=4))
def test_usage_adds_up_and_what_nobody_said_stays_unknown(usages: list[Usage]) -> None:
    total = sum(usages, Usage())
    assert total.input_tokens == sum(usage.input_tokens for usage in usages)
    said = [usage.cache_read_tokens for usage in usages if usage.cache_read_tokens is not None]
    assert total.cache_read_tokens == (sum(said) if said else None)
