"""Every limit of the recorder, once, each with its unit and its reason."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- the wire
MAX_FRAME: Final = MIB  # bytes of a frame's body
BATCH_EVENTS: Final = 128  # a batch is sent when it has so many events …
BATCH_BYTES: Final = 64 * KIB  # … or so many bytes: the size at which write(2) is fastest
MAX_LINE: Final = 256 * KIB  # a stored line stays under this: log shippers cut at 1 MiB, some far below

MAX_SEQ: Final = (
    2**62
)  # no session gets there; what claims more is damage or hostile, and would not fit a frame's header

# --- the producer
BUFFER_BYTES: Final = 16 * MIB  # unacknowledged bytes a process keeps
BUFFER_RESUME: Final = BUFFER_BYTES * 3 // 4  # after "full", accept again below this: no flapping at the edge
HELD_EVENTS: Final = 8192  # events a resumed session keeps before the writer has told it where to go on
SEND_BUFFER: Final = 4 * MIB  # SO_SNDBUF asked for; the default takes about 170 sends of 300 bytes
FLUSH_S: Final = 0.002  # a busy producer hands over at most every 2 ms
MAX_BODY: Final = 4 * MIB  # a record's body is cut to this before it is encoded


class Limits(Struct, frozen=True, kw_only=True):
    """The writer's bounds. Sizes in bytes, times in seconds. The defaults are the documented ones."""

    segment_bytes: int = 8 * MIB  # a segment is closed at the first batch beyond this
    session_bytes: int = 128 * MIB  # a session's recording stops here …
    session_reserve: int = MIB  # … of which this much is kept for run ends, errors and drop records
    session_payloads: int = 65_536  # payload files of a session: below what a reader takes of one seal file
    payload_memory: int = 32 * MIB  # bodies that are being put together, over all sessions
    drop_slack: int = 64 * KIB  # DROP frames may exceed the session's limit by this (R16)
    connections: int = 256
    sessions: int = 4096  # open at once, over all connections
    open_segments: int = 256  # descriptors kept open for writing; beyond it the least recently used are closed
    opens_per_turn: int = 16  # opens in flight in the background; the others wait: what is queued there is bounded
    hello_timeout_s: float = 5.0
    half_frame_timeout_s: float = 30.0
    unread_bytes: int = MIB  # answers a peer has not read; beyond it the connection is closed
    session_idle_s: float = 300.0  # the recording is closed; the next record reopens it with a new segment
    seal_interval_s: float = 1.0
    sync_interval_s: float = 1.0
    durability: str = "interval"  # none | interval | batch
    retry_first_s: float = 0.25
    retry_max_s: float = 30.0
    retry_read_only_s: float = 60.0  # a file system that turned read-only comes back by hand or not at all
    unread_timeout_s: float = 30.0  # a peer that takes none of its answers for so long is closed
    idle_exit_s: float = 0.0  # exit so long after the last producer left; 0: never
    sweep_interval_s: float = 3600.0
