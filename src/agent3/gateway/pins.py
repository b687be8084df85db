"""Pins: an agent is served as it was when somebody approved it, until somebody approves a change.

What an agent says of itself decides what a model believes, what is sent, and where. So a new description of an added
agent does not take the place of the old one by itself: it is kept beside it, shown as a list of changes, and approved
by hand. What matters is compared, by a hash: words, schemas, hints, prices, addresses and schemes; a mere version
number is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from agent3.directory import Directory
from agent3.directory.stand_ins import bare
from agent3.errors import Conflict, SetupError
from agent3.model import Agent, encode

__all__ = ["MODE", "MODES", "PENDING", "SUSPENDED", "Approvals", "Mode", "hash_of", "list_changes", "quarantine"]

Mode = Literal["pin", "trust", "ask"]
"""What a change does. ``pin``: the approved form is served. ``trust``: the change is. ``ask``: no calls are taken."""
MODES: Final = get_args(Mode)
MODE: Final = "changes"
"""The key in an agent's ``meta`` that holds its mode; without it the setting counts."""
PENDING: Final = "pending"
"""The key in an agent's ``meta`` that holds a change which nobody has approved."""
SUSPENDED: Final = "suspended"
"""The key in an agent's ``meta`` under which stands since when and why it is left alone."""
_MOST_BYTES: Final = 8 << 20
_MOST_CHANGES: Final = 200
_MOST_TEXT: Final = 2_000
_FIELDS: Final = ("description", "provider", "tags", "capabilities", "card")
_VOLATILE: Final = frozenset({"version", "protocolVersion", "eras", "signatures"})
"""Of a card: what changes with every release, and says nothing of what is called."""


def definition_of(agent: Agent) -> dict[str, Any]:
    """What somebody approves of an agent, as plain data."""
    plain: dict[str, Any] = msgspec.to_builtins(bare(agent))
    found = {name: plain[name] for name in _FIELDS if plain.get(name)}
    found["card"] = {name: value for name, value in agent.card.items() if name not in _VOLATILE}
    if isinstance(info := found["card"].get("serverInfo"), Mapping):
        found["card"]["serverInfo"] = {name: value for name, value in info.items() if name != "version"}
    for capability in found.get("capabilities", ()):
        capability.pop("version", None)
        if isinstance(meta := capability.get("meta"), dict) and meta.pop("confirms", None) and not meta:
            del capability["meta"]  # said by the protocol, not by the site
        for route in capability.get("routes", ()):
            # Made of the card, and added to agents of earlier versions when they are renewed.
            route.get("meta", {}).pop("origins", None)
    return found


def hash_of(agent: Agent) -> str:
    """The hash of what somebody approves: the same for the same definition, in whatever order it was written."""
    return hashlib.sha256(msgspec.json.encode(definition_of(agent), order="deterministic")).hexdigest()


def quarantine(agent: Agent, now: Agent, at: float, why: str) -> Agent:
    """The agent as it was approved, with a change beside it that waits for somebody."""
    pinned = hash_of(now)
    before = agent.meta.get(PENDING)
    if isinstance(before, Mapping) and before.get("hash") == pinned:
        return agent
    body = encode(bare(now))
    pending: dict[str, Any] = {"since": at, "hash": pinned, "why": why}
    if len(body) <= _MOST_BYTES:
        pending["agent"] = msgspec.json.decode(body)
    return replace(agent, meta={**agent.meta, PENDING: pending})


def list_changes(agent: Agent) -> dict[str, Any] | None:
    """The change of an agent that waits for approval, for people and programs; None where there is none."""
    pending = agent.meta.get(PENDING)
    if not isinstance(pending, Mapping):
        return None
    told = {name: pending.get(name) for name in ("since", "hash", "why")}
    now = _pending_agent(agent)
    if now is None:
        return {**told, "approved": hash_of(agent), "changes": [], "more": 0}
    found = list(_differences("", definition_of(agent), definition_of(now)))
    more = max(0, len(found) - _MOST_CHANGES)
    return {**told, "approved": hash_of(agent), "changes": found[:_MOST_CHANGES], "more": more}


def _pending_agent(agent: Agent) -> Agent | None:
    given = agent.meta[PENDING].get("agent")
    return None if given is None else msgspec.convert(given, Agent)


def _differences(path: str, before: Any, now: Any) -> Iterator[dict[str, Any]]:
    """What differs, by its place. Capabilities, routes and skills are compared by their names, not by their order."""
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*before, *now)):
            place = f"{path}.{name}" if path else str(name)
            yield from _differences(place, before.get(name), now.get(name))
        return
    old, new = _by_name(before), _by_name(now)
    if old is not None and new is not None:
        yield from _differences(path, old, new)
        return
    yield {"path": path, "before": _brief(before), "now": _brief(now)}


def _by_name(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    names = [one.get("name") or one.get("id") if isinstance(one, Mapping) else None for one in value]
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        return None
    return dict(zip((str(name) for name in names), value, strict=True))


def _brief(value: Any) -> Any:
    text = msgspec.json.encode(value).decode()
    return value if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


class Approvals:
    """Approves what waits."""

    def __init__(self, directory: Directory):
        self._directory = directory

    async def changes(self, agent_id: str) -> dict[str, Any] | None:
        """What waits for approval; None where nothing does. AgentNotFound."""
        return list_changes(await self._directory.get(agent_id))

    async def approve(self, agent_id: str, shown: str | None = None) -> dict[str, Any]:
        """Serve the change from now on, and tell what it was. ``shown`` is the hash of the change that was looked at:
        Conflict where another one waits by now, or none does.
        """
        agent = await self._directory.get(agent_id)
        found = list_changes(agent)
        if found is None:
            raise Conflict(f"{agent_id} has no change that waits for approval.")
        if shown is not None and shown != found["hash"]:
            raise Conflict(
                f"{agent_id} has changed again since. Look at the new change first: agent3 show {agent_id} --changes"
            )
        now = _pending_agent(agent)
        if now is None:
            raise SetupError(f"The change of {agent_id} is too large to be stored. To approve it, add the agent again.")
        meta = {name: value for name, value in agent.meta.items() if name not in (PENDING, SUSPENDED)}
        meta |= {name: value for name, value in now.meta.items() if name not in (PENDING, SUSPENDED)}
        status = "active" if agent.status == "suspended" else agent.status
        if not await self._directory.renew(agent, replace(now, status=status, meta=meta)):
            raise Conflict(f"{agent_id} was changed in the meantime. Look at the change again.")
        return found
