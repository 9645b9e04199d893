from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentd import protocol
from agentd.lines import HEAD_BYTES, Budget, LineSplitter, TooLong
from agentd.protocol import Invalid
from tracewriter.events import ToolCallStarted, event_of

DOCUMENT = Path(protocol.__file__).with_name("PROTOCOL.md")
EXAMPLES = [line.strip() for line in DOCUMENT.read_text().split("\n") if line.startswith("    {")]


def examples(key: str) -> list[msgspec.Raw | dict[str, object]]:
    return [message for line in EXAMPLES if key in (message := msgspec.json.decode(line))]


def test_the_document_has_examples_of_every_kind() -> None:
    methods = {msgspec.json.decode(line).get("method") for line in EXAMPLES}
    assert set(protocol.METHODS) - methods == {"session/unsubscribe"}  # described in words
    assert set(protocol.NOTIFICATIONS) <= methods


@pytest.mark.parametrize(
    "line", [line for line in EXAMPLES if line.startswith('{"jsonrpc":"2.0","id"') and '"method"' in line]
)
def test_every_example_request_is_decoded_and_encoded_back(line: str) -> None:
    request = protocol.decode_request(line.encode())
    params = protocol.decode_params(request)
    assert type(params) is protocol.METHODS[request.method]
    again = protocol.encode_request(protocol.id_of(request), request.method, params)
    assert protocol.decode_params(protocol.decode_request(again)) == params


def test_every_example_answer_is_decoded_by_its_requests_result_type() -> None:
    method_of: dict[object, str] = {}
    answered = set()
    for line in EXAMPLES:
        reply = protocol.decode_reply(line.encode())
        if reply.method and reply.id is not msgspec.UNSET:
            method_of[reply.id] = reply.method
        elif reply.result is not msgspec.UNSET:
            method = method_of[reply.id]
            result = msgspec.json.decode(reply.result, type=protocol.RESULTS[method])
            assert msgspec.json.decode(protocol.encode_result(1, result))["result"] == msgspec.json.decode(reply.result)
            answered.add(method)
    assert answered == set(protocol.METHODS) - {"session/unsubscribe"}


def test_every_example_notification_is_decoded() -> None:
    seen = set()
    for line in EXAMPLES:
        reply = protocol.decode_reply(line.encode())
        if reply.method in protocol.NOTIFICATIONS:
            params = msgspec.json.decode(reply.params, type=protocol.NOTIFICATIONS[reply.method])
            seen.add(reply.method)
            if isinstance(params, protocol.SessionEventRead):
                record = msgspec.json.decode(params.record)
                assert isinstance(event_of(record["event"], msgspec.json.encode(record["data"])), ToolCallStarted)
            else:
                assert msgspec.json.decode(protocol.encode_notification(params)) == msgspec.json.decode(line)
    assert seen == set(protocol.NOTIFICATIONS)


def test_the_example_error_is_decoded_and_encoded_back() -> None:
    (line,) = [line for line in EXAMPLES if '"error"' in line]
    reply = protocol.decode_reply(line.encode())
    assert isinstance(reply.error, protocol.Error)
    assert reply.error.data.kind == "no_key"
    assert isinstance(reply.id, int)
    assert msgspec.json.decode(protocol.encode_error(reply.id, reply.error)) == msgspec.json.decode(line)


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"nonsense", protocol.PARSE_ERROR, None),
        (b"\xff\xfe", protocol.PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 100_000, protocol.PARSE_ERROR, 1),
        (b"[" * 100_000, protocol.INVALID_REQUEST, None),
        (b"[]", protocol.INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":7}', protocol.INVALID_REQUEST, 7),
        (b'{"jsonrpc":"1.0","id":7,"method":"x"}', protocol.INVALID_REQUEST, 7),
        (b'{"jsonrpc":"2.0","id":{},"method":"x"}', protocol.INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":"a","method":"no/such"}', protocol.UNKNOWN_METHOD, "a"),
        (b'{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"session":1}}', protocol.INVALID_PARAMS, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":[]}', protocol.INVALID_PARAMS, 7),
    ],
)
def test_what_is_wrong_with_a_line_is_told_by_its_code(line: bytes, code: int, request_id: object) -> None:
    with pytest.raises(Invalid) as caught:
        protocol.decode_params(protocol.decode_request(line))
    assert (caught.value.code, caught.value.id) == (code, request_id)
    assert "\n" not in str(caught.value)


def test_keys_are_not_in_the_repr_of_a_request() -> None:
    assert "sk-1" not in repr(protocol.SessionCreate("/", env={"OPENAI_API_KEY": "sk-1"}))


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 12), st.data())
def test_lines_do_not_depend_on_where_the_bytes_are_cut(pieces: list[bytes], limit: int, data: st.DataObject) -> None:
    stream = b"\n".join(pieces) + b"\n"
    whole = LineSplitter(limit).feed(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    splitter = LineSplitter(limit)
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [line for part in parts for line in splitter.feed(part)] == whole
    assert whole == [
        line if len(line) <= limit else TooLong(len(line), line[:HEAD_BYTES])
        for line in stream.split(b"\n")[:-1]
        if len(line) > limit or line.strip()
    ]


def test_an_endless_line_is_not_held_and_the_next_one_is_read() -> None:
    splitter = LineSplitter(1000)
    for _ in range(100):
        assert splitter.feed(b"x" * 500) == []
        assert "held=0" in repr(splitter) or "held=500" in repr(splitter) or "held=1000" in repr(splitter)
    assert splitter.feed(b"x\n{}\n") == [TooLong(50_001, b"x" * HEAD_BYTES), b"{}"]


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40)), max_size=30))
def test_half_lines_together_stay_in_their_budget_and_every_line_is_given_or_reported(
    fed: list[tuple[int, bytes]],
) -> None:
    budget = Budget(60)
    splitters = [LineSplitter(50, budget) for _ in range(4)]
    for at, data in fed:
        before = {splitter: splitter.held_bytes for splitter in splitters}
        got = splitters[at].feed(data)
        assert budget.held_bytes == sum(splitter.held_bytes for splitter in splitters) <= 60
        assert all(splitter.held_bytes in (0, before[splitter]) for splitter in splitters if splitter != splitters[at])
        assert len(got) <= data.count(b"\n")
    ends = [splitter.feed(b"x\n") for splitter in splitters]
    assert [len(lines) for lines in ends] == [1] * 4
    for splitter in splitters:
        splitter.close()
    assert budget.held_bytes == 0


def test_the_longest_half_line_is_given_up_and_its_connection_is_told() -> None:
    budget = Budget(100)
    long, short = LineSplitter(80, budget), LineSplitter(80, budget)
    assert long.feed(b'{"jsonrpc":"2.0","id":7,"method":"x"' + b" " * 30) == []
    assert short.feed(b"y" * 40) == []
    assert long.feed(b"}\n{}\n") == [
        TooLong(67, b'{"jsonrpc":"2.0","id":7,"method":"x"' + b" " * 30 + b"}", True),
        b"{}",
    ]
    assert short.feed(b"\n") == [b"y" * 40]


def test_only_lf_ends_a_line() -> None:
    line = '{"text":"a\u2028b\u0085c\r"}'.encode()
    assert LineSplitter().feed(line + b"\n") == [line]
