"""A provider for tests that speaks all four wires over HTTP, and refuses what the real ones refuse.

    with FakeProvider() as provider:
        provider.answers.append(Answer(text="Hello"))       # in turn; the last one again and again
        ... provider.base_url("anthropic") ...              # what our catalog takes; `provider.url` is what the SDKs take

Both generations of dialects are served: Anthropic's key as `x-api-key` or as a Bearer token, with either version header, and
Gemini's methods under /v1beta and /v1. A key that is missing, a body that lacks what the wire demands, an unknown path: each is
answered as the provider would, so that a client that sends nonsense is found out. bytes among the answers are sent as they are.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from tests import fake_provider_streams as streams
from tests.fake_provider_streams import Answer

ANTHROPIC_VERSIONS: Final = ("2023-06-01", "2026-10-21")
MODELS: Final = ("m-1", "m-2")
_GEMINI_METHOD: Final = re.compile(r"/(v1|v1beta)/models/([^/:]+):streamGenerateContent")
_BASES: Final = {"openai-chat": "/v1", "openai-responses": "/v1", "anthropic": "/v1", "gemini": "/v1beta"}
_POSTS: Final = {
    "/v1/chat/completions": "openai-chat",
    "/v1/responses": "openai-responses",
    "/v1/messages": "anthropic",
}
_STATUS_NAMES: Final = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    404: ("not_found_error", "NOT_FOUND"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    529: ("overloaded_error", "UNAVAILABLE"),
}

Json = dict[str, Any]


class Request(Struct, frozen=True):
    """A request as it came, names of headers in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Refused(Exception):
    """The provider answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeProvider:
    """A running server on loopback; `requests` are what came, also refused ones."""

    def __init__(self, *answers: Answer | bytes, key: str | None = None) -> None:
        self.answers: list[Answer | bytes] = list(answers)
        self.requests: list[Request] = []
        self._key = key
        self._lock = threading.Lock()
        self._served = 0
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.05), daemon=True)

    def __enter__(self) -> FakeProvider:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def base_url(self, wire: str) -> str:
        """What our catalog would have for the wire."""
        return self.url + _BASES[wire]

    def answer(self, request: Request) -> tuple[int, str, Iterable[bytes]]:
        """The status, the content type and the body in pieces."""
        parts = urlsplit(request.target)
        wire = _wire_of(request, parts.path)
        try:
            if wire is None:
                raise Refused(404, f"Unknown request URL: {request.method} {parts.path}")
            self._authenticate(wire, request, parse_qs(parts.query))
            if request.method == "GET":
                return 200, "application/json", [json.dumps(_model_list(wire)).encode()]
            return 200, "text/event-stream", self._stream(wire, request, parts.path, parse_qs(parts.query))
        except Refused as refused:
            body = error_body(wire or "openai-chat", refused.status, str(refused))
            return refused.status, "application/json", [body]

    def _authenticate(self, wire: str, request: Request, query: dict[str, list[str]]) -> None:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = bearer
        if wire == "anthropic":
            key = request.headers.get("x-api-key") or bearer
            version = request.headers.get("anthropic-version")
            if version not in ANTHROPIC_VERSIONS:
                raise Refused(400, f"anthropic-version: {version!r} is not a known version")
        elif wire == "gemini":
            key = request.headers.get("x-goog-api-key") or query.get("key", [""])[0]
        if not key or (self._key is not None and key != self._key):
            raise Refused(401, "the API key is missing or not valid")

    def _stream(self, wire: str, request: Request, path: str, query: dict[str, list[str]]) -> Iterator[bytes]:
        try:
            body = request.json()
        except ValueError:
            raise Refused(400, "the body is no JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is no JSON object")
        _CHECKS[wire](body, query)
        with self._lock:
            answer = self.answers[min(self._served, len(self.answers) - 1)]
            self._served += 1
        if isinstance(answer, bytes):
            return iter([answer])
        if answer.status != 200:
            raise Refused(answer.status, answer.error or "scripted")
        match = _GEMINI_METHOD.fullmatch(path)
        return compose(wire, answer, match[2] if match else body["model"], body)


def compose(wire: str, answer: Answer, model: str, body: Json) -> Iterator[bytes]:
    """The answer as the wire's stream, in answer to a request."""
    if wire == "openai-chat":
        return streams.openai_chat(answer, model, usage=bool((body.get("stream_options") or {}).get("include_usage")))
    if wire == "openai-responses":
        return streams.openai_responses(answer, model)
    return streams.anthropic(answer, model) if wire == "anthropic" else streams.gemini(answer, model)


def error_body(wire: str, status: int, message: str) -> bytes:
    """An error in the provider's own words."""
    kind, google = _STATUS_NAMES.get(status, ("api_error", "INTERNAL"))
    if wire == "gemini":
        return json.dumps({"error": {"code": status, "message": message, "status": google}}).encode()
    if wire == "anthropic":
        return json.dumps(
            {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
        ).encode()
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()


def _wire_of(request: Request, path: str) -> str | None:
    if request.method == "GET":
        openai_like = "anthropic" if "anthropic-version" in request.headers else "openai-chat"
        return {"/v1/models": openai_like, "/v1beta/models": "gemini"}.get(path)
    return "gemini" if _GEMINI_METHOD.fullmatch(path) else _POSTS.get(path)


def _model_list(wire: str) -> Json:
    if wire == "gemini":
        methods = ["generateContent", "countTokens"]
        return {"models": [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in MODELS]}
    if wire == "anthropic":
        return {"data": [{"type": "model", "id": name, "display_name": name} for name in MODELS], "has_more": False}
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "fake"} for name in MODELS]}


def _need(condition: object, message: str) -> None:
    if not condition:
        raise Refused(400, message)


def _check_roles(messages: Any, roles: tuple[str, ...]) -> None:
    _need(isinstance(messages, list) and messages, "messages: at least one is required")
    for number, message in enumerate(messages):
        good = isinstance(message, dict) and message.get("role") in roles
        _need(good, f"messages[{number}].role: must be one of {', '.join(roles)}")


def _check_chat(body: Json, query: dict[str, list[str]]) -> None:
    _need(isinstance(body.get("model"), str), "you must provide a model parameter")
    _need(body.get("stream") is True, "this server only streams")
    _check_roles(body.get("messages"), ("system", "developer", "user", "assistant", "tool"))
    asked, answered = set(), set()
    for message in body["messages"]:
        asked |= {call["id"] for call in message.get("tool_calls") or ()}
        answered |= {message["tool_call_id"]} if message["role"] == "tool" else set()
    _need(answered == asked, "each tool_call must be followed by a tool message with its tool_call_id, and the reverse")


def _check_responses(body: Json, query: dict[str, list[str]]) -> None:
    _need(isinstance(body.get("model"), str), "you must provide a model parameter")
    _need(body.get("stream") is True, "this server only streams")
    items = body.get("input")
    _need(isinstance(items, str | list) and items, "input: required")
    for item in items if isinstance(items, list) else ():
        _need("role" in item or item.get("type"), "input: each item needs a role or a type")


def _check_anthropic(body: Json, query: dict[str, list[str]]) -> None:
    _need(isinstance(body.get("model"), str), "model: Field required")
    _need(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
    _need(body.get("stream") is True, "this server only streams")
    _check_roles(body.get("messages"), ("user", "assistant"))
    _need(body["messages"][0]["role"] == "user", "messages: first message must use the user role")
    for before, after in zip(body["messages"], body["messages"][1:], strict=False):
        _need(before["role"] != after["role"], "messages: roles must alternate")


def _check_gemini(body: Json, query: dict[str, list[str]]) -> None:
    _need(query.get("alt") == ["sse"], "this server only streams with alt=sse")
    contents = body.get("contents")
    _need(isinstance(contents, list) and contents, "contents is not specified")
    for content in contents or ():
        _need(content.get("role") in ("user", "model", "function", None), "Please use a valid role: user, model.")
        _need(content.get("parts"), "contents.parts must not be empty.")


_CHECKS: Final[dict[str, Callable[[Json, dict[str, list[str]]], None]]] = {
    "openai-chat": _check_chat,
    "openai-responses": _check_responses,
    "anthropic": _check_anthropic,
    "gemini": _check_gemini,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may leave when it likes
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(provider: FakeProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._serve(self.rfile.read(int(self.headers.get("content-length", "0"))))

        def do_GET(self) -> None:
            self._serve(b"")

        def _serve(self, body: bytes) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            provider.requests.append(request)
            status, kind, pieces = provider.answer(request)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                for piece in pieces:
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except ConnectionError:
                self.close_connection = True  # an SDK that has had enough

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler
