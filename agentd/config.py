"""config.toml as a value: read once at start, passed down. Every field says what its absence means.

model = "openai/gpt-5.4-mini"   # provider/model when a client names none; absent: the first provider with a key
mode = "plan"                   # plan, build or swe
capture = "content"             # content, metadata, stream or off

[recorder]
autostart = true                # start tracewriter when nobody listens on its socket

[retention]                     # of records; the recorder reads it
max_age_days = 30               # since the last record of a session
max_bytes = 1073741824          # of all records on disk together
enabled = true

[providers.mine]
base_url = "http://gpu.local:8000/v1"
key_file = "~/.config/agentd/mine.key"
"""

from __future__ import annotations

import os
import stat
import tomllib
from typing import Final

import msgspec
from msgspec import Struct

from agentd.errors import ConfigError
from agentd.prompts import DEFAULT_MODE, MODES
from agentd.providers.catalog import ProviderOverride

CAPTURES: Final = ("content", "metadata", "stream", "off")
MAX_CONFIG_BYTES: Final = 1024 * 1024


class RecorderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[recorder]`."""

    autostart: bool = True


class RetentionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[retention]`: tracewriter.retention.Policy in the same words. What is wrong with it is told before a daemon starts."""

    max_age_days: float = 30.0
    max_bytes: int = 1024 * 1024 * 1024
    enabled: bool = True


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Keys of providers are never in it: key_env and key_file name where they are."""

    model: str = ""
    default_provider: str = ""
    mode: str = DEFAULT_MODE
    capture: str = "content"
    recorder: RecorderConfig = RecorderConfig()
    providers: dict[str, ProviderOverride] = {}
    retention: RetentionConfig = RetentionConfig()


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
        raise ConfigError(f"{path}: {exc}", f"settings: {', '.join(Config.__struct_fields__)}; see the README") from exc
    _check(config.mode, MODES, "mode", path)
    _check(config.capture, CAPTURES, "capture", path)
    if not config.retention.max_age_days > 0 or config.retention.max_bytes <= 0:
        raise ConfigError(
            f"{path}: [retention] max_age_days and max_bytes must be above 0", "enabled = false keeps all"
        )
    return config


def _check(value: str, allowed: tuple[str, ...], name: str, path: str) -> None:
    if value not in allowed:
        raise ConfigError(f"{path}: {name} cannot be {value[:50]!r}", f"one of {', '.join(allowed)}")
