"""Which capability a message means, and what it gives to it; the same for every host.

A client that knows the capability names it, in the message's metadata (``skillId``, ``skill`` or ``capability``) or in
a data part ``{"skill": "…", "input": {…}}``. Without a name, the words of the message decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UnsetType

from agent3.errors import CapabilityNotFound, ValidationError
from agent3.gateway import Gateway
from agent3.model import Agent, Capability
from agent3.protocols.a2a.door.projection import parts_in
from agent3.protocols.a2a.door.tasks import Aim
from agent3.protocols.a2a.wire.types import Message, Part
from agent3.schema import nearest

__all__ = ["Intent", "choose_target", "read_intent"]

_NAMES = ("skillId", "skill", "capability")
_MOST_NAMED = 20


class Intent(NamedTuple):
    """What a message says of the capability that it is for. ``input`` is None where only the words say it."""

    name: str | None
    input: Any
    parts: tuple[Part, ...]
    text: str


def read_intent(message: Message) -> Intent:
    """Read a message: the capability that it names, and its input in data, if any."""
    name, given = _find_name(message.metadata), None
    rest: list[Part] = []
    data: list[Any] = []
    for part in message.parts:
        if not isinstance(part.data, UnsetType):
            if (named := _find_name(part.data)) and set(part.data) <= {*_NAMES, "input"}:
                name, given = name or named, part.data.get("input", {})
                continue
            data.append(part.data)
        rest.append(part)
    if given is None and len(data) == 1 and isinstance(data[0], dict):
        given = data[0]
    only = message.parts[0] if len(message.parts) == 1 else None
    if given is None and only is not None and only.text is not None and only.media_type == "application/json":
        try:
            given = msgspec.json.decode(only.text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValidationError(f"The message is not valid application/json: {error}") from None
    text = "\n".join(part.text for part in rest if part.text)
    return Intent(name, given, tuple(rest), text)


async def choose_target(
    gateway: Gateway, agent: Agent, offered: Sequence[Capability], intent: Intent, hidden: Sequence[Capability] = ()
) -> Aim:
    """The capability that was named; else the one that the gateway chooses by the words. Errors name the others.

    ``hidden`` ones can be called by name, but no error mentions them.
    """
    found: Capability | None
    if intent.name is None:
        found = await gateway.choose(agent, offered, intent.text, intent.input)
    else:
        known = (each for each in (*hidden, *offered) if each.name == intent.name)
        if (found := next(known, None)) is None:
            near = nearest(intent.name, [each.name for each in offered])
            hint = f" Did you mean {near!r}?" if near else ""
            raise CapabilityNotFound(
                f"Agent {agent.id!r} has no capability {intent.name[:100]!r} that you may call.{hint} It has "
                f"{_join_names(offered)}.",
                data={"nearest": [near]} if near else None,
            )
    return Aim(agent, found, intent.input, parts_in(intent.parts))


def _join_names(offered: Sequence[Capability]) -> str:
    names = sorted(each.name for each in offered)
    return ", ".join(names[:_MOST_NAMED]) + (", and more" if len(names) > _MOST_NAMED else "")


def _find_name(data: Any) -> str | None:
    """The capability that metadata or a data part names."""
    if not isinstance(data, dict):
        return None
    return next((data[key] for key in _NAMES if isinstance(data.get(key), str) and data[key]), None)
