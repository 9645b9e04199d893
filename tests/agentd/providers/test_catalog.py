"""Where a request goes and which key goes with it; what cannot work is one line with a next step."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers import catalog
from agentd.providers.catalog import Choice, ProviderOverride, env_names, resolve, secret_values
from agentd.providers.keys import Secret, read_key_file
from tracewriter.events import Failure

OPENAI = {"OPENAI_API_KEY": "sk-openai-123456"}
NONE: Mapping[str, ProviderOverride] = {}


def choice(model: str | None, **more: object) -> Choice:
    found = resolve(model, **{"env": {}, **more})  # type: ignore[arg-type]
    assert isinstance(found, Choice), found
    return found


def failure(model: str | None, **more: object) -> Failure:
    found = resolve(model, **{"env": {}, **more})  # type: ignore[arg-type]
    assert isinstance(found, Failure), found
    assert "\n" not in found.message + found.hint
    return found


def key_of(found: Choice) -> str:
    return found.key.reveal() if found.key else ""


def test_a_prefix_names_the_provider_and_the_rest_is_the_models_own_name() -> None:
    found = choice("groq/openai/gpt-oss-120b", env={"GROQ_API_KEY": "gsk_1", **OPENAI})
    assert (found.spec.name, found.model, found.base_url) == (
        "groq",
        "openai/gpt-oss-120b",
        "https://api.groq.com/openai/v1",
    )
    assert (key_of(found), found.key_name, found.notes) == ("gsk_1", "GROQ_API_KEY", ())


def test_without_a_model_the_first_provider_with_a_key_is_used_and_said() -> None:
    found = choice(None, env={"MISTRAL_API_KEY": "m", "XAI_API_KEY": "x"})
    assert found.spec.name == "mistral"
    assert "mistral" in found.notes[0]
    assert choice(None, env={"MISTRAL_API_KEY": "m", "XAI_API_KEY": "x"}, default_provider="xai").spec.name == "xai"


def test_without_anything_the_failure_names_demo_ollama_and_keys() -> None:
    found = failure(None)
    assert found.kind == "no_model"
    for word in ("agentctl demo", "ollama/", "OPENAI_API_KEY"):
        assert word in found.hint


def test_tokens_that_are_there_for_other_things_choose_nothing() -> None:
    assert failure(None, env={"GITHUB_TOKEN": "ghp_x"}).kind == "no_model"
    assert key_of(choice("copilot/gpt-4.1", env={"GITHUB_TOKEN": "ghp_x"})) == "ghp_x"


def test_a_missing_key_is_named_with_what_works_without_one() -> None:
    found = failure("openai/gpt-5")
    assert (found.kind, found.message) == ("no_key", "no key for openai: OPENAI_API_KEY is not set")
    assert "agentctl demo" in found.hint
    assert failure("openai/gpt-5", env={"OPENAI_API_KEY": "  "}).kind == "no_key"


def test_an_unknown_provider_is_named_with_those_known() -> None:
    found = failure("opnai/gpt-5", env=OPENAI)
    assert found.kind == "unknown_provider"
    assert "openai" in found.hint


def test_a_bare_model_goes_to_its_family_or_the_first_with_a_key_and_says_so() -> None:
    found = choice("gpt-5", env=OPENAI)
    assert (found.spec.name, found.model) == ("openai", "gpt-5")
    assert "openai" in found.notes[0]
    assert failure("gpt-5", env={"GROQ_API_KEY": "g"}).kind == "no_key"
    assert choice("llama-4", env={"GROQ_API_KEY": "g"}).spec.name == "groq"
    assert choice("llama-4", env=OPENAI, default_provider="ollama").spec.name == "ollama"
    assert failure("llama-4").kind == "unknown_provider"


def test_local_servers_need_no_key_and_their_host_may_be_set() -> None:
    assert choice("ollama/qwen3").base_url == "http://localhost:11434/v1"
    assert choice("ollama/qwen3").key is None
    assert choice("lmstudio/x", env={"LMSTUDIO_HOST": "http://box:99/"}).base_url == "http://box:99/v1"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("box", "http://box:11434/v1"), ("box:1", "http://box:1/v1"), (":1", "http://localhost:1/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"), ("0.0.0.0:7", "http://127.0.0.1:7/v1"),
        ("http://box:1/", "http://box:1/v1"), ("http://box:1/v1", "http://box:1/v1"),
        ("https://box", "https://box/v1"), ("[::1]", "http://[::1]:11434/v1"), ("[::1]:5", "http://[::1]:5/v1"),
    ],
)  # fmt: skip
def test_ollama_host_is_read_as_ollama_reads_it(host: str, url: str) -> None:
    assert choice("ollama/x", env={"OLLAMA_HOST": host}).base_url == url


def test_a_base_url_beside_the_key_moves_the_provider_and_its_key() -> None:
    env = {**OPENAI, "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1/"}
    found = choice("openai/gpt-5", env=env)
    assert (found.base_url, key_of(found)) == ("http://127.0.0.1:8000/v1", OPENAI["OPENAI_API_KEY"])
    assert choice("openai/gpt-5", env={"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}).key is None


def test_a_base_url_alone_is_a_server_of_its_own_and_gets_no_other_providers_key() -> None:
    found = choice("gpt-oss-120b", base_url="http://box:8000/v1", env=OPENAI)
    assert (found.spec.name, found.model, found.key) == ("custom", "gpt-oss-120b", None)
    assert OPENAI["OPENAI_API_KEY"] not in repr(found)
    named = choice("custom/m", base_url="http://box:8000/v1", env={**OPENAI, "AGENTD_API_KEY": "mine"})
    assert (named.model, key_of(named), named.notes) == ("m", "mine", ())


def test_a_provider_named_with_another_address_is_asked_there_with_its_key_and_says_so() -> None:
    found = choice("openai/gpt-oss-120b", base_url="http://box:8000/v1", env=OPENAI)
    assert (found.spec.name, found.model, key_of(found)) == ("openai", "gpt-oss-120b", OPENAI["OPENAI_API_KEY"])
    assert found.base_url == "http://box:8000/v1"
    assert "box:8000" in found.notes[0]
    assert OPENAI["OPENAI_API_KEY"] not in repr(found)


def test_the_scripted_model_is_local() -> None:
    found = choice("demo/scripted", uds="/run/model.sock")
    assert (found.spec.name, found.model, found.spec.local) == ("demo", "scripted", True)


def test_a_base_url_that_is_a_known_providers_own_is_that_provider() -> None:
    found = choice("openai/gpt-5", base_url="https://API.openai.com:443/v1", env=OPENAI)
    assert (found.spec.name, found.model, key_of(found)) == ("openai", "gpt-5", OPENAI["OPENAI_API_KEY"])
    assert failure("gpt-5", base_url="https://api.openai.com/v1").kind == "no_key"
    for lookalike in (
        "http://api.openai.com/v1",
        "https://api.openai.com.evil.example/v1",
        "https://api.openai.com:444/v1",
    ):
        assert choice("gpt-5", base_url=lookalike, env=OPENAI).key is None


def test_a_socket_needs_neither_key_nor_model() -> None:
    found = choice(None, uds="/run/model.sock")
    assert (found.spec.name, found.model, found.base_url, found.uds) == (
        "custom", "default", "http://localhost/v1", "/run/model.sock",
    )  # fmt: skip
    assert "default" in found.notes[0]


def test_a_local_provider_may_be_elsewhere() -> None:
    found = choice("ollama/qwen3", base_url="http://box:11434/v1")
    assert (found.spec.name, found.model, found.base_url) == ("ollama", "qwen3", "http://box:11434/v1")


@pytest.mark.parametrize(
    "url", ["box:8000", "ftp://box/v1", "http://", "http://a b/v1", "http://[::1", "http://u:p@box/v1", "http://b:x/"]
)
def test_a_base_url_that_cannot_work_is_refused_and_its_password_not_shown(url: str) -> None:
    found = failure("m", base_url=url)
    assert found.kind == "config"
    assert "u:p" not in found.message + found.hint


def test_a_wire_that_is_not_spoken_yet_is_said() -> None:
    overrides = {"odd": ProviderOverride(base_url="http://gw:1/v1", wire="telegraph", key_env="ODD_KEY", model="m")}
    found = failure("odd/m", env={"ODD_KEY": "a"}, overrides=overrides)
    assert found.kind == "config"
    assert "not speak yet" in found.message
    assert failure(None, env={"ODD_KEY": "a"}, overrides=overrides).kind == "config"
    assert choice(None, env={"ODD_KEY": "a", "XAI_API_KEY": "x"}, overrides=overrides).spec.name == "xai"


def test_the_configuration_adds_and_changes_providers() -> None:
    overrides = {
        "work": ProviderOverride(base_url="http://gw:1/v1", key_env="WORK_KEY", model="big"),
        "openai": ProviderOverride(base_url="http://proxy/v1"),
        "box": ProviderOverride(uds="/run/box.sock"),
    }
    found = choice("work/m", overrides=overrides, env={"WORK_KEY": "w"})
    assert (found.base_url, key_of(found), found.key_name) == ("http://gw:1/v1", "w", "WORK_KEY")
    assert failure("work/m", overrides=overrides).message == "no key for work: WORK_KEY is not set"
    assert choice("openai/m", overrides=overrides, env={"OPENAI_BASE_URL": "http://x/v1"}).base_url == "http://proxy/v1"
    assert choice("box/m", overrides=overrides).uds == "/run/box.sock"
    assert choice(None, overrides=overrides, env={"WORK_KEY": "w"}).model == "big"
    assert choice(None, overrides={"ollama": ProviderOverride(model="qwen3")}).model == "qwen3"
    assert failure("nowhere/m", overrides={"nowhere": ProviderOverride()}).kind == "config"


def test_a_wrong_field_in_the_configuration_is_an_error_of_its_decoder() -> None:
    with pytest.raises(msgspec.ValidationError, match="api_key"):
        msgspec.convert({"api_key": "sk-1"}, ProviderOverride)


def test_keys_come_from_private_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-file-1\n")
    path.chmod(0o600)
    overrides = {"openai": ProviderOverride(key_file=str(path))}
    found = choice("openai/m", overrides=overrides)
    assert (key_of(found), found.key_name) == ("sk-file-1", f"the key file {path}"[: len("the key file ") + 80])
    path.chmod(0o640)
    refused = failure("openai/m", overrides=overrides)
    assert refused.kind == "config"
    assert "chmod 600" in refused.hint
    assert "sk-file-1" not in refused.message + refused.hint


def test_a_key_file_that_is_none_is_a_failure(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").touch(mode=0o600)
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "two").chmod(0o600)
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("empty", "two", "fifo", "missing", ".", "nul\0"):
        found = read_key_file(f"{tmp_path}/{name}")
        assert isinstance(found, Failure)
        assert found.kind == "config"


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    for key in ("sk-a\r\nX-Evil: 1", "sk a", "schlüssel"):
        found = failure("openai/m", env={"OPENAI_API_KEY": key})
        assert found.kind == "config"
        assert key not in found.message + found.hint


def test_a_secret_cannot_be_shown_or_stored() -> None:
    secret = Secret("sk-1234567890")
    assert f"{secret} {secret!r} {[secret]}" == "Secret(…) Secret(…) [Secret(…)]"
    with pytest.raises(TypeError):
        msgspec.json.encode(choice("openai/m", env=OPENAI))
    assert secret == Secret("sk-1234567890")
    assert len({secret, Secret("sk-1234567890")}) == 1


def test_clients_are_asked_for_what_is_read_and_nothing_else() -> None:
    names = env_names({"work": ProviderOverride(base_url="http://gw/v1", key_env="WORK_KEY")})
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_HOST", "https_proxy", "SSL_CERT_FILE", "WORK_KEY"} <= set(
        names
    )
    assert len(set(names)) == len(names)
    env = {"OPENAI_API_KEY": "sk-12345678", "WORK_KEY": "w-12345678", "HOME": "/home/someone", "XAI_API_KEY": "short"}
    assert secret_values(env, {"work": ProviderOverride(key_env="WORK_KEY")}) == ("sk-12345678", "w-12345678")


def test_names_and_addresses_of_the_catalog_are_unique_and_sound() -> None:
    names = [name for spec in catalog.CATALOG for name in (spec.name, *spec.aliases)]
    assert len(set(names)) == len(names)
    assert [spec.name for spec in catalog.CATALOG if catalog.base_url_problem(spec.base_url)] == []
    assert all(spec.base_url.startswith("https://") for spec in catalog.CATALOG if not spec.local)
    assert all(spec.key_env or spec.local for spec in catalog.CATALOG)


@given(
    st.none() | st.text(),
    st.none() | st.text(),
    st.dictionaries(st.sampled_from(env_names(NONE)), st.text(max_size=20)),
)
def test_any_input_gives_a_choice_or_one_line(model: str | None, base_url: str | None, env: dict[str, str]) -> None:
    found = resolve(model, base_url=base_url, env=env)
    if isinstance(found, Failure):
        assert (found.message + found.hint).isprintable()
        assert found.kind in ("no_model", "unknown_provider", "no_key", "config")


@pytest.mark.parametrize("name", ["local", "openai", "google"])
def test_a_provider_without_a_model_after_it_is_not_called_unknown(name: str) -> None:
    found = resolve(f"{name}/", env={"OPENAI_API_KEY": "sk-1", "GEMINI_API_KEY": "k"})
    assert isinstance(found, Failure)
    assert found.message == f"no model is named after {name}/"
    assert f"agentctl models {name}" in found.hint
