"""The slow path of redaction: lines that write ASCII as escapes (`\\u0073k-…`) are decoded and encoded again, plainly.

Hidden text is looked for one level deeper too, in text that is JSON itself; there escapes are undone only where that shows a
secret, so that source code which merely spells `\\u0041` stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from tracewriter.errors import TraceError

ANCHOR: Final = b"\\u00"
HIDES: Final = re.compile(rb"\\u00[2-7]")  # ASCII that needs no escape
_DEEPER: Final = re.compile(r"\\{1,8}u00([2-7][0-9a-fA-F])")
_ASCII: Final = {form % code: chr(code) for code in range(0x20, 0x80) for form in ("%02x", "%02X")}


class CannotRedact(TraceError):
    """A line that hides what it says and cannot be decoded, or is nothing but anchors; it must not be stored."""


class _Pairs(dict[object, object]):
    """An object with every pair it came with: two redacted keys look alike, and neither's value may be lost."""

    def __init__(self, pairs: list[tuple[object, object]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> list[tuple[object, object]]:  # type: ignore[override]
        """What json.dumps writes."""
        return self._pairs


def unhidden(block: bytes, reveals: Callable[[bytes], bool]) -> bytes:
    """The block, those lines written plainly that hold a secret and hide ASCII. reveals: whether JSON, not decoded, holds one."""
    return b"\n".join(_plain(line, reveals) if HIDES.search(line) else line for line in block.split(b"\n"))


def _plain(line: bytes, reveals: Callable[[bytes], bool]) -> bytes:
    """The line without escapes of ASCII, or as it is where that shows no secret."""
    try:
        value = json.loads(line, object_pairs_hook=_Pairs)
        text = json.dumps(_surface(value, reveals), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise CannotRedact("a line that hides text in escapes and cannot be decoded") from exc
    plain = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    return plain if reveals(plain) else line


def _surface(value: object, reveals: Callable[[bytes], bool]) -> object:
    match value:
        case str():
            pieces = _DEEPER.split(value)
            if len(pieces) == 1:
                return value
            pieces[1::2] = [_ASCII[code] for code in pieces[1::2]]
            plain = "".join(pieces)
            return plain if reveals(json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")) else value
        case list():
            return [_surface(item, reveals) for item in value]
        case _Pairs():
            return _Pairs([(_surface(key, reveals), _surface(item, reveals)) for key, item in value.items()])
        case _:
            return value
