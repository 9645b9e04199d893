"""The rules of redaction, as data: what begins with a prefix of its own, URLs, JWTs and private keys.

A rule has anchors, fixed strings of at least three bytes of which every match contains one at a known place, and a pattern that
is tried there. Anchors cost little while they don't occur, if they are kept the way the search likes them (redact_anchors.py):
a new one is best a rare string of which no common word has the first three bytes.

The text is JSON, escaped up to four times over: a boundary is also the end of an escape, a colour code or a %XX, and no value
class takes a quote or a backslash but that of an escaped slash. Every pattern turns a place down after a bounded look, or its
boundary lets it start once per word: no text makes the search more than linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

SLASH: Final = rb"(?:/|\\{1,8}/)"
_ESCAPED: Final = (
    rb"(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9A-Fa-f]{2})"
    rb"|(?<=\\[nr]-)|(?<=\[m)|(?<=[\[;][0-9]m)|(?<=[\[;][0-9]{2}m)|(?<=x1b\[[0-9]m)"
)
START: Final = (
    rb"(?:(?<![A-Za-z0-9])|" + _ESCAPED + rb")"
)  # for prefixes that mean nothing else: `dump_ghp_…` is one too
WORD_START: Final = rb"(?:(?<![A-Za-z0-9_-])|" + _ESCAPED + rb")"  # for the others: `risk-…` is no `sk-…`
WORD: Final = rb"[A-Za-z0-9_-]*+"  # what is replaced goes to the end of the word, so that nothing gains a boundary
MARKER: Final = rb"\[redacted:[a-z0-9-]{1,40}\]"

Span = tuple[int, int]
Judge = Callable[[bytes, "re.Match[bytes]"], Span | None]


def whole(block: bytes, found: re.Match[bytes]) -> Span | None:
    """The last group that took part, or all of it."""
    return found.span(found.lastindex or 0)


class Rule(Struct, frozen=True):
    """A kind of secret. anchors: (fixed string, where the pattern is tried, counted from the string's begin). judge: which part is
    the secret, if it is one. family: matches of one family that begin in a value of it end where it ends, and are passed over.
    shortest: what is shorter need not be judged.
    """

    name: str
    anchors: tuple[tuple[bytes, int], ...]
    pattern: re.Pattern[bytes]
    judge: Judge = whole
    family: str = "word"
    shortest: int = 0


def _prefixed(name: str, prefixes: str, shape: bytes, start: bytes = START) -> Rule:
    """Prefixes, then the shape, then the rest of the word. `a|bc_` is the prefix `abc_` with the anchor `bc_`, `|abc|d_` one
    with the anchor `abc`.
    """
    cut = [(prefix if "|" in prefix else "|" + prefix).encode().split(b"|") for prefix in prefixes.split()]
    anchors = tuple(dict.fromkeys((parts[1], -len(parts[0])) for parts in cut))
    either = b"|".join(re.escape(b"".join(parts)) for parts in cut)
    return Rule(name, anchors, re.compile(b"(?=" + either + b")" + start + b"(?:" + either + b")" + shape + WORD))


_ALNUM: Final = rb"[A-Za-z0-9]"
_NAME: Final = rb"[A-Za-z0-9_-]"
_UUID: Final = rb"[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}"
_RANDOM: Final = rb"(?=[A-Za-z_-]{0,40}[0-9])"  # a digit near the begin: no words joined by dashes

_PREFIXED: Final = (
    ("github", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM + rb"{16}"),
    ("github", "git|hub_pat_", rb"[A-Za-z0-9_]{20}"),
    ("gitlab", "|glp|at- |glp|tt- glrt- gldt- |glc|bt- glimt- glagent- gloas- |gls|oat-", _NAME + rb"{16}"),
    ("gitlab", "|GR13489|41", _NAME + rb"{16}"),
    ("google", "AIza", _NAME + rb"{30}"),
    ("google", "GOCSPX-", _NAME + rb"{16}"),
    ("slack", "xapp-", _RANDOM + _NAME + rb"{16}"),
    ("stripe", "whsec_", _ALNUM + rb"{16}"),
    ("npm", "npm_", _ALNUM + rb"{30}"),
    ("pypi", "pypi-", _RANDOM + _NAME + rb"{40}"),
    ("docker", "dckr_", rb"[a-z]{2,5}_" + _NAME + rb"{16}"),
    ("groq", "gsk_", _ALNUM + rb"{30}"),
    ("xai", "xai-", _ALNUM + rb"{30}"),
    ("perplexity", "p|plx-", _ALNUM + rb"{30}"),
    ("nvidia", "n|vapi-", _NAME + rb"{30}"),
    ("databricks", "dapi", rb"[a-f0-9]{32}"),
    ("heroku", "HRKU-", _NAME + rb"{30}"),
    ("linear", "li|n_api_", _ALNUM + rb"{20}"),
    ("notion", "ntn_", _ALNUM + rb"{30}"),
    ("figma", "f|igd_", _NAME + rb"{20}"),
    ("pulumi", "pul-", rb"[a-f0-9]{32}"),
    ("postman", "PMAK-", rb"[A-Za-z0-9-]{24}"),
    ("sentry", "sntry", rb"[su]_[A-Za-z0-9+/=_-]{24,}+"),
    ("newrelic", "NRAK-", _NAME + rb"{19}"),
    ("grafana", "|gls|a_ |glc|_", _NAME + rb"{24}"),
    ("supabase", "sbp_", _NAME + rb"{20}"),
    ("planetscale", "pscale_", rb"(?:tkn|pw|oauth)_[A-Za-z0-9_.-]{20}"),
    ("tailscale", "tskey-", _RANDOM + _NAME + rb"{16}"),
    ("fly", "fo1_", rb"[A-Za-z0-9+/=_-]{24,}+"),
    ("age", "AGE-SECRET-KEY-1", _ALNUM + rb"{30}"),
    ("atlassian", "ATA|TT3x ATC|TT3x ATS|TT3x", _ALNUM + rb"{20}"),
    ("bitbucket", "ATBB", _ALNUM + rb"{28}"),
    ("netlify", "nfp_", _ALNUM + rb"{30}"),
    ("sonar", "sqp_ squ_", rb"[a-f0-9]{40}"),
    ("pinecone", "pcsk_", _NAME + rb"{30}"),
    ("circleci", "|CCIP|AT_ |CCIP|RJ_", _NAME + rb"{20}"),
    ("tavily", "tvly-", _NAME + rb"{20}"),
    ("rubygems", "rubygems_", rb"[a-f0-9]{40}"),
    ("stripe", "rk_test_", _ALNUM + rb"{16}"),
    ("dropbox", "sl.u.", _NAME + rb"{40}"),
    ("square", "|sq0|atp- |sq0|csp- |sq0|idp-", _NAME + rb"{20}"),
    ("fireworks", "fw_", _ALNUM + rb"{20}"),
    ("voyage", "pa-", rb"(?=[A-Za-z_-]{0,40}[0-9])" + _NAME + rb"{40}"),
    ("e2b", "e2b_", rb"[a-f0-9]{40}"),
    ("langsmith", "lsv2_", rb"[a-z]{2}_[a-f0-9]{32}"),
    ("cerebras", "c|sk-", rb"[a-z0-9]{40}"),
    ("snyk", "snyk_", rb"[su]at\.[A-Za-z0-9]{8}\." + _NAME + rb"{20,80}\."),
    ("launchdarkly", "sdk- api-", _UUID),
    ("plaid", "a|ccess-", rb"(?:sandbox|development|production)-" + _UUID),
    ("bedrock", "ABSKQm", rb"[A-Za-z0-9+/=]{40,}+"),
    ("1password", "ops_|eyJ", _NAME + rb"{40}"),
    ("firecrawl", "fc-", rb"[a-f0-9]{32}"),
    ("dropbox", "sl.A sl.B", _RANDOM + _NAME + rb"{60}"),
    ("jfrog", "AKCp", _ALNUM + rb"{60}"),
    ("jfrog", "cmVmdGtu", _ALNUM + rb"{50}"),
    ("sourcegraph", "sgp_", rb"(?:[a-z0-9]{1,20}_)?[a-f0-9]{40}"),
    ("nuget", "oy2", rb"[a-z0-9]{43}"),
    ("hubspot", "|pat-na1|- |pat-eu1|-", _UUID),
    ("contentful", "CFPAT-", _NAME + rb"{40}"),
    ("vercel", "vck_ vcp_", _ALNUM + rb"{24}"),
    ("jina", "jina_", _NAME + rb"{40}"),
    ("posthog", "phx_", _ALNUM + rb"{40}"),
    ("render", "rnd_", _ALNUM + rb"{28}"),
    ("neon", "napi_", _ALNUM + rb"{40}"),
    ("confluent", "cflt", rb"[A-Za-z0-9+/]{60}"),
    ("aws", "IQoJb3", rb"[A-Za-z0-9+/=%]{80,}+"),
    ("mailgun", "k|ey-", rb"[a-f0-9]{32}"),
)  # fmt: skip

_JWT: Final = (
    WORD_START + rb"eyJ[A-Za-z0-9_-]{8,}+\.(?:eyJ[A-Za-z0-9_-]{5,}+(?:\.[A-Za-z0-9_-]*+){0,3}"
    rb"|[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]++){1,3})"
)
_PEM_NAME: Final = rb" [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_PEM: Final = (
    rb"----[- ]BEGIN"
    + _PEM_NAME
    + rb'(?:[^"\\\n-]++|\\[^\n]|-(?!---[- ]END'
    + _PEM_NAME
    + rb"))*+(?:----[- ]END"
    + _PEM_NAME
    + rb")?"
)
_SCHEME_END: Final = rb"(?:://|(?<=:)\\/\\/|(?<=\\)\\/\\\\/)"
_WIDE: Final = rb"\\{1,8}u(?!00[0-7])[0-9a-fA-F]{4}"  # what JSON may escape and people put into names and passwords
_USER: Final = rb"(?:[^\x00-\x20\"'`\\<>/@:?#]|" + _WIDE + rb"){0,128}(?::|%3[aA])"
_PASSWORD: Final = (
    rb"((?:[^\x00-\x20\"'`\\<>/]|" + _WIDE + rb"){1,256})@(?=[A-Za-z0-9\[_{$%-]|[\x80-\xff]|" + _WIDE + b")"
)
_NO_PASSWORD: Final = re.compile(rb"[$%]?\{|\$[A-Za-z_(]|%[sd]\Z|\*{3,}\Z|" + MARKER + rb"\Z|\.\.\.\Z")


def _url_password(block: bytes, found: re.Match[bytes]) -> Span | None:
    start, end = found.span(1)
    return None if _NO_PASSWORD.match(block, start, end) else (start, end)


_REST_OF_WORD: Final = re.compile(WORD)
_WORD_BEFORE: Final = re.compile(rb"(?:(?<![A-Za-z0-9\\])|" + _ESCAPED + rb")[a-z][a-z0-9]{0,9}(?:_[a-z]{1,6})?_?\Z")


def _from_word(block: bytes, found: re.Match[bytes]) -> Span | None:
    """The value after a mark that many issuers put into their prefixes, if a digit is in it and a short word before it."""
    start, end = found.span(1)
    if re.search(rb"[0-9]", block[start : start + 32]) is None:
        return None
    word = _WORD_BEFORE.search(block, max(0, found.start() - 16), found.start())
    rest = _REST_OF_WORD.match(block, end) if word else None
    return (word.start(), rest.end()) if word and rest else None


_NEWLINE: Final = rb"\\{1,8}(?:r\\{1,8})?n"
_PUTTY: Final = rb"Private-Lines: [0-9]{1,4}((?:" + _NEWLINE + rb"(?:[A-Za-z0-9+=]|" + SLASH + rb"){1,64}){1,999})"
_NEWLINES: Final = re.compile(_NEWLINE)
_BASE64_TAIL: Final = re.compile(rb"(?:(?<![\\])|(?<=\\[^/]))(?:[A-Za-z0-9+=]|" + SLASH + rb")++\Z")
_LINES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\"
_LONGEST_KEY: Final = 16 * 1024
_FULL_LINES: Final = 4
_SHORTEST_LINE: Final = 60  # of those that are full
_LONGEST_LINE: Final = 80


def _body_before(block: bytes, found: re.Match[bytes]) -> Span | None:
    """What stands before the end of a private key whose begin is missing, if there are several full lines of base64."""
    first = max(0, found.start() - _LONGEST_KEY)
    before = block[first : found.start()].rstrip(b"-")
    at = len(before.rstrip(_LINES))
    lines: list[Span] = []
    for newline in _NEWLINES.finditer(before, at):
        lines.append((at, newline.start()))
        at = newline.end()
    if at != len(before):
        return None
    start = full = count = 0
    for at, to in reversed(lines):
        line = _BASE64_TAIL.search(before, max(at, to - 2 * _LONGEST_LINE), to)
        length = to - line.start() - before.count(b"\\", line.start(), to) if line else 0
        if line is None or (length > _LONGEST_LINE and count < 2):
            break
        full = length if count == 1 else full
        start = line.start() if count < 2 or length <= full else to - full
        count += 1
        if count > 2 and length != full:
            break  # what is before the first whole line
    while before[start - 1 : start] == b"\\":
        start -= 1
    return (first + start, found.end()) if count > _FULL_LINES and full >= _SHORTEST_LINE else None


_DISCORD: Final = tuple((b"MT%c" % third, 0) for third in b"AEIMQUYcgk")  # the base64 of a number that begins with 1
_RESEND: Final = ((b"esend(", 0), (b"'re_", 0), (b"=re_", 0))  # `re_` alone is in too many names

SECRETS: Final = (
    *(_prefixed(name, prefixes, shape) for name, prefixes, shape in _PREFIXED),
    Rule("sk-key", ((b"sk-", 0),), re.compile(
        WORD_START + rb"sk-(?=[A-Za-z0-9_-]{16})(?=[A-Za-z_-]{0,64}[0-9]|[A-Za-z_-]{0,64}?[A-Za-z]{20})[A-Za-z0-9_-]{16}" + WORD)),
    Rule("sk-key", ((b"sk_", 0),), re.compile(WORD_START + rb"sk_(?:live_|test_|prod_)?[A-Za-z0-9]{16}" + WORD)),
    Rule("huggingface", ((b"hf_", 0),), re.compile(START + rb"hf_[A-Za-z0-9]{30}" + WORD)),
    Rule("replicate", ((b"r8_", 0),), re.compile(START + rb"r8_[A-Za-z0-9]{30}" + WORD)),
    Rule("slack", ((b"xox", 0),), re.compile(START + rb"xox[a-z](?:\.xox[a-z])?-" + _RANDOM + rb"[A-Za-z0-9-]{10}" + WORD)),
    Rule("aws", ((b"AKIA", 0), (b"ASIA", 0)), re.compile(
        START + rb"A(?:KI|SI)A[A-Z0-9]{16}(?:[,:|\t ]{1,3}(?:[A-Za-z0-9+]|" + SLASH + rb"){40}(?![A-Za-z0-9/+_-]))?" + WORD), family="aws"),  # noqa: E501
    Rule("shopify", ((b"shp", 0),), re.compile(START + rb"shp(?:at|ca|pa|ss|tka)_[A-Fa-f0-9]{24}" + WORD)),
    Rule("v1-token", ((b"_v1_", 0),), re.compile(rb"_v1_([A-Za-z0-9_-]{32})"), _from_word),
    Rule("live-key", ((b"live_", 0),), re.compile(rb"live_([A-Za-z0-9]{16})"), _from_word),
    Rule("fly", ((b"FlyV1 ", 0),), re.compile(START + rb"FlyV1 ([A-Za-z0-9+/=_,-]{24,}+)"), family="fly"),
    Rule("sendgrid", ((b"SG.", 0),), re.compile(START + rb"SG\.[A-Za-z0-9_-]{16,64}\." + _NAME + rb"{16}" + WORD), family="sg"),
    Rule("google", ((b"AQ.Ab", 0),), re.compile(START + rb"AQ\.Ab[A-Za-z0-9_-]{30}" + WORD), family="aq"),
    Rule("facebook", ((b"EAA", 0),), re.compile(START + rb"EAA(?!A{4})(?:A[A-Za-z0-9_-]{60}|[A-Za-z0-9]{100})" + WORD)),
    Rule("mailchimp", ((b"-us", -32),), re.compile(START + rb"[a-f0-9]{32}-us[0-9]{1,2}" + WORD)),
    Rule("azure-devops", ((b"AZDO", -76),), re.compile(START + rb"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}" + WORD)),
    Rule("discord", _DISCORD, re.compile(
        START + rb"MT[AEIMQUYcgk][A-Za-z0-9_-]{21,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}" + WORD)),
    Rule("resend", _RESEND, re.compile(rb"(?:['=]|esend\(\\{1,15}\")(re_[A-Za-z0-9]{8}_[A-Za-z0-9]{16}" + WORD + rb")")),
    Rule("google", ((b"1//0", 0), (b"\\/\\/", -1), (b"\\/\\\\/", -2)), re.compile(
        START + rb"1(?://|(?:\\{1,2}/){2})0[A-Za-z0-9_-]{40}" + WORD)),
    Rule("okta", ((b"SSW", 0),), re.compile(START + rb"SSWS (00[A-Za-z0-9_-]{38}" + WORD + rb")")),
    Rule("google", ((b"ya29", 0),), re.compile(START + rb"ya29\.[A-Za-z0-9_.-]{20,}+"), family="ya29"),
    Rule("vault", ((b"hvs.", 0), (b"hvb.", 0)), re.compile(START + rb"hv[sb]\." + _NAME + rb"{20}" + WORD)),
    Rule("doppler", ((b"dp.", 0),), re.compile(
        START + rb"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{32}" + WORD)),
    Rule("terraform", ((b"sv1.", -19),), re.compile(START + rb"[A-Za-z0-9]{14}\.atlasv1\." + _NAME + rb"{40}" + WORD), family="atlas"),  # noqa: E501
    Rule("azure", ((b"7Q~", -3), (b"8Q~", -3)), re.compile(START + rb"[A-Za-z0-9_~.]{3}[78]Q~[A-Za-z0-9_~.-]{31,}+"), family="azure"),  # noqa: E501
    Rule("telegram", ((b":AA", 0),), re.compile(rb"(?<=[0-9]{8}):(AA[A-Za-z0-9_-]{30}" + WORD + rb")")),
    Rule("webhook", ((b"slack.com", -6),), re.compile(
        rb"hooks\.slack\.com" + SLASH + rb"(?:services|workflows|triggers)" + SLASH + rb"((?:[A-Za-z0-9_-]|" + SLASH + rb"){16,}+)"),  # noqa: E501
        family="hook"),
    Rule("webhook", ((b"ebhook", 0),), re.compile(rb"ebhook(?:s" + SLASH + rb"[0-9]{16,20}" + SLASH + rb"|b2" + SLASH
        + rb")((?:[A-Za-z0-9@_-]|" + SLASH + rb"){30,}+)"), family="hook"),
    Rule("jwt", ((b"eyJ", 0),), re.compile(_JWT), family="jwt"),
    Rule("private-key", ((b"BEGIN ", -5),), re.compile(_PEM), family="pem"),
    Rule("private-key", ((b"-END ", 0),), re.compile(rb"-END [A-Z0-9 ]{0,40}PRIVATE KEY ?----"), _body_before, "pem-end"),
    Rule("private-key", ((b"e-Lines: ", -6),), re.compile(_PUTTY), family="putty"),
    Rule("url-password", ((b"://", 0), (b"\\/\\/", 0), (b"\\/\\\\/", 0)), re.compile(
        _SCHEME_END + rb"([A-Za-z0-9_-]{40,128}+)(?::x-oauth-basic)?@(?=[A-Za-z0-9\[])"), family="url"),
    Rule("url-password", ((b"://", 0), (b"\\/\\/", 0), (b"\\/\\\\/", 0)), re.compile(
        _SCHEME_END + _USER + _PASSWORD), _url_password, family="url"),
)  # fmt: skip
