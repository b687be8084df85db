"""Protobuf by the tables of ``wire.tables``: bytes on one side, the plain values of its JSON on the other.

The values are those that the JSON codecs take and give, so that all bindings share everything above the bytes. Unknown
fields are ignored, and of a field that comes twice the last one counts. Depth and number of values are bounded *while*
reading. That is why this is not ``google.protobuf``, which parses everything first: 1 MiB of empty parts becomes 67 MB
there, and 8 MiB 533 MB, before anything could be refused.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from agent3.errors import RequestError, TooLarge
from agent3.protocols.a2a.wire.tables import ERROR_DETAILS as ERROR_DETAILS_TABLE
from agent3.protocols.a2a.wire.tables import V03_PROTO, V10_PROTO, Field, parse

__all__ = ["ERROR_DETAILS", "V03", "V10", "Schema"]

# Wire types
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_LENGTHS: Final = {_FIXED64: 8, _FIXED32: 4}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT: Final = 2**53
"""Up to here a double holds every integer."""
_double: Final = struct.Struct("<d")

Bounds: TypeAlias = tuple[int, int]


class Source:
    """Bytes that are being read, and how many values they may still hold."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes, nodes: int):
        self.data = data
        self.left = nodes

    def count(self) -> None:
        """Count one value. TooLarge."""
        self.left -= 1
        if self.left < 0:
            raise TooLarge("The message contains too many values. Send it in smaller pieces.")

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and where it ends."""
        value = shift = 0
        while at < end and shift < 70:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
        raise RequestError("The message is not valid protobuf: a number does not end.")

    def fields(self, bounds: Bounds) -> Iterator[tuple[int, int, Any]]:
        """Number, wire type and content of each field: an integer, or the bounds of its bytes."""
        at, end = bounds
        while at < end:
            tag, at = self.varint(at, end)
            wire = tag & 7
            if wire == _VARINT:
                value, at = self.varint(at, end)
                yield tag >> 3, wire, value
                continue
            length, at = self.varint(at, end) if wire == _BYTES else (_LENGTHS.get(wire, -1), at)
            if length < 0 or at + length > end:
                raise RequestError("The message is not valid protobuf: a field has no end, or an unknown wire type.")
            yield tag >> 3, wire, (at, at + length)
            at += length

    def entry(self, bounds: Bounds) -> tuple[str, Bounds]:
        """Key and value of an entry of a map; what is missing is empty."""
        key, value = "", (0, 0)
        for number, wire, content in self.fields(bounds):
            if (number, wire) == (1, _BYTES):
                key = _read_text(self, content)
            elif (number, wire) == (2, _BYTES):
                value = content
        return key, value


def _varint(value: int) -> bytes:
    """A number as it is written; negative ones take ten bytes."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


# What a field can hold


class _Kind(NamedTuple):
    """How a value is read, from an integer or the bounds of its bytes, and written, without tag and length."""

    wire: int
    read: Callable[[Source, Any, int], Any]
    write: Callable[[Any], bytes]
    empty: Any = None
    """What a field that must be there holds where protobuf, which does not write what is empty, left it out."""


def _read_text(source: Source, bounds: Bounds, depth: int = 0) -> str:
    try:
        return source.data[bounds[0] : bounds[1]].decode()
    except UnicodeDecodeError:
        raise RequestError("The message is not valid protobuf: a text is not UTF-8.") from None


def _to_signed(content: Any) -> int:
    if not isinstance(content, int):
        raise RequestError("The message is not valid protobuf: a time without seconds.")
    return content - (1 << 64) if content >> 63 else content


def _read_time(source: Source, bounds: Bounds, depth: int) -> str:
    found = {number: content for number, _, content in source.fields(bounds)}
    seconds, nanos = _to_signed(found.get(1, 0)), _to_signed(found.get(2, 0))
    try:
        time = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1_000)
    except OverflowError:
        raise RequestError("The message contains a time that is out of range.") from None
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _write_time(value: str) -> bytes:
    passed = datetime.fromisoformat(value).astimezone(UTC) - _EPOCH
    seconds, nanos = passed.days * 86_400 + passed.seconds, passed.microseconds * 1_000
    return b"\x08" + _varint(seconds) + (b"\x10" + _varint(nanos) if nanos else b"")


def _check_depth(depth: int) -> None:
    if depth <= 0:
        raise TooLarge("The message is nested too deeply. Flatten it.")


def _read_object(source: Source, bounds: Bounds, depth: int) -> dict[str, Any]:
    """A google.protobuf.Struct."""
    _check_depth(depth)
    found = {}
    for number, wire, content in source.fields(bounds):
        if (number, wire) == (1, _BYTES):
            name, inner = source.entry(content)
            found[name] = _read_value(source, inner, depth - 1)
    return found


def _write_object(value: Mapping[str, Any]) -> bytes:
    entries = (_field(1, str(name).encode()) + _field(2, _write_value(entry)) for name, entry in value.items())
    return b"".join([_field(1, entry) for entry in entries])


def _read_value(source: Source, bounds: Bounds, depth: int) -> Any:
    """A google.protobuf.Value; an empty one is null."""
    source.count()
    found: Any = None
    for number, wire, content in source.fields(bounds):
        match (number, wire):
            case (2, 1):
                found = _double.unpack_from(source.data, content[0])[0]
                if not math.isfinite(found):
                    raise RequestError("The message contains a number that JSON does not have. Send finite numbers.")
                if found.is_integer() and abs(found) <= _EXACT:
                    found = int(found)
            case (3, 2):
                found = _read_text(source, content)
            case (4, 0):
                found = bool(content)
            case (5, 2):
                found = _read_object(source, content, depth)
            case (6, 2):
                _check_depth(depth)
                fields = source.fields(content)
                found = [_read_value(source, inner, depth - 1) for n, w, inner in fields if (n, w) == (1, _BYTES)]
    return found


def _write_value(value: Any) -> bytes:
    match value:
        case None:
            return b"\x08\x00"
        case bool():
            return b"\x20\x01" if value else b"\x20\x00"
        case int() | float():
            return b"\x11" + _double.pack(value)
        case str():
            return _field(3, value.encode())
        case dict():
            return _field(5, _write_object(value))
        case _:
            return _field(6, b"".join([_field(1, _write_value(entry)) for entry in value]))


_KINDS: Final[dict[str, _Kind]] = {
    "text": _Kind(_BYTES, _read_text, lambda value: str(value).encode(), ""),
    "bytes": _Kind(
        _BYTES,
        lambda source, bounds, depth: base64.b64encode(source.data[bounds[0] : bounds[1]]).decode(),
        lambda value: value if isinstance(value, bytes) else binascii.a2b_base64(value),
    ),
    "bool": _Kind(_VARINT, lambda source, content, depth: bool(content), lambda value: b"\x01" if value else b"\x00"),
    "int": _Kind(_VARINT, lambda source, content, depth: _to_signed(content), lambda value: _varint(int(value))),
    "time": _Kind(_BYTES, _read_time, _write_time),
    "object": _Kind(_BYTES, _read_object, _write_object),
    "any": _Kind(_BYTES, _read_value, _write_value),
}


def _enum(numbers: Mapping[str, int]) -> _Kind:
    words = {number: word for word, number in numbers.items()}
    return _Kind(
        _VARINT,
        lambda source, content, depth: words.get(content, content),  # an unknown number is left for the codec to refuse
        lambda value: _varint(numbers[value]),
        words[0],
    )


# Messages


class _Message:
    """A message of a table."""

    wire = _BYTES
    empty = None

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._reading: dict[int, tuple[str, str, _Kind | _Message]] = {}
        self._writing: dict[str, tuple[bytes, str, _Kind | _Message]] = {}
        self._required: list[tuple[str, Any]] = []

    def add(self, field: Field, kind: _Kind | _Message) -> None:
        self.numbers[field.name] = field.number
        self._reading[field.number] = field.name, field.form, kind
        # The values of maps are texts and messages, which lie in a message as the entries themselves do: as bytes.
        self._writing[field.name] = _varint(field.number << 3 | kind.wire), field.form, kind
        empty: Any = {"*": [], "%": {}}.get(field.form, kind.empty)
        if field.mark == "!" and empty is not None:
            self._required.append((field.name, empty))

    def read(self, source: Source, bounds: Bounds, depth: int) -> dict[str, Any]:
        _check_depth(depth)
        found: dict[str, Any] = {name: copy(empty) for name, empty in self._required}
        for number, wire, content in source.fields(bounds):
            known = self._reading.get(number)
            if known is None or known[2].wire != wire:
                continue
            name, form, kind = known
            source.count()
            if form == "%":
                key, inner = source.entry(content)
                found.setdefault(name, {})[key] = kind.read(source, inner, depth - 1)
            elif form:
                found.setdefault(name, []).append(kind.read(source, content, depth - 1))
            else:
                found[name] = kind.read(source, content, depth - 1)
        return found

    def write(self, value: Mapping[str, Any]) -> bytes:
        out: list[bytes] = []
        for name, given in value.items():
            known = self._writing.get(name)
            # A null is a value where anything may stand, and missing everywhere else.
            if known is None or (given is None and known[2] is not _KINDS["any"]):
                continue
            tag, form, kind = known
            contents: list[bytes]
            if form == "%":
                contents = [_field(1, str(key).encode()) + _field(2, kind.write(entry)) for key, entry in given.items()]
            else:
                contents = [kind.write(entry) for entry in given] if form else [kind.write(given)]
            for content in contents:
                out.extend((tag, _varint(len(content)), content) if kind.wire == _BYTES else (tag, content))
        return b"".join(out)


class Schema:
    """The messages of a table; ``enums`` are the numbers of its words."""

    def __init__(self, table: str, enums: Mapping[str, Mapping[str, int]]):
        parsed = parse(table)
        self.messages = {name: _Message() for name in parsed}
        kinds: dict[str, _Kind | _Message] = {
            **_KINDS,
            **{name: _enum(numbers) for name, numbers in enums.items()},
            **self.messages,
        }
        for name, fields in parsed.items():
            for field in fields:
                self.messages[name].add(field, kinds[field.type])

    def decode(self, message: str, data: bytes, *, depth: int = 64, nodes: int = 10_000) -> dict[str, Any]:
        """The plain value of a message. RequestError for invalid protobuf, TooLarge for too much of it."""
        return self.messages[message].read(Source(data, nodes), (0, len(data)), depth)

    def encode(self, message: str, value: Mapping[str, Any]) -> bytes:
        """The bytes of a message. Members that the table does not know are left out."""
        return self.messages[message].write(value)


_ROLES: Final = {"ROLE_UNSPECIFIED": 0, "ROLE_USER": 1, "ROLE_AGENT": 2}
_STATES: Final = "UNSPECIFIED SUBMITTED WORKING COMPLETED FAILED CANCELED INPUT_REQUIRED REJECTED AUTH_REQUIRED".split()
_STATES_10: Final = {f"TASK_STATE_{word}": number for number, word in enumerate(_STATES)}
_STATES_03: Final = {word.replace("CANCELED", "CANCELLED"): number for word, number in _STATES_10.items()}

V10: Final = Schema(V10_PROTO, {"TaskState": _STATES_10, "Role": _ROLES})
V03: Final = Schema(V03_PROTO, {"TaskState": _STATES_03, "Role": _ROLES})
ERROR_DETAILS: Final = Schema(ERROR_DETAILS_TABLE, {})
