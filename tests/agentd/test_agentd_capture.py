from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from msgspec import Raw

from agentd.capture import metadata_of
from tracewriter.events import KINDS, Context, Event, Failure, ToolCall

SECRET = "TOPSECRET"
# What is no content: names, ids, settings, the place where the work is done.
KEPT = {
    "format", "agentd", "workspace", "mode", "capture", "change", "origin", "prompt", "model", "provider", "continues",
    "outcome", "tools", "purpose", "stop_reason", "finish", "cut_tool_calls", "kind", "id", "name", "setting", "value",
    "reason", "limit", "counts",
}  # fmt: skip


def filled(cls: type, field: msgspec.structs.FieldInfo) -> object:
    """A value for a field, with the secret wherever content can be."""
    text = "kept" if field.name in KEPT else SECRET
    kinds = get_args(field.type) or (field.type,)
    if field.type is Context:
        secret = Raw(f'"{SECRET}"'.encode())
        return Context(0, (secret,), 5, 1, "op", ((0, secret),), SECRET, SECRET, (secret,), SECRET)
    if field.type is Failure:
        return Failure("kind", SECRET, SECRET, 500)
    if field.type is Raw:
        return Raw(f'"{SECRET}"'.encode())
    if ToolCall in kinds:
        return (ToolCall("id", "name", Raw(f'"{SECRET}"'.encode())),)
    if getattr(field.type, "__origin__", None) is tuple:
        return (text,)
    if str in kinds and getattr(field.type, "__origin__", None) is not dict:
        return text
    return {} if getattr(field.type, "__origin__", None) is dict else msgspec.convert(1, field.type, strict=False)


@pytest.mark.parametrize("cls", list(KINDS.values()), ids=list(KINDS))
def test_no_kind_of_event_carries_content_in_metadata_mode(cls: type) -> None:
    values = {}
    for field in msgspec.structs.fields(cls):
        values[field.name] = None if field.name in ("usage", "cost_usd") else filled(cls, field)
    event: Event = cls(**values)
    kept = metadata_of(event)
    assert kept is None or SECRET not in msgspec.json.encode(kept).decode()
    assert kept is None or type(kept) is cls
