"""Payload files are read whole or not at all: never through links, never what is not as it was sealed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracewriter.payload_sessions import ONE, PLANTED, TWO, Body, a_session, flip, flips, plant, put
from tracewriter.findings import Note
from tracewriter.payload import MAX_PAYLOAD, PAYLOADS
from tracewriter.payload_files import PayloadFiles, SessionPayloads, oddity, payload_seals
from tracewriter.tail import Follower


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return a_session(tmp_path)


@pytest.fixture
def files(directory: Path) -> Iterator[SessionPayloads]:
    with SessionPayloads(directory) as payloads:
        yield payloads


def kind(found: bytes | Note) -> str:
    return found.kind if isinstance(found, Note) else "whole"


def test_stored_bytes_are_given_as_they_are(files: SessionPayloads) -> None:
    assert files.find(ONE.ref) == ONE.data
    assert files.find(TWO.ref) == TWO.data


def test_no_changed_bit_is_given_away(directory: Path, files: SessionPayloads) -> None:
    path = directory / PAYLOADS / ONE.id
    for bit in flips(path):
        flip(path, ONE.data, bit)
        assert kind(files.find(ONE.ref)) == "payload_damaged"
    path.write_bytes(ONE.data)
    assert files.find(ONE.ref) == ONE.data


def test_a_changed_bit_in_a_seal_withholds_no_healthy_body(directory: Path) -> None:
    path = directory / "000001.seal"
    data = path.read_bytes()
    for bit in flips(path):
        flip(path, data, bit)
        with SessionPayloads(directory) as payloads:
            assert payloads.find(TWO.ref) == TWO.data


def test_what_is_not_sealed_yet_is_given(directory: Path, files: SessionPayloads) -> None:
    assert kind(files.find(Body(b"later").ref)) == "payload_missing"
    put(directory, Body(b"later"))
    assert files.find(Body(b"later").ref) == b"later"


@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_planted_is_read(planted: str, directory: Path, files: SessionPayloads, tmp_path: Path) -> None:
    path = directory / PAYLOADS / ONE.id
    path.unlink()
    plant(planted, path, tmp_path / "outside")
    assert kind(files.find(ONE.ref)) == "foreign"


def test_nothing_is_read_through_a_planted_directory(directory: Path, tmp_path: Path) -> None:
    (directory / PAYLOADS).rename(tmp_path / "moved")
    (directory / PAYLOADS).symlink_to(tmp_path / "moved")
    with SessionPayloads(directory) as payloads:
        assert kind(payloads.find(ONE.ref)) == "payload_damaged"


def test_another_users_file_is_not_read(directory: Path) -> None:
    info = os.stat(directory / PAYLOADS / ONE.id)
    assert oddity(info, info.st_uid) == ""
    assert "another user" in oddity(info, info.st_uid + 1)


def test_what_is_too_long_is_not_read_whole(directory: Path, files: SessionPayloads) -> None:
    path = put(directory, Body(b"unsealed"))
    os.truncate(path, 2**40)
    assert kind(files.find(Body(b"unsealed").ref)) == "payload_damaged"
    os.truncate(path, MAX_PAYLOAD)
    assert kind(files.find(Body(b"unsealed").ref)) == "whole"


def test_a_follower_finds_payloads_of_a_directory_that_came_later(tmp_path: Path) -> None:
    with Follower(tmp_path / "root" / "0193750000007000800000000000cafe") as follower:
        assert kind(follower.find_payload(ONE.ref)) != "whole"
        a_session(tmp_path / "root")
        assert len([item for item in follower.poll() if not isinstance(item, Note)]) == 6
        assert follower.find_payload(ONE.ref) == ONE.data


@given(st.permutations(range(3)), st.binary(max_size=96))
def test_slots_are_found_in_any_order_and_among_anything(order: list[int], noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = a_session(Path(place))
        path = directory / "000002.seal"
        data = path.read_bytes()
        slots = [data[at : at + 32] for at in range(32, len(data), 32)]
        noise = noise[: len(noise) // 32 * 32]
        path.write_bytes(data[:32] + noise + b"".join(slots[at] for at in order))
        fd = os.open(directory, os.O_RDONLY)
        try:
            seals = payload_seals(fd)
            assert {prefix.hex() for prefix in seals} == {ONE.id[:16], TWO.id[:16]}
            assert set(payload_seals(fd, lambda prefix: prefix.hex() == ONE.id[:16])) == {bytes.fromhex(ONE.id[:16])}
        finally:
            os.close(fd)


def test_closing_twice_is_nothing(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    payloads = PayloadFiles(fd)
    assert payloads.find(ONE.ref) == ONE.data
    payloads.close()
    payloads.close()
    os.close(fd)
