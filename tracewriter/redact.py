"""The one redaction funnel: every byte a trace stores passes `Redactor.redact`, whoever sent it. It never fails open.

How: a few Aho-Corasick automata find the anchors of all rules in the block (fixed strings such as `sk-` or `ecret`); at each hit
the anchored patterns of the anchor's rules decide. Text without anchors, which is nearly all of it, costs these passes at memory
speed and no copy. MatchKind.LeftmostFirst is what makes them fast; its hits do not overlap, so an anchor also carries the rules
of those that may begin inside it.

In this order: what hides ASCII in escapes (`\\u0073k-…`) is decoded (redact_hidden.py); exact values (redact_exact.py); what has
a form of its own (redact_rules.py), where the union of all that matches anywhere is replaced; what has a name before it
(redact_names.py), from left to right. Nothing replaced makes new matches: a value goes to the end of its word.

JSON stays JSON: matches begin and end between whole characters of a string, and the head of a record (seq, ts, event, session),
without which it would be no record, is left alone. The marker is `[redacted:<rule>]`: it carries nothing of what it replaced.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from typing import Final, NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from tracewriter.redact_anchors import AUTOMATA
from tracewriter.redact_exact import MIN_EXACT, ExactValues, in_head, splits_escape
from tracewriter.redact_hidden import ANCHOR, HIDES, CannotRedact, unhidden
from tracewriter.redact_names import NAMES
from tracewriter.redact_rules import SECRETS, Rule

__all__ = ["MIN_EXACT", "CannotRedact", "Redactor"]

_ROUNDS: Final = 8  # for exact values that hold brackets, as markers do; more have never been needed
_SLICE: Final = (
    64 * 1024
)  # what is searched at once: it stays in the cache, and a text of nothing but anchors is noticed early
_TOO_DENSE: Final = "a line of little but what secrets begin with"
_FEW: Final = 1024
_BYTES_PER_HIT: Final = 25  # a line with more anchors than that is no text, and would take longer than its turn
_BYTES_PER_MATCH: Final = 128  # the same for secrets
_SECRET_COSTS: Final = 4  # times as much as what is turned down at the second look
_BYTES_LOOKED_AT: Final = 256  # so long a match counts as two
_MARKER: Final = {rule.name: b"[redacted:" + rule.name.encode() + b"]" for rule in (*SECRETS, *NAMES)} | {
    "exact": b"[redacted:exact]"
}
_MARKER_BEGIN: Final = b"[redacted:"
_MARKERS: Final = tuple(marker.decode() for marker in _MARKER.values())

Hit = tuple[int, int, int]  # anchor, start, end
Hits = list[tuple[int, list[Hit]]]  # by slice: where it begins, and the hits in it
Match = Callable[[bytes, int], "re.Match[bytes] | None"]
Counts = Counter[str]


class _Span(NamedTuple):
    start: int
    end: int
    name: str


class _Check(NamedTuple):
    """A rule to try at a place counted from an anchor's begin."""

    offset: int
    match: Match
    rule: Rule


class _Place(NamedTuple):
    """An anchor that may begin in a hit, and the rules that are tried there."""

    offset: int
    checks: tuple[_Check, ...]


_Named = tuple[int, tuple[_Check, ...]]  # where an anchor of names is


class _Automaton:
    """One search for some of the anchors, and what to do at its hits."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        self._search = BytesAhoCorasick(anchors, matchkind=MatchKind.LeftmostFirst).find_matches_as_indexes
        self._longest = max(map(len, anchors))
        self.secrets = tuple(_places(anchor, anchors, SECRETS) for anchor in anchors)
        self.names = tuple(_places(anchor, anchors, NAMES) for anchor in anchors)
        self._hidden = anchors.index(ANCHOR) if ANCHOR in anchors else -1

    def find(self, block: bytes, budget: int, *, stop_at_hidden: bool) -> tuple[Hits, int, bool]:
        """All hits, in order, each anchor in the block being one or beginning inside one; how many; and whether ASCII may be
        hidden in escapes, which are no hits. Raises CannotRedact for too many.
        """
        if len(block) <= 2 * _SLICE:
            hits, hides = self._without_escapes(self._search(block))
            if len(hits) > budget:
                raise CannotRedact(_TOO_DENSE)
            return [(0, hits)] if hits else [], len(hits), hides
        found: Hits = []
        count, hides = 0, False
        view = memoryview(block)
        for at in range(0, len(block), _SLICE):
            hits, escapes = self._without_escapes(self._search(view[at : at + _SLICE + self._longest - 1]))
            hides |= escapes
            if escapes and stop_at_hidden and HIDES.search(block, at, at + _SLICE + self._longest):
                return [], 0, True  # it will be written anew, and searched then
            while hits and hits[-1][1] >= _SLICE:
                hits.pop()
            if hits:
                found.append((at, hits))
                count += len(hits)
                if count > budget:
                    raise CannotRedact(_TOO_DENSE)
        return found, count, hides

    def _without_escapes(self, hits: list[Hit]) -> tuple[list[Hit], bool]:
        hidden = self._hidden
        if hidden < 0 or hidden not in map(itemgetter(0), hits):
            return hits, False
        return [hit for hit in hits if hit[0] != hidden], True


def _places(anchor: bytes, anchors: tuple[bytes, ...], rules: tuple[Rule, ...]) -> tuple[_Place, ...]:
    places = []
    for offset in range(len(anchor)):
        rest = anchor[offset:]
        begun = {other for other in anchors if other.startswith(rest) or rest.startswith(other)}
        checks = tuple(
            _Check(shift, rule.pattern.match, rule) for rule in rules for other, shift in rule.anchors if other in begun
        )
        if checks:
            places.append(_Place(offset, checks))
    return tuple(places)


@cache
def _automata() -> tuple[_Automaton, ...]:
    """Made once for all redactors of a process."""
    return tuple(map(_Automaton, AUTOMATA))


class Redactor:
    """Redacts blocks of whole JSONL lines by the rules and the exact values given (kept in memory only)."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self._exact = ExactValues(secrets, _MARKERS)
        self._automata = _automata()

    def redact(self, block: bytes) -> bytes:
        """The block with every recognised secret replaced; the same object when there is none. Lines stay lines.

        Raises CannotRedact for a block with a line that must not be stored: try its lines one by one to know which.
        """
        return self._redacted(block, None)

    def redact_counted(self, block: bytes) -> tuple[bytes, Counter[str]]:
        """The same, and how often each rule replaced something."""
        counts: Counter[str] = Counter()
        return self._redacted(block, counts), counts

    def redact_text(self, text: str) -> str:
        """A text of its own redacted as a record's would be; lone surrogates become `?`. Raises CannotRedact."""
        line = json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False).encode() + b"\n"
        redacted = self.redact(line)
        if redacted is line:
            return text
        plain: str = json.loads(redacted)
        return plain

    def _redacted(self, block: bytes, counts: Counts | None) -> bytes:
        found, may_hide = self._find(block, stop_at_hidden=True)
        if may_hide and HIDES.search(block):
            block = unhidden(block, self._reveals)
            found, _ = self._find(block)
        for _ in range(_ROUNDS):
            exact = [_Span(start, end, "exact") for start, end in self._exact.spans(block)]
            before = block
            block, again = self._round(block, exact, found, counts)
            if block is before or not (again or exact or self._exact.can_join_markers):
                break
            found, _ = self._find(block)
        return block

    def _find(self, block: bytes, *, stop_at_hidden: bool = False) -> tuple[list[Hits], bool]:
        try:
            return self._found(block, _FEW + len(block) // _BYTES_PER_HIT, stop_at_hidden)
        except CannotRedact:
            # A marker may be shorter than what it replaced: what was redacted once must not be refused for its markers.
            markers = block.count(_MARKER_BEGIN)
            if not markers:
                raise
            return self._found(block, _FEW + len(block) // _BYTES_PER_HIT + 2 * markers, stop_at_hidden)

    def _found(self, block: bytes, left: int, stop_at_hidden: bool) -> tuple[list[Hits], bool]:
        found: list[Hits] = []
        may_hide = False
        for automaton in self._automata:
            hits, count, hides = automaton.find(block, left, stop_at_hidden=stop_at_hidden)
            found.append(hits)
            left -= count
            may_hide |= hides
        return found, may_hide

    def _reveals(self, line: bytes) -> bool:
        exact = [_Span(*span, "exact") for span in self._exact.spans(line)]
        found, _ = self._find(line)
        return self._round(line, exact, found, None)[0] is not line

    def _round(self, block: bytes, spans: list[_Span], found: list[Hits], counts: Counts | None) -> tuple[bytes, bool]:
        """The block after one round; and whether another may find more."""
        work = _Work(len(block))
        names: list[_Named] = []
        for automaton, hits in zip(self._automata, found, strict=True):
            if hits:
                spans += _secrets(block, automaton.secrets, hits, work)
                table = automaton.names
                names += [
                    (at + start + offset, checks)
                    for at, some in hits
                    for index, start, _ in some
                    for offset, checks in table[index]
                ]
        if spans:
            spans = _united(spans)
            names = _moved(sorted(names, key=itemgetter(0)), spans)
            block = _replace(block, spans, counts)
        elif len(names) > 1:
            names.sort(key=itemgetter(0))
        spans, again = _named(block, names, work) if names else ([], False)
        return _replace(block, spans, counts) if spans else block, again


class _Work:
    """How much of its turn a block has left. Charged for what is looked at closely: then its cost is linear in its length."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = _SECRET_COSTS * (_FEW + size // _BYTES_PER_MATCH)

    def charge(self, cost: int) -> None:
        """Raises CannotRedact when nothing is left."""
        self.left -= cost
        if self.left < 0:
            raise CannotRedact(_TOO_DENSE)


def _secrets(block: bytes, table: tuple[tuple[_Place, ...], ...], hits: Hits, work: _Work) -> Iterator[_Span]:
    """All that rules with a form of their own match. What begins in a value of the same family ends there too."""
    seen: dict[str, int] = {}
    places = (
        (at + start + offset, checks)
        for at, some in hits
        for index, start, _ in some
        for offset, checks in table[index]
    )
    for place, checks in places:
        for shift, match, rule in checks:
            at = place + shift
            if at < 0 or at < seen.get(rule.family, 0):
                continue
            found = match(block, at)
            if found is None:
                continue
            work.charge(1 + (found.end() - found.start()) // _BYTES_LOOKED_AT)
            span = rule.judge(block, found)
            if span is not None:
                work.charge(_SECRET_COSTS - 1)
                seen[rule.family] = span[1]
                if not splits_escape(block, span[0]) and not in_head(block, span[0]):
                    yield _Span(*span, rule.name)


def _named(block: bytes, names: list[_Named], work: _Work) -> tuple[list[_Span], bool]:
    """From left to right, what has a name before it; a name in a value is none. And whether something inside of what was not
    taken for a secret was, or a name before it was passed over: then it is another text, to be judged again.
    """
    spans: list[_Span] = []
    reach = doubtful = value = 0
    again = False
    for at, checks in names:
        if at < reach:
            again |= at < value
            continue
        for shift, match, rule in checks:
            found = match(block, at + shift)
            if found is None:
                continue
            start, end = found.span(found.lastindex or 0)
            if end - start < rule.shortest:
                continue
            if block.startswith(_MARKER_BEGIN, start) and block.find(b"]", start, end) == end - 1:
                continue
            work.charge(1 + (end - start) // _BYTES_LOOKED_AT)
            span = rule.judge(block, found)
            if span is None:
                doubtful = max(doubtful, end)
                continue
            work.charge(_SECRET_COSTS - 1)
            reach = span[1]
            spans.append(_Span(*span, rule.name))
            again |= span[0] < doubtful
            value = (
                0 if rule.family == "name" else span[0]
            )  # a value of these goes as far as that of any name before it
            break
    return spans, again


def _united(spans: list[_Span]) -> list[_Span]:
    """In order, overlapping ones as one, under the name of the first."""
    united: list[_Span] = []
    for span in sorted(spans):
        if united and span.start < united[-1].end:
            if span.end > united[-1].end:
                united[-1] = united[-1]._replace(end=span.end)
        else:
            united.append(span)
    return united


def _moved(names: list[_Named], spans: list[_Span]) -> list[_Named]:
    """Where the anchors of names are once the spans are replaced; those inside one are gone."""
    moved: list[_Named] = []
    rest = iter(spans)
    span = next(rest, None)
    shift = 0
    for at, checks in names:
        while span is not None and span.end <= at:
            shift += len(_MARKER[span.name]) - (span.end - span.start)
            span = next(rest, None)
        if span is None or at < span.start:
            moved.append((at + shift, checks))
    return moved


def _replace(block: bytes, spans: list[_Span], counts: Counts | None) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for start, end, name in spans:
        pieces += (block[at:start], _MARKER[name])
        at = end
    pieces.append(block[at:])
    if counts is not None:
        counts.update(span.name for span in spans)
    return b"".join(pieces)
