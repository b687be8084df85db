"""The artifacts of one agent: created, shared with others, read, and given out by links that expire."""

from __future__ import annotations

from typing import Any
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


class ArtifactReference(Struct, frozen=True):
    """What others are told of an artifact."""

    artifact_id: str
    name: str | None
    media_type: str
    size: int
    owner: str

    def in_message(self) -> dict[str, Any]:
        """The reference as it stands in the content of a message, in JSON."""
        return {"artifact": msgspec.to_builtins(self)}


class Artifacts:
    """What one agent created and may read, in its core. Safe from any thread; not from inside the bridge's loop.

    An artifact belongs to its owner. Other agents read it if it was shared with them, or by a link that the owner
    signed; for all others it does not exist. Artifacts with the same bytes are stored once.
    """

    def __init__(self, core: Standalone, agent: str):
        self._core = core
        self._agent = agent

    def create(self, content: Any, *, name: str | None = None, media_type: str | None = None) -> ArtifactReference:
        """Keep bytes, text or any JSON value; stored once this returns, for as many days as jobs are kept."""
        if isinstance(content, bytes):
            body, default_type = content, "application/octet-stream"
        elif isinstance(content, str):
            body, default_type = content.encode(), "text/plain; charset=utf-8"
        else:
            try:
                body, default_type = msgspec.json.encode(content), "application/json"
            except (TypeError, ValueError, RecursionError) as error:
                raise ValidationError(f"An artifact must be bytes, text or JSON: {error}") from None
        kind = media_type or default_type

        async def store() -> str:
            call_core = await self._core.call_core()
            call = Call(
                id=call_core.env.id(), principal=Principal(self._agent, "agent"), agent=self._agent, capability=""
            )
            return await call_core.artifacts.store(call, body, name, kind)

        return ArtifactReference(bridge.run(store()), name, kind, len(body), self._agent)

    def share(self, artifact_id: str, *agents: str, seconds: float | None = None) -> None:
        """Let other agents read it, for some seconds or as long as it is kept; NotFound if it is another's."""
        if not agents:
            raise ValidationError("Name at least one agent to share it with.")

        async def share() -> None:
            await (await self._open_sharing()).share(self._agent, artifact_id, agents, seconds)

        bridge.run(share())

    def unshare(self, artifact_id: str, *agents: str) -> None:
        """Let these agents read it no more; without names, no agent and no link may."""

        async def unshare() -> None:
            await (await self._open_sharing()).unshare(self._agent, artifact_id, agents or None)

        bridge.run(unshare())

    def read(self, artifact_id: str) -> StoredArtifact:
        """One of the agent's own, or one that was shared with it; NotFound for any other."""

        async def read() -> StoredArtifact:
            return await (await self._core.call_core()).artifacts.get(self._agent, artifact_id)

        return bridge.run(read())

    def link(self, artifact_id: str, seconds: float = 3600.0) -> str:
        """A signed path at the gateway, by which anyone can read it until it expires."""

        async def link() -> str:
            return await (await self._open_sharing()).link(self._agent, artifact_id, seconds)

        return bridge.run(link())

    def open(self, link: str) -> StoredArtifact:
        """The artifact of a link; NotFound if the link has expired or was changed."""
        address = urlsplit(link)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        artifact_id, expires = address.path.rpartition("/")[2], query.get("expires", "")
        if not (expires.isascii() and expires.isdigit() and len(expires) < 17):
            raise NotFound("This is not a link to an artifact. Ask the owner for a new one.")

        async def read() -> StoredArtifact:
            owner = await (await self._open_sharing()).owner(artifact_id, int(expires), query.get("signature", ""))
            return await (await self._core.call_core()).artifacts.get(owner, artifact_id)

        return bridge.run(read())

    async def _open_sharing(self) -> Sharing:
        call_core = await self._core.call_core()
        return Sharing(call_core.database, call_core.env)
