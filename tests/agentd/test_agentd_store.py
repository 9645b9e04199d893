from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage, encode_message
from agentd.store import INTERRUPTED, MAX_LOADED_MESSAGES, SessionStore, Store, StoredSession, StoreError, repair
from tests.agentd.daemon_fakes import call

AT = "2026-11-29T20:45:01.000000Z"


def stored(session_id: str = "s1", cwd: str = "/w", updated_at: str = AT) -> StoredSession:
    return StoredSession(session_id, cwd, "a title", "build", "openai/m", updated_at)


def encoded(*messages: Message) -> list[bytes]:
    return [encode_message(message) for message in messages]


def test_a_conversation_comes_back_as_it_was_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "sessions.db")
    messages: tuple[Message, ...] = (
        UserMessage("fix\u2028it"),
        AssistantMessage("yes", "hm", (call("a", '{"x":1}'),), (Raw(b'{"sig":"1"}'),)),
        ToolMessage("c1", "a", "done"),
    )
    first = Store(path)
    first.save_session(stored())
    first.add_messages("s1", 0, encoded(*messages[:1]), AT)
    first.add_messages("s1", 1, encoded(*messages[1:]), AT)
    first.close()
    second = Store(path)
    loaded = second.load("s1")
    assert loaded is not None
    assert (loaded.session, encoded(*loaded.messages), loaded.pending) == (stored(), encoded(*messages), ())
    assert second.next_number("s1") == 3
    second.close()


def test_the_newest_session_of_a_directory_is_found(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    for number, cwd in enumerate(["/w", "/w", "/other"]):
        store.save_session(stored(f"s{number}", cwd, f"2026-11-29T20:45:0{number}Z"))
    assert store.newest_of("/w") == "s1"
    assert store.newest_of("/none") is None
    assert [row.id for row in store.newest(2)] == ["s2", "s1"]
    assert store.load("none") is None
    store.close()


def test_prompts_that_no_run_took_up_are_told_until_they_are_cleared(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    store.save_session(stored())
    for prompt in ("p1", "p2", "p3"):
        store.add_prompt("s1", prompt, f"text of {prompt}", f"{AT}{prompt}")
    store.drop_prompts("s1", ["p2"])
    loaded = store.load("s1")
    store.clear_prompts("s1")
    again = store.load("s1")
    assert loaded is not None
    assert again is not None
    assert (loaded.pending, again.pending) == (("text of p1", "text of p3"), ())
    store.close()


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_its_files_are_the_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        store = Store(str(tmp_path / "s.db"))
        store.save_session(stored())
    finally:
        os.umask(old)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 3  # -wal and -shm beside it
    store.close()


def test_a_damaged_message_is_passed_over_and_counted(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    store.save_session(stored())
    store.add_messages("s1", 0, [*encoded(UserMessage("a")), b"\xff{", *encoded(UserMessage("b"))], AT)
    loaded = store.load("s1")
    assert loaded is not None
    assert (loaded.messages, loaded.damaged) == ((UserMessage("a"), UserMessage("b")), 1)
    store.close()


def test_only_the_newest_messages_of_a_huge_conversation_are_loaded(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    store.save_session(stored())
    store.add_messages("s1", 0, encoded(*(UserMessage(str(n)) for n in range(MAX_LOADED_MESSAGES + 500))), AT)
    loaded = store.load("s1")
    assert loaded is not None
    assert len(loaded.messages) == MAX_LOADED_MESSAGES
    assert loaded.messages[-1] == UserMessage(str(MAX_LOADED_MESSAGES + 499))
    store.close()


def test_what_is_no_database_is_an_error_in_words_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"this is a letter" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store(str(path)).save_session(stored())
    assert path.read_bytes() == b"this is a letter" * 100


def test_a_database_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = Store(str(path))
    store.save_session(stored())
    assert store._db is not None
    store._db.execute("PRAGMA user_version=99")
    store.close()
    with pytest.raises(StoreError, match="newer agentd"):
        Store(str(path)).newest(1)


def valid(messages: tuple[Message, ...]) -> bool:
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not waiting or waiting.pop(0) != message.call_id:
                return False
        elif waiting:
            return False
        elif isinstance(message, AssistantMessage):
            waiting = [made.id for made in message.tool_calls]
    return not waiting and (not messages or isinstance(messages[0], UserMessage))


def test_a_call_without_its_result_gets_one_that_says_so() -> None:
    calls = (call("a", call_id="x"), call("b", call_id="y"))
    killed = (UserMessage("go"), AssistantMessage("", tool_calls=calls), ToolMessage("y", "b", "2"))
    missing = ToolMessage("x", "a", INTERRUPTED, is_error=True)
    assert repair(killed) == (*killed[:2], missing, ToolMessage("y", "b", "2"))


messages = st.lists(
    st.one_of(
        st.builds(UserMessage, st.text(max_size=3)),
        st.builds(ToolMessage, st.sampled_from("abc"), st.just("t"), st.text(max_size=3)),
        st.sets(st.sampled_from("abc")).map(
            lambda ids: AssistantMessage("", tool_calls=tuple(call("t", call_id=i) for i in sorted(ids)))
        ),
    ),
    max_size=12,
)


@given(messages)
def test_whatever_was_stored_providers_get_a_conversation_they_take(damaged: list[Message]) -> None:
    repaired = repair(damaged)
    assert valid(repaired)
    assert repair(repaired) == repaired
    assert [m for m in repaired if isinstance(m, UserMessage)] == [m for m in damaged if isinstance(m, UserMessage)]
    if valid(tuple(damaged)):
        assert list(repaired) == damaged


@pytest.mark.anyio
async def test_calls_and_posts_are_done_in_order_off_the_loop(tmp_path: Path) -> None:
    store = SessionStore(str(tmp_path / "s.db"))
    done: list[StoreError | None] = []
    store.post(done.append, store.db.save_session, stored())
    store.post(done.append, store.db.add_messages, "s1", 0, encoded(UserMessage("a")), AT)
    loaded = await store.call(store.db.load, "s1")
    assert loaded is not None
    assert loaded.messages == (UserMessage("a"),)
    assert done == [None, None]
    await store.aclose()


@pytest.mark.anyio
async def test_a_stuck_disk_is_refused_after_a_bound_and_told_when_it_is_over(tmp_path: Path) -> None:
    store = SessionStore(str(tmp_path / "s.db"), max_pending=2)
    stuck = threading.Event()
    told: list[StoreError | None] = []
    store.post(told.append, stuck.wait)
    store.post(told.append, stuck.wait)
    store.post(told.append, stuck.wait)
    assert [str(error) for error in told] == ["sessions.db does not keep up"]
    with pytest.raises(StoreError, match="keep up"):
        await store.call(store.db.newest, 1)
    stuck.set()
    await store.aclose()


@pytest.mark.anyio
async def test_a_failure_is_told_and_forgotten_when_it_works_again(tmp_path: Path) -> None:
    store = SessionStore(str(tmp_path / "missing" / "s.db"))
    with pytest.raises(StoreError):
        await store.call(store.db.newest, 1)
    assert "s.db" in store.failure
    (tmp_path / "missing").mkdir()
    assert await store.call(store.db.newest, 1) == []
    assert store.failure == ""
    await store.aclose()
