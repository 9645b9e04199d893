"""The redaction funnel: equal to a plain slow one, JSON stays JSON, lines stay lines, nothing fails open."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.strategies import SESSION, line_of, lines_of, plain_json
from tests.tracewriter.hostile_texts import hostile
from tests.tracewriter.redact_reference import reference, unanchored
from tracewriter.redact import MIN_EXACT, CannotRedact, Redactor
from tracewriter.redact_anchors import AUTOMATA
from tracewriter.redact_hidden import ANCHOR
from tracewriter.redact_names import NAMES
from tracewriter.redact_rules import SECRETS
from tracewriter.scan import parse_record

EXACT = 'pass"word\\1 é/x'
PLAIN_EXACT = "hunter2hunter2"
DIGITS = "20261129"
ESCAPED = "normal-secret"  # after a newline escape, half of its first letter belongs to the escape
EXACTS = (EXACT, PLAIN_EXACT, DIGITS, ESCAPED)
TOKEN = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v"
ALL_ANCHORS = sorted({text.decode() for rule in (*SECRETS, *NAMES) for text, _ in rule.anchors})

FRAGMENTS = (
    *ALL_ANCHORS,
    *("sk-", "sk-ant-", "Bearer ", "Authorization", "authorization: ", "Basic ", "Token\t", "ghp_", "xoxb-", "glpat-", "AKIA"),
    *("password", "PASSWORD=", "api_key", "apiKey", "client_secret", "access_token", "--token ", "Cookie: a=", "login x password "),
    *("https://", "://u:", "@host", "@", ":8080/", "eyJhbGciOi.eyJzdWIi.", "-----BEGIN PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"),  # noqa: E501
    *(": ", ":", "=", " = ", "=>", ":=", '": "', '\\": \\"', '="', "='", '"', "'", "`", "\\", "\\\\", "\n", "\t", "/", "\\/", "\\n"),  # noqa: E501
    *("\\u0073", "\\u002b", "\\\\u0020", "abc", "task-", "aB3dE5fG7hJ9kL1m", "abcdefghijklmnopqrstuvwxyz", "0123456789abcdef" * 2),
    *("A1B2C3D4E5F6G7H8", "x" * 30, "12345678", "-", "é", "\u2028", "\x01", "\x7f", "[redacted:", "[redacted:exact]", "[", "]", "<"),  # noqa: E501
    *(",", ";", " ", "(", ")", "{", "}", "&", "$", "${X}", "None", "u002", "%20", "\x1b[31m", "redacted", ".", "_", "s_", "token", "key"),  # noqa: E501
    *(EXACT, EXACT[:7], EXACT[7:], PLAIN_EXACT, PLAIN_EXACT[:7], DIGITS, ESCAPED, ESCAPED[1:], "\n" + ESCAPED[1:]),
)  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)
deeper = texts.map(lambda text: json.dumps({"a": text}))
values = st.recursive(
    texts | deeper | deeper.map(json.dumps) | st.integers(0, 10**9) | st.just(int(DIGITS)) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(["Authorization", "password", "token", "x"]), inner, max_size=3)
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


def test_every_anchor_is_searched_for_once_and_few_enough_at_a_time() -> None:
    searched = [anchor for anchors in AUTOMATA for anchor in anchors]
    assert sorted(searched) == sorted({ANCHOR, *(text.encode() for text in ALL_ANCHORS)})
    assert all(len(anchors) <= 32 for anchors in AUTOMATA)
    assert all(len(anchor) >= 3 for anchor in searched)


@given(st.lists(values, min_size=1, max_size=3), st.booleans(), st.data())
def test_it_does_what_a_plain_slow_one_does(data: list[Any], escape: bool, more: st.DataObject) -> None:
    lines = [encoded(record(item), more if escape else None) for item in data]
    redactor = Redactor(EXACTS)
    result = redactor.redact(b"".join(lines))
    assert result == b"".join(reference(line[:-1], EXACTS) + b"\n" for line in lines)
    decoded(result)
    assert redactor.redact(result) == result


@pytest.mark.parametrize(
    "value",
    [
        {"password": '{"a": " -u  -u  -u  -u aB3dE5fG7hJ9kL1mPASS=-user"}'},
        {"Authorization": "_v1_-END ,AGE-SECRET-KEY-1"},
        {"Authorization": f"Bearer {TOKEN} ,{TOKEN}"},
        f"curl -u admin:{TOKEN} -u admin:[redacted:password] https://h/",
        " -u  -u PWD:8080/",
        "curl -u PASS:x1y2/z3,w4 ok",
        {"token": "{password=x1y2z3}" + " ." * 20, "secret": "<password: 'x1y2z3'>"},
    ],
)
def test_what_was_redacted_once_stays_as_it_is(value: Any) -> None:
    line = encoded(record(value), None)
    redactor = Redactor(EXACTS)
    block = redactor.redact(line)
    decoded(block)
    assert block != line
    assert redactor.redact(block) == block == reference(line[:-1], EXACTS) + b"\n"


@given(values)
@example("\\/\\/:AA@host")
@example("https:\\/\\/u:AA@host")
def test_no_rule_matches_where_none_of_its_anchors_is(value: Any) -> None:
    assert unanchored(encoded(record(value), None)) == []


@given(st.lists(values, max_size=3))
def test_lines_alone_and_lines_together_come_out_the_same(data: list[Any]) -> None:
    lines = [encoded(record(item), None) for item in data]
    redactor = Redactor(EXACTS)
    assert redactor.redact(b"".join(lines)) == b"".join(map(redactor.redact, lines))


@given(st.lists(values, min_size=1, max_size=2), st.integers(0, 80_000))
def test_where_a_long_block_is_cut_for_the_search_does_not_matter(data: list[Any], before: int) -> None:
    redactor = Redactor(EXACTS)
    lines = b"".join(encoded(record(item), None) for item in data)
    filling = b'{"seq":1,"data":"%b"}\n'
    block = filling % (b"." * before) + lines + filling % (b"." * (200_000 - before))
    assert redactor.redact(block) == filling % (b"." * before) + redactor.redact(lines) + filling % (
        b"." * (200_000 - before)
    )


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


def test_a_session_named_like_a_key_keeps_its_name() -> None:
    line = encoded(record("x") | {"session": "sk-abcdefghij0123456789"}, None)
    assert Redactor().redact(line) == line


@given(st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=4), st.text("ab", max_size=60))
def test_exact_values_that_overlap_leave_no_tail(secrets: list[str], text: str) -> None:
    covered = {at for s in secrets for i in range(len(text)) if text.startswith(s, i) for at in range(i, i + len(s))}
    kept = "".join("." if at in covered else char for at, char in enumerate(text))
    assert re.sub(r"(?:\[redacted:exact\])+", ".", Redactor(tuple(secrets)).redact_text(text)) == re.sub(
        r"\.+", ".", kept
    )


def test_what_it_did_is_counted_by_rule_and_a_text_can_be_redacted_alone() -> None:
    redactor = Redactor((PLAIN_EXACT,))
    line = encoded(record([f"sk-{TOKEN} and ghp_{TOKEN}", {"password": "x1y2z3"}, PLAIN_EXACT, f"ghp_{TOKEN}"]), None)
    block, counts = redactor.redact_counted(line + line)
    assert block == redactor.redact(line + line)
    assert counts == {"sk-key": 2, "github": 4, "password": 2, "exact": 2}
    assert redactor.redact_counted(block) == (block, {})
    assert redactor.redact_text(f'say "{PLAIN_EXACT}"\n') == 'say "[redacted:exact]"\n'
    assert redactor.redact_text("nothing here \ud800") == "nothing here \ud800"


@pytest.mark.parametrize(
    "secret", [f"sk-{TOKEN}", f"Bearer {TOKEN}", PLAIN_EXACT, 'password="x1y2z3"', f"https://u:{TOKEN}@h/"]
)
def test_ascii_that_is_hidden_in_escapes_is_found(secret: str) -> None:
    hidden = "".join(f"\\u{ord(char):04x}" for char in secret)
    upper = "".join(f"\\u{ord(char):04X}" for char in secret)
    half = "".join(char if at % 2 and char != '"' else f"\\u{ord(char):04x}" for at, char in enumerate(secret))
    redactor = Redactor(EXACTS)
    for text in (hidden, upper, half):
        for depth in (text, text.replace("\\", "\\\\"), text.replace("\\", "\\\\\\\\")):
            result = redactor.redact(b'{"seq":1,"data":"say %b now"}\n' % depth.encode())
            value = decoded(result)[0]["data"]
            assert value.startswith("say ")
            assert value.endswith(" now")
            assert "[redacted:" in value
            assert not any(part in value for part in (TOKEN, PLAIN_EXACT, "x1y2z3"))


def test_text_that_only_looks_hidden_is_kept_as_it_is() -> None:
    line = encoded({"seq": 1, "data": "print('\\u0041\\u0020')"}, None)
    assert decoded(Redactor().redact(line)) == [{"seq": 1, "data": "print('\\u0041\\u0020')"}]


def test_numbers_are_never_secrets() -> None:
    usage = {
        "input_tokens": 20261129,
        "max_tokens": 123456789,
        "list": [20261129, 1.5],
        "authorization": 1234567890123,
        "password": 123456,
    }
    line = encoded({"seq": 20261129, "data": usage}, None)
    assert Redactor(EXACTS).redact(line) == line


@pytest.mark.parametrize("name", ["authorization", "password", "token", "cookie", "api_key"])
@pytest.mark.parametrize(
    "value", ["12345678", "[[[12345678]]]", '{"a":12345678}', "null", '["abc12345"]', '{"a1b2c3d4":"x"}']
)
def test_structure_is_never_taken_for_a_value(name: str, value: str) -> None:
    for text in (
        f'{{"{name}":{value}}}',
        f'["{name}",{value}]',
        f'{{"a":"{name}: ","b":{value}}}',
        f'["{name}=",{value},"x9y8z7w6"]',
    ):
        line = f'{{"seq":1,"data":{text}}}\n'.encode()
        assert Redactor().redact(line) == line


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":1,"data":"\\u0073k-\n',
        b'{"seq":1,"data":"\\u0073k-' + TOKEN.encode() + b'\xff"}\n',
        b'{"seq":1,"data":["\\u0020",1e999]}\n',
        b'{"seq":1,"data":["\\u0020",NaN]}\n',
        b'{"seq":1,"data":' + b"[" * 3000 + b'"\\u0020"' + b"]" * 3000 + b"}\n",
        b'{"seq":1,"data":"' + b" ghp_ " * 30_000 + b'"}\n',
    ],
)
def test_what_cannot_be_redacted_is_never_stored(line: bytes) -> None:
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
    assert Redactor(EXACTS).redact(block) is block


@pytest.mark.parametrize("secret", ["", "short", "redacted", "exact]", "[redacted:"])
def test_what_is_too_short_or_part_of_a_marker_is_no_exact_value(secret: str) -> None:
    assert len(secret) < MIN_EXACT or "[redacted:exact]".find(secret) >= 0
    line = encoded({"seq": 1, "data": f"{secret} sk-{TOKEN}"}, None)
    assert decoded(Redactor((secret,)).redact(line))[0]["data"] == f"{secret} [redacted:sk-key]"


@pytest.mark.parametrize("name", sorted(dict(hostile())))
def test_a_hostile_line_is_redacted_or_refused_and_stays_one_line(name: str) -> None:
    text = dict(hostile())[name]
    line = encoded({"seq": 1, "data": (text * (1 + 40_000 // len(text)))[:40_000], "numbers": [123456] * 100}, None)
    try:
        block = Redactor(("123456", "aaaaaa")).redact(line)
    except CannotRedact:
        return
    assert decoded(block)[0]["numbers"] == [123456] * 100
    assert Redactor(("123456", "aaaaaa")).redact(block) == block


def test_a_text_of_many_secrets_may_be_cut_into_lines_anywhere() -> None:
    found = {
        f"export API_TOKEN={TOKEN}": TOKEN,
        f"ghp_{TOKEN}x": f"ghp_{TOKEN}x",
        "postgres://app:s3cr3t-9@db/x": "s3cr3t-9",
        '{"password": "tr0ub4dor"}': "tr0ub4dor",
        f"Authorization: Basic {TOKEN[:20]}==": f"{TOKEN[:20]}==",
        f"-----BEGIN PRIVATE KEY-----\n{TOKEN * 2}\n-----END PRIVATE KEY-----": TOKEN * 2,
        f"say {PLAIN_EXACT} twice": PLAIN_EXACT,
    }
    text = "\n".join(found) + "\n"
    places = {part: (text.index(part), text.index(part) + len(part)) for part in found}
    redactor = Redactor(EXACTS)
    for cut in range(len(text) + 1):
        lines = [encoded(record(part), None) for part in (text[:cut], text[cut:])]
        block = redactor.redact(b"".join(lines))
        assert block == b"".join(map(redactor.redact, lines))
        assert redactor.redact(block) == block
        left, right = (item["data"] for item in decoded(block))
        for part, secret in found.items():
            start, end = places[part]
            whole = left if end <= cut else right if start >= cut else None
            assert whole is None or secret not in whole, (cut, part)


def test_a_thousand_named_values_are_all_found_where_they_overlap_too() -> None:
    """Each begins with the end of the one before; comparing all pairs of forms when a session is opened took minutes."""
    secrets = tuple(f"{n:024d}Q{n + 1:024d}" for n in range(0, 2000, 2))
    redactor = Redactor(secrets)
    for first in (0, 998, 1996):
        text = f"{first:024d}Q{first + 1:024d}"
        line = b'{"seq":1,"data":"%s"}\n' % text.encode()
        assert redactor.redact(line) == b'{"seq":1,"data":"[redacted:exact]"}\n'
    chained = Redactor(("abcdefgh", "efghijkl", "ijklmnop"))
    assert chained.redact(b'{"seq":1,"data":"abcdefghijklmnop."}\n') == b'{"seq":1,"data":"[redacted:exact]."}\n'
