"""What a clause can do on a page: one function for each verb, in a table.

A skill does its clause wholly and says True, or finds that it cannot and says False. It guesses nothing: a name that no
element has, and a word that nothing explains, are reasons to say False.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from agent3.protocols.nlweb.driver.form_values import (
    assign_values,
    enter_moment,
    find_field,
    parse_moment,
    takes_moment,
)
from agent3.protocols.nlweb.driver.matching import find_target, is_called, name_score, nth
from agent3.protocols.nlweb.driver.page_operator import PageOperator
from agent3.protocols.nlweb.driver.page_view import Element, PageView
from agent3.protocols.nlweb.driver.sentences import Clause, Target, Verb, parse_target
from agent3.sentences.lexicon import to_concepts

__all__ = ["SKILLS", "Skill"]

Skill = Callable[[PageOperator, Clause], Awaitable[bool]]

_MOST_OPENED = 20
_MOST_PRESSES = 40
_LONGEST_WAIT = 30.0
_NUMBER = re.compile(r"(?<!\w)-?\d+(?:\.\d+)?(?!\w)")
_AROUND_NUMBER = re.compile(r"\b(?:with|to|at|on|using|the|of|slider|spinner|con|el|en|a)\b", re.IGNORECASE)
_FROM_LIST = re.compile(
    r"\s+(?:from|in|on)\s+(?:the\s+)?(?:drop-?\s?down(?: list)?|list|menu|options?|select|box)$", re.IGNORECASE
)
_NAMES = re.compile(r",\s*(?:(?:and|y)\s+)?|\s+(?:and|y)\s+")
_WITH_NUMBER = re.compile(r"(?=.*\d).*\b(?P<kind>slider|spinner)\b", re.IGNORECASE)
_DURATION = re.compile(
    r"(?:for\s+)?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|milliseconds?|s|sec(?:ond)?s?|segundos?|min(?:ute|uto)?s?)",
    re.IGNORECASE,
)
_END_OF_PAGE = re.compile(
    r"(?:(?:down|up)\s+)?(?:to\s+|hasta\s+)?(?:the\s+|el\s+)?(?P<end>top|bottom|end|principio|final)"
    r"(?:\s+of\s+the\s+page|\s+de\s+la\s+p[aá]gina)?|(?P<way>down|up)",
    re.IGNORECASE,
)
_SEARCH_FOR = re.compile(r"^(?:(?:for|por|a|an|the|some|un|una|unos|unas|el|la|los|las)\s+)+", re.IGNORECASE)
_SEVERAL_FIELDS = re.compile(r"\b(?:from|to|between|desde|entre|on)\b", re.IGNORECASE)
_SEARCH_WORDS = frozenset(to_concepts("search find buscar"))


async def click(operator: PageOperator, clause: Clause) -> bool:
    """Press what is named, wherever on the page it hides."""
    element = await _find(operator, clause)
    if element is None:
        return False
    await operator.click(element)
    return True


async def open_named(operator: PageOperator, clause: Clause) -> bool:
    """Press what is named if it is there to be pressed: to find a text is no reason to click on it."""
    element = await _find(operator, clause)
    if element is None:
        return False
    view = await operator.look()
    if not view.where(lambda outer: outer.pressable and f"{element.path} >".startswith(f"{outer.path} >")):
        return False
    await operator.click(element)
    return True


async def submit(operator: PageOperator, clause: Clause) -> bool:
    """Press the button that sends the form, where the page has one form only."""
    if clause.rest.strip(" .").lower() not in ("", "form", "the form", "it"):
        return False
    view = await operator.look()
    buttons = view.where(lambda element: element.kind in ("submit", "image") and not element.disabled)
    named = [element for element in buttons if is_called(element, "submit")]
    if len(named or buttons) != 1:
        return False
    await operator.click((named or buttons)[0])
    return True


async def select(operator: PageOperator, clause: Clause) -> bool:
    """Choose what is listed, in whatever offers it, all or nothing; or set a slider, a spinner or a date."""
    if _WITH_NUMBER.match(clause.rest):
        return await _set_number(operator, clause)
    view = await operator.look()
    choices = _find_choices(view, clause)
    if not choices:
        return await _write(operator, clause, moments_only=True)
    lists: dict[int, list[str]] = {}
    for choice in choices:
        if (owner := _find_list(view, choice)) is not None:
            lists.setdefault(owner.index, []).append(choice.own or choice.text)
    if any(len(options) > 1 and not view.elements[owner].multiple for owner, options in lists.items()):
        return False  # the second choice would undo the first
    for index, options in lists.items():
        await operator.choose(view.elements[index], options)
    for choice in choices:
        if _find_list(view, choice) is None:
            await operator.check(choice)
    return True


async def uncheck(operator: PageOperator, clause: Clause) -> bool:
    """Take the mark off each box that is listed; all of them or none."""
    boxes = _find_choices(await operator.look(), clause)
    if not boxes or any(box.role != "checkbox" for box in boxes):
        return False
    for box in boxes:
        await operator.check(box, on=False)
    return True


async def type_text(operator: PageOperator, clause: Clause) -> bool:
    """Write what the clause quotes or states into the fields that it names; all of it or nothing."""
    if _WITH_NUMBER.match(clause.rest):
        return await _set_number(operator, clause)
    return await _write(operator, clause)


async def search(operator: PageOperator, clause: Clause) -> bool:
    """Ask the page's search box, where it has exactly one with a button of its own."""
    words = _SEARCH_FOR.sub("", clause.rest).strip(" .")
    if not words or (clause.has_quotes(words) and not clause.is_quoted(words)) or _SEVERAL_FIELDS.search(words):
        return False
    view = await operator.look()
    boxes = []
    for field in view.fields():
        # The button that asks it is the only one of its form, which has no other field.
        form = next((element for element in view.ancestors(field) if element.role in ("form", "search")), None)
        inside = [element for element in view.descendants(form) if element.visible] if form is not None else []
        buttons = [element for element in inside if element.role == "button" and not element.disabled]
        if form is None or len(buttons) != 1 or [element for element in inside if element.writable] != [field]:
            continue
        marks = to_concepts(" ".join([field.field_name, *field.mark_words, *form.mark_words, *buttons[0].names]))
        if field.kind == "search" or _SEARCH_WORDS & set(marks):
            boxes.append((field, buttons[0]))
    if len(boxes) != 1:
        return False
    field, button = boxes[0]
    await operator.write(field, clause.restore(words))
    await operator.click(button)
    await operator.settle(150, 1500)
    return True


async def scroll(operator: PageOperator, clause: Clause) -> bool:
    """Go to an end of the page."""
    match = _END_OF_PAGE.fullmatch(clause.rest.strip(" ."))
    if match is None:
        return False
    is_top = (match["end"] or match["way"]).lower() in ("top", "up", "principio")
    await operator.page.evaluate("y => window.scrollTo(0, y ?? document.body.scrollHeight)", 0 if is_top else None)
    operator.done.append(f"scroll to the {'top' if is_top else 'bottom'}")
    await operator.settle()
    return True


async def wait(operator: PageOperator, clause: Clause) -> bool:
    """Wait as long as the clause says, up to half a minute."""
    match = _DURATION.fullmatch(clause.rest.strip(" ."))
    if match is None:
        return False
    unit = match["unit"].lower()
    scale = 0.001 if unit.startswith(("ms", "milli")) else 60.0 if unit.startswith("min") else 1.0
    seconds = min(float(match["number"]) * scale, _LONGEST_WAIT)
    await asyncio.sleep(seconds)
    operator.done.append(f"wait {seconds:g} s")
    return True


SKILLS: dict[Verb, Skill] = {
    "click": click,
    "open": open_named,
    "": open_named,
    "submit": submit,
    "select": select,
    "uncheck": uncheck,
    "type": type_text,
    "search": search,
    "scroll": scroll,
    "wait": wait,
}


# Finding what is named


async def _find(operator: PageOperator, clause: Clause) -> Element | None:
    """The element that a clause names. One that is hidden is brought to light by opening tabs, sections and menus."""
    target = parse_target(clause, clause.rest)
    if target is None:
        return None
    view = await operator.look()
    if (found := _find_visible(view, target)) is not None or not target.name:
        return found
    if not any(name_score(element, target.name) > 0.9 for element in view.elements if not element.visible):
        return None
    # It is there and hidden. For a name that the page does not have at all, no menu is opened.
    tried: set[str] = set()
    for _ in range(_MOST_OPENED):
        openers = view.where(
            lambda element: (
                not element.disabled
                and (not element.selected if element.role == "tab" else element.closed)
                and f"{element.path}|{element.own}" not in tried
            )
        )
        if not openers:
            return None
        tried.add(f"{openers[0].path}|{openers[0].own}")
        if openers[0].role == "menuitem":  # its submenu opens under the mouse
            await operator.hover(openers[0])
        else:
            await operator.click(openers[0])
        await operator.settle(60, 900)
        view = await operator.look()
        if (found := _find_visible(view, target)) is not None:
            return found
    return None


def _find_visible(view: PageView, target: Target) -> Element | None:
    """An element that is called exactly as the clause says; else by its kind and place."""
    called = [element for element in view.visible if target.exact and is_called(element, target.exact)]
    if called and target.exact != target.name:
        return find_target(view, Target(target.exact), called)
    return find_target(view, target)


# Lists, boxes and fields


def _find_choices(view: PageView, clause: Clause) -> list[Element]:
    """What the clause lists, or the one thing of that whole name ("Trinidad and Tobago"); empty if one is missing."""
    words = _FROM_LIST.sub("", clause.rest.strip(" ."))
    if (only := _find_choice(view, clause, words)) is not None:
        return [only]
    found = [_find_choice(view, clause, part.strip()) for part in _NAMES.split(words) if part.strip()]
    return [choice for choice in found if choice is not None] if None not in found else []


def _find_choice(view: PageView, clause: Clause, words: str) -> Element | None:
    """A box or a radio button, an option of a list, or another element of that very name."""
    target = parse_target(clause, words)
    if target is None:
        return None
    if not target.name:
        return find_target(view, target) if target.role in ("checkbox", "radio") else None
    for name in dict.fromkeys((target.exact, target.name)):
        named = [element for element in view.elements if not element.disabled and is_called(element, name)]
        boxes = [element for element in named if element.visible and element.role in ("checkbox", "radio")]
        options = [element for element in named if _find_list(view, element) is not None]
        if boxes or options:
            return nth(boxes or options, target.ordinal or 1)
        if (other := find_target(view, Target(name, target.role, target.ordinal), named)) is not None:
            return other
    return None


def _find_list(view: PageView, option: Element) -> Element | None:
    """The visible list that an option belongs to."""
    owner = next((element for element in view.ancestors(option) if element.tag == "select"), None)
    return owner if option.tag == "option" and owner is not None and owner.visible and not owner.disabled else None


async def _set_number(operator: PageOperator, clause: Clause) -> bool:
    """Set the slider or spinner that is named, or the only one: "17 with the slider", "the volume slider to 3"."""
    match, numbers = _WITH_NUMBER.match(clause.rest), _NUMBER.findall(clause.rest)
    kind = match["kind"].lower() if match else ""
    view = await operator.look()
    controls = view.where(lambda element: element.role == kind or (kind == "spinner" and element.kind == "number"))
    name = _NUMBER.sub(" ", _AROUND_NUMBER.sub(" ", clause.rest))
    control = find_field(clause.restore(name), controls) if len(numbers) == 1 else None
    if control is None:
        return False
    if control.tag == "input":
        await operator.write(control, numbers[0])
        return True
    # A slider that is drawn: its value tells how far the arrow keys have to go.
    wanted, step = float(numbers[0]), 0.0
    for _ in range(_MOST_PRESSES):
        before = _NUMBER.fullmatch(control.value)
        if before is None:
            return False
        distance = wanted - float(before[0])
        if not distance:
            operator.done.append(f"set the slider to {wanted:g}")
            return True
        key = "ArrowRight" if distance > 0 else "ArrowLeft"
        await operator.press_key(control, key, max(1, round(abs(distance) / step)) if step else 1)
        control = (await operator.look()).elements[control.index]
        step = step or abs(float(control.value or 0) - float(before[0]))
        if control.value == before[0]:
            return False
    return False


async def _write(operator: PageOperator, clause: Clause, *, moments_only: bool = False) -> bool:
    values = assign_values(await operator.look(), clause)
    moments = {field.index: parse_moment(text) for field, text in values if takes_moment(field)}
    if not values or None in moments.values() or (moments_only and len(moments) < len(values)):
        return False
    for field, text in values:
        moment = moments.get(field.index)
        if moment is None:
            await operator.write(field, text)
        elif not await enter_moment(operator, field, moment):
            return False
    return True
