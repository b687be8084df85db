"""Bringing to light what is on a page but hidden: behind tabs, sections, menus, tree nodes and further pages."""

from __future__ import annotations

import re
from collections.abc import Callable

from agent3.protocols.nlweb.driver.hand import Hand
from agent3.protocols.nlweb.driver.page_view import Element, Sight

__all__ = ["follow", "of_person", "openers", "reveal"]

_TRIES = 40
_CLOSED = frozenset("expandable collapsed closed hitarea".split())
_NEXT = re.compile(r"^(?:>|»|\u203a|→|next|siguiente|more|show more|load more|ver más)$", re.IGNORECASE)
_PLUS = re.compile(r"^(?:\+|⊕|▸|▶|…|\.\.\.|☰|≡)$")


def openers(sight: Sight) -> list[Element]:
    """What would show more if it were clicked: what is closed first, then the next page."""
    closed = sight.having(lambda one: not one.off and _closed(one))
    further = sight.having(
        lambda one: not one.off and one.pressable and bool(_NEXT.match(one.text)) and sight.leaf(one)
    )
    return [*closed, *further]


def _closed(one: Element) -> bool:
    if one.role == "tab":
        return not one.selected
    if one.opens:
        return True
    if one.tag == "summary" or bool(_PLUS.match(one.own)):
        return True
    return bool(_CLOSED & one.words) and one.tag in ("div", "span", "a", "button", "i") and not one.text


def _key(one: Element) -> str:
    return f"{one.path}|{one.own}" if not _NEXT.match(one.text) else ""


def of_person(sight: Sight, name: str | None) -> Element | None:
    """The row whose own name is this: the element that says exactly so."""
    if not name:
        return None
    return next((one for one in sight.shown if one.text.lower() == name.lower() and sight.leaf(one)), None)


async def reveal(hand: Hand, find: Callable[[Sight], Element | None]) -> Element | None:
    """Open one thing after the other until ``find`` finds; None if all is open and it did not."""
    tried: set[str] = set()
    seen = ""
    for _ in range(_TRIES):
        sight = await hand.look()
        if (found := find(sight)) is not None:
            return found
        opener = next(
            (one for one in openers(sight) if _key(one) not in tried and (_key(one) or sight.texts() != seen)), None
        )
        if opener is None:
            return None
        seen = sight.texts()
        if _key(opener):
            tried.add(_key(opener))
        await _open(hand, opener)
    return None


async def _open(hand: Hand, opener: Element) -> None:
    """A menu opens under the mouse, all else by a click."""
    if opener.role == "menuitem" and opener.opens:
        await hand.hover(opener)
        await hand.settle(250, 900)
    else:
        await hand.click(opener)
        await hand.settle(60, 900)


async def follow(hand: Hand, path: list[str], find: Callable[[Sight, str], Element | None]) -> bool:
    """Go down a menu by the names on the way; the last one is clicked."""
    for name in path[:-1]:
        step = find(await hand.look(), name)
        if step is None:
            return False
        await _open(hand, step)
    last = find(await hand.look(), path[-1])
    if last is not None:
        await hand.click(last)
    return last is not None
