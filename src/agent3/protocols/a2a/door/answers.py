"""What a message answers, where a task had asked something.

A2A has no word for questions and their types, so a task tells each as a text for people and as data for programs,
``{"id": …, "schema": …}``. An answer comes back in any of these ways: data by the questions' ids, ``{"q1": "large"}``;
data with an action of its own, ``{"id": "q1", "action": "decline"}``; a single datum; or words, which are taken for
what the schema asks for where that can be done without guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UnsetType

from agent3.model import Answer, Question
from agent3.protocols.a2a.wire.types import Message
from agent3.schema.coercion import from_words

__all__ = ["answers_to"]

_ACTIONS: Final = ("accept", "decline", "cancel")


def answers_to(questions: Sequence[Question], message: Message) -> dict[str, Answer]:
    """The answers in a message, by question. What is left unanswered is asked again."""
    data = [part.data for part in message.parts if not isinstance(part.data, UnsetType)]
    found: dict[str, Answer] = {}
    for one in data:
        found |= _by_id(questions, one)
    open_now = [one for one in questions if one.id not in found]
    if not found and open_now:
        text = "\n".join(part.text for part in message.parts if part.text)
        found[open_now[0].id] = _plain(open_now[0], data, text)
    return found


def _by_id(questions: Sequence[Question], data: Any) -> dict[str, Answer]:
    """Answers that name what they answer."""
    if not isinstance(data, Mapping):
        return {}
    names = {one.id for one in questions}
    if isinstance(named := data.get("id"), str) and named in names:
        action = data.get("action", "accept")
        value = next((data[key] for key in ("answer", "data", "value") if key in data), None)
        return {named: Answer(action if action in _ACTIONS else "accept", value)}
    return {name: Answer(data=value) for name, value in data.items() if name in names}


def _plain(question: Question, data: Sequence[Any], text: str) -> Answer:
    if question.url is not None:
        return Answer()
    if data:
        return Answer(data=data[0])
    return Answer(data=from_words(question.schema or {}, text))
