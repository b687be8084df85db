"""Checksums of stored values: a bit that flipped on disk is found when it is read.

SQLite keeps no checksums of its pages; PostgreSQL does. The checksum of a JSON value is appended as sixteen whitespace
characters, which JSON allows there, so that a gateway of the previous version on the same database reads the same
value. Rows without JSON have a column for it. It covers only columns that never change, since the previous version
would not update it with them. It detects accidents, not tampering.
"""

from __future__ import annotations

from zlib import crc32

from agent3.errors import Corrupt

__all__ = ["append_checksum", "is_whole", "sum_of", "whole"]

_BLANKS = " \t\n\r"
_PAIRS = [(a + b).encode() for a in _BLANKS for b in _BLANKS]
_BYTES = [high + low for high in _PAIRS for low in _PAIRS]
"""Each byte as four whitespace characters."""
_LENGTH = 16


def append_checksum(data: bytes, *beside: object) -> bytes:
    """The JSON with its checksum appended; it also covers the values that are stored ``beside`` it."""
    return data + _tail(data, beside)


def whole(data: bytes, name: str, *beside: object) -> bytes:
    """The bytes, checked together with the values ``beside``; Corrupt, naming ``name``, if they changed.

    Bytes without a checksum were stored by an earlier version and pass unchecked.
    """
    body, tail = data[:-_LENGTH], data[-_LENGTH:]
    if not tail.isspace() or tail == _tail(body, beside):
        return data
    raise Corrupt(f"{name} is damaged: its bytes do not match their checksum. Restore it from a backup.")


def sum_of(*values: object) -> int:
    """The checksum of the values of a row, for its column ``checksum``."""
    # A whole number may come back from a DOUBLE column as int or as float, so all are taken as float.
    return crc32(repr([float(value) if isinstance(value, int) else value for value in values]).encode())


def is_whole(checksum: int | None, *values: object) -> bool:
    """Whether the values match their checksum; rows of an earlier version have none and pass."""
    return checksum is None or checksum == sum_of(*values)


def _tail(data: bytes, beside: tuple[object, ...]) -> bytes:
    a, b, c, d = crc32(data, sum_of(*beside) if beside else 0).to_bytes(4)
    return _BYTES[a] + _BYTES[b] + _BYTES[c] + _BYTES[d]
