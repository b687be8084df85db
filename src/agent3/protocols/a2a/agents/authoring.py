"""Anything that can be an agent as a ``LocalAgent``: a function, a class, an executor; and the card that it shows.

A plain function, an async one, a generator of updates: each is an agent with one capability. A class is an agent with
one capability for each of its public methods; it is instantiated once, without arguments.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agent3.definitions import AgentCapability, AgentCard, AgentProvider
from agent3.errors import SetupError
from agent3.model import Agent, Capability
from agent3.protocols.a2a.agents.executor import AgentExecutor
from agent3.protocols.a2a.door.projection import META
from agent3.protocols.a2a.wire.types import Message
from agent3.protocols.functions.functions import Context, LocalAgent, SyncContext

__all__ = ["build_agent", "build_card", "can_be_agent", "copy_functions", "message_in", "to_skill"]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def can_be_agent(what: object) -> bool:
    """Whether ``agent_of`` takes it."""
    if isinstance(what, (LocalAgent, AgentExecutor)) or inspect.isclass(what) or inspect.isroutine(what):
        return True
    plain = isinstance(what, (str, bytes, int, float, dict, list, tuple, set)) or what is None
    ours = type(what).__module__.partition(".")[0] == "agent3"
    return not plain and not ours and not inspect.ismodule(what) and any(True for _ in _methods(what))


def build_agent(what: object) -> LocalAgent:
    """The agent of a function, class, object or executor; SetupError for what cannot be one."""
    if isinstance(what, LocalAgent):
        return what
    if isinstance(what, AgentExecutor):
        card = what.card  # in its core the executor's agent may have another id than on its card
        agent = LocalAgent(card.name, agent_id=card.agent_id, description=card.description, version=card.version)
        return copy_functions(agent, what.agent)
    if inspect.isroutine(what):
        if not getattr(what, "__name__", "").isidentifier():
            raise SetupError(f"{what!r} has no name. Define it with def, not lambda.")
        agent = LocalAgent(what.__name__.replace("_", " ").strip(), description=_first_line(what))
        agent.add(what)
        return agent
    kind = what if inspect.isclass(what) else type(what)
    try:
        instance = kind() if inspect.isclass(what) else what
    except TypeError as error:
        raise SetupError(
            f"{kind.__name__} cannot be instantiated without arguments: {error}. Pass an instance."
        ) from None
    name = getattr(instance, "name", None)
    if not (isinstance(name, str) and name):
        name = _CAMEL.sub(" ", kind.__name__).replace("_", " ").strip()
    agent = LocalAgent(name, description=_first_line(kind))
    for method_name, method in _methods(instance):
        agent.add(method, name=method_name)
    if not agent.functions:
        raise SetupError(
            f"{kind.__name__!r} cannot be an agent: it has no public methods. Pass a function, a class with "
            "methods, a LocalAgent or an AgentExecutor."
        )
    return agent


def _methods(what: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of an object, in the order in which its class defines them."""
    for name in dict.fromkeys(name for kind in reversed(type(what).__mro__) for name in vars(kind)):
        method = inspect.getattr_static(type(what), name, None)
        if not name.startswith("_") and isinstance(method, (staticmethod, classmethod)) | inspect.isfunction(method):
            yield name, getattr(what, name)
    if inspect.isfunction(inspect.getattr_static(type(what), "__call__", None)):
        yield "call", what.__call__  # type: ignore[operator]


def _first_line(what: object) -> str:
    return (inspect.getdoc(what) or "").strip().partition("\n")[0]


def copy_functions(agent: LocalAgent, source: LocalAgent) -> LocalAgent:
    """Give an agent the functions of another one, with routes to its own id; the agent."""
    for function in source.functions.values():
        routes = tuple(replace(route, address=agent.id) for route in function.capability.routes)
        agent.put(dataclasses.replace(function, capability=replace(function.capability, routes=routes)))
    return agent


def build_card(agent: Agent, offered: Sequence[Capability], *, known: AgentCard | None = None) -> AgentCard:
    """The card of an agent with the offered capabilities; what ``known`` says of them stays."""
    card = known or AgentCard(
        agent_id=agent.id,
        name=agent.name,
        description=agent.description,
        version=agent.version,
        provider=AgentProvider(organization=agent.provider) if agent.provider else None,
        tags=list(agent.tags),
    )
    skills = [card.capability(capability.name) or to_skill(capability) for capability in offered]
    return card.model_copy(update={"capabilities": skills})


def to_skill(capability: Capability) -> AgentCapability:
    """A capability as a skill of a card."""
    return AgentCapability(
        id=capability.name,
        name=capability.title or capability.name,
        description=capability.description or capability.title or capability.name,
        version=capability.version,
        tags=list(capability.tags),
        examples=[
            example if isinstance(example, str) else msgspec.json.encode(example).decode()
            for example in capability.examples
        ],
        input_schema=capability.input_schema or None,
        output_schema=capability.output_schema,
        inputModes=list(capability.input_modes),
        outputModes=list(capability.output_modes),
        read_only=capability.hints.read_only,
        idempotent=capability.hints.idempotent,
        consequential=capability.hints.consequential,
    )


def message_in(ctx: Context | SyncContext) -> Message | None:
    """The message that a call began with, for what only A2A has: its metadata, and the tasks that it refers to.

    None if the call did not come over A2A. Its parts are those of the context.
    """
    kept = ctx.meta.get(META)
    return msgspec.convert(kept["message"], Message) if kept is not None else None
