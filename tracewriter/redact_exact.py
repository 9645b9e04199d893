"""Exact values to redact: what a session names as secret when it is opened. Kept in memory only.

A value is known as it is, as JSON text escapes it (up to three times over), as URLs do, and inside base64 (a user:password pair
in a Basic header, a kubernetes secret). It may look like anything, a number or half an escape too: so these are the only
matches that are checked for standing in a string.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, quote_plus

import msgspec
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind
from msgspec import Raw

from tracewriter.redact_hidden import CannotRedact

_FEW: Final = 1024
_DFA_BYTES: Final = 16 * 1024  # of all forms together
_BYTES_PER_HIT: Final = 64  # a line with more values than that is no text, and would take longer than its turn
MIN_EXACT: Final = 6  # shorter exact values would eat ordinary text
_MIN_BASE64: Final = 12  # characters that do not depend on what stands beside the value
_DEPTHS: Final = 3  # JSON in text in JSON, as tools print it
_UPPER: Final = re.compile(r"\\u[0-9a-f]{4}")
_PERCENT: Final = re.compile(r"%[0-9A-F]{2}")
_OUTSIDE: Final = re.compile(rb"[0-9eE+.,:\[\]{}truefalsn -]+\Z")  # what valid JSON may hold outside strings
_STRING_REST: Final = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+')
_HEAD: Final = re.compile(
    rb'\{"seq":[0-9]{1,19},"ts":"[0-9TZ:.+-]{0,40}","event":"[a-z0-9._]{0,100}","session":"[a-z0-9_-]{1,64}"'
)
_LONGEST_HEAD: Final = 300
_HALF_WIDE: Final = re.compile(rb"\\u[0-9a-fA-F]{0,3}\Z")
_syntax: Final = msgspec.json.Decoder(Raw)


def in_head(block: bytes, at: int) -> bool:
    """Whether a position is in the head of a record."""
    start = block.rfind(b"\n", max(0, at - _LONGEST_HEAD), at) + 1
    if start == 0 and at > _LONGEST_HEAD:
        return False
    head = _HEAD.match(block, start)
    return head is not None and at < head.end()


def splits_escape(block: bytes, at: int) -> bool:
    """Whether a position is inside an escape of JSON: replacing from here on would leave half of it."""
    if b"\\" not in block[max(0, at - 6) : at]:
        return False
    wide = _HALF_WIDE.search(block, max(0, at - 5), at)
    slash = wide.start() if wide else at - 1
    if block[slash] != 0x5C:
        return False
    first = slash
    while first > 0 and block[first - 1] == 0x5C:
        first -= 1
    return (slash - first) % 2 == 0


class _Strings:
    """Whether positions of a block are inside strings of its JSON. Ask in ascending order: then all cost one pass."""

    __slots__ = ("_at", "_block", "_end", "_inside", "_json", "_start")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._start = self._end = self._at = 0
        self._inside = False
        self._json: bool | None = None

    def hold(self, pos: int) -> bool:
        """Whether a whole character of a string begins here, or the line is no JSON at all."""
        if not self._start <= pos < self._end:
            self._enter_line(pos)
        return self._in_string(pos) or not self._is_json()

    def _enter_line(self, pos: int) -> None:
        self._start = self._at = self._block.rfind(b"\n", 0, pos) + 1
        end = self._block.find(b"\n", pos)
        self._end = end if end >= 0 else len(self._block)
        self._inside, self._json = False, None

    def _in_string(self, pos: int) -> bool:
        if pos < self._at:
            self._at, self._inside = self._start, False
        while self._at < pos:
            if not self._inside:
                found = self._block.find(b'"', self._at, pos)
                self._at, self._inside = (found + 1, True) if found >= 0 else (pos, False)
                continue
            rest = _STRING_REST.match(self._block, self._at, pos)
            self._at = rest.end() if rest else self._at
            if self._at == pos:
                return True
            if self._block[self._at : self._at + 1] != b'"':
                return False  # the middle of an escape
            self._at, self._inside = self._at + 1, False
        return self._inside

    def _is_json(self) -> bool:
        if self._json is None:
            try:
                _syntax.decode(self._block[self._start : self._end])
                self._json = True
            except (msgspec.DecodeError, RecursionError):
                self._json = False
        return self._json


class ExactValues:
    """The exact values of a session in all their forms."""

    __slots__ = ("_find", "_forms", "_lengths", "_ordered", "_outside", "_overlaps", "can_join_markers")

    def __init__(self, secrets: tuple[str, ...], markers: tuple[str, ...]) -> None:
        self._forms = sorted(
            {form for secret in secrets for form in forms_of(secret, markers)}, key=lambda f: (-len(f), f)
        )
        self._find: Callable[[bytes], list[tuple[int, int, int]]] | None = None
        self.can_join_markers = any(b"[" in form or b"]" in form for form in self._forms)
        if self._forms:
            # a DFA has KiBs for each byte of a pattern: a value of 64,000 characters would take a gigabyte
            small = sum(map(len, self._forms)) <= _DFA_BYTES
            kind = None if small else Implementation.ContiguousNFA
            found = BytesAhoCorasick(self._forms, matchkind=MatchKind.LeftmostFirst, implementation=kind)
            self._find = found.find_matches_as_indexes
        self._outside = frozenset(form for form in self._forms if _OUTSIDE.match(form))
        self._ordered = sorted(self._forms)
        self._lengths = sorted({len(form) for form in self._forms})
        self._overlaps: dict[
            int, list[tuple[int, bytes]]
        ] = {}  # of those that were found: all pairs would take minutes

    def __bool__(self) -> bool:
        return self._find is not None

    def spans(self, block: bytes) -> list[tuple[int, int]]:
        """What to replace, in order; where values overlap, all of them."""
        if self._find is None:
            return []
        strings = _Strings(block)
        spans: list[tuple[int, int]] = []
        hits = self._find(block)
        if len(hits) > _FEW + len(block) // _BYTES_PER_HIT:
            raise CannotRedact("a line of little but named secrets")
        for index, start, end in hits:
            taken = self._may_change(block, start, self._forms[index], strings)
            if taken:
                spans.append((start, end))
            others = self._overlaps.get(index)
            if others is None:
                others = self._overlaps[index] = self._overlapping(self._forms[index])
            for offset, other in others if taken else sorted(others):
                if block.startswith(other, start + offset) and self._may_change(block, start + offset, other, strings):
                    spans.append((start + offset, start + offset + len(other)))
                    if taken:
                        break  # the furthest is enough: the others end inside it
        return spans

    def _overlapping(self, form: bytes) -> list[tuple[int, bytes]]:
        """(offset, form) of forms that may begin inside this one, the search having passed over them; furthest reaching first."""
        found: list[tuple[int, bytes]] = []
        known = set(self._forms)
        for offset in range(1, len(form)):
            rest = form[offset:]
            at = bisect_left(self._ordered, rest)
            while at < len(self._ordered) and self._ordered[at].startswith(rest):  # those that reach beyond, or as far
                found.append((offset, self._ordered[at]))
                at += 1
            for length in self._lengths:
                if length >= len(rest):
                    break
                if rest[:length] in known:
                    found.append((offset, rest[:length]))
        return sorted(found, key=lambda item: -(item[0] + len(item[1])))

    def _may_change(self, block: bytes, start: int, form: bytes, strings: _Strings) -> bool:
        if form in self._outside and not strings.hold(start):
            return False
        return not splits_escape(block, start) and not in_head(block, start)


def forms_of(secret: str, markers: tuple[str, ...]) -> set[bytes]:
    """How an exact value may stand in JSON text. None for what is too short, or would be found in the markers."""
    text = secret.encode("utf-8", "replace").decode()
    if len(text) < MIN_EXACT or any(text in marker for marker in markers):
        return set()
    plain = {text, quote(text, safe=""), quote(text), quote_plus(text), *_in_base64(text.encode())}
    plain |= {_PERCENT.sub(lambda found: found[0].lower(), form) for form in plain if form != text}
    forms = set(plain)
    deeper = plain
    for _ in range(_DEPTHS):
        deeper = {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in deeper for ascii_only in (False, True)}
        forms |= deeper
    if any(char in '"\\' or char < " " for char in text):
        forms.discard(text)  # such a value never stands in JSON as it is: there it would be the end of one string
    forms |= {_UPPER.sub(lambda found: found[0][:-4] + found[0][-4:].upper(), form) for form in forms}
    forms |= {form.replace("/", slash) for form in forms for slash in ("\\/", "\\\\/", "\\\\\\/")}
    return {form.encode() for form in forms if not any(form in marker for marker in markers)}


def _in_base64(value: bytes) -> set[str]:
    """What of the value stands in base64 whatever is before and after it, for each of the three ways it may be aligned."""
    forms: set[str] = set()
    for before in range(3):
        text = base64.b64encode(bytes(before) + value).rstrip(b"=").decode()
        inner = text[(0, 2, 3)[before] : len(text) - (1 if (before + len(value)) % 3 else 0)]
        if len(inner) >= _MIN_BASE64:
            forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms
