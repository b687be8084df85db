"""Words as the value that a schema asks for.

A person answers a question in words, whatever type its schema wants. Words become such a value where that needs no
guess, and stay words otherwise: then the schema says what is wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

__all__ = ["choices", "from_words"]

_POLITE: Final = re.compile(r",?\s*\b(?:please|thanks|thank you|por favor|gracias)\b", re.IGNORECASE)
_LONGEST_YES: Final = 200
_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "y", "true", "ok", "okay", "yep", "yeah", "sure", "go ahead", "do it"), True),
    **dict.fromkeys(("sí", "si", "vale", "claro", "de acuerdo", "adelante", "hazlo"), True),
    **dict.fromkeys(("no", "n", "false", "nope", "nah", "don't", "do not", "no lo hagas", "mejor no"), False),
}


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
        properties = _properties(definition)
        required = definition.get("required")
        names = required if isinstance(required, list) and required else properties
        wanted = [name for name in names if name in properties]
        return {wanted[0]: from_words(properties[wanted[0]], text)} if len(wanted) == 1 else text
    if kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return text
    if kind == "boolean":
        said = _POLITE.sub("", text).strip(" .!,").lower() if len(text) <= _LONGEST_YES else ""
        return _BOOLEANS[said] if said in _BOOLEANS else _decode(text)
    return _decode(text)


def choices(definition: Mapping[str, Any] | None) -> Sequence[Any]:
    """The values that a schema allows, if they are few; empty if it is open."""
    if definition is None:
        return ()
    if isinstance(options := definition.get("enum"), list):
        return options
    if definition.get("type") == "object" and len(properties := _properties(definition)) == 1:
        return choices(next(iter(properties.values())))
    return ("yes", "no") if definition.get("type") == "boolean" else ()


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
