"""The card of an agent, as ``agent3_invoke`` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent3.model import Agent, Capability, own_routes

__all__ = ["card_of", "shown"]


def card_of(agent: Agent, offered: Sequence[Capability]) -> dict[str, Any]:
    """The card the agent came with, or one made from what the directory knows. Credentials are never in it.

    A caller who may call only some of its capabilities gets a card of those.
    """
    if agent.card and len(offered) == len(agent.capabilities):
        return agent.card
    return {
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "version": agent.version,
        "provider": {"organization": agent.provider} if agent.provider else None,
        "status": agent.status,
        "tags": list(agent.tags),
        "skills": [_skill(one) for one in offered],
    }


def _skill(one: Capability) -> dict[str, Any]:
    return {
        "id": one.name,
        "name": one.title or one.name,
        "description": one.description,
        "tags": list(one.tags),
        "examples": list(one.examples),
        "inputModes": list(one.input_modes),
        "outputModes": list(one.output_modes),
        "inputSchema": one.input_schema,
        "outputSchema": one.output_schema,
        "interfaces": [{"protocol": route.protocol, "address": shown(route.address)} for route in own_routes(one)],
    }


def shown(address: str) -> str:
    """Where it is, without what may hold a credential: no account or query of a URL, of a command only the program."""
    if address.startswith("stdio:"):
        return f"stdio:{_program(address.removeprefix('stdio:'))}"
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    if not parts.netloc:
        return address.partition("?")[0].partition("#")[0]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _program(command: str) -> str:
    try:
        words = msgspec.json.decode(command)
    except msgspec.DecodeError:
        return ""
    path = words.get("command") if isinstance(words, dict) else None
    return path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else ""
