"""Example phrases as patterns: ``flights from {origin} to {destination}`` fits what people say in that form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from agent3.protocols.nlweb.commands.command import Command
from agent3.protocols.nlweb.commands.lexicon import fold

__all__ = ["match_phrase"]

_SLOT = re.compile(r"\{([A-Za-z_]\w*)\}")
_BLANK = re.compile(r"\s+")


def match_phrase(command: Command, phrase: str) -> Mapping[str, str] | None:
    """The texts that stand for the phrase's slots if the whole command has its form; None if it has not."""
    start, end = command.core
    found = _compile(phrase).fullmatch(command.plain[start:end])
    if found is None:
        return None
    return {
        name: command.text[start + found.start(name) : start + found.end(name)].strip() for name in found.groupdict()
    }


@lru_cache(maxsize=4096)
def _compile(phrase: str) -> re.Pattern[str]:
    # Texts and names of slots by turns. Of two slots with one name the second is read as any text.
    texts_and_names = _SLOT.split(phrase)
    parts: list[str] = []
    seen: set[str] = set()
    for text, name in zip(texts_and_names[::2], [*texts_and_names[1::2], None], strict=True):
        parts.append(_BLANK.sub(r"\\s+", re.escape(fold(text)).replace(r"\ ", " ")))
        if name is not None:
            parts.append(rf"[\"'“«]?(?P<{name}>.+?)[\"'”»]?" if name not in seen else r".+?")
            seen.add(name)
    return re.compile("".join(parts))
