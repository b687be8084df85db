"""Adding, removing and renewing agents of a gateway, in a few words."""

from __future__ import annotations

from typing import Any

from agent3.gateway.registration import Added
from agent3.identity.secrets import Vault
from agent3.model import Agent
from agent3.server.build import Server

__all__ = ["add", "add_all", "remove", "renew"]


async def add(server: Server, what: str, name: str | None = None, credential: str | None = None, **more: Any) -> Agent:
    """Add one agent."""
    return await server.registration.add(what, name, credential, **more)


async def add_all(
    server: Server, what: str, name: str | None = None, credential: str | None = None, **more: Any
) -> list[Added]:
    """Add everything that it holds."""
    return await server.registration.add_all(what, name, credential, **more)


async def remove(server: Server, agent: str) -> None:
    """Remove an agent."""
    await server.registration.remove(agent)


async def renew(server: Server, address: str, *, vault: Vault | None = None) -> list[Agent]:
    """Ask the server at an address again what it can do."""
    return await server.renewals.renew(address, vault)
