from __future__ import annotations

from pathlib import Path

import pytest

from agentd.config import Config, RecorderConfig, RetentionConfig, load_config, parse_config
from agentd.errors import ConfigError
from agentd.providers.catalog import ProviderOverride
from agentd.providers.local_launch import LocalConfig
from tracewriter.retention import Policy, load_policy


def test_no_file_means_all_defaults(tmp_path: Path) -> None:
    assert load_config(str(tmp_path / "config.toml")) == Config()


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        'model = "mine/m"\nmode = "build"\ncapture = "metadata"\n[recorder]\nautostart = false\n'
        '[providers.mine]\nbase_url = "http://gpu:8000/v1"\nkey_file = "~/k"\n'
    )
    override = ProviderOverride(base_url="http://gpu:8000/v1", key_file="~/k")
    expected = Config("mine/m", "", "build", "metadata", RecorderConfig(False), {"mine": override})
    assert load_config(str(path)) == expected


def test_providers_and_fallbacks_in_full() -> None:
    text = (
        'fallback = ["mine/m", "groq/openai/gpt-oss-120b"]\n'
        '[providers.mine]\nwire = "anthropic"\nuds = "/run/m.sock"\nkey_command = ["pass", "show", "mine"]\n'
        '[providers.openai]\nkey_env = "WORK_KEY"\n'
    )
    config = parse_config(text.encode(), "c")
    assert config.fallback == ("mine/m", "groq/openai/gpt-oss-120b")
    mine = ProviderOverride(wire="anthropic", uds="/run/m.sock", key_command=("pass", "show", "mine"))
    assert config.providers == {"mine": mine, "openai": ProviderOverride(key_env="WORK_KEY")}


def test_the_server_of_local_models() -> None:
    config = parse_config(b"[local]\nidle_s = 60\nthreads = 2\n", "c")
    assert config.local == LocalConfig(idle_s=60, threads=2)
    for wrong in ("idle_s = 0", "start_s = inf", "start_s = nan", "context_tokens = 10", "threads = -1", "thread = 1"):
        with pytest.raises(ConfigError) as caught:
            parse_config(f"[local]\n{wrong}\n".encode(), "c")
        assert wrong.split()[0] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle = 'x'", "modle"),
        ("[providers.a]\nkey = 'sk-1'", "key"),
        ("mode = 'fast'", "mode cannot be 'fast'"),
        ("capture = 'all'", "capture cannot be 'all'"),
        ("model = 3", "Expected `str`"),
        ("model =", "not valid TOML"),
        ("[recorder]\nautostart = 'yes'", "recorder.autostart"),
        ("[retention]\ndays = 1825", "days"),
        ("[retention]\nmax_age_days = nan", "above 0"),
        ("[retention]\nmax_bytes = 0", "above 0"),
        ("fallback = ['gpt-5']", "fallback must be"),
        ("fallback = ['/m']", "fallback must be"),
        (f"fallback = {['a/b'] * 9}", "fallback must be"),
        ("fallback = 'a/b'", "fallback"),
        ("[providers.a]\nwire = 'openai'", "there is no wire 'openai'"),
        ("[providers.a]\nbase_url = 'box:8000'", "base_url"),
        ("[providers.a]\nbase_url = 'http://u:p@box/v1'", "user name"),
        ("[providers.a]\nkey_command = 'pass show a'", "key_command"),
        ("[providers.a]\nkey_command = []", "key_command is empty"),
        ("[providers.a]\nkey_command = ['']", "key_command is empty"),
        ("[providers.a]\nkey_command = ['x']\nkey_file = 'y'", "exclude each other"),
        ("[providers.'a/b']\nwire = 'gemini'", "no provider can be called"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_file_and_a_hint(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text.encode(), "/c/config.toml")
    assert said in str(caught.value)
    assert "/c/config.toml" in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_daemon_and_recorder_read_the_same_retention(tmp_path: Path) -> None:
    assert RetentionConfig.__struct_fields__ == Policy.__struct_fields__
    assert RetentionConfig.__struct_defaults__ == Policy.__struct_defaults__
    path = tmp_path / "config.toml"
    path.write_text('model = "a/b"\n[retention]\nmax_age_days = 7\nmax_bytes = 5000\nenabled = false\n')
    assert load_config(str(path)).retention == RetentionConfig(7, 5000, False)
    assert load_policy(path) == Policy(7, 5000, False)


def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(str(tmp_path))


def test_a_value_that_may_be_a_key_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(b"[providers.a]\nkey = 'sk-verysecret'", "c")
    assert "verysecret" not in str(caught.value) + caught.value.hint
    assert "key_env, key_file, key_command" in caught.value.hint
