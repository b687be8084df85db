"""Words as the value that a schema asks for.

A person answers a question in words, whatever type its schema wants. Words become such a value where that needs no
guess, and stay words otherwise: then the schema says what is wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent3.model import Answer

__all__ = ["choices", "find_field", "from_words", "in_words"]

_POLITE: Final = re.compile(r",?\s*\b(?:please|thanks|thank you|por favor|gracias)\b", re.IGNORECASE)
_LONGEST_YES: Final = 200
_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "y", "true", "ok", "okay", "yep", "yeah", "sure", "go ahead", "do it"), True),
    **dict.fromkeys(("sí", "si", "vale", "claro", "de acuerdo", "adelante", "hazlo"), True),
    **dict.fromkeys(("no", "n", "false", "nope", "nah", "don't", "do not", "no lo hagas", "mejor no"), False),
}


def in_words(definition: Mapping[str, Any] | None, text: str) -> Answer:
    """An answer that was given in words: as the value that it stands for, with the words it was made of."""
    value = text if definition is None else from_words(definition, text)
    return Answer(data=value, words="" if isinstance(value, str) else text)


def from_words(definition: Mapping[str, Any], text: str) -> Any:
    """The value that a text stands for; the text itself where it stands for none."""
    kind = definition.get("type")
    if isinstance(options := definition.get("enum"), list):
        plain = text.strip().casefold()
        return next((option for option in options if str(option).casefold() == plain), text)
    if kind == "object":
        if isinstance(value := _decode(text), dict):
            return value
        # Words can stand for an object that asks for one thing only.
        name, field = find_field("", definition)
        return {name: from_words(field, text)} if name else text
    if kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return text
    if kind == "boolean":
        said = _POLITE.sub("", text).strip(" .!,").lower() if len(text) <= _LONGEST_YES else ""
        return _BOOLEANS[said] if said in _BOOLEANS else _decode(text)
    if kind == "array":
        value = _decode(text)
        return value if isinstance(value, list) else _split(definition, text)
    return _decode(text)


def find_field(name: str, definition: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
    """What an answer in words is for: the only field that a form wants, or else the whole, under its own name."""
    if definition is None or definition.get("type") != "object":
        return name, definition or {}
    properties = _properties(definition)
    required = definition.get("required")
    names = required if isinstance(required, list) and required else properties
    wanted = [one for one in names if one in properties]
    return (wanted[0], properties[wanted[0]]) if len(wanted) == 1 else (name, definition)


def choices(definition: Mapping[str, Any] | None) -> Sequence[Any]:
    """The values that a schema allows, if they are few; empty if it is open."""
    if definition is None:
        return ()
    if isinstance(options := definition.get("enum"), list):
        return options
    if definition.get("type") == "object":
        name, field = find_field("", definition)
        return choices(field) if name else ()
    return ("yes", "no") if definition.get("type") == "boolean" else ()


def _split(definition: Mapping[str, Any], text: str) -> Any:
    """The items of a list that is given in words: "red, blue"."""
    items = definition.get("items")
    item = items if isinstance(items, Mapping) else {}
    return [
        from_words(item, part) for one in text.strip().strip("[]").split(",") if (part := one.strip(" \"'"))
    ] or text


def _properties(definition: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The properties of an object. A stranger's schema may hold anything there; ``true`` means any value."""
    given = definition.get("properties")
    known = given if isinstance(given, Mapping) else {}
    return {name: part if isinstance(part, Mapping) else {} for name, part in known.items()}


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
