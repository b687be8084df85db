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
    given = website.card.get("interface", {}).get("metadata", {}).get("stands_in_for")
    if given is None:
        return None
    given = {"agent": given} if isinstance(given, str) else given
    chosen = given.get("capabilities") or {} if isinstance(given, Mapping) else None
    if (
        not isinstance(given, Mapping)
        or not isinstance(given.get("agent"), str)
        or set(given) - {"agent", "capabilities"}
        or not isinstance(chosen, Mapping)
    ):
        raise SetupError(
            f"What {website.name!r} stands in for cannot be read. Write stands_in_for: AGENT, or agent and "
            "capabilities, each with its action."
        )
    agent = await directory.get(given["agent"])
    offered = {capability.name for capability in agent.capabilities}
    if not chosen:  # all that bear the name of an action
        chosen = {name: name for name in sorted(offered & {action.name for action in website.capabilities})}
        if not chosen:
            raise CapabilityNotFound(f"No capability of {agent.id!r} bears the name of an action of {website.name!r}.")
    routes = {name: _make_route(website, name, mapping) for name, mapping in chosen.items()}
    if unknown := sorted(set(routes) - offered):
        raise CapabilityNotFound(
            f"{website.name!r} stands in for {agent.id}/{unknown[0]}, but {agent.id!r} has no such capability."
        )
    capabilities = tuple(
        _with(_without(capability, website.id), [routes[capability.name]] if capability.name in routes else [])
        for capability in agent.capabilities
    )
    now = replace(agent, capabilities=capabilities)
    await directory.add(now)
    return now


async def withdraw(directory: Directory, website: str) -> None:
    """Take the routes of a website out of every agent that it stands in for."""
    for agent in await directory.everything():
        left = tuple(_without(capability, website) for capability in agent.capabilities)
        if left != agent.capabilities:
            await directory.add(replace(agent, capabilities=left))


def keep_stand_ins(now: Agent, before: Agent) -> Agent:
    """A new card of an agent, with the routes of those that stand in for it."""
    kept = {
        capability.name: [route for route in capability.routes if route.meta.get(_MARK)]
        for capability in before.capabilities
    }
    if not any(kept.values()):
        return now
    return replace(now, capabilities=tuple(_with(each, kept.get(each.name, [])) for each in now.capabilities))


def _make_route(website: Agent, name: str, mapping: Any) -> Route:
    mapping = {"action": mapping} if isinstance(mapping, str) else mapping
    if not isinstance(mapping, Mapping) or set(mapping) - {"action", "input", "output"}:
        raise SetupError(f"How {website.name!r} stands in for {name!r} cannot be read. Write action, input and output.")
    action = website.capability(str(mapping.get("action", name)))
    if action is None:
        raise CapabilityNotFound(
            f"{website.name!r} has no action {mapping.get('action', name)!r} to stand in for {name!r}."
        )
    route = action.routes[0]
    more = {key: mapping[key] for key in ("input", "output") if mapping.get(key)}
    return replace(route, meta={**route.meta, "interface": website.id, _MARK: True, **more})


def _with(capability: Capability, routes: list[Route]) -> Capability:
    return replace(capability, routes=(*capability.routes, *routes)) if routes else capability


def _without(capability: Capability, website: str) -> Capability:
    kept = tuple(
        route for route in capability.routes if not (route.meta.get(_MARK) and route.meta.get("interface") == website)
    )
    return capability if kept == capability.routes else replace(capability, routes=kept)
