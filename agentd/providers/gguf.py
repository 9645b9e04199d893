"""The head of a GGUF file: what is said of the model before its weights, read without llama.cpp and before it is started.

Layout (all little endian): "GGUF", version u32, tensors u64, pairs u64, then the pairs: key, type u32, value. A string is a
length u64 and its bytes, an array a type u32, a count u64 and its items. Only what is asked for is kept; the vocabulary, which
is most of it, is passed over.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, Final

from msgspec import Struct

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# Ten times what the largest known files have: a damaged count must not keep us busy.
_MAX_PAIRS: Final = 10_000
_MAX_ITEMS: Final = 10_000_000
_MAX_KEY_BYTES: Final = 64 * 1024
_MAX_STRING_BYTES: Final = 16 * 1024 * 1024
_KV_BYTES: Final = 2  # llama.cpp keeps keys and values as f16

_Value = int | float | bool | str | None


class NotGguf(Exception):
    """The file is no GGUF file, or not a whole one. `str(error)` is the end of a sentence about it."""


class GgufHead(Struct, frozen=True):
    """`context_tokens`: what the model was trained for, 0 when not said. `kv_bytes_per_token`: memory for each token of context."""

    architecture: str
    size_bytes: int
    context_tokens: int
    kv_bytes_per_token: int
    chat_template: str


def read_head(path: str) -> GgufHead:
    """What the file's head says. Blocks. Raises NotGguf, and OSError as open does."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            pairs = _pairs(file)
        except (struct.error, MemoryError) as exc:
            raise NotGguf("is cut off") from exc
    architecture = _text(pairs, "general.architecture")
    return GgufHead(
        architecture,
        size,
        _number(pairs, f"{architecture}.context_length"),
        _kv_bytes(pairs, architecture),
        _text(pairs, "tokenizer.chat_template"),
    )


def _pairs(file: BinaryIO) -> dict[str, _Value]:
    if file.read(4) != MAGIC:
        raise NotGguf("is no GGUF file")
    version, _, count = _unpack(file, "<IQQ")
    if version not in _VERSIONS:
        raise NotGguf(f"is GGUF of version {version}, which is not known")
    if count > _MAX_PAIRS:
        raise NotGguf("is damaged: its head has too many entries")
    pairs: dict[str, _Value] = {}
    for _ in range(count):
        key = _string(file, _MAX_KEY_BYTES)
        (kind,) = _unpack(file, "<I")
        pairs[key] = _value(file, kind)
    return pairs


def _value(file: BinaryIO, kind: int) -> _Value:
    if kind == _STRING:
        return _string(file, _MAX_STRING_BYTES)
    if kind in _SCALARS:
        value: _Value = _unpack(file, _SCALARS[kind])[0]
        return value
    if kind != _ARRAY:
        raise NotGguf(f"is damaged: its head has an entry of type {kind}")
    inner, count = _unpack(file, "<IQ")
    if count > _MAX_ITEMS or inner not in (*_SCALARS, _STRING):
        raise NotGguf("is damaged: its head has an impossible list")
    if inner == _STRING:
        for _ in range(count):
            (length,) = _unpack(file, "<Q")
            _skip(file, length)
        return None
    # Per layer in some models; the first stands for all, which is enough for an estimate.
    size = struct.calcsize(_SCALARS[inner])
    first: _Value = _unpack(file, _SCALARS[inner])[0] if count else None
    _skip(file, size * max(0, count - 1))
    return first


def _skip(file: BinaryIO, length: int) -> None:
    if length > _MAX_STRING_BYTES * 16:
        raise NotGguf("is damaged: its head has an impossible length")
    while length > 0:
        piece = len(file.read(min(length, 1 << 20)))
        if not piece:
            raise NotGguf("is cut off")
        length -= piece


def _string(file: BinaryIO, limit: int) -> str:
    (length,) = _unpack(file, "<Q")
    if length > limit:
        raise NotGguf("is damaged: its head has an impossible length")
    data = file.read(length)
    if len(data) < length:
        raise NotGguf("is cut off")
    return data.decode("utf-8", "replace")


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _kv_bytes(pairs: dict[str, _Value], architecture: str) -> int:
    layers = _number(pairs, f"{architecture}.block_count")
    width = _number(pairs, f"{architecture}.embedding_length")
    heads = _number(pairs, f"{architecture}.attention.head_count") or 1
    kv_heads = _number(pairs, f"{architecture}.attention.head_count_kv") or heads
    key = _number(pairs, f"{architecture}.attention.key_length") or width // heads
    value = _number(pairs, f"{architecture}.attention.value_length") or width // heads
    return layers * kv_heads * (key + value) * _KV_BYTES


def _number(pairs: dict[str, _Value], key: str) -> int:
    value = pairs.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40 else 0


def _text(pairs: dict[str, _Value], key: str) -> str:
    value = pairs.get(key)
    return value if isinstance(value, str) else ""
