"""The one redaction funnel: every byte a trace stores passes `Redactor.redact`, whoever sent it. It never fails open.

How: one Aho-Corasick pass over the joined block finds the anchors of all rules (fixed strings such as `sk-` or
`Authorization`); at each hit anchored regular expressions decide. Text without anchors, which is nearly all of it, costs one
pass at memory speed and no copy. MatchKind.LeftmostFirst is what makes the pass fast; its hits do not overlap, so each hit is
looked into again with an overlapping search: every anchor in the block begins inside one of them. What is replaced is the
union of all that all rules match anywhere, and that again until nothing changes.

The block is JSON text: a secret's neighbours may be escapes (`\\n`, `\\"`, also twice escaped), so a left boundary is also the
end of an escape, and no value class takes a quote or a backslash but that of `\\/`. JSON that hides ASCII in escapes
(`\\u0073k-…`) is first decoded and encoded again. What cannot be decoded then is not stored: CannotRedact, and the record
becomes a drop. JSON stays JSON: only text inside strings is replaced, never a number or half an escape (an exact value may
look like either), nor the head of a record (seq, ts, event, session), without which it would be no record.

The marker is `[redacted:<rule>]`: it carries nothing of what it replaced, and no rule takes a `[` into a value, so that a
second pass finds nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from msgspec import Raw, Struct

from tracewriter.errors import TraceError

MIN_EXACT: Final = 6  # shorter exact values would eat ordinary text
_DEPTHS: Final = 3  # JSON in text in JSON, as tools print it
_UPPER: Final = re.compile(r"\\u[0-9a-f]{4}")
_ROUNDS: Final = 8  # a marker may give its neighbour a boundary; more rounds than that have never been seen
_QUOTE: Final = rb"\\{0,8}[\"']"
_SPACE: Final = rb"(?:[ \t]|\\{1,8}t)"
_NON_ASCII: Final = rb"\\{1,8}u(?!00[01])[0-9a-fA-F]{4}"  # what JSON may escape and passwords contain
_SLASH: Final = rb"\\{1,8}/"  # JSON may write a slash as \/: an anchor for that would make the pass four times slower


class CannotRedact(TraceError):
    """A line that hides what it says and cannot be decoded; it must not be stored."""


class Rule(Struct, frozen=True):
    """A kind of secret. anchors: fixed strings, at one of which every match begins. before: matched there, and kept. value:
    matched after that, as far as it goes, and replaced when `accept` takes it. boundary: no word may run into the anchor.

    `accept` must turn down every end of a value that it turns down: a value is looked at once, not from each place in it.
    """

    name: str
    anchors: tuple[bytes, ...]
    before: re.Pattern[bytes]
    value: re.Pattern[bytes]
    accept: Callable[[bytes], bool]
    boundary: bool = True


def _looks_random(value: bytes) -> bool:
    """Digits in it, or a long run without a separator: not a name such as `sk-loading-spinner-dots`."""
    return re.search(rb"[0-9]|[A-Za-z]{20}", value) is not None


def _not_a_word(value: bytes) -> bool:
    return len(value) >= 24 or re.search(rb"[0-9+/=]", value) is not None


def _any(value: bytes) -> bool:
    return True


_HEADER_NAME: Final = rb"[Aa][Uu][Tt][Hh][A-Za-z]{9}(?:" + _QUOTE + rb")?" + _SPACE + rb"{0,8}[:=]" + _SPACE
_HEADER: Final = _HEADER_NAME + rb"{0,8}(?:" + _QUOTE + rb")?"
_SCHEME: Final = rb"(?:[Bb]asic|[Bb]earer|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey|[Nn]egotiate)" + _SPACE + rb"{1,8}"
_NAMES: Final = (b"Authorization", b"authorization", b"AUTHORIZATION")

RULES: Final = (
    Rule("sk-key", (b"sk-",), re.compile(b""), re.compile(rb"sk-[A-Za-z0-9_-]{16,}+"), _looks_random),
    Rule(
        "bearer",
        (b"Bearer ", b"bearer ", b"BEARER "),
        re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] {1,4}"),
        re.compile(rb"(?:[A-Za-z0-9._~+/=-]|" + _SLASH + rb"){8,}+"),
        _not_a_word,
    ),
    Rule(
        "authorization",
        _NAMES,
        re.compile(_HEADER + _SCHEME),
        re.compile(rb"(?:[^\x00-\x20\"'\\<>\[]|" + _SLASH + b"|" + _NON_ASCII + rb"){4,}+"),
        _any,
        boundary=False,
    ),
    Rule(
        "authorization",
        _NAMES,
        re.compile(_HEADER),
        re.compile(rb"(?:[^\x00-\x20\"'\\<>,;\[]|" + _SLASH + b"|" + _NON_ASCII + rb"){8,}+"),
        _not_a_word,
        boundary=False,
    ),
)

_PEM_ANCHOR: Final = b"-----BEGIN "
_PEM_BEGIN: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END: Final = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_STRING_REST: Final = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+')
_HIDDEN: Final = (b"\\u002", b"\\u003", b"\\u004", b"\\u005", b"\\u006", b"\\u007")
_DEEPER: Final = re.compile(r"\\{1,8}u00([2-7][0-9a-fA-F])")  # the same in JSON that is itself text
_WORD: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ESCAPE_BEFORE: Final = re.compile(rb"\\(?:[bfnrt]|u[0-9a-fA-F]{4})\Z")
_HEAD: Final = re.compile(
    rb'\{"seq":[0-9]{1,19},"ts":"[0-9TZ:.+-]{0,40}","event":"[a-z0-9._]{0,100}","session":"[a-z0-9_-]{1,64}"'
)
_syntax: Final = msgspec.json.Decoder(Raw)


class _Span(Struct, frozen=True, order=True):
    start: int
    order: int  # which rule names a span when several begin at the same place
    end: int
    rule: str


class _Place:
    """Where in a block's JSON a position is. Ask for positions in ascending order: then all of them cost one pass."""

    __slots__ = ("_at", "_block", "_end", "_head", "_inside", "_json", "_start")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._start = self._end = self._at = self._head = 0
        self._inside = False
        self._json: bool | None = None

    def may_change(self, pos: int) -> bool:
        """Whether replacing text from `pos` on leaves its line what it is. A line that is no JSON may always be changed."""
        if not self._start <= pos < self._end or self._end == 0:
            self._enter_line(pos)
        if pos < self._head:
            return False
        return self._in_string(pos) or not self._is_json()

    def _enter_line(self, pos: int) -> None:
        block = self._block
        self._start = self._at = block.rfind(b"\n", 0, pos) + 1
        end = block.find(b"\n", pos)
        self._end = end if end >= 0 else len(block)
        head = _HEAD.match(block, self._start)
        self._head = head.end() if head else 0
        self._inside, self._json = False, None

    def _in_string(self, pos: int) -> bool:
        """Whether a whole character of a JSON string begins here."""
        if pos < self._at:
            self._at, self._inside = self._start, False
        while self._at < pos:
            if not self._inside:
                quote = self._block.find(b'"', self._at, pos)
                self._at, self._inside = (quote + 1, True) if quote >= 0 else (pos, False)
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


class _Pairs(dict[object, object]):
    """An object with every pair it came with: two redacted keys look alike, and neither's value may be lost."""

    def __init__(self, pairs: list[tuple[object, object]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> list[tuple[object, object]]:  # type: ignore[override]
        """What json.dumps writes."""
        return self._pairs


class Redactor:
    """Redacts blocks of whole JSONL lines by the rules above and the exact values given (kept in memory only)."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        exact = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
        by_anchor: dict[bytes, list[int]] = {}
        for number, rule in enumerate(RULES):
            for anchor in rule.anchors:
                by_anchor.setdefault(anchor, []).append(number)
        anchors = [*exact, *by_anchor, _PEM_ANCHOR, *_HIDDEN]
        self._rules = [(), *by_anchor.values()]
        self._exact = len(exact)
        self._pem = len(exact) + len(by_anchor)
        self._hidden = self._pem + 1
        self._longest = max(map(len, anchors))
        self.find = BytesAhoCorasick(anchors, matchkind=MatchKind.LeftmostFirst).find_matches_as_indexes
        self._find_all = BytesAhoCorasick(anchors, matchkind=MatchKind.Standard).find_matches_as_indexes

    def redact(self, block: bytes) -> bytes:
        """The block with every recognised secret replaced; the same object when there is none. Lines stay lines.

        Raises CannotRedact for a block with a line that must not be stored: try its lines one by one to know which.
        """
        hits = self.find(block)
        if not hits:
            return block
        if any(hit[0] >= self._hidden for hit in hits):
            block = b"".join(self._unhide(line + b"\n") for line in block.split(b"\n")[:-1])
            hits = self.find(block)
        for _ in range(_ROUNDS):
            spans = self._spans(block, hits)
            if not spans:
                break
            block = _replace(block, spans)
            hits = self.find(block)
        return block

    def _unhide(self, line: bytes) -> bytes:
        """The line without escapes that ASCII does not need."""
        if not any(hit[0] >= self._hidden for hit in self.find(line)):
            return line
        try:
            value = json.loads(line, object_pairs_hook=_Pairs)
            text = json.dumps(self._surface(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (ValueError, RecursionError) as exc:
            raise CannotRedact("a line that hides text in escapes and cannot be decoded") from exc
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode() + b"\n"

    def _surface(self, value: object) -> object:
        """Text that is JSON itself may hide a secret one level deeper: then, and only then, its escapes are undone too."""
        match value:
            case str():
                plain = _DEEPER.sub(lambda found: chr(int(found[1], 16)), value)
                return plain if plain != value and self._finds(plain) else value
            case list():
                return [self._surface(item) for item in value]
            case _Pairs():
                return _Pairs([(self._surface(key), self._surface(item)) for key, item in value.items()])
            case _:
                return value

    def _finds(self, text: str) -> bool:
        block = json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")
        return bool(self._spans(block, self.find(block)))

    def _spans(self, block: bytes, hits: list[tuple[int, int, int]]) -> list[_Span]:
        """What is to be replaced, in order; overlapping pieces are one."""
        place = _Place(block)
        found = sorted(span for span in self._matches(block, hits) if place.may_change(span.start))
        spans: list[_Span] = []
        for span in found:
            if spans and span.start < spans[-1].end:
                if span.end > spans[-1].end:
                    spans[-1] = msgspec.structs.replace(spans[-1], end=span.end)
            else:
                spans.append(span)
        return spans

    def _matches(self, block: bytes, hits: list[tuple[int, int, int]]) -> Iterator[_Span]:
        seen = [0] * (
            len(RULES) + 1
        )  # per rule, the end of the last value looked at; a later one inside it ends there too
        for _, start, end in hits:
            window = self._find_all(block[start : end + self._longest - 1], overlapping=True)
            for index, offset, stop in sorted(window, key=lambda hit: hit[1]):
                if start + offset >= end:
                    break
                if index < self._exact:
                    yield _Span(start + offset, -1, start + stop, "exact")
                elif index < self._hidden:
                    yield from self._decide(block, index, start + offset, seen)

    def _decide(self, block: bytes, index: int, start: int, seen: list[int]) -> Iterator[_Span]:
        if index == self._pem:
            if start >= seen[-1]:
                span = _pem_span(block, start)
                if span is not None:
                    seen[-1] = span.end
                    yield span
            return
        for number in self._rules[index - self._exact + 1]:
            rule = RULES[number]
            if rule.boundary and not _at_boundary(block, start):
                continue
            before = rule.before.match(block, start)
            if before is None or before.end() < seen[number]:
                continue
            value = rule.value.match(block, before.end())
            if value is None:
                continue
            seen[number] = value.end()
            if rule.accept(value[0]):
                yield _Span(value.start(), number, value.end(), rule.name)


def _at_boundary(block: bytes, start: int) -> bool:
    """No word runs into this place; the end of an escape is no word."""
    if start == 0 or block[start - 1] not in _WORD:
        return True
    return _ESCAPE_BEFORE.search(block[max(0, start - 6) : start]) is not None


def _pem_span(block: bytes, start: int) -> _Span | None:
    begin = _PEM_BEGIN.match(block, start)
    if begin is None:
        return None
    field = _STRING_REST.match(block, begin.end())
    field_end = field.end() if field else begin.end()
    last = _PEM_END.search(block, begin.end(), field_end)
    return _Span(start, len(RULES), last.end() if last else field_end, "private-key")


def _replace(block: bytes, spans: list[_Span]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for span in spans:
        pieces += (block[at : span.start], _marker(span.rule))
        at = span.end
    pieces.append(block[at:])
    return b"".join(pieces)


def _marker(rule: str) -> bytes:
    return b"[redacted:" + rule.encode() + b"]"


_MARKERS: Final = tuple(_marker(name).decode() for name in ("exact", "private-key", *(rule.name for rule in RULES)))


def _forms(secret: str) -> set[bytes]:
    """How an exact value may stand in JSON text: escaped once, twice and three times, with and without ASCII escapes.

    None for what is too short, or would be found in the markers.
    """
    text = secret.encode("utf-8", "replace").decode()
    if len(text) < MIN_EXACT or any(text in marker for marker in _MARKERS):
        return set()
    forms = {text}
    deeper = forms
    for _ in range(_DEPTHS):
        deeper = {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in deeper for ascii_only in (False, True)}
        forms |= deeper
    if any(char in '"\\' or char < " " for char in text):
        forms.discard(text)  # such a value never stands in JSON as it is: there it would be the end of one string
    forms |= {_UPPER.sub(lambda found: found[0][:-4] + found[0][-4:].upper(), form) for form in forms}
    forms |= {form.replace("/", slash) for form in forms for slash in ("\\/", "\\\\/", "\\\\\\/")}
    return {form.encode() for form in forms}
