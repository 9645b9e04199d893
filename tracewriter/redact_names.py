"""The rules of redaction, as data: secrets known by the name before them, `password: …` and `"apiKey": "…"` and `DB_PASS=…`.

What follows a name is most often code that talks about secrets and holds none: `token = next(tokens)`, `password: str`. So a
value without quotes must not read like code, and how much a quoted one must look like a secret depends on the name.

Quotes come escaped as deep as JSON is nested in text: n backslashes before the opening one mean n before the closing one, and
more for those that belong to the value. A quote without any is the JSON of the record itself: then it must close the name too,
else it is the end of another string.
"""

from __future__ import annotations

import re
from typing import Final

from tracewriter.redact_rules import MARKER, SLASH, Judge, Rule, Span

_SPACE: Final = rb"(?:[ \t]|\\{1,8}+t)"
_WIDE: Final = rb"\\{1,8}u(?!00[01])[0-9a-fA-F]{4}"  # what JSON may escape and passwords contain
_BACKSLASH: Final = rb"(?:\\\\){1,8}(?![nrtbfu\"'`\\/])"
_UNIT: Final = SLASH + b"|" + _WIDE + b"|" + _BACKSLASH + b"|" + MARKER
_BARE_CLASS: Final = rb"[^\x00-\x20\"'`\\<>()\[\]{},;&|]"
_ENV_CLASS: Final = rb"[^\x00-\x20\"'`\\<>\[\]]"
_BARE: Final = b"(?:" + _BARE_CLASS + b"{1,64}+|" + _UNIT + b"){1,2}+"  # what is judged; the rest is taken with it
_ENV: Final = b"(?:" + _ENV_CLASS + b"{1,64}+|" + _UNIT + b"){1,2}+"
_REST: Final = {
    "bare": re.compile(b"(?:" + _BARE_CLASS + b"++|" + _UNIT + b")*+"),
    "env": re.compile(b"(?:" + _ENV_CLASS + b"++|" + _UNIT + b")*+"),
}


def _body(depth: int) -> bytes:
    """What stands between quotes with `depth` backslashes before each: up to the closing one, or the end of the line."""
    line_end = b"" if depth == 0 else rb"(?!\\{%d}[nr])" % ((depth + 1) // 2)
    closing = rb"(?:\\{%d})*+\\{%d}\"" % (2 * depth + 2, depth)
    return rb"(?:[^\"\\\n]++|%b\\++(?!\")|(?!%b)(?:\\\\){%d,}+\\\")*+" % (line_end, closing, (depth + 1) // 2)


def _quoted_value() -> bytes:
    escaped = b"|".join(rb"\\{%d}\"(?P<q%d>%b)" % (depth, depth, _body(depth)) for depth in (1, 3, 7, 15))
    single = rb"\\{0,8}'(?P<single>(?:[^'\"\\\n]++|(?!\\[nr])(?:\\++(?!\")'?+|(?:\\\\)*+\\\"))*+)"
    back = rb"`(?P<back>(?:[^`\"\\\n]++|(?!\\[nr])(?:\\++(?!\")`?+|(?:\\\\)*+\\\"))*+)"
    return b"(?:[bBrRfFuU]{1,2}(?=[\\\\'\"`]))?(?:" + escaped + b"|" + single + b"|" + back + b")"


# A block of YAML, `password: |`: how many backslashes a newline has says which quotes are inside
_SCALAR_HEAD: Final = rb":[ ][|>][+-]?(?P<sl>\\{1,8})(?:r(?P=sl))?n(?P<indent>[ ]{1,16}+)"
_SCALAR_LINE: Final = rb"(?:[^\"\\\n]%b|(?!(?P=sl)[nr])(?:(?P=sl)\\*+\"|\\++(?!\")))"
_SCALAR: Final = re.compile(
    _SCALAR_HEAD + rb"(?P<scalar>%b*+(?:(?P=sl)(?:r(?P=sl))?n(?P=indent)%b*+)*+)" % ((_SCALAR_LINE % b"++",) * 2)
)

_ANNOTATION: Final = rb"(?:[?!]?:[ ]?&?[A-Za-z_][A-Za-z0-9_.]{0,30}(?:\[[A-Za-z0-9_., |]{0,40}\])?(?:[ ]?\|[ ]?[A-Za-z]{1,12}){0,2}[ ]?(?==))?"  # noqa: E501
_TO: Final = rb"(?:=>|:=|={1,3}|[?!]?:(?!:))"
_NAME_END: Final = rb"(?:(?:\\{1,15}\"|\\{0,8}['`])\]?)?" + _SPACE + rb"{0,8}+"
_VALUE: Final = (
    rb"(?:\"[ ]?:[ ]?\"(?P<json>(?:[^\"\\\n]++|\\[^\n])*+)|"
    + _NAME_END + _ANNOTATION + rb"(?:" + _TO + _SPACE + rb"{0,8}+(?:" + _quoted_value()
    + rb"|(?P<bare>" + _BARE + rb"))|"
    + rb",[ ]?(?:\\{1,15}\"(?P<item>[^\"'\\\n]{8,}+)|'(?P<item1>[^\"'\\\n]{8,}+)))"
    + b"|" + _SCALAR_HEAD + b"(?P<scalar>" + _SCALAR_LINE % b"" + rb"{3,256}+)"
    + rb"|\"[ ]?,[ ]?\"[vV]alue\"[ ]?:[ ]?\"(?P<pair>(?:[^\"\\\n]++|\\[^\n])*+)"  # {"name": "DB_PASSWORD", "value": "…"}
    + rb"|\\{1,15}\"(?:[ ]?,[ ]?\\{1,15}\"[vV]alue\\{1,15}\"[ ]?:[ ]?|[ ][vV]alue=)\\{1,15}\"(?P<pair1>[^\"\\\n]{3,}+)"
    + rb"|>(?P<xml>[^\x00-\x20<>\"'\\]{1,2048}+)<" + SLASH
    + rb"|" + _SPACE + rb"{1,4}+(?:\\{1,8}\"|\\{0,8}')?(?P<option>" + _BARE + rb"))"
)  # fmt: skip

_SIGNS: Final = re.compile(
    rb"(?:[A-Za-z]{3,6} )?(?:[$%#@]?\{[^}]{0,64}\}|\$(?:\(|(?:[A-Z_][A-Z0-9_]*|[a-z_]+)(?![A-Za-z0-9!@#])))"
    rb"|%[sdr](?![A-Za-z0-9])|%\(|<[^>]{0,64}(?:>|\Z)|\(*\(\?|:?\*+\Z|\xe2\x80\xa6|\.{2,}|-+\Z|\[[A-Z]{2,9}\]\Z|(?:"
    + MARKER
    + rb")+\Z"
)
_SIGN: Final = re.compile(rb"[^A-Za-z0-9]|[A-Za-z]{3,6} [$%#@{]")
_EMPTY: Final = frozenset(
    b"null none nil true false undefined string str text bytes required optional hidden invalid missing n/a empty unset env tbd todo"  # noqa: E501
    b" changeme xxx xxxx xxxxx xxxxxx xxxxxxxx".split()
)
_OWN: Final = tuple(b"password passwd passphrase pwd secret token key passwords secrets tokens keys".split())
_LABEL: Final = re.compile(
    rb"(?:my|your|new|old|current|api|access|auth|client|refresh|user|the|x|a)?[-_ .]?(?:api|client|access)?[-_ ]?"
    rb"(?:pass(?:word|wd|phrase)|pwd|secret|token|key)s?\Z"
)
_TO_FILL: Final = re.compile(
    rb"(?:your|my|the|an?|some|enter|insert|replace|change|put|example)[-_ ].*\b(?:key|token|secret|password|here|me|it)",
    re.DOTALL,
)
_FILLS: Final = (b"your", b"my", b"the", b"a", b"some", b"enter", b"insert", b"replace", b"change", b"put", b"example")
_VARIABLE: Final = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z")


def _is_placeholder(value: bytes) -> bool:
    """What stands where a secret will be: `${TOKEN}`, `<password>`, `your-key-here`, a marker, the name of a variable."""
    if value.isalnum() and not value.isalpha():
        return False
    if _SIGN.match(value) and _SIGNS.match(value):
        return True
    lower = value.lower()
    if lower in _EMPTY:
        return True
    if lower.endswith(_OWN) and _LABEL.match(lower):
        return True
    if lower.startswith(_FILLS) and _TO_FILL.match(lower):
        return True
    return b"_" in value and _VARIABLE.match(value) is not None


_SENTENCE: Final = re.compile(
    rb"(?is)(?=[^ ]{1,64} ).*\b(?:must|should|required|invalid|incorrect|your|enter|cannot|please|forgot|reset|confirm|is|are|was|the|for)\b"  # noqa: E501
)
_PATH: Final = re.compile(rb"(?:~|\.{1,2})?(?:/[A-Za-z_.][a-z_.-]*)+/?[a-z0-9_.-]*\Z|/\Z|[A-Za-z]:\\")
_IN_CALL: Final = re.compile(rb"[A-Za-z_]+[),\]}]")
_CALL: Final = re.compile(rb"[A-Za-z_$][A-Za-z0-9_$.]*[(\[]|!|&[A-Za-z]|await\Z|new\Z|lambda\b")
_DOTTED: Final = re.compile(rb"[A-Za-z_$][A-Za-z0-9_$]*[?!]?(?:\.[A-Za-z_$][A-Za-z0-9_$]*[?!]?)+\Z")
_WORDS: Final = re.compile(rb"[A-Za-z_./:?!*-]*\Z")
_NUMBER: Final = re.compile(rb"[-+]?[0-9][0-9_.,]*(?:[eE][+-]?[0-9]+)?[kKmM]?\Z")
_ASSIGNED: Final = re.compile(rb"[A-Za-z0-9_-]*(?:=|[ \t]+)\Z")  # `password=1234`; in JSON it would be a number
_OWN_WORD: Final = re.compile(rb"(?i)(?:pass|pwd|secret|token|key)[a-z_]{0,12}[0-9]{0,2}\Z")
_IDENTIFIER: Final = re.compile(rb"[A-Za-z_]+[0-9]{0,2}\Z")
_NAME_BYTES: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_BEFORE_OPTION: Final = b" \t\n'\"=`"  # also nothing: the begin of the block
_AFTER_LINE: Final = (b"n-", b"r-", b"t-")  # with the backslash before it, an escape
_BEFORE_VARIABLE: Final = (b"ENV ", b"setenv ", b"set -x ", b"set -gx ", b"set -Ux ", b"WITH ", b"with ")
_BREAK: Final = rb"(?:[ \t]|\\{1,8}[nrt]){1,12}"
_AFTER_LOGIN: Final = re.compile(b"(?:login|user)" + _BREAK + rb"[^\s\"\\]{1,64}" + _BREAK + rb"[A-Za-z]{0,8}\Z")


_CODE_GOES_ON: Final = re.compile(rb",[ ]|\)(?:[,:;) \\]|\Z)")  # the quote before was the end of `"Password: "`


def _any_quoted(value: bytes) -> bool:
    return len(value) >= 3 and not _PATH.match(value) and not _CODE_GOES_ON.match(value)


def _strong_quoted(value: bytes) -> bool:
    if _WORDS.match(value):
        return len(value) >= 8 and not _OWN_WORD.search(value[-32:]) and not _PATH.match(value)
    return len(value) >= 6 and (b" " not in value or len(value.split(b" ")) < 3) and not _NUMBER.match(value)


def _weak_quoted(value: bytes) -> bool:
    if value.isalpha():
        return len(value) >= 24
    digits = re.search(rb"[0-9]", value) is not None
    return b" " not in value and not _NUMBER.match(value) and (len(value) >= 8 if digits else len(value) >= 24)


_ANY: Final = 3
_NEEDED: Final = {"password": _ANY, "strong": 6}  # characters of a value, however it is written
_SHORTEST: Final = {"password": 4, "strong": 6, "weak": 10}
_QUOTED: Final = {"password": _any_quoted, "strong": _strong_quoted, "weak": _weak_quoted}


_LINE_BEGIN: Final = re.compile(rb"(?:\\{1,8}[nr]|[\"\n])(?:[ ]|\\{1,8}t)*(?:- )?[A-Za-z0-9_.-]{0,32}\Z")
_LINE_END: Final = re.compile(rb"[ ]*(?:\\{1,15}[nr\"]|[\"\n]|\Z| #)")
_LETTERS: Final = re.compile(rb"[a-z]{8,}\Z")
_NO_LETTERS: Final = frozenset(
    b"accepted anything basestring changeit correct denylist disabled encrypted external filtered generated incorrect integer"
    b" internal mismatch nullable nonempty plaintext protected provided redacted rejected reserved sensitive something"
    b" unchanged undefined unknown unspecified username varchar verified whatever withheld".split()
)


def _is_yaml_word(block: bytes, found: re.Match[bytes], value: bytes) -> bool:
    """Whether a value of letters alone is the whole rest of a line that begins with its name: `password: correcthorse`."""
    start, end = found.span("bare")
    return (
        block[start - 2 : start] == b": "
        and _LETTERS.match(value) is not None
        and value not in _NO_LETTERS
        and not _is_placeholder(value)
        and not _OWN_WORD.search(value[-32:])
        and _LINE_END.match(block, end) is not None
        and _LINE_BEGIN.search(block[max(0, found.start() - 64) : found.start()]) is not None
    )


def _bare_secret(value: bytes, kind: str) -> bool:
    """Whether a value without quotes is more than code or a word."""
    if _WORDS.match(value):
        return len(value) >= 24 and b"." not in value and not _PATH.match(value)
    own = _IDENTIFIER.match(value) and _OWN_WORD.search(value[-32:])
    if own or _PATH.match(value) or (_DOTTED.match(value) and len(value) < 24):
        return False
    return len(value) >= _SHORTEST[kind]


def _env_secret(value: bytes, kind: str) -> bool:
    if value.isdigit():
        return kind == "password" and len(value) >= 4
    return len(value) >= 3 and not (_PATH.match(value) or _CALL.match(value) or _IN_CALL.match(value))


def _is_option(block: bytes, at: int) -> bool:
    """Whether the name that goes on at `at` is that of an option, or comes after `login bob`, as in .netrc."""
    before = block[max(0, at - 34) : at]
    rest = before.rstrip(_NAME_BYTES)
    word = before[len(rest) :]
    if word.startswith(b"-"):
        return rest[-1:] in _BEFORE_OPTION
    if word.startswith(_AFTER_LINE):
        return rest.endswith(b"\\")
    if rest.endswith(_BEFORE_VARIABLE):
        return True
    first = max(0, at - 100)
    login = max(block.rfind(b"login", first, at), block.rfind(b"user", first, at))
    return login >= 0 and _AFTER_LOGIN.match(block, login, at) is not None


def _accepts(block: bytes, found: re.Match[bytes], group: str, kind: str) -> bool:
    start, end = found.span(group)
    value = block[start : min(end, start + 256)]
    if group == "env":
        return _env_secret(value, kind) and not _is_placeholder(value)
    if group == "option":
        plain = value.isalpha() and len(value) < 24
        return not plain and _is_option(block, found.start()) and _accepts_bare(block, found, group, kind, value)
    if group == "bare":
        return _accepts_bare(block, found, group, kind, value)
    looks = _weak_quoted if group in ("item", "item1") else _QUOTED[kind]
    return looks(value) and not _is_placeholder(value) and not (b" " in value and _SENTENCE.match(value))


def _accepts_bare(block: bytes, found: re.Match[bytes], group: str, kind: str, value: bytes) -> bool:
    start, end = found.span(group)
    if value.isalpha() and len(value) < 24:
        return group == "bare" and kind == "password" and _is_yaml_word(block, found, value)
    if block[end : end + 1] in (b"(", b"[", b"{"):
        return False
    if (
        value.isalnum() and value[:1].isalpha() and not value.isalpha()
    ):  # most are: nothing below but this is about them
        return len(value) >= _SHORTEST[kind] and not (_IDENTIFIER.match(value) and _OWN_WORD.search(value[-32:]))
    if _CALL.match(value):
        return False
    if _NUMBER.match(value):
        return kind == "password" and len(value) >= 4 and _ASSIGNED.match(block, found.start(), start) is not None
    return _bare_secret(value, kind) and not _is_placeholder(value)


def _judge(kind: str) -> Judge:
    def judge(block: bytes, found: re.Match[bytes]) -> Span | None:
        group = found.lastgroup or ""
        if not _accepts(block, found, group, kind):
            return None
        start, end = found.span(group)
        if group in ("bare", "env", "option"):
            rest = _REST["env" if group == "env" else "bare"].match(block, end)
            end = rest.end() if rest else end
        elif group == "scalar":
            rest = _SCALAR.match(block, block.rfind(b":", found.start(), start))
            end = rest.end() if rest else end
        return start, end

    return judge


_OFFSETS: Final = {
    "ssw": -1,
    "ssphr": -1,
    "SSW": -1,
    "SSPHR": -1,
    "Key": -1,
    "KEY": -1,
    "okie": -1,
    "rer ": -2,
    "ure=": -2,
    'uth"': -1,
    "uth\\": -1,
    "uth=": -1,
}


def _at(*anchors: str) -> tuple[tuple[bytes, int], ...]:
    return tuple((anchor.encode(), _OFFSETS.get(anchor, 0)) for anchor in anchors)


_MORE: Final = rb"[0-9]{0,2}(?:_(?:PROD|DEV|TEST|STAGING|LIVE|OLD|NEW|VALUE|BEDROCK)|[_-]?[vV]alue)?"


_AFTER: Final = rb"(?=[ \t\"'`\\:=,>?!])"
# NAME=value, up to a space or quote, as in .env files and shells: any value, but an expansion or a call
_ENV_VALUE: Final = b"(?:=(?P<env>" + _ENV + b")|" + _AFTER + _VALUE + b")"


def _named(name: str, kind: str, words: bytes, *anchors: str) -> Rule:
    return Rule(
        name,
        _at(*anchors),
        re.compile(b"(?:" + words + b")" + _MORE + _AFTER + _VALUE),
        _judge(kind),
        "name",
        _NEEDED[kind],
    )


def _in_env(name: str, kind: str, words: bytes, *anchors: str) -> Rule:
    return Rule(name, _at(*anchors), re.compile(b"(?:" + words + b")" + _MORE + _ENV_VALUE), _judge(kind), "name", _ANY)


_PASS_UPPER: Final = rb"(?<=P)ASS(?:WORD|WD|WORT|PHRASE)|PASS|PWD"
_PASS: Final = rb"(?<=[pP])ass(?:wor[dt]|wd|phrase)s?|(?<![a-z])pass|[pP]wd"
_SECRET_UPPER: Final = rb"(?<=S)ECRET(?:_?(?:ACCESS_?)?KEY(?:_BASE)?|_TOKEN)?"
_SECRET: Final = rb"(?<=[sS])ecret(?:[_-]?(?:[aA]ccess)?[_-]?[kK]ey(?:[_-]?[bB]ase)?|[_-]?[tT]oken)?"
_KEY_OWNERS: Final = (
    "api access private signing signature encryption master account auth shared storage license ssh deploy session app application admin"  # noqa: E501
    " service webhook consumer subscription function jwt hmac aes rsa crypto cipher security publishable functions host stripe"
)
_BASIC_VALUE: Final = rb"((?:[A-Za-z0-9+=_-]|" + SLASH + rb"){8,}+)"

_P: Final = ("ssw", "ssphr", 'pass"', "pass\\", "pass=", "pass:", "pwd", "Pwd")
_P_UPPER: Final = ("SSW", "SSPHR", "PASS=", "PWD")


_KEY: Final = rb"[_-][kK]ey|[a-z]Key|(?<=[aA])pikey"
_NAME_BEGINS: Final = {ord("_"): 0, ord("-"): 0, ord("p"): 2}
_OWNERS: Final = tuple(owner.encode() for owner in _KEY_OWNERS.split())
_OWNER_ENDS: Final = frozenset(owner[-3:] for owner in _OWNERS)  # all have three letters


_STRONG_TOKEN: Final = re.compile(rb"(?<=[_-])[tT]|(?<=[a-z])T|(?<=access)t|(?<=bearer)t|(?<=auth)t")
_token_strong: Final = _judge("strong")
_token_weak: Final = _judge("weak")


def _token(block: bytes, found: re.Match[bytes]) -> Span | None:
    """`access_token` and the like say what they hold; a `token` alone is mostly a parser's."""
    return (_token_strong if _STRONG_TOKEN.match(block, found.start() - 1) else _token_weak)(block, found)


def _owned(judge: Judge) -> Judge:
    """For `_key` and the like: only after a word that makes it a secret one."""

    def owned(block: bytes, found: re.Match[bytes]) -> Span | None:
        start = found.start()
        at = start + _NAME_BEGINS.get(block[start], 1)
        owner = block[max(0, at - 12) : at].lower()
        return judge(block, found) if owner[-3:] in _OWNER_ENDS and owner.endswith(_OWNERS) else None

    return owned


_SCHEME: Final = (
    rb"(?:[Bb]asic|[Bb]earer|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey|[Nn]egotiate|Bot|SSWS|OAuth|GenieKey|Key)"
    + _SPACE
    + rb"{1,8}"
)
_HEADER: Final = (
    rb"(?:uthorization|UTHORIZATION)(?:\"[ ]?:[ ]?\"|(?:(?:\\{1,15}\"|\\{0,8}['`])\]?)?" + _SPACE + rb"{0,8}+[:=,]"
    + _SPACE + rb"{0,8}+(?:[bf]?\\{1,15}\"|\\{0,8}[bf]?['`])?)"
)  # fmt: skip


def _not_a_word(value: bytes) -> bool:
    return len(value) >= 24 or re.search(rb"[0-9+/=]", value) is not None


def _token_like(block: bytes, found: re.Match[bytes]) -> Span | None:
    start, end = found.span(1)
    value = block[start : min(end, start + 256)]
    return (start, end) if _not_a_word(value) and not _is_placeholder(value) else None


def _any_value(block: bytes, found: re.Match[bytes]) -> Span | None:
    start, end = found.span(1)
    return None if _is_placeholder(block[start : min(end, start + 256)]) else (start, end)


def _header(block: bytes, found: re.Match[bytes]) -> Span | None:
    """With a scheme before it, any value; else what is more than a word."""
    start, end = found.span(found.lastindex or 0)
    value = block[start : min(end, start + 256)]
    return (start, end) if (found.lastindex == 1 or _not_a_word(value)) and not _is_placeholder(value) else None


def _user_password(block: bytes, found: re.Match[bytes]) -> Span | None:
    value, user = found["value"], found["user"]
    if _is_placeholder(value) or (value.isdigit() and user.isdigit()) or value == user:
        return None
    return _to_word_end(block, found)


def _to_word_end(block: bytes, found: re.Match[bytes]) -> Span:
    rest = _REST["bare"].match(block, found.end("value"))
    return found.start("value"), rest.end() if rest else found.end("value")


def _mysql_password(block: bytes, found: re.Match[bytes]) -> Span | None:
    value = found["value"]
    return None if _is_placeholder(value) or not value.strip(b"0123456789:.") else _to_word_end(block, found)


_HEADER_VALUE: Final = rb"(?:[^\x00-\x20\"'`\\<>\[]|" + SLASH + b"|" + _WIDE + b")"

NAMES: Final = (
    Rule("authorization", _at("uthorization", "UTHORIZATION"), re.compile(
        _HEADER + b"(?:" + _SCHEME + b"(" + _HEADER_VALUE + b"{4,}+)|("
        + rb"(?:[^\x00-\x20\"'`\\<>,;()\[]|" + SLASH + b"|" + _WIDE + b"){8,}+))"), _header, "header"),
    Rule("bearer", _at("rer "), re.compile(
        rb"(?:(?<=(?<![A-Za-z0-9_-])[bB])|(?<=\\[bfnrt][bB])|(?<=\\[nr]-[bB])|(?<=\\u[0-9a-fA-F]{4}[bB])|(?<=m[bB]))earer {1,4}"
        rb"((?:[A-Za-z0-9._~+=-]|" + SLASH + rb"){8,}+)"), _token_like, "bearer"),
    Rule("cookie", _at("okie"), re.compile(
        rb"(?<=[cC])ookies?(?:\"[ ]?:[ ]?\"|(?:\\{1,15}\"|['`])?" + _SPACE + rb"{0,8}:" + _SPACE + rb"{0,8}(?:\\{1,15}\"|['`])?)"
        rb"(?=[A-Za-z0-9_.%-]{1,64}=[^\x00-\x20\"'`\\;,(){}\[]{2})((?:[^\x00-\x1f\"'`\\<>]|" + SLASH + b"|" + _WIDE + b"){10,}+)"),
        _any_value, "cookie"),
    _in_env("password", "password", _PASS_UPPER, *_P_UPPER),
    _named("password", "password", _PASS, *_P),
    Rule("secret", _at("ecret"), re.compile(rb"(?:(?<=(?<![A-Za-z0-9])s)|(?<=\\[bfnrt]s)|(?<=%[0-9A-F]{2}s)|(?<=\\u[0-9a-fA-F]{4}s)|(?<=ms))ecret_([A-Za-z0-9]{40}[A-Za-z0-9_-]*+)"), family="word"),  # noqa: E501
    _named("secret", "strong", _SECRET, "ecret"),
    _in_env("secret", "strong", _SECRET_UPPER, "ECRET"),
    Rule("token", _at("oken"), re.compile(b"(?<=[tT])oken" + _MORE + _AFTER + _VALUE), _token, "name", _NEEDED["strong"]),
    _in_env("token", "strong", rb"(?<=T)OKEN", "OKEN"),
    Rule("api-key", _at("KEY"), re.compile(b"[_-]KEY" + _MORE + _ENV_VALUE), _owned(_judge("strong")), "name", _ANY),
    Rule("api-key", _at("_key", "-key", "Key", "pikey"), re.compile(
        b"(?:" + _KEY + b")s?" + _MORE + _AFTER + _VALUE), _owned(_judge("strong")), "name", _NEEDED["strong"]),
    Rule("basic-auth", _at("uth=", 'uth"', 'uth\\'), re.compile(
        rb"auth(?:(?<=_auth)=|\"[ ]?:[ ]?\"|\\{1,15}\"[ ]?:[ ]?\\{1,15}\")" + _BASIC_VALUE), _token_like, "auth"),
    Rule("signature", _at("sig="), re.compile(rb"(?<=[?&;])sig=([A-Za-z0-9%+/=_-]{16,}+)"), family="sig"),
    Rule("signature", _at("ure="), re.compile(rb"(?<=[sS]ign)ature=([A-Za-z0-9%+/=_-]{20,}+)"), _token_like, "sig"),
    Rule("password", ((b" -u ", 1), (b"-us", 0)), re.compile(
        rb"-(?:u|user)[ =]{1,2}\\{0,15}[\"']?(?P<user>[A-Za-z0-9_.@+-]{1,64}):(?!\[redacted:)(?P<value>[^\x00-\x20\"'`\\<>/:]{1,256}+)"),  # noqa: E501
        _user_password, "user"),
    Rule("password", _at("mysql"), re.compile(
        rb"mysql(?:dump|admin|import|show|sh)?(?=[ \t])[^\x00-\x1f\"'`\\|;&<>]{0,120}?[ \t]-p(?!ort|ro|ipe)(?:\\{0,8}['\"])?"
        rb"(?P<value>[^\x00-\x20\"'`\\|;&<>][^\x00-\x20\"'`\\|;&<>]{2,256}+)"), _mysql_password, "mysql"),
)  # fmt: skip
