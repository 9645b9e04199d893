"""The one redaction funnel: every byte a trace stores passes `Redactor.redact`, whoever sent it. It never fails open.

How: one Aho-Corasick pass over the joined block finds the anchors of all rules (fixed strings such as `sk-` or
`Authorization`); at each hit one bounded, anchored regular expression decides. Text without anchors, which is nearly all
of it, costs one pass at memory speed and no copy. MatchKind.LeftmostFirst is what makes the pass fast; its hits do not
overlap, so a hit that its rule turns down is looked into again for anchors that begin inside it.

The block is JSON text: a secret's neighbours may be escapes (`\\n`, `\\"`, also twice escaped), so a left boundary is also the
end of an escape, and no value class takes a quote or a backslash but that of `\\/`. JSON that hides ASCII in escapes
(`\\u0073k-…`) is first decoded and encoded again. What cannot be decoded then is not stored: CannotRedact, and the record
becomes a drop.

The marker is `[redacted:<rule>]`: it carries nothing of what it replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from msgspec import Struct

from tracewriter.errors import TraceError

MIN_EXACT: Final = 6  # shorter exact values would eat ordinary text
_QUOTE: Final = rb"\\{0,8}[\"']"
_SLASH: Final = rb"\\{1,8}/"  # JSON may write a slash as \/: an anchor for that would make the pass four times slower
_KEEP: Final = "keep"  # the regex group before the secret


class CannotRedact(TraceError):
    """A line that hides what it says and cannot be decoded; it must not be stored."""


class Rule(Struct, frozen=True):
    """A kind of secret. anchors: fixed strings, one of which is in every match, at its start. expression: matched at the
    anchor; its group `keep` stays. accept: the last word over the matched secret. boundary: no word may run into the anchor."""

    name: str
    anchors: tuple[bytes, ...]
    expression: re.Pattern[bytes]
    accept: Callable[[bytes], bool]
    boundary: bool = True


def _looks_random(value: bytes) -> bool:
    """Digits in it, or a long run without a separator: not a name such as `sk-loading-spinner-dots`."""
    return re.search(rb"[0-9]|[A-Za-z]{20}", value) is not None


def _not_a_word(value: bytes) -> bool:
    return len(value) >= 24 or re.search(rb"[0-9+/=]", value) is not None


def _any(value: bytes) -> bool:
    return True


RULES: Final = (
    Rule("sk-key", (b"sk-",), re.compile(rb"(?P<keep>)sk-[A-Za-z0-9_-]{16,512}"), _looks_random),
    Rule(
        "bearer",
        (b"Bearer ", b"bearer ", b"BEARER "),
        re.compile(rb"(?P<keep>[Bb][Ee][Aa][Rr][Ee][Rr] {1,4})(?:[A-Za-z0-9._~+/=-]|" + _SLASH + rb"){8,4096}"),
        _not_a_word,
    ),
    Rule(
        "authorization",
        (b"Authorization", b"authorization", b"AUTHORIZATION"),
        re.compile(
            rb"(?P<keep>[Aa][A-Za-z]{12}(?:"
            + _QUOTE
            + rb")?[ \t]{0,8}[:=][ \t]{0,8}(?:"
            + _QUOTE
            + rb")?(?:(?:[Bb]asic|[Bb]earer|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey|[Nn]egotiate)[ \t]{1,8}))"
            rb"(?:[^\s\"'\\<>]|" + _SLASH + rb"){4,4096}"
        ),
        _any,
        boundary=False,
    ),
    Rule(
        "authorization",
        (b"Authorization", b"authorization", b"AUTHORIZATION"),
        re.compile(
            rb"(?P<keep>[Aa][A-Za-z]{12}(?:"
            + _QUOTE
            + rb")?[ \t]{0,8}[:=][ \t]{0,8}(?:"
            + _QUOTE
            + rb")?)(?:[^\s\"'\\<>,;]|"
            + _SLASH
            + rb"){8,4096}"
        ),
        _not_a_word,
        boundary=False,
    ),
)

_PEM_ANCHOR: Final = b"-----BEGIN "
_PEM_BEGIN: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END: Final = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_FIELD_END: Final = re.compile(rb'(?:[^"\\\n]|\\.)*')
_HIDDEN: Final = (b"\\u002", b"\\u003", b"\\u004", b"\\u005", b"\\u006", b"\\u007")
_WORD: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ESCAPE_BEFORE: Final = re.compile(rb"\\(?:[bfnrt]|u[0-9a-fA-F]{4})\Z")


class _Span(Struct, frozen=True):
    start: int
    end: int
    rule: str


class Redactor:
    """Redacts blocks of whole JSONL lines by the rules above and the exact values given (kept in memory only)."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        exact = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
        anchors: list[bytes] = list(exact)  # first: at the same place the exact value wins
        rules: list[tuple[Rule, ...] | None] = [None] * len(exact)
        by_anchor: dict[bytes, list[Rule]] = {}
        for rule in RULES:
            for anchor in rule.anchors:
                by_anchor.setdefault(anchor, []).append(rule)
        for anchor, group in by_anchor.items():
            anchors.append(anchor)
            rules.append(tuple(group))
        self._exact = len(exact)
        self._pem = len(anchors)
        self._hidden = self._pem + 1
        self._rules = rules
        anchors += [_PEM_ANCHOR, *_HIDDEN]
        self._longest = max(map(len, anchors))
        self._automaton = BytesAhoCorasick(anchors, matchkind=MatchKind.LeftmostFirst)
        self.find = self._automaton.find_matches_as_indexes

    def redact(self, block: bytes) -> bytes:
        """The block with every recognised secret replaced; the same object when there is none. Lines stay lines.

        Raises CannotRedact for a block with a line that must not be stored; `redact_line` tells which.
        """
        hits = self.find(block)
        if not hits:
            return block
        if any(hit[0] >= self._hidden for hit in hits):
            block = b"".join(self._unhide(line + b"\n") for line in block.split(b"\n")[:-1])
            hits = self.find(block)
        spans = self._spans(block, hits)
        return _replace(block, spans) if spans else block

    def _unhide(self, line: bytes) -> bytes:
        if not any(hit[0] >= self._hidden for hit in self.find(line)):
            return line
        try:
            return msgspec.json.encode(msgspec.json.decode(line)) + b"\n"
        except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
            pass
        try:
            text = json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":"))
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode() + b"\n"
        except (ValueError, RecursionError) as exc:
            raise CannotRedact("a line that hides text in escapes and cannot be decoded") from exc

    def _spans(self, block: bytes, hits: list[tuple[int, int, int]]) -> list[_Span]:
        spans: list[_Span] = []
        done = 0
        todo = hits[::-1]
        while todo:
            index, start, end = todo.pop()
            if start < done:
                # part of what is replaced already; but an anchor that runs over its end may go on from there
                if end > done:
                    todo += self._inside(block, done, end)[::-1]
                continue
            span = self._decide(block, index, start, end)
            if span is None:
                todo += self._inside(block, start + 1, end)[::-1]
                continue
            spans.append(span)
            done = span.end
        return spans

    def _inside(self, block: bytes, start: int, end: int) -> list[tuple[int, int, int]]:
        """Hits that begin in [start, end): those a longer or earlier hit has hidden."""
        if end <= start:
            return []
        window = self.find(block[start : end + self._longest - 1])
        return [(index, start + a, start + b) for index, a, b in window if start + a < end]

    def _decide(self, block: bytes, index: int, start: int, end: int) -> _Span | None:
        if index < self._exact:
            return _Span(start, end, "exact")
        if index == self._pem:
            return _pem_span(block, start)
        for rule in (self._rules[index] or ()) if index < len(self._rules) else ():
            if rule.boundary and not _at_boundary(block, start):
                continue
            match = rule.expression.match(block, start)
            if match and rule.accept(block[match.end(_KEEP) : match.end()]):
                return _Span(match.end(_KEEP), match.end(), rule.name)
        return None


def _at_boundary(block: bytes, start: int) -> bool:
    """No word runs into this place; the end of an escape is no word."""
    if start == 0 or block[start - 1] not in _WORD:
        return True
    return _ESCAPE_BEFORE.search(block[max(0, start - 6) : start]) is not None


def _pem_span(block: bytes, start: int) -> _Span | None:
    begin = _PEM_BEGIN.match(block, start)
    if begin is None:
        return None
    field = _FIELD_END.match(block, begin.end())
    field_end = field.end() if field else begin.end()
    last = _PEM_END.search(block, begin.end(), field_end)
    return _Span(start, last.end() if last else field_end, "private-key")


def _replace(block: bytes, spans: list[_Span]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for span in spans:
        pieces += (block[at : span.start], b"[redacted:", span.rule.encode(), b"]")
        at = span.end
    pieces.append(block[at:])
    return b"".join(pieces)


def _forms(secret: str) -> set[bytes]:
    """How an exact value may stand in JSON text: plain, escaped once and twice, with and without ASCII escapes."""
    text = secret.encode("utf-8", "replace").decode()
    if len(text) < MIN_EXACT:
        return set()
    forms: set[str] = {text}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (False, True)}
    forms |= {form.replace("/", slash) for form in forms for slash in ("\\/", "\\\\/", "\\\\\\/")}
    return {form.encode() for form in forms}
