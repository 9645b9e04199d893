"""The redaction funnel: equal to a plain slow one, JSON stays JSON, nothing is left half, ordinary text is left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import SESSION, line_of, lines_of, plain_json
from tracewriter.redact import MIN_EXACT, CannotRedact, Redactor
from tracewriter.scan import parse_record

EXACT = 'pass"word\\1 é/x'
PLAIN_EXACT = "hunter2hunter2"
DIGITS = "20261129"
ESCAPED = "normal-secret"  # after a newline escape, half of its first letter belongs to the escape
SECRETS = (EXACT, PLAIN_EXACT, DIGITS, ESCAPED)

# --- the slow reference: decode, look at every place of every string with every rule, replace the union, until nothing changes

WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
QUOTE = rb"(?:\\{0,3}\"|\\{0,4}')"
SPACE = rb"(?: |\\{0,3}\t|\\{1,4}t)"
SLASH = rb"\\{1,4}/"
WIDE = rb"\\{1,4}u(?!00[01])[0-9a-fA-F]{4}"
HEADER = rb"(?:Authorization|authorization|AUTHORIZATION)(?:%b)?%b{0,8}[:=]%b{0,8}(?:%b)?" % (
    QUOTE,
    SPACE,
    SPACE,
    QUOTE,
)
SCHEME = rb"(?:[Bb]asic|[Bb]earer|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey|[Nn]egotiate)%b{1,8}" % SPACE
PEM = rb"-----%b [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
Accept = Callable[[bytes], bool]
PLAIN_RULES: tuple[tuple[str, bytes, bytes, Accept, bool], ...] = (
    ("sk-key", b"", rb"sk-[A-Za-z0-9_-]{16,}", lambda v: bool(re.search(rb"[0-9]|[A-Za-z]{20}", v)), True),
    (
        "bearer",
        rb"(?:Bearer|bearer|BEARER) {1,4}",
        rb"(?:[A-Za-z0-9._~+/=-]|%b){8,}" % SLASH,
        lambda v: len(v) >= 24 or bool(re.search(rb"[0-9+/=]", v)),
        True,
    ),
    ("authorization", HEADER + SCHEME, rb"(?:[^\x00-\x20\"'\\<>\[]|%b|%b){4,}" % (SLASH, WIDE), lambda v: True, False),
    (
        "authorization",
        HEADER,
        rb"(?:[^\x00-\x20\"'\\<>,;\[]|%b|%b){8,}" % (SLASH, WIDE),
        lambda v: len(v) >= 24 or bool(re.search(rb"[0-9+/=]", v)),
        False,
    ),
)
Span = tuple[int, int, int, str]


def exact_forms(secret: str) -> set[bytes]:
    level = {secret}
    forms = set(level)
    for _ in range(2):
        level = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in level for ascii_only in (False, True)}
        forms |= level
    forms |= {re.sub(r"\\u[0-9a-f]{4}", lambda m: m[0][:2] + m[0][2:].upper(), form) for form in forms}
    forms |= {form.replace("/", "\\/") for form in forms}
    return {form.encode() for form in forms}


def spans_of(text: bytes, secrets: tuple[str, ...]) -> list[Span]:
    found: list[Span] = []
    for secret in secrets:
        for form in exact_forms(secret):
            found += [
                (m.start(), -1, m.start() + len(form), "exact") for m in re.finditer(b"(?=%b)" % re.escape(form), text)
            ]
    for order, (name, before, value, accept, boundary) in enumerate(PLAIN_RULES):
        for at in range(len(text)):
            edge = at == 0 or text[at - 1] not in WORD or re.search(rb"\\(?:[bfnrt]|u[0-9a-fA-F]{4})\Z", text[:at])
            head = re.compile(before).match(text, at) if edge or not boundary else None
            match = re.compile(value).match(text, head.end()) if head else None
            if match and accept(match[0]):
                found.append((match.start(), order, match.end(), name))
    for begin in re.finditer(PEM % b"BEGIN", text):
        end = re.compile(PEM % b"END").search(text, begin.end())
        found.append((begin.start(), 9, end.end() if end else len(text), "private-key"))
    return sorted(found)


def united(found: list[Span]) -> list[Span]:
    spans: list[Span] = []
    for start, order, end, name in found:
        if spans and start < spans[-1][2]:
            spans[-1] = (*spans[-1][:2], max(end, spans[-1][2]), spans[-1][3])
        else:
            spans.append((start, order, end, name))
    return spans


def replaced(text: bytes, spans: list[Span], shift: int = 0) -> str:
    for start, _, end, name in reversed(spans):
        if start >= shift:
            text = text[: start - shift] + b"[redacted:" + name.encode() + b"]" + text[end - shift :]
    return text.decode()


def plain_text(text: str, secrets: tuple[str, ...], key: str | None = None) -> str:
    data = text.encode()
    found = spans_of(data, secrets)
    if key is not None:
        joined = key.encode() + b'":"'
        crossing = [s for s in spans_of(joined + data, ()) if s[0] >= len(joined)]
        found = sorted({*found, *((a - len(joined), n, b - len(joined), name) for a, n, b, name in crossing)})
    return replaced(data, united(found))


def surfaced(text: str, secrets: tuple[str, ...]) -> str:
    deeper = re.sub(r"\\{1,8}u00([2-7][0-9a-fA-F])", lambda m: chr(int(m[1], 16)), text)
    return deeper if deeper != text and spans_of(deeper.encode(), secrets) else text


def each_string(value: Any, change: Callable[[str, str | None], str], key: str | None = None) -> Any:
    if isinstance(value, str):
        return change(value, key)
    if isinstance(value, list):
        return [each_string(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name, None): each_string(item, change, name) for name, item in value.items()}
    return value


def reference(value: Any, secrets: tuple[str, ...]) -> Any:
    value = each_string(value, lambda text, _: surfaced(text, secrets))
    while True:
        after = each_string(value, lambda text, key: plain_text(text, secrets, key))
        if after == value:
            return after
        value = after


# --- what it is fed

FRAGMENTS = (
    *("sk-", "sk-ant-", "Bearer ", "bearer ", "BEARER  ", "Authorization", "authorization", "AUTHORIZATION"),
    *(
        ": ",
        ":",
        "=",
        "=\t",
        "Basic ",
        "Token\t",
        "apikey ",
        '"',
        "'",
        '": "',
        "\\",
        "\n",
        "\t",
        "/",
        "\\/",
        "\\n",
        "\\t",
        "\\u0073",
    ),
    *(
        "\\u002b",
        "\\u003d",
        "\\\\u0020",
        "abc",
        "task-",
        "aB3dE5fG7hJ9kL1m",
        "abcdefghijklmnopqrstuvwxyz",
        "x" * 30,
        "12345678",
        "-",
    ),
    *(
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "RSA PRIVATE KEY-----",
        "-----END ",
        "-----END RSA PRIVATE KEY-----",
    ),
    *("é", "\u2028", "\x01", "\x7f", "[redacted:", "[", "]", "<", ",", ";", " ", "u002", "redacted"),
    *(EXACT, EXACT[:7], EXACT[7:], PLAIN_EXACT, PLAIN_EXACT[:7], DIGITS, ESCAPED, ESCAPED[1:], "\n" + ESCAPED[1:]),
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)
deeper = texts.map(lambda text: json.dumps({"a": text}))
values = st.recursive(
    texts | deeper | deeper.map(json.dumps) | st.integers(0, 10**9) | st.just(int(DIGITS)) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(["Authorization", "authorization", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def record(data: Any) -> dict[str, Any]:
    head = {"seq": 12, "ts": "2026-11-29T20:45:01.123456Z", "event": "tool.call.finished", "session": SESSION}
    return head | {"run": "ab", "data": data}


def encoded(value: Any, escapes: st.DataObject | None) -> bytes:
    """One line; with `escapes`, as an encoder might write it that escapes more than it must."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if escapes is not None:
        every = escapes.draw(st.integers(1, 7))
        pieces = re.findall(r"\\u....|\\.|[^\\]", line, re.DOTALL)
        inside = False
        for at, piece in enumerate(pieces):
            inside ^= piece == '"'
            if inside and at % every == 0 and len(piece) == 1 and " " <= piece < "\x7f" and piece != '"':
                pieces[at] = f"\\u{ord(piece):04x}"
            elif inside and piece == "/" and at % 2:
                pieces[at] = "\\/"
        line = "".join(pieces)
    return line.encode() + b"\n"


def decoded(block: bytes) -> list[Any]:
    lines = block.split(b"\n")
    assert lines.pop() == b""
    for line in lines:
        msgspec.json.decode(line)
    return [json.loads(line) for line in lines]


@given(st.lists(values, min_size=1, max_size=3), st.booleans(), st.data())
def test_it_does_what_a_plain_slow_one_does(data: list[Any], escape: bool, more: st.DataObject) -> None:
    block = b"".join(encoded(record(item), more if escape else None) for item in data)
    redactor = Redactor(SECRETS)
    result = redactor.redact(block)
    assert decoded(result) == [record(reference(item, SECRETS)) for item in data]
    assert redactor.redact(result) == result


@given(st.lists(values, max_size=3))
def test_lines_alone_and_lines_together_come_out_the_same(data: list[Any]) -> None:
    lines = [encoded(record(item), None) for item in data]
    redactor = Redactor(SECRETS)
    assert redactor.redact(b"".join(lines)) == b"".join(map(redactor.redact, lines))


@given(plain_json, st.lists(st.text(min_size=1, max_size=10), max_size=3))
def test_a_record_stays_a_record_whatever_is_called_secret(value: Any, secrets: list[str]) -> None:
    line = encoded(record(value), None)
    odd = (
        "123456",
        '"seq":',
        '","event":"',
        SESSION,
        "tool.call.finished",
        "session",
        ',"data":',
        "2026-11",
        "1,2,3,4",
        "}}}}}}",
    )
    block = Redactor((*secrets, *odd)).redact(line * 2)
    assert block.count(b"\n") == 2
    for part in block.split(b"\n")[:-1]:
        parsed = parse_record(part)
        assert parsed is not None
        assert (parsed[0].seq, parsed[0].session) == (12, SESSION)


# --- canaries

TOKEN = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v"
PEM_TEXT = f"-----BEGIN RSA PRIVATE KEY-----\n{TOKEN}\n{TOKEN}==\n-----END RSA PRIVATE KEY-----"
CANARIES = {
    "sk": (f"sk-{TOKEN}", "[redacted:sk-key]"),
    "sk-ant": (f"sk-ant-api03-{TOKEN}", "[redacted:sk-key]"),
    "long sk": ("sk-" + TOKEN * 40, "[redacted:sk-key]"),
    "bearer": (f"Bearer {TOKEN}", "Bearer [redacted:bearer]"),
    "long bearer": (f"Bearer {TOKEN * 300}", "Bearer [redacted:bearer]"),
    "bearer with slashes": (f"bearer {TOKEN}/+{TOKEN}==", "bearer [redacted:bearer]"),
    "header": (f"Authorization: Basic {TOKEN}==", "Authorization: Basic [redacted:authorization]"),
    "header with a tab": (f"Authorization:\tBasic {TOKEN}==", "Authorization:\tBasic [redacted:authorization]"),
    "header without a scheme": (f"authorization={TOKEN}", "authorization=[redacted:authorization]"),
    "short password": ("Authorization: Basic ab:cd", "Authorization: Basic [redacted:authorization]"),
    "password with an umlaut": (f"Authorization: Basic pä{TOKEN}", "Authorization: Basic [redacted:authorization]"),
    "python dict": (f"{{'Authorization': 'Token {TOKEN}'}}", "{'Authorization': 'Token [redacted:authorization]'}"),
    "pem": (PEM_TEXT, "[redacted:private-key]"),
    "exact": (EXACT, "[redacted:exact]"),
    "exact plain": (PLAIN_EXACT, "[redacted:exact]"),
    "exact digits": (DIGITS, "[redacted:exact]"),
}
AROUND = ("{}", "see {} there", "a\n{}\nb", 'x="{}"', "\t{}", "C:\\{}", "a\x01{}", "é{}", "({} )")


def forms_of(text: str) -> dict[str, str]:
    once = json.dumps(text)[1:-1]
    return {
        "plain": text,
        "escaped once": json.dumps({"a": text}),
        "escaped once, without ASCII escapes": json.dumps({"a": text}, ensure_ascii=False),
        "escaped twice": json.dumps({"a": json.dumps({"b": text})}),
        "after a literal newline escape": f"line\\n{once}",
        "slashes escaped": json.dumps({"a": text}).replace("/", "\\/"),
    }


@pytest.mark.parametrize("name", CANARIES)
def test_each_kind_is_found_at_every_depth_and_beside_everything(name: str) -> None:
    secret, shown = CANARIES[name]
    redactor = Redactor(SECRETS)
    for around in AROUND:
        for form, text in forms_of(around.format(secret)).items():
            for line in (
                encoded({"seq": 1, "data": text}, None),
                json.dumps({"seq": 1, "data": text}).encode() + b"\n",
            ):
                result = decoded(redactor.redact(line))[0]["data"]
                assert TOKEN not in result, (form, around)
                assert secret not in result, (form, around)
                assert "[redacted:" in result, (form, around)
                if form == "plain":
                    assert result == around.format(shown)


@pytest.mark.parametrize("secret", [f"sk-{TOKEN}", f"Bearer {TOKEN}", PLAIN_EXACT])
def test_ascii_that_is_hidden_in_escapes_is_found(secret: str) -> None:
    hidden = "".join(f"\\u{ord(char):04x}" for char in secret)
    upper = "".join(f"\\u{ord(char):04X}" for char in secret)
    half = "".join(char if at % 2 else f"\\u{ord(char):04x}" for at, char in enumerate(secret))
    redactor = Redactor(SECRETS)
    for text in (hidden, upper, half):
        for depth in (text, text.replace("\\", "\\\\"), text.replace("\\", "\\\\\\\\")):
            result = redactor.redact(b'{"seq":1,"data":"say %b now"}\n' % depth.encode())
            value = decoded(result)[0]["data"]
            assert value.startswith("say ")
            assert value.endswith("] now")


def test_text_that_only_looks_hidden_is_kept_as_it_is() -> None:
    line = encoded({"seq": 1, "data": "print('\\u0041\\u0020')"}, None)
    assert decoded(Redactor().redact(line)) == [{"seq": 1, "data": "print('\\u0041\\u0020')"}]


def test_a_key_and_its_value_are_one_header() -> None:
    line = encoded({"seq": 1, "data": {"Authorization": f"Basic {TOKEN}", "authorization": TOKEN, "x": "y"}}, None)
    assert decoded(Redactor().redact(line))[0]["data"] == {
        "Authorization": "Basic [redacted:authorization]",
        "authorization": "[redacted:authorization]",
        "x": "y",
    }


@pytest.mark.parametrize(
    "text",
    [
        "risk-based-assessment-of-everything-2",
        "task-management-system-with-many-words",
        "disk-usage-0123456789abcdef01",
        "sk-loading-spinner-dots-pulse",
        "a sk- alone, and sk-short1",
        "Bearer of bad news", "the bearer instrument",
        "Authorization: required", "authorization: see below", "Authorization failed with 401",
        "authorization_code", "0123456789abcdef0123456789abcdef01234567",
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----",
        "ctrl\rsk-\x08sk-",
    ],
)  # fmt: skip
def test_ordinary_text_is_untouched(text: str) -> None:
    for form in forms_of(text).values():
        line = encoded({"seq": 1, "data": {"text": form, form: 1}}, None)
        assert Redactor(SECRETS).redact(line) is line


def test_numbers_are_never_secrets() -> None:
    usage = {"input_tokens": 20261129, "max_tokens": 123456789, "list": [20261129, 1.5], "authorization": 1234567890123}
    line = encoded({"seq": 20261129, "data": usage}, None)
    assert Redactor(SECRETS).redact(line) == line


@pytest.mark.parametrize(
    "nested", [f'{{"authorization":{n}}}' for n in ("12345678", "[[[12345678]]]", '{"a":12345678}', "null")]
)
def test_structure_is_never_taken_for_a_value(nested: str) -> None:
    line = f'{{"seq":1,"data":{nested}}}\n'.encode()
    assert Redactor(SECRETS).redact(line) == line


def test_exact_values_win_at_the_same_place_and_overlapping_secrets_leave_no_tail() -> None:
    redactor = Redactor(("12345678,tail-of-it", f"sk-{TOKEN[:16]}", "tail Bearer "))
    for text, shown in (
        ("Authorization: 12345678,tail-of-it", "Authorization: [redacted:exact]"),
        (f"sk-{TOKEN}", "[redacted:exact]"),
        (f"a tail Bearer {TOKEN}", "a [redacted:exact][redacted:bearer]"),
    ):
        assert decoded(redactor.redact(encoded({"seq": 1, "data": text}, None)))[0]["data"] == shown


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":1,"data":"\\u0073k-\n',
        b'{"seq":1,"data":"\\u0073k-' + TOKEN.encode() + b'\xff"}\n',
        b'{"seq":1,"data":["\\u0020",1e999]}\n',
        b'{"seq":1,"data":["\\u0020",NaN]}\n',
        b'{"seq":1,"data":' + b"[" * 3000 + b'"\\u0020"' + b"]" * 3000 + b"}\n",
    ],
)
def test_what_hides_text_and_cannot_be_decoded_is_never_stored(line: bytes) -> None:
    redactor = Redactor()
    with pytest.raises(CannotRedact):
        redactor.redact(line)
    with pytest.raises(CannotRedact):
        redactor.redact(line_of(1) + line)


@given(st.binary(max_size=80))
def test_bytes_that_are_no_json_still_lose_their_secrets(noise: bytes) -> None:
    line = noise.replace(b"\n", b"").replace(b"\\", b"") + b" sk-" + TOKEN.encode() + b"\n"
    result = Redactor().redact(line)
    assert TOKEN.encode() not in result
    assert result.count(b"\n") == 1


def test_a_block_without_anchors_is_not_even_copied() -> None:
    block = lines_of(1, 100)
    assert Redactor(SECRETS).redact(block) is block


@pytest.mark.parametrize("secret", ["", "short", "redacted", "exact]", "[redacted:"])
def test_what_is_too_short_or_part_of_a_marker_is_no_exact_value(secret: str) -> None:
    assert len(secret) < MIN_EXACT or "[redacted:exact]".find(secret) >= 0
    line = encoded({"seq": 1, "data": f"{secret} sk-{TOKEN}"}, None)
    assert decoded(Redactor((secret,)).redact(line))[0]["data"] == f"{secret} [redacted:sk-key]"


@pytest.mark.parametrize(
    "text",
    ["sk-" * 80_000, "authorization=" * 18_000, "-----BEGIN PRIVATE KEY-----" * 9_000, "Bearer " * 35_000, "123456" * 40_000,
     '"' * 100_000 + "123456", "\\" * 100_000 + "authorization=" * 100, "Authorization: Basic " * 12_000],
)  # fmt: skip
def test_a_line_full_of_anchors_takes_no_more_than_linear_time(text: str) -> None:
    line = encoded({"seq": 1, "data": text, "numbers": [123456] * 1000}, None)
    assert Redactor(("123456",)).redact(line).count(b"\n") == 1
