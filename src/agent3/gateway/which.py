"""Which of its capabilities an agent is asked for, where the message does not say: a question, and its answer.

A target that is ``undecided`` is no call yet. The gateway asks which capability is meant; the answer names it, and
starts the call with what was said before. A door has nothing to do for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from agent3.directory.choice import choose, index_capabilities
from agent3.model import Agent, Answer, Capability, Needs, Part, Question, one_line
from agent3.sentences import FREE_TEXT, Understood, acts, free_text, read, talks, understands
from agent3.sentences.answers import find_listed, judge_words
from agent3.sentences.lexicon import detect_language
from agent3.sentences.prohibitions import agrees
from agent3.sentences.tokens import LONGEST

__all__ = [
    "MOST_LISTED",
    "QUESTION",
    "ask_again",
    "ask_which",
    "is_undecided",
    "listed_in",
    "read_choice",
    "refuses",
    "said_in",
    "starts_at_once",
    "takes_any",
    "undecided",
    "write_question",
]

QUESTION = "capability"
"""The id of the question."""
MOST_LISTED = 20
_LISTED, _MORE = "agent3:listed", "agent3:more"
_LONGEST = 100
_SPANISH = "No está claro"
_REPROACH = re.compile(r" \((?:invalid|no válido): ")


def undecided(listed: Sequence[Capability], more: int = 0) -> Capability:
    """What stands for the capability of a call until the caller has named it; ``more`` are there than are listed."""
    # Without modes of its own: what the call brings is judged by the capability that is named.
    meta = {_LISTED: [_describe(one) for one in listed], _MORE: more}
    return Capability(name="", input_modes=(), output_modes=(), meta=meta)


def is_undecided(capability: Capability) -> bool:
    """Whether the caller still has to say which capability is meant."""
    return not capability.name and _LISTED in capability.meta


def takes_any(capability: Capability, message: str) -> bool:
    """Whether the only capability of an agent is meant whatever a message says: it only reads, or its input is what
    somebody says, and it does not act on that by itself.
    """
    if capability.hints.read_only or not message.strip() or capability.meta.get("reads") in ("messages", "commands"):
        return True
    schema = capability.input_schema
    if FREE_TEXT in schema or talks(capability) or understands(capability):
        return True  # it converses
    if "properties" not in schema and schema.get("additionalProperties") is not False:
        return True  # it takes whatever it is given
    hears = capability.meta.get("reads") == "context" and not schema.get("properties")
    return (hears or free_text(capability, message) is not None) and not acts(capability)


def starts_at_once(agent: Agent, capability: Capability, message: str, now: float) -> bool:
    """Whether a message would start a capability without saying anything for it: nothing is missing, and nothing is
    left over that would be asked about. Made in a thread.
    """
    reading = read(capability, message, datetime.fromtimestamp(now), agent=agent.name)  # noqa: DTZ006 - the user's day
    return isinstance(reading, Understood) and not reading.input


def ask_which(agent: Agent, capability: Capability, message: str) -> Needs:
    """The question, in the language of the message."""
    listed, more = capability.meta[_LISTED], capability.meta[_MORE]
    names = [name for name, _ in listed]
    schema: dict[str, Any] = {"type": "string"} if more else {"type": "string", "enum": names}
    return Needs((Question(QUESTION, _write(agent.name, listed, more, message), schema),), state={_LISTED: names})


def write_question(name: str, offered: Sequence[Capability], message: str) -> str:
    """Which of the offered capabilities is meant, in the language of the message; for an agent that asks by itself."""
    listed = [_describe(one) for one in offered[:MOST_LISTED]]
    return _write(name, listed, len(offered) - len(listed), message)


def _write(name: str, listed: Sequence[Sequence[str]], more: int, message: str) -> str:
    spanish = detect_language(message[:LONGEST]) == "es"
    first = (
        f"{_SPANISH} qué debe hacer {name}. ¿Cuál de estas opciones quiere?"
        if spanish
        else f"It is not clear what {name} should do. Which one do you mean?"
    )
    if len(listed) == 1 and not more:
        first = (
            f"No está claro si el mensaje es para {name}. ¿Debe hacer esto?"
            if spanish
            else f"It is not clear whether the message is for {name}. Should it do this?"
        )
    lines = [first, *(f"- {one}: {about}" if about else f"- {one}" for one, about in listed)]
    if more:
        lines.append(f"… y {more} más; indique el nombre." if spanish else f"… and {more} more; answer with a name.")
    return "\n".join(lines)


def _describe(capability: Capability) -> list[str]:
    return [capability.name, one_line(capability.description, _LONGEST)]


def ask_again(question: Question, said: str, state: Any) -> Needs:
    """The same question, after an answer that names nothing."""
    text = _REPROACH.split(question.text, maxsplit=1)[0]
    # In the language of the question: an answer is often a single word.
    reproach = "no válido" if text.startswith(_SPANISH) else "invalid"
    return Needs((replace(question, text=f"{text} ({reproach}: {one_line(said, _LONGEST)!r})"),), state=state)


def listed_in(state: Any) -> list[str]:
    """The names that were listed with a question."""
    found = state.get(_LISTED) if isinstance(state, Mapping) else None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def said_in(answer: Answer) -> str:
    """The words of an answer; empty where it has none."""
    data = answer.data
    if isinstance(data, Mapping) and set(data) == {QUESTION}:  # a form with one field
        data = data[QUESTION]
    if isinstance(data, int) and not isinstance(data, bool):  # the place in the list
        return str(data)
    return data.strip() if isinstance(data, str) else ""


def refuses(question: Question, said: str) -> bool:
    """Whether an answer drops the matter, and names nothing."""
    return judge_words(_NOTHING, question, said) == "refused"


_NOTHING = Capability(name="")


def read_choice(listed: Sequence[Capability], said: str, now: float) -> tuple[Capability, tuple[Part, ...]] | None:
    """The listed capability that an answer means, and what it adds to the message; None where that is not clear.

    A sentence that chooses is also part of what the caller wants; a name, a title or a place in the list is not.
    """
    names, titles = [one.name for one in listed], [one.title or one.name for one in listed]
    if (place := find_listed(names, said, titles)) is not None:
        return listed[place], ()
    if len(listed) == 1 and agrees(said):
        return listed[0], ()
    best = choose(index_capabilities(listed), listed, said, now) if said else None
    return None if best is None else (best, (Part(text=said),))
