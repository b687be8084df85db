"""Commands that go on from an earlier one: "and for two people?" after a booking. By plain rules, without a model.

A sentence that says all by itself is taken as it stands. One that fits no action, or leaves parameters open, is read
together with the sentences before it: it keeps their action, and what it says itself counts for more. It knows no
browser and no protocol.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from agent3.definitions import NLWebInterface
from agent3.protocols.nlweb.commands.embeddings import Embedder
from agent3.protocols.nlweb.commands.ranking import Words
from agent3.protocols.nlweb.commands.resolution import Candidate, Resolution, resolve, schema_of, settled
from agent3.protocols.nlweb.commands.slots import Filled, fill

__all__ = ["follow", "joined", "leans"]

_MOST = 5
"""Sentences back that are looked at."""
_LONGEST = 2_000
_OPENING = re.compile(
    r"^[\s¿¡,.]*(?:and|also|but|or|then|instead|rather|plus|same|what about|how about|ok(?:ay)?,? (?:and|but)"
    r"|y|e|o|también|tambien|pero|entonces|mejor|además|ademas|lo mismo|qué tal|que tal|y si)\b[\s,:]*"
    r"(?:(?:also|también|qué tal|que tal|what about|how about)\b)?[\s,:]*",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"[\s,]+(?:instead|rather|too|as well|también|tambien|mejor|en su lugar)[\s.!?]*$", re.IGNORECASE)


def leans(text: str) -> bool:
    """Whether a sentence says itself that it goes on from another one."""
    return _OPENING.match(text) is not None or _CLOSING.search(text) is not None


def _bare(text: str) -> str:
    return _CLOSING.sub("", _OPENING.sub("", text, count=1)).strip()


def joined(text: str, previous: Sequence[str]) -> str:
    """The sentence for who cannot be given the earlier ones: with the one it leans on, where it does lean on one."""
    if not previous or not leans(text):
        return text
    earlier = joined(previous[-1], previous[-1 - _MOST : -1])
    bare = _bare(text)
    return f"{earlier.rstrip(' .!?')}, {bare}" if bare else earlier


def follow(
    text: str,
    previous: Sequence[str],
    interface: NLWebInterface,
    *,
    semantic: Embedder | None = None,
    now: datetime | None = None,
) -> Resolution:
    """``resolve`` for a sentence after others, the latest of them last."""
    now = now or datetime.now()  # noqa: DTZ005 - the user's own day
    found = resolve(text, interface, semantic=semantic, now=now)
    if not previous or (found.action is not None and not found.missing and not leans(text)):
        return found
    kept = list(previous)[-_MOST:]
    before = follow(kept[-1][:_LONGEST], kept[:-1], interface, semantic=semantic, now=now)
    if before.action is None:
        return found
    if found.action is not None and found.action != before.action and not _is_only_leaning(found, text):
        return _lent(text, found, before, interface)
    return _continued(text, found, before, interface, now)


def _is_only_leaning(found: Resolution, text: str) -> bool:
    """A sentence that leans, and whose action was hardly said, speaks of the one before."""
    return leans(text) and found.how != "pattern" and bool(found.missing)


def _continued(
    text: str, found: Resolution, before: Resolution, interface: NLWebInterface, now: datetime
) -> Resolution:
    """The earlier action, with what the sentence says of it."""
    assert before.action is not None
    said = fill(_bare(text), schema_of(interface, before.action), now, Words(interface).vocabulary(before.action))
    values = _meant(said, sure=not leans(text))
    doubts = {name: options for name, options in said.doubts.items() if name not in values or name in said.values}
    if not values and not doubts and not leans(text):
        return found  # it has nothing to do with what was said before
    return _filled(text, before.action, {**before.slots, **values}, doubts, found, interface)


def _meant(said: Filled, *, sure: bool) -> dict[str, Any]:
    """The values of a sentence; ``sure`` leaves out the free text that would swallow whatever is said."""
    return {name: value for name, value in said.values.items() if not (sure and name == said.loose)}


def _lent(text: str, found: Resolution, before: Resolution, interface: NLWebInterface) -> Resolution:
    """Another action than before, with the earlier values of what it still misses: "book it" after a search."""
    assert found.action is not None
    wanted = schema_of(interface, found.action).get("properties", {})
    had = schema_of(interface, before.action or "").get("properties", {})
    lent = {
        name: before.slots[name]
        for name in found.missing
        if name in before.slots and wanted.get(name, {}).get("type") == had.get(name, {}).get("type")
    }
    if not lent:
        return found
    return _filled(text, found.action, {**lent, **found.slots}, {}, found, interface)


def _filled(
    text: str,
    action: str,
    slots: dict[str, Any],
    doubts: dict[str, list[Any]],
    found: Resolution,
    interface: NLWebInterface,
) -> Resolution:
    missing = [name for name in schema_of(interface, action).get("required", ()) if name not in slots]
    best = Candidate(action, max(found.score, 0.5), slots, missing, doubts)
    others = [one for one in found.candidates if one.action != action]
    return replace(settled(text, interface, [best, *others], best, found.how))
