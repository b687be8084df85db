"""Protobuf on the wire, from tables of our own: bytes on one side, the plain values of its JSON on the other.

``Schema`` reads a table with a message on each line and knows how to ``encode`` and ``decode`` them. The values are
those that the codecs of JSON take and give, so that both bindings share everything above. Reading is bounded in depth
and number of values, unknown fields are read over, and a field that comes twice holds what came last.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from agent3.errors import RequestError, TooLarge

__all__ = ["Schema"]

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE: Final = 2**53
"""Beyond this a number of protobuf's JSON is no integer any more."""
_double = struct.Struct("<d")

Bounds: TypeAlias = tuple[int, int]
Enum: TypeAlias = Mapping[str, int]


class Source:
    """Bytes that are read, with what may still be in them."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes, nodes: int):
        self.data = data
        self.left = nodes

    def count(self) -> None:
        """One value more."""
        self.left -= 1
        if self.left < 0:
            raise TooLarge("The message holds too many values; send it in parts")

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
        raise RequestError("The message is no protobuf: a number in it does not end")

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, Any]]:
        """Number, kind and content of each field: an integer, or the bounds of its bytes."""
        while at < end:
            tag, at = self.varint(at, end)
            kind = tag & 7
            if kind == _VARINT:
                value, at = self.varint(at, end)
                yield tag >> 3, kind, value
                continue
            length, at = self.varint(at, end) if kind == _BYTES else (_LENGTHS.get(kind, -1), at)
            if length < 0 or at + length > end:
                raise RequestError("The message is no protobuf: a field in it has no end, or is of an unknown kind")
            yield tag >> 3, kind, (at, at + length)
            at += length

    def text(self, bounds: Bounds) -> str:
        """A text."""
        try:
            return self.data[bounds[0] : bounds[1]].decode()
        except UnicodeDecodeError:
            raise RequestError("The message is no protobuf: a text in it is not UTF-8") from None


_LENGTHS: Final = {_FIXED64: 8, _FIXED32: 4}


def varint(value: int) -> bytes:
    """A number as it is written; negative ones in ten bytes."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


# What a field can hold: how it is read and written


class Kind(Protocol):
    """``wire`` says how it lies in a message; ``read`` gets an integer or bounds."""

    wire: int

    def read(self, source: Source, content: Any, depth: int) -> Any:
        """The plain value."""

    def write(self, value: Any) -> bytes:
        """The bytes, without tag and length."""


class _Text:
    wire = _BYTES

    def read(self, source: Source, content: Any, depth: int) -> Any:
        return source.text(content)

    def write(self, value: Any) -> bytes:
        return str(value).encode()


class _Raw:
    """Bytes, in JSON as base64."""

    wire = _BYTES

    def read(self, source: Source, content: Any, depth: int) -> Any:
        return base64.b64encode(source.data[content[0] : content[1]]).decode()

    def write(self, value: Any) -> bytes:
        return value if isinstance(value, bytes) else binascii.a2b_base64(value)


class _Bool:
    wire = _VARINT

    def read(self, source: Source, content: Any, depth: int) -> Any:
        return bool(content)

    def write(self, value: Any) -> bytes:
        return b"\x01" if value else b"\x00"


class _Int:
    wire = _VARINT

    def read(self, source: Source, content: Any, depth: int) -> Any:
        return content - (1 << 64) if content >> 63 else content

    def write(self, value: Any) -> bytes:
        return varint(int(value))


class _Enum:
    """A word. A number that has none is given as it is, for the codec to refuse."""

    wire = _VARINT

    def __init__(self, words: Enum):
        self._numbers = words
        self._words = {number: word for word, number in words.items()}

    def read(self, source: Source, content: Any, depth: int) -> Any:
        return self._words.get(content, content)

    def write(self, value: Any) -> bytes:
        return varint(self._numbers[value])


class _Timestamp:
    """A time, in JSON as RFC 3339."""

    wire = _BYTES

    def read(self, source: Source, content: Any, depth: int) -> Any:
        found = {number: value for number, _, value in source.fields(*content)}
        seconds, nanos = _integer(found.get(1, 0)), _integer(found.get(2, 0))
        try:
            time = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1_000)
        except OverflowError:
            raise RequestError("The message holds a time that no calendar has") from None
        return time.isoformat(timespec="microseconds").replace("+00:00", "Z")

    def write(self, value: Any) -> bytes:
        passed = datetime.fromisoformat(value).astimezone(UTC) - _EPOCH
        seconds, nanos = passed.days * 86_400 + passed.seconds, passed.microseconds * 1_000
        return b"\x08" + varint(seconds) + (b"\x10" + varint(nanos) if nanos else b"")


def _integer(content: Any) -> int:
    if not isinstance(content, int):
        raise RequestError("The message is no protobuf: a time in it has no seconds")
    return content - (1 << 64) if content >> 63 else content


class _Struct:
    """An object of any JSON."""

    wire = _BYTES

    def read(self, source: Source, content: Any, depth: int) -> Any:
        _check_depth(depth)
        found = {}
        for number, kind, value in source.fields(*content):
            if number == 1 and kind == _BYTES:
                name, inner = _entry(source, value)
                found[name] = VALUE.read(source, inner, depth - 1)
        return found

    def write(self, value: Any) -> bytes:
        entries = (_delimited(1, str(name).encode()) + _delimited(2, VALUE.write(one)) for name, one in value.items())
        return b"".join([_delimited(1, entry) for entry in entries])


class _List:
    """A list of any JSON."""

    wire = _BYTES

    def read(self, source: Source, content: Any, depth: int) -> Any:
        _check_depth(depth)
        fields = source.fields(*content)
        return [VALUE.read(source, value, depth - 1) for number, kind, value in fields if (number, kind) == (1, _BYTES)]

    def write(self, value: Any) -> bytes:
        return b"".join([_delimited(1, VALUE.write(one)) for one in value])


class _Value:
    """Any JSON. One that says nothing is null."""

    wire = _BYTES

    def read(self, source: Source, content: Any, depth: int) -> Any:
        source.count()
        found: Any = None
        for number, kind, value in source.fields(*content):
            if (number, kind) == (2, _FIXED64):
                found = _number(source, value)
            elif (number, kind) == (3, _BYTES):
                found = source.text(value)
            elif (number, kind) == (4, _VARINT):
                found = bool(value)
            elif (number, kind) == (5, _BYTES):
                found = STRUCT.read(source, value, depth)
            elif (number, kind) == (6, _BYTES):
                found = LIST.read(source, value, depth)
        return found

    def write(self, value: Any) -> bytes:
        match value:
            case None:
                return b"\x08\x00"
            case bool():
                return b"\x20\x01" if value else b"\x20\x00"
            case int() | float():
                return b"\x11" + _double.pack(value)
            case str():
                return _delimited(3, value.encode())
            case dict():
                return _delimited(5, STRUCT.write(value))
            case _:
                return _delimited(6, LIST.write(value))


def _number(source: Source, bounds: Bounds) -> int | float:
    value: float = _double.unpack_from(source.data, bounds[0])[0]
    if not math.isfinite(value):
        raise RequestError("The message holds a number that JSON does not have; send finite ones")
    return int(value) if value.is_integer() and abs(value) <= _WHOLE else value


def _entry(source: Source, bounds: Bounds) -> tuple[str, Bounds]:
    """Key and value of an entry of a map; what is left out is empty."""
    name, inner = "", (0, 0)
    for number, kind, value in source.fields(*bounds):
        if (number, kind) == (1, _BYTES):
            name = source.text(value)
        elif (number, kind) == (2, _BYTES):
            inner = value
    return name, inner


def _check_depth(depth: int) -> None:
    if depth <= 0:
        raise TooLarge("The message is nested too deep; send it flatter")


VALUE: Final = _Value()
STRUCT: Final = _Struct()
LIST: Final = _List()
_KINDS: Final[dict[str, Kind]] = {
    "text": _Text(),
    "bytes": _Raw(),
    "bool": _Bool(),
    "int": _Int(),
    "time": _Timestamp(),
    "object": STRUCT,
    "any": VALUE,
}


class _Field(NamedTuple):
    name: str
    kind: Kind
    form: str
    """Empty for one value, ``*`` for a list, ``%`` for a map from texts."""
    tag: bytes

    def read(self, source: Source, content: Any, depth: int, found: dict[str, Any]) -> None:
        """Put what it holds where it belongs."""
        source.count()
        if self.form == "%":
            name, inner = _entry(source, content)
            found.setdefault(self.name, {})[name] = self.kind.read(source, inner, depth)
        elif self.form:
            found.setdefault(self.name, []).append(self.kind.read(source, content, depth))
        else:
            found[self.name] = self.kind.read(source, content, depth)

    def write(self, value: Any) -> bytes:
        """Everything that it holds, with tags and lengths."""
        if self.form == "%":
            key = _KINDS["text"].write
            entries = (_delimited(1, key(name)) + _delimited(2, self.kind.write(one)) for name, one in value.items())
            return b"".join([self.tag + varint(len(entry)) + entry for entry in entries])
        return b"".join([self._one(one) for one in value]) if self.form else self._one(value)

    def _one(self, value: Any) -> bytes:
        content = self.kind.write(value)
        return self.tag + (varint(len(content)) if self.kind.wire == _BYTES else b"") + content


class _Message:
    """A message of a table. Fields that the codecs always want to see are there also when protobuf leaves them out."""

    wire = _BYTES

    def __init__(self, name: str):
        self.name = name
        self._by_name: dict[str, _Field] = {}
        self._by_number: dict[int, _Field] = {}
        self._always: dict[str, Callable[[], Any]] = {}

    def add(self, number: int, field: _Field, always: Callable[[], Any] | None) -> None:
        """One field more."""
        self._by_name[field.name] = self._by_number[number] = field
        if always is not None:
            self._always[field.name] = always

    def read(self, source: Source, content: Any, depth: int) -> Any:
        _check_depth(depth)
        found: dict[str, Any] = {name: empty() for name, empty in self._always.items()}
        for number, kind, value in source.fields(*content):
            field = self._by_number.get(number)
            if field is not None and field.kind.wire == kind:
                field.read(source, value, depth - 1, found)
        return found

    def write(self, value: Any) -> bytes:
        # A null is a value where anything may stand, and left out everywhere else.
        given = ((self._by_name.get(name), one) for name, one in value.items())
        return b"".join(
            [to.write(one) for to, one in given if to is not None and (one is not None or to.kind is VALUE)]
        )


_FIELD: Final = re.compile(r"(\w+)(!?)=(\d+)(?::([*%]?)(\w+))?")


class Schema:
    """Messages by name, from a table.

    A line is the name of a message and its fields, each as ``name=number`` for a text and ``name=number:type`` for all
    else; ``*`` before the type makes it a list and ``%`` a map from texts, and ``!`` after the name gives it also where
    it was left out. Types are text, bytes, bool, int, time, object, any, an enum, or a message.
    """

    def __init__(self, table: str, enums: Mapping[str, Enum]):
        lines = [line.split() for line in table.strip().splitlines()]
        self._messages = {name: _Message(name) for name, *_ in lines}
        words = {name: _Enum(enum) for name, enum in enums.items()}
        kinds: dict[str, Kind] = {**_KINDS, **words, **self._messages}
        firsts = {name: next(iter(enum)) for name, enum in enums.items()}
        for name, *fields in lines:
            for one in fields:
                self._add(self._messages[name], one, kinds, firsts)

    @staticmethod
    def _add(message: _Message, text: str, kinds: Mapping[str, Kind], firsts: Mapping[str, str]) -> None:
        found = _FIELD.fullmatch(text)
        assert found is not None, f"{text!r} in {message.name} is no field"
        name, always, number, form, kind = found.groups()
        held = kinds[kind or "text"]
        tag = varint(int(number) << 3 | (_BYTES if form == "%" else held.wire))
        empty = list if form == "*" else (lambda: firsts.get(kind, ""))
        message.add(int(number), _Field(name, held, form or "", tag), empty if always else None)

    def decode(self, message: str, data: bytes, *, depth: int = 64, nodes: int = 10_000) -> dict[str, Any]:
        """The plain value of a message; RequestError for what is no protobuf, TooLarge for too much of it."""
        read: dict[str, Any] = self._messages[message].read(Source(data, nodes), (0, len(data)), depth)
        return read

    def encode(self, message: str, value: Mapping[str, Any]) -> bytes:
        """The bytes of a message. Members that the table does not know are left out."""
        return self._messages[message].write(value)
