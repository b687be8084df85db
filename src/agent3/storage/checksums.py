"""Checksums of what is stored: a bit that turned on the disk is found when it is read.

SQLite keeps no checksums of its pages; PostgreSQL does by itself. The sum of JSON is written behind it in sixteen
blanks, which JSON allows there: whoever does not know of it, as a gateway of the version before on the same database,
reads the same value. Rows without JSON have a column for it. It is about those of their columns that never change,
since a gateway of the version before would not change it with them. It is no proof against somebody who changes bytes
on purpose.
"""

from __future__ import annotations

from zlib import crc32

from agent3.errors import Corrupt

__all__ = ["is_whole", "sum_of", "summed", "whole"]

_BLANKS = " \t\n\r"
_PAIRS = [(a + b).encode() for a in _BLANKS for b in _BLANKS]
_BYTES = [high + low for high in _PAIRS for low in _PAIRS]
"""Each byte as four blanks."""
_LENGTH = 16


def summed(data: bytes, *beside: object) -> bytes:
    """The same JSON with its checksum, in which the values that are stored ``beside`` it take part."""
    return data + _tail(data, beside)


def whole(data: bytes, name: str, *beside: object) -> bytes:
    """The bytes, if they and the values ``beside`` are what was stored; Corrupt, naming what ``name`` says, if not.

    Bytes without a checksum were stored by an earlier version, and are taken as they are.
    """
    body, tail = data[:-_LENGTH], data[-_LENGTH:]
    if not tail.isspace() or tail == _tail(body, beside):
        return data
    raise Corrupt(f"{name} is damaged: its bytes no longer match their checksum. Restore it from a backup.")


def sum_of(*values: object) -> int:
    """The checksum of the values of a row, for its column ``checksum``."""
    # A whole number comes back from a column of fractions as either.
    return crc32(repr([float(one) if isinstance(one, int) else one for one in values]).encode())


def is_whole(checksum: int | None, *values: object) -> bool:
    """Whether the values are what was stored; those of an earlier version have no checksum and are taken so."""
    return checksum is None or checksum == sum_of(*values)


def _tail(data: bytes, beside: tuple[object, ...]) -> bytes:
    a, b, c, d = crc32(data, sum_of(*beside) if beside else 0).to_bytes(4)
    return _BYTES[a] + _BYTES[b] + _BYTES[c] + _BYTES[d]
