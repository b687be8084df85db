"""What of a capability is searched: its texts by field, and how much a word in each is worth.

One document per capability, and one for an agent that has none. A document is what BM25F makes of the fields before
the query is known: for every term one gain, from 0 to ``1 + K``. How long a field usually is, is a constant and not
the mean of the catalogue, so that a document never has to be made again because others came or went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agent3.directory.words import Language, detect_language, terms
from agent3.model import Agent, Capability

__all__ = ["FIELDS", "Document", "K", "documents_of", "explain"]

K = 1.2
"""How soon repetitions stop to count."""
_TELLING = 500
"""Characters by which the language of a text is told."""
_DEEPEST = 4
_MOST_PARAMETERS = 100
_MOST_CHOICES = 30
_MOST_EXAMPLES = 20


class Field(NamedTuple):
    """How much a word in a field is worth, how much long fields are discounted, and how long they usually are."""

    weight: float
    b: float
    usual: float
    longest: int
    """Characters that are looked at: a bound on what a stranger's card can cost."""


FIELDS: Mapping[str, Field] = {
    "name": Field(8.0, 0.7, 3.0, 300),
    "description": Field(1.0, 0.6, 14.0, 4_000),
    "tags": Field(1.0, 0.6, 4.0, 1_000),
    "phrases": Field(1.0, 0.6, 20.0, 4_000),
    "parameter": Field(0.5, 0.3, 5.0, 4_000),
    "parameter text": Field(0.5, 0.3, 20.0, 8_000),
    "choices": Field(0.5, 0.75, 4.0, 2_000),
    "agent": Field(2.0, 0.4, 3.0, 300),
    "agent text": Field(0.5, 0.6, 14.0, 2_000),
}


class Document(NamedTuple):
    """A capability as the index keeps it; ``capability`` is None for an agent that offers none."""

    agent: str
    capability: str | None
    gains: Mapping[str, float]


def documents_of(agent: Agent) -> Iterator[Document]:
    """The documents of an agent, one after the other: each is some tenth of a millisecond of work."""
    shared = dict(_agent_texts(agent))
    language = detect_language(shared["agent text"][:_TELLING])
    common = _weigh(shared, language)
    for capability in agent.capabilities:
        texts = dict(_capability_texts(capability))
        own = detect_language(texts["description"][:_TELLING]) if texts["description"] else language
        counts = dict(common if own == language else _weigh(shared, own))
        yield Document(agent.id, capability.name, _saturate(_weigh(texts, own, counts)))
    if not agent.capabilities:
        bare = {"name": shared["agent"], "description": shared["agent text"]}
        yield Document(agent.id, None, _saturate(_weigh(bare, language)))


def explain(agent: Agent, capability: Capability | None, wanted: Mapping[str, str]) -> dict[str, list[str]]:
    """By field, which of the wanted words (by their terms) are in it; each word in the field where it is worth most."""
    texts = dict(_agent_texts(agent))
    telling = texts["agent text"]
    if capability is not None:
        texts |= dict(_capability_texts(capability))
        telling = capability.description or telling
    language = detect_language(telling[:_TELLING])
    left, found = dict(wanted), {}
    for name in sorted(texts, key=lambda name: -FIELDS[name].weight):
        there = set(terms(texts[name][: FIELDS[name].longest], language))
        if said := list(dict.fromkeys(word for term, word in left.items() if term in there)):
            found[name] = said
            left = {term: word for term, word in left.items() if word not in said}
    return found


def _agent_texts(agent: Agent) -> Iterator[tuple[str, str]]:
    name = agent.name if agent.id == agent.name.lower() else f"{agent.id} {agent.name}"
    yield "agent", f"{name} {agent.provider or ''}"
    yield "agent text", f"{agent.description} {' '.join(agent.tags)}"


def _capability_texts(capability: Capability) -> Iterator[tuple[str, str]]:
    title = capability.title if capability.title and capability.title != capability.name else ""
    yield "name", f"{capability.name} {title}"
    yield "description", capability.description
    yield "tags", " ".join(capability.tags)
    said = [*capability.phrases, *(_text_of(example) for example in capability.examples[:_MOST_EXAMPLES])]
    yield "phrases", " ".join(said)
    names: list[str] = []
    texts: list[str] = []
    choices: list[str] = []
    _read_schema(capability.input_schema, names, texts, choices, 0)
    yield "parameter", " ".join(names)
    yield "parameter text", " ".join(texts)
    yield "choices", " ".join(choices)


def _text_of(example: Any) -> str:
    if isinstance(example, str):
        return example
    if isinstance(example, Mapping):
        return " ".join(value for value in example.values() if isinstance(value, str))
    return ""


def _read_schema(schema: Any, names: list[str], texts: list[str], choices: list[str], depth: int) -> None:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        if len(names) >= _MOST_PARAMETERS:
            return
        names.append(str(name)[:100])
        if isinstance(inner, Mapping):
            said = [inner.get(key) for key in ("title", "description")]
            texts += [text[:1_000] for text in said if isinstance(text, str) and text != name]
            _read_schema(inner, names, texts, choices, depth + 1)
    listed = schema.get("enum")
    for choice in listed if isinstance(listed, list) else ():
        if isinstance(choice, str) and len(choices) < _MOST_CHOICES:
            choices.append(choice[:100])
    for key in ("items", "additionalProperties"):
        _read_schema(schema.get(key), names, texts, choices, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        several = schema.get(key)
        for inner in several[:10] if isinstance(several, list) else ():
            _read_schema(inner, names, texts, choices, depth + 1)


def _weigh(texts: Mapping[str, str], language: Language, into: dict[str, float] | None = None) -> dict[str, float]:
    """The first half of BM25F: one weighted count per term over all fields."""
    counts: dict[str, float] = {} if into is None else into
    for name, text in texts.items():
        if text:
            field = FIELDS[name]
            there = list(terms(text[: field.longest], language))
            worth = field.weight / (1 - field.b + field.b * len(there) / field.usual)
            for term in there:
                counts[term] = counts.get(term, 0.0) + worth
    return counts


def _saturate(counts: Mapping[str, float]) -> dict[str, float]:
    """The second half: repetitions count less and less."""
    return {term: (1 + K) * count / (count + K) for term, count in counts.items()}
