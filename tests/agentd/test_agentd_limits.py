"""What many clients together may take: places, and memory for lines that are not complete."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from agentd import protocol
from agentd.lines import Budget
from agentd.server import MAX_CONNECTIONS, MAX_TURNED_AWAY, Connection, Server
from tests.agentd.daemon_harness import Client, running

pytestmark = pytest.mark.anyio


async def test_a_client_without_a_place_is_told_so_in_answer_to_its_first_request(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        clients = [await daemon.connect() for _ in range(MAX_CONNECTIONS)]
        late = [await daemon.connect(initialize=False) for _ in range(MAX_TURNED_AWAY + 5)]
        for number, client in enumerate(late[:MAX_TURNED_AWAY]):
            client.send(protocol.encode_request(number + 10, "initialize", protocol.Initialize(1)))
        answers = [await client.receive() for client in late]
        assert {answer["error"]["code"] for answer in answers} == {-32001}
        assert {answer["error"]["data"]["kind"] for answer in answers} == {"overloaded"}
        assert all(answer["error"]["data"]["hint"] for answer in answers)
        # Beyond so many at a time their requests are not waited for: the answer has no id.
        assert [answer["id"] for answer in answers] == [*range(10, 10 + MAX_TURNED_AWAY), *[None] * 5]
        for client in late:
            with pytest.raises(ConnectionError):
                await client.receive()
        assert (await clients[0].result("daemon/status"))["clients"] == MAX_CONNECTIONS


async def test_a_client_without_a_place_that_says_nothing_is_told_and_let_go_of(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        for _ in range(MAX_CONNECTIONS):
            await daemon.connect(initialize=False)
        silent, endless = await daemon.connect(initialize=False), await daemon.connect(initialize=False)
        endless.send(b"x" * 200_000)
        for client in (silent, endless):
            answer = await client.receive()
            assert (answer["id"], answer["error"]["code"]) == (None, -32001)


class Echo:
    """Answers every request with the length of its client's name."""

    async def handle(self, connection: Connection, params: protocol.Params) -> protocol.Result:
        assert isinstance(params, protocol.Initialize)
        connection.initialized = True
        return protocol.Subscribed(str(len(params.client)))


def _listener(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen()
    sock.setblocking(False)
    return sock


async def test_a_server_that_moves_accepts_at_the_new_socket_and_keeps_who_is_connected(tmp_path: Path) -> None:
    old, new = _listener(str(tmp_path / "old")), _listener(str(tmp_path / "new"))
    move = asyncio.Event()

    async def moved() -> socket.socket:
        await move.wait()
        move.clear()
        return new

    async with asyncio.TaskGroup() as group:
        serving = group.create_task(Server(Echo()).serve(old, moved))
        hello = protocol.encode_request(1, "initialize", protocol.Initialize(1, "abc"))
        clients = [Client(*await asyncio.open_unix_connection(str(tmp_path / "old")))]
        clients[0].send(hello)
        assert (await clients[0].receive())["result"] == {"cursor": "3"}
        move.set()
        clients.append(Client(*await asyncio.open_unix_connection(str(tmp_path / "new"))))
        for client in clients:
            client.send(hello)
            assert (await client.receive())["result"] == {"cursor": "3"}
        old.close()
        for client in clients:
            await client.close()
        serving.cancel()
    new.close()


async def _holds(budget: Budget, size: int) -> None:
    async with asyncio.timeout(10):
        while budget.held_bytes != size:
            assert budget.held_bytes <= 100_000
            await asyncio.sleep(0.001)


async def test_half_lines_of_all_clients_together_are_bounded_and_the_longest_is_answered(tmp_path: Path) -> None:
    budget = Budget(100_000)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(Server(Echo(), half_lines=budget).serve(listener))
            clients = [Client(*await asyncio.open_unix_connection(path)) for _ in range(4)]
            sizes = (20_000, 60_000, 30_000, 10_000)
            lines = [protocol.encode_request(n, "initialize", protocol.Initialize(1, "x" * sizes[n])) for n in range(4)]
            for client, line in zip(clients, lines, strict=True):
                client.send(line[:-50])
                await client.writer.drain()
            await _holds(budget, sum(len(line) - 50 for line in lines) - len(lines[1]) + 50)
            for client, line in zip(clients, lines, strict=True):
                client.send(line[-50:])
            answers = [await client.receive() for client in clients]
            assert [answer["id"] for answer in answers] == [0, 1, 2, 3]
            assert [answer.get("result", {}).get("cursor") for answer in answers] == ["20000", None, "30000", "10000"]
            error = answers[1]["error"]
            assert (error["code"], error["data"]["kind"]) == (-32001, "overloaded")
            clients[1].send(lines[1])
            assert (await clients[1].receive())["result"] == {"cursor": "60000"}  # the connection goes on
            clients[2].send(b"y" * 10_000)
            await _holds(budget, 10_000)
            for client in clients:
                await client.close()
            await _holds(budget, 0)
            serving.cancel()
