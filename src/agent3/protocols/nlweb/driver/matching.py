"""Which element a description means: a score for each, the best one wins, and none below a threshold.

Every word of the description must be in the element's name, or a word that means the same. What is only similar is
never taken: "Order 12" is not "Order 13", and "Order now" is not "Order now if it is free".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent3.protocols.nlweb.driver.page_view import Element, PageView
from agent3.protocols.nlweb.driver.sentences import Target
from agent3.sentences.lexicon import fold, to_concepts

__all__ = ["find_target", "has_role", "is_called", "name_score", "nth", "similarity"]

_THRESHOLD = 0.6
_SURE = 0.9
_PUNCTUATION = re.compile(r"^[\W_]+|[\W_]+$")
_ROLES = {
    "textbox": ("textbox", "textarea", "searchbox", "combobox", "spinner"),
    "item": ("option", "menuitem", "item", "link", "treeitem", "tab"),
}
_ICONS = {
    "close": frozenset({"close", "dismiss", "cancel"}),
    "x": frozenset({"close", "dismiss"}),
    "delete": frozenset({"delete", "trash", "remove", "bin"}),
    "trash": frozenset({"delete", "trash", "remove", "bin"}),
    "search": frozenset({"search", "find"}),
    "more": frozenset({"more", "menu", "dots", "options"}),
    "next": frozenset({"next", "forward", "right"}),
    "previous": frozenset({"prev", "previous", "back", "left"}),
}
"""What icons without a text are called in their marks."""


def similarity(wanted: str, found: str) -> float:
    """How well a wanted name is met by a found one, between 0 and 1; 0 if a wanted word is not in it."""
    if wanted == found:
        return 1.0
    plain, other = fold(wanted), fold(found)
    if plain == other:
        return 0.97
    bare, bare_other = _PUNCTUATION.sub("", plain), _PUNCTUATION.sub("", other)
    if not bare or not bare_other:
        return 0.0
    if bare == bare_other:
        return 0.93
    if re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", bare_other):
        return 0.6 + 0.3 * len(bare) / len(bare_other)
    meant, said = frozenset(to_concepts(wanted)), frozenset(to_concepts(found))
    return 0.8 * len(meant) / len(said) if meant and meant <= said else 0.0


def name_score(element: Element, name: str) -> float:
    """How well an element answers to a name: by all its names and, for an icon without a text, by its marks."""
    score = max((similarity(name, own) for own in element.names), default=0.0)
    if score < 0.8 and not element.text:
        plain = fold(name)
        score = max(score, 0.8 if _ICONS.get(plain, frozenset({plain})) & element.mark_words else 0.0)
    return score


def is_called(element: Element, name: str) -> bool:
    """Whether that is beyond doubt its name."""
    return any(similarity(name, own) > _SURE for own in element.names)


def has_role(element: Element, role: str) -> bool:
    """Whether it is of the kind that a description names."""
    if role in ("button", "link", "icon") and element.role == "":
        return element.pressable and (role != "icon" or not element.text)
    return element.role in _ROLES.get(role, (role,))


def find_target(view: PageView, target: Target, among: Iterable[Element] | None = None) -> Element | None:
    """The element that is meant; by its place in the row where the description says which.

    Without a name, the one of its kind at that place, or the only one of its kind.
    """
    pool = [element for element in (view.visible if among is None else among) if element.visible]
    if not target.name:
        alike = [element for element in pool if target.role and has_role(element, target.role)]
        return nth(alike, target.ordinal or 1) if target.ordinal or len(alike) == 1 else None
    scored = []
    for element in pool:
        score = name_score(element, target.name)
        if element.disabled or score < _THRESHOLD:
            continue
        score += 0.12 * (bool(target.role) and has_role(element, target.role)) + 0.06 * element.pressable
        score += 0.03 * (element.role in ("button", "link", "tab", "menuitem", "option"))
        score -= 0.02 * (element.role == "label")
        scored.append((score, element))
    paths = [element.path for _, element in scored]

    def depth(element: Element) -> int:
        nested = any(path.startswith(f"{element.path} >") or element.path.startswith(f"{path} >") for path in paths)
        return -element.index if nested else 0

    # Of equals that hold each other, the innermost; of others, the first.
    ranked = sorted(scored, key=lambda pair: (-round(pair[0], 3), depth(pair[1])))
    if not ranked:
        return None
    if target.ordinal is None:
        return ranked[0][1]
    # "The second Details link" counts those that fit as well as the best, in the order of the page.
    equals = [element for score, element in ranked if score >= ranked[0][0] - 0.1]
    return nth(sorted(equals, key=lambda element: element.index), target.ordinal)


def nth(elements: list[Element], number: int) -> Element | None:
    """One of a row, counted from 1, or from the end by a negative number."""
    index = number - 1 if number > 0 else number
    return elements[index] if -len(elements) <= index < len(elements) else None
