"""Reading typed values from strangers: fast when they are right, and every fault named when they are not.

A ``Reader`` decodes bytes or converts decoded JSON with msgspec. Only when that fails does it look closer: nulls
where a field is left out, and base64 in the alphabet of URLs, are what ProtoJSON also allows and are read; anything
else is explained by the JSON Schema of the same type, with a path for each fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw

from agent3 import schema
from agent3.errors import MalformedResponse, ParseError, TooLarge, ValidationError
from agent3.protocols.a2a.wire.types import Artifact, Item, Message, Part, Push, Status, StatusUpdate, Task, TaskPage

__all__ = [
    "Reader",
    "answer",
    "camel",
    "camel_name",
    "check_count",
    "check_id",
    "check_item",
    "check_message",
    "check_page",
    "check_push",
    "fault",
    "utc",
    "wrong",
]

T = TypeVar("T")

_LARGEST: Final = 2**31 - 1
_OPAQUE: Final = frozenset({"data", "metadata", "params"})
"""Members whose content belongs to the agents; a null in there is a value."""


_SNAKE: Final = re.compile(rb'"[a-z0-9]+_[a-z0-9_]+"\s*:')
"""A name as protobuf writes it, which ProtoJSON takes as well as the one of JSON."""


def camel(value: Any) -> Any:
    """The same with the names of JSON, inside what the protocol itself names and nowhere deeper."""
    if isinstance(value, list):
        return [camel(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {camel_name(name): one if name in _OPAQUE else camel(one) for name, one in value.items()}


def camel_name(name: str) -> str:
    """``taskId`` for ``task_id``."""
    if "_" not in name:
        return name
    first, *others = name.split("_")
    return first + "".join(one.title() for one in others)


class Reader(Generic[T]):
    """Reads one type. Raises ValidationError with every fault, or ParseError for what is no JSON.

    With ``spellings``, names may be written as in protobuf too.
    """

    def __init__(self, kind: type[T], what: str = "value of params", *, spellings: bool = False):
        self._kind = kind
        self._what = what
        self._spellings = spellings
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, value: Any, *, lax: bool = False) -> T:
        """``lax`` is for query strings, where numbers and booleans are texts."""
        try:
            if isinstance(value, (bytes, Raw)):
                if not (self._spellings and _SNAKE.search(value)):
                    return self._decode(value)
                value = camel(msgspec.json.decode(value))
            elif self._spellings and lax:
                value = camel(value)
            return msgspec.convert(value, self._kind, strict=not lax)
        except msgspec.ValidationError as reason:
            return self._closer(self._plain(value), lax, str(reason))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
            raise self._unreadable(reason) from None

    def _plain(self, value: Any) -> Any:
        """The value decoded. Behind the first fault of its type there may be one of JSON."""
        if not isinstance(value, (bytes, Raw)):
            return value
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
            raise self._unreadable(reason) from None

    def _unreadable(self, reason: Exception) -> ParseError:
        if isinstance(reason, RecursionError):
            return ParseError(f"The {self._what} is nested too deep; send it flatter")
        return ParseError(f"The {self._what} is not JSON: {reason}")

    def _closer(self, plain: Any, lax: bool, reason: str) -> T:
        try:
            return msgspec.convert(_mended(plain), self._kind, strict=not lax)
        except (msgspec.ValidationError, RecursionError):
            raise self._explained(plain, lax, reason) from None

    def _explained(self, plain: Any, lax: bool, reason: str) -> ValidationError:
        # In a query everything is text, which the schema would call a fault of its own.
        found = [] if lax else self._faults(plain)
        if not found:
            message, _, place = reason.partition(" - at `")
            found = [fault(place.removeprefix("$").removeprefix(".").removesuffix("`"), message)]
        return wrong(found)

    def _faults(self, plain: Any) -> list[schema.Fault]:
        try:
            return self._schema.faults(plain, self._what)
        except TooLarge:  # the first fault, which is known, has to do
            return []

    @cached_property
    def _schema(self) -> schema.Schema:
        return schema.compile(msgspec.json.schema(self._kind))


def _mended(value: Any) -> Any:
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _member(name, one) for name, one in value.items() if one is not None or name in _OPAQUE}


def _member(name: str, value: Any) -> Any:
    if name in ("raw", "bytes", "fileWithBytes") and isinstance(value, str):
        text = value.replace("-", "+").replace("_", "/")
        return text + "=" * (-len(text) % 4)
    return value if name in _OPAQUE else _mended(value)


def fault(path: str, message: str, expected: str = "", got: str = "") -> schema.Fault:
    """A fault at a path, in words that name it."""
    return schema.Fault(path, f"'{path}' {message}" if path else message, expected, got)


def wrong(faults: Iterable[schema.Fault]) -> ValidationError:
    """The error that lists them."""
    found = list(faults)
    text = "; ".join(one.message for one in found[:10])
    more = f"; and {len(found) - 10} more" if len(found) > 10 else ""
    return ValidationError(text + more, errors=[one.to_dict() for one in found])


def answer(reason: ValidationError | ParseError) -> MalformedResponse:
    """The same, when it was an agent that answered so."""
    return MalformedResponse(f"The agent's answer breaks its protocol: {reason.message}", data=reason.data)


# What types cannot say


def check_message(message: Message, path: str = "message") -> Message:
    """A message with an id and parts of one content each; empty texts for ids are no ids."""
    if not message.message_id or not message.parts or any(_members(part) != 1 for part in message.parts):
        raise wrong(_message_faults(message, path))
    if message.context_id == "" or message.task_id == "":
        return msgspec.structs.replace(message, context_id=message.context_id or None, task_id=message.task_id or None)
    return message


def _members(part: Part) -> int:
    return (part.text is not None) + (part.raw is not None) + (part.url is not None) + (part.data is not UNSET)


def _message_faults(message: Message, path: str) -> Iterator[schema.Fault]:
    if not message.message_id:
        yield fault(f"{path}.messageId", "must not be empty; give each message an id of its own", "a text", "''")
    if not message.parts:
        yield fault(f"{path}.parts", "must hold at least one part", "one or more parts", "[]")
    yield from _part_faults(message.parts, f"{path}.parts")


def _part_faults(parts: tuple[Part, ...], path: str) -> Iterator[schema.Fault]:
    for number, part in enumerate(parts):
        if (count := _members(part)) != 1:
            what = "says nothing" if not count else f"says {count} things"
            yield fault(f"{path}[{number}]", f"{what}; a part has exactly one of text, raw, url and data")


def check_count(count: int | None, path: str, least: int = 0, most: int = _LARGEST) -> None:
    """A number of messages or tasks, if there is one."""
    if count is not None and not least <= count <= most:
        raise wrong([fault(path, f"must be from {least} to {most}, got {str(count)[:40]}")])


def check_id(value: str, path: str = "id") -> None:
    """An id that says something."""
    if not value:
        raise wrong([fault(path, "must not be empty", "a text", "''")])


def check_push(push: Push | None, path: str) -> None:
    """A configuration with an address."""
    if push is not None and not push.url:
        raise wrong([fault(f"{path}.url", "must not be empty; say where to tell of the task", "a URL", "''")])


def check_item(item: Item) -> Item:
    """What an agent answered or streamed: parts of one content, and timestamps in UTC with milliseconds."""
    if isinstance(item, Message):
        return check_message(item)
    if isinstance(item, StatusUpdate):
        status = _status(item.status)
        return item if status is item.status else msgspec.structs.replace(item, status=status)
    if isinstance(item, Task):
        return _task(item)
    _artifact(item.artifact, "artifact")
    return item


def check_page(page: TaskPage) -> TaskPage:
    """Every task of an answer."""
    return msgspec.structs.replace(page, tasks=tuple(_task(one) for one in page.tasks))


def _task(task: Task) -> Task:
    for number, artifact in enumerate(task.artifacts):
        _artifact(artifact, f"artifacts[{number}]")
    status = _status(task.status)
    return task if status is task.status else msgspec.structs.replace(task, status=status)


def _artifact(artifact: Artifact, path: str) -> None:
    if faults := list(_part_faults(artifact.parts, f"{path}.parts")):
        raise wrong(faults)


def _status(status: Status) -> Status:
    if status.timestamp is None or (time := utc(status.timestamp, "status.timestamp")) == status.timestamp:
        return status
    return msgspec.structs.replace(status, timestamp=time)


def utc(text: str, path: str) -> str:
    """A time as everything here writes it: RFC 3339 in UTC with milliseconds. Without a zone it is taken for UTC."""
    try:
        time = datetime.fromisoformat(text)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        problem = f"must be a time such as 2025-10-28T10:30:00.000Z, got {text[:40]!r}"
        raise wrong([fault(path, problem, "an RFC 3339 time", repr(text[:40]))]) from None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
