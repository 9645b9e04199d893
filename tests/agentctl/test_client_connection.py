"""The client's end of the socket: cuts, interleaving, bounds, errors."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl import wire
from agentctl.connection import MAX_LINE_BYTES, Connection, LineBuffer, connect, greet, problem_of
from agentctl.errors import DaemonGone, NoAnswer, NoDaemon, Refused, UsageProblem
from agentctl.starting import find_daemon
from agentctl.world import Patience
from agentd.paths import agentd_socket
from tests.agentctl.fake_daemon import HELLO, RUN, SESSION, FakeDaemon, Json, delta, refusal, send

Env = dict[str, str]


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 200)))
def test_where_the_bytes_are_cut_does_not_matter(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"rest"
    buffer = LineBuffer()
    found: list[bytes] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        found += buffer.feed(data[at : max(at, cut)])
        at = max(at, cut)
    assert found == lines


def test_a_line_over_the_limit_ends_the_connection() -> None:
    buffer = LineBuffer(10)
    assert buffer.feed(b"0123456789\n") == [b"0123456789"]
    with pytest.raises(DaemonGone):
        buffer.feed(b"0123456789x")


@pytest.fixture
def pair() -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Connection(ours), theirs


def answer_late(theirs: socket.socket) -> None:
    with theirs:
        theirs.recv(65536)
        theirs.sendall(b'nonsense\n[1]\n{"jsonrpc":"2.0","method":"new/kind","params":{}}\n' + b"[" * 100_000 + b"\n")
        for offset in range(3):
            send(theirs, delta(str(offset), offset))
        send(theirs, {"id": 99, "result": {"not": "ours"}})
        send(theirs, {"id": 1, "result": {"yes": 1}})
        send(theirs, delta("3", 3))


def test_notices_that_come_before_an_answer_are_kept_in_order(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    server = threading.Thread(target=answer_late, args=(theirs,))
    server.start()
    assert connection.call("x", {}) == {"yes": 1}
    notices = [connection.next_notice(10) for _ in range(4)]
    assert [notice.text for notice in notices if isinstance(notice, wire.Delta)] == ["0", "1", "2", "3"]
    with pytest.raises(DaemonGone):
        connection.next_notice(10)
    connection.close()
    server.join()


def test_no_answer_in_time_is_said(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    with theirs, pytest.raises(NoAnswer, match="did not answer daemon/status"):
        connection.call("daemon/status", {}, 0.05)
    connection.close()


CANNOT_READ: Json = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "that is no JSON"}}


def test_an_error_without_an_id_answers_what_is_asked(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    with theirs:
        send(theirs, delta("0", 0))
        send(theirs, {"jsonrpc": "2.0", "id": None, "result": {"an answer": "to nothing"}})
        send(theirs, CANNOT_READ)
        with pytest.raises(Refused, match="that is no JSON"):
            connection.call("x", {})
        assert connection.next_notice(10) == wire.Delta(SESSION, RUN, "m1", "text", 0, "0")
    connection.close()


def test_why_it_hung_up_is_read_although_nothing_could_be_sent(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    with theirs:
        send(theirs, delta("0", 0))
        send(theirs, CANNOT_READ)
    with pytest.raises(Refused, match="that is no JSON"):
        connection.call("x", {})
    with pytest.raises(DaemonGone):
        connection.call("x", {})
    connection.close()


def test_a_code_means_overload_without_a_kind_too(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    with theirs:
        send(theirs, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "256 clients"}})
        with pytest.raises(Refused, match="agentd has no room: 256 clients") as problem:
            greet(connection)
    assert problem.value.hint
    connection.close()


@pytest.mark.parametrize("slow_s", [0.01, 60.0])
def test_a_slow_answer_is_spoken_of_once_and_then_taken(slow_s: float) -> None:
    ours, theirs = socket.socketpair()
    notes: list[str] = []
    connection = Connection(ours, Patience(slow_s=slow_s), notes.append)

    def answer() -> None:
        with theirs, theirs.makefile("rb") as lines:
            for number, _ in zip((1, 2), lines, strict=False):
                time.sleep(0.1)
                send(theirs, {"id": number, "result": {"number": number}})

    server = threading.Thread(target=answer)
    server.start()
    assert [connection.call("x", {}) for _ in range(2)] == [{"number": 1}, {"number": 2}]
    assert notes == ([f"agentd (pid {os.getpid()}) has not answered for 0 s; waiting up to 30 s"] if slow_s < 1 else [])
    connection.close()
    server.join()


def test_what_is_no_text_is_never_sent(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    with theirs, pytest.raises(UsageProblem, match="no UTF-8"):
        connection.call("session/create", {"cwd": "/w", "env": {"A": "b\udcff"}})
    connection.close()


def test_a_wait_ends_in_time_or_when_woken(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    assert connection.next_notice(0.01) is None
    read, write = os.pipe()
    os.write(write, b"!")
    assert connection.next_notice(60, read) is None
    for fd in (read, write):
        os.close(fd)
    theirs.close()
    connection.close()


def test_what_is_too_big_to_send_is_refused_here(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    with theirs, pytest.raises(UsageProblem, match="8 MiB"):
        connection.call("session/prompt", {"text": "x" * MAX_LINE_BYTES})
    connection.close()


@pytest.mark.parametrize(
    ("kind", "code"), [("no_key", 2), ("stopping", 3), ("protocol", 3), ("overloaded", 4), ("newer", 4)]
)
def test_kinds_decide_the_exit_code(kind: str, code: int) -> None:
    assert problem_of(kind, "m", "h").exit_code == code


def test_nobody_there_is_none(env: Env) -> None:
    assert connect(agentd_socket(env)) is None
    assert find_daemon(env) is None


def test_a_socket_whose_daemon_died_is_nobody(env: Env) -> None:
    with FakeDaemon(env):
        pass
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(agentd_socket(env))
    stale.close()
    assert connect(agentd_socket(env)) is None


def test_long_paths_are_reached(env: Env) -> None:
    env["AGENTD_HOME"] += "/" + "d" * 150
    with FakeDaemon(env):
        connection = connect(agentd_socket(env))
        assert connection is not None
        assert greet(connection) == wire.hello(HELLO)
        connection.close()


def test_a_path_that_cannot_be_reached_is_named(env: Env) -> None:
    home = env["AGENTD_HOME"]
    os.mkdir(home)
    with open(f"{home}/run", "w", encoding="utf-8"):
        pass
    with pytest.raises(NoDaemon, match=f"cannot reach agentd at {home}/run/agentd.sock"):
        find_daemon(env)


def test_a_daemon_of_another_protocol_is_not_spoken_to(daemon: FakeDaemon, env: Env) -> None:
    daemon.replies["initialize"] = refusal("protocol", "this agentd speaks protocol 7 only")
    with pytest.raises(NoDaemon, match="protocol 7") as problem:
        find_daemon(env)
    assert "agentctl stop" in problem.value.hint


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=8), x),
    )
)
def test_any_params_make_a_notice_or_none(params: object) -> None:
    for method in ("session/event", "session/delta", "session/lagged", "other"):
        wire.notice({"method": method, "params": params})


@given(
    st.sampled_from(
        ["run.execute.started", "run.execute.finished", "tool.call.started", "model.request.failed", "x.y.z"]
    ),
    st.dictionaries(
        st.sampled_from(["prompt", "usage", "error", "input", "tools", "cost_usd", "offset"]),
        st.none() | st.text() | st.integers() | st.lists(st.integers()),
    ),
)
def test_any_data_makes_a_fact(name: str, data: dict[str, object]) -> None:
    notice = wire.notice({"method": "session/event", "params": {"record": {"event": name, "data": data}}})
    assert isinstance(notice, wire.Event)
