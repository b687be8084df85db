"""Whatever can be an agent, as a ``LocalAgent``: a function, a class, an executor; and the card that it shows.

A plain function, an async one, a generator of updates: each is an agent with one capability. A class is one with a
capability for each of its public methods; it is made once, without arguments.
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

__all__ = ["agent_of", "can_be_agent", "card_of", "furnished", "message_in", "skill_of"]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def can_be_agent(what: object) -> bool:
    """Whether ``agent_of`` takes it."""
    if isinstance(what, (LocalAgent, AgentExecutor)) or inspect.isclass(what) or inspect.isroutine(what):
        return True
    plain = isinstance(what, (str, bytes, int, float, dict, list, tuple, set)) or what is None
    ours = type(what).__module__.partition(".")[0] == "agent3"
    return not plain and not ours and not inspect.ismodule(what) and any(True for _ in _methods(what))


def agent_of(what: object) -> LocalAgent:
    """The agent that something is; SetupError for what cannot be one."""
    if isinstance(what, LocalAgent):
        return what
    if isinstance(what, AgentExecutor):
        return _of_executor(what)
    if inspect.isclass(what):
        return _of_instance(_made(what))
    if inspect.isroutine(what):
        return _of_function(what)
    return _of_instance(what)


def card_of(agent: Agent, offered: Sequence[Capability], *, known: AgentCard | None = None) -> AgentCard:
    """The card of an agent with the capabilities that are offered; what ``known`` says of them stands."""
    card = known or AgentCard(
        agent_id=agent.id,
        name=agent.name,
        description=agent.description,
        version=agent.version,
        provider=AgentProvider(organization=agent.provider) if agent.provider else None,
        tags=list(agent.tags),
    )
    skills = [card.capability(one.name) or skill_of(one) for one in offered]
    return card.model_copy(update={"capabilities": skills})


def skill_of(one: Capability) -> AgentCapability:
    """A capability as a card tells of it."""
    return AgentCapability(
        id=one.name,
        name=one.title or one.name,
        description=one.description or one.title or one.name,
        version=one.version,
        tags=list(one.tags),
        examples=[_text(given) for given in one.examples],
        input_schema=one.input_schema or None,
        output_schema=one.output_schema,
        inputModes=list(one.input_modes),
        outputModes=list(one.output_modes),
        read_only=one.hints.read_only,
        idempotent=one.hints.idempotent,
        consequential=one.hints.consequential,
    )


def message_in(ctx: Context | SyncContext) -> Message | None:
    """The message that a call began with, for what only A2A has: its metadata, and the tasks that it refers to.

    None where the call came by another door. Its parts are those of the context.
    """
    kept = ctx.meta.get(META)
    return msgspec.convert(kept["message"], Message) if kept is not None else None


def _text(example: Any) -> str:
    return example if isinstance(example, str) else msgspec.json.encode(example).decode()


def _of_executor(executor: AgentExecutor) -> LocalAgent:
    """The executor's functions under its own id: in the core of its process it goes by another."""
    card = executor.card
    agent = LocalAgent(card.name, agent_id=card.agent_id, description=card.description, version=card.version)
    return furnished(agent, executor.agent)


def furnished(agent: LocalAgent, other: LocalAgent) -> LocalAgent:
    """The agent with what another one can do."""
    for name, function in other.functions.items():
        routes = tuple(replace(one, address=agent.id) for one in function.capability.routes)
        agent.put(dataclasses.replace(function, capability=replace(function.capability, routes=routes)))
    return agent


def _of_function(fn: Callable[..., Any]) -> LocalAgent:
    if not getattr(fn, "__name__", "").isidentifier():
        raise SetupError(f"{fn!r} has no name of its own. Give it one with def, not lambda.")
    name = fn.__name__.replace("_", " ").strip()
    agent = LocalAgent(name, description=_first_line(fn))
    agent.add(fn)
    return agent


def _of_instance(what: object) -> LocalAgent:
    kind = type(what)
    name = getattr(what, "name", None)
    named = name if isinstance(name, str) and name else _CAMEL.sub(" ", kind.__name__).replace("_", " ").strip()
    agent = LocalAgent(named, description=_first_line(kind))
    for called, method in _methods(what):
        agent.add(method, name=called)
    if not agent.functions:
        raise SetupError(
            f"{kind.__name__!r} cannot be an agent: it has no public methods. Give a function, a class with methods, "
            "a LocalAgent or an AgentExecutor."
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


def _made(kind: type[Any]) -> object:
    try:
        return kind()
    except TypeError as wrong:
        raise SetupError(
            f"{kind.__name__} cannot be made without arguments: {wrong}. Give an instance of it."
        ) from None


def _first_line(what: object) -> str:
    return (inspect.getdoc(what) or "").strip().partition("\n")[0]
