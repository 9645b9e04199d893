"""What is too long for a record: which parts of an event move out of it, and what stands for them. Pure.

Long texts and long pieces of JSON move out one by one, wherever they are in the event. If the line is still too long, its largest
field moves out as JSON, then the next, then all of it. What moved out has no references in it, so one look puts everything
back. What could be taken for a reference without being one moves out whatever its size: a stored line never has a false one.
"""

from __future__ import annotations

import re
from _blake2 import blake2b  # see payload
from math import isfinite
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from tracewriter import jsonl
from tracewriter.config import KIB, MAX_BODY, MAX_LINE
from tracewriter.payload import MAX_PAYLOAD, PAYLOAD_BYTES, REFERENCE, PayloadRef, head_of, payload_id
from tracewriter.sizing import SURELY_SHORT

DATA_BYTES: Final = MAX_LINE - 2 * KIB  # of a line's data, when the rest is as it should be
KEY_BYTES: Final = 32  # random ones, of a producer's life
_KEPT: Final = 200  # bytes of a text for which a record has no more room; with its mark
_ROUNDS: Final = 8  # fields moved out as JSON; beyond that a line is long for other reasons
# Objects whose first key is `payload`, however it is written: a redactor may write JSON anew, without spaces and escapes.
_FIRST_KEY: Final = re.compile(rb'\{[ \t\r\n]*"(?:payload"|[^"\\]{0,6}\\u00[67])')
_END_OF_DATA: Final = b"}}\n"  # and of the line
_encode: Final = jsonl.encoder.encode
_ref_decoder: Final = msgspec.json.Decoder(PayloadRef)


class Body(Struct, frozen=True, gc=False):
    """What moved out: as UTF-8 text, or as one line of JSON."""

    payload: str
    data: bytes
    json: bool


class Data(Struct, frozen=True, gc=False):
    """A record's data as one line of JSON, and the bodies that it names, each once."""

    line: Raw
    bodies: tuple[Body, ...] = ()


class Keys(Struct, frozen=True, gc=False):
    """What ids are made with. Text and JSON of the same bytes are redacted in different ways, so they are two bodies."""

    text: bytes
    json: bytes

    def __repr__(self) -> str:
        return "<Keys>"


class OddValue(Exception):
    """Something else than what events are made of."""


def keys_of(secret: bytes) -> Keys:
    """The keys of a producer's life, from at most 64 random bytes that nobody else knows."""
    return Keys(secret, blake2b(b"json", key=secret, digest_size=32).digest())


def looks_like_reference(data: bytes | Raw) -> bool:
    """Whether JSON has something in it that might be taken for a reference, as it is or after it was written anew."""
    data = bytes(data)
    return (b"payload" in data or b"\\u00" in data) and _FIRST_KEY.search(data) is not None


def move_out(event: object, keys: Keys) -> Data:
    """An event or a plain object as a line under the bound, what is too long moved out of it.

    Raises OddValue, or whatever the encoder raises, when it is not made of what JSON has, and when no way out is left.
    """
    mover = _Mover(keys)
    line = mover.fit(event)
    named = {match[1].decode() for match in REFERENCE.finditer(line)}
    if not named <= mover.bodies.keys() or looks_like_reference(REFERENCE.sub(b"0", line)):
        mover = _Mover(keys)
        ref = mover.json(event)
        line, named = _encode(ref), {ref.payload}
    if not jsonl.is_json(line):
        raise OddValue("a body that is no JSON")
    return Data(Raw(line), tuple(body for name, body in mover.bodies.items() if name in named))


def cut_out(line: bytes, gone: set[bytes]) -> bytes:
    """A record's line without the bodies that are not to be had: heads with the mark of a cut."""
    cut_from = 0

    def cut(match: re.Match[bytes]) -> bytes:
        nonlocal cut_from
        if match[1] not in gone:
            return match[0]
        ref = _ref_decoder.decode(match[0])
        cut_from += ref.bytes
        return _encode(_left_out(ref.bytes) if ref.type == "json" else f"{ref.head}…[cut: {ref.chars} characters]")

    line = REFERENCE.sub(cut, line)
    if cut_from and line.endswith(_END_OF_DATA):  # else all of its data was one body
        line = b'%s,"cut_from_bytes":%d%s' % (line.removesuffix(_END_OF_DATA), cut_from, _END_OF_DATA)
    return line


def _left_out(size: int) -> str:
    return f"[{size} bytes of JSON, left out]"


class _Mover:
    """Moves bodies out of one event. What they may take in all is bounded: what is beyond that is cut."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.bodies: dict[str, Body] = {}
        self._left = MAX_PAYLOAD
        self._items = 0
        self._repairs = jsonl.Repairs()
        self._cut_from = 0  # characters of texts and bytes of JSON that were cut

    def fit(self, event: object) -> bytes:
        moved = self._walk(event, 0)
        if self._repairs.count:
            moved = {**_fields(moved), "repaired": self._repairs.count}
        if self._cut_from:
            moved = {**_fields(moved), "cut_from_bytes": self._cut_from}
        line = _encode(moved)
        for _ in range(_ROUNDS):
            if len(line) <= DATA_BYTES:
                return line
            moved = self._without_largest(event, moved, len(line) - DATA_BYTES)
            line = _encode(moved)
        return line if len(line) <= DATA_BYTES else _encode(self.json(event))

    def _without_largest(self, original: object, moved: object, excess: int) -> dict[str, object]:
        """The fields, the largest as JSON instead: a part of it, when that is enough and it has parts."""
        fields, originals = _fields(moved), _fields(original)
        sizes = {name: len(_encode(value)) for name, value in fields.items() if name in originals}
        if not sizes:
            raise OddValue("an object without fields that is too long")
        name = max(sizes, key=sizes.__getitem__)
        inner = fields[name]
        if _is_object(inner) and any(len(_encode(value)) > excess for value in _fields(inner).values()):
            fields[name] = self._without_largest(originals[name], inner, excess)
        else:
            fields[name] = self.json(originals[name])
        return fields

    def json(self, value: object) -> PayloadRef:
        """A reference to all of it as JSON."""
        data = _encode(value)
        if len(data) > MAX_BODY or not jsonl.is_json(data):
            raise OddValue("too long, or no JSON")
        return self._moved(data, data.decode(), json=True)

    def _moved(self, data: bytes, text: str, *, json: bool) -> PayloadRef:
        payload = payload_id(self._keys.json if json else self._keys.text, data)
        if payload not in self.bodies:
            self.bodies[payload] = Body(payload, data, json)
            self._left -= len(data)
        return PayloadRef(payload, len(data), len(text), head_of(text), "json" if json else UNSET)

    def _walk(self, value: object, depth: int) -> object:
        """The same, or a copy with references in it."""
        kind = type(value)
        self._items += 1
        if self._items > 2 * jsonl.MAX_ITEMS or depth > 2 * jsonl.MAX_DEPTH:
            raise OddValue("too much of it")
        if kind is str:
            return self._text(value)  # type: ignore[arg-type]
        if kind is Raw:
            return self._raw(value)  # type: ignore[arg-type]
        if value is None or kind is int or kind is bool:
            return value
        if kind is float and isfinite(value):  # type: ignore[arg-type]
            return value
        if kind is tuple or kind is list:
            items = [self._walk(item, depth + 1) for item in value]  # type: ignore[attr-defined]
            return value if all(map(_same, items, value)) else items  # type: ignore[call-overload]
        if kind is dict or issubclass(kind, Struct):
            return self._object(value, depth)
        raise OddValue(f"a {kind!r}")

    def _object(self, value: object, depth: int) -> object:
        fields = _fields(value)
        if next(iter(fields), "") == "payload":
            return self.json(value)
        moved = {name: self._walk(item, depth + 1) for name, item in fields.items()}
        return value if all(map(_same, moved.values(), fields.values())) else moved

    @property
    def _room(self) -> int:
        return min(MAX_BODY, max(self._left, _KEPT))

    def _text(self, text: str) -> object:
        if len(text) <= SURELY_SHORT or (len(text) <= PAYLOAD_BYTES and text.isascii()):
            return text
        if len(text) > MAX_BODY:  # before anything is made of it: encoding 64 MiB to keep 4 would hold up the run
            self._cut_from += len(text)
            text = jsonl.cut_text(text, MAX_BODY - KIB)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            text = jsonl.safe_str(text, self._repairs)
            data = text.encode()
        if len(data) > self._room:
            self._cut_from += len(data)
            text = jsonl.cut_text_to_bytes(text, self._room)
            data = text.encode()
        return text if len(data) <= PAYLOAD_BYTES else self._moved(data, text, json=False)

    def _raw(self, raw: Raw) -> object:
        if len(raw) <= PAYLOAD_BYTES and not looks_like_reference(raw):
            return raw
        data = bytes(raw)
        if len(data) <= self._room and not jsonl.is_json(data):
            data = bytes(jsonl.raw(data))
            if len(data) <= PAYLOAD_BYTES and not looks_like_reference(data):
                return Raw(data)
        if len(data) > self._room:
            self._cut_from += len(data)
            return _left_out(len(raw))
        return self._moved(data, data.decode(), json=True)


def _same(one: object, other: object) -> bool:
    return one is other


def _is_object(value: object) -> bool:
    return type(value) is dict or (issubclass(type(value), Struct) and type(value) is not PayloadRef)


def _fields(value: object) -> dict[str, object]:
    """Of a dict or a Struct, as JSON has them."""
    kind = type(value)
    if kind is dict:
        return dict(value)  # type: ignore[call-overload, no-any-return]
    if not issubclass(kind, Struct) or kind.__struct_config__.array_like or kind.__struct_config__.tag is not None:
        raise OddValue("no plain object")
    names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {shown: item for shown, name in names if (item := getattr(value, name)) is not UNSET}
