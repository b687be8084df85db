"""Websites that stand in for other agents: a capability with two routes, the second taken while the first is down.

An interface says in its metadata for whom it stands in, and how the names of the one become those of the other::

    stands_in_for:
      agent: flights
      capabilities:
        search: {action: search_flights, input: {from: origin, to: destination}, output: flights}

The other agent's own routes come first, so that it is asked again as soon as it answers (see the breaker). What is
added here stays when its card is renewed, and goes with the website.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agent3.directory import Directory
from agent3.errors import CapabilityNotFound, SetupError
from agent3.model import Agent, Capability, Route

__all__ = ["keep_stand_ins", "stand_in", "withdraw"]

_MARK = "stands_in"


async def stand_in(directory: Directory, website: Agent) -> Agent | None:
    """Add the website's routes to the agent that it stands in for, and give that one; None if it stands in for none.

    AgentNotFound, CapabilityNotFound or SetupError if what it says does not fit what is there.
    """
    wish = website.card.get("interface", {}).get("metadata", {}).get("stands_in_for")
    if wish is None:
        return None
    name, wanted = _read(website, wish)
    agent = await directory.get(name)
    routes = {one: _route(website, one, said) for one, said in (wanted or _same(agent, website)).items()}
    if unknown := sorted(set(routes) - {one.name for one in agent.capabilities}):
        raise CapabilityNotFound(
            f"{website.name!r} stands in for {name}/{unknown[0]}, but {name!r} has no such capability."
        )
    capabilities = tuple(
        _with(_without(one, website.id), [routes[one.name]] if one.name in routes else []) for one in agent.capabilities
    )
    now = replace(agent, capabilities=capabilities)
    await directory.add(now)
    return now


async def withdraw(directory: Directory, website: str) -> None:
    """Take the routes of a website out of every agent that it stands in for."""
    for agent in await directory.everything():
        left = tuple(_without(one, website) for one in agent.capabilities)
        if left != agent.capabilities:
            await directory.add(replace(agent, capabilities=left))


def keep_stand_ins(now: Agent, before: Agent) -> Agent:
    """A new card of an agent, with whoever stands in for it."""
    kept = {one.name: [route for route in one.routes if route.meta.get(_MARK)] for one in before.capabilities}
    if not any(kept.values()):
        return now
    return replace(now, capabilities=tuple(_with(one, kept.get(one.name, [])) for one in now.capabilities))


def _read(website: Agent, wish: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(wish, str):
        return wish, {}
    if isinstance(wish, Mapping) and isinstance(wish.get("agent"), str) and set(wish) <= {"agent", "capabilities"}:
        wanted = wish.get("capabilities") or {}
        if isinstance(wanted, Mapping):
            return wish["agent"], wanted
    raise SetupError(
        f"What {website.name!r} stands in for cannot be read. Write stands_in_for: AGENT, or agent and capabilities, "
        "each with its action."
    )


def _same(agent: Agent, website: Agent) -> dict[str, Any]:
    """Where nothing is said of capabilities: those that bear the name of an action."""
    shared = {one.name for one in agent.capabilities} & {one.name for one in website.capabilities}
    if not shared:
        raise CapabilityNotFound(f"No capability of {agent.id!r} bears the name of an action of {website.name!r}.")
    return {name: {"action": name} for name in sorted(shared)}


def _route(website: Agent, name: str, said: Any) -> Route:
    said = {"action": said} if isinstance(said, str) else said
    if not isinstance(said, Mapping) or set(said) - {"action", "input", "output"}:
        raise SetupError(f"How {website.name!r} stands in for {name!r} cannot be read. Write action, input and output.")
    action = website.capability(str(said.get("action", name)))
    if action is None:
        raise CapabilityNotFound(
            f"{website.name!r} has no action {said.get('action', name)!r} to stand in for {name!r}."
        )
    route = action.routes[0]
    more = {key: said[key] for key in ("input", "output") if said.get(key)}
    return replace(route, meta={**route.meta, "interface": website.id, _MARK: True, **more})


def _with(capability: Capability, routes: list[Route]) -> Capability:
    return replace(capability, routes=(*capability.routes, *routes)) if routes else capability


def _without(capability: Capability, website: str) -> Capability:
    kept = tuple(one for one in capability.routes if not (one.meta.get(_MARK) and one.meta.get("interface") == website))
    return capability if kept == capability.routes else replace(capability, routes=kept)
