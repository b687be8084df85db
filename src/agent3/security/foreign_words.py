"""Words of strangers: names, descriptions, schemas, instructions and questions are data.

What an agent says of itself is read by models and people before anybody has called it. Texts are cleaned and bounded
like results. A name is different: it is what a caller asks for, so it is never changed, and one that cannot be seen for
what it is, by hidden characters or letters that look like others, is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from agent3.model import Agent, Capability, Needs, Question, encode
from agent3.schema.compiler import SCHEMA_LIMITS
from agent3.security.sanitize import clean_text, clean_value, rewrite_value

__all__ = ["LONGEST_NAME", "clean_agent", "explain_name", "find_bad_question"]

LONGEST_NAME: Final = 256
_MOST_TEXT: Final = 16_384
_MOST_PHRASES: Final = 100
_LONGEST_PHRASE: Final = 1_000
"""Characters of one text about an agent or a capability."""
_WORDS: Final = frozenset({"description", "title", "$comment", "summary"})
"""The keys of a schema whose texts are for readers only."""

# Letters of other scripts that are drawn like Latin ones in most typefaces.
_LOOK: Final = str.maketrans(
    "аеорсухіјѕԁԛԝһӏкАВЕКМНОРСТХУІЈЅԌԚԜαονρτυικγΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxijsdqwhlkABEKMHOPCTXYIJSGQWaovptuikyABEZHIKMNOPTYX",
)
_FOREIGN: Final = frozenset(_LOOK)

_ADDRESS: Final = re.compile(
    r"(?:javascript|vbscript|livescript):\s*[^\s.,;]|file:\s*/|data:[a-z]+/[a-z0-9.+-]+\s*[;,]|blob:https?:",
    re.IGNORECASE,
)
"""Addresses that run something, or read something of this machine, when somebody follows them."""
_WEB: Final = re.compile(r"https?://[^\s]", re.IGNORECASE)


def explain_name(name: str) -> str | None:
    """Why a name is refused; None where it can be seen for what it is."""
    if not name.strip() or len(name) > LONGEST_NAME:
        return f"it is empty or longer than {LONGEST_NAME} characters"
    if name.isascii():
        return None if name.isprintable() else "it contains control characters"
    if clean_text(name) != name or not name.isprintable() or any(_is_invisible(one) for one in name):
        return "it contains invisible characters"
    if unicodedata.normalize("NFKC", name) != unicodedata.normalize("NFC", name):
        return "it contains letters that only look like others"
    for word in re.findall(r"[^\W\d_]+", name):
        foreign = [letter for letter in word if ord(letter) in _FOREIGN]
        latin = any(letter.isascii() for letter in word)
        if foreign and (latin or len(foreign) == len(word)):
            return "it contains letters that only look like others"
    return None


def _is_invisible(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cf", "Cc", "Co", "Cn", "Zl", "Zp")
        or character in "\u115f\u1160\u3164\uffa0"
    )


def _explain_question(question: Question) -> str | None:
    """Why a question is not put to a person; None where it may be. Only addresses of the web are followed."""
    if question.url is not None and not _WEB.match(question.url.strip()):
        return "it contains an address that is not a web address"
    shown = [question.text]

    def note(text: str) -> str:
        shown.append(text)
        return text

    rewrite_value(question.schema, note)
    if any(_ADDRESS.search(text) for text in shown):
        return "it contains an address that would run something, or read a file"
    return None


def find_bad_question(needs: Needs) -> str | None:
    """Why what somebody would be asked is not asked; None where it may be."""
    return next((why for question in needs.questions if (why := _explain_question(question))), None)


def clean_agent(agent: Agent) -> tuple[Agent, list[tuple[str, str]]]:
    """An agent with all its texts cleaned and bounded, and of each capability that is left out its name and why.

    Of two capabilities whose names look the same only the first is kept. The same object where there is nothing to do.
    """
    kept: list[Capability] = []
    refused: list[tuple[str, str]] = []
    seen: dict[str, str] = {}
    for capability in agent.capabilities:
        why = explain_name(capability.name)
        looks = capability.name if capability.name.isascii() else capability.name.translate(_LOOK)
        if why is None and seen.setdefault(looks, capability.name) != capability.name:
            why = f"it looks like {seen[looks]!r}"
        if why is None and max(map(_size, (capability.input_schema, capability.output_schema))) > SCHEMA_LIMITS.size:
            why = f"a schema of it has more than {SCHEMA_LIMITS.size} bytes, so it could not be called"
        cleaned = None if why else _clean_capability(capability)
        if cleaned is None:
            why = why or "the names or values in its schema contain invisible characters"
            refused.append((clean_text(capability.name)[:LONGEST_NAME], why))
        else:
            kept.append(cleaned)
    same = len(kept) == len(agent.capabilities) and all(map(lambda a, b: a is b, kept, agent.capabilities))
    name, description = _bound(agent.name, LONGEST_NAME), _bound(agent.description)
    provider = None if agent.provider is None else _bound(agent.provider, LONGEST_NAME)
    tags, card = tuple(clean_value(_few(agent.tags))), clean_value(agent.card)
    if isinstance(told := card.get("instructions"), str) and len(told) > _MOST_TEXT:
        card = {**card, "instructions": _bound(told)}
    fields = (agent.name, agent.description, agent.provider, agent.tags, agent.card)
    if same and (name, description, provider, tags) == fields[:4] and card is agent.card:
        return agent, refused
    capabilities = agent.capabilities if same else tuple(kept)
    changed = replace(
        agent,
        name=name,
        description=description,
        provider=provider,
        tags=tags,
        card=card,
        capabilities=capabilities,
    )
    return changed, refused


def _size(schema: Any) -> int:
    return 0 if schema is None else len(encode(schema))


def _clean_capability(capability: Capability) -> Capability | None:
    """None where hidden characters stand where they cannot be taken out: in what is sent to the target."""
    schemas = [_clean_schema(one) for one in (capability.input_schema, capability.output_schema)]
    if any(clean_value(schema) is not schema for schema in schemas):
        return None
    fields: dict[str, Any] = {
        "description": _bound(capability.description),
        "title": None if capability.title is None else _bound(capability.title, LONGEST_NAME),
        "input_schema": schemas[0],
        "output_schema": schemas[1],
        "examples": clean_value(capability.examples),
        "phrases": clean_value(_few(capability.phrases)),
        "tags": clean_value(_few(capability.tags)),
        "meta": clean_value(capability.meta),
    }
    if all(value is getattr(capability, field) for field, value in fields.items()):
        return capability
    for field in ("examples", "phrases", "tags"):
        fields[field] = tuple(fields[field])
    return replace(capability, **fields)


def _few(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Phrases or tags, with which every message is compared; the same object if they are few and short."""
    if len(texts) <= _MOST_PHRASES and all(len(text) <= _LONGEST_PHRASE for text in texts):
        return texts
    return tuple(text for text in texts[:_MOST_PHRASES] if len(text) <= _LONGEST_PHRASE)


def _clean_schema(schema: Any) -> Any:
    """The texts of a schema that are for readers, cleaned and bounded; the same object if nothing changed.

    It walks without recursion. Where a property has the name ``description`` its definition is an object, not a text.
    """
    if not isinstance(schema, dict):
        return schema
    if clean_value(schema) is schema and rewrite_value(schema, _bound) is schema:
        return schema
    copies: dict[int, Any] = {}
    waiting: list[tuple[Any, Any]] = []

    def copy(item: Any) -> Any:
        if not isinstance(item, dict | list):
            return item
        if id(item) not in copies:
            copies[id(item)] = {} if isinstance(item, dict) else []
            waiting.append((item, copies[id(item)]))
        return copies[id(item)]

    result = copy(schema)
    while waiting:
        source, target = waiting.pop()
        if isinstance(source, Mapping):
            for key, item in source.items():
                target[key] = _bound(item) if key in _WORDS and isinstance(item, str) else copy(item)
        else:
            target.extend(map(copy, source))
    return result


def _bound(text: str, most: int = _MOST_TEXT) -> str:
    cleaned = clean_text(text)
    return cleaned if len(cleaned) <= most else f"{cleaned[: most - 1]}…"
