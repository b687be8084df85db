"""Choosing: options of lists, checkboxes and radio buttons, menus, and custom widgets that imitate them."""

from __future__ import annotations

import re

from agent3.protocols.nlweb.driver.matching import best, fits_role, likeness
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.reveal import follow, reveal
from agent3.protocols.nlweb.driver.sentences import Target, ordinal_of, target_of
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["by_place", "choose", "clear", "menu", "similar"]

_FROM = re.compile(
    r"\s+(?:from|in|on|with)\s+(?:the\s+)?(?:scroll\s+|drop\s*down\s+)?(?:list|dropdown|drop-down|menu|options?|select|box)\b.*$",
    re.I,
)
_NOTHING = frozenset({"nothing", "none", "nada"})
_SIMILAR = re.compile(r"\b(?:words|items|options)?\s*(?:similar|related|close) to\s+", re.IGNORECASE)


async def by_place(story: Story) -> bool:
    """ "The 2nd checkbox": by kind and place in the row."""
    clause = story.clause
    if clause.verb not in ("select", "click", "focus") or clause.quotes:
        return False
    target = target_of(clause.rest)
    if target.role not in ("checkbox", "radio", "textbox", "textarea", "button", "tab") or (
        target.name and ordinal_of(clause.rest) is None
    ):
        return False
    if clause.verb != "focus" and target.role in ("textbox", "textarea"):
        return False
    found = best(await story.hand.look(), Target("", target.role, target.ordinal))
    if found is None:
        return False
    await story.hand.click(found)
    return True


async def choose(story: Story) -> bool:
    """Each of the things that are listed in the clause, in whatever widget offers it."""
    if story.clause.verb != "select":
        return False
    wanted = _FROM.sub("", story.clause.rest).strip(" .")
    if wanted.lower() in _NOTHING:
        return True
    sight = await story.hand.look()
    names = list(story.clause.quotes) or _split(wanted, sight)
    done = [await _one(story, name) for name in names]
    return any(done)


async def clear(story: Story) -> bool:
    """Take the mark off each box that is listed; all of them or none."""
    if story.clause.verb != "uncheck":
        return False
    sight = await story.hand.look()
    names = list(story.clause.quotes) or _split(_FROM.sub("", story.clause.rest).strip(" ."), sight)
    boxes = [_box(sight, name) for name in names]
    if not names or any(one is None for one in boxes):
        return False
    for one in boxes:
        if one is not None:
            await story.hand.check(one, on=False)
    return True


def _box(sight: Sight, name: str) -> Element | None:
    boxes = sight.having(lambda one: one.role == "checkbox" and any(likeness(name, text) > 0.9 for text in one.names))
    return boxes[0] if boxes else None


def _split(wanted: str, sight: Sight) -> list[str]:
    """A list of names, unless the whole is one name that is on the page ("Trinidad and Tobago")."""
    if _offered(sight, wanted) is not None:
        return [wanted]
    parts = [part.strip() for part in re.split(r",\s*(?:and\s+)?|\s+and\s+", wanted) if part.strip()]
    return parts if any(_offered(sight, part) for part in parts) else [wanted]


def _offered(sight: Sight, name: str) -> Element | None:
    offers = [one for one in sight.all if one.role in ("option", "checkbox", "radio", "menuitem", "item", "label")]
    return next((one for one in offers if any(likeness(name, text) > 0.9 for text in one.names)), None)


async def _one(story: Story, name: str) -> bool:
    sight = await story.hand.look()
    for one in sight.shown:
        if one.role in ("checkbox", "radio") and any(likeness(name, text) > 0.9 for text in one.names):
            await story.hand.check(one)
            return True
    if await _option(story, sight, name):
        return True
    found = await reveal(story.hand, lambda now: _best(now, name))
    if found is None:
        return False
    await story.hand.click(found)
    return True


def _best(sight: Sight, name: str) -> Element | None:
    exact = [one for one in sight.shown if any(likeness(name, text) > 0.9 for text in one.names) and not one.off]
    return exact[-1] if exact else None


async def _option(story: Story, sight: Sight, name: str) -> bool:
    """An option of a real list; a hidden one has a widget in front of it, which is used instead."""
    for one in sight.all:
        if (
            one.role != "option"
            or one.tag != "option"
            or not any(likeness(name, text) > 0.9 for text in [*one.names, one.own])
        ):
            continue
        owner = next((up for up in sight.up(one) if up.tag == "select"), None)
        if owner is not None and (owner.visible and owner.width > 4):
            await story.hand.choose(owner, [one.own or one.text])
            return True
        if owner is not None:
            return await _in_front(story, sight, owner, name)
    return False


async def _in_front(story: Story, sight: Sight, owner: Element, name: str) -> bool:
    for box in list(sight.up(owner))[:3]:
        shown = [one for one in sight.inside(box) if one.visible and one.index != owner.index]
        if shown:
            await story.hand.click(shown[0])
            await story.hand.settle(80)
            found = _best(await story.hand.look(), name)
            if found is not None:
                await story.hand.click(found)
                return True
    return False


async def menu(story: Story) -> bool:
    """A path through a menu: ``File>Export>PDF``."""
    if story.clause.verb not in ("select", "click") or ">" not in story.clause.rest:
        return False
    path = [part.strip() for part in story.clause.rest.split(">") if part.strip()]
    return len(path) > 1 and await follow(story.hand, path, _best)


async def similar(story: Story) -> bool:
    """What means nearly the same as the words of the clause, by the embeddings."""
    match = _SIMILAR.search(story.clause.rest)
    if match is None or story.clause.verb != "select":
        return False
    sight = await story.hand.look()
    offers = sight.having(lambda one: fits_role(one, "checkbox") and bool(one.names))
    wanted = [part.strip() for part in re.split(r",\s*|\s+and\s+", story.clause.rest[match.end() :]) if part.strip()]
    for offer in _nearest(story, wanted, offers):
        await story.hand.check(offer)
    return bool(offers)


def _nearest(story: Story, wanted: list[str], offers: list[Element]) -> list[Element]:
    """The offer nearest to each word; without embeddings, by the letters."""
    if story.semantic is None:
        return [max(offers, key=lambda one: likeness(word, one.names[0])) for word in wanted] if offers else []
    rows = story.semantic.embed([*wanted, *(one.names[0] for one in offers)])
    scores = rows[: len(wanted)] @ rows[len(wanted) :].T
    return [offers[int(row.argmax())] for row in scores]
