"""The writer with other Limits, or with a bug planted in its disk, to show that the checks see what they claim to see."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from tracewriter.clock import SYSTEM_CLOCK
from tracewriter.config import Limits
from tracewriter.disk import Disk, RealDisk
from tracewriter.listen import listen, private_dir
from tracewriter.server import Server


class Setup(Struct, frozen=True):
    """Where to serve, with which fields of Limits changed, and which planted bug ("" for none)."""

    socket: str
    root: str
    limits: Mapping[str, float | str]
    plant: str = ""


class AckFirst(RealDisk):
    """Claims every block but the first of a file, and writes it only when the next comes: an ack on receive."""

    def __init__(self) -> None:
        self._waiting: dict[int, bytes] = {}

    def write(self, fd: int, data: bytes) -> int:
        if data.startswith(b'{"seq":'):
            waiting, self._waiting[fd] = self._waiting.get(fd, b""), data
            if waiting:
                os.write(fd, waiting)
            return len(data)
        return os.write(fd, data)

    def fstat(self, fd: int) -> os.stat_result:
        info = os.fstat(fd)
        size = info.st_size + len(self._waiting.get(fd, b""))
        return os.stat_result((*info[:6], size, *info[7:10]))

    def close(self, fd: int) -> None:
        self._waiting.pop(fd, None)
        os.close(fd)


class SlowSync(RealDisk):
    """No bug: a disk whose fdatasync takes its time, so that much can happen between asking for one and doing it."""

    def sync(self, fd: int) -> None:
        time.sleep(0.02)
        os.fdatasync(fd)


class NoSync(RealDisk):
    """Claims that all is on disk, and leaves it to the kernel."""

    def sync(self, fd: int) -> None:
        pass


class NoRetiredSync(RealDisk):
    """Leaves every second segment to the kernel, also when another follows it. (Whether one is the newest at the moment of its
    sync depends on which thread is faster.)"""

    def sync(self, fd: int) -> None:
        number = os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).partition(".")[0]
        if not number.isdigit() or int(number) % 2:
            os.fdatasync(fd)


class _Spoil(RealDisk):
    """Spoils every so-manieth block of records; `spoil` keeps its length, so that nothing else notices."""

    def __init__(self) -> None:
        self._blocks = 0

    def write(self, fd: int, data: bytes) -> int:
        self._blocks += data.startswith(b'{"seq":')
        if data.startswith(b'{"seq":') and self._blocks % 5 == 0:
            os.write(fd, self.spoil(data))
            return len(data)
        return os.write(fd, data)

    def spoil(self, data: bytes) -> bytes:
        raise NotImplementedError


class Flip(_Spoil):
    """One bit of a stored block is not what was hashed."""

    def spoil(self, data: bytes) -> bytes:
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Swallow(_Spoil):
    """A block is lost without a word."""

    def spoil(self, data: bytes) -> bytes:
        return b""

    def fstat(self, fd: int) -> os.stat_result:
        return _unsuspicious(fd)


class Twice(_Spoil):
    """A block is written twice."""

    def spoil(self, data: bytes) -> bytes:
        return data + data

    def fstat(self, fd: int) -> os.stat_result:
        return _unsuspicious(fd)


class ForgetDrops(RealDisk):
    """Drop records are not written."""

    def write(self, fd: int, data: bytes) -> int:
        kept = b"".join(part for part in data.splitlines(keepends=True) if b"trace.drop.observed" not in part)
        os.write(fd, kept)
        return len(data)

    def fstat(self, fd: int) -> os.stat_result:
        return _unsuspicious(fd)


class _Any(int):
    """A size that is never suspicious."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _unsuspicious(fd: int) -> os.stat_result:
    info = os.fstat(fd)
    return os.stat_result((*info[:6], _Any(info.st_size), *info[7:10]))


PLANTS: dict[str, type[RealDisk]] = {
    "": RealDisk,
    "ack_first": AckFirst,
    "no_threads": RealDisk,
    "slow_sync": SlowSync,
    "no_sync": NoSync,
    "no_retired_sync": NoRetiredSync,
    "flip": Flip,
    "swallow": Swallow,
    "twice": Twice,
    "forget_drops": ForgetDrops,
}


def _without_threads() -> None:
    """Another user (a limit binds nobody else) who may have no second process or thread."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def main(setup: Setup) -> None:
    if setup.plant == "no_threads":
        _without_threads()
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: stopping.append(signum))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.umask(0o077)
    root = Path(setup.root)
    private_dir(root)
    listener = listen(Path(setup.socket), [])
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    disk: Disk = PLANTS[setup.plant]()
    server = Server(
        listener.sock,
        root_fd,
        root=str(root),
        disk=disk,
        clock=SYSTEM_CLOCK,
        limits=msgspec.convert(setup.limits, Limits, strict=False),
        version="test",
        log=lambda text: print(f"tracewriter: {text}", file=sys.stderr, flush=True),
    )
    try:
        server.run(lambda: bool(stopping))
    finally:
        listener.close()
        os.close(root_fd)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Setup))
