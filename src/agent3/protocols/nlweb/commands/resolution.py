"""From a command in natural language to an action and its parameters, or to a question.

In order: the form of an example phrase, words (BM25), meaning (embeddings, if there), a language model (if there). An
answer is taken only above a threshold and clear of the next best; otherwise the person is asked, with the best
candidates and what is missing. Nothing is done here: it knows no browser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import agent3.protocols.nlweb.commands.patterns as patterns
from agent3 import bridge
from agent3.definitions import NLWebInterface
from agent3.llm import LLM, System, Tool, User
from agent3.protocols.nlweb.commands.clarification import ask_missing, ask_which
from agent3.protocols.nlweb.commands.embeddings import Embedder
from agent3.protocols.nlweb.commands.lexicon import concepts, language_of
from agent3.protocols.nlweb.commands.ranking import Words, spoken, texts_of
from agent3.protocols.nlweb.commands.slots import Filled, fill
from agent3.protocols.nlweb.steps.parameters import used

__all__ = ["Candidate", "Resolution", "resolve", "resolve_async", "schema_of", "settled"]

How = Literal["pattern", "words", "meaning", "model"]

SURE = 0.5
"""From this score on an action is taken …"""
CLEAR = 0.12
"""… if the next best is this far behind."""
_SURE_VALUE = 0.04
_IDLE_VALUE = 0.1
"""An action that has parameters for what the command speaks of was rather meant than one that has none."""
_SHOWN = 3
_LEAST_SHOWN = 0.15
_LONGEST = 2_000
_SOME = re.compile(r"^(?:an?|some|any|un|una|unos|unas|alg[uú]n|alguna)\s+(?=[a-z])")
_ASIDE = frozenset("date day tomorrow today hoy manana".split())


@dataclass(frozen=True, slots=True)
class Candidate:
    """An action that may be meant."""

    action: str
    score: float
    slots: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    doubts: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a command means. ``action`` is None where that is unclear; ``question`` is then what to ask.

    With an action, ``missing`` names the required parameters that the command does not give, or gives in a way that can
    be read in two ways, and ``question`` asks for them. ``how`` says what decided.
    """

    action: str | None
    slots: dict[str, Any]
    missing: list[str]
    score: float
    candidates: list[Candidate]
    question: str | None = None
    how: How = "words"


def resolve(
    command: str,
    interface: NLWebInterface,
    *,
    llm: LLM | None = None,
    semantic: Embedder | None = None,
    now: datetime | None = None,
) -> Resolution:
    """The action and parameters that ``command`` means, or a question.

    ``semantic`` compares by meaning where words leave it open (``embeddings.load()`` gives the installed one), and
    ``llm`` is asked last. Blocks while the model thinks; ``resolve_async`` does not.
    """
    found = _by_words(command, interface, semantic, now or datetime.now())  # noqa: DTZ005 - the user's own day
    if llm is None or (found.action and not found.missing):
        return found
    return bridge.run(_by_model(command, interface, llm, found))


async def resolve_async(
    command: str,
    interface: NLWebInterface,
    *,
    llm: LLM | None = None,
    semantic: Embedder | None = None,
    now: datetime | None = None,
) -> Resolution:
    """``resolve`` for code in an event loop."""
    found = _by_words(command, interface, semantic, now or datetime.now())  # noqa: DTZ005 - the user's own day
    if llm is None or (found.action and not found.missing):
        return found
    return await _by_model(command, interface, llm, found)


def schema_of(interface: NLWebInterface, action: str) -> dict[str, Any]:
    """The input schema of an action: its own, or the placeholders of its steps as required texts."""
    info = interface.info.get(action)
    if info is not None and info.input_schema is not None:
        return info.input_schema
    names = sorted(used(interface.actions[action]))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


def _by_words(command: str, interface: NLWebInterface, semantic: Embedder | None, now: datetime) -> Resolution:
    command = command.strip()[:_LONGEST]
    if (exact := _by_pattern(command, interface, now)) is not None:
        return settled(command, interface, [exact], exact, "pattern")
    ranked = _ranked(command, interface, now)
    if (sure := _clear(ranked)) is not None:
        return settled(command, interface, ranked, sure, "words")
    if semantic is not None and ranked:
        ranked = _by_meaning(command, interface, semantic, ranked)
        if (sure := _clear(ranked)) is not None:
            return settled(command, interface, ranked, sure, "meaning")
    near = [one for one in ranked[:_SHOWN] if one.score >= _LEAST_SHOWN]
    shown = near or ranked[:_SHOWN]
    titles = [_title(interface, one.action) for one in shown]
    question = ask_which(titles, language_of(command), near=bool(near))
    return Resolution(None, {}, [], ranked[0].score if ranked else 0.0, shown, question)


def _title(interface: NLWebInterface, action: str) -> str:
    info = interface.info.get(action)
    return f"{spoken(action)} ({info.description.rstrip('.')})" if info and info.description else spoken(action)


def _by_pattern(command: str, interface: NLWebInterface, now: datetime) -> Candidate | None:
    """The action one of whose phrases has the command's form. Of two that fit, the one with more fixed text."""
    found: list[tuple[int, Candidate]] = []
    for action in interface.actions:
        info = interface.info.get(action)
        for phrase in [action, spoken(action), *(info.phrases if info else ())]:
            slots = patterns.match(command, phrase)
            if slots is not None:
                fixed = len(re.sub(r"\{\w+\}", "", phrase))
                told = _without(interface, action, phrase) if info and not slots else interface
                found.append((fixed, _filled_by_pattern(command, told, action, slots, now)))
    whole = [one for one in found if not one[1].missing] or found
    return max(whole, key=lambda one: one[0])[1] if whole else None


def _without(interface: NLWebInterface, action: str, phrase: str) -> NLWebInterface:
    """The interface without an example that has no slots: which of its words are values, only the others can tell."""
    info = interface.info[action]
    left = info.model_copy(update={"phrases": [one for one in info.phrases if one != phrase]})
    return interface.model_copy(update={"info": {**interface.info, action: left}})


def _filled_by_pattern(
    command: str, interface: NLWebInterface, action: str, slots: Mapping[str, str], now: datetime
) -> Candidate:
    """Each slot's text is read by the type of its parameter; what the phrase leaves out comes from the whole."""
    schema = schema_of(interface, action)
    properties = schema.get("properties", {})
    result = fill(command, schema, now, _words(interface).vocabulary(action))
    for name, text in slots.items():
        if name in properties:
            part = fill(text, {"properties": {name: properties[name]}}, now)
            plain = properties[name].get("type", "string") == "string" and "enum" not in properties[name]
            value = part.values.get(name, text if plain else None)
            if value is not None:
                result.values[name] = value if not plain or name in part.doubts or _dated(value) else _kept(value, text)
            result.doubts.update(part.doubts)
    missing = [name for name in schema.get("required", ()) if name not in result.values]
    return Candidate(action, 1.0, result.values, missing, result.doubts)


def _dated(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d(T.*)?|\d\d:\d\d", value) is not None


def _kept(value: Any, text: str) -> Any:
    """A plain text is kept whole, but for an article before a common noun: the phrase says where it ends."""
    return _SOME.sub("", text) if isinstance(value, str) and value in text else value


def _ranked(command: str, interface: NLWebInterface, now: datetime) -> list[Candidate]:
    index = _words(interface)
    said = concepts(command)
    found = []
    for action in interface.actions:
        filled = fill(command, schema_of(interface, action), now, index.vocabulary(action))
        score = index.score(
            action, said, _value_words(filled), concepts(str(filled.values.get(filled.loose or "", "")))
        )
        if score:
            score = min(1.0, max(0.0, score + _SURE_VALUE * min(filled.sure, 3) - _IDLE_VALUE * filled.idle))
        found.append(Candidate(action, round(score, 4), filled.values, filled.missing, filled.doubts))
    return sorted(found, key=lambda one: (-one.score, len(one.missing), one.action))


def _value_words(filled: Filled) -> list[str]:
    """The words of the values, and those of dates and numbers, which are in the command in another form."""
    sure = [value for name, value in filled.values.items() if name != filled.loose]
    texts = [word for value in sure for word in concepts(str(value))]
    left = set(concepts(filled.rest))
    return [*texts, *_ASIDE, *(word for word in concepts(filled.rest) if word.isdigit() and word in left)]


def _by_meaning(
    command: str, interface: NLWebInterface, semantic: Embedder, ranked: Sequence[Candidate]
) -> list[Candidate]:
    """The scores raised by how near a command is to what each action says of itself."""
    texts = [(one.action, text) for one in ranked for text in texts_of(interface, one.action) if text.strip()]
    rows = semantic.embed([command, *(text for _, text in texts)])
    near: dict[str, float] = {}
    for (action, _), row in zip(texts, rows[1:], strict=True):
        near[action] = max(near.get(action, 0.0), float(rows[0] @ row))
    raised = [replace(one, score=_blend(one.score, near.get(one.action, 0.0))) for one in ranked]
    return sorted(raised, key=lambda one: (-one.score, len(one.missing), one.action))


def _blend(words_score: float, cosine: float) -> float:
    """Unrelated sentences have a cosine of about 0.1 to 0.3, paraphrases 0.5 and more."""
    meaning = min(1.0, max(0.0, (cosine - 0.15) / 0.6))
    return round(max(meaning * 0.9, 0.35 * words_score + 0.65 * meaning), 4)


def _clear(ranked: Sequence[Candidate]) -> Candidate | None:
    if not ranked or ranked[0].score < SURE:
        return None
    rivals = [one for one in ranked[1:] if ranked[0].score - one.score < CLEAR]
    # Of two that words cannot tell apart, one whose parameters are all there was probably meant.
    if not rivals or (not ranked[0].missing and ranked[0].slots and all(one.missing for one in rivals)):
        return ranked[0]
    return None


def settled(
    command: str, interface: NLWebInterface, ranked: Sequence[Candidate], best: Candidate, how: How
) -> Resolution:
    """What was decided for, with a question for what is missing or can be read in two ways."""
    slots = {name: value for name, value in best.slots.items() if name not in best.doubts}
    missing = [*best.missing, *(name for name in best.doubts if name not in best.missing)]
    question = None
    if missing:
        properties = schema_of(interface, best.action).get("properties", {})
        question = ask_missing(spoken(best.action), missing, properties, best.doubts, language_of(command))
    return Resolution(best.action, slots, missing, best.score, list(ranked[:_SHOWN]), question, how)


async def _by_model(command: str, interface: NLWebInterface, llm: LLM, found: Resolution) -> Resolution:
    """The model picks an action as a tool and fills it. What it makes up beyond the schema is dropped."""
    tools = [_tool(interface, action) for action in interface.actions]
    system = System(
        f"The website {interface.name} offers these actions as tools. Call the one that the person's command means, "
        "with the parameters that it states. Make nothing up. If none fits, or it is unclear which, call none and ask "
        "one short question."
    )
    reply = await llm.complete([system, User(command)], tools)
    call = next((one for one in reply.calls if one.name in interface.actions), None)
    if call is None:
        return found if found.action else replace(found, question=reply.text.strip() or found.question, how="model")
    action = call.name
    schema = schema_of(interface, action)
    stated = {name: value for name, value in call.arguments.items() if name in schema.get("properties", {})}
    slots = {**(found.slots if found.action == action else {}), **stated}
    missing = [name for name in schema.get("required", ()) if name not in slots]
    best = Candidate(action, 0.9, slots, missing)
    others = [one for one in found.candidates if one.action != action]
    return settled(command, interface, [best, *others], best, "model")


def _tool(interface: NLWebInterface, action: str) -> Tool:
    info = interface.info.get(action)
    examples = f" For example: {'; '.join(info.phrases[:3])}" if info and info.phrases else ""
    described = (info.description if info else "") or spoken(action)
    return Tool(action, f"{described}{examples}", schema_of(interface, action))


def _words(interface: NLWebInterface) -> Words:
    return Words(interface)
