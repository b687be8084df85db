"""The card of a remote agent as an Agent of the directory: every skill becomes a capability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from agent3.definitions import AgentCapability
from agent3.model import Agent, Capability, Hints, Price, Route, agent_id
from agent3.protocols.a2a.cards.extensions import IDEMPOTENT, SCHEMAS
from agent3.protocols.a2a.peer.card_discovery import FoundCard
from agent3.protocols.a2a.peer.translation import FREE_INPUT

__all__ = ["GIVEN", "SIGNATURE", "describe_agent", "source_of", "takes_free_input"]

SIGNATURE: Final = "signature"
"""The key in an agent's ``meta`` that holds whether its card is signed, and by which keys."""
GIVEN: Final = "given"
"""The key in a route's ``meta`` that says that the card was given by hand, so that it is never fetched."""
_META: Final = "a2a"
_MOST_DESCRIPTION: Final = 2_000


def describe_agent(found: FoundCard, pattern: Route, signature: dict[str, Any], timeout: float) -> Agent:
    """The agent of a card. ``pattern`` is the route that each capability gets, with the skill as its target.

    A card without skills still takes messages, and gets one capability for them.
    """
    card = found.card
    extensions = {each.uri: each.params for each in reversed(card.features.extensions)}
    if IDEMPOTENT in extensions:
        pattern = replace(pattern, meta={**pattern.meta, "keys": True})
    schemas = extensions.get(SCHEMAS, {}).get("skills")
    capabilities = []
    for skill in card.capabilities or [AgentCapability(name="message", description=card.description)]:
        name = skill.id or skill.name
        given = schemas.get(name) if isinstance(schemas, dict) else None
        known: Mapping[str, Any] = given if isinstance(given, dict) else {}
        input_schema = known.get("input") or skill.input_schema or (skill.to_schema() if skill.parameters else None)
        output_schema = known.get("output") or skill.output_schema
        capabilities.append(
            Capability(
                name=name,
                title=skill.name,
                description=skill.description or card.description,
                version=skill.version,
                input_schema=input_schema if isinstance(input_schema, dict) else FREE_INPUT,
                output_schema=output_schema if isinstance(output_schema, dict) else None,
                phrases=tuple(example for example in skill.examples if isinstance(example, str)),
                tags=tuple(skill.tags),
                input_modes=tuple(skill.input_modes or card.default_input_modes),
                output_modes=tuple(skill.output_modes or card.default_output_modes),
                price=Price(call=skill.cost),
                hints=Hints(
                    read_only=skill.read_only,
                    idempotent=skill.idempotent,
                    consequential=skill.consequential,
                    replay=True,  # a restart finds the task again, or says that it was interrupted
                ),
                routes=(replace(pattern, target=name),),
                timeout=timeout,
                meta={_META: {"free": not isinstance(input_schema, dict)}},
            )
        )
    return Agent(
        id=agent_id(card.name, "a2a-agent"),
        name=card.name,
        description=card.description[:_MOST_DESCRIPTION],
        version=card.version,
        provider=card.provider.organization if card.provider is not None else None,
        tags=("a2a",),
        capabilities=tuple(capabilities),
        source=source_of(pattern.address),
        card=found.document,
        meta={"route": msgspec.to_builtins(pattern), SIGNATURE: signature},
    )


def takes_free_input(capability: Capability | None) -> bool:
    """Whether a skill takes ``FREE_INPUT``, because its card gives no schema."""
    return capability is None or bool(capability.meta.get(_META, {}).get("free", True))


def source_of(address: str) -> str:
    """An address as it is shown: without its query, which may hold secrets."""
    return address.partition("?")[0]
