"""Unpacks what others answer compressed, in pieces of a bounded size, so that a bomb is cut while it unfolds.

One call of ``take`` does a fraction of a millisecond of work, whatever the bytes are. How many pieces are taken, and
what else runs between two of them, is up to whoever reads.
"""

from __future__ import annotations

import sys
import zlib
from typing import Protocol

from agent3.errors import MalformedResponse

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["ACCEPTED", "Unpacker", "unpacker_for"]

ACCEPTED = "gzip, deflate, zstd"
"""The Accept-Encoding of our requests."""
_PIECE = 65_536
"""Bytes that are unpacked at once."""
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_WINDOW = 23
"""A frame names how much memory unpacking it takes, as a power of two: 8 MiB, as RFC 8878 recommends, and no more."""
_SPARE_PARTS = 1_000
_SMALL = 64
"""Bytes that a part, a member of gzip or a frame of zstd, brings on average, beyond so many. Beginning one costs as
much as unpacking kilobytes, and an empty one takes eight bytes to send."""


class Unpacker(Protocol):
    """The plain bytes of one body."""

    def feed(self, packed: bytes) -> None:
        """Give it more, once ``take`` has nothing left."""
        ...

    def take(self) -> bytes | None:
        """The next plain bytes, not many, perhaps none yet; None until more is fed. ValueError if they are damaged."""
        ...

    def is_complete(self) -> bool:
        """Whether all that was begun has ended."""
        ...


def unpacker_for(encoding: str | None, place: str) -> Unpacker | None:
    """The unpacker for a Content-Encoding; None for a plain body, MalformedResponse for one nobody asked for."""
    match (encoding or "").strip().lower().removeprefix("x-"):
        case "" | "identity":
            return None
        case "gzip":
            return _Inflater(_GZIP)
        case "deflate":
            return _Inflater(None)
        case "zstd":
            return _Zstd()
        case other:
            raise MalformedResponse(
                f"{place} sent a body in the encoding {other[:40]!r}, which was not asked for ({ACCEPTED})."
            )


class _Parts:
    """Counts the parts of a body: ValueError where they are so many and so small that they only make work."""

    def __init__(self) -> None:
        self._plain = self._parts = 0

    def note(self, plain: bytes, ended: bool) -> None:
        self._plain += len(plain)
        self._parts += ended
        if self._parts > _SPARE_PARTS + self._plain // _SMALL:
            raise ValueError(f"it has {self._parts} parts in {self._plain} bytes")


class _Inflater:
    """gzip, of one member or several, or deflate, whose form the first two bytes tell (None)."""

    def __init__(self, wbits: int | None):
        self._wbits = wbits
        self._inflater = None if wbits is None else zlib.decompressobj(wbits)
        self._waiting = b""
        self._is_begun = False
        self._parts = _Parts()

    def feed(self, packed: bytes) -> None:
        self._waiting += packed
        self._is_begun = True

    def take(self) -> bytes | None:
        if self._inflater is None:
            if len(self._waiting) < 2:
                return None
            # What is called deflate is a zlib stream (RFC 9110, 8.4.1.2); some send the bare one.
            head = self._waiting
            bare = (head[0] << 8 | head[1]) % 31 or head[0] & 15 != 8
            self._inflater = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS)
        elif self._inflater.eof:
            if self._wbits == _GZIP and self._waiting == _GZIP_MAGIC[:1]:
                return None  # perhaps the next member, cut in its first two bytes
            if self._wbits != _GZIP or not self._waiting.startswith(_GZIP_MAGIC):
                self._waiting = b""  # padding
                return None
            self._inflater = zlib.decompressobj(_GZIP)
        try:
            plain = self._inflater.decompress(self._waiting, _PIECE)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        ended = self._inflater.eof
        self._parts.note(plain, ended)
        self._waiting = self._inflater.unused_data if ended else self._inflater.unconsumed_tail
        return plain if plain or self._waiting else None

    def is_complete(self) -> bool:
        """An empty body has nothing to unpack, as in answers to HEAD and with status 204."""
        return not self._is_begun or (self._inflater is not None and self._inflater.eof)


class _Zstd:
    """zstd, of one frame or several."""

    def __init__(self) -> None:
        self._waiting = b""
        self._has_ended = False
        self._is_begun = False
        self._parts = _Parts()
        self._unpacker = self._new()

    def _new(self) -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW})

    def feed(self, packed: bytes) -> None:
        self._waiting += packed
        self._is_begun = True

    def take(self) -> bytes | None:
        if self._has_ended:
            if not self._waiting:
                return None
            self._unpacker, self._has_ended = self._new(), False
        elif not self._waiting and self._unpacker.needs_input:
            return None
        given, self._waiting = self._waiting, b""
        try:
            plain = self._unpacker.decompress(given, _PIECE)
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from None
        self._has_ended = self._unpacker.eof
        self._parts.note(plain, self._has_ended)
        if self._has_ended:
            self._waiting = self._unpacker.unused_data
        return plain

    def is_complete(self) -> bool:
        return not self._waiting and (self._has_ended or not self._is_begun)
