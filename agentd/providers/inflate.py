"""Content encodings of a body, decoded as it comes: what is there is given at once, and a cut is noticed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

_GZIP_MAGIC: Final = 0x1F
_PIECE_BYTES: Final = 256 * 1024  # what one step inflates at most, so that a bomb is counted before it is held


class BadEncodingError(Exception):
    """The body is not what its content-encoding says, or in one that was not asked for."""


class BodyDecoder(Protocol):
    """One body. `whole`: it may end here."""

    @property
    def whole(self) -> bool: ...

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class Identity:
    """No encoding."""

    whole = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bytes themselves."""
        yield data


class Inflate:
    """gzip, of any number of members, and zlib."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._begun = False

    @property
    def whole(self) -> bool:
        """Whether the last member was complete; an empty body is."""
        return self._inflate.eof or not self._begun

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes give, in bounded pieces. Raises BadEncodingError."""
        while data:
            if self._inflate.eof:
                if data[0] != _GZIP_MAGIC:
                    return  # padding after the last member
                self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
            self._begun = True
            try:
                piece = self._inflate.decompress(data, _PIECE_BYTES)
            except zlib.error as exc:
                raise BadEncodingError("the compressed answer is damaged") from exc
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if piece:
                yield piece


def body_decoder(encoding: str) -> BodyDecoder:
    """The decoder for a content-encoding header. Raises BadEncodingError for one that was not asked for."""
    name = encoding.strip().lower()
    if name in ("", "identity", "none", "utf-8"):
        return Identity()
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflate()
    raise BadEncodingError(f"the answer has a content-encoding that was not asked for: {name[:40]!r}")
