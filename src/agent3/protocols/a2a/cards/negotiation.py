"""What two agents agree on before they talk: version and binding, skills, media types, extensions.

``negotiate`` holds what a caller wants against a card and says what both can do; where that is not enough, it says of
each thing what was wanted and what there is. It asks nobody: cards come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from agent3.definitions import AgentCapability, AgentCard, AgentInterface
from agent3.errors import Conflict
from agent3.schema import nearest

__all__ = ["NEGOTIATE", "Agreement", "Wants", "agreed", "negotiate"]

NEGOTIATE: Final = "a2a.negotiate"
"""The capability by which every executor answers for its card."""


class Wants(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What a caller can do and what it needs. Of ``versions`` and ``bindings`` the first that fits is taken.

    ``extensions`` are those it speaks, ``required`` those it cannot do without.
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
    """What both can do; ``missing`` says in words what one of them cannot do without and does not get.

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
        """Whether they can talk."""
        return not self.missing


def agreed(agreement: Agreement) -> Agreement:
    """The agreement, where there is one; Conflict lists all that stands against it."""
    if agreement.ok:
        return agreement
    faults = "; ".join(agreement.missing)
    raise Conflict(f"No agreement with {agreement.agent!r}: {faults}.", data={"missing": list(agreement.missing)})


def negotiate(card: AgentCard, wants: Wants) -> Agreement:
    """Hold what is wanted against a card."""
    missing: list[str] = []
    interface = _interface(card, wants, missing)
    skills = _skills(card, wants, missing)
    inputs = _modes("input", card, skills, wants.input_modes, missing)
    outputs = _modes("output", card, skills, wants.output_modes, missing)
    extensions = _extensions(card, wants, missing)
    _features(card, wants, missing)
    return Agreement(
        agent=card.agent_id,
        version=interface.protocol_version if interface is not None else None,
        binding=interface.protocol_binding if interface is not None else None,
        url=interface.url if interface is not None else None,
        skills=tuple(one.name for one in skills),
        input_modes=inputs,
        output_modes=outputs,
        extensions=extensions,
        missing=tuple(missing),
    )


def _interface(card: AgentCard, wants: Wants, missing: list[str]) -> AgentInterface | None:
    """The address that fits best: by version, then by binding, in the caller's order."""
    offered = _offered(card)
    fitting = [
        one
        for version in wants.versions
        for binding in wants.bindings
        for one in offered
        if _same_version(one.protocol_version, version) and one.protocol_binding.upper() == binding.upper()
    ]
    if offered and not fitting:
        there = _listed(f"{one.protocol_version} over {one.protocol_binding}" for one in offered)
        missing.append(
            f"versions {_listed(wants.versions)} over {_listed(wants.bindings)} were wanted, there is {there}"
        )
    return fitting[0] if fitting else None


def _offered(card: AgentCard) -> Sequence[AgentInterface]:
    if card.interfaces or not card.url:
        return card.interfaces
    binding = card.preferred_transport or "JSONRPC"
    return [AgentInterface(url=card.url, protocolBinding=binding, protocolVersion=card.protocol_version or "0.1")]


def _same_version(one: str, other: str) -> bool:
    """By major and minor, as the protocol asks."""
    return one.split(".")[:2] == other.split(".")[:2]


def _skills(card: AgentCard, wants: Wants, missing: list[str]) -> list[AgentCapability]:
    found = []
    for name in wants.skills:
        skill = card.capability(name)
        if skill is not None:
            found.append(skill)
            continue
        near = nearest(name, [one.name for one in card.capabilities])
        hint = f"; did you mean {near!r}?" if near else ""
        missing.append(f"skill {name!r} was wanted, there is {_listed(one.name for one in card.capabilities)}{hint}")
    return found if wants.skills else list(card.capabilities)


def _modes(
    what: str, card: AgentCard, skills: Sequence[AgentCapability], wanted: Sequence[str], missing: list[str]
) -> tuple[str, ...]:
    """Media types that all the skills share with the caller, in the caller's order; one that names none takes all."""
    default = card.default_input_modes if what == "input" else card.default_output_modes
    each = [(one.input_modes if what == "input" else one.output_modes) or default for one in skills] or [default]
    if not wanted:
        return tuple(mode for mode in each[0] if all(mode in modes for modes in each))
    shared = tuple(mode for mode in wanted if all(any(_fits(mode, one) for one in modes) for modes in each))
    if not shared:
        there = _listed(dict.fromkeys(mode for modes in each for mode in modes))
        missing.append(f"{what} as {_listed(wanted)} was wanted, there is {there}")
    return shared


def _fits(one: str, other: str) -> bool:
    """Whether two media types meet; ``*`` in either stands for anything, parameters do not count."""
    mine, yours = one.partition(";")[0].strip().lower(), other.partition(";")[0].strip().lower()
    return fnmatchcase(mine, yours) or fnmatchcase(yours, mine)


def _extensions(card: AgentCard, wants: Wants, missing: list[str]) -> tuple[str, ...]:
    spoken = {*wants.extensions, *wants.required}
    offered = {one.uri: one for one in card.features.extensions}
    there = _listed(offered)
    missing += [f"extension {uri} was wanted, there is {there}" for uri in wants.required if uri not in offered]
    unspoken = [uri for uri, one in offered.items() if one.required and uri not in spoken]
    missing += [f"the agent requires extension {uri}, which the caller does not speak" for uri in unspoken]
    return tuple(uri for uri in offered if uri in spoken)


def _features(card: AgentCard, wants: Wants, missing: list[str]) -> None:
    if wants.streaming and not card.features.streaming:
        missing.append("streaming was wanted, the agent does not stream")
    if wants.push_notifications and not card.features.push_notifications:
        missing.append("push notifications were wanted, the agent sends none")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
