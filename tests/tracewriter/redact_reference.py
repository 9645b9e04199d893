"""What redaction is, said plainly and slowly: every rule tried at every place of one line, no search, nothing passed over."""

from __future__ import annotations

import json
import re
from typing import Any

from tracewriter.redact_exact import forms_of
from tracewriter.redact_names import NAMES
from tracewriter.redact_rules import SECRETS, Rule

MARKERS = tuple(f"[redacted:{name}]" for name in ("exact", *dict.fromkeys(rule.name for rule in (*SECRETS, *NAMES))))
Span = tuple[int, int, str]
HEAD = re.compile(rb'\{"seq":\d+,"ts":"[^"]*","event":"[^"]*","session":"[^"]*"')


def reference(line: bytes, secrets: tuple[str, ...]) -> bytes:
    """The line, which is JSON, with all secrets replaced."""
    if re.search(rb"\\u00[2-7]", line):
        plain = encode(each_string(json.loads(line), lambda text: surfaced(text, secrets)))
        line = plain if once(plain, secrets) != plain else line
    while True:
        after = once(line, secrets)
        if after == line:
            return line
        line = after


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def each_string(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [each_string(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): each_string(item, change) for name, item in value.items()}
    return value


def surfaced(text: str, secrets: tuple[str, ...]) -> str:
    """Escapes of JSON in the text are undone where that shows a secret."""
    deeper = re.sub(r"\\{1,8}u00([2-7][0-9a-fA-F])", lambda found: chr(int(found[1], 16)), text)
    return deeper if deeper != text and once(encode(deeper), secrets) != encode(deeper) else text


def once(line: bytes, secrets: tuple[str, ...]) -> bytes:
    begins = character_begins(line)
    head = HEAD.match(line)
    first = head.end() if head else 0
    found = [span for span in (*exact(line, secrets), *own_forms(line)) if span[0] in begins and span[0] >= first]
    return named(replaced(line, united(found)))


def character_begins(line: bytes) -> set[int]:
    """Where a whole character of a string of this JSON begins."""
    begins: set[int] = set()
    inside, at = False, 0
    while at < len(line):
        if line[at : at + 1] == b'"':
            inside, step = not inside, 1
        else:
            step = 1 if line[at : at + 1] != b"\\" else 6 if line[at + 1 : at + 2] == b"u" else 2
            if inside:
                begins.add(at)
        at += step
    return begins


def exact(line: bytes, secrets: tuple[str, ...]) -> list[Span]:
    forms = {form for secret in secrets for form in forms_of(secret, MARKERS)}
    return [
        (found.start(), found.start() + len(form), "exact")
        for form in forms
        for found in re.finditer(b"(?=%b)" % re.escape(form), line)
    ]


def own_forms(line: bytes) -> list[Span]:
    return [
        (*span, rule.name)
        for rule in SECRETS
        for at in range(len(line))
        if (span := matched(rule, line, at)) is not None
    ]


def matched(rule: Rule, line: bytes, at: int) -> tuple[int, int] | None:
    found = rule.pattern.match(line, at)
    return rule.judge(line, found) if found else None


def named(line: bytes) -> bytes:
    """From left to right; of the rules that match at one anchor the first counts, and names in a value are none."""
    out: list[Span] = []
    reach = 0
    for anchor in range(len(line)):
        if anchor < reach:
            continue
        for rule in NAMES:
            spans = [
                matched(rule, line, anchor + shift) for text, shift in rule.anchors if line.startswith(text, anchor)
            ]
            span = next((span for span in spans if span), None)
            if span is not None:
                out.append((*span, rule.name))
                reach = span[1]
                break
    return replaced(line, out)


def united(found: list[Span]) -> list[Span]:
    spans: list[Span] = []
    for start, end, name in sorted(found):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]), spans[-1][2])
        else:
            spans.append((start, end, name))
    return spans


def replaced(line: bytes, spans: list[Span]) -> bytes:
    for start, end, name in reversed(spans):
        line = line[:start] + b"[redacted:%b]" % name.encode() + line[end:]
    return line


def unanchored(line: bytes) -> list[str]:
    """Rules that match where none of their anchors is: they would be missed."""
    return [
        rule.name
        for rule in (*SECRETS, *NAMES)
        for at in range(len(line))
        if rule.pattern.match(line, at)
        and not any(line.startswith(text, at - shift) for text, shift in rule.anchors if at >= shift)
    ]
