"""``Dialect``: the JSON of one generation before 1.0, made of its table.

A dialect validates a message of its generation, reads it into the structs of ``wire.types``, and writes them again. On
the wire side everything is plain dicts, so that JSON-RPC, REST and protobuf can share it. What a generation cannot say
in fields (missing ids, states without a word) is the business of its codec.

Reading is loose where the documents are: the tag of a part may be missing, stand under the name that another generation
gave it, or name a class ("TextPart").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

import msgspec
from msgspec import NODEFAULT, UNSET, Struct

from agent3 import schema
from agent3.protocols.a2a.wire.decoding import (
    Reader,
    check_count,
    check_id,
    check_message,
    check_push,
    fault,
    invalid,
    to_utc,
)
from agent3.protocols.a2a.wire.tables import Field, parse
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    Authentication,
    CancelTask,
    CreatePush,
    DeletePush,
    GetCard,
    GetPush,
    GetTask,
    ListPush,
    Message,
    Part,
    Push,
    Role,
    Send,
    Sending,
    State,
    Status,
    StatusUpdate,
    Subscribe,
    Task,
    TaskPage,
)

__all__ = ["ROLE_WORDS", "STATE_WORDS", "Dialect", "read_push", "write_push"]

ROLE_WORDS: Final = {"user": Role.USER, "agent": Role.AGENT}
STATE_WORDS: Final = {
    "submitted": State.SUBMITTED,
    "working": State.WORKING,
    "input-required": State.INPUT_REQUIRED,
    "completed": State.COMPLETED,
    "canceled": State.CANCELED,
    "cancelled": State.CANCELED,  # as some agents spell it
    "failed": State.FAILED,
    "rejected": State.REJECTED,
    "auth-required": State.AUTH_REQUIRED,
    "unknown": State.UNSPECIFIED,
}
"""Roles and states on JSON-RPC before 1.0. Of two words for one state the first is written."""

_MODELS: Final[dict[str, type[Struct]]] = {
    "TaskStatus": Status,
    "TaskStatusUpdateEvent": StatusUpdate,
    "TaskArtifactUpdateEvent": ArtifactUpdate,
    **{
        model.__name__: model
        for model in (
            Message,
            Artifact,
            Task,
            TaskPage,
            GetTask,
            CancelTask,
            Subscribe,
            GetCard,
            GetPush,
            ListPush,
            DeletePush,
        )
    },
}
"""The struct of each message of the tables that has one."""
_SCALARS: Final[dict[str, Any]] = {
    "text": str,
    "time": str,
    "bytes": bytes,
    "bool": bool,
    "int": int,
    "index": int,
    "object": dict[str, Any],
    "any": Any,
}
_CONTENTS: Final = ("text", "file", "data")
_WRAPPED: Final = "data_part_compat"
"""Where the metadata of a part say that its data was wrapped in an object: before 1.0, data had to be one. The name
and the form, ``{"value": …}``, are those of the official SDK."""

# Types are made from tables here, which type checkers cannot follow.
_typed_dict: Any = TypedDict
_list: Any = list
_dict: Any = dict

# Plain tuples, because unpacking a named one costs more than everything else that is done with it.
_Reading: TypeAlias = tuple[str, Any, Callable[[Any, str], Any] | None]
"""Of a member: the attribute it becomes, the value that means nothing, and how it is converted at its path."""
_Writing: TypeAlias = tuple[str, Any, Callable[[Any], Any] | None]
"""Of an attribute: the member it becomes, the value that is left out, and how it is converted."""


class Dialect:
    """The messages of one generation. ``kinds`` are the tags of its messages, by their names.

    ``tag`` is the member by which its parts tell what they are, which the JSON of protobuf does not have. ``raw`` and
    ``url`` are the members of a file's content.
    """

    def __init__(
        self,
        table: str,
        roles: Mapping[str, Role],
        states: Mapping[str, State],
        *,
        kinds: Mapping[str, str] | None = None,
        tag: str | None = None,
        raw: str = "bytes",
        url: str = "uri",
    ):
        self._tag, self._raw, self._url = tag, raw, url
        self._is_proto = tag is None
        self._roles, self._states = dict(roles), dict(states)
        self._role_words = {role: word for word, role in reversed(self._roles.items())}
        self._state_words = {state: word for word, state in reversed(self._states.items())}
        self._kinds = kinds or {}
        self._types: dict[str, Any] = {}
        self._readers: dict[tuple[str, str], Reader[dict[str, Any]]] = {}
        self._fields = parse(table)
        self._readings: dict[str, dict[str, _Reading]] = {}
        self._writings: dict[type[Struct], tuple[str | None, Callable[[Any], tuple[Any, ...]], list[_Writing]]] = {}
        for name, model in _MODELS.items():
            if name in self._fields:
                self._plan(name, model)

    def _plan(self, name: str, model: type[Struct]) -> None:
        """Find out once how a message is read and written."""
        defaults = {field.name: field.default for field in msgspec.structs.fields(model)}
        readings: dict[str, _Reading] = {}
        writings: list[_Writing] = []
        names: list[str] = []
        for field in self._fields[name]:
            if field.attribute not in defaults:
                continue
            default = defaults[field.attribute]
            read, write = self._converters(field)
            # Some writers of protobuf's JSON give an empty text for a field that is missing.
            readings[field.name] = field.attribute, "" if default is None else None, read
            if field.mark != "-":
                # A required field is always written, as is one that is marked so: nothing equals NODEFAULT.
                writings.append((field.name, NODEFAULT if field.mark in ("!", "+") else default, write))
                names.append(field.attribute)
        self._readings[name] = readings
        # attrgetter is one call for all of them, but gives a bare value for a single one.
        attributes = attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, n) for n in names)
        self._writings[model] = self._kinds.get(name), attributes, writings

    def _converters(self, field: Field) -> tuple[Callable[[Any, str], Any] | None, Callable[[Any], Any] | None]:
        """How a value of a field is read, at its path, and written; None where it stays as it is."""
        kind = field.type
        if kind == "Part":
            return self._read_parts, lambda parts: [self._write_part(part) for part in parts]
        if kind == "Role":
            return lambda word, path: self._roles[word], self._role_words.__getitem__
        if kind == "TaskState":
            return lambda word, path: self._states[word], self._state_words.__getitem__
        if kind == "time":
            return to_utc, None
        if kind == "index":
            return lambda number, path: str(number), int
        if kind in _MODELS and not field.form:
            return lambda value, path: self.read(kind, value, path), self.write
        if kind in _MODELS:
            return (
                lambda values, path: tuple([self.read(kind, value, f"{path}[{n}]") for n, value in enumerate(values)]),
                lambda values: [self.write(value) for value in values],
            )
        return (lambda values, path: tuple(values)) if field.form else None, None

    # Validating

    def decode(self, name: str, value: Any, what: str = "value of params") -> dict[str, Any]:
        """A message as a dict of the members that its table names. ValidationError, ParseError."""
        reader = self._readers.get((name, what))
        if reader is None:
            reader = self._readers[name, what] = Reader(self._type_of(name), what)
        return reader(value)

    def _type_of(self, name: str) -> Any:
        """The type that a value of a type of the tables has on the wire."""
        if name in _SCALARS:
            return _SCALARS[name]
        if name == "Role":
            return Literal[tuple(self._roles)]
        if name == "TaskState":
            return Literal[tuple(self._states)]
        if name not in self._types:
            members: dict[str, Any] = {}
            for field in self._fields[name]:
                # What stands under "data" belongs to the agents, also where protobuf has room for objects only.
                kind = Any if field.name == "data" and field.type == "object" else self._type_of(field.type)
                kind = _list[kind] if field.form == "*" else _dict[str, kind] if field.form == "%" else kind
                members[field.name] = kind if field.mark == "!" else NotRequired[kind | None]
            self._types[name] = _typed_dict(name, members)
        return self._types[name]

    # Reading

    def read(self, name: str, given: Mapping[str, Any], path: str = "") -> Any:
        """The struct of a message that was decoded. ValidationError for what its type cannot rule out."""
        if name == "Message" and not path:
            path = "message"
        values: dict[str, Any] = {}
        readings = self._readings[name]
        for member, value in given.items():
            if value is None or (reading := readings.get(member)) is None:
                continue
            attribute, ignored, convert = reading
            if value != ignored:
                values[attribute] = value if convert is None else convert(value, f"{path}.{member}" if path else member)
        if name == "Message":
            values.setdefault("message_id", "")
            values.setdefault("parts", ())
            return check_message(Message(**values), path)
        if name == "Artifact":
            values.setdefault("parts", ())
        return _MODELS[name](**values)

    def read_request(self, request: type[Any], params: Any) -> Any:
        """A request that has a message of its own in the table. Its ids must not be empty, nor its numbers negative."""
        name = request.__name__
        given = self.decode(name, params)
        for field in self._fields[name]:
            if field.mark == "!":
                check_id(given[field.name], field.name)
            elif field.type == "int":
                check_count(given.get(field.name), field.name)
        return self.read(name, given)

    def read_send(self, params: Any, what: str, *, push: str, stream: bool) -> Send:
        """A message to send; ``push`` is what its configuration calls the push configuration."""
        sent = self.decode("SendMessageRequest", params, what)
        message = self.read("Message", sent["message"], "message")
        configuration = Sending()
        if (given := sent.get("configuration")) is not None:
            length, blocking = given.get("historyLength"), given.get("blocking")
            check_count(length, "configuration.historyLength")
            configuration = Sending(
                accepted_output_modes=tuple(given.get("acceptedOutputModes") or ()),
                # Protobuf does not write false and 0, so there a missing "blocking" is false and 0 is no length.
                return_immediately=not blocking if self._is_proto else blocking is False,
                history_length=(length or None) if self._is_proto else length,
                push=None if given.get(push) is None else read_push(given[push]),
            )
            check_push(configuration.push, f"configuration.{push}")
        return Send(message=message, configuration=configuration, metadata=sent.get("metadata"), stream=stream)

    def write_send(self, request: Send, *, push: str) -> dict[str, Any]:
        """The message of a request to send; ``push`` is what its configuration calls the push configuration."""
        wanted = request.configuration
        members = {
            "acceptedOutputModes": wanted.accepted_output_modes or None,
            "blocking": not wanted.return_immediately,
            "historyLength": wanted.history_length,
            push: None if wanted.push is None else write_push(wanted.push),
        }
        # Protobuf does not write false and 0.
        configuration = {n: value for n, value in members.items() if (value if self._is_proto else value is not None)}
        written = {"message": self.write(request.message), "configuration": configuration}
        return written if request.metadata is None else {**written, "metadata": request.metadata}

    def read_create_push(self, params: Any, *members: str) -> CreatePush:
        """A push configuration to add; ``members`` are those that may name its task."""
        given = self.decode("TaskPushNotificationConfig", params)
        task = next((given[member] for member in members if given.get(member)), "")
        check_id(task, members[0])
        push = read_push(given["pushNotificationConfig"], task)
        check_push(push, "pushNotificationConfig")
        return CreatePush(task_id=task, config=push)

    def _read_parts(self, given: Sequence[Mapping[str, Any]], path: str) -> tuple[Part, ...]:
        faults = [found for n, part in enumerate(given) if (found := self._find_fault(part, path, n)) is not None]
        if faults:
            raise invalid(faults)
        return tuple([self._read_part(part) for part in given])

    def _find_fault(self, part: Mapping[str, Any], path: str, number: int) -> schema.Fault | None:
        # A null is a value of data, unless that is wrapped in a message of its own.
        null = "data" in part and not self._is_proto
        held = [name for name in _CONTENTS if part.get(name) is not None or (name == "data" and null)]
        tag = part.get("kind") or part.get("type")
        if tag is not None and tag not in _CONTENTS:
            tag = tag.lower().removesuffix("part")
            if tag not in _CONTENTS:
                problem = f"must be text, file or data, got {tag[:40]!r}"
                return fault(f"{path}[{number}].kind", problem, "text, file or data", repr(tag[:40]))
        if len(held) != 1:
            holds = f"holds {' and '.join(held)}" if held else "is empty"
            return fault(f"{path}[{number}]", f"{holds}; a part has exactly one of text, file and data")
        if tag is not None and tag != held[0]:
            return fault(f"{path}[{number}]", f"is tagged {tag!r} but contains {held[0]!r}")
        if held[0] == "file" and (part["file"].get(self._raw) is None) == (part["file"].get(self._url) is None):
            return fault(f"{path}[{number}].file", f"must have exactly one of {self._raw} and {self._url}")
        return None

    def _read_part(self, part: Mapping[str, Any]) -> Part:
        metadata, media_type = part.get("metadata"), part.get("mimeType")
        if (text := part.get("text")) is not None:
            return Part(text=text, metadata=metadata, media_type=media_type)
        if (file := part.get("file")) is not None:
            return Part(
                raw=file.get(self._raw),
                url=file.get(self._url),
                filename=file.get("name") or None,
                media_type=file.get("mimeType") or None,
                metadata=metadata,
            )
        data = part["data"].get("data", {}) if self._is_proto else part["data"]
        if metadata and metadata.get(_WRAPPED) is True and isinstance(data, dict) and "value" in data:
            data = data["value"]
            metadata = {name: value for name, value in metadata.items() if name != _WRAPPED} or None
        return Part(data=data, metadata=metadata, media_type=media_type)

    # Writing

    def write(self, value: Struct) -> dict[str, Any]:
        """A struct as its message. What has its default value is left out, unless the table says otherwise."""
        kind, attributes, writings = self._writings[type(value)]
        written: dict[str, Any] = {} if kind is None else {"kind": kind}
        for entry, (member, omitted, convert) in zip(attributes(value), writings, strict=True):
            if entry != omitted:
                written[member] = entry if convert is None else convert(entry)
        return written

    def _write_part(self, part: Part) -> dict[str, Any]:
        """A part; before 1.0 there was no place for the media type of a text or of data."""
        metadata = part.metadata
        content: Any
        if part.text is not None:
            kind, content = "text", part.text
        elif part.data is UNSET:
            file = {"name": part.filename, "mimeType": part.media_type, self._raw: part.raw, self._url: part.url}
            kind, content = "file", {name: value for name, value in file.items() if value is not None}
        else:
            kind, content = "data", part.data
            if not isinstance(content, dict):
                content, metadata = {"value": content}, {**(metadata or {}), _WRAPPED: True}
            if self._is_proto:
                content = {"data": content}
        written = {kind: content} if self._tag is None else {self._tag: kind, kind: content}
        if metadata is not None:
            written["metadata"] = metadata
        return written


def read_push(given: Mapping[str, Any], task: str | None = None) -> Push:
    """A push configuration. Of several schemes the first is taken; credentials without one are a bearer's."""
    shown = given.get("authentication") or {}
    credentials = shown.get("credentials")
    scheme = next(iter(shown.get("schemes") or ()), "Bearer" if credentials else None)
    return Push(
        url=given["url"],
        id=given.get("id") or None,
        task_id=task,
        token=given.get("token") or None,
        authentication=Authentication(scheme=scheme, credentials=credentials) if scheme else None,
    )


def write_push(push: Push, *, named: bool = True) -> dict[str, Any]:
    """A push configuration; in 0.1 it has no name of its own."""
    written: dict[str, Any] = {"url": push.url}
    if push.id is not None and named:
        written["id"] = push.id
    if push.token is not None:
        written["token"] = push.token
    if (shown := push.authentication) is not None:
        written["authentication"] = {"schemes": [shown.scheme]}
        if shown.credentials is not None:
            written["authentication"]["credentials"] = shown.credentials
    return written
