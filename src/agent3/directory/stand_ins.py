"""Stand-ins: a capability that answers for another one while that is down, whatever the protocols of the two are.

Each is one definition, by an operator (``agent3 route``, ``PUT /v1/routes``), by ``[[routes]]`` of the settings, or by
the interface of a website. The directory makes routes of them when it gives an agent out: its own routes come first, so
that it is asked again as soon as it answers (see the breaker), and then those of its stand-ins in their order. A
stand-in of a stand-in is not asked.

A website says for whom it stands in, in the metadata of its interface::

    stands_in_for:
      agent: flights
      capabilities:
        search: {action: search_flights, input: {from: origin, to: destination}, output: flights}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agent3.errors import AgentNotFound, CapabilityNotFound, SetupError, ValidationError
from agent3.model import Agent, Capability, Route, StandIn, own_routes
from agent3.schema import nearest

__all__ = [
    "MOST_FOR_ONE",
    "Definition",
    "attach",
    "bare",
    "find_misfit",
    "of_website",
    "replaced_agent",
    "split_name",
    "translate",
]

MOST_FOR_ONE = 10
"""Stand-ins of one capability."""
_KINDS = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


class Definition(Struct, frozen=True, omit_defaults=True):
    """That one capability stands in for another. ``input`` maps names of the stand-in to names of the other.

    ``output`` is the field of the other's result that the stand-in's result becomes. ``origin`` is who said so: empty
    for an operator, ``settings``, or the id of a website. What a website says is ``pending`` until a person confirms
    it: whoever wrote it would otherwise get the calls of somebody else's agent.
    """

    agent: str
    capability: str
    by_agent: str
    by_capability: str
    input: dict[str, str] = {}
    output: str | None = None
    origin: str = ""
    pending: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.agent, self.capability, self.by_agent, self.by_capability


def split_name(name: str, agents: Mapping[str, Agent]) -> tuple[str, str]:
    """``AGENT.CAPABILITY``, or with a slash, in two. Ids and names may hold dots, so what there is decides.

    CapabilityNotFound where there is no such, ValidationError where two can be meant.
    """
    places = [index for index, letter in enumerate(name) if letter in "./"]
    pairs = [(name[:index], name[index + 1 :]) for index in places]
    found = [pair for pair in pairs if pair[0] in agents and agents[pair[0]].capability(pair[1]) is not None]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValidationError(f"{name!r} is ambiguous. Give the agent another --name.")
    known = next(((agent, rest) for agent, rest in pairs if agent in agents), None)
    if known is not None:
        near = nearest(known[1], [one.name for one in agents[known[0]].capabilities])
        hint = f" Did you mean {known[0]}.{near}?" if near else ""
        raise CapabilityNotFound(f"Agent {known[0]!r} has no capability {known[1][:100]!r}.{hint}")
    if not pairs:
        raise ValidationError(
            f"{name[:100]!r} is not the name of a capability. Write AGENT.CAPABILITY, such as weather.forecast."
        )
    near = nearest(pairs[0][0], agents)  # which looks at some of them
    hint = f" Did you mean {near!r}?" if near else ""
    raise CapabilityNotFound(f"Agent {name[:100]!r} does not exist.{hint}")


# From definitions to routes


def attach(agent: Agent, definitions: Iterable[Definition], agents: Mapping[str, Agent]) -> Agent:
    """The agent with the routes of those that stand in for its capabilities."""
    routes: dict[str, list[Route]] = {}
    for definition in definitions:
        other = agents.get(definition.by_agent)
        capability = None if other is None else other.capability(definition.by_capability)
        if capability is None:
            continue
        hints = capability.hints
        mark = StandIn(
            definition.by_agent,
            definition.by_capability,
            definition.input,
            definition.output,
            hints.idempotent or hints.read_only or hints.replay,
        )
        routes.setdefault(definition.capability, []).extend(
            replace(route, stand_in=mark) for route in own_routes(capability)
        )
    capabilities = tuple(
        replace(one, routes=(*one.routes, *routes[one.name])) if routes.get(one.name) else one
        for one in agent.capabilities
    )
    return replace(agent, capabilities=capabilities)


def bare(agent: Agent) -> Agent:
    """The agent as it is stored: by its own routes alone."""
    if all(route.stand_in is None for one in agent.capabilities for route in one.routes):
        return agent
    capabilities = tuple(replace(one, routes=own_routes(one)) for one in agent.capabilities)
    return replace(agent, capabilities=capabilities)


def translate(given: Mapping[str, Any], names: Mapping[str, str], theirs: Capability) -> dict[str, Any]:
    """Input in the names of a stand-in; ValidationError where something of it would be lost."""
    mapped = set(names.values())
    made = {their: given[our] for their, our in names.items() if given.get(our) is not None}
    known = _properties(theirs.input_schema)
    open_ended = known is None or bool(theirs.input_schema.get("additionalProperties"))
    for name, value in given.items():
        if name in mapped or value is None:
            continue
        if name in names or not (open_ended or (known is not None and name in known)):
            raise ValidationError(f"{theirs.name} has no input for {name!r}.")
        made[name] = value
    return made


# Whether two capabilities fit


def find_misfit(ours: Capability, theirs: Capability, names: Mapping[str, str], output: str | None) -> str | None:
    """Why one capability cannot stand in for another; None where it can.

    Every input that the stand-in needs must come from one that the other always gets, nothing that the other needs may
    be lost, and kinds of values must agree. What schemas cannot tell beforehand is checked with every call.
    """
    given, taken = _properties(ours.input_schema), _properties(theirs.input_schema)
    needed = set(ours.input_schema.get("required") or ())
    for their, our in names.items():
        if taken is not None and their not in taken:
            return f"{theirs.name} has no input {their!r}.{_hint(their, taken)}"
        if given is not None and our not in given:
            return f"{ours.name} has no input {our!r}.{_hint(our, given)}"
    if given is None or taken is None:
        return None
    sources = {their: names.get(their, their) for their in taken if their in names or their not in names.values()}
    for their in theirs.input_schema.get("required") or ():
        if _has_default(taken.get(their)):
            continue
        our = sources.get(their, "")
        if our not in given:
            return f"{theirs.name} needs {their!r}, which {ours.name} does not have. Map it: --map {their}=NAME"
        if our not in needed and not _has_default(given[our]):
            return f"{theirs.name} needs {their!r}, but {our!r} of {ours.name} is optional."
    reached = set(sources.values())
    if lost := sorted(name for name in needed if name not in reached):
        return f"{ours.name} needs {lost[0]!r}, and {theirs.name} has no input for it. Map it: --map NAME={lost[0]}"
    for their, our in sources.items():
        if our in given and (why := _kinds_differ(given[our], taken[their])):
            return f"{our!r} of {ours.name} and {their!r} of {theirs.name} are incompatible: {why}."
    wanted = ours.output_schema or {}
    fields = None if theirs.output_schema is None else _properties(theirs.output_schema)
    fields = fields if output is None else {output: {}}
    missing = sorted(set(wanted.get("required") or ()) - set(fields or ()))
    if wanted.get("type") == "object" and fields is not None and missing:
        return (
            f"{ours.name} returns {missing[0]!r}, but {theirs.name} does not. If its whole result belongs "
            f"there: --output {missing[0]}"
        )
    return None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The named inputs of a schema; None where it does not name them."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else None


def _has_default(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "default" in schema


def _kinds_differ(ours: Any, theirs: Any) -> str | None:
    kinds, taken = _kinds(ours), _kinds(theirs)
    if kinds and taken and not kinds <= taken:
        return f"{' or '.join(sorted(kinds - taken))} is not {' or '.join(sorted(taken))}"
    choices, known = (each.get("enum") if isinstance(each, Mapping) else None for each in (ours, theirs))
    if isinstance(choices, list) and isinstance(known, list):
        unknown = [choice for choice in choices if choice not in known]
        if unknown:
            return f"{unknown[0]!r} is not one of its choices"
    return None


def _kinds(schema: Any) -> set[str]:
    given = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = {kind for kind in (given if isinstance(given, list) else [given]) if kind in _KINDS}
    return kinds | ({"integer"} if "number" in kinds else set())


def _hint(name: str, known: Iterable[str]) -> str:
    near = nearest(name, list(known))
    return f" Did you mean {near!r}?" if near else ""


# Websites


def replaced_agent(website: Agent) -> Any:
    """Whom the interface of a website says it stands in for, as it was written; None where it names nobody."""
    interface = website.card.get("interface")
    return interface.get("metadata", {}).get("stands_in_for") if isinstance(interface, Mapping) else None


def of_website(website: Agent, agents: Mapping[str, Agent]) -> list[Definition]:
    """What the interface of a website says of whom it stands in for; nothing for any other agent.

    CapabilityNotFound or SetupError where that does not fit what is there.
    """
    given = replaced_agent(website)
    if given is None:
        return []
    given = {"agent": given} if isinstance(given, str) else given
    chosen = given.get("capabilities") or {} if isinstance(given, Mapping) else None
    if (
        not isinstance(given, Mapping)
        or not isinstance(given.get("agent"), str)
        or set(given) - {"agent", "capabilities"}
        or not isinstance(chosen, Mapping)
    ):
        raise SetupError(
            f"stands_in_for of {website.name!r} cannot be read. Write stands_in_for: AGENT, or agent and "
            "capabilities, each with its action."
        )
    agent = agents.get(given["agent"])
    if agent is None:
        raise AgentNotFound(f"{website.name!r} stands in for {given['agent']!r}, but that agent does not exist.")
    offered = {capability.name for capability in agent.capabilities}
    if not chosen:  # all that bear the name of an action
        chosen = {name: name for name in sorted(offered & {action.name for action in website.capabilities})}
        if not chosen:
            raise CapabilityNotFound(f"No capability of {agent.id!r} has the name of an action of {website.name!r}.")
    if unknown := sorted(set(chosen) - offered):
        raise CapabilityNotFound(
            f"{website.name!r} stands in for {agent.id}/{unknown[0]}, but {agent.id!r} has no such capability."
        )
    return [_of_action(website, agent, name, mapping) for name, mapping in chosen.items()]


def _of_action(website: Agent, agent: Agent, name: str, mapping: Any) -> Definition:
    mapping = {"action": mapping} if isinstance(mapping, str) else mapping
    if not isinstance(mapping, Mapping) or set(mapping) - {"action", "input", "output"}:
        raise SetupError(
            f"stands_in_for of {website.name!r} for {name!r} cannot be read. Write action, input and output."
        )
    action = str(mapping.get("action", name))
    if website.capability(action) is None:
        raise CapabilityNotFound(f"{website.name!r} has no action {action!r} to stand in for {name!r}.")
    # Interfaces write it from the names of the other to their own.
    names = {str(their): str(our) for our, their in (mapping.get("input") or {}).items()}
    return Definition(agent.id, name, website.id, action, names, mapping.get("output") or None, website.id)
