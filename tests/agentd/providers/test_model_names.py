"""Lists of models in every shape give their names; a name that is not there is answered with those that are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd.providers.models import MAX_MODELS, ModelInfo, advice, near_names, parse_models


@pytest.mark.parametrize(
    ("body", "models"),
    [
        ('{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"},{"id":"a"}]}', ["a", "b"]),
        ('[{"id":"x/a","type":"chat"},{"id":"x/b"}]', ["x/a", "x/b"]),
        ('{"data":[{"type":"model","id":"claude-x","display_name":"X"}],"has_more":true}', ["claude-x"]),
        ('{"models":[{"name":"models/g","supportedGenerationMethods":["generateContent"]},'
         '{"name":"models/e","supportedGenerationMethods":["embedContent"]}],"nextPageToken":"t"}', ["g"]),
        ('{"models":[{"name":"qwen3:8b","model":"qwen3:8b","size":1,"details":{}}]}', ["qwen3:8b"]),
        ('["a","b"]', ["a", "b"]),
        ('{"data":[]}', []),
        ('{"data":[{"id":7},{"id":""},{"id":"a\\u001b[31m"},null,3,{"id":"ok"}]}', ["ok"]),
    ],
)  # fmt: skip
def test_names_are_found_in_every_shape(body: str, models: list[str]) -> None:
    found = parse_models(body.encode())
    assert found is not None
    assert [model.id for model in found] == models


@pytest.mark.parametrize("body", ["", "<html>", "null", "{}", '{"error":"x"}', '{"data":{}}', "3", "[" * 100_000])
def test_what_is_no_list_is_none(body: str) -> None:
    assert parse_models(body.encode()) is None


@pytest.mark.parametrize(
    "entry",
    [
        {"context_length": 7},
        {"context_window": 7},
        {"max_model_len": 7},
        {"inputTokenLimit": 7},
        {"max_input_tokens": 7},
    ],
)
def test_the_context_window_is_found_under_its_names(entry: dict[str, int]) -> None:
    assert parse_models(json.dumps({"data": [{"id": "a", **entry}]}).encode()) == (ModelInfo("a", 7),)


def test_a_list_is_bounded() -> None:
    found = parse_models(json.dumps([{"id": f"m{at}"} for at in range(MAX_MODELS + 10)]).encode())
    assert found is not None
    assert len(found) == MAX_MODELS


KEYS = st.sampled_from(["data", "models", "id", "name", "model", "context_length", "supportedGenerationMethods"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=9)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_any_json_gives_printable_names_or_none(value: object) -> None:
    for model in parse_models(json.dumps(value).encode()) or ():
        assert model.id.isprintable()
        assert 0 < len(model.id) <= 128


@given(st.binary(max_size=300))
def test_any_bytes_are_taken(body: bytes) -> None:
    parse_models(body)


NAMES = ["claude-sonnet-4-5-20250929", "claude-opus-4-1", "gpt-5-mini", "qwen3:8b", "openai/gpt-oss-120b"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpt5-mini", "gpt-5-mini"), ("GPT-5-MINI", "gpt-5-mini"), ("sonnet-4-5", "claude-sonnet-4-5-20250929"),
        ("claude-opus-4.1", "claude-opus-4-1"), ("qwen3", "qwen3:8b"), ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("claude-sonet-4-5-20250929", "claude-sonnet-4-5-20250929"),
    ],
)  # fmt: skip
def test_a_name_nearly_right_is_suggested(typed: str, meant: str) -> None:
    assert near_names(typed, NAMES)[0] == meant


def test_nothing_like_it_suggests_nothing_and_the_names_are_told() -> None:
    assert near_names("zzzzzz", NAMES) == ()
    told = advice("zzzzzz", "p", tuple(ModelInfo(name) for name in NAMES))
    assert all(name in told for name in NAMES)
    many = advice("zzzzzz", "p", tuple(ModelInfo(f"m{at}") for at in range(100)))
    assert "`agentctl models p` lists all 100" in many
    assert len(many) < 200
    assert advice("x", "p", ()) == ""


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=20), max_size=30))
def test_advice_is_one_printable_line_for_any_names(typed: str, names: list[str]) -> None:
    told = advice(typed, "p", tuple(ModelInfo(name) for name in names))
    assert told.isprintable()
    assert set(near_names(typed, names)) <= set(names)
