"""GGUF files without weights, and where the real model for tests is."""

from __future__ import annotations

import importlib.util
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentd.paths import models_dir


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def head(pairs: Mapping[str, int | str | tuple[str, ...]], *, version: int = 3) -> bytes:
    """The head of a GGUF file with these entries."""
    out = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs))
    for key, value in pairs.items():
        out += string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + string(value)
        elif isinstance(value, tuple):
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
        else:
            out += struct.pack("<II", 4, value)
    return out


LLAMA: dict[str, int | str | tuple[str, ...]] = {
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "tokenizer.ggml.tokens": ("a", "b", "ü"),
    "tokenizer.chat_template": "<|im_start|>{{ message }}",
}


def real_model() -> Path:
    """The file of smollm2, and llama.cpp beside it. Without them the test is left out, saying which; in CI it fails."""
    path = Path(os.environ.get("AGENTD_TEST_MODEL") or os.path.join(models_dir(os.environ), "smollm2.gguf"))
    missing = [] if importlib.util.find_spec("xllamacpp") else ["the extra: pip install -e '.[local]'"]
    missing += [] if path.is_file() else [f"{path}: agentctl models pull smollm2"]
    if missing and os.environ.get("CI"):
        pytest.fail(f"a real model is needed here, and missing: {'; '.join(missing)}")
    if missing:
        pytest.skip(f"no real model: {'; '.join(missing)}")
    return path
