"""From a stored record to its typed event, also where a long body was moved to a payload file and only its head is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from tracewriter.events import KINDS, Event, RawRecord, UnknownEvent, event_of

if TYPE_CHECKING:
    from msgspec import Raw

Plain: TypeAlias = "dict[str, Plain] | list[Plain] | str | int | float | bool | None"

_decoder: Final = msgspec.json.Decoder()
_encoder: Final = msgspec.json.Encoder()


def typed(record: RawRecord) -> Event | UnknownEvent:
    """The record's event. Text that is in a payload file is replaced by its head, so that no fact is lost to its size."""
    event = event_of(record.event, record.data)
    if not isinstance(event, UnknownEvent) or record.event not in KINDS:
        return event
    return event_of(record.event, _encoder.encode(_heads(plain(record.data))))


def plain(data: Raw | bytes) -> Plain:
    """JSON as plain values, None for what is no JSON."""
    try:
        value: Plain = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value


def _heads(value: Plain) -> Plain:
    if isinstance(value, list):
        return [_heads(item) for item in value]
    if isinstance(value, dict):
        head, payload, chars = value.get("head"), value.get("payload"), value.get("chars")
        if isinstance(payload, str) and isinstance(head, str):
            return f"{head}… ({chars} characters, payload {payload})"
        return {name: _heads(item) for name, item in value.items()}
    return value
