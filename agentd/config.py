"""config.toml as a value: read once at start, passed down. Every field says what its absence means.

model = "openai/gpt-5.4-mini"   # provider/model when a client names none; absent: the first provider with a key
mode = "plan"                   # plan, build or swe
capture = "content"             # content, metadata, stream or off
fallback = ["groq/openai/gpt-oss-120b"]   # asked in turn when the model gives nothing; absent: none is

[recorder]
autostart = true                # start tracewriter when nobody listens on its socket

[local]                         # the server of local/NAME: llama.cpp, on a socket of its own
idle_s = 300                    # stopped after so long without a request
start_s = 120                   # how long it may take to load
context_tokens = 16384          # at most; less when the model was trained for less or memory is short
threads = 0                     # 0: as many as there are idle cores

[retention]                     # of records; the recorder reads it
max_age_days = 30               # since the last record of a session
max_bytes = 1073741824          # of all records on disk together
enabled = true

[providers.mine]                # a new provider, or changes to a known one: `-m mine/MODEL`
wire = "openai-chat"            # openai-chat, openai-responses, anthropic or gemini
base_url = "http://gpu.local:8000/v1"      # or uds = "/run/model.sock"
key_file = "~/.config/agentd/mine.key"     # mode 0600; or key_env = "MINE_KEY", or
key_command = ["pass", "show", "mine"]     # a program that prints the key; no shell
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Final

import msgspec
from msgspec import Struct

from agentd.errors import ConfigError
from agentd.prompts import DEFAULT_MODE, MODES
from agentd.providers.catalog import ProviderOverride, base_url_problem
from agentd.providers.local_launch import LocalConfig
from agentd.providers.wires import WIRES

CAPTURES: Final = ("content", "metadata", "stream", "off")
MAX_CONFIG_BYTES: Final = 1024 * 1024
MAX_FALLBACKS: Final = 8
_PROVIDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class RecorderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[recorder]`."""

    autostart: bool = True


class RetentionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[retention]`: tracewriter.retention.Policy in the same words. What is wrong with it is told before a daemon starts."""

    max_age_days: float = 30.0
    max_bytes: int = 1024 * 1024 * 1024
    enabled: bool = True


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Keys of providers are never in it: key_env, key_file and key_command name where they are."""

    model: str = ""
    default_provider: str = ""
    mode: str = DEFAULT_MODE
    capture: str = "content"
    recorder: RecorderConfig = RecorderConfig()
    providers: dict[str, ProviderOverride] = {}
    retention: RetentionConfig = RetentionConfig()
    fallback: tuple[str, ...] = ()
    local: LocalConfig = LocalConfig()


def load_config(path: str) -> Config:
    """The file's settings, or all defaults when there is none. Raises ConfigError, which names file, setting and remedy."""
    try:
        # Not to wait for whoever might write to a FIFO. A link is followed: people keep their settings elsewhere.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{path} cannot be read: it is no regular file", "move it away")
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return Config()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}", "mend its permissions or move it away") from exc
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path} is over 1 MiB", "that is no configuration; move it away")
    return parse_config(data, path)


def parse_config(data: bytes, path: str) -> Config:
    """The settings in a file's contents; `path` is for the messages."""
    try:
        table = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not valid TOML: {exc}", "mend that line, or move the file away") from exc
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as exc:
        hint = f"settings: {', '.join(Config.__struct_fields__)}; see the README"
        if "$.providers" in str(exc):
            fields = ", ".join(ProviderOverride.__struct_fields__)
            hint = f"of a provider there are {fields}; a key itself is never in this file"
        raise ConfigError(f"{path}: {exc}", hint) from exc
    _check(config.mode, MODES, "mode", path)
    _check(config.capture, CAPTURES, "capture", path)
    if not config.retention.max_age_days > 0 or config.retention.max_bytes <= 0:
        raise ConfigError(
            f"{path}: [retention] max_age_days and max_bytes must be above 0", "enabled = false keeps all"
        )
    local = config.local
    if not (0 < local.idle_s < float("inf") and 0 < local.start_s < float("inf")) or local.context_tokens < 1_024:
        raise ConfigError(
            f"{path}: [local] idle_s and start_s must be above 0, context_tokens 1024 at least", "mend it"
        )
    if not 0 <= local.threads <= 1_024:
        raise ConfigError(f"{path}: [local] threads must be 0 (chosen) to 1024", "mend it")
    for name, provider in config.providers.items():
        _check_provider(name, provider, path)
    if len(config.fallback) > MAX_FALLBACKS or not all(
        prefix and model for prefix, _, model in (name.partition("/") for name in config.fallback)
    ):
        raise ConfigError(f"{path}: fallback must be at most {MAX_FALLBACKS} of provider/model", 'as "groq/llama-4"')
    return config


def _check_provider(name: str, provider: ProviderOverride, path: str) -> None:
    where = f"{path}: [providers.{name[:64]}]"
    if not _PROVIDER_NAME.fullmatch(name):
        raise ConfigError(f"{path}: no provider can be called {name[:64]!r}", "letters, digits, - _ . : one word")
    if provider.wire is not None and provider.wire not in WIRES:
        raise ConfigError(f"{where}: there is no wire {provider.wire[:50]!r}", f"one of {', '.join(WIRES)}")
    if provider.base_url is not None and (bad := base_url_problem(provider.base_url)):
        raise ConfigError(f"{where}: base_url {bad}", "it looks like http://localhost:8000/v1")
    if provider.key_command is not None and not (provider.key_command and provider.key_command[0]):
        raise ConfigError(f"{where}: key_command is empty", 'as ["pass", "show", "mine"]')
    if provider.key_file and provider.key_command:
        raise ConfigError(f"{where}: key_file and key_command exclude each other", "keep the one that is meant")


def _check(value: str, allowed: tuple[str, ...], name: str, path: str) -> None:
    if value not in allowed:
        raise ConfigError(f"{path}: {name} cannot be {value[:50]!r}", f"one of {', '.join(allowed)}")
