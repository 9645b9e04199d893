"""What is decided before a local model is started, and the heads of GGUF files, whole, cut and random."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentd.providers.gguf import NotGguf, read_head
from agentd.providers.local import reason_in_log
from agentd.providers.local_launch import Launch, LocalConfig, Machine, find, plan, thread_count, wants_our_template
from tests.gguf_files import LLAMA, head
from tracewriter.events import Failure

ROOM = Machine(64 << 30, 8, 0.0)
_shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def launch(tmp_path: Path, machine: Machine = ROOM, config: LocalConfig = LocalConfig(), **pairs: int) -> Launch:  # noqa: B008
    path = tmp_path / "m.gguf"
    path.write_bytes(head({**LLAMA, **{f"llama.{name}": value for name, value in pairs.items()}}))
    found = plan(str(path), "m", machine, config)
    assert isinstance(found, Launch), found
    return found


def test_a_head_says_context_memory_and_template(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head(LLAMA) + b"\0" * 100)
    found = read_head(str(path))
    assert (found.architecture, found.context_tokens, found.size_bytes) == ("llama", 8192, path.stat().st_size)
    assert found.kv_bytes_per_token == 30 * 3 * (64 + 64) * 2
    assert found.chat_template == "<|im_start|>{{ message }}"


@_shared
@given(cut=st.integers(0, len(head(LLAMA)) - 1))
def test_a_head_that_is_cut_anywhere_is_none(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(head(LLAMA)[:cut])
    with pytest.raises(NotGguf):
        read_head(str(path))


@_shared
@given(data=st.binary(max_size=300), magic=st.booleans(), at=st.integers(0, 400))
def test_no_bytes_make_the_reader_raise_anything_else(tmp_path: Path, data: bytes, magic: bool, at: int) -> None:
    whole = head(LLAMA)
    path = tmp_path / "any.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + data if magic else whole[:at] + data + whole[at + len(data) :])
    with contextlib.suppress(NotGguf):
        assert read_head(str(path)).size_bytes == path.stat().st_size


def test_the_context_is_what_is_wanted_trained_for_and_fits(tmp_path: Path) -> None:
    assert launch(tmp_path).context_tokens == 8192
    assert launch(tmp_path, config=LocalConfig(context_tokens=4096)).context_tokens == 4096
    assert launch(tmp_path, context_length=131_072).context_tokens == 16_384
    tight = Machine((400 << 20) + 23040 * 5000, 8, 0.0)
    assert launch(tmp_path, tight).context_tokens == 4096
    refused = plan(str(tmp_path / "m.gguf"), "m", Machine(400 << 20, 8, 0.0), LocalConfig())
    assert isinstance(refused, Failure)
    assert "not enough memory" in refused.message


@pytest.mark.parametrize(
    ("cores", "load", "threads"), [(8, 0.0, 8), (8, 3.2, 5), (2, 0.4, 2), (2, 5.0, 1), (1, 0.0, 1), (4, 400.0, 1)]
)
def test_there_is_a_thread_for_each_idle_core(cores: int, load: float, threads: int) -> None:
    assert thread_count(Machine(1, cores, load)) == threads


def test_threads_that_are_configured_stay(tmp_path: Path) -> None:
    assert launch(tmp_path, Machine(64 << 30, 2, 9.0), LocalConfig(threads=6)).threads == 6


@pytest.mark.parametrize(
    ("template", "ours"),
    [("", True), ("<|im_start|>x", True), ("<|im_start|>{% if tools %}", False), ("[INST]x[/INST]", False)],
)
def test_our_template_is_for_chatml_that_knows_no_tools(template: str, ours: bool) -> None:
    assert wants_our_template(template) is ours


@given(model=st.text(max_size=60))
def test_no_name_leads_out_of_the_directory(model: str) -> None:
    found = find(model, "/nonexistent-models", "")
    assert isinstance(found, Failure) or model.startswith("/")


def test_a_home_directory_is_understood(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    assert find("~/x.gguf", "/nowhere", str(tmp_path)) == str((tmp_path / "x.gguf").resolve())


def test_the_reason_is_the_first_error_of_llama_cpp() -> None:
    said = "0.1 W srv init: careful\n0.2 E load: error loading model: bad magic\n0.3 E srv load_model: failed\n"
    assert reason_in_log(said) == "error loading model: bad magic"
    assert reason_in_log("Traceback\nImportError: no libomp\n") == "ImportError: no libomp"
    assert reason_in_log("") == ""
