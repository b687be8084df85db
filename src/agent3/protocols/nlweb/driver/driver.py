"""Doing on an unknown page what a sentence says, without an interface and without a language model.

The sentence is split into clauses; each is given to the skills in order, and the first that can, does it. What is only
half understood is not done: the result says what was done and what was not understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.commands.embeddings import Embedder
from agent3.protocols.nlweb.driver import choices as choosing
from agent3.protocols.nlweb.driver import clicks as clicking
from agent3.protocols.nlweb.driver import comparisons as comparing
from agent3.protocols.nlweb.driver import dates
from agent3.protocols.nlweb.driver import form_filling as forms
from agent3.protocols.nlweb.driver import message_lists as mailing
from agent3.protocols.nlweb.driver import pointer as pointing
from agent3.protocols.nlweb.driver import sliders as sliding
from agent3.protocols.nlweb.driver import text_entry as writing
from agent3.protocols.nlweb.driver.hand import Confirm, Hand
from agent3.protocols.nlweb.driver.sentences import Clause, bare, clauses
from agent3.protocols.nlweb.driver.story import Skill, Story

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["SKILLS", "Driven", "drive"]

SKILLS: tuple[Skill, ...] = (
    mailing.cards,
    mailing.mail,
    clicking.wait,
    sliding.slide,
    sliding.spin,
    dates.enter,
    pointing.style,
    pointing.count,
    pointing.scroll,
    pointing.highlight,
    pointing.resize,
    pointing.sort,
    pointing.drag,
    pointing.hover,
    comparing.when,
    comparing.until,
    comparing.guess,
    comparing.parity,
    comparing.in_order,
    forms.fill,
    forms.search,
    comparing.cheapest,
    comparing.pick_extreme,
    writing.autocomplete,
    writing.table,
    writing.solve,
    writing.read,
    writing.copy,
    writing.paste,
    writing.write,
    pointing.colour,
    pointing.shape,
    choosing.menu,
    choosing.similar,
    choosing.by_place,
    pointing.focus,
    choosing.clear,
    choosing.choose,
    clicking.submit,
    clicking.expand,
    clicking.close,
    clicking.find,
    clicking.click,
)
"""In order: the special before the general."""


_SENT = re.compile(
    r"\b(?:submit|click|press|hit|push|search|book|buy|focus|email|mail|forward|how many|guess)\b", re.IGNORECASE
)


_BUT = re.compile(
    r"^(?:please\s+)?(?:do\s+not|don.?t|never|avoid|no|nunca|jam[aá]s)\s"
    r"|\b(?:but\s+(?:not|never|don.?t|do\s+not)|unless|only\s+if|pero\s+no|a\s+menos\s+que)\b",
    re.IGNORECASE,
)
"""What forbids or makes conditions: nothing that can be done."""


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


async def drive(
    page: Page,
    sentence: str,
    *,
    semantic: Embedder | None = None,
    send: bool = False,
    confirm: Confirm | None = None,
) -> Driven:
    """Do on the page what the sentence says.

    A sentence with a part that is no command at all is not begun, and the first clause that finds nothing on the page
    ends it: what comes after would be done on a page that is not as its author thought. ``confirm`` hears of each press
    that has consequences, with what the form holds, and may raise. A button that the sentence does not name is left
    alone, unless ``send`` says to press the one that sends a form where the sentence fills one and names no button.
    """
    hand = Hand(page, sentence, confirm)
    ahead = clauses(sentence)
    if strange := _strange(ahead):
        return Driven([], strange)
    await hand.settle()
    story: Story | None = None
    left: list[str] = []
    while ahead:
        clause = ahead.pop(0)
        if story is None:
            story = Story(hand, clause, ahead, semantic=semantic)
        story.clause = clause
        if not await _one(story):
            left = [clause.text, *(one.text for one in ahead)]
            break
        story.begun = True
    if send and story is not None and not left and not _SENT.search(sentence):
        await _send(story)
    return Driven(hand.did, left)


def _strange(ahead: Sequence[Clause]) -> list[str]:
    """All clauses, first those without a verb that is known and those that forbid; none if there are no such ones.

    The first clause may do without: "For Ana, click …", or a name only. If nothing can be made of it, nothing is done.
    """
    strange = [one.text for place, one in enumerate(ahead) if (place and not one.verb) or _BUT.search(bare(one.text))]
    return [*strange, *(one.text for one in ahead if one.text not in strange)] if strange else []


async def _send(story: Story) -> None:
    button = clicking.sender(await story.hand.look())
    if button is not None:
        await story.hand.click(button)


async def _one(story: Story) -> bool:
    for skill in SKILLS:
        try:
            if await skill(story):
                return True
        except playwright().Error:
            if story.hand.page.is_closed():
                raise
    return False
