"""Requests to providers over HTTP: the only module that imports httpx, and only when a first request is made.

One `HttpProvider` is one place to ask (a base URL or a Unix socket, with its key). Bytes are read raw, decoded from gzip
here (httpx takes half a gzip body for a whole one) and given to the wire's decoder; where they are cut does not matter.
What is measured for a stall is the answer's progress, not bytes: comments and pings keep coming from a stalled model.
A request is sent again only while nothing of its answer was shown. Redirects are not followed: they could carry the
conversation elsewhere. Proxies and CA bundles come from the session's environment, never from this process's own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from agentd.providers import errors
from agentd.providers.catalog import Choice
from agentd.providers.inflate import BadEncodingError, BodyDecoder, body_decoder
from agentd.providers.models import ModelInfo, advice, parse_models
from agentd.providers.proxies import proxy_for, proxy_host
from agentd.providers.retries import Retries, RetryState, asked_wait, told_to_retry
from agentd.providers.stream import Failed, Finished, ModelRequest, Retry, StreamEvent, UsageReported
from agentd.providers.tls import ssl_context
from agentd.providers.wires import WIRES, WireDecoder, bearer
from tracewriter.events import Failure, Usage

if TYPE_CHECKING:
    import httpx

# A whole answer is a few hundred KiB; a server that sends this much is not answering. Decoding holds none of it.
MAX_BODY_BYTES: Final = 512 * 1024 * 1024
_MAX_ERROR_BYTES: Final = 256 * 1024
_MAX_LIST_BYTES: Final = 8 * 1024 * 1024  # the longest list of models known has half of one
# After the answer's last frame the body should end at once; read that far, the connection can be used again.
_DRAIN_S: Final = 0.25


class Timeouts(Struct, frozen=True):
    """How long to wait, in seconds. first_byte_s is long: a local model reads its whole prompt before it answers.

    connect_s: TCP and TLS. first_byte_s: from the request to the first frame. stall_s: between frames. total_s: one
    attempt. settle_s: for usage, once the answer is known to be over. error_body_s: for the text of an error. list_s: for a
    list of models, from the connection to its end.
    """

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    stall_s: float = 120.0
    total_s: float = 1800.0
    settle_s: float = 10.0
    error_body_s: float = 10.0
    list_s: float = 5.0


class _Again(Exception):
    """Internal: an attempt failed before an answer began. Carries what the retry needs to know."""

    def __init__(self, failure: Failure, *, retryable: bool, wait_s: float | None = None) -> None:
        super().__init__(failure.message)
        self.failed = Failed(failure, retryable)
        self.wait_s = wait_s


class _Given:
    """How many events an answer gave so far."""

    events = 0


class HttpProvider:
    """A stream.Provider for one choice of the catalog. `env` gives proxies and CA bundle. Close it with `aclose`."""

    def __init__(
        self,
        choice: Choice,
        *,
        env: Mapping[str, str],
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        retries: Retries = Retries(),  # noqa: B008 - frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._choice = choice
        self._wire = WIRES[choice.spec.wire]
        self._where = choice.uds or _host_port(choice.base_url)
        self._proxy = None if choice.uds or choice.spec.local else proxy_for(choice.base_url, env)
        self._env = env
        self._timeouts = timeouts
        self._retries = retries
        self._sleep = sleep
        self._uniform = uniform
        self._monotonic = monotonic
        self._wall = wall
        self._client: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()
        self._directory: int | None = None

    def __repr__(self) -> str:
        return f"HttpProvider({self.name} at {self._where})"

    @property
    def name(self) -> str:
        """The provider's name in the catalog."""
        return self._choice.spec.name

    async def aclose(self) -> None:
        """Close all connections. Streams still open end with a failure."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Send the request and yield its events; closing the generator closes the connection at once."""
        state = RetryState(self._retries, self._uniform)
        url = _join(self._choice.base_url, self._wire.path_for(request.model))
        body = self._wire.build(request, self._choice.spec.quirks)
        shown = False
        spent: Usage | None = None
        while True:
            ended: Finished | Failed
            wait_s: float | None = None
            try:
                async with aclosing(self._attempt(url, body)) as events:
                    async for event in events:
                        if isinstance(event, UsageReported):
                            spent = event.usage if spent is None else spent + (event.usage or Usage())
                        elif isinstance(event, Finished | Failed):
                            ended = event
                        else:
                            shown = True
                            yield event
            except _Again as again:
                ended, wait_s = again.failed, again.wait_s
            if isinstance(ended, Failed):
                ended = self._safe(ended)
                delay = None if shown or not ended.retryable else state.next_delay(wait_s)
                if delay is not None:
                    yield Retry(state.attempt, delay, ended.failure)
                    await self._sleep(delay)
                    continue
                ended = await self._told(ended, request.model)
            yield UsageReported(spent)
            yield ended
            return

    def _safe(self, failed: Failed) -> Failed:
        """A provider may echo the key it was sent: it never leaves this module."""
        failure = failed.failure
        message = errors.one_line(failure.message, self._secrets)
        return msgspec.structs.replace(failed, failure=msgspec.structs.replace(failure, message=message))

    async def _told(self, failed: Failed, model: str) -> Failed:
        """The failure; when the provider does not have the model, with those that it has."""
        if not errors.no_model(failed.failure):
            return failed
        models = await self.models()
        if isinstance(models, Failure) or model in {one.id for one in models}:
            return failed
        hint = errors.one_line(advice(model, self.name, models), self._secrets) or failed.failure.hint
        return msgspec.structs.replace(failed, failure=msgspec.structs.replace(failed.failure, hint=hint))

    async def models(self) -> tuple[ModelInfo, ...] | Failure:
        """The models that the provider lists, or why it gave no list within `list_s`. Asked once, never again."""
        url = _list_url(self._choice)
        try:
            async with asyncio.timeout(self._timeouts.list_s):
                response = await self._send(await self._open(), "GET", url, None)
                try:
                    await self._check(response, "a list of models")
                    body = await self._text(response, _MAX_LIST_BYTES)
                finally:
                    await response.aclose()
                found = await asyncio.to_thread(parse_models, body)
        except TimeoutError:
            return errors.timeout_failure(self._where, "no list of models within", self._timeouts.list_s)
        except _Again as again:
            failure = self._safe(again.failed).failure
            if failure.status in (404, 405, 501):
                return Failure("provider", f"{self.name} has no list of models", f"name one: -m {self.name}/MODEL")
            return failure
        if found is None:
            return Failure("protocol", f"{self._where} answered with no list of models", "check the base URL")
        return tuple(one for one in found if not any(secret in one.id for secret in self._secrets))

    @property
    def _secrets(self) -> tuple[str, ...]:
        return (self._choice.key.reveal(),) if self._choice.key else ()

    async def _attempt(self, url: str, body: bytes) -> AsyncGenerator[StreamEvent, None]:
        """One request. Yields the decoder's events, always with an end; raises _Again when no answer began."""
        started = self._monotonic()
        client = await self._open()
        response = await self._send(client, "POST", url, body)
        try:
            await self._check(response)
            decoder = self._wire.decoder(self._choice.spec.quirks)
            async with aclosing(self._answer(response, decoder, started)) as events:
                async for event in events:
                    yield event
        finally:
            await response.aclose()

    async def _send(self, client: httpx.AsyncClient, method: str, url: str, body: bytes | None) -> httpx.Response:
        """The answer's head. Without a body it is a list that is asked for."""
        import httpx

        kind = [("accept", "application/json")]
        if body is not None:
            kind = [("content-type", "application/json"), ("accept", "text/event-stream")]
        headers = [*kind, ("user-agent", _USER_AGENT), ("accept-encoding", "identity")]
        headers += [*self._wire.headers, *self._choice.spec.headers]
        if self._choice.key is not None:
            auth = bearer if self._choice.bearer else self._wire.auth
            headers.append(auth(self._choice.key.reveal()))
        limit = min(self._timeouts.first_byte_s, self._timeouts.total_s)
        try:
            request = client.build_request(method, url, content=body, headers=headers)
            async with asyncio.timeout(limit):
                return await client.send(request, stream=True)
        except TimeoutError:
            raise _Again(errors.timeout_failure(self._where, "no answer within", limit), retryable=True) from None
        except httpx.ConnectTimeout:
            limit = self._timeouts.connect_s
            raise _Again(errors.timeout_failure(self._where, "no connection within", limit), retryable=True) from None
        except httpx.RemoteProtocolError as exc:
            raise _Again(errors.no_http_failure(self._where, exc), retryable=True) from exc
        except httpx.TransportError as exc:
            proxy = proxy_host(self._proxy) if self._proxy else ""
            raise _Again(errors.network_failure(self._where, exc, proxy=proxy), retryable=True) from exc
        except (httpx.InvalidURL, httpx.HTTPError, RuntimeError, ValueError) as exc:
            raise _Again(errors.network_failure(self._where, exc), retryable=False) from exc

    async def _refuse_redirect(self, response: httpx.Response) -> None:
        """Raises _Again before httpx reads where a redirect goes, which may be no address: nobody goes there."""
        if 300 <= response.status_code <= 399:
            host = _host_in(response.headers.get("location", ""))
            raise _Again(errors.redirect_failure(response.status_code, host, self.name), retryable=False)

    async def _check(self, response: httpx.Response, wanted: str = "an event stream") -> None:
        """Raises _Again for everything that is not the beginning of an answer."""
        status, kind = response.status_code, response.headers.get("content-type", "")
        if 200 <= status <= 299 and "html" not in kind.lower():
            return
        body = await self._text(response, _MAX_ERROR_BYTES)
        if status <= 299:
            failure = errors.not_a_stream(kind, body, status, secrets=self._secrets, wanted=wanted)
            raise _Again(failure, retryable=True)
        reason = errors.reason_of(body, kind, secrets=self._secrets)
        wait_s = asked_wait(response.headers, body, now=self._wall)
        failure = errors.http_failure(status, reason, self.name, key_name=self._choice.key_name, wait_s=wait_s)
        told = told_to_retry(response.headers)
        retryable = errors.retryable(status, f"{reason.code} {reason.text}") if told is None else told
        raise _Again(failure, retryable=retryable, wait_s=wait_s)

    async def _text(self, response: httpx.Response, limit: int) -> bytes:
        """As much of a short body as comes in time, at most `limit` bytes; what cannot be read is no text."""
        import httpx

        body = bytearray()
        try:
            inflate = body_decoder(response.headers.get("content-encoding", ""))
            async with asyncio.timeout(self._timeouts.error_body_s):
                async for data in response.aiter_raw():
                    for piece in inflate.feed(data):
                        body += piece
                        if len(body) >= limit:
                            return bytes(body[:limit])
        except (TimeoutError, httpx.HTTPError, BadEncodingError):
            pass
        return bytes(body)

    async def _answer(
        self, response: httpx.Response, decoder: WireDecoder, started: float
    ) -> AsyncGenerator[StreamEvent, None]:
        """The decoder's events up to the end of the body, or what ended it before."""
        trouble: Failed | None = None
        given, head = _Given(), bytearray()
        try:
            async with aclosing(self._body(response, decoder, started, given)) as pieces:
                async for piece in pieces:
                    if not decoder.frames and len(head) < _MAX_HEAD_BYTES:
                        head += piece[:_MAX_HEAD_BYTES]
                    for event in decoder.feed(piece):
                        given.events += 1
                        yield event
        except _Again as cut:
            trouble = cut.failed
        if trouble is None and not decoder.frames:
            trouble = self._no_stream(response, bytes(head))
        # A frame that cannot be read is what a cut leaves; what the decoder was sure of before stays.
        kinds = ("truncated",) if decoder.settled else ("truncated", "protocol")
        for event in decoder.end():
            if trouble is not None and isinstance(event, Failed) and event.failure.kind in kinds:
                event = Failed(trouble.failure, trouble.retryable, event.cut_tool_calls, event.finish)
            yield event

    def _no_stream(self, response: httpx.Response, head: bytes) -> Failed | None:
        """What came in place of an answer's first frame, where that was something for people to read."""
        kind = response.headers.get("content-type", "")
        if not head.strip() or ("event-stream" in kind.lower() and not head.lstrip().startswith(b"<")):
            return None
        return Failed(errors.not_a_stream(kind, head, response.status_code, secrets=self._secrets), True)

    async def _body(
        self, response: httpx.Response, decoder: WireDecoder, started: float, given: _Given
    ) -> AsyncGenerator[bytes, None]:
        """The body's bytes, decoded. Raises _Again when it is cut, stalls, grows without bound or is wrongly encoded."""
        import httpx

        raw = response.aiter_raw()
        seen = 0
        try:
            inflate = body_decoder(response.headers.get("content-encoding", ""))
            async for data in self._timed(raw, decoder, started, given):
                for piece in inflate.feed(data):
                    seen += len(piece)
                    if seen > MAX_BODY_BYTES:
                        message = f"the answer is larger than {MAX_BODY_BYTES // 1024**2} MiB: the stream was closed"
                        raise _Again(Failure("protocol", message, "try another model (-m)"), retryable=False)
                    yield piece
                    if len(piece) > len(data):  # inflated, perhaps a thousand times: everybody else has a turn between
                        await asyncio.sleep(0)
            self._whole(inflate)
        except httpx.TransportError as exc:
            raise _Again(errors.broken_failure(self._where, exc), retryable=True) from exc
        except BadEncodingError as exc:
            raise _Again(Failure("transport", f"{self._where}: {exc}", "try again"), retryable=True) from exc

    def _whole(self, inflate: BodyDecoder) -> None:
        if not inflate.whole:
            raise BadEncodingError("the compressed answer was cut off")

    async def _timed(
        self, raw: AsyncIterator[bytes], decoder: WireDecoder, started: float, given: _Given
    ) -> AsyncIterator[bytes]:
        """The body's pieces while the answer makes progress: frames, not bytes; once it is settled, events, not frames."""
        times = self._timeouts
        mark, progress = (False, 0), started
        while True:
            now = self._monotonic()
            settled = decoder.settled
            if (latest := (settled, given.events if settled else decoder.frames)) != mark:
                mark, progress = latest, now
            patience = times.stall_s if decoder.frames else times.first_byte_s
            if settled:
                patience = min(patience, _DRAIN_S if decoder.ended else times.settle_s)
            idle_at, over_at = progress + patience, started + times.total_s
            try:
                async with asyncio.timeout(min(idle_at, over_at) - now):
                    data = await anext(raw)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if decoder.ended:
                    return
                what, limit = ("was idle for", patience) if idle_at < over_at else ("took longer than", times.total_s)
                failure = errors.timeout_failure(self._where, f"the answer {what}", limit)
                raise _Again(failure, retryable=True) from None
            yield data

    async def _open(self) -> httpx.AsyncClient:
        """The client, made on first use: importing httpx and reading the CA bundle take a tenth of a second."""
        async with self._opening:
            if self._client is None:
                try:
                    self._client = await asyncio.to_thread(self._make_client)
                except (OSError, ValueError, ImportError) as exc:
                    hint = "check uds, the proxy variables and SSL_CERT_FILE"
                    raise _Again(Failure("config", errors.cause_of(exc), hint), retryable=False) from exc
            return self._client

    def _make_client(self) -> httpx.AsyncClient:
        import httpx

        for name in ("httpx", "httpcore"):  # at their lower levels they log URLs and headers, which may echo a key
            logging.getLogger(name).setLevel(logging.WARNING)
        uds = self._socket_path(self._choice.uds) if self._choice.uds else None
        proxy = None
        if self._proxy is not None:
            if urlsplit(self._proxy).scheme not in ("http", "https"):
                raise ValueError(f"a proxy of this kind is not supported: {urlsplit(self._proxy).scheme}")
            proxy = httpx.Proxy(self._proxy)
        secure = self._choice.base_url.startswith("https:") or bool(self._proxy and self._proxy.startswith("https:"))
        transport = httpx.AsyncHTTPTransport(
            verify=ssl_context(self._env) if secure else False, uds=uds, proxy=proxy, trust_env=False
        )
        timeout = httpx.Timeout(None, connect=self._timeouts.connect_s)
        return httpx.AsyncClient(
            transport=transport, timeout=timeout, trust_env=False, follow_redirects=False,
            event_hooks={"response": [self._refuse_redirect]},
        )  # fmt: skip

    def _socket_path(self, path: str) -> str:
        """A path that connect(2) takes: longer ones go through the directory's descriptor."""
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
            return path
        directory, name = os.path.split(path)
        self._directory = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory}/{name}"


_MAX_SOCKET_PATH_BYTES: Final = 107
_MAX_HEAD_BYTES: Final = 2048
_USER_AGENT: Final = "agentd"


def _join(base_url: str, path: str) -> str:
    """The URL of a wire's endpoint under a base URL, whose query (an API version) is kept, beside the endpoint's own."""
    parts = urlsplit(base_url)
    path, _, own = path.partition("?")
    base, query = parts.path.rstrip("/"), "&".join(filter(None, (parts.query, own)))
    if base.endswith("/v1") and path.startswith("/v1/"):  # whether a base URL holds the version is its owner's choice
        path = path.removeprefix("/v1")
    return urlunsplit(parts._replace(path=base if base.endswith(path) else base + path, query=query, fragment=""))


def _list_url(choice: Choice) -> str:
    """Where the list of models is, beside the endpoint of requests."""
    parts = urlsplit(choice.base_url)
    if choice.spec.models_path:
        return urlunsplit(parts._replace(path=choice.spec.models_path, query="", fragment=""))
    wire = WIRES[choice.spec.wire]
    path = parts.path.rstrip("/").removesuffix(wire.path)
    return _join(urlunsplit(parts._replace(path=path)), wire.models_path)


def _host_in(location: str) -> str:
    """The host of a redirect's address, without a user's name; "" where there is none."""
    try:
        return urlsplit(location).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _host_port(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "?"
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
