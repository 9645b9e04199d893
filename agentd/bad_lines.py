"""What can still be said of a line that is no valid request: whose it may be, and whether it is text at all."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

RequestId: TypeAlias = int | str | None


class _Identified(Struct, frozen=True):
    id: RequestId = None


_ID_FIRST: Final = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[\w./-]*"\s*,\s*)*"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{0,200}")\s*[,}]'
)


def likely_id(line: bytes) -> RequestId:
    """The id of a line that is no valid request, or of its beginning, so that its sender need not wait for an answer."""
    for form in (line, _mended(line)):
        try:
            return msgspec.json.decode(form, type=_Identified).id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    found = _ID_FIRST.match(line)
    try:
        return None if found is None else msgspec.json.decode(found[1], type=RequestId)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


BROKEN: Final = "is not UTF-8: it holds bytes, or halves of surrogate pairs, that are no characters"
BROKEN_HINT: Final = "names of files and directories must be UTF-8 to be sent: rename them, or go elsewhere"
_ESCAPE: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def _mended(data: bytes) -> bytes:
    text = data.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)


def broken_text(data: bytes | Raw) -> bool:
    """Whether JSON holds what is no text: bytes that are not UTF-8, or half of a surrogate pair as an escape."""
    data = bytes(data)
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return any(found[1] for found in _ESCAPE.finditer(data))
