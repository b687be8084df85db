"""What 0.1, 0.2 and 0.3 share on JSON-RPC: tagged parts, roles and states in lower case, push with many schemes.

Loose where those documents are: the tag of a part may be missing, stand under the other generation's name, or name a
class ("TextPart"). Data that is no object is written as ``{"value": …}`` with ``data_part_compat`` in the metadata,
as the official SDK does, because those generations have only objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec import field as msgspec_field

from agent3 import schema
from agent3.protocols.a2a.wire.decoding import fault, wrong
from agent3.protocols.a2a.wire.types import Authentication, Part, Push, Role, State

__all__ = [
    "ROLES",
    "ROLE_WORDS",
    "STATES",
    "STATE_WORDS",
    "OldPart",
    "OldPush",
    "RoleWord",
    "Shape",
    "StateWord",
    "old_part",
    "old_push",
    "read_parts",
    "read_push",
]

RoleWord: TypeAlias = Literal["user", "agent"]
StateWord: TypeAlias = Literal[
    "submitted",
    "working",
    "input-required",
    "completed",
    "canceled",
    "cancelled",
    "failed",
    "rejected",
    "auth-required",
    "unknown",
]

ROLES: Final[dict[RoleWord, Role]] = {"user": Role.USER, "agent": Role.AGENT}
ROLE_WORDS: Final[dict[Role, RoleWord]] = {role: word for word, role in ROLES.items()}
STATE_WORDS: Final[dict[State, StateWord]] = {
    State.UNSPECIFIED: "unknown",
    State.SUBMITTED: "submitted",
    State.WORKING: "working",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELED: "canceled",
    State.INPUT_REQUIRED: "input-required",
    State.REJECTED: "rejected",
    State.AUTH_REQUIRED: "auth-required",
}
STATES: Final[dict[StateWord, State]] = {word: state for state, word in STATE_WORDS.items()} | {
    "cancelled": State.CANCELED  # as British agents write it
}

_WRAPPED: Final = "data_part_compat"
_TAGS: Final = ("text", "file", "data")


class Shape(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """Unknown fields are read over."""


class OldFile(Shape):
    """A file, by value or by address."""

    name: str | None = None
    mime_type: str | None = None
    content: bytes | None = msgspec_field(default=None, name="bytes")
    uri: str | None = None


class OldPart(Shape):
    """A part of 0.1, with ``type``, or of 0.2 and 0.3, with ``kind``."""

    kind: str | None = None
    type: str | None = None
    text: str | None = None
    file: OldFile | None = None
    data: Any | UnsetType = UNSET
    metadata: dict[str, Any] | None = None
    mime_type: str | None = None


def old_part(part: Part, field: Literal["kind", "type"]) -> OldPart:
    """A part as it is written; ``field`` is the name of the tag. Media types of texts and data are not said there."""
    if part.text is not None:
        made = OldPart(text=part.text, metadata=part.metadata)
        tag = "text"
    elif part.data is UNSET:
        file = OldFile(name=part.filename, mime_type=part.media_type, content=part.raw, uri=part.url)
        made = OldPart(file=file, metadata=part.metadata)
        tag = "file"
    else:
        made = _old_data(part)
        tag = "data"
    setattr(made, field, tag)
    return made


def _old_data(part: Part) -> OldPart:
    if isinstance(part.data, dict):
        return OldPart(data=part.data, metadata=part.metadata)
    return OldPart(data={"value": part.data}, metadata={**(part.metadata or {}), _WRAPPED: True})


def read_parts(parts: tuple[OldPart, ...], path: str) -> tuple[Part, ...]:
    """The parts of a message or artifact. ValidationError with every part that says nothing or too much."""
    faults: list[schema.Fault] = []
    for number, part in enumerate(parts):
        faults.extend(_part_faults(part, f"{path}[{number}]"))
    if faults:
        raise wrong(faults)
    return tuple([_part(part) for part in parts])


def _part_faults(part: OldPart, path: str) -> Iterator[schema.Fault]:
    there = [
        name for name, one in zip(_TAGS, (part.text, part.file, _given(part.data)), strict=True) if one is not None
    ]
    tag = _tag(part)
    if tag is not None and tag not in _TAGS:
        yield fault(
            f"{path}.kind", f"must be text, file or data, got {tag[:40]!r}", "text, file or data", repr(tag[:40])
        )
    elif len(there) != 1:
        what = "says nothing" if not there else f"says {' and '.join(there)}"
        yield fault(path, f"{what}; a part has exactly one of text, file and data")
    elif tag not in (None, there[0]):
        yield fault(path, f"is of kind {tag!r} and holds {there[0]!r}; write them alike")
    elif part.file is not None and (part.file.content is None) == (part.file.uri is None):
        yield fault(f"{path}.file", "must have exactly one of bytes and uri")


def _given(data: Any) -> Any:
    return None if data is UNSET else True


def _tag(part: OldPart) -> str | None:
    word = part.kind or part.type
    return word if word is None or word in _TAGS else word.lower().removesuffix("part")


def _part(part: OldPart) -> Part:
    if part.text is not None:
        return Part(text=part.text, metadata=part.metadata, media_type=part.mime_type)
    if (file := part.file) is not None:
        return Part(
            raw=file.content, url=file.uri, filename=file.name, media_type=file.mime_type, metadata=part.metadata
        )
    metadata, data = part.metadata, part.data
    if metadata and metadata.get(_WRAPPED) is True and isinstance(data, dict) and "value" in data:
        data = data["value"]
        metadata = {name: one for name, one in metadata.items() if name != _WRAPPED} or None
    return Part(data=data, metadata=metadata, media_type=part.mime_type)


class OldAuthentication(Shape):
    """Schemes, of which the first is taken."""

    schemes: tuple[str, ...] | UnsetType = UNSET
    credentials: str | None = None


class OldPush(Shape):
    """Where to tell of a task."""

    url: str
    id: str | None = None
    token: str | None = None
    authentication: OldAuthentication | None = None


def read_push(push: OldPush, task: str | None = None) -> Push:
    """A configuration as it is understood."""
    given = push.authentication
    schemes = given.schemes if given is not None and given.schemes is not UNSET else ()
    scheme = schemes[0] if schemes else "Bearer" if given is not None and given.credentials else None
    authentication = Authentication(scheme=scheme, credentials=given.credentials) if given and scheme else None
    return Push(url=push.url, id=push.id or None, task_id=task, token=push.token or None, authentication=authentication)


def old_push(push: Push, *, named: bool = True) -> OldPush:
    """A configuration as it is written; the first generation does not name them."""
    given = push.authentication
    authentication = OldAuthentication(schemes=(given.scheme,), credentials=given.credentials) if given else None
    return OldPush(url=push.url, id=push.id if named else None, token=push.token, authentication=authentication)
