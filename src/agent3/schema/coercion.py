"""What people say, as what a schema asks for.

A person answers a question in words, whatever type its schema wants. Here words become such a value where that can be
done without guessing, and stay words where it cannot: then the schema says what is wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

__all__ = ["choices", "from_words"]

_POLITE: Final = re.compile(r",?\s*\b(?:please|thanks|thank you|por favor|gracias)\b", re.IGNORECASE)
_SAID: Final = {
    **dict.fromkeys(("yes", "y", "true", "ok", "sí", "si"), True),
    **dict.fromkeys(("no", "n", "false"), False),
}


def from_words(definition: Mapping[str, Any], text: str) -> Any:
    """The value that a text stands for; the text itself where it stands for none."""
    kind = definition.get("type")
    if isinstance(listed := definition.get("enum"), list):
        return _among(listed, text)
    if kind == "object":
        return _filled(definition, text)
    if kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return text
    if kind == "boolean" and (said := _SAID.get(_POLITE.sub("", text).strip(" .!,").lower())) is not None:
        return said
    return _decoded(text)


def choices(definition: Mapping[str, Any] | None) -> Sequence[Any]:
    """What can be said where only a few things can; nothing where it is open."""
    if definition is None:
        return ()
    if isinstance(listed := definition.get("enum"), list):
        return listed
    if definition.get("type") == "object" and len(fields := _fields(definition)) == 1:
        return choices(next(iter(fields.values())))
    return ("yes", "no") if definition.get("type") == "boolean" else ()


def _among(listed: Sequence[Any], text: str) -> Any:
    """One of several values, however it is written."""
    plain = text.strip().casefold()
    return next((one for one in listed if str(one).casefold() == plain), text)


def _filled(definition: Mapping[str, Any], text: str) -> Any:
    """An object: from JSON, or with the words as the only thing that it asks for."""
    if isinstance(whole := _decoded(text), dict):
        return whole
    properties = _fields(definition)
    needed = definition.get("required")
    wanted = [one for one in (needed if isinstance(needed, list) and needed else properties) if one in properties]
    return {wanted[0]: from_words(properties[wanted[0]], text)} if len(wanted) == 1 else text


def _fields(definition: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The parts of an object; a stranger's schema may say anything of them, and ``true`` means whatever you like."""
    given = definition.get("properties")
    known = given if isinstance(given, Mapping) else {}
    return {name: one if isinstance(one, Mapping) else {} for name, one in known.items()}


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
