"""What a search shows of a capability, within a budget of tokens.

A hit says in a few words what is needed to call it. What it says comes from the capability alone: the texts that a
server has for the models behind it (its ``instructions``) never stand in for a description. ``arrange`` lets what is
known of an agent (rating, health, price) decide between hits that fit almost equally well, and nothing beyond that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from agent3.directory import Hit, Rating
from agent3.model import Agent, Capability, Price

__all__ = ["DETAILS", "NEAR", "TOKENS_PER_HIT", "Detail", "arrange", "count_tokens", "fit", "matches_filters", "render",
           "signature_of"]  # fmt: skip

Detail: TypeAlias = Literal["brief", "signature", "schema"]
DETAILS: tuple[Detail, ...] = ("brief", "signature", "schema")
TOKENS_PER_HIT: Mapping[Detail, int] = {"brief": 120, "signature": 120, "schema": 500}
"""Tokens that a hit may take on average, unless the caller says how many all may take together."""
_BYTES_PER_TOKEN = 3
_LINE, _SHORT_LINE = 160, 60
_SIGNATURE = 240
_MOST_CHOICES = 8
_MOST_WHY = 6
_SWAY = 0.05
"""The share of the best score by which rating, health and price together can move a hit."""
_FAR = 0.4
"""The share of the best score below which a hit by the description of its agent alone is far from what is meant."""
_ENOUGH = 3
"""Better hits beside which those are left out."""
PriceOf: TypeAlias = Callable[[str, Capability], Price]
"""What a call of an agent's capability costs."""
_SENTENCE = re.compile(r"(?<=[.!?。])\s|\n")
NEAR = "similar meaning"
"""Why a hit was found that has none of the words."""
_FIELD_NAMES = {"agent text": "agent", "parameter text": "parameter", "choices": "parameter"}


def count_tokens(value: Any) -> int:
    """Tokens of a JSON value, estimated on the high side: three of its bytes to a token. No tokenizer is asked."""
    return -(-len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) // _BYTES_PER_TOKEN)


# --- order ----------------------------------------------------------------------------------------------------------


def arrange(
    hits: Sequence[Hit],
    reputation: Mapping[str, float],
    price_of: PriceOf,
    status: Callable[[Agent], str],
    limit: int,
) -> list[Hit]:
    """The hits in the order in which they are shown, at most so many. ``reputation`` is from 0 to 1 for each agent.

    An exact name stays first. Else the fit decides: what is known of an agent moves a hit by at most 5 % of the best.
    """
    best = max((hit.fit for hit in hits), default=1.0) or 1.0

    def is_far(hit: Hit) -> bool:
        return hit.score < 1.0 and hit.fit < _FAR * best and hit.why.keys() == {"agent text"}

    def key(hit: Hit) -> tuple[bool, bool, float]:
        down = status(hit.agent) != "active"
        standing = -0.5 if down else _rate(reputation.get(hit.agent.id, 0.5), _price(hit, price_of))
        return hit.score < 1.0, is_far(hit), -(hit.fit + _SWAY * best * standing)

    near = [hit for hit in hits if not is_far(hit)]
    return sorted(near if len(near) >= _ENOUGH else hits, key=key)[:limit]


def _rate(reputation: float, price: Price) -> float:
    """From -0.5 to 0.4: what callers met and say, less a little for what costs money."""
    cost = price.call + price.second + price.tokens
    return max(-0.4, min(0.4, 1.6 * (reputation - 0.5))) - 0.1 * cost / (cost + 0.1)


def _price(hit: Hit, price_of: PriceOf) -> Price:
    return Price() if hit.capability is None else price_of(hit.agent.id, hit.capability)


# --- filters --------------------------------------------------------------------------------------------------------


def matches_filters(agent: Agent, capability: Capability | None, filters: Mapping[str, Any], price_of: PriceOf) -> bool:
    """Whether a capability meets every one of the filters of ``agent3_search``."""
    routes = capability.routes if capability is not None else ()
    for name, wanted in filters.items():
        match name:
            case "protocol":
                meets = any(route.protocol == wanted for route in routes)
            case "tag":
                tags = (*agent.tags, *(capability.tags if capability is not None else ()))
                meets = wanted.casefold() in {tag.casefold() for tag in tags}
            case "provider":
                meets = wanted.casefold() == (agent.provider or "").casefold()
            case "maxPrice":
                meets = capability is None or price_of(agent.id, capability).call <= wanted
            case "readOnly":
                meets = capability is not None and capability.hints.read_only is wanted
            case "agent":
                meets = agent.id == wanted
            case "mediaType":
                modes = (*capability.input_modes, *capability.output_modes) if capability is not None else ()
                meets = wanted in modes
            case _:
                raise ValueError(f"Unknown filter {name!r}.")
        if not meets:
            return False
    return True


# --- a hit ----------------------------------------------------------------------------------------------------------


def render(
    hit: Hit, offered: Sequence[Capability], rating: Rating, status: str, price_of: PriceOf, detail: Detail
) -> dict[str, Any]:
    """A hit for a model. Without a capability it is an agent in a list, with the names of what it offers."""
    agent, capability = hit.agent, hit.capability
    if capability is None and len(offered) == 1:
        capability = offered[0]
    body: dict[str, Any] = {"id": agent.id}
    if capability is not None:
        body |= {"capability": capability.name, "description": _first_line(capability.description or capability.title)}
        if detail == "signature":
            body["signature"] = signature_of(capability)
        elif detail == "schema":
            body["inputSchema"] = capability.input_schema
        if (price := price_of(agent.id, capability)) != Price():
            body["price"] = price.describe()
        if capability.routes:
            body["protocol"] = capability.routes[0].protocol
    else:
        # The texts of an MCP server are for models that use it; what it says of itself is in its tools.
        told = agent.card.get("instructions") != agent.description
        body |= {"description": _first_line(agent.description) if told else ""}
        body["capabilities"] = [one.name for one in offered[:_MOST_CHOICES]]
        if len(offered) > _MOST_CHOICES:
            body["capabilities"].append(f"and {len(offered) - _MOST_CHOICES} more")
    if hit.score > 0:  # else it is in a list
        body["why"] = _why(hit) or ("exact name" if hit.score == 1.0 else NEAR)
    body["status"] = status
    if rating.count:
        body["rating"] = {"mean": rating.mean, "count": rating.count}
    return body


def _why(hit: Hit) -> str:
    found: dict[str, list[str]] = {}
    for name, said in hit.why.items():
        found.setdefault(_FIELD_NAMES.get(name, name), []).extend(said)
    left, parts = _MOST_WHY, []
    for name, said in found.items():
        if left > 0:
            parts.append(f"{name}: {', '.join(dict.fromkeys(said[:left]))}")
            left -= len(said)
    return "; ".join(parts)


def _first_line(text: str | None, longest: int = _LINE) -> str:
    """The first sentence, on one line."""
    line = " ".join(_SENTENCE.split((text or "").strip(), maxsplit=1)[0].split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def signature_of(capability: Capability, longest: int = _SIGNATURE) -> str:
    """How a capability is called, on one line: ``convert(amount: number, to: "USD"|"EUR", note?: string)``."""
    schema = capability.input_schema
    properties = schema.get("properties")
    required = schema.get("required")
    needed = frozenset(map(str, required)) if isinstance(required, list) else frozenset()
    named = properties if isinstance(properties, Mapping) else {}
    parts: list[str] = []
    used = len(capability.name)
    for name in sorted(named, key=lambda name: name not in needed):  # stable: those that are needed first
        part = f"{name}{'' if name in needed else '?'}: {_type_of(named[name], 0)}"
        if used + len(part) > longest and parts:
            parts.append("…")
            break
        parts.append(part)
        used += len(part) + 2
    return f"{capability.name}({', '.join(parts)})"


def _type_of(schema: Any, depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > 2:
        return "any"
    if isinstance(choices := schema.get("enum"), list):
        shown = [json.dumps(choice, ensure_ascii=False)[:40] for choice in choices[:_MOST_CHOICES]]
        return "|".join([*shown, *(["…"] if len(choices) > _MOST_CHOICES else [])])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)[:40]
    for key in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(key), list):
            kinds = [_type_of(one, depth + 1) for one in several[:4]]
            return "|".join(dict.fromkeys(kind for kind in kinds if kind != "null")) or "any"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(str(one) for one in kind if one != "null") or "any"
    if kind == "array":
        return f"{_type_of(schema.get('items'), depth + 1)}[]"
    if kind == "object" and isinstance(inner := schema.get("properties"), Mapping) and inner and depth < 2:
        names = [f"{name}: {_type_of(one, depth + 1)}" for name, one in list(inner.items())[:4]]
        return "{" + ", ".join([*names, *(["…"] if len(inner) > 4 else [])]) + "}"
    return str(kind)[:40]


# --- the budget -----------------------------------------------------------------------------------------------------


def fit(answer: dict[str, Any], budget: int) -> dict[str, Any]:
    """The answer within so many tokens: first shorter texts, then fewer hits, with how many were left out."""
    hits: list[dict[str, Any]] = answer["agents"]
    if count_tokens(answer) <= budget:
        return answer
    for hit in hits:
        hit["description"] = _first_line(hit["description"], _SHORT_LINE)
        hit.pop("why", None)
    answer = {**answer, "query": _first_line(answer["query"], _SHORT_LINE)}
    kept = list(hits)
    while True:
        shown = {**answer, "agents": kept, "count": len(kept)}
        if left := len(hits) - len(kept):
            shown["omitted"] = left
            shown["hint"] = "There are more matches: raise maxTokens, lower detail, or add words."
        if count_tokens(shown) <= budget or len(kept) <= 1:
            break
        kept = kept[:-1]
    if count_tokens(shown) > budget and kept and "inputSchema" in kept[0]:
        del kept[0]["inputSchema"]  # agent3_select has it
        shown["hint"] = "Its schema exceeds maxTokens; use agent3_select."
    if count_tokens(shown) > budget and kept and "signature" in kept[0]:
        kept[0]["signature"] = kept[0]["signature"][:_SHORT_LINE] + "…"
    return shown
