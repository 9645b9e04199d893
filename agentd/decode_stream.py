"""`agentd decode-stream`: what a captured answer of a provider decodes to, one JSON line an event, a summary last.

The bytes go through the decoder that the daemon uses, as they come: a line is written once its event is known. gzip is
recognised by its first bytes. A stream that failed is decoded like any other: its error is an event, and in the summary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Struct

from agentd.errors import StartError
from agentd.providers import errors
from agentd.providers.http import MAX_BODY_BYTES
from agentd.providers.inflate import BadEncodingError, BodyDecoder, body_decoder
from agentd.providers.openai_chat_request import ChatQuirks
from agentd.providers.stream import (
    Failed,
    Finished,
    Opaque,
    Reasoning,
    Refusal,
    Retry,
    StreamEvent,
    Text,
    UsageReported,
)
from agentd.providers.summary import Decoded, summarise
from agentd.providers.wires import WIRES, WireDecoder
from tracewriter.events import Failure, ToolCall

_GZIP_MAGIC: Final = b"\x1f\x8b"
_READ_BYTES: Final = 64 * 1024

Read = Callable[[int], bytes]
Write = Callable[[bytes], object]


class _Decoder(WireDecoder, Decoded, Protocol):
    """Every wire's decoder: the transport needs the one half, a summary the other."""


class Options(Struct, frozen=True):
    """`wire`: a key of WIRES. `file`: None or `-` is standard input. `think_split`: inline <think> is told apart, where the
    wire can have it."""

    wire: str
    file: str | None = None
    think_split: bool = False


class UsageError(Exception):
    """The arguments are none of this command's; the text says which."""


def parse_arguments(arguments: list[str]) -> Options:
    """The options in any order, `--wire W` or `--wire=W`. Raises UsageError."""
    given = dict[str, str]()
    think_split = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--think-split":
            think_split = True
        elif word == "--wire" and rest:
            given["wire"] = rest.pop(0)
        elif word.startswith("--wire="):
            given["wire"] = word.removeprefix("--wire=")
        elif "file" not in given and (word == "-" or not word.startswith("-")):
            given["file"] = word
        else:
            raise UsageError(f"{word!r} is not understood")
    if given.get("wire") not in WIRES:
        raise UsageError(f"--wire takes one of {', '.join(WIRES)}")
    return Options(given["wire"], given.get("file"), think_split)


def run(options: Options, write: Write) -> None:
    """Decode the file, or standard input. Raises StartError when it cannot be read."""
    if options.file in (None, "-"):
        return _decode(options, 0, write)
    try:
        source = os.open(options.file or "", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as exc:
        raise StartError(f"{options.file} cannot be read: {errors.cause_of(exc)}", "name a captured stream") from exc
    try:
        _decode(options, source, write)
    finally:
        os.close(source)


def _decode(options: Options, source: int, write: Write) -> None:
    def read(size: int) -> bytes:
        try:
            return os.read(source, size)
        except OSError as exc:
            raise StartError(f"the stream cannot be read: {errors.cause_of(exc)}", "name a captured stream") from exc

    decode(options, read, write)


def decode(options: Options, read: Read, write: Write) -> None:
    """Read to the end, or to MAX_BODY_BYTES of body; write a line for each event, and the summary."""
    # WIRES promises what a transport needs; that its decoders know the rest too is what the summary's tests hold.
    decoder = cast("_Decoder", WIRES[options.wire].decoder(ChatQuirks(think_split=options.think_split)))

    def written() -> Iterator[StreamEvent]:
        for events in _batches(decoder, read):
            if events:
                write(b"".join(msgspec.json.encode(_shown(event)) + b"\n" for event in events))
            yield from events

    summary = summarise(written(), decoder)
    write(msgspec.json.encode(summary) + b"\n")


def _batches(decoder: WireDecoder, read: Read) -> Iterator[list[StreamEvent]]:
    """The events of each piece of the body, and those of its end; what was wrong with the body explains an early end."""
    trouble: Failure | None = None
    try:
        for piece in _body(read):
            yield decoder.feed(piece)
    except BadEncodingError as exc:
        trouble = Failure("transport", str(exc), "capture it again")
    yield [_explained(event, trouble) for event in decoder.end()]


def _explained(event: StreamEvent, trouble: Failure | None) -> StreamEvent:
    if trouble is not None and isinstance(event, Failed) and event.failure.kind in ("truncated", "protocol"):
        return msgspec.structs.replace(event, failure=trouble)
    return event


def _body(read: Read) -> Iterator[bytes]:
    """The body's bytes, inflated where they are gzip. Raises BadEncodingError for a damaged, cut or endless body."""
    head = b""
    while len(head) < len(_GZIP_MAGIC) and (more := read(_READ_BYTES)):
        head += more
    inflate: BodyDecoder = body_decoder("gzip" if head.startswith(_GZIP_MAGIC) else "")
    seen = 0
    data = head
    while data:
        for piece in inflate.feed(data):
            seen += len(piece)
            if seen > MAX_BODY_BYTES:
                raise BadEncodingError(f"the stream is larger than {MAX_BODY_BYTES} bytes")
            yield piece
        data = read(_READ_BYTES)
    if not inflate.whole:
        raise BadEncodingError("the compressed stream was cut")


def _shown(event: StreamEvent) -> dict[str, Any]:
    """An event as a line, under the names that the documentation of the providers' contract gives them."""
    match event:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            return {"type": "reasoning", "text": text}
        case Refusal(text):
            return {"type": "refusal", "text": text}
        case Opaque(data):
            return {"type": "opaque", "data": data}
        case ToolCall(call_id, name, arguments):
            return {"type": "tool_call", "id": call_id, "name": name, "input": arguments}
        case Retry(attempt, wait_s, failure):
            return {"type": "retry", "attempt": attempt, "wait_s": wait_s, "failure": failure}
        case UsageReported(usage):
            return {"type": "usage", "usage": usage}
        case Finished(stop_reason, finish, cut):
            return {"type": "finish", "stop_reason": stop_reason, "finish": finish, "cut_tool_calls": cut}
        case Failed(failure, retryable, cut, finish):
            error = {"type": "error", "kind": failure.kind, "message": failure.message, "hint": failure.hint}
            return {**error, "retryable": retryable, "finish": finish, "cut_tool_calls": cut}
