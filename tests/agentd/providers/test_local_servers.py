"""Local models by a stand-in for llama.cpp, in real child processes: started on demand, stopped, crashed, never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agentd.messages import UserMessage
from agentd.providers.catalog import Choice, resolve
from agentd.providers.local import LocalProvider, LocalServers
from agentd.providers.local_launch import LocalConfig, Machine, this_machine
from agentd.providers.stream import Failed, Finished, ModelRequest, Retry, StreamEvent, Text, UsageReported
from tests import gguf_files
from tests.e2e.harness import ended, environ, processes, wait_for

STUB = Path(__file__).parent / "stub_llama"
pytestmark = pytest.mark.anyio


class Local:
    """Servers in a home of their own, with a file for each model that is asked."""

    def __init__(self, home: Path, config: LocalConfig, machine: Callable[[], Machine], *, installed: bool) -> None:
        env = {"AGENTD_HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(STUB), "SOME_API_KEY": "sk-none"}
        self.models = home / "models"
        self.models.mkdir(parents=True)
        self.pids: list[int] = []
        self.servers = LocalServers(env, config, machine=machine, installed=lambda: installed, health_s=1.0)

    def add(self, name: str, data: bytes | None = None) -> Path:
        path = self.models / f"{name}.gguf"
        path.write_bytes(gguf_files.head(gguf_files.LLAMA) if data is None else data)
        return path

    def provider(self, model: str) -> LocalProvider:
        choice = resolve(f"local/{model}", env={})
        assert isinstance(choice, Choice)
        assert (choice.model, choice.spec.local) == (model, True)
        return LocalProvider(choice, self.servers, env={})

    async def ask(self, model: str) -> list[StreamEvent]:
        asked = ModelRequest(model, "", (UserMessage("hello"),))
        events = [event async for event in self.provider(model).stream(asked)]
        assert isinstance(events[-1], Finished | Failed)
        assert [type(event) for event in events].count(UsageReported) == 1
        assert isinstance(events[-2], UsageReported)
        return events

    async def pid(self, model: str) -> int:
        text = "".join(event.text for event in await self.ask(model) if isinstance(event, Text))
        self.pids.append(int(text.removeprefix("hello from ")))
        return self.pids[-1]

    async def failure(self, model: str) -> tuple[str, str]:
        end = (await self.ask(model))[-1]
        assert isinstance(end, Failed)
        assert "\n" not in end.failure.message + end.failure.hint
        return end.failure.message, end.failure.hint


async def none_runs(one: Local) -> None:
    async with asyncio.timeout(30):
        while one.servers.running:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def local(
    home: Path,
    config: LocalConfig = LocalConfig(),  # noqa: B008 - frozen
    machine: Callable[[], Machine] = lambda: Machine(1 << 40, 2, 0.0),
    *,
    installed: bool = True,
) -> AsyncGenerator[Local, None]:
    made = Local(home, config, machine, installed=installed)
    try:
        yield made
    finally:
        await made.servers.aclose()
        assert made.servers.running == 0
        assert all(ended(pid) for pid in made.pids)


async def test_the_first_request_starts_the_server_and_the_next_ones_find_it(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        path = one.add("answers")
        assert one.servers.running == 0
        first = await one.pid("answers")
        assert await one.pid("answers") == first
        assert await one.pid(str(path)) == first  # by its path: the same file, the same server
        assert one.servers.running == 1
        sockets = list((tmp_path / "run" / "local").glob("*.sock"))
        assert len(sockets) == 1
        assert (tmp_path / "run" / "local").stat().st_mode & 0o777 == 0o700
    assert not sockets[0].exists()


async def test_requests_at_once_start_one_server_for_each_model(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("answers-a"), one.add("answers-b")
        pids = await asyncio.gather(*(one.pid(f"answers-{name}") for name in "abababab"))
        assert len(set(pids)) == 2
        assert one.servers.running == 2


async def test_a_fifth_model_takes_the_place_of_the_one_that_was_idle_longest(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        pids = {}
        for name in "abcde":
            one.add(f"answers-{name}")
            pids[name] = await one.pid(f"answers-{name}")
        assert one.servers.running == 4
        assert ended(pids["a"])
        assert await one.pid("answers-e") == pids["e"]


async def test_it_is_stopped_when_idle_and_started_again_when_asked(tmp_path: Path) -> None:
    async with local(tmp_path, LocalConfig(idle_s=0.3)) as one:
        one.add("answers")
        first = await one.pid("answers")
        await none_runs(one)
        assert await asyncio.to_thread(ended, first)
        assert list((tmp_path / "run" / "local").glob("*.sock")) == []
        assert await one.pid("answers") != first


async def test_it_is_not_idle_while_it_answers(tmp_path: Path) -> None:
    async with local(tmp_path, LocalConfig(idle_s=0.05)) as one:
        one.add("endless")
        stream = one.provider("endless").stream(ModelRequest("endless", "", (UserMessage("go"),)))
        await anext(stream)
        for _ in range(30):  # 0.3 s and more of one answer, six times the idle time
            await anext(stream)
        assert one.servers.running == 1
        await stream.aclose()


async def test_a_cancelled_stream_frees_the_servers_slot(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("endless")
        stream = one.provider("endless").stream(ModelRequest("endless", "", (UserMessage("go"),)))
        await anext(stream)
        await anext(stream)
        (socket,) = (tmp_path / "run" / "local").glob("*.sock")
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket))) as client:
            assert (await client.get("http://localhost/slots")).json() == [{"is_processing": True}]
            await stream.aclose()
            async with asyncio.timeout(10):
                while (await client.get("http://localhost/slots")).json() != [{"is_processing": False}]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert one.servers.running == 1


async def test_a_crash_before_the_answer_costs_a_retry(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("crashes-before")
        events = await one.ask("crashes-before")
        assert [type(event) for event in events] == [Retry, Text, UsageReported, Finished]
        assert isinstance(events[0], Retry)
        assert "SIGSEGV" in events[0].failure.message


async def test_a_crash_at_every_request_is_told_after_one_retry(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("crashes-always")
        events = await one.ask("crashes-always")
        assert [type(event) for event in events] == [Retry, UsageReported, Failed]
        assert isinstance(events[-1], Failed)
        assert "the local model's process was ended by SIGSEGV" in events[-1].failure.message


async def test_a_crash_in_the_middle_of_an_answer_is_never_a_second_answer(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("crashes-between"), one.add("answers")
        events = await one.ask("crashes-between")
        assert [type(event) for event in events] == [Text, UsageReported, Failed]
        message, hint = await one.failure("crashes-between")
        assert "SIGSEGV" in message
        assert hint
        await one.pid("answers")  # the daemon and its other models go on


async def test_a_server_that_was_killed_meanwhile_is_replaced(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("answers")
        first = await one.pid("answers")
        os.kill(first, signal.SIGKILL)
        assert await one.pid("answers") != first


async def test_a_server_that_stands_still_is_replaced(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("answers")
        first = await one.pid("answers")
        os.kill(first, signal.SIGSTOP)
        assert await one.pid("answers") != first
        assert await asyncio.to_thread(ended, first)


async def test_a_file_that_was_replaced_is_loaded_anew(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        path = one.add("answers")
        first = await one.pid("answers")
        path.unlink()
        one.add("answers", gguf_files.head({**gguf_files.LLAMA, "general.name": "another"}))
        assert await one.pid("answers") != first


async def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    async with local(tmp_path, installed=False) as one:
        one.add("answers")
        message, hint = await one.failure("answers")
        assert "agentd[local]" in message
        assert "pip install" in hint
        assert not isinstance(await one.servers.models(), tuple)


@pytest.mark.parametrize(
    ("model", "data", "words", "next_step"),
    [
        ("smollm2", None, "does not exist", "agentctl models pull smollm2"),
        ("other", None, "does not exist", "agentctl models pull"),
        ("/nowhere/at/all.gguf", None, "/nowhere/at/all.gguf does not exist", "check the path"),
        ("some/where.gguf", None, "neither a name nor a whole path", "local//"),
        ("text", b"this is no model", "is no GGUF file", "get it again"),
        ("cut", gguf_files.head(gguf_files.LLAMA)[:-20], "is cut off", "get it again"),
        ("empty", b"", "is no GGUF file", "get it again"),
        ("unloadable", gguf_files.head(gguf_files.LLAMA), "tensor data is not within the file", "get it again"),
    ],
)
async def test_what_cannot_be_served_is_one_line_and_a_next_step(
    tmp_path: Path, model: str, data: bytes | None, words: str, next_step: str
) -> None:
    async with local(tmp_path) as one:
        if data is not None:
            one.add(model, data)
        message, hint = await one.failure(model)
        assert words in message
        assert next_step in hint
        assert one.servers.running == 0


async def test_a_near_name_is_offered(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("qwen3-4b")
        _, hint = await one.failure("qwen3-4")
        assert "local/qwen3-4b" in hint


async def test_too_little_memory_is_told_before_anything_is_started(tmp_path: Path) -> None:
    async with local(tmp_path, machine=lambda: Machine(200 << 20, 2, 0.0)) as one:
        one.add("answers")
        message, hint = await one.failure("answers")
        assert "not enough memory" in message
        assert "0.2 GiB" in message
        assert hint
        assert not (tmp_path / "run" / "local").exists()


async def test_one_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    async with local(tmp_path, LocalConfig(start_s=1.0)) as one:
        one.add("unready")
        message, hint = await one.failure("unready")
        assert "not ready within 1 s" in message
        assert "start_s" in hint
        assert one.servers.running == 0


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("unready")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await one.ask("unready")
        assert await one.failure("unknown")
        await none_runs(one)


async def test_the_child_gets_no_key_and_is_asked_on_paths_of_any_length(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    async with local(home) as one:
        one.add("answers")
        pid = await one.pid("answers")
        found = environ(pid)  # None: not even we may read it
        assert b"SOME_API_KEY" not in (found or b"")
        words = processes()[pid]
        assert "local_child" in words
        assert "sk-none" not in words


async def test_models_are_listed_by_name_with_their_context(tmp_path: Path) -> None:
    async with local(tmp_path) as one:
        one.add("b"), one.add("a"), one.add("text", b"nothing")
        found = await one.servers.models()
        assert isinstance(found, tuple)
        assert [(model.id, model.context_tokens) for model in found] == [("a", 8192), ("b", 8192)]


def test_no_server_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "answers.gguf").write_bytes(gguf_files.head(gguf_files.LLAMA))
    code = (
        "import asyncio, json, os\n"
        "from agentd.providers.local import LocalServers\n"
        "from agentd.providers.local_launch import Machine\n"
        "async def main():\n"
        "    servers = LocalServers(os.environ, machine=lambda: Machine(1 << 40, 1, 0.0), installed=lambda: True)\n"
        "    async with servers.use('answers') as server:\n"
        "        print(server.process.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    env = {"AGENTD_HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(STUB)}
    with subprocess.Popen([sys.executable, "-P", "-c", code], env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    assert ended(pid)
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), "its end")


def test_this_machine_says_something_sane() -> None:
    found = this_machine()
    assert found.free_bytes > 1 << 20
    assert 1 <= found.cores <= 4096
    assert json.dumps(found.load)
