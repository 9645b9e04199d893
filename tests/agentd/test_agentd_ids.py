from __future__ import annotations

import uuid
from importlib.metadata import version

import agentd
from agentd.ids import Ids, is_session_id
from tests.agentd.daemon_fakes import FakeClock, fake_ids


def test_session_ids_are_version_7_uuids_of_the_clocks_millisecond() -> None:
    clock = FakeClock()
    made = uuid.UUID(fake_ids(clock).uuid7())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == int(clock.now().timestamp() * 1000)


def test_ids_of_later_milliseconds_sort_later() -> None:
    clock = FakeClock()
    ids = Ids(clock)
    first = ids.uuid7()
    clock.s += 0.002
    assert first < ids.uuid7()


def test_operation_ids_are_16_hex_and_never_zero() -> None:
    assert Ids(FakeClock(), lambda size: bytes(size)).op() == "0000000000000001"
    assert len(Ids(FakeClock()).op()) == 16


def test_foreign_session_ids_are_taken_when_they_are_safe_as_directory_names() -> None:
    assert all(map(is_session_id, ("a", "0", "my-session_1", "x" * 64)))
    assert not any(map(is_session_id, ("", "-a", "_a", "A", "a/b", "..", "a\n", "x" * 65, "é")))


def test_the_version_is_the_distributions() -> None:
    assert agentd.__version__ == version("agentd-local")
