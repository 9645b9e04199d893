"""What an answer of the openai-responses wire leaves to be sent back: its items in order, reasoning as it came.

A conversation's message has one text and a list of calls; the wire wants encrypted reasoning right before the very item it
led to, and each message's phase. So the order is kept beside them, as one opaque value, and says nothing the message says:
texts by their length, calls by their place. Where the message was trimmed since, `responses_kept` is no more than a hint.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class KeptItem(Struct, frozen=True, omit_defaults=True):
    """One item: reasoning as it came, or a message of so many characters, or the next one of the calls."""

    reasoning: Raw | UnsetType = UNSET
    text: int = 0
    phase: str = ""
    call: bool = False


class KeptOutput(Struct, frozen=True, omit_defaults=True):
    """All of an answer's items that can go back, in order. `model` is who encrypted the reasoning, if it said so."""

    items: tuple[KeptItem, ...]
    model: str = ""


class _Kept(Struct, frozen=True):
    responses_output: KeptOutput


def encode_kept(output: KeptOutput) -> Raw:
    """The opaque value."""
    return Raw(msgspec.json.encode(_Kept(output)))


def find_kept(opaque: Iterable[Raw]) -> KeptOutput | None:
    """The output among a message's opaque values; those of other wires are passed over."""
    for item in opaque:
        try:
            return msgspec.json.decode(item, type=_Kept).responses_output
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None
