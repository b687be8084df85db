"""The answers in a message to the questions that a task asked.

A2A has no form for questions and their types, so a task sends each as a text for people and as data for programs,
``{"id": …, "schema": …}``. An answer may be data by the ids of questions, ``{"q1": "large"}``; data with an action,
``{"id": "q1", "action": "decline"}``; any other data; or text, which is converted to what the schema asks for where
that needs no guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UnsetType

from agent3.model import Answer, Question
from agent3.protocols.a2a.wire.types import Message
from agent3.schema.coercion import from_words

__all__ = ["answers_to"]

_ACTIONS: Final = ("accept", "decline", "cancel")


def answers_to(questions: Sequence[Question], message: Message) -> dict[str, Answer]:
    """The answers in a message, by question. Questions without an answer are asked again."""
    ids = {question.id for question in questions}
    data = [part.data for part in message.parts if not isinstance(part.data, UnsetType)]
    found: dict[str, Answer] = {}
    for entry in data:
        if not isinstance(entry, Mapping):
            continue
        if isinstance(named := entry.get("id"), str) and named in ids:
            action = entry.get("action", "accept")
            value = next((entry[key] for key in ("answer", "data", "value") if key in entry), None)
            found[named] = Answer(action if action in _ACTIONS else "accept", value)
        else:
            found |= {name: Answer(data=value) for name, value in entry.items() if name in ids}
    if found or not questions:
        return found
    # Nothing names a question, so the message as a whole answers the first one.
    question = questions[0]
    if question.url is not None:
        return {question.id: Answer()}
    if data:
        return {question.id: Answer(data=data[0])}
    text = "\n".join(part.text for part in message.parts if part.text)
    return {question.id: Answer(data=from_words(question.schema or {}, text))}
