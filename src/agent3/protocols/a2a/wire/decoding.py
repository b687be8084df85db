"""Reading typed values from the wire: fast when they are right, and with every mistake named when they are not.

A ``Reader`` decodes bytes or converts decoded JSON with msgspec. Only when that fails does it look closer: a null for a
missing field and base64 in the URL alphabet are legal ProtoJSON and are accepted; anything else is explained by the
JSON Schema of the same type, with a path for each mistake. The ``check_`` functions hold what types cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
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
    "as_malformed",
    "camel_case",
    "camel_keys",
    "check_count",
    "check_id",
    "check_item",
    "check_message",
    "check_page",
    "check_push",
    "fault",
    "invalid",
    "to_utc",
]

T = TypeVar("T")

_INT32: Final = 2**31 - 1
_OPAQUE: Final = frozenset({"data", "metadata", "params"})
"""Members whose content belongs to the agents: names in there are not ours, and a null is a value."""
_BASE64: Final = frozenset({"raw", "bytes", "fileWithBytes"})
_SNAKE_KEY: Final = re.compile(rb'"[a-z0-9]+_[a-z0-9_]+"\s*:')
"""A name as in the .proto file, which ProtoJSON accepts beside the camel-case one."""


def camel_case(name: str) -> str:
    """``taskId`` for ``task_id``."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others) if others else name


def camel_keys(value: Any, rename: Callable[[str], str] = camel_case) -> Any:
    """The value with camel-case names, inside what the protocol itself names and nowhere deeper."""
    if isinstance(value, list):
        return [camel_keys(entry, rename) for entry in value]
    if not isinstance(value, dict):
        return value
    return {rename(name): entry if name in _OPAQUE else camel_keys(entry, rename) for name, entry in value.items()}


class Reader(Generic[T]):
    """Reads one type. Raises ValidationError with every mistake, or ParseError for what is not JSON.

    With ``snake_case``, members may also have their names of the .proto file.
    """

    def __init__(self, kind: type[T], what: str = "value of params", *, snake_case: bool = False):
        self._kind = kind
        self._what = what
        self._snake_case = snake_case
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, value: Any, *, lax: bool = False) -> T:
        """Read JSON in bytes, or decoded. ``lax`` is for queries, where numbers and booleans are texts."""
        try:
            if isinstance(value, (bytes, Raw)):
                if not (self._snake_case and _SNAKE_KEY.search(value)):
                    return self._decode(value)
                value = camel_keys(msgspec.json.decode(value))
            elif self._snake_case and lax:
                value = camel_keys(value)
            return msgspec.convert(value, self._kind, strict=not lax)
        except msgspec.ValidationError as error:
            return self._read_closely(value, lax, str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._not_json(error) from None

    def _read_closely(self, value: Any, lax: bool, reason: str) -> T:
        """Read a value that is not valid as it stands; ValidationError if it cannot be mended."""
        if isinstance(value, (bytes, Raw)):
            try:  # msgspec stopped at the first wrong type; what follows may not even be JSON
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._not_json(error) from None
        try:
            return msgspec.convert(_mend(value), self._kind, strict=not lax)
        except (msgspec.ValidationError, RecursionError):
            pass
        faults: list[schema.Fault] = []
        if not lax:  # in a query everything is text, which the schema would call wrong
            try:
                faults = self._schema.faults(value, self._what)
            except TooLarge:
                pass  # then the first mistake, which msgspec named, has to do
        if not faults:
            message, _, place = reason.partition(" - at `")
            faults = [fault(place.removeprefix("$").removeprefix(".").removesuffix("`"), message)]
        raise invalid(faults)

    def _not_json(self, error: Exception) -> ParseError:
        if isinstance(error, RecursionError):
            return ParseError(f"The {self._what} is nested too deeply. Flatten it.")
        return ParseError(f"The {self._what} is not valid JSON: {error}")

    @cached_property
    def _schema(self) -> schema.Schema:
        return schema.compile(msgspec.json.schema(self._kind))


def _mend(value: Any) -> Any:
    """The value without nulls, and with base64 in the usual alphabet and padded."""
    if isinstance(value, list):
        return [_mend(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    mended = {}
    for name, entry in value.items():
        if name in _OPAQUE:
            mended[name] = entry
        elif name in _BASE64 and isinstance(entry, str):
            text = entry.replace("-", "+").replace("_", "/")
            mended[name] = text + "=" * (-len(text) % 4)
        elif entry is not None:
            mended[name] = _mend(entry)
    return mended


def fault(path: str, message: str, expected: str = "", got: str = "") -> schema.Fault:
    """A mistake at a path, in words that name it."""
    return schema.Fault(path, f"'{path}' {message}" if path else message, expected, got)


def invalid(faults: Iterable[schema.Fault]) -> ValidationError:
    """The error that lists these mistakes."""
    found = list(faults)
    text = "; ".join(entry.message for entry in found[:10])
    more = f"; and {len(found) - 10} more" if len(found) > 10 else ""
    return ValidationError(text + more, errors=[entry.to_dict() for entry in found])


def as_malformed(error: ValidationError | ParseError) -> MalformedResponse:
    """The same error when it was an agent's answer that could not be read."""
    return MalformedResponse(f"The agent's answer violates the protocol: {error.message}", data=error.data)


def check_message(message: Message, path: str = "message") -> Message:
    """Require an id, and parts of exactly one content each; an empty text for an optional id is no id."""
    if not message.message_id or not message.parts or any(_contents(part) != 1 for part in message.parts):
        faults = list(_part_faults(message.parts, f"{path}.parts"))
        if not message.parts:
            faults.append(fault(f"{path}.parts", "must contain at least one part", "one or more parts", "[]"))
        if not message.message_id:
            problem = "must not be empty; give each message its own id"
            faults.insert(0, fault(f"{path}.messageId", problem, "a text", "''"))
        raise invalid(faults)
    if message.context_id == "" or message.task_id == "":
        return msgspec.structs.replace(message, context_id=message.context_id or None, task_id=message.task_id or None)
    return message


def _contents(part: Part) -> int:
    return (part.text is not None) + (part.raw is not None) + (part.url is not None) + (part.data is not UNSET)


def _part_faults(parts: tuple[Part, ...], path: str) -> Iterator[schema.Fault]:
    for number, part in enumerate(parts):
        if (count := _contents(part)) != 1:
            holds = f"holds {count} contents" if count else "is empty"
            yield fault(f"{path}[{number}]", f"{holds}; a part has exactly one of text, raw, url and data")


def check_count(count: int | None, path: str, least: int = 0, most: int = _INT32) -> None:
    """Require a number, if there is one, to be within bounds."""
    if count is not None and not least <= count <= most:
        raise invalid([fault(path, f"must be from {least} to {most}, got {str(count)[:40]}")])


def check_id(value: str, path: str = "id") -> None:
    """Require an id that is not empty."""
    if not value:
        raise invalid([fault(path, "must not be empty", "a text", "''")])


def check_push(push: Push | None, path: str) -> None:
    """Require a push configuration, if there is one, to have a URL."""
    if push is not None and not push.url:
        raise invalid([fault(f"{path}.url", "must not be empty; give the URL to notify", "a URL", "''")])


def check_item(item: Item) -> Item:
    """Check what an agent answered or streamed; timestamps come back in UTC with milliseconds."""
    if isinstance(item, Message):
        return check_message(item)
    if isinstance(item, StatusUpdate):
        status = _in_utc(item.status)
        return item if status is item.status else msgspec.structs.replace(item, status=status)
    if isinstance(item, Task):
        return _check_task(item)
    _check_artifact(item.artifact, "artifact")
    return item


def check_page(page: TaskPage) -> TaskPage:
    """Check every task of a page."""
    return msgspec.structs.replace(page, tasks=tuple(_check_task(task) for task in page.tasks))


def _check_task(task: Task) -> Task:
    for number, artifact in enumerate(task.artifacts):
        _check_artifact(artifact, f"artifacts[{number}]")
    status = _in_utc(task.status)
    return task if status is task.status else msgspec.structs.replace(task, status=status)


def _check_artifact(artifact: Artifact, path: str) -> None:
    if faults := list(_part_faults(artifact.parts, f"{path}.parts")):
        raise invalid(faults)


def _in_utc(status: Status) -> Status:
    if status.timestamp is None or (time := to_utc(status.timestamp, "status.timestamp")) == status.timestamp:
        return status
    return msgspec.structs.replace(status, timestamp=time)


def to_utc(text: str, path: str) -> str:
    """A time in the one form that is used inside: RFC 3339 in UTC with milliseconds. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        problem = f"must be a time such as 2025-10-28T10:30:00.000Z, got {text[:40]!r}"
        raise invalid([fault(path, problem, "an RFC 3339 time", repr(text[:40]))]) from None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
