"""Checksums of stored JSON: every turned bit is found, and whoever does not know of them reads the same."""

from __future__ import annotations

import msgspec
import pytest

from agent3.errors import Corrupt
from agent3.storage.checksums import append_checksum, whole

DATA = msgspec.json.encode({"text": "höchstens", "numbers": [1, 2.5, None]})


def read(stored: bytes, *beside: object) -> object:
    return msgspec.json.decode(whole(stored, "It", *beside))


def test_what_is_whole_is_read_also_by_those_who_know_no_checksums() -> None:
    assert read(append_checksum(DATA)) == msgspec.json.decode(append_checksum(DATA)) == msgspec.json.decode(DATA)


def test_what_an_earlier_version_stored_is_read() -> None:
    assert read(DATA) == msgspec.json.decode(DATA)
    assert read(b"{}") == {}


def test_every_single_turned_bit_is_found_or_changes_nothing() -> None:
    stored = append_checksum(DATA)
    found = 0
    for place in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[place // 8] ^= 1 << (place % 8)
        try:
            assert read(bytes(damaged)) == msgspec.json.decode(DATA)
        except (Corrupt, msgspec.MsgspecError, UnicodeDecodeError):
            found += 1
    assert found >= 8 * len(DATA)


def test_values_beside_it_are_part_of_the_sum() -> None:
    stored = append_checksum(DATA, "job", 3, 1.5)
    assert read(stored, "job", 3.0, 1.5) == msgspec.json.decode(DATA)  # a database may give a whole number as either
    with pytest.raises(Corrupt, match="It is damaged"):
        read(stored, "job", 4, 1.5)
    with pytest.raises(Corrupt):
        read(stored)
