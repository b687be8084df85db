"""The content of large parts, which lie in the artifact store, for clients that cannot read the store.

The steps keep a large result beside its job and leave a handle in its place. Our other doors know handles; an A2A
client knows only addresses and bytes, so where there is no address to give, it gets the bytes.
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
from agent3.protocols.a2a.wire.types import Artifact, ArtifactUpdate, Item, Part, StatusUpdate, Task

__all__ = ["Fetch", "fill_parts", "has_stored_parts"]

log = logger("a2a")

Fetch: TypeAlias = Callable[[str, str], Awaitable[StoredArtifact]]
"""Reads a stored part: (owner, handle) → its bytes; NotFound when it has expired."""
I = TypeVar("I", bound=Item)  # noqa: E741 - an item


async def fill_parts(item: I, owner: str, fetch: Fetch) -> I:
    """The item with the content of its stored parts; the same object where it has none."""
    if isinstance(item, Task):
        if not has_stored_parts(item):
            return item
        return replace(item, artifacts=tuple([await _fill(artifact, owner, fetch) for artifact in item.artifacts]))
    if isinstance(item, ArtifactUpdate):
        return replace(item, artifact=await _fill(item.artifact, owner, fetch))
    if isinstance(item, StatusUpdate):
        message = item.status.message
        if message is None or not _has_stored(message.parts):
            return item
        return replace(item, status=replace(item.status, message=await fill_parts(message, owner, fetch)))
    return replace(item, parts=await _fetch_parts(item.parts, owner, fetch))


def has_stored_parts(task: Task) -> bool:
    """Whether a part of its artifacts lies in the store."""
    for artifact in task.artifacts:  # noqa: SIM110 - on the way of every answer, and a generator costs more
        if _has_stored(artifact.parts):
            return True
    return False


def _has_stored(parts: tuple[Part, ...]) -> bool:
    for part in parts:  # noqa: SIM110 - likewise
        if part.url is not None and stored_in(part) is not None:
            return True
    return False


async def _fill(artifact: Artifact, owner: str, fetch: Fetch) -> Artifact:
    return replace(artifact, parts=await _fetch_parts(artifact.parts, owner, fetch))


async def _fetch_parts(given: tuple[Part, ...], owner: str, fetch: Fetch) -> tuple[Part, ...]:
    """Parts with the content of the stored ones: text as text and JSON as data, else as bytes."""
    if not _has_stored(given):
        return given
    parts = []
    for part in given:
        if (handle := stored_in(part)) is None:
            parts.append(part)
            continue
        part = replace(part, url=None)
        try:
            stored = await fetch(owner, handle)
        except NotFound:
            log.warning("artifact %s is no longer in the store, and is shown without its content", handle)
            parts.append(replace(part, text="", metadata={**(part.metadata or {}), "expired": True}))
            continue
        filled = replace(part, raw=stored.body)
        try:
            if stored.media_type == "application/json":
                filled = replace(part, data=msgspec.json.decode(stored.body))
            elif stored.media_type.startswith("text/"):
                filled = replace(part, text=stored.body.decode())
        except (msgspec.DecodeError, UnicodeDecodeError):
            log.debug("a stored part is not what its media type says")
        parts.append(filled)
    return tuple(parts)
