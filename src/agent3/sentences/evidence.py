"""Whether an input is said by a message: each of its values stands there, or follows from what stands there.

For input that somebody else proposes, such as a language model. It judges; it proposes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

from agent3.sentences.lexicon import fold, meanings, ways_to_say
from agent3.sentences.slots import split_name
from agent3.sentences.tokens import LONGEST, Sentence

__all__ = ["find_unsaid", "words_in"]


def find_unsaid(message: str, given: Mapping[str, Any], now: datetime) -> list[str]:
    """The names of the parameters whose values the message does not say."""
    sentence = Sentence(message[:LONGEST], now)
    plain = " ".join(re.findall(r"\w+", fold(message)))
    values: set[Any] = {_comparable(value) for atom in sentence.atoms for value in _several(atom.value)}
    values |= {atom.unit for atom in sentence.atoms if atom.unit}
    days = {atom.value.isoformat() for atom in sentence.atoms if isinstance(atom.value, date)}
    clocks = {one.strftime("%H:%M") for atom in sentence.atoms for one in _several(atom.value) if isinstance(one, time)}
    said = {meaning for token in sentence.tokens for meaning in token.means}

    def is_said(name: str, value: Any) -> bool:
        if isinstance(value, bool):
            return any(meanings(word) & said for word in split_name(name))
        if isinstance(value, int | float):
            return value in values or str(value) in plain.split()
        if not isinstance(value, str) or not value:
            return False
        words = " ".join(re.findall(r"\w+", fold(value)))
        if words and f" {words} " in f" {plain} ":
            return True
        if value in values or value in days or value in clocks:
            return True
        if len(value) >= 16 and value[:10] in days and value[11:16] in clocks:
            return True
        return any(f" {' '.join(row)} " in f" {plain} " for row in ways_to_say(value) if row)

    return [name for name, value in given.items() if not all(is_said(*leaf) for leaf in _leaves(name, value))]


def words_in(value: Any) -> set[str]:
    """The words of all texts in a value, folded."""
    return {word for _, leaf in _leaves("", value) for word in re.findall(r"\w+", fold(str(leaf)))}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(str(key), part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(name, part)
    else:
        yield name, value


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _comparable(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | time) else value
