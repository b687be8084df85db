"""Which element a description means: a score for each, the best one wins, and none below a threshold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from agent3.protocols.nlweb.commands.lexicon import concepts, fold
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.sentences import Target

__all__ = ["best", "called", "fits_role", "likeness", "ranked"]

_ENOUGH = 0.6
_PUNCTUATION = re.compile(r"^[\W_]+|[\W_]+$")
_AS_ROLE = {
    "textbox": ("textbox", "textarea", "searchbox", "combobox", "spinner"),
    "list": ("list", "listbox", "combobox"),
    "button": ("button",),
    "link": ("link",),
    "item": ("option", "menuitem", "item", "link", "treeitem", "tab"),
    "tab": ("tab",),
    "section": ("tab", "heading", "button"),
    "node": ("item", "treeitem"),
}
_ICONS = {
    "delete": "trash delete remove bin discard",
    "trash": "trash delete remove bin discard",
    "star": "star favorite favourite important flag",
    "important": "star important flag",
    "reply": "reply respond answer",
    "forward": "forward fwd share",
    "send": "send submit",
    "close": "close dismiss x cancel",
    "x": "close dismiss x",
    "like": "like heart favorite",
    "retweet": "retweet repost",
    "share": "share",
    "search": "search find",
    "more": "more menu dots options",
    "next": "next forward right",
    "previous": "prev previous back left",
    "bold": "bold strong",
    "italics": "italic italics em",
    "italic": "italic italics em",
    "underline": "underline",
}


def likeness(wanted: str, found: str) -> float:
    """How alike a wanted name and a found one are, between 0 and 1."""
    if wanted == found:
        return 1.0
    plain, other = fold(wanted), fold(found)
    if plain == other:
        return 0.97
    bare, bare_other = _PUNCTUATION.sub("", plain), _PUNCTUATION.sub("", other)
    if bare and bare == bare_other:
        return 0.93
    if not bare or not bare_other:
        return 0.0
    if re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", bare_other):
        return 0.6 + 0.3 * len(bare) / len(bare_other)
    if len(bare_other) > 2 and re.search(rf"(?<!\w){re.escape(bare_other)}(?!\w)", bare):
        return 0.5 + 0.3 * len(bare_other) / len(bare)
    return max(_shared(wanted, found), 0.75 * SequenceMatcher(None, bare, bare_other).ratio() ** 2)


def _shared(wanted: str, found: str) -> float:
    """By concepts, for other words that mean the same."""
    one, other = frozenset(concepts(wanted)), frozenset(concepts(found))
    return 0.8 * len(one & other) / len(one | other) if one & other else 0.0


def called(element: Element, name: str) -> float:
    """How well an element answers to a name, by all its names and, for an icon, its marks."""
    score = max((likeness(name, one) for one in element.names), default=0.0)
    if element.marks and _code(name) in element.marks.split():
        score = max(score, 0.9)
    if fold(name) == "x" and score < 0.9:
        score = max(score, *(likeness("close", one) - 0.01 for one in [*element.names, ""]))
    icons = frozenset(_ICONS.get(fold(name), fold(name)).split())
    if score < 0.86 and icons & element.words and (not element.text or element.pressable):
        score = max(score, 0.86 if element.text else 0.8)
    return score


def _code(name: str) -> str:
    """The last word where it is no word but a code, such as ``(2,-1)`` or ``A-17``; else the whole."""
    last = name.split()[-1] if name.split() else ""
    return name if last.isalpha() else last


def fits_role(element: Element, role: str) -> bool:
    """Whether it is of the kind that a description names."""
    if role in ("button", "link", "icon") and element.role == "":
        return element.pressable and (role != "icon" or not element.text)
    return element.role in _AS_ROLE.get(role, (role,))


def ranked(sight: Sight, target: Target, among: Iterable[Element] | None = None) -> list[tuple[float, Element]]:
    """The visible elements that may be meant, the best first; the innermost of equals."""
    found = []
    for one in sight.shown if among is None else among:
        score = called(one, target.name) if target.name else 0.0
        if not one.visible or one.off or score < _ENOUGH:
            continue
        score += 0.12 * (bool(target.role) and fits_role(one, target.role)) + 0.06 * one.pressable
        score += 0.03 * (one.role in ("button", "link", "tab", "menuitem", "option")) - 0.02 * (one.role == "label")
        found.append((score, one))
    return sorted(found, key=lambda pair: (-round(pair[0], 3), -pair[1].index if _nested(pair[1], found) else 0))


def _nested(element: Element, found: list[tuple[float, Element]]) -> bool:
    return any(
        other.path.startswith(f"{element.path} >") or element.path.startswith(f"{other.path} >") for _, other in found
    )


def best(sight: Sight, target: Target, among: Iterable[Element] | None = None) -> Element | None:
    """The element that is meant; by its place in the row where the description says which."""
    pool = list(sight.shown if among is None else among)
    if target.name:
        found = ranked(sight, target, pool)
        if not found:
            return None
        if target.ordinal is not None:
            top = [one for score, one in found if score >= found[0][0] - 0.1]
            return _nth(sorted(top, key=lambda one: one.index), target.ordinal)
        return found[0][1]
    if target.role:
        return _nth([one for one in pool if one.visible and fits_role(one, target.role)], target.ordinal or 1)
    return None


def _nth(found: list[Element], number: int) -> Element | None:
    index = number - 1 if number > 0 else number
    return found[index] if -len(found) <= index < len(found) else None
