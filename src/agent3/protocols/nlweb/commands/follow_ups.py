"""Commands that go on from an earlier one: "and for two people?" after a booking. By plain rules, without a model.

A sentence that says all by itself is taken as it stands. One that fits no action, or leaves parameters open, is read
together with the sentences before it: it keeps their action, and what it says itself counts for more. It knows no
browser and no protocol.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import agent3.protocols.nlweb.commands.embeddings as embeddings
from agent3.definitions import NLWebInterface
from agent3.protocols.nlweb.commands.command import Command
from agent3.protocols.nlweb.commands.embeddings import Embedder
from agent3.protocols.nlweb.commands.ranking import WordIndex
from agent3.protocols.nlweb.commands.resolution import Candidate, Resolution, input_schema, resolve, settle
from agent3.protocols.nlweb.commands.slots import fill_slots

__all__ = ["is_follow_up", "join_follow_up", "resolve_follow_up", "understand"]

_MOST_BACK = 5
"""Sentences back that are looked at."""
_LONGEST = 2_000
_OPENING = re.compile(
    r"^[\s¿¡,.]*(?:and|also|but|or|then|instead|rather|plus|same|what about|how about|ok(?:ay)?,? (?:and|but)"
    r"|y|e|o|también|tambien|pero|entonces|mejor|además|ademas|lo mismo|qué tal|que tal|y si)\b[\s,:]*"
    r"(?:(?:also|también|qué tal|que tal|what about|how about)\b)?[\s,:]*",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"[\s,]+(?:instead|rather|too|as well|también|tambien|mejor|en su lugar)[\s.!?]*$", re.IGNORECASE)


async def understand(text: str, interface: NLWebInterface, previous: Sequence[str] = ()) -> Resolution:
    """What a sentence means after ``previous`` ones. Meaning counts once ``agent3 semantic install`` was run.

    The model of meanings is asked only where words leave it open, and never in the event loop.
    """
    found = resolve_follow_up(text, previous, interface)
    if found.action is not None or found.forbidden or not embeddings.is_installed():
        return found

    def resolve_by_meaning() -> Resolution:
        return resolve_follow_up(text, previous, interface, semantic=embeddings.load())

    return await asyncio.to_thread(resolve_by_meaning)


def is_follow_up(text: str) -> bool:
    """Whether a sentence says itself that it goes on from another one."""
    return _OPENING.match(text) is not None or _CLOSING.search(text) is not None


def join_follow_up(text: str, previous: Sequence[str]) -> str:
    """The sentence with the one that it goes on from, for readers that take one sentence only."""
    if not previous or not is_follow_up(text):
        return text
    earlier = join_follow_up(previous[-1], previous[-1 - _MOST_BACK : -1])
    bare = _without_connectives(text)
    return f"{earlier.rstrip(' .!?')}, {bare}" if bare else earlier


def resolve_follow_up(
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
    goes_on = is_follow_up(text)
    if found.forbidden or not previous or (found.action is not None and not found.missing and not goes_on):
        return found
    kept = list(previous)[-_MOST_BACK:]
    before = resolve_follow_up(kept[-1][:_LONGEST], kept[:-1], interface, semantic=semantic, now=now)
    if before.action is None:
        return found
    # A sentence that goes on, and hardly says which action it means, speaks of the one before.
    hardly_said = goes_on and found.how != "pattern" and bool(found.missing)
    if found.action is not None and found.action != before.action and not hardly_said:
        # Another action, with the earlier values of what it still misses: "book it" after a search.
        wanted = input_schema(interface, found.action).get("properties", {})
        had = input_schema(interface, before.action).get("properties", {})
        lent = {
            name: before.slots[name]
            for name in found.missing
            if name in before.slots and wanted.get(name, {}).get("type") == had.get(name, {}).get("type")
        }
        return _settle(text, found.action, {**lent, **found.slots}, {}, found, interface) if lent else found
    said = fill_slots(
        Command.read(_without_connectives(text), now),
        input_schema(interface, before.action),
        WordIndex(interface).vocabulary(before.action),
    )
    # A free text would swallow whatever is said, so it counts only where the sentence plainly goes on.
    values = {name: value for name, value in said.values.items() if goes_on or name != said.loose}
    doubts = {name: options for name, options in said.doubts.items() if name not in values or name in said.values}
    if not values and not doubts and not goes_on:
        return found  # it has nothing to do with what was said before
    return _settle(text, before.action, {**before.slots, **values}, doubts, found, interface)


def _without_connectives(text: str) -> str:
    return _CLOSING.sub("", _OPENING.sub("", text, count=1)).strip()


def _settle(
    text: str,
    action: str,
    slots: dict[str, Any],
    doubts: dict[str, list[Any]],
    found: Resolution,
    interface: NLWebInterface,
) -> Resolution:
    missing = [name for name in input_schema(interface, action).get("required", ()) if name not in slots]
    best = Candidate(action, max(found.score, 0.5), slots, missing, doubts)
    others = [candidate for candidate in found.candidates if candidate.action != action]
    return settle(text, interface, [best, *others], best, found.how)
