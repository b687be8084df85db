"""The artifacts of one agent: made, shared with others, read, and handed out by links that end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from agent3 import bridge
from agent3.calls.artifact_sharing import Sharing
from agent3.calls.artifacts import StoredArtifact
from agent3.errors import NotFound, ValidationError
from agent3.model import Call, Principal
from agent3.protocols.functions.standalone import Standalone

__all__ = ["ArtifactReference", "Artifacts"]

T = TypeVar("T")


class ArtifactReference(Struct, frozen=True):
    """What others are told of an artifact; ``in_message`` is how it stands in the content of a message."""

    artifact_id: str
    name: str | None
    media_type: str
    size: int
    owner: str

    def in_message(self) -> dict[str, Any]:
        """As JSON."""
        return {"artifact": msgspec.to_builtins(self)}


class Artifacts:
    """What one agent made and may read, in its core. Safe from any thread; not from inside the bridge's loop.

    An artifact is its owner's. Others read it when he shares it with them, or by a link that he signed; for everybody
    else it is not there. Two of the same bytes are kept once.
    """

    def __init__(self, core: Standalone, agent: str):
        self._core = core
        self._agent = agent

    def create(self, content: Any, *, name: str | None = None, media_type: str | None = None) -> ArtifactReference:
        """Keep bytes, text or any JSON value; it is there when this returns, for as many days as jobs are kept."""
        body, kind = _bytes(content)
        kept = _run(self._store(body, name, media_type or kind))
        return ArtifactReference(kept, name, media_type or kind, len(body), self._agent)

    def share(self, artifact_id: str, *agents: str, seconds: float | None = None) -> None:
        """Let other agents read it, for some seconds or as long as it is kept; NotFound when it is not one's own."""
        _run(self._share(artifact_id, agents, seconds))

    def unshare(self, artifact_id: str, *agents: str) -> None:
        """Let them read it no more; without names nobody, also not by the links that there are."""
        _run(self._unshare(artifact_id, agents))

    def read(self, artifact_id: str) -> StoredArtifact:
        """One's own, or one that was shared with this agent; NotFound for anything else."""
        return _run(self._read(artifact_id))

    def link(self, artifact_id: str, seconds: float = 3600.0) -> str:
        """A path at the gateway, with a signature, by which anybody reads it until then."""
        return _run(self._link(artifact_id, seconds))

    def open(self, link: str) -> StoredArtifact:
        """What a link leads to; NotFound when it is over or was changed."""
        return _run(self._open(link))

    async def _store(self, body: bytes, name: str | None, media_type: str) -> str:
        house = await self._core.house()
        call = Call(id=house.env.id(), principal=Principal(self._agent, "agent"), agent=self._agent, capability="")
        return await house.artifacts.store(call, body, name, media_type)

    async def _sharing(self) -> Sharing:
        house = await self._core.house()
        return Sharing(house.database, house.env)

    async def _share(self, artifact_id: str, agents: tuple[str, ...], seconds: float | None) -> None:
        if not agents:
            raise ValidationError("Name at least one agent to share it with.")
        await (await self._sharing()).share(self._agent, artifact_id, agents, seconds)

    async def _unshare(self, artifact_id: str, agents: tuple[str, ...]) -> None:
        await (await self._sharing()).unshare(self._agent, artifact_id, agents or None)

    async def _read(self, artifact_id: str) -> StoredArtifact:
        return await (await self._core.house()).artifacts.get(self._agent, artifact_id)

    async def _link(self, artifact_id: str, seconds: float) -> str:
        return await (await self._sharing()).link(self._agent, artifact_id, seconds)

    async def _open(self, link: str) -> StoredArtifact:
        house = await self._core.house()
        address = urlsplit(link)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        artifact = address.path.rpartition("/")[2]
        expires = query.get("expires", "")
        if not (expires.isascii() and expires.isdigit() and len(expires) < 17):
            raise NotFound("That is no link to an artifact. Ask its owner for a new one.")
        owner = await Sharing(house.database, house.env).owner(artifact, int(expires), query.get("signature", ""))
        return await house.artifacts.get(owner, artifact)


def _bytes(content: Any) -> tuple[bytes, str]:
    if isinstance(content, bytes):
        return content, "application/octet-stream"
    if isinstance(content, str):
        return content.encode(), "text/plain; charset=utf-8"
    try:
        return msgspec.json.encode(content), "application/json"
    except (TypeError, ValueError, RecursionError) as wrong:
        raise ValidationError(f"An artifact is bytes, text or JSON: {wrong}") from None


def _run(work: Coroutine[Any, Any, T]) -> T:
    return bridge.run(work)
