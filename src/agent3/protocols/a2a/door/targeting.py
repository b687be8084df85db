"""Which capability a message means, and what it gives to it; the same for every host.

A client that knows the capability names it, in the message's metadata (``skillId``, ``skill`` or ``capability``) or in
a data part ``{"skill": "…", "input": {…}}``. A client that does not is understood by its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UnsetType

from agent3.directory.search import Index
from agent3.errors import CapabilityNotFound, ValidationError
from agent3.model import Agent, Capability
from agent3.protocols.a2a.door.projection import parts_in
from agent3.protocols.a2a.door.tasks import Aim
from agent3.protocols.a2a.wire.types import Message, Part
from agent3.schema import nearest

__all__ = ["Wish", "aim", "wish"]

_NAMES = ("skillId", "skill", "capability")
_MOST_NAMED = 20
_CLEARLY = 1.15
"""How much better than the second the first must fit, where nobody named one."""


class Wish(NamedTuple):
    """What a message says of the capability that it is for. ``input`` is None where only the words say it."""

    name: str | None
    input: Any
    parts: tuple[Part, ...]
    text: str


def wish(message: Message) -> Wish:
    """Read a message: the capability that it names, and its input in data, if any."""
    name, given = _named(message.metadata), None
    rest: list[Part] = []
    data: list[Any] = []
    for part in message.parts:
        if not isinstance(part.data, UnsetType):
            if (meant := _named(part.data)) and set(part.data) <= {*_NAMES, "input"}:
                name, given = name or meant, part.data.get("input", {})
                continue
            data.append(part.data)
        rest.append(part)
    if given is None and len(data) == 1 and isinstance(data[0], dict):
        given = data[0]
    if given is None and not data:
        given = _written(message.parts)
    text = "\n".join(part.text for part in rest if part.text)
    return Wish(name, given, tuple(rest), text)


def aim(agent: Agent, offered: Sequence[Capability], wanted: Wish, more: Sequence[Capability] = ()) -> Aim:
    """The capability that was named; else the only one, else the one whose words fit best. Errors name the others.

    ``more`` can be called too, by those who know it: it is found by its name alone, and no error tells of it.
    """
    return Aim(agent, _chosen(agent, offered, wanted, more), wanted.input, parts_in(wanted.parts))


def _chosen(agent: Agent, offered: Sequence[Capability], wanted: Wish, more: Sequence[Capability]) -> Capability:
    if wanted.name is not None:
        known = next((one for one in more if one.name == wanted.name), None)
        return known or _called(agent, offered, wanted.name)
    if len(offered) == 1:
        return offered[0]
    if not offered:
        raise CapabilityNotFound(f"Agent {agent.id!r} offers nothing that can be called.")
    if (best := _best(offered, wanted.text)) is not None:
        return best
    raise ValidationError(
        f"Agent {agent.id!r} can do several things and the message does not say which. "
        f"Name one in its metadata as skillId: {_listed(offered)}"
    )


def _called(agent: Agent, offered: Sequence[Capability], name: str) -> Capability:
    for one in offered:
        if one.name == name:
            return one
    names = [one.name for one in offered]
    near = nearest(name, names)
    hint = f" Did you mean {near!r}?" if near else ""
    raise CapabilityNotFound(
        f"Agent {agent.id!r} has no capability {name[:100]!r} that you can call.{hint} It has {_listed(offered)}.",
        data={"nearest": [near]} if near else None,
    )


def _best(offered: Sequence[Capability], text: str) -> Capability | None:
    by_name = {one.name: one for one in offered}
    ranked = Index({one.name: Agent(id=one.name, name=one.name, capabilities=(one,)) for one in offered}).search(text)
    if not ranked or (len(ranked) > 1 and ranked[0][1] < _CLEARLY * ranked[1][1]):
        return None
    return by_name[ranked[0][0]]


def _listed(offered: Sequence[Capability]) -> str:
    names = sorted(one.name for one in offered)
    return ", ".join(names[:_MOST_NAMED]) + (", and more" if len(names) > _MOST_NAMED else "")


def _named(data: Any) -> str | None:
    """The capability that metadata or a data part names."""
    if not isinstance(data, dict):
        return None
    return next((data[key] for key in _NAMES if isinstance(data.get(key), str) and data[key]), None)


def _written(parts: Sequence[Part]) -> Any:
    """The input where the only part is a text that says of itself that it is JSON."""
    if len(parts) != 1 or parts[0].text is None or parts[0].media_type != "application/json":
        return None
    try:
        return msgspec.json.decode(parts[0].text)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValidationError(f"The message claims to be application/json but is not: {wrong}") from None
