"""Capability negotiation: version and binding, skills, media types and extensions that two agents share.

``negotiate`` compares what a caller wants with a card. Where they do not match, it says for each thing what was wanted
and what there is. It sends nothing: cards come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from agent3.card_formats import minor_version
from agent3.definitions import AgentCard, AgentInterface
from agent3.errors import Conflict
from agent3.gateway.input_modes import is_among
from agent3.schema import nearest

__all__ = ["NEGOTIATE", "Agreement", "Wants", "negotiate", "require_agreement"]

NEGOTIATE: Final = "a2a.negotiate"
"""The capability by which every executor negotiates for its card."""


class Wants(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What a caller supports and needs. Of ``versions`` and ``bindings`` the first that fits is chosen.

    ``extensions`` are those it supports, ``required`` those it needs.
    """

    versions: tuple[str, ...] = ("1.0", "0.3", "0.2", "0.1")
    bindings: tuple[str, ...] = ("JSONRPC", "HTTP+JSON", "GRPC")
    skills: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    streaming: bool = False
    push_notifications: bool = False


class Agreement(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What both sides support; ``missing`` lists in words what one of them needs and the other does not have.

    ``version``, ``binding`` and ``url`` are None for an agent without an address, which is reached by messages.
    """

    agent: str
    version: str | None = None
    binding: str | None = None
    url: str | None = None
    skills: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def require_agreement(agreement: Agreement) -> Agreement:
    """The agreement if nothing is missing, else a Conflict that lists what is."""
    if agreement.ok:
        return agreement
    missing = "; ".join(agreement.missing)
    raise Conflict(f"No agreement with {agreement.agent!r}: {missing}.", data={"missing": list(agreement.missing)})


def negotiate(card: AgentCard, wants: Wants) -> Agreement:
    """Compare what is wanted with a card."""
    missing: list[str] = []
    interface = _choose_interface(card, wants, missing)

    skills = list(card.capabilities)
    if wants.skills:
        found = {name: card.capability(name) for name in wants.skills}
        skills = [skill for skill in found.values() if skill is not None]
        names = [skill.name for skill in card.capabilities]
        for name in (name for name, skill in found.items() if skill is None):
            near = nearest(name, names)
            hint = f"; did you mean {near!r}?" if near else ""
            missing.append(f"skill {name!r} was required, but it has {_join(names)}{hint}")

    inputs = [skill.input_modes or card.default_input_modes for skill in skills] or [card.default_input_modes]
    outputs = [skill.output_modes or card.default_output_modes for skill in skills] or [card.default_output_modes]
    input_modes = _shared_modes("input", inputs, wants.input_modes, missing)
    output_modes = _shared_modes("output", outputs, wants.output_modes, missing)

    supported = {*wants.extensions, *wants.required}
    offered = {extension.uri: extension for extension in card.features.extensions}
    there = _join(offered)
    missing += [f"extension {uri} was required, but it has {there}" for uri in wants.required if uri not in offered]
    foreign = [uri for uri, extension in offered.items() if extension.required and uri not in supported]
    missing += [f"the agent requires extension {uri}, which the caller does not support" for uri in foreign]

    if wants.streaming and not card.features.streaming:
        missing.append("streaming was required, but the agent does not stream")
    if wants.push_notifications and not card.features.push_notifications:
        missing.append("push notifications were required, but the agent sends none")

    return Agreement(
        agent=card.agent_id,
        version=interface.protocol_version if interface is not None else None,
        binding=interface.protocol_binding if interface is not None else None,
        url=interface.url if interface is not None else None,
        skills=tuple(skill.name for skill in skills),
        input_modes=input_modes,
        output_modes=output_modes,
        extensions=tuple(uri for uri in offered if uri in supported),
        missing=tuple(missing),
    )


def _choose_interface(card: AgentCard, wants: Wants, missing: list[str]) -> AgentInterface | None:
    """The address that fits best: by version, then by binding, in the caller's order."""
    offered: Sequence[AgentInterface] = card.interfaces
    if not offered and card.url:
        binding = card.preferred_transport or "JSONRPC"
        version = card.protocol_version or "0.1"
        offered = [AgentInterface(url=card.url, protocolBinding=binding, protocolVersion=version)]
    for version in wants.versions:
        for binding in wants.bindings:
            for interface in offered:
                same_version = minor_version(interface.protocol_version) == minor_version(version)
                if same_version and interface.protocol_binding.upper() == binding.upper():
                    return interface
    if offered:
        there = _join(f"{interface.protocol_version} over {interface.protocol_binding}" for interface in offered)
        wanted = f"versions {_join(wants.versions)} over {_join(wants.bindings)}"
        missing.append(f"{wanted} were required, but it has {there}")
    return None


def _shared_modes(
    what: str, each: Sequence[Sequence[str]], wanted: Sequence[str], missing: list[str]
) -> tuple[str, ...]:
    """Media types that all skills share with the caller, in the caller's order; without a wish, all that they share."""
    if not wanted:
        return tuple(mode for mode in each[0] if all(mode in modes for modes in each))
    shared = tuple(mode for mode in wanted if all(any(_match(mode, other) for other in modes) for modes in each))
    if not shared:
        there = _join(dict.fromkeys(mode for modes in each for mode in modes))
        missing.append(f"{what} as {_join(wanted)} was required, but it has {there}")
    return shared


def _match(one: str, other: str) -> bool:
    """Whether two media types match; ``*`` in either stands for anything, and parameters do not count."""
    mine, yours = one.partition(";")[0].strip().lower(), other.partition(";")[0].strip().lower()
    return is_among(mine, yours) or is_among(yours, mine)


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
