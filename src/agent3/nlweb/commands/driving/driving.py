"""Doing on an unknown page what a sentence says, without an interface and without a language model.

The sentence is split into clauses; each is given to the skills in order, and the first that can, does it. The result
says what was done and what was not understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent3.nlweb.commands.driving import (
    choosing,
    clicking,
    comparing,
    dates,
    forms,
    mailing,
    pointing,
    sliding,
    writing,
)
from agent3.nlweb.commands.driving.hand import Hand
from agent3.nlweb.commands.driving.sentences import clauses
from agent3.nlweb.commands.driving.story import Skill, Story
from agent3.nlweb.commands.embeddings import Embedder
from agent3.nlweb.sdk import playwright

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


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of a sentence: what was done, step by step, and the clauses that nothing was done for."""

    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether something was done, and nothing left out."""
        return bool(self.done) and not self.left


async def drive(page: Page, sentence: str, *, semantic: Embedder | None = None, send: bool = False) -> Driven:
    """Do on the page what the sentence says.

    Errors of a single clause, such as an element that went away, leave that clause undone and are no reason to stop; a
    page that is closed is. A button that the sentence does not name is left alone, unless ``send`` says to press the
    one that sends a form where the sentence fills one and names no button.
    """
    hand = Hand(page, sentence)
    ahead = clauses(sentence)
    await hand.settle()
    story: Story | None = None
    left: list[str] = []
    while ahead:
        clause = ahead.pop(0)
        if story is None:
            story = Story(hand, clause, ahead, semantic=semantic)
        story.clause = clause
        if not await _one(story):
            left.append(clause.text)
        story.begun = True
    if send and story is not None and not left and not _SENT.search(sentence):
        await _send(story)
    return Driven(hand.did, left)


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
