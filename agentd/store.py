"""sessions.db: the conversations as they are, so that a session goes on after the daemon was restarted. SQLite, WAL, 0600.

`Store` is plain blocking code; `SessionStore` runs it in one thread of its own, in order. A store that cannot be used never
stops a run: calls then raise StoreError, which the callers turn into a notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from agentd.errors import AgentdError
from agentd.messages import AssistantMessage, Message, ToolMessage, UserMessage, decode_message

SCHEMA_VERSION: Final = 2
# A conversation is cut to its newest messages when it is loaded: the request budget takes far less than this.
MAX_LOADED_MESSAGES: Final = 4_000
MAX_LOADED_BYTES: Final = 16 * 1024 * 1024
MAX_SESSIONS: Final = 10_000
# Waiting saves; more means that the disk does not answer, and the rest is refused.
MAX_PENDING: Final = 1_024
INTERRUPTED: Final = "[interrupted: the daemon ended before this call's result was known; check before you repeat it]"

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, cwd TEXT NOT NULL, title TEXT NOT NULL, mode TEXT NOT NULL, model TEXT NOT NULL,
    updated_at TEXT NOT NULL, base_url TEXT NOT NULL, uds TEXT NOT NULL,
    capture TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sessions_by_cwd ON sessions (cwd, updated_at);
CREATE INDEX IF NOT EXISTS sessions_by_time ON sessions (updated_at);
CREATE TABLE IF NOT EXISTS messages (
    session TEXT NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (session, n));
CREATE TABLE IF NOT EXISTS prompts (
    session TEXT NOT NULL, prompt TEXT NOT NULL, text TEXT NOT NULL, added_at TEXT NOT NULL,
    PRIMARY KEY (session, prompt)) WITHOUT ROWID;
"""

P = ParamSpec("P")
R = TypeVar("R")


class StoreError(AgentdError):
    """sessions.db cannot be read or written now."""


class StoredSession(Struct, frozen=True):
    """What is kept of a session besides its messages. `updated_at` is RFC 3339 in UTC; `model` is provider/model; base_url
    and uds are the address that was given with it, "" for the provider's own (a URL with a password is never accepted). capture
    is the mode it is recorded in; "" of one that an earlier version saved."""

    id: str
    cwd: str
    title: str
    mode: str
    model: str
    updated_at: str
    base_url: str = ""
    uds: str = ""
    capture: str = ""


class Loaded(Struct, frozen=True):
    """A stored session. `pending` are prompts that were accepted but that no run took up."""

    session: StoredSession
    messages: tuple[Message, ...]
    pending: tuple[str, ...]
    damaged: int


class Store:
    """The database, for one thread. Every method raises StoreError when SQLite or the disk does."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"<Store {self._path}>"

    def save_session(self, session: StoredSession) -> None:
        """Insert or update; the oldest sessions beyond MAX_SESSIONS go."""

        def work(db: sqlite3.Connection) -> None:
            row = msgspec.structs.astuple(session)
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT OR REPLACE INTO sessions ({_COLUMNS}) VALUES ({marks})", row)
            old = "SELECT id FROM sessions ORDER BY updated_at DESC LIMIT -1 OFFSET ?"
            for (session_id,) in db.execute(old, (MAX_SESSIONS,)).fetchall():
                for table, column in (("messages", "session"), ("prompts", "session"), ("sessions", "id")):
                    db.execute(f"DELETE FROM {table} WHERE {column} = ?", (session_id,))

        self._write(work)

    def add_prompt(self, session_id: str, prompt: str, text: str, added_at: str) -> None:
        """A prompt was accepted."""
        row = (session_id, prompt, text, added_at)
        self._write(lambda db: db.execute("INSERT OR REPLACE INTO prompts VALUES (?, ?, ?, ?)", row))

    def drop_prompts(self, session_id: str, prompts: Sequence[str]) -> None:
        """Prompts were taken up or cleared."""
        rows = [(session_id, prompt) for prompt in prompts]
        self._write(lambda db: db.executemany("DELETE FROM prompts WHERE session = ? AND prompt = ?", rows))

    def clear_prompts(self, session_id: str) -> None:
        """Whoever resumed the session was told of the prompts that nobody took up."""
        self._write(lambda db: db.execute("DELETE FROM prompts WHERE session = ?", (session_id,)))

    def add_messages(self, session_id: str, first: int, messages: Sequence[bytes], updated_at: str) -> None:
        """The conversation went on: `messages` are its encoded messages number `first` and following."""

        def work(db: sqlite3.Connection) -> None:
            rows = [(session_id, first + at, data) for at, data in enumerate(messages)]
            db.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?)", rows)
            db.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (updated_at, session_id))

        self._write(work)

    def load(self, session_id: str) -> Loaded | None:
        """A session with its newest messages, unreadable ones counted and passed over."""

        def work(db: sqlite3.Connection) -> Loaded | None:
            found = _one(db, "WHERE id = ?", (session_id,))
            if found is None:
                return None
            rows = db.execute("SELECT data FROM messages WHERE session = ? ORDER BY n DESC", (session_id,))
            messages, damaged = _decode(rows)
            pending = db.execute(
                "SELECT text FROM prompts WHERE session = ? ORDER BY added_at", (session_id,)
            ).fetchall()
            return Loaded(found, messages, tuple(text for (text,) in pending), damaged)

        return self._write(work)

    def next_number(self, session_id: str) -> int:
        """The number of the session's next message."""
        sql = "SELECT COALESCE(MAX(n) + 1, 0) FROM messages WHERE session = ?"
        return self._write(lambda db: int(db.execute(sql, (session_id,)).fetchone()[0]))

    def newest_of(self, cwd: str) -> str | None:
        """The id of the directory's newest session."""

        def work(db: sqlite3.Connection) -> str | None:
            found = _one(db, "WHERE cwd = ? ORDER BY updated_at DESC, id DESC LIMIT 1", (cwd,))
            return None if found is None else found.id

        return self._write(work)

    def newest(self, limit: int) -> list[StoredSession]:
        """The newest sessions of all directories."""
        sql = f"SELECT {_COLUMNS} FROM sessions ORDER BY updated_at DESC, id DESC LIMIT ?"
        return self._write(lambda db: [StoredSession(*row) for row in db.execute(sql, (limit,))])

    def close(self) -> None:
        """Close the database; the next call would open it again."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _write(self, work: Callable[[sqlite3.Connection], R]) -> R:
        try:
            if self._db is None:
                self._db = _open(self._path)
            with self._db:
                return work(self._db)
        except (sqlite3.Error, OSError, UnicodeError) as exc:
            hint = "the conversation goes on in memory; free disk space or mend the file, nothing else is needed"
            raise StoreError(f"{self._path}: {exc}", hint) from exc


_COLUMNS: Final = ", ".join(StoredSession.__struct_fields__)


def _open(path: str) -> sqlite3.Connection:
    # Made by us first: SQLite would give it the umask's mode, and -wal and -shm take their mode from it.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
    db = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA journal_size_limit=8388608")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"made by a newer agentd (schema {version}, this one knows {SCHEMA_VERSION})")
        db.executescript(_SCHEMA)
        if "capture" not in {row[1] for row in db.execute("PRAGMA table_info(sessions)")}:  # schema 1
            db.execute("ALTER TABLE sessions ADD COLUMN capture TEXT NOT NULL DEFAULT ''")
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def _one(db: sqlite3.Connection, where: str, values: tuple[str, ...]) -> StoredSession | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM sessions {where}", values).fetchone()
    return None if row is None else StoredSession(*row)


def _decode(newest_first: sqlite3.Cursor) -> tuple[tuple[Message, ...], int]:
    messages: list[Message] = []
    damaged = size = 0
    for (data,) in newest_first:
        size += len(data)
        if len(messages) >= MAX_LOADED_MESSAGES or size > MAX_LOADED_BYTES:
            break
        try:
            messages.append(decode_message(bytes(data)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            damaged += 1
    return repair(messages[::-1]), damaged


def repair(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with a result right after every call and no result without one, beginning with a user: what providers take.

    A daemon that was killed leaves a call without its result; a load that was cut leaves results without their call.
    """
    start = next((at for at, message in enumerate(messages) if isinstance(message, UserMessage)), len(messages))
    out: list[Message] = []
    at = start
    while at < len(messages):
        message = messages[at]
        at += 1
        if isinstance(message, ToolMessage):
            continue
        out.append(message)
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results: dict[str, ToolMessage] = {}
            while at < len(messages) and isinstance(result := messages[at], ToolMessage):
                results.setdefault(result.call_id, result)
                at += 1
            for call in message.tool_calls:
                missing = ToolMessage(call.id, call.name, INTERRUPTED, is_error=True)
                out.append(results.get(call.id, missing))
    return tuple(out)


class SessionStore:
    """The store off the event loop: one thread, calls in order, a bounded number waiting."""

    def __init__(self, path: str, *, max_pending: int = MAX_PENDING) -> None:
        self._store = Store(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentd-store")
        self._pending = 0
        self._max_pending = max_pending
        self.failure = ""  # why the last call failed; "" when it did not

    def __repr__(self) -> str:
        return f"<SessionStore {self._store} pending={self._pending} failure={self.failure!r}>"

    async def call(self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one method of `self.db` in the thread. Raises StoreError when it fails or too many are waiting."""
        if self._pending >= self._max_pending:
            raise StoreError(
                "sessions.db does not keep up", "the disk may be stuck; the conversation goes on in memory"
            )
        self._pending += 1
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, lambda: method(*args, **kwargs))
        except StoreError as exc:
            self.failure = str(exc)
            raise
        finally:
            self._pending -= 1
        self.failure = ""
        return result

    def post(
        self,
        failed: Callable[[StoreError | None], None],
        method: Callable[P, object],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """As `call`, without waiting: `failed` is told in the event loop how it went, None for well."""
        loop = asyncio.get_running_loop()
        if self._pending >= self._max_pending:
            failed(
                StoreError("sessions.db does not keep up", "the disk may be stuck; the conversation goes on in memory")
            )
            return
        self._pending += 1

        def done(error: StoreError | None) -> None:
            self._pending -= 1
            self.failure = "" if error is None else str(error)
            failed(error)

        def work() -> None:
            error = None
            try:
                method(*args, **kwargs)
            except StoreError as exc:
                error = exc
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(done, error)

        self._thread.submit(work)

    @property
    def db(self) -> Store:
        """The methods that `call` takes."""
        return self._store

    async def aclose(self, timeout_s: float = 2.0) -> None:
        """Finish what waits, close the file; after `timeout_s` it is left to the end of the process."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        except TimeoutError:
            pass
        self._thread.shutdown(wait=False)
