"""One segment and its seals: bytes that are appended, and 32-byte slots that say what was appended (FORMAT.md).

Pure parts: the header line, the slots, the collecting of ranges. `Segment` touches the disk and keeps these invariants:
a seal entry covers only bytes whose write(2) returned, in order, from offset 0, without holes; its hash is of the stored
bytes; the file is never rewritten, only cut back to the last whole line after an error, and then left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from struct import Struct as Layout
from typing import Final

import msgspec
from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_intdigest

from tracewriter.config import KIB
from tracewriter.disk import Disk

SEAL_SLOT: Final = 32
SEAL_MAGIC: Final = b"agseal1\n"
SEAL_RANGE: Final = 64 * KIB  # a range is closed at the first block beyond this
_SLOT0: Final = Layout("<8sIIQQ")
_ENTRY: Final = Layout("<IIIIQQ")
MAX_NUMBER: Final = 900_000_000  # leaves a hundred million to be counted on to before a name would need a tenth digit
_SEGMENT_NAME: Final = re.compile(r"([0-9]{6,9})\.(jsonl|seal)\Z")


class Header(Struct, frozen=True, omit_defaults=True):
    """The first line of a segment. Unique within its first 256 bytes: log shippers know a file by its head.

    after: the seq before this segment's first record. why: open, size, error:<errno>, foreign:<what>. lost: the last seq
    known to have been acknowledged although the files no longer hold it.
    """

    segment: int
    id: str
    session: str
    format: str
    producer: str
    after: int
    why: str
    lost: int = 0


class SealEntry(Struct, frozen=True, gc=False):
    """One sealed range: where, how long, how many records, the last seq in it, and the hash of its stored bytes."""

    offset: int
    length: int
    records: int
    last: int
    digest: int


def segment_name(number: int) -> str:
    """000001.jsonl"""
    return f"{number:06d}.jsonl"


def seal_name(number: int) -> str:
    """000001.seal"""
    return f"{number:06d}.seal"


def segment_number(name: str) -> tuple[int, str] | None:
    """(number, "jsonl" or "seal") of a file name; None for any other file."""
    match = _SEGMENT_NAME.match(name)
    return (int(match[1]), match[2]) if match else None


def sane_numbers(names: Iterable[str]) -> list[tuple[int, str]]:
    """`segment_number` of each name that has one and may be a writer's: at most MAX_NUMBER, or counted on from there without a
    hole. Any other was planted; taken as the highest so far, it would make the next name one that no reader looks for."""
    found = [parsed for parsed in map(segment_number, names) if parsed]
    high = {number for number, _ in found if number >= MAX_NUMBER}
    top = MAX_NUMBER
    while top in high and top + 1 in high:
        top += 1
    return [parsed for parsed in found if parsed[0] <= top]


def insane_names(names: Iterable[str]) -> list[str]:
    """The names that `sane_numbers` leaves out although they look like a segment's or a seal's, ascending."""
    listed = list(names)
    sane = {number for number, _ in sane_numbers(listed)}
    return sorted(name for name in listed if (parsed := segment_number(name)) and parsed[0] not in sane)


def encode_slot0(number: int, segment_id: int) -> bytes:
    """The seal file's own header."""
    head = _SLOT0.pack(SEAL_MAGIC, number, 0, segment_id, 0)[:24]
    return head + xxh3_64_intdigest(head).to_bytes(8, "little")


def encode_entry(entry: SealEntry, segment_id: int) -> bytes:
    """A seal slot, with the check that binds it to its segment."""
    fields = (entry.offset, entry.length, entry.records)
    blank = _ENTRY.pack(*fields, 0, entry.last, entry.digest)
    check = xxh3_64_intdigest(blank, seed=segment_id) & 0xFFFFFFFF
    return _ENTRY.pack(*fields, check, entry.last, entry.digest)


def decode_slot0(slot: bytes) -> tuple[int, int] | None:
    """(segment number, segment id), or None when it is no seal header."""
    magic, number, zero, segment_id, check = _SLOT0.unpack(slot)
    good = magic == SEAL_MAGIC and zero == 0 and check == xxh3_64_intdigest(slot[:24])
    return (number, segment_id) if good else None


def decode_entry(slot: bytes, segment_id: int) -> SealEntry | None:
    """The entry in a slot, or None when its check fails for this segment."""
    offset, length, records, check, last, digest = _ENTRY.unpack(slot)
    blank = _ENTRY.pack(offset, length, records, 0, last, digest)
    if xxh3_64_intdigest(blank, seed=segment_id) & 0xFFFFFFFF != check:
        return None
    return SealEntry(offset, length, records, last, digest)


def count_lines(data: bytes | memoryview) -> int:
    """How many LFs: replace() is about five times faster than bytes.count in all of CPython 3.11 to 3.13."""
    data = bytes(data) if isinstance(data, memoryview) else data
    return len(data) - len(data.replace(b"\n", b""))


class Mark(Struct, frozen=True):
    """Where a segment stood before an append."""

    size: int
    records: int
    last: int


def new_hash() -> xxh3_64:
    """An empty hash as seals use it, to be fed piece by piece."""
    return xxh3_64()  # type: ignore[no-untyped-call,unused-ignore]


class Outcome(Struct, frozen=True):
    """What became of one append: lines that are whole on disk, and the error that stopped it, if one did."""

    lines: int
    error: OSError | None = None


class Segment:
    """A segment file open for appending, with its seal file."""

    def __init__(self, disk: Disk, dir_fd: int, header: Header, sync_first: Callable[[], None] | None = None) -> None:
        self._disk, self._dir_fd = disk, dir_fd
        self._sync_first = sync_first  # what the records rest on: no power cut may take that and leave them
        self.number = header.segment
        self.id = int(header.id, 16)
        self._header = msgspec.json.encode(header) + b"\n"
        self.fd = -1
        self._seal_fd = -1
        self._identity = (0, 0)
        self.size = 0
        self.records = 0
        self.last = header.after
        self._hash = new_hash()
        self._range_start = 0
        self._range_records = 0
        self._entries: list[bytes] = []
        self._seals_lost = False
        self.unsynced = False
        self.syncing = False  # a sync is under way in the background: until it is done nobody may close the descriptors
        self._sync_failed = False

    def __repr__(self) -> str:
        return f"<Segment {self.number} {self.size} bytes, {self.records} records, last {self.last}>"

    def start(self, block: bytes, lines: int, last: int) -> Outcome:
        """Make the file with its header and first block in one write, then its seal file. On failure nothing is left
        behind unless at least one whole record got through."""
        name = segment_name(self.number)
        try:
            self.fd = self._disk.create(name, self._dir_fd)
        except OSError as exc:
            return Outcome(0, exc)
        try:
            info = self._disk.fstat(self.fd)
        except OSError as exc:
            self._abandon(name)
            return Outcome(0, exc)
        self._identity = (info.st_dev, info.st_ino)
        outcome = self._write(self._header + block, lines + 1, last, header=True)
        if outcome.error is not None and outcome.lines == 0:
            self._abandon(name)
            return outcome
        self._start_seal()
        return outcome

    def append(self, block: bytes, lines: int, last: int) -> Outcome:
        """Append whole lines, the last of which ends at seq `last`."""
        return self._write(block, lines, last, header=False)

    def _abandon(self, name: str) -> None:
        try:
            self._disk.unlink(name, self._dir_fd)
        except OSError:
            pass
        self.suspend()

    def _write(self, block: bytes, lines: int, last: int, *, header: bool) -> Outcome:
        written = 0
        error: OSError | None = None
        while written < len(block):
            try:
                count = self._disk.write(self.fd, block[written:] if written else block)
            except InterruptedError:
                continue
            except OSError as exc:
                error = exc
                break
            if count <= 0:
                error = OSError(5, "write(2) wrote nothing")
                break
            written += count
        if error is None:
            self._took(block, lines - header, last)
            return Outcome(lines - header)
        whole = block[: block.rfind(b"\n", 0, written) + 1]
        complete = count_lines(whole)
        if written > len(whole):
            self._cut(self.size + len(whole))
        if complete <= header:
            return Outcome(0, error)
        self._took(whole, complete - header, -1)  # which seq that is, only the caller can say: see `ends_at`
        return Outcome(complete - header, error)

    def _took(self, block: bytes, records: int, last: int) -> None:
        self.size += len(block)
        self.records += records
        self.last = last
        self.unsynced = True
        self._hash.update(block)
        self._range_records += records
        if last >= 0:
            self._close_range_if_full()

    def mark(self) -> Mark:
        """Where it stands."""
        return Mark(self.size, self.records, self.last)

    def take_back(self, mark: Mark | None) -> OSError | None:
        """Undo the last append (None: the making of the file) after its fdatasync failed. With an error its records are still
        there, and must not be written anywhere else: ask again later."""
        self.forget_ranges()
        try:
            if mark is None:
                self._remove()
                mark = Mark(0, 0, self.last)
            else:
                self._shorten(mark.size)
        except OSError as exc:
            return exc
        self.size, self.records, self.last = mark.size, mark.records, mark.last
        return None

    def _remove(self) -> None:
        for name in (seal_name(self.number), segment_name(self.number)):  # seals without their data look like a loss
            try:
                self._disk.unlink(name, self._dir_fd)
            except FileNotFoundError:
                pass

    def _shorten(self, size: int) -> None:
        fd = self._disk.append(segment_name(self.number), self._dir_fd)  # its own: the other one may be closed by now
        try:
            info = self._disk.fstat(fd)
            if (info.st_dev, info.st_ino) == self._identity and info.st_size > size:
                self._disk.truncate(fd, size)
        finally:
            self._close(fd)

    def ends_at(self, last: int) -> None:
        """After a write that failed in the middle: the seq of the last whole record."""
        self.last = last

    def _cut(self, size: int) -> None:
        try:
            self._disk.truncate(self.fd, size)
        except OSError:
            pass  # the reader calls such a tail unfinished, not damage

    def _close_range_if_full(self) -> None:
        if self.size - self._range_start >= SEAL_RANGE:
            self._close_range()

    def _close_range(self) -> None:
        length = self.size - self._range_start
        if length == 0:
            return
        entry = SealEntry(self._range_start, length, self._range_records, self.last, self._hash.intdigest())
        self._entries.append(encode_entry(entry, self.id))
        self._range_start, self._range_records = self.size, 0
        self._hash = new_hash()

    def _start_seal(self) -> None:
        # right after the first write: on a full disk a seal file made later would never get its first block
        name = seal_name(self.number)
        try:
            self._seal_fd = self._disk.create(name, self._dir_fd)
        except OSError:
            self._seals_lost = True
            return
        self._write_seals(encode_slot0(self.number, self.id))

    @property
    def seals(self) -> bool:
        """Whether it can still be sealed."""
        return not self._seals_lost

    def seal(self, slots: Iterable[bytes] = ()) -> None:
        """Append these slots, and entries for all that was written since the last seal. A failure loses seals, never data."""
        if self._seals_lost:
            self._entries.clear()
            return
        self._entries += slots
        self._close_range()
        if not self._entries:
            return
        self.unsynced = True
        self._write_seals(b"".join(self._entries))
        self._entries.clear()

    def _write_seals(self, slots: bytes) -> None:
        for attempt in (1, 2):
            try:
                count = self._disk.write(self._seal_fd, slots)
            except OSError:
                count = 0
            if count == len(slots):
                return
            whole = count - count % SEAL_SLOT
            try:
                if count != whole:
                    size = self._disk.fstat(self._seal_fd).st_size
                    self._disk.truncate(self._seal_fd, size - count % SEAL_SLOT)
            except OSError:
                break
            slots = slots[whole:]
            if attempt == 2 or not slots:
                break
        self._seals_lost = bool(slots)

    def foreign_change(self, *, by_name: bool) -> str:
        """What somebody else did to the file: "", "unlinked", "truncated", "grown", "replaced" or "gone".

        by_name also compares with what the name leads to now (a lazily unmounted file system still takes writes).
        """
        try:
            info = self._disk.fstat(self.fd)
            if info.st_nlink == 0:
                return "unlinked"
            if info.st_size != self.size:
                return "truncated" if info.st_size < self.size else "grown"
            if by_name:
                named = self._disk.stat(segment_name(self.number), self._dir_fd)
                if (named.st_dev, named.st_ino) != self._identity:
                    return "replaced"
        except OSError:
            return "gone"
        return ""

    def forget_ranges(self) -> None:
        """Drop what was collected for seals: the bytes are not ours alone any more."""
        self._entries.clear()
        self._seals_lost = True

    def suspend(self) -> None:
        """Close the descriptors of a segment that may be written again (`resume`)."""
        self._close(self.fd, self._seal_fd)
        self.fd = self._seal_fd = -1

    def _close(self, *fds: int) -> None:
        for fd in fds:
            if fd >= 0:
                try:
                    self._disk.close(fd)
                except OSError:
                    pass

    def resume(self) -> bool:
        """Reopen after `suspend`; False unless device, inode and size are as they were left."""
        try:
            self.fd = self._disk.append(segment_name(self.number), self._dir_fd)
            info = self._disk.fstat(self.fd)
            if (info.st_dev, info.st_ino) == self._identity and info.st_size == self.size and info.st_nlink == 1:
                if not self._seals_lost:
                    self._seal_fd = self._disk.append(seal_name(self.number), self._dir_fd)
                return True
        except OSError:
            pass
        self.suspend()
        return False

    def sync(self) -> OSError | None:
        """fdatasync of the data, then of the seals, suspended or not. After one failure this file is never synced again."""
        self.unsynced = False
        if self._sync_failed:
            return None
        fds, own = [fd for fd in (self.fd, self._seal_fd) if fd >= 0], []
        try:
            if self._sync_first is not None:
                self._sync_first()
            if not fds:
                own.append(self._disk.append(segment_name(self.number), self._dir_fd))
                if not self._seals_lost:
                    own.append(self._disk.append(seal_name(self.number), self._dir_fd))
            for fd in fds or own:
                self._disk.sync(fd)
        except OSError as exc:
            self._sync_failed = True
            return exc
        finally:
            self._close(*own)
        return None
