"""The JSON boundary: whatever is put in, one valid line comes out, bounded, with what was changed marked and counted."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import EndlessList, EndlessMapping, any_value, clean_text, nasty_text, nested, plain_json, realise
from tracewriter import jsonl
from tracewriter.config import MAX_LINE


def strictly(data: bytes) -> Any:
    """Valid for two decoders, and one line."""
    assert b"\n" not in data
    json.loads(data.decode(), parse_constant=pytest.fail)
    return msgspec.json.decode(data)


@given(any_value)
def test_raw_makes_one_line_of_valid_json_of_anything(value: object) -> None:
    strictly(bytes(jsonl.raw(realise(value))))


@given(any_value, st.integers(200, 4000))
def test_encode_safely_makes_one_bounded_object_of_anything(value: object, limit: int) -> None:
    encoded = jsonl.encode_safely(realise(value), limit)
    assert len(encoded) <= limit
    assert isinstance(strictly(encoded), dict)


@given(plain_json)
def test_what_json_can_say_is_not_changed(value: Any) -> None:
    assert msgspec.json.decode(jsonl.raw(value)) == value
    assert jsonl.loads(msgspec.json.encode(value)) == value
    assert msgspec.json.decode(jsonl.raw(json.dumps(value, indent=2).encode())) == value
    repairs = jsonl.Repairs()
    assert jsonl.to_json(value, repairs) == value
    assert repairs.count == 0


@given(st.dictionaries(clean_text, plain_json, max_size=3))
def test_an_object_that_fits_is_kept_without_a_mark(value: dict[str, Any]) -> None:
    assert msgspec.json.decode(jsonl.encode_safely(value)) == value


@given(st.binary(max_size=60))
def test_bytes_that_are_no_json_become_text(data: bytes) -> None:
    strictly(bytes(jsonl.raw(data)))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        ([math.inf, -math.inf], ["inf", "-inf"]),
        ("a\ud800b", "a\ufffdb"),
        ({"\udfff": 1}, {"\ufffd": 1}),
        ("\ud83d\ude00", "\U0001f600"),
        ([2**64, math.nan], ["18446744073709551616", "nan"]),
        (b"\x00\x01", "\x00\x01"),
        ([object()], ["[cannot be recorded: object]"]),
        (b'{"a": "\\ud800"}', {"a": "\ufffd"}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    ],
)
def test_each_odd_value_is_shown_as_what_it_was(value: object, shown: object) -> None:
    assert msgspec.json.decode(jsonl.raw(value)) == shown


def test_deep_nesting_is_capped_even_where_the_encoder_takes_it() -> None:
    for depth in (65, 100, 900, 5000):
        encoded = bytes(jsonl.raw(nested(depth)))
        assert encoded.count(b"[") == jsonl.MAX_DEPTH + encoded.count(b"left out")
    flat = [[{"a": "[[[["}]] * 100
    assert msgspec.json.decode(jsonl.raw(flat)) == flat


@pytest.mark.parametrize("value", [math.nan, "\ud800", 2**64, object(), nested(100), [b"x"]])
def test_every_repair_is_counted(value: object) -> None:
    assert msgspec.json.decode(jsonl.encode_safely({"field": value}))["repaired"] == 1


def test_depth_is_capped_and_said() -> None:
    assert b"nested too deep" in jsonl.encode_safely({"field": nested(5000)})
    value = msgspec.json.decode(jsonl.encode_safely({"field": nested(jsonl.MAX_DEPTH - 2)}))
    assert "repaired" not in value


@pytest.mark.parametrize("value", [EndlessMapping(), EndlessList(), [[1] * 300_000] * 3, dict.fromkeys(range(300_000))])
def test_size_is_capped_and_said(value: object) -> None:
    encoded = jsonl.encode_safely(value)
    assert len(encoded) <= MAX_LINE
    assert strictly(encoded)


@given(nasty_text, st.integers(1, 60))
def test_a_cut_keeps_whole_code_points_and_tells_the_length(text: str, limit: int) -> None:
    shown = jsonl.cut_text(text, limit)
    if len(text) <= limit:
        assert shown == text
        return
    kept, _, told = shown.rpartition("…[cut: ")
    assert told == f"{len(text)} characters]"
    assert text.startswith(kept)
    assert len(kept) <= limit


def test_a_cut_backs_off_to_white_space_that_is_near() -> None:
    assert jsonl.cut_text("one two three", 9) == "one two …[cut: 13 characters]"
    assert jsonl.cut_text("x" * 300 + " " + "y" * 300, 590).startswith("x" * 300 + " " + "y" * 289 + "…")


@pytest.mark.parametrize("size", [100, 20_000, 300_000, 2_000_000])
@pytest.mark.parametrize("char", ["x", "é", "\U0001f600", "\x01", "\ud800", '"'])
def test_a_long_field_is_cut_to_fit_and_the_whole_size_is_told(size: int, char: str) -> None:
    encoded = jsonl.encode_safely({"a": char * size, "b": [1, 2]})
    assert len(encoded) <= MAX_LINE
    value = strictly(encoded)
    assert value["b"] == [1, 2]
    if "cut_from_bytes" in value:
        assert value["cut_from_bytes"] > MAX_LINE
        assert value["a"].endswith(f"…[cut: {size} characters]")


@given(nasty_text)
def test_line_separators_of_other_worlds_are_content(text: str) -> None:
    assert jsonl.encode_safely({"a": f"{text}\u2028\x85\x0b\x0c\x1c\r\n"}).count(b"\n") == 0


@given(st.lists(nasty_text, max_size=3))
def test_text_that_is_valid_is_the_same_after_the_slow_path(texts: list[str]) -> None:
    value = msgspec.json.decode(jsonl.encode_safely({"a": texts}))["a"]
    for before, after in zip(texts, value, strict=True):
        assert after == before.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
