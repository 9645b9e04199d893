"""What went wrong with a provider, for people: one readable line, and what to do next.

Reasons are dug out of whatever shape a body has; keys never appear in them, even when the provider echoes one. Kinds:
`provider` (it answered with an error), `blocked` (it refused the prompt), `transport` (no answer, a cut, a stall),
`truncated` (the stream ended without its terminal mark), `protocol` (bytes that are not the wire's), `config` (nothing was
sent: the settings make it impossible).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Raw, Struct

from tracewriter.events import Failure

MAX_REASON_CHARS: Final = 1000
_MAX_DEPTH: Final = 6

# A key never legitimately appears in an error text. The left boundary keeps words like `risk-based` whole.
_KEY_LIKE: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:sk|pk|rk|gsk|xai|pplx|csk|fw|hf|ghp|gho|ghu|ghs|github_pat|tgp)[-_][A-Za-z0-9_*.\-]{8,200}"
    r"|(?<![A-Za-z0-9])AIza[A-Za-z0-9_\-*]{20,60}"
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/=*\-]{8,400}"
)
_STARRED: Final = re.compile(r"[A-Za-z0-9_\-]{0,40}\*{4,200}[A-Za-z0-9_\-]{0,40}")
_TAGS: Final = re.compile(r"<(script|style)\b.{0,20000}?</\1>|<[^>]{0,1000}>", re.IGNORECASE | re.DOTALL)
# Only of these: other names stand for codecs that are no text, or slow.
_CHARSET: Final = re.compile(
    r"charset=[\"']?(iso-8859-\d{1,2}|latin-?1|windows-12\d\d|utf-16(?:[lb]e)?|shift_jis|euc-(?:jp|kr)|gb(?:k|2312|18030)|big5|koi8-[ru])\b",
    re.IGNORECASE,
)
_TITLE: Final = re.compile(r"<(title|h1)\b[^>]{0,200}>(.{0,500}?)</\1>", re.IGNORECASE | re.DOTALL)
_CONTEXT: Final = re.compile(
    r"context[ _]?(?:length|window|size)|context_length_exceeded|exceed\w* (?:the )?\w* ?context|prompt (?:is )?too long"
    r"|too many (?:input )?tokens|maximum context|input is too long|request too large",
    re.IGNORECASE,
)
_NO_MODEL: Final = re.compile(
    r"model[ _]not[ _](?:found|exist)|model .{0,120}(?:does not exist|not found)|unknown model|invalid model", re.I
)
_NO_MONEY: Final = re.compile(
    r"insufficient[ _](?:quota|balance|credits?|funds)|billing|exceeded your current quota", re.I
)
# Google's 429 for a limit per minute speaks of quota and billing too; its status tells.
_RATE_LIMIT: Final = re.compile(r"\bRESOURCE_EXHAUSTED\b")
# Google answers 400 to a wrong key.
_BAD_KEY: Final = re.compile(r"api[ _]key[ _](?:not valid|invalid|expired)|(?:invalid|incorrect)[ _]api[ _-]?key", re.I)
_TRANSIENT: Final = re.compile(
    r"overload|rate.?limit|too many requests|unavailable|timeout|timed out|server.?error|internal.?error|network"
    r"|insufficient_system_resource|try again|capacity|aborted?\b|bad gateway",
    re.IGNORECASE,
)


class Reason(Struct, frozen=True, gc=False):
    """What a provider said went wrong: its words, its own status code if it named one, its word for the kind of error."""

    text: str
    status: int | None = None
    code: str = ""


def reason_of(body: bytes, content_type: str = "", *, secrets: Iterable[str] = ()) -> Reason:
    """The reason in an error body of any shape: JSON in the known dialects, a page of HTML, plain text. Never raises."""
    text = _decoded(body, content_type)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Reason(one_line(_plain(text, content_type), secrets))
    return reason_in(value, secrets=secrets)


def reason_of_raw(raw: Raw, *, secrets: Iterable[str] = ()) -> Reason | None:
    """The reason in an `error` field; None when the field says that there is none (null, false, {}, "")."""
    try:
        value = json.loads(bytes(raw).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        value = bytes(raw).decode("utf-8", "replace")
    return reason_in(value, secrets=secrets) if value else None


def reason_in(value: object, *, secrets: Iterable[str] = ()) -> Reason:
    """The reason in decoded JSON."""
    return Reason(one_line(_text_in(value, 0), secrets) or "no reason given", _status_in(value, 0), _code_in(value, 0))


def one_line(text: str, secrets: Iterable[str] = (), limit: int = MAX_REASON_CHARS) -> str:
    """The text made safe to show: keys out, white space and control characters folded to one space, bounded."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[redacted]")
        if len(secret) >= 16:  # providers show the beginning of a key, and a text may be cut in one
            text = re.sub(re.escape(secret[:8]) + r"[\w.*…-]{0,400}", "[redacted]", text)
    text = _KEY_LIKE.sub("[redacted]", text[: limit * 20])
    if "****" in text:
        text = _STARRED.sub("[redacted]", text)
    text = text.encode("utf-8", "replace").decode("utf-8")
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def stream_failure(reason: Reason) -> tuple[Failure, bool]:
    """An error inside a stream that had begun well, and whether sending the request again may help."""
    status = reason.status
    words = f"{reason.code} {reason.text}"
    hint = hint_for(status or 0, words)
    return Failure("provider", reason.text, hint, status), retryable(status, words)


def http_failure(
    status: int, reason: Reason, provider: str, *, key_name: str = "", wait_s: float | None = None
) -> Failure:
    """A status other than 2xx. `key_name` is where the key came from; `wait_s` what the provider asked to wait, in seconds."""
    said = reason.text or "no reason given"
    wait = "" if wait_s is None else f" (asked to wait {wait_s:.0f} s)"
    hint = hint_for(status, f"{reason.code} {said}", key_name=key_name)
    return Failure("provider", f"{provider} answered {status}: {said}{wait}", hint, status)


def retryable(status: int | None, words: str = "") -> bool:
    """Whether the same request may work later: 408, 409, 429 (unless the money is gone), 5xx; without a status, by the words."""
    if _no_money(words) or (status in (None, 400) and _CONTEXT.search(words)):
        return False
    if status is None:
        return _TRANSIENT.search(words) is not None
    return status in (408, 409, 429) or 500 <= status <= 599


def hint_for(status: int, words: str = "", *, key_name: str = "") -> str:
    """What to do next. The words decide where providers use one status for several things."""
    if status in (0, 402, 429, 403) and _no_money(words):
        status = 402
    if status in (0, 400) and _BAD_KEY.search(words):
        status = 401
    if status in (0, 400, 404, 422) and _NO_MODEL.search(words):
        status = 404
    if status == 413 or (status in (0, 400, 422, 429, 500) and _CONTEXT.search(words)):
        return (
            "the conversation is too long for this model: start a new session, or choose a model with a larger context"
        )
    if status == 401:
        source = f"the key in {key_name}" if key_name else "this server wants a key, or the one given"
        return f"{source} was not accepted: check it, or make a new one with the provider"
    if status == 0:  # an error inside a stream: only its words tell
        status = next((known for known, said in _BY_WORDS if said.search(words)), 0)
    return _HINTS.get(status) or (_TROUBLE if status >= 500 else _ANOTHER)


def _no_money(words: str) -> bool:
    return _NO_MONEY.search(words) is not None and not _RATE_LIMIT.search(words)


_TROUBLE: Final = "the provider has trouble: try again later, or another model (-m)"
_ANOTHER: Final = "try again, or another model (-m); if it stays, check the base URL"
_BY_WORDS: Final = (
    (429, re.compile(r"rate.?limit|too many requests", re.I)),
    (529, re.compile(r"overload", re.I)),
    (500, _TRANSIENT),
)
_UNTAKEN: Final = "the provider does not take this request as it is: try another model (-m), or a new session"
_HINTS: Final[dict[int, str]] = {
    400: _UNTAKEN,
    422: _UNTAKEN,
    402: "the account has no credit left: add some with the provider, or choose another model (-m)",
    403: "the key was accepted but may not do this: check its permissions, region and access to the model",
    404: "check the model's name with the provider, and that the base URL is right (it usually ends in /v1)",
    405: "this is not a model endpoint: check the base URL (it usually ends in /v1)",
    408: "the provider gave up waiting: try again",
    409: "the provider was busy with a conflicting request: try again",
    429: "rate limit: wait and try again, or choose another model (-m)",
    529: "the provider is overloaded: try again later, or another model (-m)",
}


def no_model(failure: Failure) -> bool:
    """Whether the provider does not have the model: then it helps to say which ones it has."""
    if failure.kind != "provider":
        return False
    return failure.status == 404 or (failure.status in (None, 400, 422) and bool(_NO_MODEL.search(failure.message)))


def out_of_credit(failure: Failure) -> bool:
    """Whether the money is gone: waiting does not help, another provider does."""
    return failure.status == 402 or _no_money(failure.message)


def redirect_failure(status: int, location_host: str, provider: str) -> Failure:
    """A redirect, which is not followed: the key and the conversation go only where the user said."""
    target = f" to {one_line(location_host, limit=200)}" if location_host else ""
    return Failure(
        "provider", f"{provider} answered {status}: a redirect{target}", "set base_url to where the API is", status
    )


def not_a_stream(
    content_type: str, body: bytes, status: int, *, secrets: Iterable[str] = (), wanted: str = "an event stream"
) -> Failure:
    """A good status with a page in place of an answer: a proxy, a login, a maintenance page."""
    shown = one_line(_plain(_decoded(body, content_type), content_type), secrets, 200)
    kind = one_line(content_type, limit=80) or "something"
    return Failure(
        "transport",
        f"answered {status} with {kind} in place of {wanted}" + (f": {shown}" if shown else ""),
        "check the base URL and any proxy in between",
        status,
    )


def network_failure(where: str, exc: BaseException, *, proxy: str = "") -> Failure:
    """No connection, or one that broke. `where` is host:port or the socket's path, never a URL (it could hold a secret)."""
    cause = cause_of(exc)
    via = f" (through the proxy {proxy})" if proxy else ""
    return Failure("transport", f"could not reach {where}{via}: {cause}", _network_hint(cause, where))


def no_http_failure(where: str, exc: BaseException) -> Failure:
    """Somebody listens there, but what came is no HTTP answer, or nothing came before the connection's end."""
    hint = "try again; if it stays, check the base URL (http or https?) and whether the server stays up"
    return Failure("transport", f"{where} gave no HTTP answer: {cause_of(exc)}", hint)


def broken_failure(where: str, exc: BaseException) -> Failure:
    """The connection ended in the middle of an answer."""
    return Failure("transport", f"the connection to {where} broke: {cause_of(exc)}", "try again")


def timeout_failure(where: str, what: str, seconds: float) -> Failure:
    """A time-out: `what` did not happen within the time."""
    return Failure("transport", f"{where}: {what} {seconds:g} s", "try again, or another model (-m)")


def cause_of(exc: BaseException) -> str:
    """The operating system's own words at the bottom of a chain of exceptions, on one short line."""
    seen: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None and link not in seen and len(seen) < 20:
        seen.append(link)
        link = link.__cause__ or link.__context__
    errors = [error for error in seen if isinstance(error, OSError) and error.strerror]
    if errors:
        # asyncio writes addresses into strerror; the number of the error has the plain words.
        plain = os.strerror(errors[-1].errno) if type(errors[-1]).__module__ == "builtins" and errors[-1].errno else ""
        return one_line(plain or errors[-1].strerror or "", limit=200).lower()
    words = next((str(error) for error in seen if str(error)), type(exc).__name__)
    return one_line(words, limit=200)


def _network_hint(cause: str, where: str) -> str:
    if "certificate" in cause:
        return "the certificate was not accepted: set SSL_CERT_FILE to your organisation's CA bundle if it has one"
    if "refused" in cause or "no such file" in cause:
        local = where.startswith(("localhost", "127.", "[::1]", "/"))
        return "is the server running there?" if local else "check the base URL and the port"
    if "name" in cause or "known" in cause or "resolution" in cause:
        return "check the host's name in the base URL, and the network"
    return "check the network and the base URL, then try again"


def _decoded(body: bytes, content_type: str) -> str:
    """The body as text: UTF-8 whatever it says of itself, else what it says; what is no text at all is only counted."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    named = _CHARSET.search(content_type)
    if named:
        try:
            return body.decode(named[1])
        except (UnicodeDecodeError, LookupError):
            pass
    text = body.decode("utf-8", "replace")
    return f"{len(body)} bytes that are no text" if text.count("\ufffd") * 8 > len(text) else text


def _plain(text: str, content_type: str) -> str:
    if "html" in content_type.lower() or text.lstrip()[:200].lower().startswith(
        ("<!doctype", "<html", "<head", "<body")
    ):
        titles = [match.group(2) for match in _TITLE.finditer(text[:20_000])]
        return _TAGS.sub(" ", titles[0] if titles else text[:20_000])
    return text


_TEXT_KEYS: Final = (
    "error",
    "message",
    "detail",
    "details",
    "msg",
    "error_description",
    "error_message",
    "errors",
    "title",
)
_WORD_KEYS: Final = ("type", "code", "status", "reason")


def _text_in(value: object, depth: int) -> str:
    if isinstance(value, str):
        return _text_in_string(value, depth)
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(value, list):
        return "; ".join(filter(None, (_text_in(item, depth + 1) for item in value[:5])))
    if not isinstance(value, dict):
        return ""
    found = next(filter(None, (_text_in(value.get(key), depth + 1) for key in _TEXT_KEYS)), "")
    found += _place(value.get("loc")) if found else ""
    upstream = _upstream(value, depth)
    if upstream and upstream not in found:
        found = f"{found}: {upstream}" if found else upstream
    return found or next(
        (str(word) for key in _WORD_KEYS if isinstance(word := value.get(key), str | int) and word), ""
    )


def _text_in_string(value: str, depth: int) -> str:
    """Routers put the upstream's JSON into a string: one level of it is opened."""
    if depth <= _MAX_DEPTH and value.lstrip()[:1] in ("{", "[") and len(value) <= 100_000:
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return _text_in(inner, depth + 2) or value
    return value


def _upstream(value: dict[str, Any], depth: int) -> str:
    metadata = value.get("metadata")
    return _text_in(metadata.get("raw"), depth + 1) if isinstance(metadata, dict) else ""


def _place(loc: object) -> str:
    if not isinstance(loc, list) or not all(isinstance(part, str | int) for part in loc):
        return ""
    return f" ({'.'.join(str(part) for part in loc[:8])})"


def _status_in(value: object, depth: int) -> int | None:
    if isinstance(value, list) and value:
        return _status_in(value[0], depth + 1)
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return None
    for key in ("code", "status_code", "status", "http_status"):
        code = value.get(key)
        if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
            code = int(code)
        if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
            return code
    return _status_in(value.get("error"), depth + 1)


def _code_in(value: object, depth: int) -> str:
    if isinstance(value, list) and value:
        return _code_in(value[0], depth + 1)
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return ""
    words = [word for key in ("code", "type", "status") if isinstance(word := value.get(key), str)]
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and isinstance(kind := metadata.get("error_type"), str):
        words.append(kind)
    return one_line(" ".join(filter(None, (*words, _code_in(value.get("error"), depth + 1)))), limit=200)
