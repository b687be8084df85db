"""Which capabilities stand in for which others: listed for those who may call both, changed by operators.

An operator is the local person, or a client with the scope ``agent3:operate``: a route decides for all callers where
their calls go. It lets nobody call what they may not call anyway, for the step ``authorize`` asks for the stand-in too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent3 import schema
from agent3.directory.stand_ins import Definition
from agent3.errors import Agent3Error, AgentNotFound, CapabilityNotFound, Conflict, NotFound, ValidationError
from agent3.gateway.gateway import Caller, Gateway
from agent3.model import Principal, own_routes
from agent3.security.access import may_operate, require_operator

__all__ = ["ROUTE_SCHEMA", "RouteBook", "parse_map"]

_NAME = {"type": "string", "maxLength": 300}
ROUTE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "capability": {**_NAME, "description": "The capability that gets a stand-in, as AGENT.CAPABILITY"},
        "also": {**_NAME, "description": "The stand-in, as AGENT.CAPABILITY"},
        "map": {
            "type": "object",
            "description": "Inputs with different names: the name in also, and the name in capability",
            "additionalProperties": {"type": "string"},
            "maxProperties": 100,
        },
        "output": {
            "type": "string",
            "description": "The field of capability's result that takes the result of also, if the results differ",
        },
    },
    "required": ["capability", "also"],
    "additionalProperties": False,
}


class RouteBook:
    """What REST and the command line do with routes."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._routes = gateway.directory.routes

    async def list(self, caller: Caller, capability: str | None = None) -> dict[str, Any]:
        """Every route that the caller may take, or those of one capability; and how each stands."""
        self._gateway.count_question(caller.principal)
        wanted = None if capability is None else await self._split(caller.principal, capability)
        found = []
        for definition, why in await self._routes.everything():
            if wanted is not None and (definition.agent, definition.capability) != wanted:
                continue
            if await self._sees(caller.principal, definition):
                found.append(await self._shown(definition, why))
        return {"routes": found, "count": len(found)}

    async def put(self, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
        """Let one capability stand in for another; said again, it is changed and keeps its place.

        Without a map and an output, what a website says of the two is confirmed as it stands.
        """
        self._check_operator(caller.principal)
        schema.compile(ROUTE_SCHEMA).check(dict(body))
        ours = await self._split(caller.principal, body["capability"])
        theirs = await self._split(caller.principal, body["also"])
        definition = Definition(*ours, *theirs, dict(body.get("map") or {}), body.get("output") or None)
        if not definition.input and definition.output is None:
            pending = await self._routes.find_pending((definition.by_agent,))
            definition = next((one for one in pending if one.key == definition.key), definition)
            if definition.pending:
                return await self._shown(await self._routes.confirm(definition), None)
        return await self._shown(await self._routes.define(definition), None)

    async def remove(self, caller: Caller, capability: str, also: str | None = None) -> dict[str, Any]:
        """Remove the stand-ins of a capability, or one of them. NotFound where there is none."""
        self._check_operator(caller.principal)
        known = [definition for definition, _ in await self._routes.everything()]
        # By its words alone, for what it names may be gone.
        chosen = [
            one
            for one in known
            if capability in _spellings(one.agent, one.capability)
            and (also is None or also in _spellings(one.by_agent, one.by_capability))
        ]
        if not chosen:
            raise NotFound(f"{capability[:100]} has no such stand-in. agent3 route lists all.")
        if any(one.origin == "settings" for one in chosen):
            raise Conflict(
                f"The stand-in of {capability[:100]} is defined in agent3.toml, under [[routes]]. Remove it there."
            )
        for one in chosen:
            await self._routes.undefine(one.agent, one.capability, (one.by_agent, one.by_capability))
        return {"removed": len(chosen)}

    async def _split(self, principal: Principal, name: str) -> tuple[str, str]:
        hidden = NotFound(f"Capability {name[:100]!r} does not exist, or you may not call it.")
        try:
            agent, capability = await self._routes.split_name(name)
        except CapabilityNotFound:
            if may_operate(principal):
                raise
            raise hidden from None  # its hint would name what this caller may not see
        if not await self._may_call(principal, agent, capability):
            raise hidden
        return agent, capability

    async def _sees(self, principal: Principal, definition: Definition) -> bool:
        """Whether a caller may know of a route: it may call both, or is an operator who looks for what is wrong."""
        if may_operate(principal):
            return True
        ours = await self._may_call(principal, definition.agent, definition.capability)
        return ours and await self._may_call(principal, definition.by_agent, definition.by_capability)

    async def _may_call(self, principal: Principal, agent_id: str, name: str) -> bool:
        try:
            agent = await self._gateway.directory.get(agent_id)
        except AgentNotFound:
            return False
        capability = agent.capability(name)
        return capability is not None and self._gateway.may_call(principal, agent, capability)

    async def _shown(self, definition: Definition, why: str | None) -> dict[str, Any]:
        state = "unused"
        if why is None:
            try:
                agent = await self._gateway.directory.get(definition.by_agent)
            except Agent3Error:
                pass
            else:
                capability = agent.capability(definition.by_capability)
                keys = [route.key for route in own_routes(capability)] if capability is not None else []
                circuits = {self._gateway.core.parts.breakers.state(key) for key in keys}
                state = "paused" if circuits == {"open"} else "ready"
        return {
            "capability": f"{definition.agent}.{definition.capability}".lstrip("."),
            "also": f"{definition.by_agent}.{definition.by_capability}".lstrip("."),
            "map": dict(definition.input),
            "state": state,
            **({"output": definition.output} if definition.output else {}),
            **({"origin": definition.origin} if definition.origin else {}),
            **({"why": why} if why else {}),
        }

    def _check_operator(self, principal: Principal) -> None:
        self._gateway.count_question(principal)
        require_operator(principal, "change routes")


def parse_map(pairs: tuple[str, ...] | list[str]) -> dict[str, str]:
    """``their=ours`` as a mapping; ValidationError for anything else."""
    found = {}
    for pair in pairs:
        their, equals, our = pair.partition("=")
        if not equals or not their or not our or their in found:
            raise ValidationError(f"--map must be THEIRS=OURS, two names of inputs, each of theirs once; got {pair!r}.")
        found[their] = our
    return found


def _spellings(agent: str, capability: str) -> tuple[str, ...]:
    return f"{agent}.{capability}".lstrip("."), f"{agent}/{capability}"
