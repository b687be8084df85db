"""From a command in natural language to an action and its parameters, or to a question.

In order: the form of an example phrase, words (BM25), meaning (embeddings, if installed), a language model (if set). An
answer is taken only above a threshold and clear of the next best; otherwise the person is asked, with the best
candidates and what is missing. Nothing is done here: it knows no browser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from agent3.definitions import NLWebInterface
from agent3.llm import LLM, System, Tool, User
from agent3.protocols.nlweb.commands.command import Command, match_phrase
from agent3.protocols.nlweb.commands.embeddings import Embedder
from agent3.protocols.nlweb.commands.ranking import WordIndex, action_texts, as_words
from agent3.protocols.nlweb.commands.slots import fill_slots
from agent3.protocols.nlweb.steps.parameters import parameter_names
from agent3.sentences.evidence import find_unsaid
from agent3.sentences.lexicon import Language, detect_language, to_concepts
from agent3.sentences.prohibitions import find_prohibition
from agent3.sentences.questions import refuse

__all__ = ["Candidate", "Resolution", "ask_missing", "ask_which", "input_schema", "resolve", "resolve_with_model",
           "settle"]  # fmt: skip

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
_PLACEHOLDER = re.compile(r"\{\w+\}")
_ARTICLE = re.compile(r"^(?:an?|some|any|un|una|unos|unas|alg[uú]n|alguna)\s+(?=[a-z])")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(T.*)?|\d\d:\d\d")
_DAY_WORDS = frozenset("date day tomorrow today hoy manana".split())
"""Words of days: they are in the command, and in its values in another form."""


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
    forbidden: bool = False
    """It asks for nothing to be done: it forbids, sets a condition, wonders, or takes something back."""


def resolve(
    command: str, interface: NLWebInterface, *, semantic: Embedder | None = None, now: datetime | None = None
) -> Resolution:
    """The action and parameters that ``command`` means, or a question.

    ``semantic`` compares by meaning where words leave it open; ``embeddings.load()`` gives the installed one.
    """
    now = now or datetime.now()  # noqa: DTZ005 - the user's own day
    if (why := find_prohibition(command[:_LONGEST], reading=True)) is not None:
        return Resolution(None, {}, [], 0.0, [], refuse(why, detect_language(command)), forbidden=True)
    said = Command.read(command.strip()[:_LONGEST], now)
    # From the surest way to the weakest; each is asked only if the one before left it open.
    if (exact := _find_by_pattern(said, interface, now)) is not None:
        return settle(said.text, interface, [exact], exact, "pattern")
    ranked = _rank_by_words(said, interface)
    if (sure := _find_clear(ranked)) is not None:
        return settle(said.text, interface, ranked, sure, "words")
    if semantic is not None and ranked:
        ranked = _rank_by_meaning(said.text, interface, semantic, ranked)
        if (sure := _find_clear(ranked)) is not None:
            return settle(said.text, interface, ranked, sure, "meaning")
    near = [candidate for candidate in ranked[:_SHOWN] if candidate.score >= _LEAST_SHOWN]
    shown = near or ranked[:_SHOWN]
    titles = []
    for candidate in shown:
        info, title = interface.info.get(candidate.action), as_words(candidate.action)
        titles.append(f"{title} ({info.description.rstrip('.')})" if info and info.description else title)
    question = ask_which(titles, detect_language(said.text), near=bool(near))
    return Resolution(None, {}, [], ranked[0].score if ranked else 0.0, shown, question)


async def resolve_with_model(
    command: str, interface: NLWebInterface, llm: LLM, *, semantic: Embedder | None = None, now: datetime | None = None
) -> Resolution:
    """``resolve``, and the language model where that leaves something open."""
    found = resolve(command, interface, semantic=semantic, now=now)
    if found.forbidden or (found.action and not found.missing):
        return found
    # The model picks an action as a tool and fills it. What it makes up beyond the schema is dropped.
    tools = []
    for action in interface.actions:
        info = interface.info.get(action)
        examples = f" For example: {'; '.join(info.phrases[:3])}" if info and info.phrases else ""
        described = (info.description if info else "") or as_words(action)
        tools.append(Tool(action, f"{described}{examples}", input_schema(interface, action)))
    system = System(
        f"The website {interface.name} offers these actions as tools. Call the one that the person's command means, "
        "with the parameters that it states. Make nothing up. If none fits, or it is unclear which, call none and ask "
        "one short question."
    )
    reply = await llm.complete([system, User(command)], tools)
    call = next((call for call in reply.calls if call.name in interface.actions), None)
    if call is None:
        return found if found.action else replace(found, question=reply.text.strip() or found.question, how="model")
    schema = input_schema(interface, call.name)
    stated = {name: value for name, value in call.arguments.items() if name in schema.get("properties", {})}
    for name in find_unsaid(command, stated, now or datetime.now()):  # noqa: DTZ005 - the user's own day
        del stated[name]  # a value that nobody said is asked for
    slots = {**(found.slots if found.action == call.name else {}), **stated}
    missing = [name for name in schema.get("required", ()) if name not in slots]
    best = Candidate(call.name, 0.9, slots, missing)
    others = [candidate for candidate in found.candidates if candidate.action != call.name]
    return settle(command, interface, [best, *others], best, "model")


def input_schema(interface: NLWebInterface, action: str) -> dict[str, Any]:
    """The input schema of an action: its own, or the placeholders of its steps as required texts."""
    info = interface.info.get(action)
    if info is not None and info.input_schema is not None:
        return info.input_schema
    names = sorted(parameter_names(interface.actions[action]))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


def settle(
    command: str, interface: NLWebInterface, ranked: Sequence[Candidate], best: Candidate, how: How
) -> Resolution:
    """The resolution for a candidate, with a question for what is missing or can be read in two ways."""
    slots = {name: value for name, value in best.slots.items() if name not in best.doubts}
    missing = [*best.missing, *(name for name in best.doubts if name not in best.missing)]
    question = None
    if missing:
        properties = input_schema(interface, best.action).get("properties", {})
        question = ask_missing(as_words(best.action), missing, properties, best.doubts, detect_language(command))
    return Resolution(best.action, slots, missing, best.score, list(ranked[:_SHOWN]), question, how)


# By the form of a phrase


def _find_by_pattern(command: Command, interface: NLWebInterface, now: datetime) -> Candidate | None:
    """The action one of whose phrases has the command's form. Of two that fit, the one with more fixed text."""
    found: list[tuple[int, Candidate]] = []
    for action in interface.actions:
        info = interface.info.get(action)
        for phrase in [action, as_words(action), *(info.phrases if info else ())]:
            slots = match_phrase(command, phrase)
            if slots is None:
                continue
            described = interface
            if info and not slots:
                # A phrase without slots says which action is meant, and nothing of its parameters: its words may be
                # values, as the others can tell.
                others = info.model_copy(update={"phrases": [other for other in info.phrases if other != phrase]})
                described = interface.model_copy(update={"info": {**interface.info, action: others}})
            fixed = len(_PLACEHOLDER.sub("", phrase))
            found.append((fixed, _fill_by_pattern(command, described, action, slots, now)))
    complete = [pair for pair in found if not pair[1].missing] or found
    return max(complete, key=lambda pair: pair[0])[1] if complete else None


def _fill_by_pattern(
    command: Command, interface: NLWebInterface, action: str, slots: Mapping[str, str], now: datetime
) -> Candidate:
    """Each slot's text is read by the type of its parameter; what the phrase leaves out comes from the whole."""
    schema = input_schema(interface, action)
    properties = schema.get("properties", {})
    result = fill_slots(command, schema, WordIndex(interface).vocabulary(action))
    for name, text in slots.items():
        if name not in properties:
            continue
        part = fill_slots(Command.read(text, now), {"properties": {name: properties[name]}})
        result.doubts.update(part.doubts)
        if properties[name].get("type", "string") != "string" or "enum" in properties[name]:
            if (value := part.values.get(name)) is not None:
                result.values[name] = value
            continue
        value = part.values.get(name, text)
        # A plain text is kept whole, but for an article before a common noun: the phrase says where it ends.
        is_text = isinstance(value, str) and not _MOMENT.fullmatch(value) and value in text
        result.values[name] = _ARTICLE.sub("", text) if is_text and name not in part.doubts else value
    missing = [name for name in schema.get("required", ()) if name not in result.values]
    return Candidate(action, 1.0, result.values, missing, result.doubts)


# By words and by meaning


def _rank_by_words(command: Command, interface: NLWebInterface) -> list[Candidate]:
    index = WordIndex(interface)
    found = []
    for action in interface.actions:
        filled = fill_slots(command, input_schema(interface, action), index.vocabulary(action))
        loose = to_concepts(str(filled.values.get(filled.loose or "", "")))
        values = [*_DAY_WORDS, *(word for word in to_concepts(filled.rest) if word.isdigit())]
        for name, value in filled.values.items():
            values += to_concepts(str(value)) if name != filled.loose else []
        score = index.score(action, command.concepts, values, loose)
        if score:
            score = min(1.0, max(0.0, score + _SURE_VALUE * min(filled.sure, 3) - _IDLE_VALUE * filled.idle))
        found.append(Candidate(action, round(score, 4), filled.values, filled.missing, filled.doubts))
    return sorted(found, key=_by_score)


def _rank_by_meaning(
    command: str, interface: NLWebInterface, semantic: Embedder, ranked: Sequence[Candidate]
) -> list[Candidate]:
    """The scores raised by how near a command is to what each action says of itself."""
    texts = [
        (candidate.action, text)
        for candidate in ranked
        for text in action_texts(interface, candidate.action)
        if text.strip()
    ]
    rows = semantic.embed([command, *(text for _, text in texts)])
    near: dict[str, float] = {}
    for (action, _), row in zip(texts, rows[1:], strict=True):
        near[action] = max(near.get(action, 0.0), float(rows[0] @ row))
    raised = []
    for candidate in ranked:
        # Unrelated sentences have a cosine of about 0.1 to 0.3, paraphrases 0.5 and more.
        meaning = min(1.0, max(0.0, (near.get(candidate.action, 0.0) - 0.15) / 0.6))
        score = max(meaning * 0.9, 0.35 * candidate.score + 0.65 * meaning)
        raised.append(replace(candidate, score=round(score, 4)))
    return sorted(raised, key=_by_score)


def _by_score(candidate: Candidate) -> tuple[float, int, str]:
    return -candidate.score, len(candidate.missing), candidate.action


def _find_clear(ranked: Sequence[Candidate]) -> Candidate | None:
    if not ranked or ranked[0].score < SURE:
        return None
    rivals = [candidate for candidate in ranked[1:] if ranked[0].score - candidate.score < CLEAR]
    # Of two that words cannot tell apart, one whose parameters are all there was probably meant.
    if not rivals or (not ranked[0].missing and ranked[0].slots and all(rival.missing for rival in rivals)):
        return ranked[0]
    return None


_MOST_CHOICES = 8


def ask_which(titles: Sequence[str], language: Language, *, near: bool = True) -> str:
    """Which of these was meant; where none is near, what can be done at all."""
    if not titles:
        return "Este sitio no ofrece acciones." if language == "es" else "This website offers no actions."
    if language == "es":
        several = _join(titles, "o")
        if not near:
            return f"No sé hacer eso aquí. Puedes, por ejemplo: {several}. ¿Qué quieres hacer?"
        return f"No estoy seguro de qué quieres hacer. ¿Te refieres a {several}?"
    several = _join(titles, "or")
    if not near:
        return f"I cannot do that here. You can, for example: {several}. What do you want to do?"
    return f"I am not sure what you want to do. Do you mean {several}?"


def ask_missing(
    action: str,
    missing: Sequence[str],
    properties: Mapping[str, Any],
    doubts: Mapping[str, Sequence[Any]],
    language: Language,
) -> str:
    """What is still needed, with its choices, and which reading of a doubtful value is right."""
    both, either = ("y", "o") if language == "es" else ("and", "or")
    absent = []
    for name in (name for name in missing if name not in doubts):
        schema = properties.get(name, {})
        hint = str(schema.get("description") or "").rstrip(".")
        if choices := schema.get("enum"):
            hint = _join([str(choice) for choice in choices[:_MOST_CHOICES]], either)
        absent.append(f"{as_words(name)} ({hint})" if hint else as_words(name))
    parts = []
    if absent:
        listed = _join(absent, both)
        parts.append(
            f"Para {action} me falta: {listed}." if language == "es" else f"To {action} I still need: {listed}."
        )
    for name, readings in doubts.items():
        listed = _join([str(reading) for reading in readings], either)
        parts.append(f"¿{as_words(name)} es {listed}?" if language == "es" else f"Is {as_words(name)} {listed}?")
    return " ".join(parts)


def _join(items: Sequence[str], word: str) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
