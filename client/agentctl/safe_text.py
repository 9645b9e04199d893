"""Nothing that a model, a tool or a trace says can move the cursor, set a title, hide or reorder text in a terminal.

Every code point is judged alone, so text may be cut anywhere: the pieces joined are the whole made safe.
"""

from __future__ import annotations

import re
from typing import Final

# C0 but \n and \t, DEL, C1, the bidi controls, the line separators that some programs split at, and lone surrogates,
# which no encoding can write.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]",
)


def safe_text(text: str) -> str:
    """The text with every unsafe code point made visible; the rest, \\n and \\t included, is unchanged."""
    return _UNSAFE.sub(_visible, text)


def safe_line(text: str) -> str:
    """Safe text on one line: \\n and \\t are made visible too."""
    return safe_text(text.replace("\r\n", "\n").replace("\n", "␤").replace("\t", " "))


def safe_json(line: str) -> str:
    """The same JSON value with no unsafe code point in it: inside JSON these stand in strings only, where \\uXXXX means them."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
