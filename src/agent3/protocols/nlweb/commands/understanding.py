"""A sentence as everybody here reads it: by its words, what was said before, and its meaning if that is installed.

The model of meanings is asked only where words leave it open, and never in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import agent3.protocols.nlweb.commands.embeddings as embeddings
from agent3.definitions import NLWebInterface
from agent3.protocols.nlweb.commands.follow_ups import follow
from agent3.protocols.nlweb.commands.resolution import Resolution

__all__ = ["understand"]


async def understand(text: str, interface: NLWebInterface, previous: Sequence[str] = ()) -> Resolution:
    """What a sentence means after ``previous`` ones. Meaning counts once `agent3 semantic install` was run."""
    found = follow(text, previous, interface)
    if found.action is not None or not embeddings.installed():
        return found
    return await asyncio.to_thread(_by_meaning, text, interface, tuple(previous))


def _by_meaning(text: str, interface: NLWebInterface, previous: Sequence[str]) -> Resolution:
    return follow(text, previous, interface, semantic=embeddings.load())
