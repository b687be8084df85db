"""Example phrases as patterns: ``flights from {origin} to {destination}`` fits what people say in that form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from agent3.protocols.nlweb.commands.lexicon import fold

__all__ = ["match"]

_SLOT = re.compile(r"\{([A-Za-z_]\w*)\}")
_BLANK = re.compile(r"\s+")
_POLITE = re.compile(
    r"^(?:(?:please|hey|hi|hello|hola|por favor|can you|could you|i want to|i need to|i'd like to|quiero|necesito"
    r"|me gustaria|puedes|podrias)[,\s]+)+|[,\s]*(?:please|por favor|thanks|thank you|gracias)?[\s.!?]*$"
)


def match(command: str, phrase: str) -> Mapping[str, str] | None:
    """The texts that stand for the phrase's slots if the whole command has its form; None if it has not."""
    pattern = _compiled(phrase)
    plain = "".join((fold(one) or one)[0] for one in command)
    start, end = _core(plain)
    found = pattern.fullmatch(plain[start:end])
    if found is None:
        return None
    return {name: command[start + found.start(name) : start + found.end(name)].strip() for name in found.groupdict()}


def _core(plain: str) -> tuple[int, int]:
    """Where the command is without its courtesies."""
    places = [one.span() for one in _POLITE.finditer(plain)]
    start = places[0][1] if places and places[0][0] == 0 and places[0][1] < len(plain) else 0
    end = places[-1][0] if places and places[-1][1] == len(plain) else len(plain)
    return start, max(start, end)


@lru_cache(maxsize=4096)
def _compiled(phrase: str) -> re.Pattern[str]:
    """Two slots of one name would be no pattern; the second is then read as text of its own."""
    parts: list[str] = []
    seen: set[str] = set()
    at = 0
    for slot in _SLOT.finditer(phrase):
        parts.append(_literal(phrase[at : slot.start()]))
        parts.append(rf"[\"'“«]?(?P<{slot[1]}>.+?)[\"'”»]?" if slot[1] not in seen else r".+?")
        seen.add(slot[1])
        at = slot.end()
    parts.append(_literal(phrase[at:]))
    return re.compile("".join(parts))


def _literal(text: str) -> str:
    return _BLANK.sub(r"\\s+", re.escape(fold(text)).replace(r"\ ", " ")) if text else ""
