"""What the skills share: the hand, the clause at work, and what earlier clauses found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agent3.protocols.nlweb.commands.embeddings import Embedder
from agent3.protocols.nlweb.driver.hand import Hand
from agent3.protocols.nlweb.driver.page_view import Element
from agent3.protocols.nlweb.driver.sentences import Clause

__all__ = ["Skill", "Story"]


@dataclass(slots=True)
class Story:
    """One sentence on its way."""

    hand: Hand
    clause: Clause
    ahead: list[Clause] = field(default_factory=list)
    """The clauses still to come; a skill that does one of them too removes it."""
    held: str | None = None
    """A text that was found or copied, for "it" and "that"."""
    near: Element | None = None
    """The field that was last written into."""
    semantic: Embedder | None = None
    begun: bool = False
    """Whether a clause was worked on before: skills for the whole sentence come first or not at all."""


Skill = Callable[[Story], Awaitable[bool]]
"""Does its part of the page for a clause and says so, or leaves it to the next one."""
