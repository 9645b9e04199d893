"""From a stored record to its typed event, also where a long body was moved to a payload file and only its head is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from tracewriter.events import Event, RawRecord, UnknownEvent, event_of
from tracewriter.expand import heads

if TYPE_CHECKING:
    from msgspec import Raw

Plain: TypeAlias = "dict[str, Plain] | list[Plain] | str | int | float | bool | None"

_decoder: Final = msgspec.json.Decoder()


def typed(record: RawRecord) -> Event | UnknownEvent:
    """The record's event. What is still in a payload file is shown by its head, so that no fact is lost to its size."""
    return event_of(record.event, heads(record.data))


def plain(data: Raw | bytes) -> Plain:
    """JSON as plain values, None for what is no JSON."""
    try:
        value: Plain = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value
