"""Sentences for a website: which of its actions one means, after what was said before, read by the one reader.

A sentence that says all by itself is taken as it stands. One that fits no action, or leaves parameters open, is read
together with the sentences before it: it keeps their action, and what it says itself counts for more. It knows no
browser.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from agent3.arrays import np
from agent3.directory.choice import Choices
from agent3.directory.meaning import encode_agent, load_encoder
from agent3.errors import Agent3Error
from agent3.model import Agent, Capability, Question
from agent3.schema.compiler import compiled
from agent3.sentences import Ask, Forbidden, Reading, Understood, find_prohibition, free_text, read
from agent3.sentences.lexicon import Language, detect_language, is_telling
from agent3.sentences.questions import ask_for, refuse
from agent3.sentences.tokens import LONGEST

__all__ = ["COMMAND", "Choose", "Meaning", "actions_of", "choose_here", "join_follow_up", "understand"]

COMMAND = "command"
"""The capability that takes a sentence and finds the action that it means."""
Choose = Callable[[Agent, Sequence[Capability], str], Awaitable[Capability | None]]
"""The capability that a message clearly means; None where that is not clear."""
_MOST_BACK = 5
"""Sentences back that are looked at."""
_OPENING = re.compile(
    r"^[\s¿¡,.]*(?:and|also|but|or|then|instead|rather|plus|same|what about|how about|ok(?:ay)?,? (?:and|but)"
    r"|y|e|o|también|tambien|pero|entonces|mejor|además|ademas|lo mismo|qué tal|que tal|y si)\b[\s,:]*"
    r"(?:(?:also|también|qué tal|que tal|what about|how about)\b)?[\s,:]*",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"(?<![\s,])[\s,]++(?:instead|rather|too|as well|también|tambien|mejor|en su lugar)[\s.!?]*+$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a sentence means: an action and how it was read; without an action, that it forbids, or is not clear."""

    action: Capability | None
    reading: Reading

    @property
    def input(self) -> dict[str, Any]:
        return {} if isinstance(self.reading, Forbidden) else self.reading.input

    @property
    def questions(self) -> tuple[Question, ...]:
        """What is to be asked about the parameters of the action."""
        return ask_for(self.action, self.reading) if self.action and isinstance(self.reading, Ask) else ()

    @property
    def refusal(self) -> str | None:
        """Why nothing is done, for a sentence that asks for nothing to be done."""
        return refuse(self.reading.why, self.reading.language) if isinstance(self.reading, Forbidden) else None


def actions_of(agent: Agent) -> list[Capability]:
    """The capabilities of a website that are actions."""
    return [capability for capability in agent.capabilities if capability.name != COMMAND]


async def choose_here(agent: Agent, offered: Sequence[Capability], message: str) -> Capability | None:
    """``Directory.choose`` for a website that is in no directory."""

    def find() -> Capability | None:
        encoder = load_encoder()
        if encoder is None:
            return Choices(offered).choose(offered, message, time.time())
        shown = agent if len(offered) == len(agent.capabilities) else replace(agent, capabilities=tuple(offered))
        vectors = encode_agent(encoder, shown).astype(np.float32) / np.float32(127)
        return Choices(offered, encoder, vectors).choose(offered, message, time.time())

    return await asyncio.to_thread(find)


async def understand(
    text: str,
    agent: Agent,
    offered: Sequence[Capability],
    previous: Sequence[str] = (),
    *,
    choose: Choose = choose_here,
    now: datetime | None = None,
) -> Meaning:
    """What a sentence means after ``previous`` ones, the latest of them last. ``offered`` are the actions."""
    now = now or datetime.now()  # noqa: DTZ005 - the user's own day

    async def understand_after(text: str, previous: Sequence[str]) -> Meaning:
        goes_on = is_follow_up(text)
        if goes_on and previous:
            text = text.strip(" ¿?")  # "and for two people?" changes what was asked for
        alone = await _understand_alone(text, agent, offered, choose, now)
        if not previous or isinstance(alone.reading, Forbidden):
            return alone
        if isinstance(alone.reading, Ask):
            alone = Meaning(alone.action, _with_language(alone.reading, _language_of(text, previous)))
        if isinstance(alone.reading, Understood) and not goes_on:
            return alone
        before = await understand_after(previous[-1][:LONGEST], previous[:-1])
        if before.action is None:
            return alone
        if alone.action not in (None, before.action) and not goes_on:
            return _lend(alone, before)
        # A sentence that goes on, and hardly says which action it means, speaks of the one before.
        said = await asyncio.to_thread(_read, before.action, _without_connectives(text), agent, now)
        if isinstance(said, Forbidden):
            return Meaning(None, said)
        if not said.input and not goes_on:
            return alone  # it has nothing to do with what was said before
        return _settle(before.action, {**before.input, **said.input}, said, _language_of(text, previous))

    if len(text) > LONGEST:  # its end may forbid what its beginning says
        return Meaning(None, Ask(language=detect_language(text[:LONGEST])))
    return await understand_after(text, list(previous)[-_MOST_BACK:])


async def _understand_alone(
    text: str, agent: Agent, offered: Sequence[Capability], choose: Choose, now: datetime
) -> Meaning:
    language = detect_language(text)
    if (why := find_prohibition(text, reading=True)) is not None:
        return Meaning(None, Forbidden(why, language))
    action = offered[0] if len(offered) == 1 else await choose(agent, offered, text)
    if action is None:
        return Meaning(None, Ask(language=language))
    reading = await asyncio.to_thread(_read, action, text, agent, now)
    return Meaning(None if isinstance(reading, Forbidden) else action, reading)


def _read(action: Capability, text: str, agent: Agent, now: datetime) -> Reading:
    """As every call is read: the whole text where an action takes it so, else word by word."""
    whole = free_text(action, text, agent=agent.name)
    if isinstance(whole, Forbidden):
        return whole
    return Understood(dict(whole)) if whole else read(action, text, now, agent=agent.name)


def _lend(alone: Meaning, before: Meaning) -> Meaning:
    """Another action, with the earlier values of what it still misses: "book it" after a search."""
    assert alone.action is not None
    assert before.action is not None
    missing = alone.reading.missing if isinstance(alone.reading, Ask) else ()
    wanted, had = _properties(alone.action), _properties(before.action)
    lent = {
        name: before.input[name]
        for name in missing
        if name in before.input and _definition(wanted, name).get("type") == _definition(had, name).get("type")
    }
    if not lent or not isinstance(alone.reading, Ask):
        return alone
    return _settle(alone.action, {**lent, **alone.input}, alone.reading, alone.reading.language)


def _settle(action: Capability, given: dict[str, Any], said: Understood | Ask, language: Language) -> Meaning:
    required = action.input_schema.get("required")
    left = said.left if isinstance(said, Ask) else ()
    doubt = said.doubt if isinstance(said, Ask) else {}
    names = [name for name in required if name not in given] if isinstance(required, list) else []
    missing = tuple(dict.fromkeys([*names, *doubt]))
    if not missing and not left:
        try:
            compiled(action.input_schema).check(given)
        except Agent3Error:
            return Meaning(action, Ask(tuple(given), (), {}, {}, language))
        return Meaning(action, Understood(given, (), said.guessed if isinstance(said, Understood) else ()))
    return Meaning(
        action, Ask(missing, left, {name: given[name] for name in given if name not in doubt}, doubt, language)
    )


def _language_of(text: str, previous: Sequence[str]) -> Language:
    """The language of a sentence; of one that is too short to tell, that of those before it."""
    told = [one for one in (text, *reversed(previous)) if is_telling(one)]
    return detect_language(told[0] if told else text)


def _with_language(asked: Ask, language: Language) -> Ask:
    return asked if asked.language == language else Ask(asked.missing, asked.left, asked.input, asked.doubt, language)


def is_follow_up(text: str) -> bool:
    """Whether a sentence says itself that it goes on from another one."""
    return _OPENING.match(text) is not None or _CLOSING.search(text) is not None


def join_follow_up(text: str, previous: Sequence[str]) -> str:
    """The sentence with the one that it goes on from, for readers that take one sentence only."""
    if not previous or not is_follow_up(text):
        return text
    earlier = join_follow_up(previous[-1], previous[-1 - _MOST_BACK : -1])
    bare = _without_connectives(text)
    return f"{earlier.rstrip(' .!?')}, {bare}" if bare else earlier


def _without_connectives(text: str) -> str:
    return _CLOSING.sub("", _OPENING.sub("", text, count=1)).strip(" ?!.¿¡")


def _properties(capability: Capability) -> Mapping[str, Any]:
    properties = capability.input_schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _definition(properties: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = properties.get(name)
    return part if isinstance(part, Mapping) else {}
