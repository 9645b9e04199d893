from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd import protocol
from agentd.bad_lines import broken_text, likely_id
from agentd.protocol import Invalid

ids = st.one_of(st.integers(-(10**15), 10**15), st.text(st.characters(codec="ascii"), max_size=20))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (rb'{"jsonrpc":"2.0","id":3,"method":"session/create","params":{"cwd":"/tmp/h\udce9"}}', -32700),
        (b'{"jsonrpc":"2.0","id":3,"method":"session/create","params":{"cwd":"/tmp/h\xe9"}}', -32602),
        (rb'{"params":{"session":"a","text":"\ud800"},"method":"session/prompt","id":3,"jsonrpc":"2.0"}', -32700),
        (rb'{"jsonrpc":"2.0","id":3,"method":"daemon/\udcffstop"}', -32700),
        (b'{"jsonrpc":"2.0","id":3,"method":"daemon/\xffstop"}', -32700),
    ],
)
def test_a_request_that_is_no_text_is_answered_to_its_sender_with_what_to_do(line: bytes, code: int) -> None:
    with pytest.raises(Invalid) as caught:
        protocol.decode_params(protocol.decode_request(line))
    error = caught.value
    assert (error.code, error.id) == (code, 3)
    assert "UTF-8" in str(error)
    assert "rename" in error.hint


@given(ids, st.text(st.characters(), max_size=30), st.integers(0, 200))
def test_the_id_of_a_request_is_found_whatever_text_it_carries_and_wherever_it_is_cut(
    request_id: int | str, text: str, cut: int
) -> None:
    message = {"jsonrpc": "2.0", "id": request_id, "method": "session/prompt", "params": {"text": text, "id": "no"}}
    whole = json.dumps(message).encode()
    raw = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for line in (whole, raw):
        assert likely_id(line) == request_id or "\\" in str(json.dumps(request_id))
        assert likely_id(line[:cut]) in (None, request_id)


@given(st.binary(max_size=60))
def test_any_bytes_have_an_id_or_none(data: bytes) -> None:
    assert isinstance(likely_id(data), int | str | None)
    assert isinstance(likely_id(b'{"jsonrpc":"2.0","id":' + data), int | str | None)


@given(st.text(st.characters()))
def test_text_is_broken_when_it_holds_half_a_surrogate_pair(text: str) -> None:
    halves = any(
        "\ud800" <= char <= "\udfff" for char in text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    )
    joined = text.encode("utf-16-le", "surrogatepass")
    try:
        joined.decode("utf-16-le")
        assert not halves
        whole = True
    except UnicodeDecodeError:
        whole = False
    assert broken_text(json.dumps(text).encode()) != whole
