"""Large parts that lie in the store, put back where a client of A2A looks for them.

The steps keep a large result beside its job and leave a handle in its place. Other doors of this house know handles; an
A2A client knows only addresses and bytes, so where there is no address to give, it gets the bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.calls.artifacts import StoredArtifact
from agent3.errors import NotFound
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.projection import stored_in
from agent3.protocols.a2a.wire.types import Artifact, ArtifactUpdate, Item, Part, Status, StatusUpdate, Task

__all__ = ["Fetch", "filled", "lacks"]

log = logger("a2a")

Fetch: TypeAlias = Callable[[str, str], Awaitable[StoredArtifact]]
"""Reads a stored part: (owner, handle) → its bytes; NotFound when it has expired."""
I = TypeVar("I", bound=Item)  # noqa: E741 - an item


async def filled(item: I, owner: str, fetch: Fetch) -> I:
    """The item with the content of its stored parts; itself, where it has none."""
    if isinstance(item, Task):
        if not lacks(item):
            return item
        return replace(item, artifacts=tuple([await _artifact(one, owner, fetch) for one in item.artifacts]))
    if isinstance(item, ArtifactUpdate):
        return replace(item, artifact=await _artifact(item.artifact, owner, fetch))
    if isinstance(item, StatusUpdate):
        return replace(item, status=await _status(item.status, owner, fetch))
    return replace(item, parts=await _parts(item.parts, owner, fetch))


def lacks(task: Task) -> bool:
    """Whether a part of its artifacts lies in the store."""
    for artifact in task.artifacts:  # noqa: SIM110 - every answer comes by, and a generator costs more than the question
        if _lacks(artifact.parts):
            return True
    return False


def _lacks(parts: tuple[Part, ...]) -> bool:
    for part in parts:  # noqa: SIM110 - likewise
        if part.url is not None and stored_in(part) is not None:
            return True
    return False


async def _status(status: Status, owner: str, fetch: Fetch) -> Status:
    if status.message is None or not _lacks(status.message.parts):
        return status
    return replace(status, message=await filled(status.message, owner, fetch))


async def _artifact(artifact: Artifact, owner: str, fetch: Fetch) -> Artifact:
    return replace(artifact, parts=await _parts(artifact.parts, owner, fetch))


async def _parts(parts: tuple[Part, ...], owner: str, fetch: Fetch) -> tuple[Part, ...]:
    return tuple([await _part(part, owner, fetch) for part in parts]) if _lacks(parts) else parts


async def _part(part: Part, owner: str, fetch: Fetch) -> Part:
    handle = stored_in(part)
    if handle is None:
        return part
    try:
        stored = await fetch(owner, handle)
    except NotFound:
        log.warning("artifact %s is no longer in the store, and is shown without its content", handle)
        return replace(part, url=None, text="", metadata={**(part.metadata or {}), "expired": True})
    return _content(replace(part, url=None), stored)


def _content(part: Part, stored: StoredArtifact) -> Part:
    """Text as text and JSON as data, as they were; anything else as bytes."""
    try:
        if stored.media_type == "application/json":
            return replace(part, data=msgspec.json.decode(stored.body))
        if stored.media_type.startswith("text/"):
            return replace(part, text=stored.body.decode())
    except (msgspec.DecodeError, UnicodeDecodeError):
        log.debug("a stored part is not what its media type says")
    return replace(part, raw=stored.body)
