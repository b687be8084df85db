"""Carrying out a sentence clause by clause.

What is only half understood is not done: the result says what was done and what was not understood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.driver.page_operator import Confirm, PageOperator
from agent3.protocols.nlweb.driver.sentences import parse_sentence
from agent3.protocols.nlweb.driver.skills import SKILLS

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["Driven", "drive"]


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of a sentence: what was done, step by step, and the clauses that nothing was done for.

    The first of ``left`` is the one that was not understood. ``question`` is what to ask, where that is known.
    """

    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    question: str | None = None

    @property
    def complete(self) -> bool:
        """Whether something was done, and nothing left out."""
        return bool(self.done) and not self.left


async def drive(page: Page, sentence: str, *, confirm: Confirm | None = None) -> Driven:
    """Do on the page what the sentence says.

    Nothing is begun for a sentence that forbids something, sets a condition, or has a part that is no command. The
    first clause that finds nothing on the page ends it: what comes after would be done on a page that is not as its
    author thought. ``confirm`` is told of each press that has consequences, with what the form holds, and may raise.
    """
    clauses = parse_sentence(sentence)
    # The first clause may do without a verb: a name alone is pressed if the page has it.
    strange = [clause for place, clause in enumerate(clauses) if (place and not clause.verb) or clause.is_restricted]
    if strange:
        others = [clause for clause in clauses if clause not in strange]
        return Driven([], [clause.text for clause in [*strange, *others]])
    operator = PageOperator(page, confirm)
    await operator.settle()
    for place, clause in enumerate(clauses):
        try:
            understood = await SKILLS[clause.verb](operator, clause)
        except playwright().Error:
            if page.is_closed():
                raise
            understood = False
        if not understood:
            return Driven(operator.done, [left.text for left in clauses[place:]])
    return Driven(operator.done)
